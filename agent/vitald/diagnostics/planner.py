"""
Which runs are queued: those that the schedule or an open finding requires.

An unknown Xid, a trend or a test that failed once is resolved by a diagnostic that passes at the
level that its catalogue entry names. Levels are tried one after the other from level 1 on, up to
the highest one that may run without a person. A fault that must be confirmed is tested again, at
level 2 at least, on idle devices.

The number of runs is limited: a fault that a diagnostic found requires no other run once it was
tested twice, and a fault that returns after a pass loads its device at most once a day.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from vitald.catalog import Clears
from vitald.config.values import Config
from vitald.diagnostics.active_run import RunDispatcher
from vitald.diagnostics.check_set import CheckSet
from vitald.diagnostics.node_view import NodeView
from vitald.diagnostics.queue import BY_FINDING, MAX_DELAY_S, RunQueue, is_automatic, is_overdue
from vitald.diagnostics.results import RunHistory
from vitald.diagnostics.schedule import SCHEDULE, Moment, Plan, Schedule
from vitald.diagnostics.settings import DcgmSettings, DiagnosticsSettings
from vitald.model.diagnostic import OwedRun, Run, RunRequest, ScheduledRun, Stage
from vitald.model.finding import Finding
from vitald.model.words import Action, ComponentKind
from vitald.text import join_first

_MAX_NAMED = 3  # findings of one level, or checks, that a hint names
_DCGM, _NCCOM = "dcgm", "nccom"
_SUSPICIONS = (Action.OBSERVE, Action.INSPECT)
_TESTED = (ComponentKind.NODE, ComponentKind.GPU, ComponentKind.NVSWITCH, ComponentKind.PCI)
_PERIOD_S = 3600.0  # a fault that goes on being reported requires no more runs than one in this
_LOAD_PERIOD_S = 86400.0  # the same of a run that needs idle devices
_SHORT_PERIOD_S = 600.0  # after a run that came to nothing, or that found what must be found twice
# The last runs of each check and level, the oldest first.
Past = Mapping["tuple[str, int]", Sequence[Run]]


class RunPlanner:
    """Compares what is owed, the schedule and the open findings with the history and the queue."""

    def __init__(
        self,
        config: Config,
        checks: CheckSet,
        schedule: Schedule,
        node: NodeView,
        history: RunHistory,
        queue: RunQueue,
        dispatcher: RunDispatcher,
    ) -> None:
        self._enabled = config[DiagnosticsSettings].enabled
        self._max_level = config[DcgmSettings].max_level
        self._checks = checks
        self._schedule = schedule
        self._node = node
        self._history = history
        self._queue = queue
        self._dispatcher = dispatcher
        self._started_at = time.monotonic()

    @property
    def scheduled(self) -> tuple[ScheduledRun, ...]:
        """When the schedule runs each check and level next."""
        if not self._enabled:
            return ()
        moment = self._read_clocks()
        waits = {
            (queued.request.check, queued.request.level): queued.waits_for
            for queued in self._queue.queued
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

    async def plan_runs(self) -> None:
        """Queues what is owed, what is due and what findings require, and removes what they require
        no more.
        """
        await self._checks.refresh()
        await self._history.recall_runs()
        moment = self._read_clocks()
        self.end_removed()
        self._queue_owed(moment.now)
        if not self._enabled:
            return
        # The higher level first: a pass of it makes the lower one superfluous.
        for name, level in sorted(self._checks.list_periodic(), key=lambda plan: -plan[1]):
            if self._due_at(name, level, moment) <= moment.now:
                self._request(RunRequest(check=name, level=level, by=SCHEDULE))
        findings = self._node.list_findings()
        self._queue.dequeue_resolved({finding.id for finding in findings})
        for request in request_runs(
            findings, self._node.get_clears, self._history.past, self._max_level, moment.now
        ):
            if not self._checks.unavailable.get(request.check, "no such check"):
                self._request(request)

    def end_removed(self) -> None:
        """Ends what waits of checks that are not configured any more."""
        for run in self._dispatcher.requested:
            check = self._checks.by_name.get(run.request.check)
            if run.stage is Stage.WAITING and (
                check is None or run.request.level not in check.levels
            ):
                self._queue.dequeue(run, "the check was removed from the configuration")

    def describe_stopped_checks(self) -> str:
        """The site's checks that would run by themselves if that were enabled; "" if there are
        none.
        """
        periodic = (name for name, _ in self._checks.list_periodic())
        stopped = [
            name
            for name in periodic
            if self._checks.is_routine(RunRequest(check=name, by=SCHEDULE))
        ]
        if self._enabled or not stopped:
            return ""
        names = join_first(stopped, _MAX_NAMED)
        return f"[diagnostics] enabled = false: run on request only: {names}"

    def describe_manual_runs(self) -> str:
        """The runs that would resolve findings and that only a person may request; "" if there are
        none.
        """
        if self._checks.unavailable.get("dcgm", "not looked for yet"):
            return ""
        findings_of_level: dict[int, list[int]] = {}
        for finding in self._node.list_findings():
            if level := find_manual_level(finding, self._node.get_clears(finding), self._max_level):
                findings_of_level.setdefault(level, []).append(finding.id)
        hints = [
            f"{', '.join(f'#{finding}' for finding in findings[:_MAX_NAMED])}:"
            f" vitald diag run {level}"
            for level, findings in sorted(findings_of_level.items())
        ]
        return f"needs a person: finding {'; '.join(hints)}" if hints else ""

    def _queue_owed(self, now: float) -> None:
        """Queues what is owed and may start, and ends what is owed no more."""
        active = {run.id: run for run in self._dispatcher.active}
        for owed in self._queue.owed.list_runs():
            run = active.get(owed.id)
            if run is not None and run.stage is not Stage.WAITING:
                continue
            if self._is_given_up(owed, now):
                reason = (run.waits_for if run is not None else "") or owed.why or "no turn"
                self._queue.dequeue(owed, f"it did not run within a day: {reason}")
            elif run is None:
                self._queue_postponed(owed, now)

    def _queue_postponed(self, owed: OwedRun, now: float) -> None:
        """The schedule and findings repeat their own requests, but not soon enough for a node that
        is held.
        """
        is_held = self._queue.owed.holds_node and is_overdue(owed.since, now)
        if is_automatic(owed.request) and not self._is_required(owed.request):
            self._queue.owed.remove(owed.id)
        elif (is_held or not is_automatic(owed.request)) and _is_due(owed, now):
            self._queue.enqueue(owed.request, first=False)

    def _is_given_up(self, owed: OwedRun, now: float) -> bool:
        """A request of a person or a job, after a day, unless the schedule or a finding could make
        the same.
        """
        request = owed.request
        if is_automatic(request) or not is_overdue(owed.since, now):
            return False
        by_finding = request.check == "dcgm" and request.level <= self._max_level
        repeats = by_finding or self._checks.by_name[request.check].every_s(request.level) > 0.0
        return not (self._enabled and repeats) or bool(request.gpus) or request.busy

    def _is_required(self, request: RunRequest) -> bool:
        """Whether the schedule or the finding that requested an automatic run still does."""
        if not self._enabled or self._checks.unavailable.get(request.check):
            return False
        if request.by == SCHEDULE:
            return self._checks.by_name[request.check].every_s(request.level) > 0.0
        return any(
            f"{BY_FINDING}{finding.id}" == request.by for finding in self._node.list_findings()
        )

    def _request(self, request: RunRequest) -> None:
        """Queues the run unless it is queued or active, or more of it that can start: a run that
        needs idle devices may wait for days.
        """
        covering = [
            active
            for active in self._dispatcher.active
            if active.request.check == request.check
            and active.request.level >= request.level
            and not active.request.gpus
        ]
        if all(active.request.level > request.level and active.waits_for for active in covering):
            self._queue.enqueue(request, first=False)

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


def _is_due(owed: OwedRun, now: float) -> bool:
    # Later than any next attempt: from before the clock was set back.
    return not now < owed.not_before <= now + MAX_DELAY_S


def request_runs(
    findings: Iterable[Finding],
    clears: Callable[[Finding], Clears],
    past: Past,
    most: int,
    now: float,
) -> list[RunRequest]:
    """The runs that findings require now, in the order of the findings; each level once."""
    # A run of some GPUs resolves nothing for all.
    full = {key: [run for run in runs if not run.request.gpus] for key, runs in past.items()}
    wanted: dict[tuple[str, int], RunRequest] = {}
    for finding in findings:
        if finding.is_simulated:
            continue
        request = _request_for(finding, clears(finding), full, most)
        if request is not None and _may_run(
            request,
            full.get((request.check, request.level), ()),
            now,
            soon=_is_unconfirmed(finding),
        ):
            wanted.setdefault((request.check, request.level), request)
    return list(wanted.values())


def find_manual_level(finding: Finding, clears: Clears, most: int) -> int:
    """The level that resolves the finding and only a person may request; 0 if there is none."""
    if (
        finding.is_simulated
        or finding.action not in _SUSPICIONS
        or finding.component.kind not in _TESTED
    ):
        return 0
    found_at = _found_at(finding)
    needed = max(clears.diagnostic, found_at) if clears.diagnostic is not None else 0
    return needed if needed > most else 0


def _request_for(finding: Finding, clears: Clears, past: Past, most: int) -> RunRequest | None:
    check = finding.fields.get("check")
    unconfirmed = _is_unconfirmed(finding)
    if unconfirmed and isinstance(check, str) and check != _DCGM:
        return _request_check(finding, check, past, since=finding.since)
    clearing_level = clears.diagnostic if finding.action in _SUSPICIONS else None
    if finding.component.kind is ComponentKind.NEURON:
        if not clearing_level:
            return None
        return _request_check(finding, _NCCOM, past, since=finding.last)
    if finding.component.kind not in _TESTED:
        return None
    if unconfirmed:
        level = _find_confirming_level(finding, past)
    elif clearing_level and check != _DCGM:
        level = _find_next_level(finding, clearing_level, past)
    else:
        return None  # found by a diagnostic, without need of confirmation: the schedule repeats it
    return _make_request(finding, _DCGM, level) if 0 < level <= most else None


def _request_check(finding: Finding, check: str, past: Past, since: float) -> RunRequest | None:
    """A run of a check without levels, unless it has given a verdict since then."""
    if _was_tested(past.get((check, 0), ()), since):
        return None
    return _make_request(finding, check, 0)


def _find_confirming_level(finding: Finding, past: Past) -> int:
    """The level at which the fault is tested again; 0 if that was done."""
    level = max(2, _found_at(finding))
    # Seen first at the end of the run that found it: any run since then has answered, also where
    # the finding's fields do not say so.
    return (
        0 if any(tested >= level for tested in _list_tested_levels(past, finding.since)) else level
    )


def _find_next_level(finding: Finding, clearing_level: int, past: Past) -> int:
    """The lowest level that was not run since the fault was last seen; 0 if all were."""
    level = max(_list_tested_levels(past, finding.last), default=0) + 1
    return level if level <= clearing_level else 0


def _list_tested_levels(past: Past, since: float) -> list[int]:
    """The levels of DCGM's diagnostic at which a run has given a verdict since then."""
    return [
        level
        for (check, level), runs in past.items()
        if check == _DCGM and _was_tested(runs, since)
    ]


