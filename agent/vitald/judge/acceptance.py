"""
Acceptance: a person accepts a finding until a given time, so that it does not count.

An acceptance belongs to one fault of one component. It ends at its time, by the person, or at once
when the finding requires more than when it was accepted. A boot closes the finding and keeps the
acceptance, in case the same fault is found again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vitald.judge import findings as life
from vitald.judge.state import JudgeState
from vitald.model import (
    Acceptance,
    Component,
    Event,
    Finding,
    FindingState,
    Mark,
    MarkKind,
    Transition,
)

# How long after a boot a fault counts as the one from before it: a kernel line, and a state, whose
# collector may start later.
_LINE_AGAIN_S, _STATE_AGAIN_S = 3600.0, 86400.0


class Acceptances:
    """Keeps acceptances: in open findings, and in the device's history over a boot."""

    def __init__(self, state: JudgeState) -> None:
        self._state = state

    def accept_finding(self, finding: Finding | None, event: Event) -> list[Transition]:
        """Accept a finding until the time in the event; a past time ends its acceptance."""
        until = event.fields.get("until")
        if finding is None or not isinstance(until, (int, float)):
            return []
        if until <= event.time:
            return [
                self.end_acceptance(
                    finding, event.time, f"ended by {event.fields.get('by')}", event.identity
                )
            ]
        by, reason = str(event.fields.get("by")), str(event.fields.get("reason"))
        asked = replace(finding.requirement, unusable=finding.unusable)
        accepted = Acceptance(
            by=by, reason=reason, since=event.time, until=float(until), required=asked
        )
        finding = replace(finding, accepted=accepted)
        self._state.findings.put_finding(finding)
        cause = f"accepted by {by}: {reason}"
        return [Transition(time=event.time, finding=finding, cause=cause, event=event.identity)]

    def end_acceptance(
        self, finding: Finding, time: float, why: str, event: str | None
    ) -> Transition:
        """End the acceptance of a finding: it counts again."""
        by = finding.accepted.by if finding.accepted is not None else "nobody"
        counts = replace(finding, accepted=None)
        self._state.findings.put_finding(counts)
        cause = f"no longer accepted by {by}: {why}"
        return Transition(time=time, finding=counts, cause=cause, event=event)

    def end_outgrown(
        self, changes: Iterable[Transition], time: float, event: str | None
    ) -> list[Transition]:
        """End the acceptance of changed findings that now require more."""
        touched = {change.finding.key for change in changes if change.finding.accepted is not None}
        found = (self._state.findings.get_finding(key) for key in touched)
        worse = [item for item in found if item is not None and life.is_worse_than_accepted(item)]
        return [
            self.end_acceptance(finding, time, "it asks for more now", event)
            for finding in sorted(worse, key=lambda item: item.id)
        ]

    def keep_over_boot(self, finding: Finding, time: float) -> None:
        """Keep the acceptance of a finding that a boot closes, for the same fault found again."""
        accepted = finding.accepted
        if accepted is None or accepted.until <= time or not is_accepted(finding):
            return
        if finding.is_simulated:
            return
        self.forget_acceptance(finding.component, finding.code)
        device, noted = (
            self._state.devices.identify(finding.component),
            life.format_acceptance(accepted, time),
        )
        self._state.history.add_mark(device, time, MarkKind.ACCEPTED, finding.code, noted)

    def restore_acceptance(
        self, finding: Finding, now: float, *, state: bool
    ) -> tuple[Finding, str]:
        """A finding that was just opened, with its acceptance from before the boot, and the text to
        append to the cause.
        """
        mark = self.forget_acceptance(finding.component, finding.code)
        again_s = _STATE_AGAIN_S if state else _LINE_AGAIN_S
        if mark is None or now - mark.time > again_s:
            return finding, ""
        accepted = life.parse_acceptance(mark.detail, mark.time)
        again = replace(finding, accepted=accepted)
        if accepted.until <= now:
            return finding, ""
        if life.is_worse_than_accepted(again):
            return finding, f"; no longer accepted by {accepted.by}: it asks for more now"
        return again, f"; still accepted by {accepted.by}: {accepted.reason}"

    def forget_acceptance(self, component: Component, code: str) -> Mark | None:
        """Remove and return the acceptance of this fault from before the boot.

        An acceptance applies to one finding, not to the next one.
        """
        marks = self._state.history.list_marks(self._state.devices.identify(component))
        kept = [mark for mark in marks if mark.kind is MarkKind.ACCEPTED and mark.fault == code]
        for mark in kept:
            self._state.history.forget_mark(mark)
        return kept[-1] if kept else None


def is_accepted(finding: Finding) -> bool:
    """Whether a person accepted the finding and has not begun its remedy: a reset or a boot in the
    meantime has another reason.
    """
    return finding.accepted is not None and finding.state is FindingState.OPEN
