"""
Metric families from the collectors' readings: name, help and labels, and the readings that they
export; those of everything but GPUs; and metrics with one sample and no labels. Names are the
field's own words where it has any (node_exporter, the kernel), in base units, `_total` for what
only counts up.

What a component's series are called follows from its labels, so for the readings that a node has
hundreds of it is written once, with a gap for each value; at a scrape the gaps are filled.
`build_metrics` makes the same families as objects, in several times the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from vitald.collectors.discovery import find_collectors
from vitald.collectors.nvml.gpu_node import NAME as NVML
from vitald.collectors.reading_definitions import ReadingDefinition, ReadingKind, ReadingTable
from vitald.core.node_state import NodeState
from vitald.metrics.exposition import WrittenFamily, format_number, write_labels
from vitald.model.source import Readings, Sample
from vitald.model.words import ComponentKind

_NUMBERS = {float, int}
_MISSING = {type(None)}


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


@dataclass(frozen=True, slots=True)
class _Series:
    """The series of a family. `places`: for each, its component's place, and the reading.
    `prefixes`: what stands before each value. `template`: all of them, with a gap for each value.
    """

    places: Sequence[tuple[int, str]]
    prefixes: Sequence[str]
    template: str

    def write_values(self, values: Sequence[Mapping[str, Sample]], scale: float) -> str:
        """The lines of the values that there are. `values`: those of each component."""
        found = [values[place].get(reading) for place, reading in self.places]
        types = {*map(type, found)}
        if types <= _NUMBERS and scale == 1.0:
            return self.template % tuple(found)
        if types == _MISSING:
            return ""
        return "".join(
            f"{prefix}{format_number(value * scale)}\n"
            for prefix, value in zip(self.prefixes, found)
            if isinstance(value, (int, float))
        )


class ReadingsWriter:
    """Writes the families of some tables of readings."""

    def __init__(self, families: Sequence[Family], labels: Sequence[str]) -> None:
        """`labels`: those of every family, whose values the components have."""
        self._families = families
        self._labels = labels
        self._components: list[Sequence[str]] | None = None  # by their labels
        self._series: Sequence[_Series] = ()  # of each family

    def write_families(
        self, components: Sequence[LabelledReadings]
    ) -> Iterator[Metric | WrittenFamily]:
        """As `build_metrics`. Families whose labels follow from values are objects."""
        labels = [component.labels for component in components]
        if labels != self._components:
            self._components = labels
            self._series = [self._list_series(family, labels) for family in self._families]
        values = [component.readings.values for component in components]
        for family, series in zip(self._families, self._series):
            first = family.first
            if not _has_fixed_series(first):
                yield from build_metrics((family,), self._labels, components)
                continue
            kind = "counter" if first.kind is ReadingKind.COUNTER else "gauge"
            lines = series.write_values(values, first.scale)
            yield WrittenFamily(family.name, first.help, kind, lines)

    def _list_series(self, family: Family, components: Sequence[Sequence[str]]) -> _Series:
        name = family.name + ("_total" if family.first.kind is ReadingKind.COUNTER else "")
        places, prefixes = [], []
        for place, labels in enumerate(components):
            shared = dict(zip(self._labels, labels))
            for label_value, reading in family.readings.items():
                own = {family.first.label: label_value} if family.first.label else {}
                places.append((place, reading))
                prefixes.append(f"{name}{write_labels({**shared, **own})} ")
        template = "".join(f"{prefix.replace('%', '%%')}%r\n" for prefix in prefixes)
        return _Series(places, prefixes, template)


def _has_fixed_series(definition: ReadingDefinition) -> bool:
    """Whether its labels follow from the component alone: not from a text or a number of parts."""
    return definition.kind is not ReadingKind.STATE and not definition.each


def make_gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    """A gauge; `text` is its HELP."""
    return GaugeMetricFamily(name, text, value=value)


def make_counter(name: str, text: str, value: float, since: float) -> CounterMetricFamily:
    """A counter; its samples get the suffix `_total`. `since`: when it began, in seconds since the
    epoch.
    """
    return CounterMetricFamily(name, text, value=value, created=since)


def format_bool(value: bool) -> str:
    """`true` or `false`, as a label's value."""
    return "true" if value else "false"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExportedTable:
    """A table of readings, with what is derived from it once."""

    source: str
    table: ReadingTable
    families: tuple[Family, ...]
    exported: frozenset[str]


@cache
def _list_tables() -> tuple[_ExportedTable, ...]:
    return tuple(
        _ExportedTable(
            source=collector.name,
            table=table,
            families=derive_families(table),
            exported=list_exported(table),
        )
        for collector in find_collectors()
        if collector.name != NVML  # it has a module of its own
        for table in collector.readings
    )


def collect_metrics(node_state: NodeState) -> Iterator[Metric]:
    """The families of what is read now."""
    for exported in _list_tables():
        table = exported.table
        components = [
            LabelledReadings(readings, [get_label(readings) for get_label in table.labels.values()])
            for readings in node_state.list_readings(exported.source)
            if table.component in (ComponentKind.PCI, readings.component.kind)
            and not exported.exported.isdisjoint(readings.values)
        ]
        if components:
            yield from build_metrics(exported.families, list(table.labels), components)
