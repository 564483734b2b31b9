"""
Changes of findings by time alone: ends of quiet periods, drills and acceptances, and escalation
after a long wait for maintenance.

A change that is noticed late is dated when it was due, so that a replay gives the same result.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from vitald.catalog.escalation import EscalationStep
from vitald.judge import lifecycle
from vitald.judge.acceptance import end_acceptance, end_acceptances
from vitald.judge.device_history import format_span
from vitald.judge.state import Evaluation, JudgeState
from vitald.model.component import Component
from vitald.model.event import CLOCK_STEPPED, SOURCE_FAILED
from vitald.model.finding import Finding, FindingKey, Requirement, Transition
from vitald.model.words import ComponentKind, When

_QUIET = "quiet for as long as its rule requires"


@cache
def _get_failure_key(source: str) -> FindingKey:
    """The key of the finding that a source cannot be read; there are a dozen sources."""
    return Component(ComponentKind.NODE, source), SOURCE_FAILED, False


def expire_due(evaluation: Evaluation) -> None:
    """Apply what was due before the event, by the clock as it was then."""
    event = evaluation.event
    stepped = event.fields.get("seconds") if event.code == CLOCK_STEPPED else None
    by_old_clock = stepped if isinstance(stepped, (int, float)) else 0.0
    evaluation.changes += expire_findings(evaluation.state, event.time - by_old_clock)


def expire_findings(state: JudgeState, now: float) -> list[Transition]:
    """Apply everything that is due by `now`."""
    if now < state.next_due:
        return []
    changes = []
    for finding in sorted(state.findings, key=lambda finding: _find_due(state, finding)):
        changes += _expire_finding(state, finding, now)
    state.next_due = find_next_due(state)
    return changes


def note_due(evaluation: Evaluation) -> None:
    """Make the next due time earlier if a change requires it, and close findings whose quiet time
    a change by the event ends earlier than the event: at its time, since one before that change
    would be wrong.

    A finding that was closed or postponed leaves the due time too early, which costs one pass
    over all.
    """
    state, now = evaluation.state, evaluation.event.time
    overdue: dict[int, Finding] = {}
    for change in evaluation.changes:
        finding = change.finding
        overdue.pop(finding.id, None)  # the latest change of it counts
        due = _find_due(state, finding)
        if due <= now and change.time == now and _find_end(state, finding) <= now:
            overdue[finding.id] = finding
        elif due < state.next_due:
            state.next_due = due
    evaluation.changes += [
        state.findings.close_finding(finding, now, _QUIET) for finding in overdue.values()
    ]


def find_next_due(state: JudgeState) -> float:
    """When time alone will next change any finding; seconds since the epoch."""
    return min((_find_due(state, finding) for finding in state.findings), default=lifecycle.NEVER)


def _find_due(state: JudgeState, finding: Finding) -> float:
    """When time alone will next change it; seconds since the epoch."""
    if not finding.is_open:
        return lifecycle.NEVER
    accepted_until = finding.accepted.until if finding.accepted is not None else lifecycle.NEVER
    return min(_find_end(state, finding), accepted_until, _find_step(state, finding)[0])


def _expire_finding(state: JudgeState, finding: Finding, now: float) -> list[Transition]:
    changes = []
    ends_at = _find_end(state, finding)
    if finding.accepted is not None and finding.accepted.until <= min(now, ends_at):
        changes.append(
            end_acceptance(state, finding, finding.accepted.until, "its time is over", None)
        )
    current = changes[-1].finding if changes else finding
    waited_at, step = _find_step(state, current)
    if step is not None and waited_at <= min(now, ends_at):
        waited = f"it has waited {format_span(step.waited_s)} for maintenance"
        current = replace(current, escalation=Requirement(step.action, step.when, waited))
        state.findings.put_finding(current)
        changes.append(Transition(time=waited_at, finding=current, cause=waited))
        changes += end_acceptances(state, changes, waited_at, None)
        current = changes[-1].finding
    if ends_at <= now:
        over = finding.simulated_until is not None and ends_at == finding.simulated_until
        cause = "the drill is over" if over else _QUIET
        changes.append(state.findings.close_finding(current, ends_at, cause))
    return changes


def _find_step(state: JudgeState, finding: Finding) -> tuple[float, EscalationStep | None]:
    """The time and the step of the escalation of a finding that waits for maintenance."""
    if finding.when is not When.MAINTENANCE or finding.is_simulated:
        return lifecycle.NEVER, None
    catalog = state.catalog
    steps = catalog.find_policy(catalog.find_rule(finding.code), finding.fields).steps
    waits = [(finding.since + step.waited_s, step) for step in steps if step.waited_s]
    return min(waits, key=lambda wait: wait[0], default=(lifecycle.NEVER, None))


def _find_end(state: JudgeState, finding: Finding) -> float:
    """When the finding ends. While its source fails, only the end of its drill counts."""
    if not finding.is_open:
        return lifecycle.NEVER
    if _get_failure_key(finding.source) in state.findings:
        return finding.simulated_until if finding.simulated_until is not None else lifecycle.NEVER
    return lifecycle.compute_end(finding)
