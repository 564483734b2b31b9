"""
What a threshold reports of a component, the values that it compares, and the catalogue's thresholds
arranged for one poll's comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Union

from vitald.catalog.threshold import Comparison, Threshold, ThresholdGroup
from vitald.model import Component, ComponentKind, Readings, Sample, Value
from vitald.text import join_first

_MAX_LISTED = 6
# What each of a reading's values belongs to, where it has several
PARTS = {ComponentKind.GPU: "link", ComponentKind.NEURON: "core"}

CrossingText = tuple[dict[str, Value], str]  # fields and text of a crossing
# Empty if the threshold is not crossed, None if that is unknown.
Evaluation = Union[CrossingText, "tuple[()]", None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A threshold that a component crossed. `text` is for operators."""

    component: Component
    identity: str
    code: str
    fields: Mapping[str, Value]
    text: str


@dataclass(frozen=True, slots=True)
class ObservedStates:
    """What one poll found of states beside what it reports.

    `holding`: states that were reported before and hold still. `calm`: component and code of states
    that are not reported and do not hold.
    """

    holding: list[Crossing] = field(default_factory=list)
    calm: set[tuple[Component, str]] = field(default_factory=set)


def find_difference(
    threshold: Threshold, value: float | str, expected: Sample | None
) -> Evaluation:
    """Whether a text is none of those in `expected`, which commas separate."""
    if not isinstance(expected, str):
        return None
    if value in [wanted.strip() for wanted in expected.split(",")]:
        return ()
    fields: dict[str, Value] = {threshold.of: to_field_value(value), "expected": expected}
    return fields, f"{threshold.of} is {format_value(value)}, expected {expected}"


def crosses_limit(threshold: Threshold, value: float | str, limit: float) -> bool:
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


def make_crossing(
    readings: Readings, code: str, fields: Mapping[str, Value], text: str
) -> Crossing:
    return Crossing(
        component=readings.component,
        identity=readings.identity,
        code=code,
        fields=fields,
        text=text,
    )


def get_carried_fields(threshold: Threshold, readings: Readings) -> dict[str, Value]:
    return {
        name: to_field_value(readings.values[name])
        for name in threshold.carry
        if name in readings.values
    }


def list_numbers(value: Sample | None) -> tuple[float, ...]:
    if value is None or isinstance(value, str):
        return ()
    return value if isinstance(value, tuple) else (value,)


def replace_unknown_parts(
    values: tuple[float, ...], before: tuple[float, ...]
) -> tuple[float, ...]:
    """Replaces each part that could not be read (NaN) with its earlier value."""
    return tuple(was if math.isnan(value) else value for value, was in zip(values, before))


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


def describe_crossing(
    threshold: Threshold,
    readings: Readings,
    values: Sequence[float | str],
    hit: Sequence[int],
    limit: float,
) -> CrossingText:
    """The event's fields and text. `hit`: places of the values that crossed the limit."""
    fields: dict[str, Value] = {
        name: to_field_value(readings.values[name]) for name in (threshold.of, *threshold.only)
    } | get_carried_fields(threshold, readings)
    compares_limit = threshold.test in (Comparison.ABOVE, Comparison.BELOW)
    if compares_limit:
        fields["limit"] = round(limit, 6)
    where = ""
    if isinstance(readings.values[threshold.of], tuple):
        fields[threshold.of] = [int(to_number(values[place])) for place in hit]
        part = PARTS.get(readings.component.kind, "port")
        fields[f"{part}s"] = list(hit)
        where = f" on {part} {join_first([str(place) for place in hit], _MAX_LISTED)}"
    value = values[hit[0]]
    if threshold.over_s:
        fields["rate"] = round(float(value), 6) if not isinstance(value, str) else None
        text = f"{threshold.of} grows by {format_value(value)} per {threshold.per_s:g} s{where}"
    else:
        text = f"{threshold.of} is {format_value(value)}{where}"
    if compares_limit:
        name = f"{threshold.limit} " if isinstance(threshold.limit, str) else ""
        text += f", {threshold.test.value} {name}{limit:g}"
    return fields, text


def make_key(code: str, reading: str) -> str:
    """Names a reading of an entry in what is remembered."""
    return f"{code}:{reading}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdIndex:
    """The groups of one source, by kind of component, and what their counters need remembered."""

    by_kind: Mapping[
        ComponentKind, tuple[tuple[ThresholdGroup, frozenset[str]], ...]
    ]  # groups, and the readings that they compare
    # Seconds of the windows over each counter that has any, longest first
    windows: Mapping[str, tuple[float, ...]]
    # code:reading of states that are reported when a reading changes
    changing_states: frozenset[str]
    counters: frozenset[str]  # code:reading of counters that a boot or a reset clears
    codes: frozenset[str]  # of all groups

    @staticmethod
    def build(groups: Iterable[ThresholdGroup]) -> ThresholdIndex:
        groups = tuple(groups)
        indexed = [
            (group, frozenset(threshold.of for threshold in group.thresholds)) for group in groups
        ]
        # An entry of PCI devices applies to any device.
        by_kind = {
            kind: tuple(
                (group, readings)
                for group, readings in indexed
                if group.component in (kind, ComponentKind.PCI)
            )
            for kind in ComponentKind
        }
        pairs = [(group, threshold) for group in groups for threshold in group.thresholds]
        windows: dict[str, set[float]] = {}
        for _, threshold in pairs:
            if threshold.over_s:
                windows.setdefault(threshold.of, set()).add(threshold.over_s)
        return ThresholdIndex(
            by_kind=by_kind,
            windows={of: tuple(sorted(sizes, reverse=True)) for of, sizes in windows.items()},
            changing_states=frozenset(
                make_key(group.code, threshold.of)
                for group, threshold in pairs
                if threshold.test is Comparison.CHANGES and group.state
            ),
            codes=frozenset(group.code for group in groups),
            counters=frozenset(
                make_key(group.code, threshold.of)
                for group, threshold in pairs
                if threshold.test is Comparison.RISES and not threshold.lifetime
            ),
        )
