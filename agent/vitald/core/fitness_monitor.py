"""
Notices when findings make the node unfit and when it is fit again, and makes an event of each.

The event has the times of detection and of the stored verdict, which no other row of the ledger
has. Real faults and drills are followed apart: a fault during a drill has its own response.

Owns     when a response begins and ends.
Refuses  judging: findings say whether they make the node unfit. Sources that are not read make it
         unknown, which is no fault and begins nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vitald.core.daemon_events import DaemonEvents
from vitald.core.responses import Responses, is_validation
from vitald.model import NODE, Event, Fields, Finding, Transition
from vitald.model.codes import FIT, UNFIT

_KINDS = (False, True)  # real, simulated


class FitnessMonitor:
    """Compares the published findings with those before. Does nothing until it is started."""

    def __init__(self, daemon_events: DaemonEvents) -> None:
        self._daemon_events = daemon_events
        self._is_unfit: dict[bool, bool] = {}

    def start(self, findings: Sequence[Finding], responses: Responses) -> None:
        """Begin with the restored findings and responses. A node that a fault made unfit when the
        daemon had no record of it has no response: nothing is known of its times. A validation
        alone is no such fault: one that comes after the start has its response.
        """
        for kind in _KINDS:
            response = responses.get_latest(simulated=kind)
            is_open = response is not None and response.fit is None
            faults = _drop_validations(_find_unfit(findings, simulated=kind))
            self._is_unfit[kind] = is_open or bool(faults)

    def compare(
        self,
        findings: Sequence[Finding],
        transitions: Sequence[Transition],
        detected: float,
        stored: float,
    ) -> list[Event]:
        """The events of what changed. `detected`: when the transitions' events were read; `stored`:
        when the verdict was.
        """
        events = []
        for kind in self._is_unfit:
            unfit = _find_unfit(findings, simulated=kind)
            faults = _drop_validations(unfit)
            if faults and not self._is_unfit[kind]:
                self._is_unfit[kind] = True
                first = _find_first(faults, transitions)
                events.append(self._make_unfit_event(first, detected, stored))
            elif not unfit and self._is_unfit[kind]:
                self._is_unfit[kind] = False
                events.append(self._make_fit_event(transitions, stored, simulated=kind))
        return events

    def _make_unfit_event(self, first: Transition, detected: float, stored: float) -> Event:
        finding = first.finding
        seconds = round(max(0.0, stored - first.time), 6)
        fields: Fields = {
            "finding": finding.id,
            "incident": finding.incident,
            "component": finding.component.name,
            "code": finding.code,
            "detected": round(min(max(0.0, detected - first.time), seconds), 6),
            "seconds": seconds,
        }
        raw = f"the node is unfit: {finding.component.name}: {finding.title} ({finding.code})"
        event = self._daemon_events.make_event(UNFIT, fields, NODE, raw, stored)
        return replace(event, simulated_until=finding.simulated_until)

    def _make_fit_event(
        self, transitions: Sequence[Transition], stored: float, *, simulated: bool
    ) -> Event:
        # The last finding to go; none after a start, when it went before.
        changes = (each for each in transitions if each.finding.is_simulated is simulated)
        causes = [f": {each.finding.code}: {each.cause}" for each in changes if each.cause]
        raw = f"the node is fit again{causes[-1] if causes else ''}"
        event = self._daemon_events.make_event(FIT, {}, NODE, raw, stored)
        return replace(event, simulated_until=stored if simulated else None)


def _find_unfit(findings: Sequence[Finding], *, simulated: bool) -> list[Finding]:
    return [
        finding
        for finding in findings
        if finding.is_simulated is simulated and finding.makes_unfit(between_jobs=False)
    ]


def _drop_validations(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if not is_validation(finding)]


def _find_first(faults: Sequence[Finding], transitions: Sequence[Transition]) -> Transition:
    """The transition with which the first of `faults` made the node unfit."""
    ids = {finding.id for finding in faults}
    changes = [
        each
        for each in transitions
        if each.finding.id in ids and each.cause and each.finding.makes_unfit(between_jobs=False)
    ]
    if changes:
        return min(changes, key=lambda change: change.time)
    # No change of its own: an acceptance or a policy ended.
    newest = max(faults, key=lambda finding: finding.last)
    return Transition(time=newest.last, finding=newest, cause="")
