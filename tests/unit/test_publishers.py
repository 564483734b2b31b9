"""What a publisher reports of its sinks: what is taken, and who is told of it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tests.examples import get_answer, get_request
from tests.harness import Json
from tests.system.document import conforms
from tests.waiting import WAIT_S, until_async
from vitald.cli.status import show_status
from vitald.core import publisher_reports as kept
from vitald.core.node_state import NodeState
from vitald.core.publisher_reports import SILENT_AFTER_S, Publishers
from vitald.http_server import connection_limit
from vitald.http_server.peer import Peer
from vitald.metrics import daemon as metrics
from vitald.publish import publisher
from vitald.publish.publisher import DaemonReport, _describe_health
from vitald.publish.sink import SinkHealth
from vitald.server import endpoints
from vitald.server.request import PUBLISHES, RequestRefused
from vitald.server.routes.publishers import PublisherRoutes, describe_report

NOBODY = 65534
WELL: Json = {
    "name": "kubernetes",
    "up": True,
    "lastSuccess": "2026-11-20T13:46:40.250Z",
    "error": "",
    "refused": [],
    "waiting": 0,
    "waitingSince": None,
    "writes": 7,
    "failures": 1,
}


class Page(Collector):
    def __init__(self, publishers: Publishers) -> None:
        self._publishers = publishers

    def collect(self) -> Iterator[Metric]:
        return metrics.collect_metrics(self._publishers)


def samples(publishers: Publishers) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(Page(publishers))
    lines = generate_latest(registry).decode().splitlines()
    told = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in told}


def report(
    body: object, *, uid: int = 0, publishes: bool = False, state: NodeState | None = None
) -> tuple[int, Json]:
    """Status and answer. A `body` of bytes is sent as it is."""
    board = NodeState("boot", 0.0, device_reset=False) if state is None else state

    @web.middleware
    async def outermost(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        request["peer"], request[PUBLISHES] = Peer(1, uid, frozenset()), publishes
        try:
            return await handler(request)
        except RequestRefused as refused:
            return web.json_response({"error": refused.error}, status=refused.status)

    async def send() -> tuple[int, Json]:
        app = web.Application(middlewares=[outermost])
        app.add_routes(PublisherRoutes(board).list_routes())
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with (
            TestClient(TestServer(app)) as client,
            client.post("/v1/publishers", data=data) as answer,
        ):
            return answer.status, await answer.json()

    return asyncio.run(asyncio.wait_for(send(), WAIT_S))


def taken(*sinks: Json) -> Publishers:
    state = NodeState("boot", 0.0, device_reset=False)
    assert report({"sinks": list(sinks)}, state=state) == (200, {"ok": True})
    return state.publishers


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    real = kept.time.monotonic
    monkeypatch.setattr(kept.time, "monotonic", lambda: real() + seconds)


def test_what_the_publisher_sends_is_taken() -> None:
    """The client's own words, with an error as a receiver may make it."""
    health = SinkHealth("kubernetes", error="no\nroute\x1b[2J " + "x" * 500, failures=3, waiting=1)
    publishers = taken(json.loads(json.dumps(_describe_health(health))))
    last = publishers.get_report()
    assert last is not None and not publishers.is_silent
    (sink,) = last.sinks
    assert (sink.name, sink.up, sink.failures, sink.last_success) == ("kubernetes", False, 3, None)
    assert sink.error.startswith("no route [2J xxx") and len(sink.error) == 300
    conforms("Publishers", describe_report(last, silent=False))


def test_the_example_is_taken() -> None:
    assert report(get_request(endpoints.REPORT_SINKS)) == (200, {"ok": True})


def test_who_may_report() -> None:
    expected = {(0, False): 200, (NOBODY, True): 200, (NOBODY, False): 403}
    assert {
        (uid, publishes): report({"sinks": [WELL]}, uid=uid, publishes=publishes)[0]
        for uid, publishes in expected
    } == expected


