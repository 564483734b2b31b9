"""
Escalation by a device's history, and the marks that are written to that history.

A fault that comes back after its remedy, or occurs in many processes, requires more than its entry
(`escalation.toml`). The marks of faults, remedies and failed jobs also make up the lemon score.
`device_history` keeps the marks.
"""

from __future__ import annotations

from dataclasses import replace

from vitald.catalog import Evidence, FaultClass, Rule
from vitald.catalog.escalation import EscalationStep
from vitald.judge.acceptance import is_accepted
from vitald.judge.device_history import format_process, list_location_fields
from vitald.judge.state import Evaluation, JudgeState
from vitald.model.component import NODE, MarkKind
from vitald.model.event import DIAGNOSTIC_FAILED, SETTLING, TOO_MANY, Event, Fields
from vitald.model.finding import Finding, Incident, Requirement
from vitald.model.words import Action

# Classes of faults that count in a device's history: not those of applications.
_OF_THE_DEVICE = (FaultClass.HARDWARE, FaultClass.DRIVER, FaultClass.FABRIC, FaultClass.THERMAL)
_REMEDIES = (Action.RESET_DEVICE, Action.REBOOT_NODE)


def apply_history(evaluation: Evaluation) -> None:
    """Note the process of the event, and escalate its finding if the device's history says so."""
    state, event, rule = evaluation.state, evaluation.event, evaluation.rule
    finding, current = evaluation.finding, evaluation.current
    if finding is None:
        return
    # Another case, perhaps with another policy
    if current is not None and finding.fields is not current.fields:
        finding = reevaluate_finding(state, finding, rule, event.time)
    is_new_process = _note_process(state, finding, rule, event)
    is_more = current is None or finding.count > current.count or finding.base != current.base
    if is_new_process or is_more:
        finding = _escalate_finding(state, finding, rule, event.fields, event.time)
    evaluation.finding = finding


def _escalate_finding(
    state: JudgeState, finding: Finding, rule: Rule, fields: Fields, time: float
) -> Finding:
    """The finding with the requirement of its escalation policy, if a step of it is reached by
    an event with these fields at this time.
    """
    if finding.is_simulated or finding.is_hearsay or finding.code == TOO_MANY:
        return finding
    steps = state.catalog.find_policy(rule, finding.fields).steps
    known = finding.escalation
    if known is not None and not any(step.requirement.supersedes(known) for step in steps):
        return finding
    requirement = state.history.find_escalation(
        state.devices.identify(finding.component),
        finding.component,
        rule.fault,
        fields,
        time,
        steps,
        times=finding.count,
    )
    if requirement is None or (known is not None and not requirement.supersedes(known)):
        return finding
    return replace(finding, escalation=requirement)


def reevaluate_finding(state: JudgeState, finding: Finding, rule: Rule, now: float) -> Finding:
    """The finding after its rule changed: an escalation that its policy has no step for ends,
    and the history counts by the steps that there are.
    """
    known = finding.escalation
    steps = state.catalog.find_policy(rule, finding.fields).steps
    if known is None or any(_is_step(step, known) for step in steps):
        return finding
    return _escalate_finding(state, replace(finding, escalation=None), rule, finding.fields, now)


# --- marks


def note_fault(evaluation: Evaluation) -> None:
    """Add a mark for the incident of a finding that was opened, or is certain only now, and one
    more if a remedy failed.
    """
    state, event, rule = evaluation.state, evaluation.event, evaluation.rule
    finding, current = evaluation.finding, evaluation.current
    if finding is None or not (current is None or _is_certain_only_now(finding, current)):
        return
    if finding.is_simulated or finding.is_hearsay:
        return
    if rule.fault_class not in _OF_THE_DEVICE or SETTLING in finding.fields:
        return
    if "again" in event.fields:
        # The same fault, which a person cleared while it persisted: no second mark
        return
    history = state.history
    device, fault = state.devices.identify(finding.component), rule.fault
    steps = state.catalog.find_policy(rule, finding.fields).steps
    window_s = max((step.within_s for step in steps), default=0.0)
    incident_name = f"incident {finding.incident}"
    if history.find_failed_remedies(device, fault, event.time, window_s):
        history.add_mark(device, event.time, MarkKind.NOT_HELD, fault, incident_name)
    incident = state.incidents.get_incident(finding.incident)
    if incident is None or event.code == DIAGNOSTIC_FAILED:
        return
    if (incident.root.code, incident.root.component) != (finding.code, finding.component):
        return
    history.add_mark(device, event.time, MarkKind.FAULT, fault, incident_name)
    for death in tuple(history.list_marks(NODE.name)):
        near = 0 <= event.time - death.time <= state.catalog.lemon.job_before_s
        if death.kind is MarkKind.JOB_DIED and near:
            history.add_mark(
                device, event.time, MarkKind.JOB_DIED, fault, f"{incident_name} {death.detail}"
            )


