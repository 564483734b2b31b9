"""
Acceptance: a person accepts a finding until a given time, so that it does not count.

An acceptance belongs to one fault of one component. It ends at its time, by the person, or at once
when the finding requires more than when it was accepted. A boot closes the finding and keeps the
acceptance, in case the same fault is found again.
"""

from __future__ import annotations

from dataclasses import replace

from vitald.judge import lifecycle
from vitald.judge.state import Evaluation, JudgeState
from vitald.model.component import Component, Mark, MarkKind
from vitald.model.finding import Acceptance, Finding, FindingState, Transition

# How long after a boot a fault counts as the one from before it: a kernel line, and a state, whose
# collector may start later.
_LINE_AGAIN_S, _STATE_AGAIN_S = 3600.0, 86400.0


def accept_finding(evaluation: Evaluation, finding: Finding) -> None:
    """Accept a finding until the time in the event; a past time ends its acceptance."""
    state, event = evaluation.state, evaluation.event
    until = event.fields.get("until")
    if not isinstance(until, (int, float)):
        return
    if until <= event.time and finding.accepted is None:
        evaluation.put_finding(finding, "")  # there is none to end
        return
    if until <= event.time:
        why = f"ended by {event.fields.get('by')}"
        evaluation.changes.append(end_acceptance(state, finding, event.time, why, event.identity))
        return
    by, reason = str(event.fields.get("by")), str(event.fields.get("reason"))
    asked = replace(finding.requirement, unusable=finding.unusable)
    accepted = Acceptance(
        by=by, reason=reason, since=event.time, until=float(until), required=asked
    )
    evaluation.put_finding(replace(finding, accepted=accepted), f"accepted by {by}: {reason}")


def end_acceptance(
    state: JudgeState, finding: Finding, time: float, why: str, event: str | None
) -> Transition:
    """End the acceptance of an accepted finding: it counts again."""
    assert finding.accepted is not None
    counts = replace(finding, accepted=None)
    state.findings.put_finding(counts)
    cause = f"no longer accepted by {finding.accepted.by}: {why}"
    return Transition(time=time, finding=counts, cause=cause, event=event)


def end_outgrown(evaluation: Evaluation) -> None:
    """End the acceptance of findings that the event changed and that now require more."""
    event = evaluation.event
    evaluation.changes += end_acceptances(
        evaluation.state, evaluation.changes, event.time, event.identity
    )


def end_acceptances(
    state: JudgeState, changes: list[Transition], time: float, event: str | None
) -> list[Transition]:
    """End the acceptance of changed findings that now require more."""
    touched = {change.finding.key for change in changes if change.finding.accepted is not None}
    found = (state.findings.get_finding(key) for key in touched)
    worse = [item for item in found if item is not None and lifecycle.is_worse_than_accepted(item)]
    return [
        end_acceptance(state, finding, time, "it requires more now", event)
        for finding in sorted(worse, key=lambda item: item.id)
    ]


def keep_over_boot(state: JudgeState, finding: Finding, time: float) -> None:
    """Keep the acceptance of a finding that a boot closes, for the same fault found again."""
    accepted = finding.accepted
    if accepted is None or accepted.until <= time or not is_accepted(finding):
        return
    if finding.is_simulated:
        return
    forget_acceptance(state, finding.component, finding.code)
    device, noted = (
        state.devices.identify(finding.component),
        lifecycle.format_acceptance(accepted, time),
    )
    state.history.add_mark(device, time, MarkKind.ACCEPTED, finding.code, noted)


def restore_acceptance(evaluation: Evaluation) -> None:
    """Accept a finding that is opened as the same fault was before the boot."""
    finding, now = evaluation.finding, evaluation.event.time
    if finding is None or evaluation.current is not None or finding.is_simulated:
        return
    mark = forget_acceptance(evaluation.state, finding.component, finding.code)
    again_s = _STATE_AGAIN_S if evaluation.rule.state else _LINE_AGAIN_S
    if mark is None or now - mark.time > again_s:
        return
    accepted = lifecycle.parse_acceptance(mark.detail, mark.time)
    if accepted.until <= now:
        return
    again = replace(finding, accepted=accepted)
    if lifecycle.is_worse_than_accepted(again):
        evaluation.remark = f"; no longer accepted by {accepted.by}: it requires more now"
        return
    evaluation.finding = again
    evaluation.remark = f"; still accepted by {accepted.by}: {accepted.reason}"


def forget_acceptance(state: JudgeState, component: Component, code: str) -> Mark | None:
    """Remove and return the acceptance of this fault from before the boot.

    An acceptance applies to one finding, not to the next one.
    """
    marks = state.history.list_marks(state.devices.identify(component))
    kept = [mark for mark in marks if mark.kind is MarkKind.ACCEPTED and mark.fault == code]
    for mark in kept:
        state.history.forget_mark(mark)
    return kept[-1] if kept else None


def is_accepted(finding: Finding) -> bool:
    """Whether a person accepted the finding and has not begun its remedy: a reset or a boot in the
    meantime has another reason.
    """
    return finding.accepted is not None and finding.state is FindingState.OPEN
