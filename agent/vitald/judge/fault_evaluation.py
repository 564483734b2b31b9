"""
What one event changes about the finding of its own fault: opened, seen again, or closed.

The parts of the judge are applied here in a fixed order; `engine` describes it. One of them is the
driver's recommended recovery action ("reset GPU"), which replaces the catalogue's requirement. It
does so in both directions, and the finding states the difference. The recommendation applies to
resets and reboots only: the driver knows nothing of jobs, spare parts, peers or other nodes.
"""

from __future__ import annotations

from dataclasses import replace

from vitald.catalog import Rule, Ruling
from vitald.judge import findings as life
from vitald.judge.acceptance import Acceptances
from vitald.judge.confirmation import Confirmation
from vitald.judge.correlation import Correlation, is_below
from vitald.judge.escalation import Escalation
from vitald.judge.shared_cause import SharedCause
from vitald.judge.state import JudgeState
from vitald.model import (
    NODE,
    Action,
    ComponentKind,
    Event,
    Finding,
    FindingKey,
    Incident,
    Requirement,
    Transition,
)
from vitald.model.event import SETTLING, TOO_MANY

_APPROXIMATE_S = 60.0  # largest error of the time of a record that was found at a start
_DRIVER_REMEDIES = (Action.RESET_DEVICE, Action.REBOOT_NODE)


