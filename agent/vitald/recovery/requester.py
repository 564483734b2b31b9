"""
Requests a reboot or a replacement from root, with a file: `<runtime>/recovery/request.json`, if
`[recovery] mode` is "automatic".

The file is renamed into place, which triggers vitald-recover.path; it is written again every few
minutes while it holds, and removed afterwards. Root decides what follows (docs/recovery.md).

Owns     when to request: for real findings in the ledger that are open for `[recovery] after`, and
         whose remedy has not begun.
Refuses  acting: this process has no right to reboot.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import structlog

from vitald.core.node_state import NodeState
from vitald.model.finding import Finding
from vitald.model.source import SourceState
from vitald.model.words import Repair
from vitald.recovery import decision_log
from vitald.recovery.decision import Step
from vitald.recovery.recovery_request import (
    FILE,
    Request,
    make_finding_ref,
    render_request,
    select_action,
)
from vitald.recovery.settings import RecoverySettings
from vitald.text import clean_line
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("recovery")

_TICK_S = 1.0
_REPEAT_S = 180.0  # less than the age at which root ignores a request
_MIN_INTERVAL_S = 10.0  # between two different requests: each starts a process as root
_WRITE_S = 5.0
_DECISION_S = 5.0  # between two reads of root's decision log
_REASONS = 8


@dataclass(frozen=True, slots=True)
class RootDecision:
    """Root's decision on a request, from the decision log. `checks`: those that failed. `time`:
    when it was last decided so, RFC 3339.
    """

    step: Step
    checks: tuple[str, ...]
    why: str
    time: str


class RecoveryRequester:
    """The current request. `settings` returns those in force; `ready` is set once the past has been
    read.
    """

    def __init__(
        self,
        node_state: NodeState,
        runtime: Path,
        worker_thread: WorkerThread,
        settings: Callable[[], RecoverySettings],
        ready: asyncio.Event,
    ) -> None:
        self.request: Request | None = None
        self.requested_at: float | None = None  # since when for the same
        self._node_state = node_state
        self._path = runtime / FILE
        self._worker_thread = worker_thread
        self._settings = settings
        self._ready = ready
        # By finding and action: since when it is required, on the monotonic clock
        self._required_since: dict[tuple[int, str], float] = {}
        self._written = self._decision_read = float("-inf")
        self.decision: RootDecision | None = None  # the last one on the current request
        self._brake = ""
        self._trouble = ""

    @property
    def mode(self) -> str:
        return self._settings().mode

    @property
    def brake(self) -> str:
        """What limits how many nodes are taken out of service at once."""
        return self._settings().describe_brake()

    async def run(self) -> None:
        """Until cancelled. The request is removed then: it could not be withdrawn any more."""
        await self._ready.wait()
        with suppress(OSError):
            self._remove_file()  # of a daemon before this one
        try:
            while True:
                await self._update_or_log(time.monotonic())
                await anyio.sleep(_TICK_S)
        finally:
            with suppress(OSError):
                self._remove_file()

    async def _update_or_log(self, now: float) -> None:
        try:
            await self.update_request(now)
        except (OSError, ThreadStuck) as error:
            trouble = str(error)
            if trouble != self._trouble:
                log.error("recovery_not_requested", error=trouble, path=str(self._path))
            self._trouble = trouble
        except Exception:  # a defect here must not end the daemon
            log.exception("recovery_failed")
        else:
            self._trouble = ""

    async def update_request(self, now: float) -> None:
        """Write or remove the request, as the findings require now. Raises OSError, ThreadStuck."""
        self._warn_without_brake()
        await self._write_or_withdraw(now)
        if now - self._decision_read < _DECISION_S:
            return
        self._decision_read, request = now, self.request
        if request is None:
            self.decision = None
            return
        folder = self._settings().state
        self.decision = await self._worker_thread.call(
            lambda: _read_decision(folder, request.id), _WRITE_S
        )

    def _warn_without_brake(self) -> None:
        settings = self._settings()
        brake = settings.describe_brake() if settings.mode == "automatic" else ""
        if brake != self._brake and settings.brake_in_force.word == "none":
            log.warning("recovery_without_brake", brake=brake, next_step="[recovery] brake")
        self._brake = brake

    async def _write_or_withdraw(self, now: float) -> None:
        required = self._select_action(now)
        if required is None:
            if self.request is not None:
                await self._worker_thread.call(self._remove_file, _WRITE_S)
                log.info(
                    "recovery_withdrawn",
                    level="notice",
                    request=self.request.id,
                    action=self.request.kind.value,
                )
                self.request = self.requested_at = self.decision = None
            return
        kind, findings = required
        ids = tuple(finding.id for finding in findings)
        former = self.request
        same = former is not None and (
            former.kind,
            tuple(finding.id for finding in former.findings),
        ) == (
            kind,
            ids,
        )
        if now - self._written < (_REPEAT_S if same else _MIN_INTERVAL_S):
            return
        fresh = self._make_request(kind, findings)
        if same and former is not None:
            fresh = replace(fresh, id=former.id)
        # Before it is written: it is then withdrawn even if writing it fails.
        self.request = fresh
        if not same:
            self.requested_at, self.decision = fresh.time, None
        await self._worker_thread.call(lambda: self._write_file(render_request(fresh)), _WRITE_S)
        self._written = now
        if not same:
            log.warning(
                "recovery_requested",
                request=fresh.id,
                action=kind.value,
                findings=[finding.label for finding in fresh.findings],
            )

    def _select_action(self, now: float) -> tuple[Repair, tuple[Finding, ...]] | None:
        settings, node_state = self._settings(), self._node_state
        held = any(source.state is SourceState.RELEASED for source in node_state.sources.values())
        if (
            settings.mode != "automatic"
            or held
            or node_state.simulated
            or not node_state.ledger.ok
            or node_state.ledger.unsaved
        ):
            self._required_since = {}
            return None
        keys = [(finding.id, finding.action.value) for finding in node_state.findings]
        self._required_since = {key: self._required_since.get(key, now) for key in keys}
        return select_action(
            node_state.findings,
            lambda finding: (
                now - self._required_since[finding.id, finding.action.value] >= settings.after_s
            ),
            device_reset=node_state.device_reset,
        )

    def _make_request(self, kind: Repair, findings: tuple[Finding, ...]) -> Request:
        verdict = self._node_state.verdict()
        return Request(
            id=uuid.uuid4().hex,
            boot_id=self._node_state.boot_id,
            time=time.time(),
            uptime=time.clock_gettime(time.CLOCK_BOOTTIME),
            kind=kind,
            host=clean_line(socket.gethostname()),
            requester=f"vitald {os.getpid()}",
            status=verdict.status.value,
            reasons=tuple(clean_line(reason) for reason in verdict.reasons[:_REASONS]),
            findings=tuple(make_finding_ref(finding, clean_line) for finding in findings),
        )

    # --- the file; in the worker thread

    def _write_file(self, data: bytes) -> None:
        """Whole or not at all, and through no link: the folder is opened first, and everything is
        done inside it.
        """
        folder = self._path.parent
        with suppress(FileExistsError):
            folder.mkdir(mode=0o750)
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(at, 0o750)  # whatever the umask is
            fresh = f".{self._path.name}.new"
            with suppress(FileNotFoundError):
                os.unlink(fresh, dir_fd=at)
            fd = os.open(
                fresh,
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
                dir_fd=at,
            )
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                os.fchmod(fd, 0o640)
            os.rename(fresh, self._path.name, src_dir_fd=at, dst_dir_fd=at)
        finally:
            os.close(at)

    def _remove_file(self) -> None:
        self._path.unlink(missing_ok=True)


def _read_decision(folder: Path, request_id: str) -> RootDecision | None:
    record = decision_log.read_last_record(folder, request_id)
    try:
        step = Step(record["step"]) if record is not None else None
    except (KeyError, ValueError):
        step = None
    if record is None or step is None:
        return None
    checks = record.get("checks")
    return RootDecision(
        step=step,
        checks=tuple(map(str, checks)) if isinstance(checks, list) else (),
        why=str(record.get("why")),
        time=str(record.get("last")),
    )
