"""
The finding of an event's own fault: whether the event may change it, and what becomes of it.
"""

from __future__ import annotations

from dataclasses import replace

from vitald.catalog import Ruling
from vitald.judge import lifecycle
from vitald.judge.acceptance import forget_acceptance
from vitald.judge.correlation import add_member, is_below
from vitald.judge.shared_cause import find_shared_finding
from vitald.judge.state import Evaluation, JudgeState
from vitald.model.component import NODE
from vitald.model.event import SETTLING, TOO_MANY, Event
from vitald.model.finding import Finding
from vitald.model.words import Action, ComponentKind

_APPROXIMATE_S = 60.0  # largest error of the time of a record that was found at a start


def find_own_finding(evaluation: Evaluation) -> None:
    """Find the open finding, and end the evaluation of an event that changes none."""
    state, event, rule = evaluation.state, evaluation.event, evaluation.rule
    is_context = rule.context and rule.action is Action.NONE and not rule.clears_codes
    if is_context and not state.catalog.correlation.find_roles(event.code):
        evaluation.is_over = True
        return
    evaluation.set_event(event)
    evaluation.is_over = is_ignored(state, event, evaluation.ruling, evaluation.current)


def is_ignored(state: JudgeState, event: Event, ruling: Ruling, current: Finding | None) -> bool:
    """Whether the event changes no finding: it is hearsay about a fault that was observed, or
    history, a line written before its fault was resolved.
    """
    if event.is_hearsay and current is not None and not current.is_hearsay:
        return True
    devices = state.devices
    if ruling.clears.reboot and event.boot_id == devices.former_boot:
        return True
    # In doubt a fault is reported twice rather than missed.
    written = event.time + (_APPROXIMATE_S if event.fields.get("approximate") else 0.0)
    resolved_at = state.findings.find_resolved_at(event.component, event.code)
    if written < resolved_at and not event.is_simulated:
        return True
    placed_at = devices.placed_at(event.component)
    if placed_at and written < placed_at:
        return True
    reset_at = devices.reset_at(event.component) if ruling.clears.device_reset else None
    return reset_at is not None and written < reset_at


def count_late_state(evaluation: Evaluation) -> None:
    """Count a state that was read after a newer one; it decides nothing."""
    state, event, current = evaluation.state, evaluation.event, evaluation.current
    if not evaluation.rule.state or current is None or event.time >= current.last:
        return
    evaluation.is_over = True
    if not evaluation.requires_action:
        return
    incident = state.incidents.get_incident(current.incident)
    if incident is not None:
        member = state.incidents.make_member(event)
        add_member(state, incident, member, counts=event.follows is None)
    counted = replace(current, count=current.count + (event.follows is None))
    evaluation.replace_finding(current, counted)


def limit_findings(evaluation: Evaluation) -> None:
    """Past the maximum of open findings, let one of the node stand for all others."""
    findings = evaluation.state.findings
    if evaluation.current is None and evaluation.requires_action and findings.is_full:
        evaluation.key = (NODE, TOO_MANY, evaluation.event.is_simulated)
        evaluation.current = findings.get_finding(evaluation.key)


def close_recovered(evaluation: Evaluation) -> None:
    """Close the finding of a state that requires nothing any more, and those of the codes that its
    rule clears.
    """
    state, event, rule = evaluation.state, evaluation.event, evaluation.rule
    current = evaluation.current
    if evaluation.requires_action or event.is_hearsay:
        return
    if not event.is_simulated:
        for code in (event.code, *rule.clears_codes):
            forget_acceptance(state, event.component, code)
    ended: list[Finding] = []
    if current is not None and rule.state and current.component == event.component:
        ended.append(current)
    if (shared := find_shared_finding(state, event)) is not None:
        ended.append(shared)
    keys = ((event.component, code, event.is_simulated) for code in rule.clears_codes)
    ended += [found for key in keys if (found := state.findings.get_finding(key)) is not None]
    if event.component.kind is ComponentKind.PCI and rule.clears_codes:
        ended += _find_below(evaluation)
    for finding in ended:
        if finding.last <= event.time:
            cause = f"{event.code}: {evaluation.ruling.title}"
            evaluation.close_finding(finding, cause, resolved=True)


def _find_below(evaluation: Evaluation) -> list[Finding]:
    """Findings of devices below the event's port that the port's rule clears."""
    port = evaluation.event
    return [
        found
        for found in evaluation.state.findings
        if found.code in evaluation.rule.clears_codes
        and found.component != port.component
        and found.is_simulated == port.is_simulated
        and is_below(found, port.component)
    ]


def open_or_update(evaluation: Evaluation) -> None:
    """Open the finding, or apply the event to it. It is stored by `record_finding`, once the
    stages in between are done with it.
    """
    if not evaluation.requires_action or evaluation.is_suppressed:
        return
    current = evaluation.current
    finding = _open_finding(evaluation) if current is None else _update(evaluation, current)
    # A finding that replaces many is not confirmed: some of them may rest on text only.
    evaluation.finding = replace(finding, confirmed_by="") if finding.code == TOO_MANY else finding


def _open_finding(evaluation: Evaluation) -> Finding:
    state, ruling, incident = evaluation.state, evaluation.ruling, evaluation.incident
    if evaluation.key[1] == TOO_MANY:
        ruling = replace(ruling, title=state.catalog.find_rule(TOO_MANY).title)
    return lifecycle.open_finding(
        state.findings.take_id(),
        evaluation.key,
        evaluation.event,
        ruling,
        incident.id if incident is not None else 0,
    )


def _update(evaluation: Evaluation, current: Finding) -> Finding:
    event, rule, ruling = evaluation.event, evaluation.rule, evaluation.ruling
    # A line of an older boot may be read late.
    of_this_boot = current.boot_id == evaluation.state.devices.boot
    boot_id = current.boot_id if of_this_boot else event.boot_id
    if evaluation.incident is not None and not current.incident:
        current = replace(current, incident=evaluation.incident.id)
    # What may still change takes nothing back.
    is_weaker = SETTLING in event.fields and SETTLING not in current.fields
    if is_weaker:
        ruling = rule.apply_to(current.fields)
    latest = rule.state and not is_weaker
    return lifecycle.update_finding(current, event, ruling, boot_id=boot_id, latest=latest)


def record_finding(evaluation: Evaluation) -> None:
    """Store the finding, and report what the event changed about it."""
    finding, current, event = evaluation.finding, evaluation.current, evaluation.event
    if finding is None:
        return
    if current is not None:
        evaluation.replace_finding(current, finding)
        return
    again, because = event.fields.get("again"), finding.requirement.reason
    cause = f"{again}; still observed" if isinstance(again, str) else f"{event.code} seen"
    cause += f"; {because}" if because else ""
    evaluation.put_finding(finding, cause + evaluation.remark, opened=True)
