"""Which runs are queued: those that the schedule or an open finding requires."""

from __future__ import annotations

import math
import time

from vitald.config import Config
from vitald.diagnostics import retries
from vitald.diagnostics.check_set import CheckSet
from vitald.diagnostics.dispatcher import RunDispatcher
from vitald.diagnostics.history import RunHistory
from vitald.diagnostics.node import NodeView
from vitald.diagnostics.queue import RunQueue
from vitald.diagnostics.schedule import SCHEDULE, Moment, Plan, Schedule
from vitald.diagnostics.suspicion_planner import SuspicionPlanner
from vitald.diagnostics.validation import CHECK
from vitald.diagnostics.validation_planner import ValidationPlanner
from vitald.model import Event
from vitald.model.diagnostic import PassRecord, RunRequest, ScheduledRun

_MAX_NAMED = 3  # findings of one level that a hint names


class RunPlanner:
    """Compares the schedule and the open findings with the history and the queue."""

    def __init__(
        self,
        config: Config,
        checks: CheckSet,
        schedule: Schedule,
        node: NodeView,
        history: RunHistory,
        queue: RunQueue,
        dispatcher: RunDispatcher,
        validation: ValidationPlanner,
        suspicion: SuspicionPlanner,
    ) -> None:
        self._enabled = config.diagnostics.enabled
        self._max_level = config.dcgm.most
        self._checks = checks
        self._schedule = schedule
        self._node = node
        self._history = history
        self._queue = queue
        self._dispatcher = dispatcher
        self._validation = validation
        self._suspicion = suspicion
        self._started_at = time.monotonic()

    @property
    def scheduled(self) -> tuple[ScheduledRun, ...]:
        """When the schedule runs each check and level next."""
        if not self._enabled:
            return ()
        moment = self._read_clocks()
        waits = {
            (queued.ask.check, queued.ask.level): queued.waits_for for queued in self._queue.queued
        }
        return tuple(
            ScheduledRun(
                check=name,
                level=level,
                at=self._due_at(name, level, moment),
                waits_for=waits.get((name, level), ""),
            )
            for name, level in self._checks.list_periodic()
        )

    @property
    def passes(self) -> tuple[PassRecord, ...]:
        """How long ago each scheduled check and level passed, as far as a run of it is known. Not
        of watches: each answer replaces the one before, and only the first after a start is late.
        """
        if not self._enabled:
            return ()
        records = [
            self._history.find_pass(name, level, self._checks.by_name[name].every_s(level))
            for name, level in self._checks.list_periodic()
            if not self._checks.is_watch(name)
        ]
        return tuple(record for record in records if record is not None)

    async def plan_runs(self) -> None:
        """Queues what is due and what findings require, and removes what they require no more."""
        await self._checks.refresh()
        await self._history.recall_runs()
        moment = self._read_clocks()
        spread_s = self._schedule.get_boot_spread_s(CHECK, self._validation.settings.level)
        is_validating = self._validation.plan_run(moment, spread_s)
        if not self._enabled:
            return
        # The higher level first: a pass of it makes the lower one superfluous.
        for name, level in sorted(self._checks.list_periodic(), key=lambda plan: -plan[1]):
            if self._due_at(name, level, moment) <= moment.now:
                self._request(RunRequest(check=name, level=level, by=SCHEDULE))
        findings = self._node.list_findings()
        self._queue.dequeue_resolved({finding.id for finding in findings})
        for ask in retries.request_runs(
            findings, self._node.get_clears, self._history.past, self._max_level, moment.now
        ):
            # What validation runs tests the same, at the same level or above.
            if is_validating and ask.check == CHECK:
                continue
            if not self._checks.unavailable.get(ask.check, "no such check"):
                self._request(ask)
        if not is_validating and (suspected := self._suspicion.find_run(moment.now)) is not None:
            self._request(suspected)

    def make_events(self) -> list[Event]:
        """What is to be stored of validation, and requests on suspicion."""
        now = time.time()
        requests = self._suspicion.make_events(now) if self._enabled else []
        return [*self._validation.make_events(now), *requests]

    def find_next_watch_s(self) -> float:
        """Seconds until the schedule reads a watch next; infinity if none is to be started."""
        if not self._enabled:
            return math.inf
        moment = self._read_clocks()
        active = {run.ask.check for run in self._dispatcher.active}
        return min(
            (
                self._due_at(name, level, moment) - moment.now
                for name, level in self._checks.list_periodic()
                if self._checks.is_watch(name) and name not in active
            ),
            default=math.inf,
        )

    def describe_manual_runs(self) -> str:
        """The runs that would resolve findings and that only a person may request; "" if there are
        none.
        """
        if self._checks.unavailable.get("dcgm", "not looked for yet"):
            return ""
        findings_of_level: dict[int, list[int]] = {}
        for finding in self._node.list_findings():
            if level := retries.find_manual_level(
                finding, self._node.get_clears(finding), self._max_level
            ):
                findings_of_level.setdefault(level, []).append(finding.id)
        hints = [
            f"{', '.join(f'#{finding}' for finding in findings[:_MAX_NAMED])}:"
            f" vitald diag run {level}"
            for level, findings in sorted(findings_of_level.items())
        ]
        return f"needs a person: finding {'; '.join(hints)}" if hints else ""

    def _request(self, ask: RunRequest) -> None:
        """Queues the run unless it is queued or active, or more of it that can start: a run that
        needs idle devices may wait for days.
        """
        covering = [
            active
            for active in self._dispatcher.active
            if active.ask.check == ask.check
            and active.ask.level >= ask.level
            and not active.ask.gpus
        ]
        if all(active.ask.level > ask.level and active.waits_for for active in covering):
            self._queue.enqueue(ask, first=False)

    def _due_at(self, name: str, level: int, moment: Moment) -> float:
        check = self._checks.by_name[name]
        plan = Plan(
            check=name,
            level=level,
            every_s=check.every_s(level),
            needs_idle=check.needs_idle(level),
        )
        return self._schedule.find_due_time(plan, self._history.list_runs(), moment)

    def _read_clocks(self) -> Moment:
        up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        return Moment(now=time.time(), up_s=up_s, running_s=time.monotonic() - self._started_at)
