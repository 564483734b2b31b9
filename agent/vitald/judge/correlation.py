"""
Correlation: the incident of an event, and the consequences that a cause suppresses.

The catalogue (`correlation.toml`) defines which codes belong together; `incidents` finds the
incident.
"""

from __future__ import annotations

from dataclasses import replace

from vitald.catalog.correlation import CorrelationRule, Reach
from vitald.judge import lifecycle
from vitald.judge.escalation import note_dead_work
from vitald.judge.state import Evaluation, JudgeState
from vitald.model.component import NODE, Component
from vitald.model.event import Event
from vitald.model.finding import Finding, Incident, Member, Requirement
from vitald.model.words import Action, ComponentKind, When

# --- the incident of an event


def join_incident(evaluation: Evaluation) -> None:
    """Add the event to the incident that it is a part of, or to a new one."""
    state, event, current = evaluation.state, evaluation.event, evaluation.current
    state.incidents.forget_old(event.time)
    member = state.incidents.make_member(event)
    incident = _find_incident(evaluation, member)
    if incident is None:
        return
    known = current or incident.find_member(event.component, event.code)
    counts = lifecycle.is_counted(event, known)
    evaluation.incident = add_member(state, incident, member, counts=counts)


def _find_incident(evaluation: Evaluation, member: Member) -> Incident | None:
    """The incident that the event is a part of, or a new one if the event requires something or
    may be a cause.
    """
    state, event, current = evaluation.state, evaluation.event, evaluation.current
    incidents, requires_action = state.incidents, evaluation.requires_action
    if current is not None and (known := incidents.get_incident(current.incident)) is not None:
        return known
    found = None
    if not event.is_hearsay:
        found = incidents.find_incident(member, simulated=event.is_simulated) or _find_same_fault(
            state, event
        )
    if found is not None and not (
        found.closed_at is not None and requires_action and _is_over(state, found)
    ):
        return found
    if requires_action or incidents.is_cause(member):
        return incidents.begin_incident(member, simulated=event.is_simulated)
    return None


def add_member(
    state: JudgeState, incident: Incident, member: Member, *, counts: bool = True
) -> Incident:
    """Add a member to the incident. `counts`: it is one more occurrence."""
    grown = state.incidents.add_member(incident, member, counts=counts)
    if not state.findings.has_incident(grown.id):
        # Until a finding of its own is opened
        state.incidents.close_incident(grown.id, grown.last)
    return grown


def _find_same_fault(state: JudgeState, event: Event) -> Incident | None:
    """The open incident of the same fault of the same device under another code."""
    fault = state.catalog.find_rule(event.code).fault
    finding = state.findings.find_by_fault((event.component, fault, event.is_simulated))
    if finding is None or finding.is_hearsay:
        return None
    return state.incidents.get_incident(finding.incident)


def _is_over(state: JudgeState, incident: Incident) -> bool:
    """Whether the incident had findings, all closed by now: a new fault begins a new one."""
    return state.catalog.find_rule(incident.root.code).action is not Action.NONE


# --- what a cause explains


def suppress_consequence(evaluation: Evaluation) -> None:
    """Open no finding for the event if a cause in its incident explains it: the cause takes over
    what it requires.
    """
    state, event, incident = evaluation.state, evaluation.event, evaluation.incident
    if incident is None or evaluation.current is not None or not evaluation.requires_action:
        return
    requirement = evaluation.ruling.requirement
    if not is_suppressed(state, incident, event, requirement):
        return
    evaluation.is_suppressed = True
    note_dead_work(state, incident, event)
    member = incident.find_member(event.component, event.code)
    _imply_requirement(evaluation, incident, event.code, member, requirement)


def is_suppressed(
    state: JudgeState, incident: Incident, event: Event, requirement: Requirement
) -> bool:
    """Whether an open cause in the incident explains the event, and requires at least as much."""
    member = incident.find_member(event.component, event.code)
    if member is None:
        return False
    return any(
        _covers_requirement(state, cause, rule, member, incident, requirement)
        for cause, rule in state.incidents.find_causes(incident, member)
    )


def _imply_requirement(
    evaluation: Evaluation,
    incident: Incident,
    code: str,
    member: Member | None,
    requirement: Requirement,
) -> None:
    """Raise the findings of the causes to the requirement of the consequence they suppress.

    Otherwise a cause whose co-occurrence or rule is lowered would hide a stronger requirement.
    """
    state = evaluation.state
    if member is None or not requirement.action.makes_unfit:
        return
    causes = {
        (cause.component, cause.code) for cause, _ in state.incidents.find_causes(incident, member)
    }
    for finding in state.findings.list_of_incident(incident.id):
        if (finding.component, finding.code) not in causes or requirement.is_stronger_than(
            finding.requirement
        ):
            continue
        if finding.implied is None or requirement.is_stronger_than(finding.implied):
            because = f"its consequence {code} requires it"
            raised = replace(
                finding, implied=Requirement(requirement.action, requirement.when, because)
            )
            evaluation.replace_finding(finding, raised)


