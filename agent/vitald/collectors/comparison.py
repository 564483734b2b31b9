"""
What the readings of one poll show of a threshold: that it is crossed, that it is not, or neither,
because a value is unknown.

Pure: it reads how much a counter grew, and remembers nothing. What a crossing changes about what
was reported before is up to `thresholds`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Union

from vitald.catalog.threshold import Comparison, Threshold, ThresholdGroup
from vitald.collectors.threshold_memory import ComponentMemory
from vitald.model.event import Value
from vitald.model.source import Readings, Sample
from vitald.model.words import ComponentKind
from vitald.text import join_first

_MAX_LISTED = 6
_SIGMA = 1.4826  # ratio of standard deviation to median absolute deviation
_MIN_SIBLINGS = 3  # a median of fewer means little
# What each of a reading's values belongs to, where it has several
PARTS = {ComponentKind.GPU: "link", ComponentKind.NEURON: "core"}


@dataclass(frozen=True, slots=True)
class Crossed:
    """A threshold that is crossed, with the fields of its event, and text for operators."""

    threshold: Threshold
    fields: dict[str, Value]
    text: str


# False if the threshold is not crossed, None if that is unknown
Outcome = Union[Crossed, Literal[False], None]


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """What a poll shows of a group: the first threshold that is crossed; else whether any could be
    compared, and whether any could not.
    """

    crossed: Crossed | None = None
    is_known: bool = False
    is_unknown: bool = False


# Made once: nearly every group of every poll has one of these
_NOT_CROSSED = {
    (known, unknown): GroupOutcome(is_known=known, is_unknown=unknown)
    for known in (False, True)
    for unknown in (False, True)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingComparer:
    """Compares the readings of one poll, at `now` on the monotonic clock.

    `components`: what is remembered of each, by identity. `siblings`: the last readings of all
    components that one may be compared with.
    """

    components: Mapping[str, ComponentMemory]
    siblings: Sequence[Readings]
    now: float

    def compare_group(self, group: ThresholdGroup, readings: Readings) -> GroupOutcome:
        """What the values that this poll read show of the group."""
        is_known = is_unknown = False
        for threshold in group.thresholds:
            is_fresh = threshold.of in readings.fresh
            outcome = self._compare_threshold(threshold, readings) if is_fresh else None
            if outcome:
                return GroupOutcome(outcome)
            if outcome is None:
                is_unknown = True
            else:
                is_known = True
        return _NOT_CROSSED[is_known, is_unknown]

    def find_crossed_earlier(self, group: ThresholdGroup, readings: Readings) -> Threshold | None:
        """A threshold of the group that a current value of an earlier poll crosses."""
        for threshold in group.thresholds:
            is_earlier = threshold.of not in readings.fresh and not threshold.over_s
            if is_earlier and self._compare_threshold(threshold, readings):
                return threshold
        return None

    def _compare_threshold(self, threshold: Threshold, readings: Readings) -> Outcome:
        for name, wanted in threshold.only.items():
            if name not in readings.values:
                return None
            if readings.values[name] not in wanted:
                return False
        values = self._get_values(threshold, readings)
        if values is None:
            return None
        if threshold.test in (Comparison.PEERS_ABOVE, Comparison.PEERS_BELOW):
            return self._compare_siblings(threshold, readings, values[0])
        limit = (
            readings.values.get(threshold.limit)
            if isinstance(threshold.limit, str)
            else threshold.limit
        )
        if threshold.test is Comparison.DIFFERS:
            return _find_difference(threshold, values[0], limit)
        times = readings.values.get(threshold.times) if threshold.times else 1.0
        if not isinstance(limit, (int, float)) or not isinstance(times, (int, float)):
            return None
        limit *= times
        places = [
            place for place, value in enumerate(values) if _crosses_limit(threshold, value, limit)
        ]
        return _describe_crossed(threshold, readings, values, places, limit) if places else False

    def _get_values(
        self, threshold: Threshold, readings: Readings
    ) -> tuple[float | str, ...] | None:
        """The value, or one for each part; with a window, how much it grew per unit of time. None
        if it is unknown.
        """
        value = readings.values.get(threshold.of)
        if value is None:
            return None
        if not threshold.over_s:
            return value if isinstance(value, tuple) else (value,)
        memory = self.components.get(readings.identity)
        if memory is None or isinstance(value, str):
            return None
        return memory.growth.calculate_rates(threshold, self.now)

    def _compare_siblings(
        self, threshold: Threshold, readings: Readings, own: float | str
    ) -> Outcome:
        """Compare a value with its siblings' median, in deviations."""
        if isinstance(own, str) or not isinstance(threshold.limit, (int, float)):
            return None
        others = self._list_siblings(threshold, readings)
        if len(others) < _MIN_SIBLINGS:
            return None
        median = statistics.median(others)
        spread = statistics.median(abs(other - median) for other in others) * _SIGMA
        off = own - median if threshold.test is Comparison.PEERS_ABOVE else median - own
        if off <= max(threshold.limit * spread, threshold.min_distance):
            return False
        fields: dict[str, Value] = {
            threshold.of: round(own, 6),
            "median": round(median, 6),
            "deviation": round(spread, 6),
        }
        text = f"{threshold.of} is {own:g}, its {len(others)} siblings have {median:g}"
        return Crossed(threshold, fields, text)

    def _list_siblings(self, threshold: Threshold, readings: Readings) -> list[float]:
        """The same reading of other components of this model, under the same conditions."""
        found = []
        for other in self.siblings:
            if other.identity == readings.identity:
                continue
            if other.values.get("name") != readings.values.get("name"):
                continue
            if any(other.values.get(name) not in wanted for name, wanted in threshold.only.items()):
                continue
            values = self._get_values(threshold, other)
            if values is not None and not isinstance(values[0], str):
                found.append(float(values[0]))
        return found


