"""When a queued run may start: after the one before it, and on idle devices if it needs them."""

from __future__ import annotations

from vitald.diagnostics.check_set import CheckSet
from vitald.diagnostics.device_access import DeviceAccess
from vitald.diagnostics.owed import is_automatic
from vitald.diagnostics.queue import RunQueue
from vitald.diagnostics.runner import Runner
from vitald.model.diagnostic import ActiveRun

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

    def end_interrupted_run(self, marker: str) -> None:
        """What is left of the run with this marker is ended before anything starts."""
        self._access.end_interrupted_run(marker)

    async def start_next_run(self) -> None:
        """Starts the first queued run that may start, unless one is active."""
        await self._access.end_leftovers()
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
