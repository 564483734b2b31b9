"""
Changes of findings by time alone: ends of quiet periods, drills and acceptances, and escalation
after a long wait for maintenance.

A change that is noticed late is dated when it was due, so that a replay gives the same result.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from vitald.catalog.escalation import EscalationStep
from vitald.judge import findings as life
from vitald.judge.acceptance import Acceptances
from vitald.judge.device_history import format_span
from vitald.judge.state import JudgeState
from vitald.model import (
    Component,
    ComponentKind,
    Finding,
    FindingKey,
    Requirement,
    Transition,
    When,
)
from vitald.model.event import SOURCE_FAILED

_QUIET = "quiet for as long as its rule asks"


@cache
def _get_failure_key(source: str) -> FindingKey:
    """The key of the finding that a source cannot be read; there are a dozen sources."""
    return Component(ComponentKind.NODE, source), SOURCE_FAILED, False


class Expiry:
    """Applies what is due, and knows when something is due next."""

    def __init__(self, state: JudgeState, acceptances: Acceptances) -> None:
        self._state = state
        self._acceptances = acceptances
        self.next_due = (
            self.find_next_due()
        )  # when `expire_findings` will next have something to do

    def expire_findings(self, now: float) -> list[Transition]:
        """Apply everything that is due by `now`."""
        if now < self.next_due:
            return []
        changes = []
        for finding in sorted(self._state.findings, key=self.find_due):
            changes += self._expire_finding(finding, now)
        self.next_due = self.find_next_due()
        return changes

    def note_changes(self, changes: list[Transition], now: float) -> list[Transition]:
        """Make the next due time earlier if a change requires it, and close findings whose quiet
        time a change made at `now` ends earlier than `now`: at `now`, since a time before that
        change would be wrong.

        A finding that was closed or postponed leaves the due time too early, which costs one pass
        over all.
        """
        overdue: dict[int, Finding] = {}
        for change in changes:
            finding = change.finding
            overdue.pop(finding.id, None)  # the latest change of it counts
            due = self.find_due(finding)
            if due <= now and change.time == now and self._find_end(finding) <= now:
                overdue[finding.id] = finding
            elif due < self.next_due:
                self.next_due = due
        return [
            self._state.findings.close_finding(finding, now, _QUIET) for finding in overdue.values()
        ]

    def find_next_due(self) -> float:
        return min(map(self.find_due, self._state.findings), default=life.NEVER)

    def find_due(self, finding: Finding) -> float:
        """When time alone will next change it; seconds since the epoch."""
        if not finding.is_open:
            return life.NEVER
        accepted_until = finding.accepted.until if finding.accepted is not None else life.NEVER
        return min(self._find_end(finding), accepted_until, self._find_step(finding)[0])

    def _expire_finding(self, finding: Finding, now: float) -> list[Transition]:
        changes = []
        ends_at = self._find_end(finding)
        if finding.accepted is not None and finding.accepted.until <= min(now, ends_at):
            changes.append(
                self._acceptances.end_acceptance(
                    finding, finding.accepted.until, "its time is over", None
                )
            )
        current = changes[-1].finding if changes else finding
        waited_at, step = self._find_step(current)
        if step is not None and waited_at <= min(now, ends_at):
            waited = f"it has waited {format_span(step.waited_s)} for maintenance"
            current = replace(current, escalation=Requirement(step.action, step.when, waited))
            self._state.findings.put_finding(current)
            changes.append(Transition(time=waited_at, finding=current, cause=waited))
        if ends_at <= now:
            over = finding.simulated_until is not None and ends_at == finding.simulated_until
            cause = "the drill is over" if over else _QUIET
            changes.append(self._state.findings.close_finding(current, ends_at, cause))
        return changes

    def _find_step(self, finding: Finding) -> tuple[float, EscalationStep | None]:
        """The time and the step of the escalation of a finding that waits for maintenance."""
        if finding.when is not When.MAINTENANCE or finding.is_simulated:
            return life.NEVER, None
        catalog = self._state.catalog
        steps = catalog.find_policy(catalog.find_rule(finding.code), finding.fields).steps
        waits = [(finding.since + step.waited_s, step) for step in steps if step.waited_s]
        return min(waits, key=lambda wait: wait[0], default=(life.NEVER, None))

    def _find_end(self, finding: Finding) -> float:
        """When the finding ends. While its source fails, only the end of its drill counts."""
        if not finding.is_open:
            return life.NEVER
        deaf = _get_failure_key(finding.source) in self._state.findings
        ends_at = life.compute_end(finding)
        if deaf and (finding.simulated_until is None or ends_at != finding.simulated_until):
            return finding.simulated_until if finding.simulated_until is not None else life.NEVER
        return ends_at