REFUSED: list[tuple[object, str]] = [
    (None, "sinks: expected a list"),
    ({}, "sinks: expected a list"),
    (["x"], "sinks[0]: expected an object"),
    ([WELL, {**WELL}], "'kubernetes' is there more than once"),
    ([{**WELL, "name": f"s{number}"} for number in range(17)], "sinks: expected a list"),
    ([{**WELL, "extra": 1}], "sinks[0]: unknown key 'extra'"),
    ([{key: WELL[key] for key in WELL if key != "waiting"}], "sinks[0].waiting: it is missing"),
    ([{**WELL, "name": "Kube"}], "sinks[0].name: expected 1 to 32"),
    ([{**WELL, "name": "k" * 33}], "sinks[0].name"),
    ([{**WELL, "name": 'a",x="'}], "sinks[0].name"),
    ([{**WELL, "up": 1}], "sinks[0].up: expected true or false"),
    ([{**WELL, "error": "x" * 301}], "sinks[0].error: expected one line"),
    ([{**WELL, "error": "two\nlines"}], "sinks[0].error"),
    ([{**WELL, "error": "\x1b[2J"}], "sinks[0].error"),
    ([{**WELL, "error": None}], "sinks[0].error"),
    ([{**WELL, "refused": None}], "sinks[0].refused: expected a list"),
    ([{**WELL, "refused": ["x"] * 17}], "sinks[0].refused"),
    ([{**WELL, "refused": ['"']}], "sinks[0].refused: expected 1 to 32"),
    ([{**WELL, "waiting": -1}], "sinks[0].waiting: expected a number from 0"),
    ([{**WELL, "writes": 10**15 + 1}], "sinks[0].writes"),
    ([{**WELL, "writes": 1.5}], "sinks[0].writes"),
    ([{**WELL, "failures": True}], "sinks[0].failures"),
    ([WELL, {**WELL, "name": "b", "lastSuccess": 5}], "sinks[1].lastSuccess: expected null or"),
    ([{**WELL, "lastSuccess": "2026-02-31T00:00:00.000Z"}], "sinks[0].lastSuccess"),
    ([{**WELL, "waitingSince": "2026-11-20 13:46:40"}], "sinks[0].waitingSince"),
]


def test_what_is_refused() -> None:
    """By the key and the place, without the value; and the report before stays."""
    state = NodeState("boot", 0.0, device_reset=False)
    report({"sinks": [WELL]}, state=state)
    wrong = []
    for sinks, named in REFUSED:
        status, answer = report({"sinks": sinks}, state=state)
        said = str(answer.get("error"))
        last = state.publishers.get_report()
        stays = last is not None and last.sinks[0].writes == 7
        if status != 400 or named not in said or len(said) >= 200 or not stays:
            wrong.append((sinks, status, answer))
    assert wrong == []


def test_what_is_no_report() -> None:
    for body, named in (
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"sink": []}', "unknown key 'sink', did you mean sinks?"),
        (b'{"sinks": [{"writes": 1e400}]}', "sinks[0].name: it is missing"),
    ):
        status, answer = report(body)
        assert (status, named in str(answer["error"])) == (400, True), answer


def test_metrics_of_a_sink() -> None:
    told = samples(taken(WELL, {**WELL, "name": "nfd", "up": False, "waiting": 3}))
    kubernetes = 'vitald_publish_{}{{sink="kubernetes"}}'
    assert told[kubernetes.format("up")] == 1.0
    assert told[kubernetes.format("queue")] == 0.0
    assert told[kubernetes.format("last_success_timestamp_seconds")] == 1795182400.25
    assert told['vitald_publish_writes_total{result="written",sink="kubernetes"}'] == 7.0
    assert told['vitald_publish_writes_total{result="failed",sink="kubernetes"}'] == 1.0
    assert told['vitald_publish_up{sink="nfd"}'] == 0.0
    assert told['vitald_publish_queue{sink="nfd"}'] == 3.0
    partly = samples(taken({**WELL, "up": False, "refused": ["eks", "labels"]}))
    assert partly['vitald_publish_refused{content="eks",sink="kubernetes"}'] == 1.0
    assert partly['vitald_publish_refused{content="labels",sink="kubernetes"}'] == 1.0
    assert told["vitald_publish_last_report_timestamp_seconds"] > 1.7e9


def test_no_metrics_where_nobody_reported() -> None:
    assert samples(Publishers()) == {}
    never = samples(taken({**WELL, "lastSuccess": None}))
    assert 'vitald_publish_last_success_timestamp_seconds{sink="kubernetes"}' not in never


def test_a_silent_publisher(monkeypatch: pytest.MonkeyPatch) -> None:
    publishers = taken(WELL)
    later(monkeypatch, SILENT_AFTER_S - 5.0)
    assert not publishers.is_silent
    later(monkeypatch, 6.0)
    assert publishers.is_silent
    told = samples(publishers)
    assert told['vitald_publish_up{sink="kubernetes"}'] == 0.0
    assert told['vitald_publish_writes_total{result="written",sink="kubernetes"}'] == 7.0
    last = publishers.get_report()
    assert last is not None and not last.sinks[0].up


def test_a_publisher_that_takes_its_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    state = NodeState("boot", 0.0, device_reset=False)
    report({"sinks": [WELL]}, state=state)
    assert report({"sinks": []}, state=state)[0] == 200
    later(monkeypatch, 2 * SILENT_AFTER_S)
    assert (state.publishers.get_report(), state.publishers.is_silent) == (None, False)


