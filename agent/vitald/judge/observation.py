"""
What a source observes, compared with what is open. Nothing here changes a finding: a difference
becomes an event, so that a replay has the same result.
"""

from __future__ import annotations

from collections.abc import Collection

from vitald.judge.confirmation import is_confirmable_by
from vitald.judge.correlation import is_suppressed
from vitald.judge.driver import has_recommendation
from vitald.judge.own_finding import is_ignored
from vitald.judge.shared_cause import find_shared_finding
from vitald.judge.state import JudgeState
from vitald.model.component import Component
from vitald.model.event import DOUBTED, UNDATED, Event
from vitald.model.finding import Finding, Incident
from vitald.model.words import Action


def accounts_for(state: JudgeState, event: Event) -> bool:
    """Whether a state that is observed needs no event: its finding is open, or suppressed, or it
    requires nothing.
    """
    rule = state.catalog.find_rule(event.code)
    key = (event.component, event.code, event.is_simulated)
    if key in state.findings or state.findings.is_full:
        return True
    if find_shared_finding(state, event) is not None:
        return True
    ruling = rule.apply_to(event.fields)
    if ruling.action is Action.NONE or is_ignored(state, event, ruling, None):
        return True
    if rule.driver_recommendation and has_recommendation(state, event):
        return True
    causes = [
        incident
        for incident in _list_incidents_with_findings(state, event)
        if is_suppressed(state, incident, event, ruling.requirement)
    ]
    confirmable = (is_confirmable_by(state, incident, event, ruling) for incident in causes)
    return bool(causes) and not any(confirmable)


def _list_incidents_with_findings(state: JudgeState, event: Event) -> list[Incident]:
    """Incidents with an open finding, real or of a drill like the event."""
    incidents = map(state.incidents.get_incident, state.findings.incidents)
    return [
        incident
        for incident in incidents
        if incident is not None and incident.simulated is event.is_simulated
    ]


def find_contradicted(
    state: JudgeState, source: str, calm: Collection[tuple[Component, str]]
) -> list[Finding]:
    """Open findings of a source that it currently observes not to hold.

    `calm`: the codes that are observed not to hold, by component.
    """
    return [
        finding
        for finding in state.findings
        if finding.source == source
        and any((component, finding.code) in calm for component in finding.components)
    ]


def find_refuted(state: JudgeState, calm: Collection[tuple[Component, str]]) -> list[Finding]:
    """Open findings of lines without a date, or perhaps without a record of their own, whose
    fault a source observes not to hold, under any of its codes.
    """
    return [
        finding
        for finding in state.findings
        if (UNDATED in finding.fields or DOUBTED in finding.fields)
        and not finding.is_simulated
        and any(
            component == finding.component and _is_same_fault(state, code, finding)
            for component, code in calm
        )
        and not any(
            other.code != finding.code and _is_same_fault(state, other.code, finding)
            for other in state.findings.list_of_component(finding.component)
        )
    ]


def _is_same_fault(state: JudgeState, code: str, finding: Finding) -> bool:
    find_rule = state.catalog.find_rule
    return find_rule(code).fault == find_rule(finding.code).fault