def _is_certain_only_now(finding: Finding, before: Finding) -> bool:
    was_settling = SETTLING in before.fields and SETTLING not in finding.fields
    return was_settling or (before.is_hearsay and not finding.is_hearsay)


def _note_process(state: JudgeState, finding: Finding, rule: Rule, event: Event) -> bool:
    """Add a mark for the process. Returns whether it is new for this fault on this device."""
    if finding.is_simulated or event.is_hearsay or event.follows is not None:
        return False
    steps = state.catalog.find_policy(rule, finding.fields).steps
    if not any(step.processes for step in steps):
        return False
    places = list_location_fields(state.catalog, rule.code)
    who = format_process(event.fields, event.boot_id, places)
    device, fault = state.devices.identify(finding.component), rule.fault
    return bool(who) and state.history.add_mark(device, event.time, MarkKind.PROCESS, fault, who)


def note_dead_work(state: JudgeState, incident: Incident, event: Event) -> None:
    """Records one job failure per incident against the faulty device."""
    rule = state.catalog.find_rule(incident.root.code)
    if rule.fault_class not in _OF_THE_DEVICE or event.is_simulated:
        return
    if event.fields.get("pid") is not None:
        device, detail = state.devices.identify(incident.root.component), f"incident {incident.id}"
        state.history.add_mark(device, event.time, MarkKind.JOB_DIED, rule.fault, detail)


def note_remedy(state: JudgeState, finding: Finding, evidence: Evidence, time: float) -> None:
    """Add a mark for a remedy that an open finding required.

    A reboot for another reason, or while the fault is accepted, says nothing about the device.
    """
    if evidence not in (Evidence.REBOOT, Evidence.DEVICE_RESET) or finding.action not in _REMEDIES:
        return
    if finding.is_simulated or finding.is_hearsay:
        return
    if evidence is Evidence.REBOOT and is_accepted(finding):
        return
    rule = state.catalog.find_rule(finding.code)
    # A reset may close a finding that required a reboot: only what was done can have failed.
    done = Action.RESET_DEVICE if evidence is Evidence.DEVICE_RESET else finding.action
    device, fault = state.devices.identify(finding.component), rule.fault
    state.history.add_mark(device, time, MarkKind.REMEDY, fault, done.value)


def note_dead_job(evaluation: Evaluation) -> None:
    """Add the failed job to the history of devices with a fault shortly before or after it.

    Faults that follow are marked when they are noted.
    """
    state, event = evaluation.state, evaluation.event
    history, devices, lemon = state.history, state.devices, state.catalog.lemon
    job = f"job {event.fields.get('job') or event.identity}"
    history.add_mark(NODE.name, event.time, MarkKind.JOB_DIED, event.code, job)
    for device in history.devices:
        if device == NODE.name:
            continue
        if event.component != NODE and device != devices.identify(event.component):
            continue
        for mark in tuple(history.list_marks(device)):
            near = -lemon.job_before_s <= event.time - mark.time <= lemon.job_after_s
            if mark.kind is MarkKind.FAULT and near:
                history.add_mark(
                    device, event.time, MarkKind.JOB_DIED, mark.fault, f"{mark.detail} {job}"
                )


def note_failed_diagnostic(evaluation: Evaluation) -> None:
    """Add the failed test to the device's history."""
    state, event = evaluation.state, evaluation.event
    if not event.is_simulated:
        device, test = state.devices.identify(event.component), event.fields.get("test")
        state.history.add_mark(
            device, event.time, MarkKind.DIAGNOSTIC_FAILED, event.code, str(test or "")
        )


def _is_step(step: EscalationStep, requirement: Requirement) -> bool:
    """Whether the requirement is this step's, whatever its reason is."""
    return replace(requirement, reason="") == step.requirement