class FaultEvaluation:
    """Evaluates one event for one rule, with the parts of the judge that concern its finding."""

    def __init__(
        self,
        state: JudgeState,
        acceptances: Acceptances,
        confirmation: Confirmation,
        correlation: Correlation,
        driver_word: DriverRecommendation,
        escalation: Escalation,
        shared_cause: SharedCause,
    ) -> None:
        self._state = state
        self._acceptances = acceptances
        self._confirmation = confirmation
        self._correlation = correlation
        self._driver_word = driver_word
        self._escalation = escalation
        self._shared_cause = shared_cause

    def accounts_for(self, event: Event) -> bool:
        """Whether a state that is observed needs no event: its finding is open, or suppressed, or
        it requires nothing.
        """
        rule = self._state.catalog.find_rule(event.code)
        key = (event.component, event.code, event.is_simulated)
        if key in self._state.findings or self._state.findings.is_full:
            return True
        if self._shared_cause.find_finding(event) is not None:
            return True
        ruling = rule.apply_to(event.fields)
        if ruling.action is Action.NONE or self._is_ignored(event, ruling, None):
            return True
        if rule.driver_recommendation and self._driver_word.has_recommendation(event):
            return True
        causes = [
            incident
            for incident in self._incidents_with_findings(event)
            if self._is_suppressed(incident, event, ruling)
        ]
        confirmable = (
            self._confirmation.is_confirmable_by(incident, event, ruling) for incident in causes
        )
        return bool(causes) and not any(confirmable)

    def evaluate_event(self, event: Event, rule: Rule) -> list[Transition]:
        """Apply the event to the finding of its fault, and to others of its incident."""
        key, current, ruling = self._find_current(event, rule)
        if self._is_ignored(event, ruling, current):
            return []
        of_node, changes = self._shared_cause.lift_event(event, rule)
        if of_node is not event:
            event = of_node
            key, current, ruling = self._find_current(event, rule)
        if rule.state and current is not None and event.time < current.last:
            return self._count_late(event, ruling, current)
        requires_action = ruling.action is not Action.NONE
        if current is None and requires_action and self._state.findings.is_full:
            key = (NODE, TOO_MANY, event.is_simulated)
            current = self._state.findings.get_finding(key)
        grown = self._grow_incident(event, current, ruling)
        if rule.driver_recommendation and not event.is_hearsay:
            changes += self._driver_word.apply_event(event, ruling)
        if not requires_action:
            changes += self._close_recovered(event, rule, ruling, current)
        elif grown is not None and current is None and self._is_suppressed(grown, event, ruling):
            changes += self._suppress_event(grown, event, ruling)
        else:
            changes.append(self._update_finding(key, current, event, rule, ruling, grown))
        if grown is not None:
            changes += self._confirmation.confirm_findings(grown, event, ruling, changes)
            changes += self._correlation.regroup_findings(grown, event)
        return changes

    def _find_current(self, event: Event, rule: Rule) -> tuple[FindingKey, Finding | None, Ruling]:
        """The event's finding, if one is open, and what the rule requires for the event."""
        key = (event.component, event.code, event.is_simulated)
        current = self._state.findings.get_finding(key)
        return key, current, rule.apply_to(life.merge_fields(event, current))

    def _grow_incident(
        self, event: Event, current: Finding | None, ruling: Ruling
    ) -> Incident | None:
        """The event's incident, with the event in it."""
        member = self._state.incidents.make_member(event)
        incident = self._correlation.find_incident(
            member, current, event, requires_action=ruling.action is not Action.NONE
        )
        if incident is None:
            return None
        known = current or incident.find_member(event.component, event.code)
        return self._correlation.add_member(incident, member, counts=life.is_counted(event, known))

    def _suppress_event(self, incident: Incident, event: Event, ruling: Ruling) -> list[Transition]:
        """Raise no finding: the causes in the incident take over what the event requires."""
        member = incident.find_member(event.component, event.code)
        self._escalation.note_dead_work(incident, event)
        return self._correlation.imply_requirement(
            incident, event.code, member, ruling.requirement, event
        )

    def _count_late(self, event: Event, ruling: Ruling, current: Finding) -> list[Transition]:
        """Count a state that was read after a newer one; it decides nothing."""
        if ruling.action is Action.NONE:
            return []
        incident = self._state.incidents.get_incident(current.incident)
        if incident is not None:
            member = self._state.incidents.make_member(event)
            self._correlation.add_member(incident, member, counts=event.follows is None)
        counted = replace(current, count=current.count + (event.follows is None))
        self._state.findings.put_finding(counted)
        return [life.make_transition(current, counted, event)]

    def _close_recovered(
        self, event: Event, rule: Rule, ruling: Ruling, current: Finding | None
    ) -> list[Transition]:
        """Close the finding of a state that requires nothing any more, and those of the codes that
        its rule clears.
        """
        if event.is_hearsay:
            return []
        if not event.is_simulated:
            for code in (event.code, *rule.clears_codes):
                self._acceptances.forget_acceptance(event.component, code)
        findings, ended = self._state.findings, list[Finding]()
        if current is not None and rule.state and current.component == event.component:
            ended.append(current)
        if (shared := self._shared_cause.find_finding(event)) is not None:
            ended.append(shared)
        keys = ((event.component, code, event.is_simulated) for code in rule.clears_codes)
        ended += [found for key in keys if (found := findings.get_finding(key)) is not None]
        if event.component.kind is ComponentKind.PCI and rule.clears_codes:
            ended += self._find_below(event, rule)
        cause = f"{event.code}: {ruling.title}"
        return [
            findings.close_finding(finding, event.time, cause, event.identity, resolved=True)
            for finding in ended
            if finding.last <= event.time
        ]

    def _find_below(self, port: Event, rule: Rule) -> list[Finding]:
        """Findings of devices below the port that the port's rule clears."""
        return [
            found
            for found in self._state.findings
            if found.code in rule.clears_codes
            and found.component != port.component
            and found.is_simulated == port.is_simulated
            and is_below(found, port.component)
        ]

    def _update_finding(
        self,
        key: FindingKey,
        current: Finding | None,
        event: Event,
        rule: Rule,
        ruling: Ruling,
        grown: Incident | None,
    ) -> Transition:
        """Update the finding by the event, or open one; `grown` is the incident that it joins."""
        incident = grown.id if grown is not None else 0
        if current is None:
            return self._open_finding(key, event, rule, ruling, incident)
        # A line of an older boot may be read late.
        of_this_boot = current.boot_id == self._state.devices.boot
        boot_id = current.boot_id if of_this_boot else event.boot_id
        joined = (
            replace(current, incident=incident) if incident and not current.incident else current
        )
        # What may still change takes nothing back.
        is_weaker = SETTLING in event.fields and SETTLING not in current.fields
        if is_weaker:
            ruling = rule.apply_to(current.fields)
        latest = rule.state and not is_weaker
        finding = life.update_finding(joined, event, ruling, boot_id=boot_id, latest=latest)
        if finding.fields is not current.fields:  # another case, perhaps with another policy
            finding = self._escalation.reevaluate_finding(finding, rule, event.time)
        fresh = self._escalation.note_process(finding, rule, event)
        more = finding.count > current.count or finding.base != current.base
        if fresh or more:
            finding = self._escalation.escalate_finding(finding, rule, event.fields, event.time)
        finding = self._finish_finding(finding)
        self._state.findings.put_finding(finding)
        was_settling = SETTLING in current.fields and SETTLING not in finding.fields
        if was_settling or (current.is_hearsay and not finding.is_hearsay):
            self._escalation.note_fault(finding, rule, event)
        return life.make_transition(current, finding, event)

    def _open_finding(
        self, key: FindingKey, event: Event, rule: Rule, ruling: Ruling, incident: int
    ) -> Transition:
        if key[1] == TOO_MANY:
            ruling = replace(ruling, title=self._state.catalog.find_rule(TOO_MANY).title)
        finding = life.open_finding(self._state.findings.take_id(), key, event, ruling, incident)
        self._escalation.note_process(finding, rule, event)
        finding = self._escalation.escalate_finding(finding, rule, event.fields, event.time)
        finding = self._finish_finding(finding)
        again, because = event.fields.get("again"), finding.requirement.reason
        cause = f"{again}; still observed" if isinstance(again, str) else f"{event.code} seen"
        cause += f"; {because}" if because else ""
        if not finding.is_simulated:
            finding, still = self._acceptances.restore_acceptance(
                finding, event.time, state=rule.state
            )
            cause += still
        self._state.findings.put_finding(finding)
        self._escalation.note_fault(finding, rule, event)
        return Transition(
            time=event.time, finding=finding, cause=cause, event=event.identity, opened=True
        )

    def _finish_finding(self, finding: Finding) -> Finding:
        """Apply co-occurrence. A finding that replaces many is not confirmed, because some of
        them may rest on text only.
        """
        finding = self._correlation.apply_cooccurrence(finding)
        return replace(finding, confirmed_by="") if finding.code == TOO_MANY else finding

    def _is_ignored(self, event: Event, ruling: Ruling, current: Finding | None) -> bool:
        """Whether the event changes no finding: it is hearsay about a fault that was observed, or
        history, a line written before its fault was resolved.
        """
        if event.is_hearsay and current is not None and not current.is_hearsay:
            return True
        devices = self._state.devices
        if ruling.clears.reboot and event.boot_id == devices.former_boot:
            return True
        # In doubt a fault is reported twice rather than missed.
        written = event.time + (_APPROXIMATE_S if event.fields.get("approximate") else 0.0)
        resolved_at = self._state.findings.find_resolved_at(event.component, event.code)
        if written < resolved_at and not event.is_simulated:
            return True
        placed_at = devices.placed_at(event.component)
        if placed_at and written < placed_at:
            return True
        reset_at = devices.reset_at(event.component) if ruling.clears.device_reset else None
        return reset_at is not None and written < reset_at

    def _is_suppressed(self, incident: Incident, event: Event, ruling: Ruling) -> bool:
        """Whether a cause in the incident explains the event and requires as much."""
        member = incident.find_member(event.component, event.code)
        return self._correlation.is_suppressed(incident, member, ruling.requirement)

    def _incidents_with_findings(self, event: Event) -> list[Incident]:
        """Incidents with an open finding, real or of a drill like the event."""
        incidents = map(self._state.incidents.get_incident, self._state.findings.incidents)
        return [
            incident
            for incident in incidents
            if incident is not None and incident.simulated is event.is_simulated
        ]


