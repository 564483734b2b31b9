"""
How long each step after a fault took: for the last incident that made the node unfit, the seconds
from its source's own time of the fault.

Kept in memory. After a restart an incident that is still open is known by its finding, without the
steps that came before.

Owns     when an incident begins and which steps it has reached. Real ones and drills are followed
         apart.
Refuses  judging: findings say whether they make the node unfit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from vitald.core.publisher_reports import SinkReport
from vitald.model.finding import Finding, Transition
from vitald.publish.kubernetes.settings import TAINT_SINK


class Step(Enum):
    """In the order in which they come."""

    DETECTED = "detected"  # vitald had read the fault
    UNFIT = "unfit"  # the verdict was stored and could be read
    DRAINED = "drained"  # a scheduler gives the node no more work
    REMEDIED = "remedied"  # nothing makes the node unfit any more
    BACK = "back"  # a scheduler gives the node work again, or never stopped


@dataclass(slots=True)
class _Incident:
    """Times in seconds since the epoch. `began`: by the source of the fault."""

    began: float
    reached: dict[Step, float] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return Step.REMEDIED in self.reached


class IncidentSteps:
    """The last incident, and the last drill."""

    def __init__(self) -> None:
        self._incidents: dict[bool, _Incident] = {}  # by whether it is simulated

    def compare_findings(
        self,
        findings: Sequence[Finding],
        transitions: Sequence[Transition],
        read_at: float,
        now: float,
    ) -> None:
        """Call it with the findings that are published now. `read_at`: when what led to the
        transitions was read.
        """
        for is_simulated in (False, True):
            is_unfit = any(
                finding.is_simulated is is_simulated and finding.makes_unfit(between_jobs=False)
                for finding in findings
            )
            incident = self._incidents.get(is_simulated)
            is_open = incident is not None and not incident.is_over
            if is_unfit and not is_open:
                self._incidents[is_simulated] = _begin_incident(
                    [each for each in findings if each.is_simulated is is_simulated],
                    transitions,
                    read_at,
                    now,
                )
            elif incident is not None and is_open and not is_unfit:
                incident.reached[Step.REMEDIED] = now
                if Step.DRAINED not in incident.reached:
                    incident.reached[Step.BACK] = now

    def note_drained(self, at: float) -> None:
        """A scheduler gives the node no more work."""
        for incident in self._incidents.values():
            if not incident.is_over:
                incident.reached.setdefault(Step.DRAINED, at)

    def note_in_service(self, at: float) -> None:
        """A scheduler gives the node work again. A drain from before a restart is not known: then
        this is later than what counted as the end.
        """
        for incident in self._incidents.values():
            if incident.is_over:
                incident.reached[Step.BACK] = at

    def note_publication(self, sinks: Sequence[SinkReport]) -> None:
        """The publisher's taint keeps pods off the node, or was removed: its sink is up to date."""
        for sink in sinks:
            if sink.name == TAINT_SINK and sink.up and sink.last_success is not None:
                self._note_taint(sink.last_success)

    def _note_taint(self, written_at: float) -> None:
        for incident in self._incidents.values():
            reached = incident.reached
            if not incident.is_over and written_at >= reached.get(Step.UNFIT, 0.0):
                reached.setdefault(Step.DRAINED, written_at)
            elif incident.is_over and written_at >= reached[Step.REMEDIED]:
                reached.setdefault(Step.BACK, written_at)

    def list_seconds(self) -> Iterator[tuple[bool, Step, float]]:
        """Whether it is a drill, each step that was reached, and after how many seconds. None is
        shorter than the one before it, which clocks of different origin could make it.
        """
        for is_simulated, incident in self._incidents.items():
            least = 0.0
            for step in Step:
                if step in incident.reached:
                    least = max(least, incident.reached[step] - incident.began)
                    yield is_simulated, step, least


def _begin_incident(
    findings: Sequence[Finding], transitions: Sequence[Transition], read_at: float, now: float
) -> _Incident:
    """What made the node unfit: a change, or after a start what was found before."""
    unfit = {each.id: each for each in findings if each.makes_unfit(between_jobs=False)}
    times = [
        change.time
        for change in transitions
        if change.cause and change.finding.id in unfit and _makes_unfit(change)
    ]
    if not times:
        return _Incident(min(finding.since for finding in unfit.values()))
    began = min(times)
    return _Incident(began, {Step.DETECTED: max(began, read_at), Step.UNFIT: now})


def _makes_unfit(change: Transition) -> bool:
    return change.finding.makes_unfit(between_jobs=False)
