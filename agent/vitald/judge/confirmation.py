"""
Confirmation: a finding that rests on the text of a log is confirmed if another source reports a
fault of the same device.

A node is repaired for confirmed findings only. Text can be forged; vitald's own observations
cannot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

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
from vitald.model.codes import TOO_MANY


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
        speaks = event.trust is Trust.DAEMON
        if not speaks and not any(change.opened for change in changes):
            return []
        by = {}
        if speaks:
            borne_out = self.find_borne_out(incident, event, ruling)
            by = {finding.key: f"{event.source} ({event.code})" for finding in borne_out}
        confirmations = []
        for finding in self._find_unconfirmed(incident):
            witness = by.get(finding.key) or self._find_witness(finding, incident)
            if witness:
                confirmed = replace(finding, confirmed_by=witness)
                self._state.findings.put_finding(confirmed)
                confirmations.append(life.make_transition(finding, confirmed, event))
        return confirmations

    def find_borne_out(self, incident: Incident, event: Event, ruling: Ruling) -> list[Finding]:
        """The unconfirmed findings of the incident that agree with an observation."""
        own = incident.find_member(event.component, event.code)
        if own is None:
            return []
        unconfirmed = self._find_unconfirmed(incident)
        return [
            finding
            for finding in unconfirmed
            if self._is_witness(own, ruling.requirement, finding, incident)
        ]

    def _find_unconfirmed(self, incident: Incident) -> list[Finding]:
        """Its findings that a second source may confirm. A finding that replaces many is never
        confirmed, because some of them may rest on text only.
        """
        return [
            finding
            for finding in self._state.findings.list_of_incident(incident.id)
            if not (finding.is_confirmed or finding.is_hearsay or finding.code == TOO_MANY)
        ]

    def _find_witness(self, finding: Finding, incident: Incident) -> str:
        """What confirmed another finding of the incident that agrees with this one; empty if
        nothing did.
        """
        for other in self._state.findings.list_of_incident(incident.id):
            member = incident.find_member(other.component, other.code)
            if member is None or not other.is_confirmed or other.key == finding.key:
                continue
            if self._is_witness(member, other.base, finding, incident):
                by = other.confirmed_by
                return by if by.endswith(")") else f"{by} ({other.code})"
        return ""

    def _is_witness(
        self, member: Member, requirement: Requirement, finding: Finding, incident: Incident
    ) -> bool:
        """Whether the observed member confirms the finding: it is the same fault by another name,
        or a fault that requires a remedy itself.

        A fault of an application confirms nothing, since any user can cause it; nor does one that
        only requires an inspection, since the fault itself was not observed.
        """
        rule = self._state.catalog.find_rule(member.code)
        same = rule.fault == self._state.catalog.find_rule(finding.code).fault
        if not (same and requirement.action is not Action.NONE) and not (
            rule.fault_class is not FaultClass.APPLICATION
            and requirement.when is not When.MAINTENANCE
            and (requirement.action.makes_unfit or requirement.unusable)
        ):
            return False
        own = incident.find_member(finding.component, finding.code)
        locations = own.places if own is not None else frozenset({finding.component.id})
        if False in (finding.fields.get("on_pci"), finding.fields.get("on_node")):
            # Otherwise the device is no more than a name in a line.
            return finding.component.id in member.places
        if NODE in (finding.component, member.component):
            return True  # counts of devices belong to the node
        if finding.component.kind is ComponentKind.NVSWITCH:
            return True  # switches are observed through the GPUs at their links
        return not locations.isdisjoint(member.places)
