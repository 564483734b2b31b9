"""
Releases the GPUs while the NVIDIA GPU Operator upgrades the driver of this node.

The operator's progress is a label of the node. Between two of its states the driver's kernel
modules are unloaded, which fails while any process has them open: then the driver's pod fails, is
started again, and after more than ten times the upgrade has failed. So the daemon releases the GPUs
before (`POST /v1/release`), while the pods that use them are deleted, and takes them back
(`POST /v1/release/end`) once the new driver has been validated.

The label is read when the node was changed, every minute, and every 15 s from the moment that an
upgrade is due. A label that stands still is not waited for longer than LIMIT_S, since the
GPUs are not monitored meanwhile.

Sources: NVIDIA/k8s-operator-libs, pkg/upgrade/consts.go (label and states), upgrade_state.go
(their order) and common_manager.go (isDriverPodFailing); NVIDIA/k8s-driver-manager,
cmd/driver-manager/main.go (unloadDriver).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import structlog

from vitald.publish.daemon_request import AnswerUnusable, DaemonAway, request_daemon
from vitald.publish.kubernetes.client import ApiRefused, ApiUnreachable, KubernetesClient
from vitald.publish.kubernetes.credentials import NoCredentials
from vitald.publish.sink import SinkHealth
from vitald.publish.state_store import StateStore
from vitald.publish.summary import PublishedState
from vitald.server import endpoints
from vitald.server.endpoint import Endpoint

log: structlog.stdlib.BoundLogger = structlog.get_logger("kubernetes")

LABEL = "nvidia.com/gpu-driver-upgrade-state"
RELEASED_SINCE = "gpus_released"  # in publish.db
LIMIT_S = 2 * 3600.0
RELEASE_S = 600.0  # renewed after half of it; over by itself if this process dies
_POLL_S, _IDLE_POLL_S = 15.0, 60.0
_JITTER = 0.1
_COALESCE_S = 0.2
RELEASE_REASON = "driver upgrade by the NVIDIA GPU Operator"
_ANSWER_S = 15.0  # the daemon waits up to 10 s for a worker that hangs in the driver
_CONFLICT = 409  # no GPU on PCI, or NVML is not used
_NVML = "nvml"


class UpgradePhase(Enum):
    IDLE = "no upgrade is due"
    PENDING = "the GPUs are still, or again, in use"
    RELEASED = "the driver is about to be unloaded, or not validated yet"


# In the order in which the operator sets them. A node waits in the first ones for its turn and for
# its jobs, whose GPUs are still watched.
PHASES: Mapping[str, UpgradePhase] = {
    "": UpgradePhase.IDLE,
    "upgrade-required": UpgradePhase.PENDING,
    "cordon-required": UpgradePhase.PENDING,
    "wait-for-jobs-required": UpgradePhase.PENDING,
    "node-maintenance-required": UpgradePhase.PENDING,  # another operator drains the node
    "pod-deletion-required": UpgradePhase.RELEASED,
    "drain-required": UpgradePhase.RELEASED,
    "post-maintenance-required": UpgradePhase.RELEASED,
    "pod-restart-required": UpgradePhase.RELEASED,
    "validation-required": UpgradePhase.RELEASED,
    "uncordon-required": UpgradePhase.PENDING,
    "upgrade-done": UpgradePhase.IDLE,
    "upgrade-failed": UpgradePhase.IDLE,  # it stays until a person acts; the node has to be watched
}


class DriverUpgradeMonitor:
    """Follows the label, and holds a release as long as the upgrade requires it."""

    def __init__(self, client: KubernetesClient, releases: GpuReleases, store: StateStore) -> None:
        self.health = SinkHealth("driver_upgrades", error="the node has not been read yet")
        self._client = client
        self._releases = releases
        self._store = store
        self._state: str | None = None  # of the label, once it has been read
        self._released_since = store.read_moment(RELEASED_SINCE)  # 0: nothing is released
        self._is_over_limit = False
        self._daemon = ""  # the run of the daemon that released the GPUs
        self._holds_none = False  # that daemon has no GPU to release
        self._renew_at = 0.0  # on the monotonic clock, as the next
        self._read_at = 0.0
        self._node_error = "the node has not been read yet"
        self._release_error = ""
        self._changed = asyncio.Event()

    @property
    def phase(self) -> UpgradePhase:
        if self._state is None:  # a release that was begun before a restart is held meanwhile
            return UpgradePhase.RELEASED if self._released_since else UpgradePhase.IDLE
        return PHASES.get(self._state, UpgradePhase.IDLE)

    def offer_state(self, state: PublishedState) -> None:  # noqa: ARG002
        """The daemon has answered: it may have been restarted, and hold the GPUs again."""
        if self.phase is UpgradePhase.RELEASED:
            self._changed.set()

    def note_change(self, *, is_urgent: bool) -> None:  # noqa: ARG002
        """The node was changed: its label may be another one."""
        self._read_at = 0.0
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if time.monotonic() >= self._read_at:
                await self._read_label()
            await self._apply_phase()
            self._update_health()
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        """Until the label is due, or the daemon has answered."""
        pause = min(self._read_at - time.monotonic(), _POLL_S)
        if self.phase is UpgradePhase.IDLE and not self._released_since:
            pause = self._read_at - time.monotonic()
        try:
            await asyncio.wait_for(self._changed.wait(), max(pause, 0.0))
        except asyncio.TimeoutError:
            return
        await asyncio.sleep(_COALESCE_S)
        self._changed.clear()

    # --- the label

    async def _read_label(self) -> None:
        """If the API server does not answer, the last known state holds."""
        retry_after = 0.0
        labels: Mapping[str, str] | None = None
        try:
            labels = (await self._client.read_node()).labels
        except ApiRefused as error:
            retry_after = error.retry_after_s or 0.0
            is_gone = error.status == 404
            if is_gone:
                labels = {}
            self._note_node_error("" if is_gone else f"API server: {error}")
        except (ApiUnreachable, NoCredentials) as error:
            self._note_node_error(str(error))
        else:
            self._note_node_error("")
        if labels is not None:
            self._note_state(labels.get(LABEL, ""))
        interval = _IDLE_POLL_S if self.phase is UpgradePhase.IDLE else _POLL_S
        spread = random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311
        self._read_at = time.monotonic() + max(interval * spread, retry_after)

    def _note_state(self, state: str) -> None:
        if state == self._state:
            return
        if state not in PHASES:
            log.warning("driver_upgrade_state_unknown", state=state[:64])
        log.info("driver_upgrade_state", level="notice", state=state[:64], before=self._state)
        self._state = state

    def _note_node_error(self, error: str) -> None:
        if error and not self._node_error:
            log.error("driver_upgrade_label_not_read", error=error)
        self._node_error = error

    # --- the release

    async def _apply_phase(self) -> None:
        try:
            if self.phase is UpgradePhase.RELEASED:
                await self._hold_release()
            elif self._released_since:
                await self._end_release()
        except ReleaseFailed as error:
            self._note_release_error(str(error))

    async def _hold_release(self) -> None:
        """Begin a release, or renew it. Raises ReleaseFailed."""
        if not self._released_since:
            await self._set_released_since(time.time())
        if time.time() - self._released_since > LIMIT_S:
            self._note_limit()
            return
        daemon = await self._releases.read_state()
        is_held = daemon.is_released or self._holds_none
        is_current = time.monotonic() < self._renew_at and daemon.started_at == self._daemon
        if not (is_held and is_current):
            self._holds_none = not await self._releases.begin_release(RELEASE_S)
            self._daemon = daemon.started_at
            self._renew_at = time.monotonic() + RELEASE_S / 2
            log.info("gpus_released", level="notice", state=self._state, seconds=RELEASE_S)
            self.health = replace(self.health, writes=self.health.writes + 1)
        self._note_release_error("")

    def _note_limit(self) -> None:
        """The last release ends by itself."""
        if not self._is_over_limit:
            log.error("driver_upgrade_stuck", state=self._state, limit_s=LIMIT_S)
        self._is_over_limit = True
        self._release_error = (
            f"{LABEL} is {self._state or 'unknown'}, and {LIMIT_S / 3600:g} h have passed: the GPUs"
            " are not released any longer"
        )

    async def _end_release(self) -> None:
        """Raises ReleaseFailed if it is to be tried again."""
        try:
            await self._releases.end_release()
        except ReleaseFailed as error:
            if not error.is_final:
                raise
            log.warning("release_not_ended", error=str(error), effect="it ends by itself")
        log.info("gpus_taken_back", level="notice", state=self._state)
        await self._set_released_since(0.0)
        self._is_over_limit = False
        self._daemon, self._renew_at = "", 0.0
        self._note_release_error("")

    async def _set_released_since(self, moment: float) -> None:
        """Stored before the release: a process that is started in the middle has to end it."""
        self._released_since = moment
        await self._store.write_moment(RELEASED_SINCE, moment)

    def _note_release_error(self, error: str) -> None:
        if error and not self._release_error:
            log.error("gpu_release_failed", state=self._state, error=error)
        if error:
            self.health = replace(self.health, failures=self.health.failures + 1)
        self._release_error = error

    def _update_health(self) -> None:
        error = self._release_error or self._node_error
        self.health = replace(
            self.health,
            is_up=not error,
            error=error,
            last_success=self.health.last_success if error else time.time(),
        )


class ReleaseFailed(Exception):
    """The daemon did not answer, or refused. The text says why.

    `is_final`: it would refuse again.
    """

    def __init__(self, detail: str, *, is_final: bool = False) -> None:
        super().__init__(detail)
        self.is_final = is_final


@dataclass(frozen=True, slots=True)
class DaemonReleases:
    """Whether the GPUs are released, by whomever; and which run of the daemon says so."""

    started_at: str
    is_released: bool


class GpuReleases:
    """Requests to the daemon behind this socket. A release is known by its reason, so that another
    person's is never ended, and one that was begun before a restart of this process is.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def read_state(self) -> DaemonReleases:
        """Raises ReleaseFailed."""
        status = await self._request(endpoints.STATUS)
        try:
            sources = {source["name"]: source["state"] for source in status["sources"]}
            return DaemonReleases(str(status["startedAt"]), sources.get(_NVML) == "released")
        except (KeyError, TypeError) as error:
            raise ReleaseFailed(
                f"{endpoints.STATUS.path}: {type(error).__name__}: {error}"
            ) from error

    async def begin_release(self, seconds: float) -> bool:
        """Returns once the daemon does not hold the GPUs; False if it never does. Raises
        ReleaseFailed.
        """
        try:
            await self._request(endpoints.RELEASE, {"reason": RELEASE_REASON, "seconds": seconds})
        except _Refused as refused:
            if refused.status == _CONFLICT:
                return False
            raise
        return True

    async def end_release(self) -> None:
        """Take the GPUs back, unless somebody else has them released. Raises ReleaseFailed."""
        try:
            await self._request(endpoints.END_RELEASE, {"reason": RELEASE_REASON})
        except _Refused as refused:
            if refused.status != _CONFLICT:
                raise

    async def _request(
        self, endpoint: Endpoint[object], body: Mapping[str, object] | None = None
    ) -> Mapping[str, Any]:
        try:
            return await request_daemon(self._socket, endpoint, body, answer_s=_ANSWER_S)
        except DaemonAway as error:
            raise ReleaseFailed(str(error)) from error
        except AnswerUnusable as error:
            raise _Refused(str(error), error.status) from error


class _Refused(ReleaseFailed):
    def __init__(self, detail: str, status: int) -> None:
        super().__init__(detail, is_final=400 <= status < 500)
        self.status = status