class DriverRecommendation:
    """Applies the driver's recommendation to the findings of its device."""

    def __init__(self, state: JudgeState) -> None:
        self._state = state

    def has_recommendation(self, event: Event) -> bool:
        """Whether a finding with the driver's recommendation for the event's device is open."""
        return any(
            finding.is_simulated is event.is_simulated
            and self._state.catalog.find_rule(finding.code).driver_recommendation
            for finding in self._state.findings.list_of_component(event.component)
        )

    def apply_event(self, event: Event, ruling: Ruling) -> list[Transition]:
        """Apply the recommendation in the event to the findings of its device."""
        changes = []
        for finding in self._state.findings.list_of_component(event.component):
            if finding.is_simulated != event.is_simulated or finding.last > event.time:
                continue
            if not self._state.catalog.find_rule(finding.code).driver_recommendation:
                recommended = self._find_difference(finding, event, ruling)
                if recommended != finding.driver:
                    changed = life.limit_confirmation(
                        finding, replace(finding, driver=recommended), event
                    )
                    if event.vouched_by and finding.confirmed_by:
                        by = f"{event.source} ({event.code})"
                        changed = life.confirm_finding(changed, by, ruling.action, same_fault=False)
                    self._state.findings.put_finding(changed)
                    changes.append(life.make_transition(finding, changed, event))
            elif finding.code != event.code:
                # The driver has one value per device: this one replaces the former.
                cause = f"{event.code}: {ruling.title}"
                changes.append(
                    self._state.findings.close_finding(
                        finding, event.time, cause, event.identity, resolved=True
                    )
                )
        return changes

    def _find_difference(
        self, finding: Finding, event: Event, ruling: Ruling
    ) -> Requirement | None:
        """The driver's requirement, if it concerns a reset or a reboot and differs from the
        catalogue's.
        """
        requirement = finding.catalog_requirement
        action = ruling.action if ruling.action is not Action.NONE else Action.OBSERVE
        if (
            ruling.action not in (Action.NONE, *_DRIVER_REMEDIES)
            or requirement.action not in _DRIVER_REMEDIES
        ):
            return None
        if (requirement.action, requirement.when) == (action, ruling.when):
            return None
        origin = f"the driver's own word ({event.code}: {ruling.title})"
        because = (
            f"{origin}; the catalogue says {requirement.action.value} ({requirement.when.value})"
        )
        return Requirement(action, ruling.when, because)
