"""
The active run: when it may start (after the one before it, and on idle devices if it needs them),
its check, its programs, and how it is stopped when work needs the devices.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial

import anyio
import structlog

from vitald.diagnostics.check import Check, Command, Output, ProgramEnd
from vitald.diagnostics.check_set import CheckSet
from vitald.diagnostics.coverage import require_coverage
from vitald.diagnostics.device_access import DeviceAccess
from vitald.diagnostics.node_view import NodeView
from vitald.diagnostics.queue import BegunRun, RunQueue, is_automatic
from vitald.diagnostics.results import ResultRecorder
from vitald.diagnostics.run.process import Programs
from vitald.model.diagnostic import ActiveRun, Report, Run, Stage
from vitald.model.words import Outcome, Remedy

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")

DAEMON_STOPPED = "vitald was stopped"
_WATCH_PERIOD_S = 0.5  # between checks for other work while a run has the devices
_PREEMPT_GRACE_S = 1.0  # a program that must make room has so long to end by itself
_MAX_PREEMPT_WAIT_S = 1.8  # how long a job that begins waits for the devices
_SHUTDOWN_S = 1.5  # for the active run, when the daemon stops
_MAX_RAW_LENGTH = 2 * 1024 * 1024  # characters of output that are kept


@dataclass(slots=True)
class _Execution:
    """The active run and its state."""

    active_run: ActiveRun
    check: Check
    began: float  # seconds since the epoch
    stop_reason: str = ""
    room_for: str = ""  # the work that it makes room for
    cut: bool = False  # its program was stopped, or not started
    printed: str = ""
    command: str = ""
    exit_code: int | None = None
    task: asyncio.Task[None] | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)  # no process of it is left

    @property
    def requires_idle(self) -> bool:
        """Whether it makes room for work. By its own check: a reload may have replaced it."""
        request = self.active_run.request
        return self.check.needs_idle(request.level) and not request.busy


class Runner:
    """Performs one run at a time. `confirm` marks the faults that an earlier run had found; `store`
    returns once `begun` is in the ledger, or after a time limit.
    """

    def __init__(
        self,
        checks: CheckSet,
        programs: Programs,
        access: DeviceAccess,
        results: ResultRecorder,
        confirm: Callable[[Run], Run],
        node: NodeView,
        store: Callable[[], Awaitable[None]],
    ) -> None:
        self._checks = checks
        self._programs = programs
        self._access = access
        self._results = results
        self._confirm = confirm
        self._node = node
        self._store = store
        self._execution: _Execution | None = None

    @property
    def active(self) -> ActiveRun | None:
        """The active run, until it is stored and `forget_run` was called."""
        return self._execution.active_run if self._execution is not None else None

    @property
    def begun(self) -> BegunRun | None:
        """The active run, until it has ended."""
        execution = self._get_stoppable()
        if execution is None:
            return None
        run = execution.active_run
        return BegunRun(id=run.id, request=run.request, began=execution.began)

    def start_run(self, queued: ActiveRun) -> None:
        began = time.time()
        active_run = replace(queued, stage=Stage.RUNNING, began=began, waits_for="")
        execution = self._execution = _Execution(
            active_run, self._checks.by_name[active_run.request.check], began
        )
        execution.task = asyncio.create_task(
            self._perform(execution), name=f"diagnostic {active_run.id}"
        )
        write = log.debug if self._checks.is_routine(queued.request) else log.info
        write(
            "diagnostic_began",
            id=active_run.id,
            check=active_run.request.check,
            run_level=active_run.request.level,
            by=active_run.request.by,
        )

    def cancel_run(self, run_id: str | None, reason: str) -> ActiveRun | None:
        """Stops the active run if it is `run_id`, or if that is None. None if there is no such
        run.
        """
        execution = self._get_stoppable()
        if execution is None or run_id not in (None, execution.active_run.id):
            return None
        self._stop(execution, reason)
        return execution.active_run

    async def free_devices(self, work: str) -> None:
        """Stops a run that needs idle devices, and waits for its end, but not longer than work can
        wait.
        """
        self._make_room(work)
        if self._execution is not None and self._execution.room_for:
            await _wait_until_over(self._execution)

    async def stop_for_release(self) -> None:
        """Stops any run, and waits for its end: the devices are about to be released."""
        execution = self._get_stoppable()
        if execution is not None:
            self._stop(execution, "the devices were released", room_for="a release of the devices")
            await _wait_until_over(execution)

    async def shut_down(self) -> None:
        """Cancels the active run. It is recorded as stopped."""
        execution = self._get_stoppable()
        if execution is not None and execution.task is not None:
            execution.stop_reason = execution.stop_reason or DAEMON_STOPPED
            execution.task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([execution.task], timeout=_SHUTDOWN_S)

    def forget_run(self, run: Run) -> None:
        """The run is stored: the next one may start."""
        if self._execution is not None and self._execution.active_run.id == run.id:
            self._execution = None

    def _get_stoppable(self) -> _Execution | None:
        execution = self._execution
        return execution if execution is not None and not execution.over.is_set() else None

    async def _perform(self, execution: _Execution) -> None:
        active_run = execution.active_run
        report = await self._produce_report(execution)
        if execution.cut:
            # What a stopped program prints is no statement about the hardware. A person who
            # cancels a run does not want it to be repeated at once.
            repeat = execution.room_for or execution.stop_reason == DAEMON_STOPPED
            report = Report(
                outcome=Outcome.INCONCLUSIVE,
                reason=execution.stop_reason,
                remedy=Remedy.RETRY if repeat else Remedy.NONE,
            )
        run = Run(
            id=active_run.id,
            request=active_run.request,
            began=execution.began,
            ended=time.time(),
            report=report,
            exit_code=execution.exit_code,
            command=execution.command,
            preempted=execution.room_for if execution.cut else "",
            raw=execution.printed,
        )
        run = self._confirm(run)
        execution.over.set()
        # Shown as ending until it is stored.
        execution.active_run = replace(execution.active_run, stage=Stage.ENDING)
        self._results.record_run(run, cut=execution.cut)

    async def _produce_report(self, execution: _Execution) -> Report:
        """What the check reports; sets `cut` if the task was cancelled."""
        request = execution.active_run.request
        watch = asyncio.create_task(self._watch_for_work()) if execution.requires_idle else None
        try:
            await self._store()
            report = await execution.check.run_check(request, partial(self._execute, execution))
            if not execution.check.covers_gpus:
                return report
            return require_coverage(request, report, self._node, await self._node.read_pci())
        except asyncio.CancelledError:  # by `shut_down` only
            execution.cut = True
            execution.stop_reason = execution.stop_reason or DAEMON_STOPPED
            return Report(outcome=Outcome.INCONCLUSIVE)
        except Exception as error:  # a fault of ours must not end diagnostics; the output is kept
            log.exception("diagnostic_not_read", id=execution.active_run.id)
            return Report(
                outcome=Outcome.ERROR,
                reason=f"{type(error).__name__}: {error}",
                remedy=Remedy.INVESTIGATE,
            )
        finally:
            if watch is not None:
                watch.cancel()

    async def _execute(self, execution: _Execution, command: Command) -> Output:
        """Runs a program of the active check, and keeps its output."""
        if execution.stop_reason:
            execution.cut = True
            return Output(ended=ProgramEnd.CANCELLED, why=execution.stop_reason)
        output = await self._programs.execute(command)
        stopped = output.ended is ProgramEnd.CANCELLED and bool(execution.stop_reason)
        execution.cut = execution.cut or stopped
        execution.command = " ".join(command.argv)
        execution.exit_code = output.exit_code
        transcript = execution.printed + _format_transcript(execution.command, output)
        execution.printed = transcript[:_MAX_RAW_LENGTH]
        return output

    async def _watch_for_work(self) -> None:
        """Stops the run as soon as anything else uses the devices."""
        while True:
            await asyncio.sleep(_WATCH_PERIOD_S)
            uses = await self._access.find_users(testing=True)
            if uses:
                self._make_room(uses[0].words)
                return

    def _make_room(self, work: str) -> None:
        execution = self._get_stoppable()
        if execution is not None and execution.requires_idle:
            self._stop(execution, f"it made room for {work}", room_for=work)

    def _stop(self, execution: _Execution, reason: str, *, room_for: str = "") -> None:
        """With `room_for` the programs get a short grace period, else the one that they need."""
        if not execution.stop_reason or (room_for and not execution.room_for):
            execution.stop_reason, execution.room_for = reason, room_for
            execution.active_run = replace(execution.active_run, stage=Stage.ENDING)
            log.info("diagnostic_ending", id=execution.active_run.id, reason=reason)
        self._programs.cancel(reason, _PREEMPT_GRACE_S if room_for else None)


async def _wait_until_over(execution: _Execution) -> None:
    with anyio.move_on_after(_MAX_PREEMPT_WAIT_S):
        await execution.over.wait()


def _format_transcript(command: str, output: Output) -> str:
    ending = f"exit {output.exit_code}"
    if output.why:
        ending = f"{output.ended.value}: {output.why}"
    errors = f"\n[stderr]\n{output.stderr}" if output.stderr else ""
    return f"$ {command}\n{output.stdout}{errors}\n[{ending}]\n"


_MAX_NAMED = 3  # users of the devices that a reason names


class RunDispatcher:
    """Moves runs from the queue to the runner. `idle_s`: for how long the devices must have been
    idle before an automatic run that needs them.
    """

    def __init__(
        self,
        checks: CheckSet,
        access: DeviceAccess,
        queue: RunQueue,
        runner: Runner,
        idle_s: float,
    ) -> None:
        self._checks = checks
        self._access = access
        self._queue = queue
        self._runner = runner
        self._idle_s = idle_s
        self._obstacle = ""  # as of the last attempt to start a run

    @property
    def active(self) -> tuple[ActiveRun, ...]:
        """Runs that have not ended: the active one first, then the queue."""
        active = self._runner.active
        return (*((active,) if active is not None else ()), *self._queue.queued)

    @property
    def requested(self) -> tuple[ActiveRun, ...]:
        """Runs without a verdict: the active one first, then the queue, then what is owed and waits
        for its next attempt.
        """
        active = self.active
        return (*active, *self._queue.list_postponed({run.id for run in active}))

    @property
    def has_queued_runs(self) -> bool:
        return bool(self._queue.queued)

    @property
    def blocked(self) -> str:
        """Why no run that needs idle devices may start now, as far as is known: users of the
        devices are determined only while a run is queued.
        """
        return (
            self._access.release_obstacle()
            or ", ".join(f"job {job}" for job in self._access.list_jobs()[:_MAX_NAMED])
            or self._obstacle
        )

    async def start_next_run(self) -> None:
        """Starts the first queued run that may start, unless one is active."""
        if self._runner.active is None and self._queue.queued:
            await self._start_first_ready()
        if not self._queue.queued:
            self._obstacle = ""

    async def _start_first_ready(self) -> None:
        leftovers = await self._access.find_leftovers()
        # Evaluated after the wait above: a run that was queued meanwhile may need idle devices.
        idle_s, busy, known_jobs = 0.0, list[str](), set[str]()
        if any(self._checks.requires_idle(queued.request) for queued in self._queue.queued):
            idle_s, uses = await self._access.measure_idle()
            busy = [use.words for use in uses]
            known_jobs = {use.job for use in uses}
        # No await from here on: a job that began meanwhile, or a release, counts.
        obstacle = self._access.release_obstacle() or leftovers
        busy += [f"job {job}" for job in self._access.list_jobs() if job not in known_jobs]
        self._obstacle = obstacle or ", ".join(busy[:_MAX_NAMED])
        self._queue.set_wait_reasons(
            {
                queued.id: obstacle or self._find_reason_to_wait(queued, busy, idle_s)
                for queued in self._queue.queued
            }
        )
        ready = self._queue.pop_ready()
        if ready is not None:
            self._runner.start_run(ready)

    def _find_reason_to_wait(self, queued: ActiveRun, busy: list[str], idle_s: float) -> str:
        if not self._checks.requires_idle(queued.request):
            return ""
        if busy:
            return f"idle devices: {', '.join(busy[:_MAX_NAMED])}"
        needed_s = self._idle_s if is_automatic(queued.request) else 0.0
        if idle_s < needed_s:
            return f"devices idle for {needed_s:.0f} s: {idle_s:.0f} s so far"
        return ""