def shown(capsys: pytest.CaptureFixture[str], publishers: Any) -> list[str]:
    """The lines of `vitald status` about publishing, at 13:48:09."""
    status: Any = {**get_answer(endpoints.STATUS), "time": "2026-11-20T13:48:09.000Z"}
    if publishers != "":
        status["publishers"] = publishers
    else:
        del status["publishers"]  # an older daemon
    show_status(status)
    return [line for line in capsys.readouterr().out.splitlines() if "publish" in line]


def table(*sinks: Json, silent: bool = False) -> Json:
    return {"reported": "2026-11-20T13:48:01.000Z", "silent": silent, "sinks": [*sinks]}


def test_nothing_is_shown_while_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    late = table({**WELL, "waiting": 1, "waitingSince": "2026-11-20T13:47:45.000Z"})
    for publishers in ("", None, table(), table(WELL), late):
        assert shown(capsys, publishers) == [], publishers


def test_a_sink_that_is_down_or_behind_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    late = {"waiting": 1, "waitingSince": "2026-11-20T13:47:30.000Z"}
    down = {**WELL, "name": "nfd", "up": False, "error": "no space \x1b[2Jleft"}
    partly = {**WELL, "up": False, "refused": ["labels", "eks"], "error": "denied"}
    first, second, third = shown(
        capsys, table({**WELL, **late}, down, {**partly, "name": "other"}, {**WELL, "name": "well"})
    )
    behind = r"  publishing to kubernetes: behind since 2026-11-20 \S+ \(\d+ d ago\): "
    assert re.match(behind, first)
    assert first.endswith(": journalctl -u vitald-publish")
    assert third.startswith("  publishing to other: PARTLY, without labels, eks: denied: ")
    assert second == (
        "  publishing to nfd: DOWN: no space \\x1b[2Jleft: journalctl -u vitald-publish"
    )


def test_a_silent_publisher_has_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    gone = {**WELL, "up": False}
    (line,) = shown(capsys, table(gone, {**gone, "name": "nfd"}, silent=True))
    assert line.startswith("  vitald publish: SILENT since 2026-11-20 ")
    assert line.endswith(": journalctl -u vitald-publish")


class Connection:
    """The transport of a client on the Unix socket."""

    def get_extra_info(self, _name: str) -> Any:
        return self

    family = socket.AF_UNIX


@pytest.mark.parametrize(
    ("uid", "shared"), [(0, None), (1234, 1234), (1235, None)], ids=["root", "user", "publisher"]
)
def test_members_of_the_group_cannot_keep_the_publisher_out(
    uid: int, shared: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a reserved place, as root has: else a node could be made to look silent."""
    monkeypatch.setattr(connection_limit, "read_peer", lambda _sock: Peer(1, uid, frozenset()))
    found = connection_limit._read_uid(cast("asyncio.Transport", Connection()), 1235)
    assert found == shared


def test_the_publisher_repeats_its_report_to_a_daemon_that_forgot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that was restarted is told within one interval."""
    monkeypatch.setattr(publisher, "INTERVAL_S", 0.05)
    monkeypatch.setattr(publisher, "_CHECK_S", 0.01)
    state = NodeState("boot", 0.0, device_reset=False)

    async def work() -> None:
        @web.middleware
        async def outermost(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            request["peer"], request[PUBLISHES] = Peer(1, 0, frozenset()), True
            return await handler(request)

        app = web.Application(middlewares=[outermost])
        app.add_routes(PublisherRoutes(state).list_routes())
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(tmp_path / "v.sock")).start()
        reporting = DaemonReport(tmp_path / "v.sock", lambda: [SinkHealth("nfd", is_up=True)])
        running = asyncio.ensure_future(reporting.run())
        for _ in range(2):
            await until_async(lambda: state.publishers.get_report() is not None)
            state.publishers.store_report(())
        running.cancel()
        await runner.cleanup()

    asyncio.run(asyncio.wait_for(work(), WAIT_S))


@pytest.mark.parametrize(("age_s", "is_up"), [(0.0, True), (500.0, True), (700.0, False)])
def test_a_sink_that_hangs_is_down(age_s: float, is_up: bool) -> None:
    """It reports no failure itself; the alert and the status go by this."""
    health = SinkHealth("notify-a", is_up=True, error="")
    if age_s:
        health = replace(health, waiting=1, waiting_since=time.time() - age_s)
    report = _describe_health(health)
    assert (report["up"], bool(report["error"])) == (is_up, not is_up)
