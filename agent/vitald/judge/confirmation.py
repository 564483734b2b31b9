"""
Confirmation: a finding that rests on the text of a log is confirmed if another source reports a
fault of the same device.

A node is repaired for confirmed findings only. Text can be forged; vitald's own observations
cannot.
"""

from __future__ import annotations

from collections.abc import Iterable

from vitald.catalog import FaultClass, Ruling
from vitald.judge import findings as life
from vitald.judge.state import JudgeState
from vitald.model import (
    NODE,
    Action,
    ComponentKind,
    Event,
    Finding,
    Incident,
    Member,
    Requirement,
    Transition,
    Trust,
    When,
)
from vitald.model.event import TOO_MANY


class Confirmation:
    """Marks findings as confirmed, and finds those that an observation confirms."""

    def __init__(self, state: JudgeState) -> None:
        self._state = state

    def confirm_findings(
        self, incident: Incident, event: Event, ruling: Ruling, changes: Iterable[Transition]
    ) -> list[Transition]:
        """Confirm the findings that the event, or a confirmed finding of the incident, agrees with.

        `changes`: those of the event so far; a finding that it opened may be confirmed at once.
        """
        if event.trust is not Trust.DAEMON and not any(change.opened for change in changes):
            return []
        confirmations = []
        for finding in self._find_unconfirmed(incident):
            confirmed = self._confirm_by_findings(finding, incident)
            if not confirmed.is_confirmed:
                confirmed = self._confirm_by_event(confirmed, incident, event, ruling)
            if confirmed is not finding:
                self._state.findings.put_finding(confirmed)
                confirmations.append(life.make_transition(finding, confirmed, event))
        return confirmations

    def is_confirmable_by(self, incident: Incident, event: Event, ruling: Ruling) -> bool:
        """Whether the event would confirm a finding of the incident, or more of it than so far."""
        return any(
            self._confirm_by_event(finding, incident, event, ruling) is not finding
            for finding in self._find_unconfirmed(incident)
        )

    def _confirm_by_event(
        self, finding: Finding, incident: Incident, event: Event, ruling: Ruling
    ) -> Finding:
        """The finding with what the event confirms of it, if that is an observation."""
        own = incident.find_member(event.component, event.code)
        if event.trust is not Trust.DAEMON or own is None:
            return finding
        by = f"{event.source} ({event.code})"
        return self._confirm_by_member(finding, incident, own, ruling.requirement, by)

    def _confirm_by_findings(self, finding: Finding, incident: Incident) -> Finding:
        """The finding with what other confirmed findings of the incident confirm of it."""
        for other in self._state.findings.list_of_incident(incident.id):
            member = incident.find_member(other.component, other.code)
            if member is None or not other.is_confirmed or other.key == finding.key:
                continue
            by = other.confirmed_by
            by = by if by.endswith(")") else f"{by} ({other.code})"
            finding = self._confirm_by_member(finding, incident, member, other.requirement, by)
        return finding

    def _confirm_by_member(
        self, finding: Finding, incident: Incident, member: Member, asked: Requirement, by: str
    ) -> Finding:
        """The finding with what the observed member confirms, which requires `asked` itself."""
        if not self._is_witness(member, asked, finding, incident):
            return finding
        same_fault = self._is_same_fault(member, finding)
        return life.confirm_finding(finding, by, asked.action, same_fault=same_fault)

    def _is_same_fault(self, member: Member, finding: Finding) -> bool:
        rule, other = map(self._state.catalog.find_rule, (member.code, finding.code))
        return rule.fault == other.fault

    def _find_unconfirmed(self, incident: Incident) -> list[Finding]:
        """Its findings that a second source may confirm. A finding that replaces many is never
        confirmed, because some of them may rest on text only.
        """
        return [
            finding
            for finding in self._state.findings.list_of_incident(incident.id)
            if not (finding.is_confirmed or finding.is_hearsay or finding.code == TOO_MANY)
        ]

    def _is_witness(
        self, member: Member, requirement: Requirement, finding: Finding, incident: Incident
    ) -> bool:
        """Whether the observed member confirms the finding: it is the same fault by another name,
        or a fault that requires a remedy itself.

        A fault of an application confirms nothing, since any user can cause it; nor does one that
        only requires an inspection, since the fault itself was not observed.
        """
        fault_class = self._state.catalog.find_rule(member.code).fault_class
        same_fault = self._is_same_fault(member, finding)
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