def _make_request(finding: Finding, check: str, level: int) -> RunRequest:
    return RunRequest(
        check=check,
        level=level,
        by=f"finding #{finding.id}",
        reason=f"finding #{finding.id}: {_fault_name(finding)}",
    )


def _fault_name(finding: Finding) -> str:
    return f"{finding.component.name} {finding.code}"


def _is_unconfirmed(finding: Finding) -> bool:
    return finding.fields.get("confirmed") is False


def _found_at(finding: Finding) -> int:
    level = finding.fields.get("level")
    return level if finding.fields.get("check") == _DCGM and isinstance(level, int) else 0


def _was_tested(runs: Sequence[Run], since: float) -> bool:
    """True if a run with a verdict began after `since`: after the run that found it."""
    return any(run.began > since and run.report.outcome.is_verdict for run in runs)


def _may_run(request: RunRequest, runs: Sequence[Run], now: float, *, soon: bool) -> bool:
    # Later runs are from before the clock was set back.
    runs = [run for run in runs if run.ended <= now]
    if not runs:
        return True
    last = max(runs, key=lambda run: run.ended)
    if now - last.ended < (
        _SHORT_PERIOD_S if soon or not last.report.outcome.is_verdict else _PERIOD_S
    ):
        return False
    fault = request.reason.partition(": ")[2]
    same = [
        run
        for run in runs
        if run.request.by.startswith("finding #") and run.request.reason.endswith(f": {fault}")
    ]
    loads = request.check != _DCGM or request.level > 1
    return not (
        loads
        and any(run.report.outcome.is_verdict and now - run.ended < _LOAD_PERIOD_S for run in same)
    )
