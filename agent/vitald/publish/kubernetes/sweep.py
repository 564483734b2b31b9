"""
`vitald publish sweep`: one process for the cluster, which corrects what silent publishers left.

    silent, and its pod is to run there    conditions Unknown, reason HeartbeatStale
    silent, and no publisher's pod         all that vitald wrote is removed

A publisher is silent if it has not written for three heartbeats while this process observed it. The
time of its last write is the API server's record, and the time of observation is this process's
monotonic clock: neither a wrong clock, nor a restart, nor an outage of the API server, during which
no publisher can write, makes the nodes of a cluster unknown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from vitald.publish.kubernetes.client import REFUSED, ApiRefused, ApiUnreachable
from vitald.publish.kubernetes.cluster_client import ClusterClient
from vitald.publish.kubernetes.credentials import NoCredentials
from vitald.publish.kubernetes.lease import Lease
from vitald.publish.kubernetes.names import find_written_names
from vitald.publish.kubernetes.node_object import NodeObject
from vitald.publish.kubernetes.removal import remove_written
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.publish.kubernetes.stale import build_stale_patch
from vitald.publish.kubernetes.taint import get_taint_key
from vitald.publish.retry import Retry
from vitald.publish.sink import SinkFailed

log: structlog.stdlib.BoundLogger = structlog.get_logger("sweep")

INTERVAL_S = 60.0
HEARTBEATS = 3  # a publisher that missed so many is silent
_NOT_FOUND, _CONFLICT = 404, 409
_RELEASE_S = 1.0
_FAILURES = (ApiRefused, ApiUnreachable, NoCredentials, SinkFailed)


@dataclass(frozen=True, slots=True)
class _Observation:
    """The last write of a publisher, by the API server's clock, and since when it has been the
    last, on the monotonic clock.
    """

    written_at: str
    since: float


class Sweep:
    """Checks all nodes once a minute, and corrects them while it is the leader."""

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
        publishers run on the hosts. `ready_file`: touched after each successful check.
        """
        self._client = client
        self._settings = settings
        self._lease = lease
        self._pods = pods
        self._ready_file = ready_file
        self._clock = clock
        self._silent_s = HEARTBEATS * settings.heartbeat_s
        self._observations: dict[str, _Observation] = {}  # by the node's uid
        self._checked_at = clock()
        self._refused = False

    async def run(self) -> None:
        """Until cancelled."""
        retry = Retry()
        log.info("sweeping", level="notice", silent_s=self._silent_s, pods=self._pods)
        try:
            while True:
                try:
                    await self.check_nodes()
                except _FAILURES as error:
                    log.error("check_failed", error=str(error))
                    pause = retry.note_failure(
                        is_unreachable=isinstance(error, ApiUnreachable),
                        retry_after_s=getattr(error, "retry_after_s", None),
                    )
                else:
                    retry.note_success()
                    pause = INTERVAL_S
                await asyncio.sleep(pause)
        finally:
            with suppress(*_FAILURES, asyncio.TimeoutError):
                await asyncio.wait_for(self._lease.release(), _RELEASE_S)

    async def check_nodes(self) -> None:
        """Raises as the client does."""
        begun = self._clock()
        if begun - self._checked_at > 2 * INTERVAL_S:
            self._observations.clear()  # for too long, no write could have been observed
        await self._lease.hold(begun)
        observations: dict[str, _Observation] = {}
        self._refused = False
        async for node in self._client.list_metadata():
            if not find_written_names(node, self._settings.prefix):
                continue
            now = self._clock()
            observation = self._observations.get(node.uid)
            if observation is None or observation.written_at != node.written_at:
                observation = _Observation(node.written_at, now)
            elif now - observation.since >= self._silent_s and await self._correct(node):
                observation = _Observation(node.written_at, now)  # checked again as late
            observations[node.uid] = observation
        self._observations, self._checked_at = observations, self._clock()
        if not self._refused:
            self._note_success()

    def _note_success(self) -> None:
        try:
            self._ready_file.touch()
        except OSError as error:  # then the readiness probe fails
            log.error("not_noted", file=str(self._ready_file), error=str(error))

    async def _correct(self, listed: NodeObject) -> bool:
        """Whether that is done; else the next check tries again. What the API server refuses of one
        node does not keep the others from being corrected.
        """
        if not await self._lease.hold(self._clock()):
            return False
        self._client.node = listed.name
        try:
            node = await self._client.read_node()
            if (node.uid, node.written_at) == (listed.uid, listed.written_at):
                await self._correct_node(node)
        except ApiRefused as error:
            if error.status in REFUSED:
                self._refused = True
                log.error("refused", node=listed.name, error=str(error))
            elif error.status not in (_NOT_FOUND, _CONFLICT):
                raise
            return False
        except SinkFailed as error:  # other writers were faster
            log.warning("not_corrected", node=listed.name, error=str(error))
            return False
        return True

    async def _correct_node(self, node: NodeObject) -> None:
        namespace, prefix = self._lease.namespace, self._settings.prefix
        if self._pods and not await self._client.has_publisher(namespace, self._pods, node.name):
            removed: set[str] = set()
            await remove_written(self._client, node, prefix, {get_taint_key(prefix)}, removed)
            log.warning("retired", node=node.name, removed=sorted(removed))
        elif patch := build_stale_patch(node, self._settings, time.time()):
            await self._client.patch_status(patch)
            log.warning("made_unknown", node=node.name, written_at=node.written_at)
