"""
Writes `<runtime>/fitness` when the node becomes fit or unfit, or unfit for another reason, and when
jobs are advised to save. That triggers vitald-slurm.path, so that Slurm drains or resumes the node,
or signals its jobs, at once (docs/slurm.md).

The file is only a trigger: root asks the daemon itself, over its socket. It is written again, ever
more rarely, while Slurm has not reported what follows from it: systemd misses a change while the
service runs.

Owns     when the file is written.
Refuses  deciding what Slurm does, and whether this node has one.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from pathlib import Path

import anyio
import structlog

from vitald.backoff import Backoff
from vitald.core.node_state import NodeState
from vitald.model import Status, Verdict
from vitald.model.advice import NO_ADVICE, Advice
from vitald.model.response import ServiceState
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("fitness")

FILE = "fitness"
_SLURM = "slurm"
_UNFIT = "unfit"
_MODE = 0o644
_TICK_S = 1.0  # a source may become stale without a change of a finding
_MIN_INTERVAL_S = 10.0  # before any other write than for a drain: each starts a process as root
_REPEAT = Backoff(_MIN_INTERVAL_S, 640.0)
_WRITE_S = 5.0


class FitnessFile:
    """`ready` is set once the past has been read."""

    def __init__(
        self,
        node_state: NodeState,
        runtime: Path,
        worker_thread: WorkerThread,
        ready: asyncio.Event,
    ) -> None:
        self._node_state = node_state
        self._path = runtime / FILE
        self._worker_thread = worker_thread
        self._ready = ready
        self._content = ""
        self._written = float("-inf")  # on the monotonic clock
        self._repeats = 0  # of the present content
        self._trouble = ""

    async def run(self) -> None:
        """Until cancelled. The file stays: a restart of the daemon is no change."""
        await self._ready.wait()
        self._content = await self._read_former()
        while True:
            self._node_state.findings_changed.clear()
            await self._update_or_log(time.monotonic())
            with anyio.move_on_after(_TICK_S):
                await self._node_state.findings_changed.wait()

    async def _read_former(self) -> str:
        try:
            return await self._worker_thread.call(self._path.read_text, _WRITE_S)
        except (OSError, ValueError, ThreadStuck):
            return ""

    async def _update_or_log(self, now: float) -> None:
        trouble = ""
        try:
            await self.update_file(now)
        except (OSError, ThreadStuck) as error:
            trouble = str(error)
            if trouble != self._trouble:
                log.error("fitness_not_written", error=trouble, path=str(self._path))
        self._trouble = trouble

    async def update_file(self, now: float) -> None:
        """Write the file if the fitness changed, or Slurm has not acted on it. `now`: on the
        monotonic clock. Raises OSError, ThreadStuck.
        """
        verdict = self._node_state.verdict()
        is_unknown = verdict.status is Status.UNKNOWN
        if is_unknown and not self._node_state.first_scan.is_set():
            return  # the start of the daemon is no change either
        content = format_fitness(verdict, self._node_state.advice)
        is_change = content != self._content
        if not is_change and not self._awaits_slurm(verdict.status):
            return
        if now - self._written < self._find_pause(content, is_change=is_change):
            return
        await self._worker_thread.call(lambda: _replace_file(self._path, content), _WRITE_S)
        self._repeats = 0 if is_change else self._repeats + 1
        self._content, self._written = content, now

    def _find_pause(self, content: str, *, is_change: bool) -> float:
        """After the former write, in seconds. A drain waits for nothing."""
        if not is_change:
            return _REPEAT.delay_s(self._repeats)
        is_drain = content.startswith(_UNFIT) and not self._content.startswith(_UNFIT)
        return 0.0 if is_drain else _MIN_INTERVAL_S

    def _awaits_slurm(self, status: Status) -> bool:
        """Whether Slurm has not reported what follows from the node's fitness."""
        if status is Status.UNKNOWN:
            return False
        is_unfit = status is Status.UNHEALTHY
        wanted = ServiceState.DRAINED if is_unfit else ServiceState.IN_SERVICE
        return not self._node_state.responses.is_reported(_SLURM, wanted)


def format_fitness(verdict: Verdict, advice: Advice = NO_ADVICE) -> str:
    """One line: whether the node is fit, a digest of what Slurm is given as the reason, and one of
    the reason to save.
    """
    fitness = "unknown" if verdict.status is Status.UNKNOWN else "fit"
    if verdict.status is Status.UNHEALTHY:
        confirmed = (verdict.reboot_confirmed, verdict.replacement_confirmed)
        fitness = f"{_UNFIT} {_digest((verdict.reasons[:1], confirmed))}"
    save = f" save {_digest((advice.finding, advice.by))}" if advice.save else ""
    return f"{fitness}{save}\n"


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _replace_file(path: Path, content: str) -> None:
    """Whole or not at all; a left-over or a link in the place of the new file is not followed."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(fresh, flags, _MODE), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), _MODE)  # whatever the umask
        file.write(content)
    fresh.replace(path)
