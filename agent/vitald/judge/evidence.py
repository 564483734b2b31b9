"""
Evidence: what an event proves beyond its own fault, such as a boot, a reset, a replaced board, a
passed diagnostic, or the decision of a person.

Evidence closes findings, and identifies the device in a slot. What only some codes prove has one
function for each of them; the table `_OF_CODE` lists these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from vitald.catalog import Evidence
from vitald.judge import lifecycle
from vitald.judge.acceptance import accept_finding, keep_over_boot
from vitald.judge.correlation import add_member
from vitald.judge.escalation import note_dead_job, note_failed_diagnostic, note_remedy
from vitald.judge.expiry import find_next_due
from vitald.judge.shared_cause import remove_device
from vitald.judge.state import Evaluation
from vitald.model.component import NODE, Component, Device, MarkKind
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
    Event,
)
from vitald.model.finding import Finding, FindingState, Requirement
from vitald.model.words import Action

_LOAD_S = 30.0  # time to load a driver, from its first probe to its banner


def apply_evidence(evaluation: Evaluation) -> None:
    """Apply what the event proves beyond its own fault. Hearsay proves nothing."""
    if evaluation.event.is_hearsay:
        return
    apply_code = _OF_CODE.get(evaluation.event.code)
    if apply_code is not None:
        apply_code(evaluation)
    if evaluation.rule.evidence is not None:
        _close_cleared(evaluation, evaluation.rule.evidence)


# --- remedies


def _close_cleared(evaluation: Evaluation, evidence: Evidence) -> None:
    """Close the findings that the evidence clears, and note it as their remedy."""
    state, event = evaluation.state, evaluation.event
    level = event.fields.get("level")
    if evidence is Evidence.DEVICE_RESET and not event.is_simulated:
        kinds = [Component(kind) for kind in evaluation.rule.of]
        for component in kinds if event.component == NODE else [event.component]:
            state.devices.note_reset(component, event.time)
    for finding in state.findings:
        if finding.is_simulated != event.is_simulated:
            continue
        if not _concerns(evaluation, evidence, finding):
            continue
        clears = lifecycle.find_clears(finding, state.catalog)
        if not clears.is_cleared_by(evidence, level if isinstance(level, int) else 0):
            continue
        cause = _describe_evidence(evaluation, evidence)
        if (remaining := remove_device(finding, event.component)) is not None:
            rule = state.catalog.find_rule(finding.code)
            remaining = replace(remaining, title=rule.apply_to(remaining.fields).title)
            evaluation.put_finding(remaining, f"{event.component.name}: {cause}")
            continue
        note_remedy(state, finding, evidence, event.time)
        if evidence is Evidence.REBOOT:
            keep_over_boot(state, finding, event.time)
        # Lines of the former boot are recognised by its id; lines of this one may be older than
        # the daemon.
        resolved = evidence is not Evidence.REBOOT
        evaluation.close_finding(finding, cause, resolved=resolved)


def _concerns(evaluation: Evaluation, evidence: Evidence, finding: Finding) -> bool:
    event, of = evaluation.event, evaluation.rule.of
    if evidence is Evidence.REBOOT:
        return finding.boot_id != event.boot_id
    if finding.last > event.time:
        return False
    rule, on_node = evaluation.state.catalog.find_rule(finding.code), event.component == NODE
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


def _describe_evidence(evaluation: Evaluation, evidence: Evidence) -> str:
    event = evaluation.event
    if evidence is Evidence.REBOOT:
        return f"the node was rebooted (boot {event.boot_id[:8]})"
    if evidence is Evidence.DIAGNOSTIC:
        return f"a level {event.fields.get('level')} diagnostic passed"
    return f"{event.code}: {evaluation.rule.title}"


def _note_boot(evaluation: Evaluation) -> None:
    state, event = evaluation.state, evaluation.event
    others = (finding.boot_id for finding in state.findings if finding.boot_id != event.boot_id)
    former = state.devices.boot or next(others, "")
    if event.boot_id != state.devices.boot:
        state.devices.put_device(
            Device(component=NODE, uuid=event.boot_id, serial=former, reset_at=event.time)
        )


# --- the device in a slot


def _note_identity(evaluation: Evaluation) -> None:
    """Note the identity of the device in a slot. If it is another one than before, the former one
    was removed, and a finding that only its replacement clears goes with it.
    """
    event = evaluation.event
    uuid, serial = _read_text(event, "uuid"), _read_text(event, "serial")
    if event.is_simulated or not (uuid or serial):
        return
    devices, history = evaluation.state.devices, evaluation.state.history
    known = devices.get_device(event.component)
    another_uuid = known.uuid and uuid and known.uuid != uuid
    if another_uuid or (known.serial and serial and known.serial != serial):
        _remove_device(evaluation, known)
        known = Device(component=event.component, placed_at=event.time)
    elif not known.identity:
        history.rename_device(event.component.name, uuid or serial)
    elif known.identity != (uuid or known.identity):
        history.rename_device(known.identity, uuid)  # only its serial number was known
    for former in devices.find_elsewhere(event.component, uuid, serial):
        # It was moved here; what replaced it there is not known yet.
        _remove_device(evaluation, former)
        devices.put_device(Device(component=former.component, placed_at=event.time))
    identified = replace(known, uuid=uuid or known.uuid, serial=serial or known.serial)
    if identified != devices.get_device(event.component):
        devices.put_device(identified)
    _carry_findings(evaluation, identified.identity)


def _remove_device(evaluation: Evaluation, device: Device) -> None:
    state, time = evaluation.state, evaluation.event.time
    for finding in state.findings.list_of_component(device.component):
        if finding.is_simulated or finding.last > time:
            continue
        slot = device.component.name
        if finding.action is Action.REPLACE_NODE and device.identity:
            state.history.add_mark(device.identity, time, MarkKind.REMOVED, finding.code, slot)
        cause = f"the device in {slot} was replaced by another"
        evaluation.close_finding(finding, cause, resolved=True)


def _carry_findings(evaluation: Evaluation, identity: str) -> None:
    """Open the findings that the board had when it was removed from another slot."""
    state, event = evaluation.state, evaluation.event
    removed = [
        mark
        for mark in state.history.list_marks(identity)
        if mark.kind is MarkKind.REMOVED and mark.detail != event.component.name
    ]
    for mark in removed:
        key = (event.component, mark.fault, False)
        resolved_at = state.findings.find_resolved_at(event.component, mark.fault)
        if key in state.findings or mark.time < resolved_at:
            continue
        carried = replace(
            state.catalog.find_rule(mark.fault).apply_to({}), action=Action.REPLACE_NODE
        )
        member = state.incidents.make_member(replace(event, code=mark.fault))
        begun = state.incidents.begin_incident(member, simulated=False)
        incident = add_member(state, begun, member)
        opened = lifecycle.open_finding(state.findings.take_id(), key, event, carried, incident.id)
        cause = f"{lifecycle.MOVED} {identity} was moved here from {mark.detail} with this open"
        # As an escalation as well: the entry may require less, and the requirement of the history
        # must outlast a new catalogue.
        requirement = Requirement(Action.REPLACE_NODE, carried.when, cause)
        # It has not been observed here yet.
        finding = replace(opened, confirmed_by="", quiet_s=None, escalation=requirement)
        evaluation.put_finding(finding, cause, opened=True)


def _note_replacement(evaluation: Evaluation) -> None:
    """Note that another device is in the slot. If its identity is unknown, the history of the slot
    is kept under a name of its own.
    """
    state, event = evaluation.state, evaluation.event
    if event.is_simulated:
        return
    name = event.component.name
    if state.devices.identify(event.component) == name:
        state.history.rename_device(name, f"{name} until {event.time:.0f}")
    state.devices.put_device(
        Device(
            component=event.component,
            uuid=_read_text(event, "uuid"),
            serial=_read_text(event, "serial"),
            reset_at=event.time,
            placed_at=event.time,
        )
    )


# --- decisions of a person


def _clear_by_person(evaluation: Evaluation) -> None:
    finding, fields = _find_named(evaluation), evaluation.event.fields
    if finding is not None:
        cause = f"{lifecycle.BY_PERSON} {fields.get('by')}: {fields.get('reason')}"
        evaluation.close_finding(finding, cause, resolved=True)


def _begin_remedy(evaluation: Evaluation) -> None:
    finding, event = _find_named(evaluation), evaluation.event
    if finding is not None:
        begun = replace(finding, state=FindingState.IN_REMEDY, remedy_at=event.time)
        cause = f"remedy begun by {event.fields.get('by')}: {event.fields.get('reason')}"
        evaluation.put_finding(begun, cause)


def _accept_finding(evaluation: Evaluation) -> None:
    finding = _find_named(evaluation)
    if finding is not None:
        accept_finding(evaluation, finding)


def _find_named(evaluation: Evaluation) -> Finding | None:
    """The open finding that the event names; that of the node, if it stands for the device."""
    event, findings = evaluation.event, evaluation.state.findings
    drill = event.is_simulated or event.fields.get("drill") is True
    code = str(event.fields.get("code"))
    found = findings.get_finding((event.component, code, drill))
    if found is None:
        found = findings.get_finding((NODE, code, drill))
    return found if found is not None and event.component in found.components else None


# --- clocks and sources


def _step_clock(evaluation: Evaluation) -> None:
    """Shift all past times after a step of the clock, so that quiet periods and windows keep their
    length.
    """
    state, seconds = evaluation.state, evaluation.event.fields.get("seconds")
    if not isinstance(seconds, (int, float)):
        return
    for finding in state.findings:
        evaluation.put_finding(lifecycle.shift_finding(finding, seconds), "")
    state.findings.shift_resolved(seconds)
    state.devices.shift_times(seconds)
    state.incidents.shift_times(seconds)
    state.history.shift_times(seconds)
    state.next_due = find_next_due(state)


def _restart_quiet(evaluation: Evaluation) -> None:
    """Restart the quiet period of a source's findings when it recovers: while it failed, it could
    not have observed them.
    """
    state, event = evaluation.state, evaluation.event
    if event.fields.get("recovered") is not True:
        return
    for finding in state.findings:
        if finding.source == event.component.id:
            evaluation.put_finding(replace(finding, read_since=event.time), "")


def _read_text(event: Event, name: str) -> str:
    value = event.fields.get(name)
    return value if isinstance(value, str) else ""


_OF_CODE: Mapping[str, Callable[[Evaluation], None]] = {
    BOOT: _note_boot,
    CLEARED: _clear_by_person,
    REMEDY_BEGUN: _begin_remedy,
    ACCEPTED: _accept_finding,
    CLOCK_STEPPED: _step_clock,
    SOURCE_FAILED: _restart_quiet,
    IDENTITY: _note_identity,
    REPLACED: _note_replacement,
    JOB_DIED: note_dead_job,
    DIAGNOSTIC_FAILED: note_failed_diagnostic,
}
