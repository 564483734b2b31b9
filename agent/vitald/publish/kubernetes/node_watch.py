"""
The own Node object, kept as the API server last sent it, so that a comparison costs no request and
what others change is noticed at once.

A list gives the node and the version from which it is watched; a watch that the API server ends
after its time is continued. Without the watch (it may not be permitted) the node is read each time.

Source: Kubernetes API concepts, "Efficient detection of changes" (watch, bookmarks, 410) and
"Resource versions", tried against 1.36.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlencode

from vitald.publish.kubernetes.client import (
    ApiRefused,
    ApiUnreachable,
    Document,
    KubernetesClient,
    read_list,
    read_node_object,
    read_object,
    report_failures,
)
from vitald.publish.kubernetes.credentials import ClusterAccess
from vitald.publish.kubernetes.node_object import NodeObject
from vitald.publish.retry import Retry
from vitald.publish.sink import SinkFailed, SinkHealth, note_failure, note_success
from vitald.publish.summary import PublishedState

_SHORTEST_S, _LONGEST_S = 300, 600  # of a watch, as client-go has it
_TOO_SHORT_S = 10.0
_NOT_PERMITTED = 403
_NEXT_STEP = "the node is read before each write instead; grant get, list, watch of nodes"
_STALE = (404, 409)  # another node, or another version of it, than the one that is kept


class WatchingClient(KubernetesClient):
    """Reads the own node from what the watch has sent."""

    def __init__(
        self, access: ClusterAccess, node: str, hold_key: str, impersonate: str = ""
    ) -> None:
        """`hold_key`: of the annotation with which a person holds repairs."""
        super().__init__(access, node, impersonate)
        self._hold_key = hold_key
        self._kept: NodeObject | None = None  # None: it has to be read
        self._is_watched = False

    async def read_node(self) -> NodeObject:
        """Raises ApiUnreachable, ApiRefused, NoCredentials."""
        kept = self._kept
        return self._keep(await super().read_node()) if kept is None else kept

    async def patch_status(self, patch: Mapping[str, object]) -> NodeObject:
        with self._forget_stale_node():
            return self._keep(await super().patch_status(patch))

    async def patch_node(self, patch: Mapping[str, object]) -> NodeObject:
        with self._forget_stale_node():
            return self._keep(await super().patch_node(patch))

    async def follow_node(self, report: Callable[[bool], None]) -> None:
        """Until the watch fails. `report`: called when it has begun and with each change, also
        those by vitald, with whether it is urgent: a new object, or one that a person holds now.
        Raises as read_node.
        """
        selector = {"fieldSelector": f"metadata.name={self.node}"}
        listing = await self._request("GET", _build_path({**selector, "resourceVersion": "0"}))
        nodes, metadata = read_list(listing, "nodes")
        version = str(metadata.get("resourceVersion", ""))
        self._is_watched = True
        try:
            for node in nodes:
                self._keep(read_node_object(node))
            while True:
                path = _build_path({**selector, **_build_watch(version)})
                version = await self._follow_changes(path, version, report)
        finally:
            self._is_watched, self._kept = False, None

    async def _follow_changes(self, path: str, version: str, report: Callable[[bool], None]) -> str:
        """The last version, once the API server has ended the watch."""
        begun = time.monotonic()
        async with self.stream(path) as changes:
            report(False)
            async for change in changes:
                type_, changed = change.get("type"), read_object(change.get("object"))
                if type_ == "ERROR":
                    raise _read_error(changed)
                version = str(read_object(changed.get("metadata")).get("resourceVersion", ""))
                if type_ == "DELETED":
                    self._kept = None
                elif type_ != "BOOKMARK":
                    node = read_node_object(changed)
                    is_held = not self._has_hold(self._kept) and self._has_hold(node)
                    self._keep(node)
                    report(type_ == "ADDED" or is_held)
        if time.monotonic() - begun < _TOO_SHORT_S:
            raise ApiUnreachable(f"the API server ended the watch within {_TOO_SHORT_S:g} s")
        return version

    def _has_hold(self, node: NodeObject | None) -> bool:
        return node is not None and self._hold_key in node.annotations

    def _keep(self, node: NodeObject) -> NodeObject:
        """Of two, the later one: what was written may be answered before an earlier change is
        sent.
        """
        kept = self._kept
        if self._is_watched and (kept is None or _rank_version(node) > _rank_version(kept)):
            self._kept = node
        return node

    @contextmanager
    def _forget_stale_node(self) -> Iterator[None]:
        try:
            yield
        except ApiRefused as error:
            if error.status in _STALE:
                self._kept = None
            raise


def _rank_version(node: NodeObject) -> tuple[int, str]:
    """Versions are whole numbers of any size.

    Source: Kubernetes API concepts, "Resource versions" (from 1.35 on they may be compared).
    """
    return len(node.resource_version), node.resource_version


def _build_path(query: Mapping[str, str]) -> str:
    return f"/api/v1/nodes?{urlencode(query)}"


def _build_watch(version: str) -> dict[str, str]:
    return {
        "watch": "true",
        "resourceVersion": version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(random.randint(_SHORTEST_S, _LONGEST_S)),  # noqa: S311
    }


def _read_error(status: Document) -> ApiRefused:
    code = status.get("code")
    return ApiRefused(code if isinstance(code, int) else 500, str(status.get("message"))[:500])


class NodeWatch:
    """Keeps the watch up."""

    name = "kubernetes-watch"

    def __init__(self, client: WatchingClient, report: Callable[[bool], None]) -> None:
        """`report`: as of WatchingClient.follow_node."""
        self.health = SinkHealth(self.name, error="the node is not watched yet")
        self._client = client
        self._report = report
        self._retry = Retry()

    def offer_state(self, state: PublishedState) -> None:
        """It has nothing to do with the node's state."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            begun = time.monotonic()
            try:
                with report_failures(), _name_next_step():
                    await self._client.follow_node(self._note_change)
            except SinkFailed as error:
                if time.monotonic() - begun > _TOO_SHORT_S:
                    # A proxy ends what is idle, a version expires. The next attempt shows whether
                    # there is more to it.
                    self._retry.note_success()
                else:
                    self.health = note_failure(self.health, error)
                pause = self._retry.note_failure(
                    is_unreachable=error.is_unreachable, retry_after_s=error.retry_after_s
                )
                await asyncio.sleep(pause)

    def _note_change(self, is_urgent: bool) -> None:
        self.health = note_success(self.health, waiting=0, writes=0)
        self._report(is_urgent)


@contextmanager
def _name_next_step() -> Iterator[None]:
    try:
        yield
    except ApiRefused as error:
        if error.status != _NOT_PERMITTED:
            raise
        raise ApiRefused(error.status, f"{error.message}: {_NEXT_STEP}") from error