def _find_difference(threshold: Threshold, value: float | str, expected: Sample | None) -> Outcome:
    """Whether a text is none of those in `expected`, which commas separate."""
    if not isinstance(expected, str):
        return None
    if value in [wanted.strip() for wanted in expected.split(",")]:
        return False
    fields: dict[str, Value] = {threshold.of: to_field_value(value), "expected": expected}
    text = f"{threshold.of} is {format_value(value)}, expected {expected}"
    return Crossed(threshold, fields, text)


def _crosses_limit(threshold: Threshold, value: float | str, limit: float) -> bool:
    if threshold.test is Comparison.IS:
        return value in threshold.values
    if threshold.test in (Comparison.LISTS, Comparison.LISTS_OTHER):
        words = {word.strip() for word in str(value).split(",")} - {""}
        return bool(
            words & set(threshold.values)
            if threshold.test is Comparison.LISTS
            else words - set(threshold.values)
        )
    if isinstance(value, str):
        return False
    if threshold.test is Comparison.HAS:
        return any(int(value) & int(bits) for bits in threshold.values if not isinstance(bits, str))
    return value > limit if threshold.test is Comparison.ABOVE else value < limit


def _describe_crossed(
    threshold: Threshold,
    readings: Readings,
    values: Sequence[float | str],
    places: Sequence[int],
    limit: float,
) -> Crossed:
    """`places`: those of the values that crossed the limit."""
    fields: dict[str, Value] = {
        name: to_field_value(readings.values[name]) for name in (threshold.of, *threshold.only)
    } | get_carried_fields(threshold, readings)
    compares_limit = threshold.test in (Comparison.ABOVE, Comparison.BELOW)
    if compares_limit:
        fields["limit"] = round(limit, 6)
    where = ""
    if isinstance(readings.values[threshold.of], tuple):
        fields[threshold.of] = [int(to_number(values[place])) for place in places]
        part = PARTS.get(readings.component.kind, "port")
        fields[f"{part}s"] = list(places)
        where = f" on {part} {join_first([str(place) for place in places], _MAX_LISTED)}"
    value = values[places[0]]
    if threshold.over_s:
        fields["rate"] = round(float(value), 6) if not isinstance(value, str) else None
        text = f"{threshold.of} grows by {format_value(value)} per {threshold.per_s:g} s{where}"
    else:
        text = f"{threshold.of} is {format_value(value)}{where}"
    if compares_limit:
        name = f"{threshold.limit} " if isinstance(threshold.limit, str) else ""
        text += f", {threshold.test.value} {name}{limit:g}"
    return Crossed(threshold, fields, text)


# --- values as fields and text of an event


def get_carried_fields(threshold: Threshold, readings: Readings) -> dict[str, Value]:
    """The other readings that the threshold's event carries."""
    return {
        name: to_field_value(readings.values[name])
        for name in threshold.carry
        if name in readings.values
    }


def to_number(value: float | str) -> float:
    return 0.0 if isinstance(value, str) else value


def to_whole_number(value: float | str) -> float | int | str:
    if isinstance(value, str):
        return value
    return int(value) if float(value).is_integer() else round(value, 6)


def to_field_value(value: Sample | None) -> Value:
    if isinstance(value, tuple):
        return [int(part) for part in value if not math.isnan(part)]
    return None if value is None else to_whole_number(value)


def format_value(value: Sample | None) -> str:
    if value is None:
        return "not known"
    if isinstance(value, str):
        return value or "empty"
    return str(value) if isinstance(value, tuple) else f"{value:g}"
