"""
Shared causes: a fault that all devices of a kind have at once is one finding of the node.

If all of them fail to come up, or are gone, the cause is what they share: the driver, its firmware,
the board or its power. A person must inspect it, and no device climbs an escalation policy of its
own. The catalogue says for which entries that holds (`shared_cause`), the event which other devices
of the kind are present (`siblings`), and the finding which devices it stands for (`alike`).

Work that spans devices fails on all of them if one worker fails, which may be on another node.
Such entries (`of_peers`) become one finding of the node as soon as two devices have it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from vitald.judge.state import Evaluation, JudgeState
from vitald.model.component import NODE, Component
from vitald.model.event import ALIKE, SIBLINGS, Event
from vitald.model.finding import Finding
from vitald.model.words import Action

_AT_ONCE_S = 600.0  # between the first and the last: drivers bring devices up one after another


def find_shared_finding(state: JudgeState, event: Event) -> Finding | None:
    """The finding of the node that stands for what the event reports of its device."""
    found = state.findings.get_finding((NODE, event.code, event.is_simulated))
    return found if found is not None and event.component in found.components[1:] else None


def lift_event(evaluation: Evaluation) -> None:
    """Make the event one of the node if all devices of its kind fail alike, and close their own
    findings, for which that of the node stands.
    """
    event, rule = evaluation.event, evaluation.rule
    if not (rule.shared_cause or rule.of_peers) or event.component == NODE or event.is_hearsay:
        return
    if rule.apply_to(event.fields).action is Action.NONE:
        return
    known = find_shared_finding(evaluation.state, event)
    if known is not None:
        _lift(evaluation, known.components[1:])
        return
    alike = _list_alike(evaluation)
    failing = {event.component}.union(*(finding.components for finding in alike)) - {NODE}
    if not (len(failing) > 1 if rule.of_peers else _are_all(event, failing)):
        return
    which = "several" if rule.of_peers else "all"
    cause = f"{which} devices of the kind fail alike: {event.code} of the node stands for them"
    for finding in alike:
        if finding.component != NODE:
            evaluation.close_finding(finding, cause)
    _lift(evaluation, failing)


def _list_alike(evaluation: Evaluation) -> list[Finding]:
    """The findings about devices of the kind that began at the same time: of any entry with a
    shared cause, or of this one, if it is of peers.
    """
    state, event, rule = evaluation.state, evaluation.event, evaluation.rule
    kind = event.component.kind
    return [
        finding
        for finding in state.findings
        if any(component.kind is kind for component in finding.components)
        and finding.is_simulated == event.is_simulated
        and not finding.is_hearsay
        and abs(finding.since - event.time) <= _AT_ONCE_S
        and (
            finding.code == event.code
            if rule.of_peers
            else state.catalog.find_rule(finding.code).shared_cause
        )
    ]


def _are_all(event: Event, failing: Collection[Component]) -> bool:
    present = event.fields.get(SIBLINGS)
    if not isinstance(present, str):
        return False  # unknown, as for a saved log
    siblings = {Component(event.component.kind, id_) for id_ in present.split(",") if id_}
    return len(failing) > 1 and siblings <= set(failing)


def _lift(evaluation: Evaluation, devices: Iterable[Component]) -> None:
    names = sorted(device.name for device in devices)
    fields = {**evaluation.event.fields, ALIKE: ",".join(names)}
    evaluation.set_event(replace(evaluation.event, component=NODE, fields=fields))


def remove_device(finding: Finding, device: Component) -> Finding | None:
    """The finding without one of the devices that it stands for; None if it stands for no other,
    or not for this one.
    """
    names = [other.name for other in finding.components[1:] if other != device]
    if not names or device not in finding.components[1:]:
        return None
    return replace(finding, fields={**finding.fields, ALIKE: ",".join(names)})
