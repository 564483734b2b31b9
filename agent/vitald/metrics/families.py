"""
Metric families from the collectors' readings: name, help and labels, and the readings that they
export.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from vitald.collectors.reading_definitions import ReadingDefinition, ReadingKind, ReadingTable
from vitald.model import Readings, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric. `readings`: those that it exports, by the value of their label."""

    name: str
    first: ReadingDefinition  # what all of its readings have in common
    readings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LabelledReadings:
    """Readings of a component, and the values of the labels that tell it from others."""

    readings: Readings
    labels: Sequence[str]


def derive_families(table: ReadingTable) -> tuple[Family, ...]:
    """The families of a table, in its order."""
    by_metric: dict[str, list[ReadingDefinition]] = {}
    for reading in table.readings:
        if reading.metric:
            by_metric.setdefault(reading.metric, []).append(reading)
    return tuple(
        Family(
            name=f"{table.prefix}_{metric}",
            first=readings[0],
            readings={reading.label_value: reading.name for reading in readings},
        )
        for metric, readings in by_metric.items()
    )


def list_exported(table: ReadingTable) -> frozenset[str]:
    """The readings that have a metric."""
    return frozenset(reading.name for reading in table.readings if reading.metric)


def build_metrics(
    families: Iterable[Family], labels: Sequence[str], components: Sequence[LabelledReadings]
) -> Iterator[Metric]:
    """The families with their samples. A value that is not observed has no sample: never a zero for
    an unknown value.
    """
    for family in families:
        first = family.first
        class_ = CounterMetricFamily if first.kind is ReadingKind.COUNTER else GaugeMetricFamily
        metric = class_(
            family.name, first.help, labels=[*labels, *filter(None, (first.label, first.each))]
        )
        for component in components:
            values = component.readings.values
            for label_value, reading in family.readings.items():
                if (value := values.get(reading)) is not None:
                    for more, number in _list_samples(first, label_value, value):
                        metric.add_metric([*component.labels, *more], number)
        yield metric


def _list_samples(
    definition: ReadingDefinition, label_value: str, value: Sample
) -> Sequence[tuple[Sequence[str], float]]:
    """The family's own labels, and the number to export."""
    if definition.kind is ReadingKind.STATE:
        return (([value], 1),) if isinstance(value, str) else ()
    labels = [label_value] if definition.label else []
    if not definition.each:
        return ((labels, value * definition.scale),) if isinstance(value, (int, float)) else ()
    parts = value if isinstance(value, tuple) else (value,)
    return [
        ([*labels, str(number)], part * definition.scale)
        for number, part in enumerate(parts, definition.first)
        if isinstance(part, (int, float)) and not math.isnan(part)
    ]
