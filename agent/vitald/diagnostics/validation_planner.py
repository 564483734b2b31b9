"""Validation on this node: whether it can be carried out, its next run, and what it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from vitald.collectors.event_factory import EventFactory
from vitald.diagnostics import validation
from vitald.diagnostics.check_set import CheckSet
from vitald.diagnostics.dispatcher import RunDispatcher
from vitald.diagnostics.node import NodeView
from vitald.diagnostics.queue import RunQueue, is_automatic
from vitald.diagnostics.schedule import SETTLE_S, Moment
from vitald.diagnostics.validation import CHECK, VALIDATION, Pending
from vitald.diagnostics_sections import ValidationSettings
from vitald.model import Event
from vitald.model.diagnostic import ActiveRun, Outcome, Run, Stage
from vitald.model.validation import Validation, ValidationEnd, ValidationStage

# How long diagnostics cannot run, until a pending validation ends or fails: a package that is being
# upgraded is not there for a moment, and one attempt to find it may fail.
_OBSTACLE_S = 600.0
_VERDICTS = (Outcome.PASS, Outcome.FAIL)


class ValidationPlanner:
    """Queues the runs of a pending validation. `find_obstacle` is why DCGM's diagnostic cannot run
    by itself here, apart from its program; "" if it can.
    """

    def __init__(
        self,
        settings: ValidationSettings,
        find_obstacle: Callable[[], str],
        checks: CheckSet,
        node: NodeView,
        queue: RunQueue,
        dispatcher: RunDispatcher,
        facts: EventFactory,
        last_runs: Callable[[], Mapping[tuple[str, int], Run]],
    ) -> None:
        """`last_runs`: the last run of each check and level."""
        self.settings = settings
        self._find_obstacle = find_obstacle
        self._checks = checks
        self._node = node
        self._queue = queue
        self._dispatcher = dispatcher
        self._facts = facts
        self._list_last_runs = last_runs
        self._obstacle_since: float | None = None  # monotonic; None while diagnostics can run
        self._waits = ""  # why no run is queued

    def find_obstacle(self) -> str:
        """Why no diagnostic can run by itself on this node; "" if one can."""
        return self._find_obstacle() or self._checks.unavailable.get(CHECK, "")

    def describe_validation(self) -> Validation:
        """How far it is, for those who ask."""
        findings = self._node.list_findings()
        pending = validation.find_pending(findings)
        if pending is not None:
            stage = ValidationStage.PENDING
            failed = validation.has_failed(findings)
            return Validation(
                stage=ValidationStage.FAILED if failed else stage,
                level=pending.level,
                after=pending.after.value,
                since=pending.finding.since,
                detail=pending.finding.raw if failed else self._describe_course(pending),
            )
        obstacle, missed = self.find_obstacle(), self._node.missed_validation
        if self.settings.level == 0 or obstacle:
            detail = "[validation] level = 0" if self.settings.level == 0 else obstacle
            return Validation(stage=ValidationStage.OFF, detail=detail, missed=missed)
        return Validation(
            stage=ValidationStage.NONE,
            level=self.settings.level,
            detail=f"not validated: {missed.describe()}" if missed is not None else "",
            missed=missed,
        )

    def plan_run(self, moment: Moment, spread_s: float = 0.0) -> bool:
        """Queues the run that is due, and removes those that are no longer. Returns whether one is
        queued or active. `spread_s`: how much later than needed this node begins after a boot.
        """
        findings = self._node.list_findings()
        pending = validation.find_pending(findings)
        self._waits = ""
        if pending is not None:
            self._waits = validation.find_reason_to_wait(
                pending,
                findings,
                self._node.get_clears,
                moment.now,
                obstacle=self.find_obstacle(),
                boot=_find_wait_of_boot(pending, moment.up_s, spread_s),
            )
        if pending is None or self._waits or self.settings.level == 0:
            self._dequeue_all("nothing is to be validated now")
            return False
        self._queue_run(pending)
        return True

    def make_events(self, now: float) -> list[Event]:
        """The end of a validation that cannot be carried out, or what it waits for."""
        findings = self._node.list_findings()
        pending, failed = validation.find_pending(findings), validation.has_failed(findings)
        if failed and (pending is None or not pending.needs_person):
            level = pending.level if pending is not None else 0
            return [validation.make_failed_over_event(level, self._facts)]
        if pending is None:
            self._obstacle_since = None
            return self._make_return_events()
        obstructed_s = self._measure_obstacle()
        if self.settings.level == 0:
            reason = "[validation] level = 0"
            return [validation.make_end_event(pending, ValidationEnd.DISABLED, reason, self._facts)]
        # While a run is active nothing may change the finding: its pass must be newer.
        if self._is_running():
            return []
        if obstructed_s >= _OBSTACLE_S and not pending.needs_person:
            return self._report_obstacle(pending)
        if pending.obstacle and self._obstacle_since is None:
            return [validation.make_obstacle_over_event(pending, self._facts)]
        waits = self._describe_wait(pending)
        event = validation.make_wait_event(pending, waits, self._facts, now) if waits else None
        return [event] if event is not None else []

    def _make_return_events(self) -> list[Event]:
        """A validation that had ended because diagnostics could not run, once they can."""
        missed, settings = self._node.missed_validation, self.settings
        if missed is None or not missed.is_impossible or self.find_obstacle():
            return []
        is_required = settings.level > 0 and missed.after.value in settings.after
        # The second time only a run of that level proves it: lower ones may pass all the while.
        level = missed.level if missed.returned else 1
        if not is_required or not (missed.obstacle or self._has_tested_since(missed.ended, level)):
            return []
        return [validation.make_return_event(missed, settings.level, self._facts)]

    def _has_tested_since(self, moment: float, level: int) -> bool:
        """Whether DCGM's diagnostic had a verdict at `level` or above, so MIG is off."""
        return any(
            check == CHECK
            and tested >= level
            and run.began >= moment
            and run.report.outcome in _VERDICTS
            for (check, tested), run in self._list_last_runs().items()
        )

    def _measure_obstacle(self) -> float:
        """For how long diagnostics cannot run, in seconds; 0 if they can."""
        if not self.find_obstacle():
            self._obstacle_since = None
            return 0.0
        if self._obstacle_since is None:
            self._obstacle_since = time.monotonic()
        return time.monotonic() - self._obstacle_since

    def _report_obstacle(self, pending: Pending) -> list[Event]:
        """The validation ends where no fault was known, and fails otherwise."""
        obstacle = self.find_obstacle()
        if pending.may_end_unproven:
            pending, end = replace(pending, obstacle=obstacle), ValidationEnd.IMPOSSIBLE
            return [validation.make_end_event(pending, end, obstacle, self._facts)]
        return validation.make_obstacle_events(pending, obstacle, self._facts)

    def _queue_run(self, pending: Pending) -> None:
        ask = validation.make_request(pending)
        since = pending.finding.last
        for active in self._list_runs():
            if active.stage is not Stage.WAITING:
                if active.ask.level >= ask.level and (active.began or 0.0) >= since:
                    return
            elif active.ask.by == VALIDATION and active.ask.level != ask.level:
                self._queue.dequeue(active, f"level {ask.level} is to be validated now")
            elif active.ask.level == ask.level:
                if is_automatic(active.ask) and active.ask.by != VALIDATION:
                    self._queue.take_over(active, ask)
                return
        self._queue.enqueue(ask, first=True)

    def _list_runs(self) -> list[ActiveRun]:
        """Runs of all GPUs that have not ended."""
        return [
            active
            for active in self._dispatcher.active
            if active.ask.check == CHECK and not active.ask.gpus
        ]

    def _dequeue_all(self, reason: str) -> None:
        for active in self._list_runs():
            if active.stage is Stage.WAITING and active.ask.by == VALIDATION:
                self._queue.dequeue(active, reason)

    def _is_running(self) -> bool:
        return any(active.stage is not Stage.WAITING for active in self._dispatcher.active)

    def _describe_wait(self, pending: Pending) -> str:
        """What the next run waits for; "" if it runs or is about to."""
        if self._waits:
            return self._waits
        return next(
            (
                active.waits_for
                for active in self._list_runs()
                if active.ask.level == pending.level and active.stage is Stage.WAITING
            ),
            "",
        )

    def _describe_course(self, pending: Pending) -> str:
        waits = self._describe_wait(pending)
        last = f"; {pending.finding.raw}" if pending.tries or pending.failed else ""
        if self._is_running():
            return f"level {pending.level} runs{last}"
        return f"level {pending.level} waits for {waits or 'its turn'}{last}"


def _find_wait_of_boot(pending: Pending, up_s: float, spread_s: float) -> str:
    """What a run waits for because the node has just booted; "" for nothing."""
    if up_s < SETTLE_S:
        return "the devices to settle after the boot"
    # Nodes that were rebooted by a common outage must not draw their full power at once.
    if not pending.after.follows_fault and up_s < SETTLE_S + spread_s:
        return "its turn among nodes that may have booted at the same time"
    return ""
