"""
When a queued run may start: after the one before it, and on idle devices if it needs them. Watches
are read beside the active run, by a runner of their own.
"""

from __future__ import annotations

import asyncio

import anyio

from vitald.diagnostics.check_set import CheckSet
from vitald.diagnostics.device_access import DeviceAccess
from vitald.diagnostics.queue import RunQueue, is_automatic
from vitald.diagnostics.runner import DAEMON_STOPPED, Runner
from vitald.diagnostics.validation import VALIDATION
from vitald.model.diagnostic import ActiveRun, Run

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
        watch_runner: Runner,
        idle_s: float,
    ) -> None:
        self._checks = checks
        self._access = access
        self._queue = queue
        self._runner = runner
        self._watch_runner = watch_runner
        self._idle_s = idle_s
        self._obstacle = ""  # as of the last attempt to start a run

    @property
    def active(self) -> tuple[ActiveRun, ...]:
        """Runs that have not ended: the active ones first, then the queue."""
        active = (self._runner.active, self._watch_runner.active)
        return (*(run for run in active if run is not None), *self._queue.queued)

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
        """Starts the first queued run that may start on each runner that is free."""
        if any(map(self._is_free, self._queue.queued)):
            await self._start_ready()
        if not self._queue.queued:
            self._obstacle = ""

    def complete_run(self, run: Run) -> None:
        """The run is stored and shown: the next one may start."""
        self._get_runner(run.ask.check).forget_run(run)
        self._queue.resolve_waiter(run)

    async def shut_down(self) -> None:
        """Ends the active runs and what people and jobs requested: they are recorded as stopped."""
        with anyio.CancelScope(shield=True):  # each has a time limit
            await asyncio.gather(self._runner.shut_down(), self._watch_runner.shut_down())
        for queued in [*self._queue.queued]:
            if not is_automatic(queued.ask):
                self._queue.dequeue(queued, f"{DAEMON_STOPPED} before it began")

    def _get_runner(self, check: str) -> Runner:
        return self._watch_runner if self._checks.is_watch(check) else self._runner

    def _is_free(self, queued: ActiveRun) -> bool:
        return self._get_runner(queued.ask.check).active is None

    async def _start_ready(self) -> None:
        tests = [queued for queued in self._queue.queued if self._may_test(queued)]
        leftovers = await self._access.find_leftovers() if tests else ""
        # Evaluated after the wait above: a run that was queued meanwhile may need idle devices.
        idle_s, busy, known_jobs = 0.0, list[str](), set[str]()
        tests = [queued for queued in self._queue.queued if self._may_test(queued)]
        if any(self._checks.requires_idle(queued.ask) for queued in tests):
            idle_s, uses = await self._access.measure_idle()
            busy = [use.words for use in uses]
            known_jobs = {use.job for use in uses}
        # No await from here on: a job that began meanwhile, or a release, counts.
        release = self._access.release_obstacle()
        obstacle = release or leftovers
        busy += [f"job {job}" for job in self._access.list_jobs() if job not in known_jobs]
        if tests:
            self._obstacle = obstacle or ", ".join(busy[:_MAX_NAMED])
        self._queue.set_wait_reasons(
            {
                queued.id: obstacle or self._find_reason_to_wait(queued, busy, idle_s)
                if queued in tests
                else release
                for queued in self._queue.queued
                if self._is_free(queued)
            }
        )
        while (ready := self._queue.pop_ready(self._is_free)) is not None:
            self._get_runner(ready.ask.check).start_run(ready)

    def _may_test(self, queued: ActiveRun) -> bool:
        """True for a run other than of a watch whose runner is free."""
        return not self._checks.is_watch(queued.ask.check) and self._is_free(queued)

    def _find_reason_to_wait(self, queued: ActiveRun, busy: list[str], idle_s: float) -> str:
        if not self._checks.requires_idle(queued.ask):
            return ""
        if busy:
            return f"idle devices: {', '.join(busy[:_MAX_NAMED])}"
        # The node is out of service until it is validated: no work is about to begin.
        is_patient = is_automatic(queued.ask) and queued.ask.by != VALIDATION
        needed_s = self._idle_s if is_patient else 0.0
        if idle_s < needed_s:
            return f"devices idle for {needed_s:.0f} s: {idle_s:.0f} s so far"
        return ""
