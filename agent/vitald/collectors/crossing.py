"""What a threshold reports of a component, and the values that it compares."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vitald.catalog.threshold import Comparison, Threshold
from vitald.model import Component, ComponentKind, Readings, Sample, Value
from vitald.text import join_first

_MAX_LISTED = 6
# What a reading with several values has one of for each.
PARTS = {ComponentKind.GPU: "link", ComponentKind.NEURON: "core"}
# Of a counter in a window of more than an hour: a day's is then told to within some minutes
MAX_SAMPLES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A threshold that a component crossed. `text` is for operators."""

    component: Component
    identity: str
    code: str
    fields: Mapping[str, Value]
    text: str


def thin_samples(
    samples: Iterable[tuple[float, tuple[float, ...]]],
) -> deque[tuple[float, tuple[float, ...]]]:
    """Every second sample, and each that no other may stand for: what lies before or after
    a fall.
    """
    told = list(samples)
    kept = deque(told[:1])
    for place in range(1, len(told) - 1):
        before, here, after = kept[-1][1], told[place][1], told[place + 1][1]
        if place % 2 == 0 or any(
            not was <= at <= will for was, at, will in zip(before, here, after)
        ):
            kept.append(told[place])
    kept.append(told[-1])
    while len(kept) > 4 * MAX_SAMPLES:  # one that goes up and down all day counts nothing
        kept.popleft()
    return kept


def find_difference(
    watch: Threshold, value: float | str, expected: Sample | None
) -> tuple[dict[str, Value], str] | tuple[()] | None:
    """Whether a text is none of those in `expected`, which commas separate."""
    if not isinstance(expected, str):
        return None
    if value in [wanted.strip() for wanted in expected.split(",")]:
        return ()
    fields: dict[str, Value] = {watch.of: to_field_value(value), "expected": expected}
    return fields, f"{watch.of} is {format_value(value)}, expected {expected}"


def crosses_limit(watch: Threshold, value: float | str, limit: float) -> bool:
    if watch.test is Comparison.IS:
        return value in watch.values
    if watch.test in (Comparison.LISTS, Comparison.LISTS_OTHER):
        words = {word.strip() for word in str(value).split(",")} - {""}
        return bool(
            words & set(watch.values)
            if watch.test is Comparison.LISTS
            else words - set(watch.values)
        )
    if isinstance(value, str):
        return False
    if watch.test is Comparison.HAS:
        return any(int(value) & int(bits) for bits in watch.values if not isinstance(bits, str))
    return value > limit if watch.test is Comparison.ABOVE else value < limit


def make_crossing(one: Readings, code: str, fields: Mapping[str, Value], text: str) -> Crossing:
    return Crossing(
        component=one.component, identity=one.identity, code=code, fields=fields, text=text
    )


def get_carried_fields(watch: Threshold, one: Readings) -> dict[str, Value]:
    return {name: to_field_value(one.values[name]) for name in watch.carry if name in one.values}


def list_numbers(value: Sample | None) -> tuple[float, ...]:
    if value is None or isinstance(value, str):
        return ()
    return value if isinstance(value, tuple) else (value,)


def replace_unknown_parts(
    values: tuple[float, ...], before: tuple[float, ...]
) -> tuple[float, ...]:
    """A part that could not be read (NaN) stands where it stood."""
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
    watch: Threshold,
    one: Readings,
    values: Sequence[float | str],
    hit: Sequence[int],
    limit: float,
) -> tuple[dict[str, Value], str]:
    """The event's fields and text. `hit`: places of the values that crossed the limit."""
    fields: dict[str, Value] = {
        name: to_field_value(one.values[name]) for name in (watch.of, *watch.only)
    } | get_carried_fields(watch, one)
    compares_limit = watch.test in (Comparison.ABOVE, Comparison.BELOW)
    if compares_limit:
        fields["limit"] = round(limit, 6)
    where = ""
    if isinstance(one.values[watch.of], tuple):
        fields[watch.of] = [int(to_number(values[place])) for place in hit]
        part = PARTS.get(one.component.kind, "port")
        fields[f"{part}s"] = list(hit)
        where = f" on {part} {join_first([str(place) for place in hit], _MAX_LISTED)}"
    value = values[hit[0]]
    if watch.over_s:
        fields["rate"] = round(float(value), 6) if not isinstance(value, str) else None
        text = f"{watch.of} grows by {format_value(value)} per {watch.per_s:g} s{where}"
    else:
        text = f"{watch.of} is {format_value(value)}{where}"
    if compares_limit:
        name = f"{watch.limit} " if isinstance(watch.limit, str) else ""
        text += f", {watch.test.value} {name}{limit:g}"
    return fields, text
