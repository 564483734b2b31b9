"""
The driver's recommended recovery action ("reset GPU"), which replaces the catalogue's requirement.

It does so in both directions, and the finding states the difference. The recommendation applies to
resets and reboots only: the driver knows nothing of jobs, spare parts, peers or other nodes.
"""

from __future__ import annotations

from dataclasses import replace

from vitald.catalog import Ruling
from vitald.judge import lifecycle
from vitald.judge.state import Evaluation, JudgeState
from vitald.model.event import Event
from vitald.model.finding import Finding, Requirement
from vitald.model.words import Action

_REMEDIES = (Action.RESET_DEVICE, Action.REBOOT_NODE)


def has_recommendation(state: JudgeState, event: Event) -> bool:
    """Whether a finding with the driver's recommendation for the event's device is open."""
    return any(
        finding.is_simulated is event.is_simulated
        and state.catalog.find_rule(finding.code).driver_recommendation
        for finding in state.findings.list_of_component(event.component)
    )


def apply_recommendation(evaluation: Evaluation) -> None:
    """Apply the recommendation in the event to the findings of its device."""
    state, event, ruling = evaluation.state, evaluation.event, evaluation.ruling
    if not evaluation.rule.driver_recommendation or event.is_hearsay:
        return
    for finding in state.findings.list_of_component(event.component):
        if finding.is_simulated != event.is_simulated or finding.last > event.time:
            continue
        if not state.catalog.find_rule(finding.code).driver_recommendation:
            _replace_requirement(evaluation, finding)
        elif finding.code != event.code:
            # The driver has one value per device: this one replaces the former.
            cause = f"{event.code}: {ruling.title}"
            evaluation.close_finding(finding, cause, resolved=True)


def _replace_requirement(evaluation: Evaluation, finding: Finding) -> None:
    event, ruling = evaluation.event, evaluation.ruling
    recommended = _find_difference(finding, event, ruling)
    if recommended == finding.driver:
        return
    changed = lifecycle.limit_confirmation(finding, replace(finding, driver=recommended), event)
    if event.vouched_by and finding.confirmed_by:
        by = f"{event.source} ({event.code})"
        changed = lifecycle.confirm_finding(changed, by, ruling.action, same_fault=False)
    evaluation.replace_finding(finding, changed)


def _find_difference(finding: Finding, event: Event, ruling: Ruling) -> Requirement | None:
    """The driver's requirement, if it concerns a reset or a reboot and differs from the
    catalogue's.
    """
    requirement = finding.catalog_requirement
    action = ruling.action if ruling.action is not Action.NONE else Action.OBSERVE
    if ruling.action not in (Action.NONE, *_REMEDIES) or requirement.action not in _REMEDIES:
        return None
    if (requirement.action, requirement.when) == (action, ruling.when):
        return None
    origin = f"recommended by the driver ({event.code}: {ruling.title})"
    because = f"{origin}; the catalogue says {requirement.action.value} ({requirement.when.value})"
    return Requirement(action, ruling.when, because)
