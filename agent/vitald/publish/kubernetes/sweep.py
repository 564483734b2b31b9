"""
`vitald publish sweep`: one process for the cluster, which corrects what silent publishers left.

    silent, and its pod is there       conditions Unknown, reason HeartbeatStale
    silent, and no publisher's pod     all that vitald wrote is removed

A publisher is silent if it has not written for three heartbeats while the sweep looked on. When it
wrote last is the API server's record, and how long the sweep has looked on is its own monotonic
clock: neither a wrong clock, nor a restart, nor an outage of the API server, during which nobody
can write, makes the nodes of a cluster unknown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from vitald.publish.kubernetes.client import ApiRefused, ApiUnreachable
from vitald.publish.kubernetes.cluster_client import ClusterClient
from vitald.publish.kubernetes.credentials import NoCredentials
from vitald.publish.kubernetes.lease import Lease
from vitald.publish.kubernetes.names import find_written_names
from vitald.publish.kubernetes.node_object import NodeObject
from vitald.publish.kubernetes.retire_cluster import remove_written
from vitald.publish.kubernetes.stale import build_stale_patch
from vitald.publish.retry import Retry
from vitald.publish.sink import SinkFailed
from vitald.publish_sections import KubernetesSettings

log: structlog.stdlib.BoundLogger = structlog.get_logger("sweep")

LOOK_S = 60.0  # a look at all nodes; how often another process asks for the Lease
HEARTBEATS = 3  # a publisher that missed so many is silent
_NOT_FOUND, _CONFLICT, _REFUSED = 404, 409, (403, 422)
_RELEASE_S = 1.0
_FAILURES = (ApiRefused, ApiUnreachable, NoCredentials, SinkFailed)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Since when a node has said that vitald wrote last at that time. Monotonic clock."""

    written_at: str
    since: float


class Sweep:
    """Looks at all nodes once a minute, while it holds the Lease."""

    def __init__(
        self,
        client: ClusterClient,
        settings: KubernetesSettings,
        lease: Lease,
        *,
        pods: str,
        ready_file: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pods`: the label selector of the publishers' pods, in the Lease's namespace; "" where
        publishers run on the hosts. `ready_file`: touched when all went well.
        """
        self._client = client
        self._settings = settings
        self._lease = lease
        self._pods = pods
        self._ready_file = ready_file
        self._clock = clock
        self._silent_s = HEARTBEATS * settings.heartbeat_s
        self._seen: dict[str, _Seen] = {}  # by the node's uid
        self._looked_at: float | None = None
        self._refused = False

    async def run(self) -> None:
        """Until cancelled."""
        retry = Retry()
        log.info("sweeping", silent_s=self._silent_s, pods=self._pods)
        try:
            while True:
                try:
                    await self.look()
                except _FAILURES as error:
                    log.error("look_failed", error=str(error))
                    pause = retry.note_failure(
                        is_unreachable=isinstance(error, ApiUnreachable),
                        retry_after_s=getattr(error, "retry_after_s", None),
                    )
                else:
                    retry.note_success()
                    pause = LOOK_S
                await asyncio.sleep(pause)
        finally:
            with suppress(*_FAILURES, asyncio.TimeoutError):
                await asyncio.wait_for(self._lease.release(), _RELEASE_S)

    async def look(self) -> None:
        """At all nodes, if this process is the leader. Raises as the client does."""
        begun = self._clock()
        if self._looked_at is None or begun - self._looked_at > 2 * LOOK_S:
            self._seen.clear()  # nobody looked on meanwhile
        if not await self._lease.hold(begun):
            self._looked_at = None
            self._note_success()
            return
        seen: dict[str, _Seen] = {}
        self._refused = False
        async for node in self._client.list_metadata():
            if not find_written_names(node, self._settings.prefix):
                continue
            now = self._clock()
            if not await self._lease.hold(now):
                return
            entry = self._seen.get(node.uid)
            if entry is None or entry.written_at != node.written_at:
                entry = _Seen(node.written_at, now)
            elif now - entry.since >= self._silent_s and await self._correct(node):
                entry = _Seen(node.written_at, now)  # looked at again as late
            seen[node.uid] = entry
        self._seen, self._looked_at = seen, self._clock()
        if not self._refused:
            self._note_success()

    def _note_success(self) -> None:
        try:
            self._ready_file.touch()
        except OSError as error:  # then the probe says that it is not ready
            log.error("not_noted", file=str(self._ready_file), error=str(error))

    async def _correct(self, listed: NodeObject) -> bool:
        """Whether that is done; else the next look tries again. What the API server refuses of one
        node does not keep the others from being corrected.
        """
        self._client.node = listed.name
        try:
            node = await self._client.read_node()
            if (node.uid, node.written_at) == (listed.uid, listed.written_at):
                await self._correct_node(node)
        except ApiRefused as error:
            if error.status in _REFUSED:
                self._refused = True
                log.error("refused", node=listed.name, error=str(error))
            elif error.status not in (_NOT_FOUND, _CONFLICT):
                raise
            return False
        return True

    async def _correct_node(self, node: NodeObject) -> None:
        namespace = self._lease.namespace
        if self._pods and not await self._client.has_publisher(namespace, self._pods, node.name):
            removal = await remove_written(self._client, node, self._settings.prefix)
            log.warning("retired", node=node.name, removed=removal.removed)
        elif patch := build_stale_patch(node, self._settings, time.time()):
            await self._client.patch_status(patch)
            log.warning("made_unknown", node=node.name, written_at=node.written_at)
