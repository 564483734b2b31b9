"""
Shared causes: what all devices of a kind fail with at once is one finding of the node.

Devices do not break together. Where all of them fail to come up, or are gone, the cause is what
they share: the driver, its firmware, the board or its power. A person looks; no device climbs a
ladder of its own. The catalogue says of which entries that holds (`shared_cause`), and the event
which other devices of the kind are present (`siblings`).
"""

from __future__ import annotations

from dataclasses import replace

from vitald.catalog import Rule
from vitald.judge.state import JudgeState
from vitald.model import NODE, Action, Component, Event, Finding, Transition
from vitald.model.event import ALIKE, SIBLINGS

_AT_ONCE_S = 600.0  # between the first and the last: drivers bring devices up one after another


class SharedCause:
    """Finds events that are one more device of a shared cause."""

    def __init__(self, state: JudgeState) -> None:
        self._state = state

    def has_finding(self, event: Event) -> bool:
        """Whether a finding of the node stands for what the event reports of its device."""
        return self._find_finding(event.code, simulated=event.is_simulated) is not None

    def find_finding(self, event: Event, rule: Rule) -> list[Finding]:
        """The finding of the node that ends when one device is well again."""
        found = self._find_finding(event.code, simulated=event.is_simulated)
        return [found] if rule.shared_cause and found is not None else []

    def lift_event(self, event: Event, rule: Rule) -> tuple[Event, list[Transition]]:
        """The event as one of the node, if all devices of its kind fail alike; and the ends of
        their own findings, for which that of the node stands.
        """
        if not rule.shared_cause or event.component == NODE or event.is_hearsay:
            return event, []
        if rule.apply_to(event.fields).action is Action.NONE:
            return event, []
        alike = self._list_alike(event)
        if not self.has_finding(event) and not self._are_all(event, alike):
            return event, []
        fields = {**event.fields, ALIKE: event.component.kind.value}
        cause = f"all devices of the kind fail alike: {event.code} of the node stands for them"
        ends = [
            self._state.findings.close_finding(finding, event.time, cause, event.identity)
            for finding in alike
        ]
        return replace(event, component=NODE, fields=fields), ends

    def _find_finding(self, code: str, *, simulated: bool) -> Finding | None:
        found = self._state.findings.get_finding((NODE, code, simulated, False))
        return found if found is not None and ALIKE in found.fields else None

    def _list_alike(self, event: Event) -> list[Finding]:
        """The findings of such entries of devices of the kind that began at the same time."""
        return [
            finding
            for finding in self._state.findings
            if finding.component.kind is event.component.kind
            and finding.is_simulated == event.is_simulated
            and not (finding.on_trial or finding.is_hearsay)
            and abs(finding.since - event.time) <= _AT_ONCE_S
            and self._state.catalog.find_rule(finding.code).shared_cause
        ]

    def _are_all(self, event: Event, alike: list[Finding]) -> bool:
        present = event.fields.get(SIBLINGS)
        if not isinstance(present, str):
            return False  # unknown, as for a saved log
        failing = {event.component, *(finding.component for finding in alike)}
        names = {Component(event.component.kind, name) for name in present.split(",") if name}
        return len(failing) > 1 and names <= failing
