"""The node as the watch keeps it: what is read, what is dropped, and what is reported."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Union
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.clock import StandingClock
from tests.waiting import until_async
from vitald.publish.kubernetes import node_watch
from vitald.publish.kubernetes.client import ApiRefused, ApiUnreachable, Document
from vitald.publish.kubernetes.credentials import ClusterAccess
from vitald.publish.kubernetes.node_watch import NodeWatch, WatchingClient

Line = Union[Document, Exception, asyncio.Event, None]


def build_node(version: int, uid: str = "u", **labels: str) -> dict[str, Any]:
    metadata = {"name": "n", "uid": uid, "resourceVersion": str(version), "labels": labels}
    return {"kind": "Node", "metadata": metadata}


class ApiServer(WatchingClient):
    """`requests`: those that it got. `watches`: the lines of each watch to come, which stays open
    after the last one unless that is None. An error in its place is raised, an event waited for.
    """

    def __init__(self, *watches: list[Line]) -> None:
        super().__init__(ClusterAccess(server="https://nowhere"), "n", "vitald.io/hold")
        self.object: dict[str, Any] | None = build_node(5)
        self.version = 9  # of the list
        self.watches = deque(watches)
        self.requests: list[str] = []
        self.error: ApiRefused | None = None

    async def _request(self, method: str, path: str, *request: Any, **more: Any) -> object:
        del request, more
        if path.startswith("/api/v1/nodes?"):
            self.requests.append("list")
            items = [] if self.object is None else [self.object]
            return {"metadata": {"resourceVersion": str(self.version)}, "items": items}
        self.requests.append(method)
        if self.error is not None:
            raise self.error
        if self.object is None:
            raise ApiRefused(404, "not found")
        return self.object

    @asynccontextmanager
    async def stream(self, path: str) -> AsyncIterator[AsyncIterator[Document]]:
        query = parse_qs(urlsplit(path).query)
        assert query["fieldSelector"] == ["metadata.name=n"]
        assert 300 <= int(query["timeoutSeconds"][0]) <= 600
        self.requests.append(f"watch from {query['resourceVersion'][0]}")
        lines = self.watches.popleft() if self.watches else []
        if lines and isinstance(lines[0], Exception):
            raise lines[0]
        yield self._list_lines(lines)

    async def _list_lines(self, lines: list[Line]) -> AsyncIterator[Document]:
        for line in lines:
            if line is None:
                return
            if isinstance(line, Exception):
                raise line
            if isinstance(line, asyncio.Event):
                await line.wait()
                continue
            yield line
        await asyncio.Event().wait()


def build_change(type_: str, node: Document) -> Document:
    return {"type": type_, "object": node}


def follow(server: ApiServer, then: Callable[[list[bool]], Any]) -> None:
    """`then`: what is done once the watch has sent everything; it gets what was reported."""
    reported: list[bool] = []

    async def run() -> None:
        task = asyncio.ensure_future(server.follow_node(reported.append))
        try:
            await until_async(lambda: "watch" in str(server.requests))
            for _ in range(20):
                await asyncio.sleep(0)
            await then(reported)
        finally:
            task.cancel()

    asyncio.run(run())


def test_a_comparison_costs_no_request() -> None:
    server = ApiServer([build_change("MODIFIED", build_node(10, x="y"))])

    async def read(reported: list[bool]) -> None:
        assert (await server.read_node()).labels == {"x": "y"}
        assert reported == [False, False], "the watch has begun, and a change"
        server.object = build_node(11, x="ours")
        await server.patch_status({})
        assert (await server.read_node()).labels == {"x": "ours"}
        assert server.requests == ["list", "watch from 9", "PATCH"]

    follow(server, read)


def test_what_was_written_is_not_undone_by_what_was_sent_before() -> None:
    changes = [
        build_change("MODIFIED", build_node(version, x=str(version))) for version in (8, 9, 10)
    ]
    server = ApiServer(changes)
    server.object = build_node(9, x="ours")

    async def read(reported: list[bool]) -> None:
        assert (await server.read_node()).labels == {"x": "10"}
        assert reported == [False, False, False, False]

    follow(server, read)


def test_a_node_that_was_created_anew_is_reported_as_such() -> None:
    server = ApiServer(
        [
            build_change("DELETED", build_node(10)),
            build_change("ADDED", build_node(12, uid="another")),
        ]
    )

    async def read(reported: list[bool]) -> None:
        assert (await server.read_node()).uid == "another"
        assert reported == [False, True]

    follow(server, read)


def test_a_hold_is_reported_as_urgent_once() -> None:
    """Its end is not: what is due again may wait."""
    nodes = [build_node(version) for version in (10, 11, 12)]
    for node in nodes[:2]:
        node["metadata"]["annotations"] = {"vitald.io/hold": "ticket 4711"}
    server = ApiServer([build_change("MODIFIED", node) for node in nodes])

    async def read(reported: list[bool]) -> None:
        assert reported == [False, True, False, False]

    follow(server, read)


def test_what_another_task_read_first_is_reported_all_the_same() -> None:
    """Events and the taint read the node, too: its conditions have not been compared by that."""
    sent = asyncio.Event()
    server = ApiServer(
        [
            build_change("DELETED", build_node(10)),
            sent,
            build_change("ADDED", build_node(12, uid="another")),
        ]
    )

    async def read(reported: list[bool]) -> None:
        server.object = build_node(12, uid="another")
        assert (await server.read_node()).uid == "another"
        assert reported == [False]
        sent.set()
        await until_async(lambda: reported == [False, True])

    follow(server, read)


def test_a_node_that_is_gone_is_read() -> None:
    server = ApiServer([build_change("DELETED", build_node(10))])

    async def read(reported: list[bool]) -> None:
        server.object = None
        with pytest.raises(ApiRefused, match="404"):
            await server.read_node()
        assert reported == [False]

    follow(server, read)


@pytest.mark.parametrize("status", [404, 409])
def test_a_stale_node_is_read_again(status: int) -> None:
    """A taint is written with the version that it was read at: else each attempt has the same."""
    server = ApiServer()

    async def write(reported: list[bool]) -> None:
        del reported
        server.error = ApiRefused(status, "conflict")
        with pytest.raises(ApiRefused):
            await server.patch_node({})
        server.error, server.object = None, build_node(11, x="newer")
        for _ in range(2):
            assert (await server.read_node()).labels == {"x": "newer"}
        assert server.requests[2:] == ["PATCH", "GET"]

    follow(server, write)


def test_an_ended_watch_is_continued_from_its_last_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_watch, "_TOO_SHORT_S", -1.0)
    bookmark = build_change("BOOKMARK", {"kind": "Node", "metadata": {"resourceVersion": "70"}})
    server = ApiServer([build_change("MODIFIED", build_node(60)), None], [bookmark, None])

    async def read(reported: list[bool]) -> None:
        del reported
        assert server.requests == ["list", "watch from 9", "watch from 60", "watch from 70"]
        assert (await server.read_node()).resource_version == "60"

    follow(server, read)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (build_change("ERROR", {"code": 410, "message": "too old"}), "410: too old"),
        (build_change("ERROR", {"code": "x"}), "500: None"),
        (None, "ended the watch within 10 s"),
        (ApiUnreachable("broken off"), "broken off"),
        ({"type": "MODIFIED"}, "no object"),
        (build_change("MODIFIED", {}), "no object"),
        (build_change("MODIFIED", {"metadata": {"name": 5}}), "no Node"),
    ],
)
def test_without_its_watch_the_node_is_read_each_time(line: Any, error: str) -> None:
    server = ApiServer([line])

    async def fail() -> None:
        with pytest.raises((ApiRefused, ApiUnreachable), match=error):
            await server.follow_node(lambda _: None)
        for _ in range(2):
            await server.read_node()
        await server.patch_status({})
        await server.read_node()
        assert server.requests[2:] == ["GET", "GET", "PATCH", "GET"]

    asyncio.run(fail())


def test_a_watch_that_is_not_permitted_is_shown_and_tried_with_a_growing_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals = [[ApiRefused(403, 'User "x" cannot watch resource "nodes"')] for _ in range(8)]
    server = ApiServer(*refusals)
    watch = NodeWatch(server, lambda is_new: reported.append(is_new))
    pauses: list[float] = []
    reported: list[bool] = []
    errors: list[str] = []
    sleep = asyncio.sleep

    async def note_pause(seconds: float) -> None:
        errors.append(watch.health.error)
        pauses.append(seconds)
        await sleep(0.0)

    monkeypatch.setattr("vitald.publish.retry.random.uniform", lambda low, high: high)

    async def run() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(node_watch.asyncio, "sleep", note_pause)
            task = asyncio.ensure_future(watch.run())
            for _ in range(100):
                await sleep(0)
        assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
        assert watch.health.is_up and reported == [False], "permitted at last"
        assert watch.health.failures == 8
        assert "cannot watch" in errors[0] and "grant get, list, watch" in errors[0]
        task.cancel()

    asyncio.run(run())


def test_a_watch_that_breaks_off_after_a_while_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A load balancer may do that every minute: one that cannot be begun anew is."""
    clock = StandingClock()
    monkeypatch.setattr(node_watch, "time", clock)
    broken = ApiUnreachable("the connection broke off")
    server = ApiServer([broken])

    async def run() -> None:
        watch = NodeWatch(server, lambda _: None)
        task = asyncio.ensure_future(watch.run())
        await until_async(lambda: watch.health.failures == 1)
        assert watch.health.error == "the connection broke off"
        cut = asyncio.Event()
        server.watches.append([cut, broken])
        await until_async(lambda: watch.health.is_up)
        clock.now += 60.0
        requests = len(server.requests)
        cut.set()
        await until_async(lambda: len(server.requests) == requests + 2)
        assert (watch.health.is_up, watch.health.failures) == (True, 1)
        task.cancel()

    asyncio.run(run())
