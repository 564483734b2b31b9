"""
Correlation: the incident of an event, and the consequences that a cause suppresses.

    event -> the incident that it belongs to, with the event as a member
          -> suppressed: a cause explains it, and requires at least as much
          -> regrouped: the new member may explain open findings, or change what they require

The catalogue (`correlation.toml`) defines which codes belong together; `incidents` finds the
incident.
"""

from __future__ import annotations

from dataclasses import replace

from vitald.catalog.correlation import CorrelationRule, Reach
from vitald.judge import findings as life
from vitald.judge.state import JudgeState
from vitald.model import (
    NODE,
    Action,
    Component,
    ComponentKind,
    Event,
    Finding,
    Incident,
    Member,
    Requirement,
    Transition,
    When,
)


class Correlation:
    """Joins events to incidents, and suppresses findings that another one explains."""

    def __init__(self, state: JudgeState) -> None:
        self._state = state

    # --- the incident of an event

    def find_incident(
        self, member: Member, current: Finding | None, event: Event, *, requires_action: bool
    ) -> Incident | None:
        """The incident that the event is a part of, or a new one if the event requires something or
        may be a cause.
        """
        incidents = self._state.incidents
        if current is not None and (known := incidents.get_incident(current.incident)) is not None:
            return known
        found = None
        if not event.is_hearsay:
            found = incidents.find_incident(
                member, simulated=event.is_simulated
            ) or self._find_same_fault(event)
        if found is not None and not (
            found.closed_at is not None and requires_action and self._is_over(found)
        ):
            return found
        if requires_action or incidents.is_cause(member):
            return incidents.begin_incident(member, simulated=event.is_simulated)
        return None

    def add_member(self, incident: Incident, member: Member, *, counts: bool = True) -> Incident:
        """Add a member to the incident. `counts`: it is one more occurrence."""
        grown = self._state.incidents.add_member(incident, member, counts=counts)
        if not self._state.findings.has_incident(grown.id):
            self._state.incidents.close_incident(
                grown.id, grown.last
            )  # until a finding of its own is opened
        return grown

    def _find_same_fault(self, event: Event) -> Incident | None:
        """The open incident of the same fault of the same device under another code."""
        fault = self._state.catalog.find_rule(event.code).fault
        finding = self._state.findings.find_by_fault((event.component, fault, event.is_simulated))
        if finding is None or finding.is_hearsay:
            return None
        return self._state.incidents.get_incident(finding.incident)

    def _is_over(self, incident: Incident) -> bool:
        """Whether the incident had findings, all closed by now: a new fault begins a new one."""
        return self._state.catalog.find_rule(incident.root.code).action is not Action.NONE

    # --- what a cause explains

    def is_suppressed(
        self, incident: Incident, member: Member | None, requirement: Requirement
    ) -> bool:
        """Whether an open cause requires at least as much: the consequence is suppressed."""
        if member is None:
            return False
        causes = self._state.incidents.find_causes(incident, member)
        return any(
            self._covers_requirement(cause, rule, member, incident, requirement)
            for cause, rule in causes
        )

    def imply_requirement(
        self,
        incident: Incident,
        code: str,
        member: Member | None,
        requirement: Requirement,
        event: Event,
    ) -> list[Transition]:
        """Raise the findings of the causes to the requirement of the consequence they suppress.

        Otherwise a cause whose co-occurrence or rule is lowered would hide a stronger requirement.
        """
        changes: list[Transition] = []
        if member is None or not requirement.action.makes_unfit:
            return changes
        causes = {
            (cause.component, cause.code)
            for cause, _ in self._state.incidents.find_causes(incident, member)
        }
        for finding in self._state.findings.list_of_incident(incident.id):
            if (finding.component, finding.code) not in causes or requirement.is_stronger_than(
                finding.requirement
            ):
                continue
            if finding.implied is None or requirement.is_stronger_than(finding.implied):
                because = f"{code} is told under it and asks for it"
                raised = replace(
                    finding, implied=Requirement(requirement.action, requirement.when, because)
                )
                self._state.findings.put_finding(raised)
                changes.append(life.make_transition(finding, raised, event))
        return changes

    def regroup_findings(self, incident: Incident, event: Event) -> list[Transition]:
        """Apply a new member of the incident to its open findings: it may explain them, or change
        what they require.
        """
        member = incident.find_member(event.component, event.code)
        if member is None or member.count > 1 or event.follows is not None:
            return []
        changes = []
        for key in self._state.findings.list_keys_of_incident(incident.id):
            finding = self._state.findings[key]
            own = incident.find_member(finding.component, finding.code)
            if own is None or own is member:
                continue
            if self._is_explained_by(member, own, incident, finding.requirement):
                cause = f"{life.SUPPRESSED} {incident.root.code} on {incident.root.component.name}"
                changes += self.imply_requirement(
                    incident, finding.code, own, finding.requirement, event
                )
                changes.append(
                    self._state.findings.close_finding(finding, event.time, cause, event.identity)
                )
                continue
            changed = self.apply_cooccurrence(finding)
            if changed is not finding:
                changed = life.limit_confirmation(finding, changed, event)
                self._state.findings.put_finding(changed)
                changes.append(life.make_transition(finding, changed, event))
        return changes

    def _is_explained_by(
        self, cause: Member, member: Member, incident: Incident, requirement: Requirement
    ) -> bool:
        causes = self._state.incidents.find_causes(incident, member)
        return any(
            candidate is cause
            and self._covers_requirement(candidate, rule, member, incident, requirement)
            for candidate, rule in causes
        )

    def _covers_requirement(
        self,
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
            for required in self._list_requirements(cause, incident)
        )

    def _list_requirements(self, cause: Member, incident: Incident) -> list[Requirement]:
        """The requirements of a member's findings: the real one, and that of a drill. A remedy that
        failed still explains consequences that ask for it.
        """
        return [
            _FAILED_REMEDY if finding.has_failed_remedy else finding.requirement
            for finding in self._state.findings.list_of_incident(incident.id)
            if (finding.component, finding.code) == (cause.component, cause.code)
        ]

    # --- co-occurrence

    def apply_cooccurrence(self, finding: Finding) -> Finding:
        """The finding with the changes that other members of its incident make (co-occurrence)."""
        incident = self._state.incidents.get_incident(finding.incident)
        if incident is None:
            return finding
        for role in self._state.catalog.correlation.find_roles(finding.code):
            for cooccurrence in role.rule.cooccurrences:
                if cooccurrence.code != finding.code:
                    continue
                # Only a member that came with the fault may lower its requirement, not a later one.
                came = any(
                    member.code in cooccurrence.beside
                    and (
                        member.component == finding.component or is_below(finding, member.component)
                    )
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