def regroup_findings(evaluation: Evaluation) -> None:
    """Apply a new member of the incident to its open findings: it may explain them, or change
    what they require.
    """
    state, event, incident = evaluation.state, evaluation.event, evaluation.incident
    if incident is None:
        return
    member = incident.find_member(event.component, event.code)
    if member is None or member.count > 1 or event.follows is not None:
        return
    for key in state.findings.list_keys_of_incident(incident.id):
        finding = state.findings[key]
        own = incident.find_member(finding.component, finding.code)
        if own is None or own is member:
            continue
        if _is_explained_by(state, member, own, incident, finding.requirement):
            cause = f"{lifecycle.SUPPRESSED} {incident.root.code} on {incident.root.component.name}"
            _imply_requirement(evaluation, incident, finding.code, own, finding.requirement)
            evaluation.close_finding(finding, cause)
            continue
        changed = _apply_cooccurrence(state, finding)
        if changed is not finding:
            changed = lifecycle.limit_confirmation(finding, changed, event)
            evaluation.replace_finding(finding, changed)


def _is_explained_by(
    state: JudgeState, cause: Member, member: Member, incident: Incident, requirement: Requirement
) -> bool:
    return any(
        candidate is cause
        and _covers_requirement(state, candidate, rule, member, incident, requirement)
        for candidate, rule in state.incidents.find_causes(incident, member)
    )


def _covers_requirement(
    state: JudgeState,
    cause: Member,
    rule: CorrelationRule,
    member: Member,
    incident: Incident,
    requirement: Requirement,
) -> bool:
    """Whether the cause requires as much, and its remedy is one for the member's device, too,
    if it names one.

    That a process was killed explains its end, whatever the kill itself requires.
    """
    if rule.reach is Reach.PROCESS and not requirement.action.makes_unfit:
        return True
    names_no_device = rule.reach is Reach.NODE and member.component == NODE
    if (
        requirement.action.makes_unfit
        and not names_no_device
        and cause.addresses.isdisjoint(member.addresses)
    ):
        return False
    return any(
        not requirement.is_stronger_than(required)
        and (required.action.makes_unfit or required.unusable or not requirement.unusable)
        for required in _list_requirements(state, cause, incident)
    )


def _list_requirements(state: JudgeState, cause: Member, incident: Incident) -> list[Requirement]:
    """The requirements of a member's findings: the real one, and that of a drill. A remedy that
    failed still explains consequences that ask for it.
    """
    return [
        _FAILED_REMEDY if finding.has_failed_remedy else finding.requirement
        for finding in state.findings.list_of_incident(incident.id)
        if (finding.component, finding.code) == (cause.component, cause.code)
    ]


# --- co-occurrence


def apply_context(evaluation: Evaluation) -> None:
    """Change what the event's finding requires, where other members of its incident do."""
    if evaluation.finding is not None:
        evaluation.finding = _apply_cooccurrence(evaluation.state, evaluation.finding)


def _apply_cooccurrence(state: JudgeState, finding: Finding) -> Finding:
    """The finding with the changes that other members of its incident make (co-occurrence)."""
    incident = state.incidents.get_incident(finding.incident)
    if incident is None:
        return finding
    for role in state.catalog.correlation.find_roles(finding.code):
        for cooccurrence in role.rule.cooccurrences:
            if cooccurrence.code != finding.code:
                continue
            # Only a member that came with the fault may lower its requirement, not a later one.
            came = any(
                member.code in cooccurrence.beside
                and (member.component == finding.component or is_below(finding, member.component))
                and abs(member.first - finding.since) <= role.rule.within_s
                for member in incident.members
            )
            if came:
                action, when = (
                    cooccurrence.action or finding.base.action,
                    cooccurrence.when or finding.base.when,
                )
                requirement = Requirement(action, when, cooccurrence.reason)
                return (
                    finding
                    if requirement == finding.context
                    else replace(finding, context=requirement)
                )
    return finding


_FAILED_REMEDY = Requirement(Action.REBOOT_NODE, When.NOW, unusable=True)


def is_below(finding: Finding, port: Component) -> bool:
    """Whether the port is the one upstream of the finding's device, or the one that reported it."""
    ports = (finding.fields.get("port"), finding.fields.get("reporter"))
    return port.kind is ComponentKind.PCI and port.id in ports
