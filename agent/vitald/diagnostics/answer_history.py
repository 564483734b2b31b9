"""
Which faults the answers of a watch had within the last hour.

A fault that only one of them had, between answers without it, was never seen a second time. Nothing
is validated for it: a node that is busy for weeks would be out of service for one sample.

Not kept across restarts: a fault of before counts as one that was seen again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from vitald.model import Component, Finding

_HOUR_S = 3600.0
_EQUAL_S = 0.001  # an answer and the finding that it opened have the same time

FaultPlace = tuple[Component, str]  # the component and the code


@dataclass(frozen=True, slots=True)
class _Sighting:
    """A fault: the times of the first and the last of its answers, and how many there were."""

    first: float
    last: float
    answers: int = 1


@dataclass(slots=True)
class AnswerHistory:
    """The answers of all watches. Times are those of the runs."""

    _sightings: dict[FaultPlace, _Sighting] = field(default_factory=dict)

    def note_answer(self, faults: Iterable[FaultPlace], ended: float) -> None:
        """Call it for each answer with a verdict, whether it is recorded or not."""
        self._sightings = {
            place: seen
            for place, seen in self._sightings.items()
            if abs(ended - seen.last) <= _HOUR_S
        }
        for place in set(faults):
            seen = self._sightings.get(place)
            self._sightings[place] = (
                _Sighting(ended, ended)
                if seen is None
                else _Sighting(seen.first, ended, seen.answers + 1)
            )

    def was_seen_once(self, finding: Finding) -> bool:
        """Whether one answer only had the fault: the one that opened the finding."""
        seen = self._sightings.get((finding.component, finding.code))
        if seen is None or seen.answers > 1:
            return False
        return abs(seen.first - finding.since) <= _EQUAL_S
