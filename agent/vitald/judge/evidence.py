"""
Evidence: what an event proves beyond its own fault, such as a boot, a reset, a replaced board, a
passed diagnostic, or the decision of a person.

Evidence closes findings, and identifies the device in a slot. There is one function for each event
code; the engine looks them up in `of_code`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vitald.catalog import Evidence
from vitald.judge import findings as life
from vitald.judge.acceptance import Acceptances
from vitald.judge.correlation import Correlation
from vitald.judge.escalation import Escalation
from vitald.judge.shared_cause import remove_device
from vitald.judge.state import JudgeState
from vitald.model import (
    NODE,
    Action,
    Component,
    ComponentKind,
    Device,
    Event,
    Finding,
    FindingState,
    MarkKind,
    Requirement,
    Transition,
)
from vitald.model.event import (
    ACCEPTED,
    BOOT,
    CLEARED,
    CLOCK_STEPPED,
    DIAGNOSTIC_FAILED,
    IDENTITY,
    JOB_DIED,
    REMEDY_BEGUN,
    REPLACED,
    SOURCE_FAILED,
)

_LOAD_S = 30.0  # time to load a driver, from its first probe to its banner


class EvidenceEvaluation:
    """Applies what an event proves."""

    def __init__(
        self,
        state: JudgeState,
        correlation: Correlation,
        escalation: Escalation,
        acceptances: Acceptances,
    ) -> None:
        self._state = state
        self._correlation = correlation
        self._escalation = escalation
        self._acceptances = acceptances
        self.of_code: dict[str, Callable[[Event], list[Transition]]] = {
            BOOT: self._note_boot,
            CLEARED: self._clear_by_person,
            REMEDY_BEGUN: self._begin_remedy,
            ACCEPTED: lambda event: acceptances.accept_finding(self._find_named(event), event),
            CLOCK_STEPPED: self._step_clock,
            SOURCE_FAILED: self._restart_quiet,
            IDENTITY: self._note_identity,
            REPLACED: self._note_replacement,
            JOB_DIED: self._note_dead_job,
            DIAGNOSTIC_FAILED: self._note_failed_diagnostic,
        }

    # --- remedies

    def apply_evidence(
        self, event: Event, evidence: Evidence, of: tuple[ComponentKind, ...]
    ) -> list[Transition]:
        """Close the findings that the evidence clears, and note it as their remedy.

        `of`: the kinds of devices that it concerns, if it is evidence about the whole node.
        """
        level = event.fields.get("level")
        if evidence is Evidence.DEVICE_RESET and not event.is_simulated:
            kinds = [Component(kind) for kind in of]
            for component in kinds if event.component == NODE else [event.component]:
                self._state.devices.note_reset(component, event.time)
        changes = []
        for finding in self._state.findings:
            if finding.is_simulated != event.is_simulated or not self._concerns(
                event, evidence, of, finding
            ):
                continue
            clears = life.find_clears(finding, self._state.catalog)
            if not clears.is_cleared_by(evidence, level if isinstance(level, int) else 0):
                continue
            if (remaining := remove_device(finding, event.component)) is not None:
                rule = self._state.catalog.find_rule(finding.code)
                remaining = replace(remaining, title=rule.apply_to(remaining.fields).title)
                self._state.findings.put_finding(remaining)
                cause = f"{event.component.name}: {self._describe_evidence(event, evidence)}"
                changes.append(
                    Transition(
                        time=event.time, finding=remaining, cause=cause, event=event.identity
                    )
                )
                continue
            self._escalation.note_remedy(finding, evidence, event.time)
            if evidence is Evidence.REBOOT:
                self._acceptances.keep_over_boot(finding, event.time)
            changes.append(
                self._state.findings.close_finding(
                    finding,
                    event.time,
                    self._describe_evidence(event, evidence),
                    event.identity,
                    # Lines of the former boot are recognised by its id; lines of this one may
                    # be older than the daemon.
                    resolved=evidence is not Evidence.REBOOT,
                )
            )
        return changes

    def _concerns(
        self, event: Event, evidence: Evidence, of: tuple[ComponentKind, ...], finding: Finding
    ) -> bool:
        if evidence is Evidence.REBOOT:
            return finding.boot_id != event.boot_id
        if finding.last > event.time:
            return False
        rule, on_node = self._state.catalog.find_rule(finding.code), event.component == NODE
        is_reset, just_now = evidence is Evidence.DEVICE_RESET, event.time - finding.last < _LOAD_S
        if is_reset and rule.at_probe and on_node and just_now:
            return False  # the banner ends the load in which the probe failed
        names_device = finding.component != NODE or len(finding.components) > 1
        if is_reset and not names_device and rule.component is event.component.kind:
            # Its line named no device: the first device of the kind that is reset is taken for it
            return True
        if event.component in finding.components:
            return True
        return on_node and any(component.kind in of for component in finding.components)

    def _describe_evidence(self, event: Event, evidence: Evidence) -> str:
        if evidence is Evidence.REBOOT:
            return f"the node was rebooted (boot {event.boot_id[:8]})"
        if evidence is Evidence.DIAGNOSTIC:
            return f"a level {event.fields.get('level')} diagnostic passed"
        return f"{event.code}: {self._state.catalog.find_rule(event.code).title}"

    def _note_boot(self, event: Event) -> list[Transition]:
        devices = self._state.devices
        others = (
            finding.boot_id for finding in self._state.findings if finding.boot_id != event.boot_id
        )
        former = devices.boot or next(others, "")
        if event.boot_id != devices.boot:
            devices.put_device(
                Device(component=NODE, uuid=event.boot_id, serial=former, reset_at=event.time)
            )
        return []

    # --- the device in a slot

    def _note_identity(self, event: Event) -> list[Transition]:
        """Note the identity of the device in a slot. If it is another one than before, the former
        one was removed, and a finding that only its replacement clears goes with it.
        """
        uuid, serial = _read_text(event, "uuid"), _read_text(event, "serial")
        if event.is_simulated or not (uuid or serial):
            return []
        devices, history = self._state.devices, self._state.history
        known, changes = devices.get_device(event.component), list[Transition]()
        another_uuid = known.uuid and uuid and known.uuid != uuid
        if another_uuid or (known.serial and serial and known.serial != serial):
            changes += self._remove_device(event, known)
            known = Device(component=event.component, placed_at=event.time)
        elif not known.identity:
            history.rename_device(event.component.name, uuid or serial)
        elif known.identity != (uuid or known.identity):
            history.rename_device(known.identity, uuid)  # only its serial number was known
        for former in devices.find_elsewhere(event.component, uuid, serial):
            # It was moved here; what replaced it there is not known yet.
            changes += self._remove_device(event, former)
            devices.put_device(Device(component=former.component, placed_at=event.time))
        met = replace(known, uuid=uuid or known.uuid, serial=serial or known.serial)
        if met != devices.get_device(event.component):
            devices.put_device(met)
        return changes + self._carry_findings(event, met.identity)

    def _remove_device(self, event: Event, device: Device) -> list[Transition]:
        changes = []
        for finding in self._state.findings.list_of_component(device.component):
            if finding.is_simulated or finding.last > event.time:
                continue
            if finding.action is Action.REPLACE_NODE and device.identity:
                self._state.history.add_mark(
                    device.identity,
                    event.time,
                    MarkKind.REMOVED,
                    finding.code,
                    device.component.name,
                )
            cause = f"the device in {device.component.name} was replaced by another"
            changes.append(
                self._state.findings.close_finding(
                    finding, event.time, cause, event.identity, resolved=True
                )
            )
        return changes

    def _carry_findings(self, event: Event, identity: str) -> list[Transition]:
        """Open the findings that the board had when it was removed from another slot."""
        changes = []
        removed = [
            mark
            for mark in self._state.history.list_marks(identity)
            if mark.kind is MarkKind.REMOVED and mark.detail != event.component.name
        ]
        for mark in removed:
            key = (event.component, mark.fault, False)
            resolved_at = self._state.findings.find_resolved_at(event.component, mark.fault)
            if key in self._state.findings or mark.time < resolved_at:
                continue
            rule = self._state.catalog.find_rule(mark.fault)
            carried = replace(rule.apply_to({}), action=Action.REPLACE_NODE)
            member = self._state.incidents.make_member(replace(event, code=mark.fault))
            begun = self._state.incidents.begin_incident(member, simulated=False)
            incident = self._correlation.add_member(begun, member)
            opened = life.open_finding(
                self._state.findings.take_id(), key, event, carried, incident.id
            )
            cause = f"{life.MOVED} {identity} was moved here from {mark.detail} with this open"
            # As an escalation as well: the entry may require less, and the requirement of the
            # history must outlast a new catalogue.
            requirement = Requirement(Action.REPLACE_NODE, carried.when, cause)
            # It has not been observed here yet.
            finding = replace(opened, confirmed_by="", quiet_s=None, escalation=requirement)
            self._state.findings.put_finding(finding)
            changes.append(
                Transition(
                    time=event.time,
                    finding=finding,
                    cause=cause,
                    event=event.identity,
                    opened=True,
                )
            )
        return changes

    def _note_replacement(self, event: Event) -> list[Transition]:
        """Note that another device is in the slot. If its identity is unknown, the history of the
        slot is kept under a name of its own.
        """
        if event.is_simulated:
            return []
        name, devices = event.component.name, self._state.devices
        if devices.identify(event.component) == name:
            self._state.history.rename_device(name, f"{name} until {event.time:.0f}")
        uuid, serial = _read_text(event, "uuid"), _read_text(event, "serial")
        devices.put_device(
            Device(
                component=event.component,
                uuid=uuid,
                serial=serial,
                reset_at=event.time,
                placed_at=event.time,
            )
        )
        return []

    # --- decisions of a person

    def _clear_by_person(self, event: Event) -> list[Transition]:
        finding = self._find_named(event)
        if finding is None:
            return []
        cause = f"{life.BY_PERSON} {event.fields.get('by')}: {event.fields.get('reason')}"
        return [
            self._state.findings.close_finding(
                finding, event.time, cause, event.identity, resolved=True
            )
        ]

    def _begin_remedy(self, event: Event) -> list[Transition]:
        finding = self._find_named(event)
        if finding is None:
            return []
        begun = replace(finding, state=FindingState.IN_REMEDY, remedy_at=event.time)
        self._state.findings.put_finding(begun)
        cause = f"remedy begun by {event.fields.get('by')}: {event.fields.get('reason')}"
        return [Transition(time=event.time, finding=begun, cause=cause, event=event.identity)]

    def _find_named(self, event: Event) -> Finding | None:
        """The open finding that the event names; that of the node, if it stands for the device."""
        fields, findings = event.fields, self._state.findings
        drill = event.is_simulated or fields.get("drill") is True
        code = str(fields.get("code"))
        found = findings.get_finding((event.component, code, drill))
        if found is None:
            found = findings.get_finding((NODE, code, drill))
        return found if found is not None and event.component in found.components else None

    # --- clocks, sources, work

    def _step_clock(self, event: Event) -> list[Transition]:
        """Shift all past times after a step of the clock, so that quiet periods and windows keep
        their length.
        """
        seconds = event.fields.get("seconds")
        if not isinstance(seconds, (int, float)):
            return []
        changes = []
        for finding in self._state.findings:
            shifted = life.shift_finding(finding, seconds)
            self._state.findings.put_finding(shifted)
            changes.append(
                Transition(time=event.time, finding=shifted, cause="", event=event.identity)
            )
        self._state.findings.shift_resolved(seconds)
        self._state.devices.shift_times(seconds)
        self._state.incidents.shift_times(seconds)
        self._state.history.shift_times(seconds)
        return changes

    def _restart_quiet(self, event: Event) -> list[Transition]:
        """Restart the quiet period of a source's findings when it recovers: while it failed, it
        could not have observed them.
        """
        if event.fields.get("recovered") is not True:
            return []
        changes = []
        for finding in self._state.findings:
            if finding.source == event.component.id:
                heard = replace(finding, read_since=event.time)
                self._state.findings.put_finding(heard)
                changes.append(
                    Transition(time=event.time, finding=heard, cause="", event=event.identity)
                )
        return changes

    def _note_dead_job(self, event: Event) -> list[Transition]:
        self._escalation.note_dead_job(event)
        return []

    def _note_failed_diagnostic(self, event: Event) -> list[Transition]:
        self._escalation.note_failed_diagnostic(event)
        return []


def _read_text(event: Event, name: str) -> str:
    value = event.fields.get(name)
    return value if isinstance(value, str) else ""
