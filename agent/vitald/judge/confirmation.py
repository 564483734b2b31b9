"""
Confirmation: a finding that rests on the text of a log is confirmed if another source reports a
fault of the same device.

A node is repaired for confirmed findings only. Text can be forged; vitald's own observations
cannot.
"""

from __future__ import annotations

from vitald.catalog import FaultClass, Ruling
from vitald.judge import lifecycle
from vitald.judge.state import Evaluation, JudgeState
from vitald.model.component import NODE
from vitald.model.event import TOO_MANY, Event, Trust
from vitald.model.finding import Finding, Incident, Member, Requirement
from vitald.model.words import Action, ComponentKind, When


def confirm_findings(evaluation: Evaluation) -> None:
    """Confirm the findings that the event, or a confirmed finding of the incident, agrees with. A
    finding that the event opened may be confirmed at once.
    """
    state, event, incident = evaluation.state, evaluation.event, evaluation.incident
    has_opened = evaluation.finding is not None and evaluation.current is None
    if incident is None or not (event.trust is Trust.DAEMON or has_opened):
        return
    for finding in _find_unconfirmed(state, incident):
        confirmed = _confirm_by_findings(state, finding, incident)
        if not confirmed.is_confirmed:
            confirmed = _confirm_by_event(state, confirmed, incident, event, evaluation.ruling)
        if confirmed is not finding:
            evaluation.replace_finding(finding, confirmed)


def is_confirmable_by(state: JudgeState, incident: Incident, event: Event, ruling: Ruling) -> bool:
    """Whether the event would confirm a finding of the incident, or more of it than so far."""
    return any(
        _confirm_by_event(state, finding, incident, event, ruling) is not finding
        for finding in _find_unconfirmed(state, incident)
    )


def _confirm_by_event(
    state: JudgeState, finding: Finding, incident: Incident, event: Event, ruling: Ruling
) -> Finding:
    """The finding with what the event confirms of it, if that is an observation."""
    own = incident.find_member(event.component, event.code)
    if event.trust is not Trust.DAEMON or own is None:
        return finding
    by = f"{event.source} ({event.code})"
    return _confirm_by_member(state, finding, incident, own, ruling.requirement, by)


def _confirm_by_findings(state: JudgeState, finding: Finding, incident: Incident) -> Finding:
    """The finding with what other confirmed findings of the incident confirm of it."""
    for other in state.findings.list_of_incident(incident.id):
        member = incident.find_member(other.component, other.code)
        if member is None or not other.is_confirmed or other.key == finding.key:
            continue
        by = other.confirmed_by
        by = by if by.endswith(")") else f"{by} ({other.code})"
        finding = _confirm_by_member(state, finding, incident, member, other.requirement, by)
    return finding


def _confirm_by_member(
    state: JudgeState,
    finding: Finding,
    incident: Incident,
    member: Member,
    asked: Requirement,
    by: str,
) -> Finding:
    """The finding with what the observed member confirms, which requires `asked` itself."""
    if not _is_witness(state, member, asked, finding, incident):
        return finding
    same_fault = _is_same_fault(state, member, finding)
    return lifecycle.confirm_finding(finding, by, asked.action, same_fault=same_fault)


def _is_same_fault(state: JudgeState, member: Member, finding: Finding) -> bool:
    rule, other = map(state.catalog.find_rule, (member.code, finding.code))
    return rule.fault == other.fault


def _find_unconfirmed(state: JudgeState, incident: Incident) -> list[Finding]:
    """Its findings that a second source may confirm. A finding that replaces many is never
    confirmed, because some of them may rest on text only.
    """
    return [
        finding
        for finding in state.findings.list_of_incident(incident.id)
        if not (finding.is_confirmed or finding.is_hearsay or finding.code == TOO_MANY)
    ]


def _is_witness(
    state: JudgeState,
    member: Member,
    requirement: Requirement,
    finding: Finding,
    incident: Incident,
) -> bool:
    """Whether the observed member confirms the finding: it is the same fault by another name,
    or a fault that requires a remedy itself.

    A fault of an application confirms nothing, since any user can cause it; nor does one that
    only requires an inspection, since the fault itself was not observed.
    """
    fault_class = state.catalog.find_rule(member.code).fault_class
    same_fault = _is_same_fault(state, member, finding)
    if not (same_fault and requirement.action is not Action.NONE) and not (
        fault_class is not FaultClass.APPLICATION
        and requirement.when is not When.MAINTENANCE
        and (requirement.action.makes_unfit or requirement.unusable)
    ):
        return False
    own = incident.find_member(finding.component, finding.code)
    locations = own.addresses if own is not None else frozenset({finding.component.id})
    if False in (finding.fields.get("on_pci"), finding.fields.get("on_node")):
        # Otherwise the device is no more than a name in a line.
        return finding.component.id in member.addresses
    if NODE in (finding.component, member.component):
        return True  # counts of devices belong to the node
    if finding.component.kind is ComponentKind.NVSWITCH:
        return True  # switches are observed through the GPUs at their links
    return not locations.isdisjoint(member.addresses)
