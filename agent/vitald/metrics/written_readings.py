"""
Families of readings as lines of a page, for the readings that a node has hundreds of.

What a component's series are called follows from its labels, so it is written once; at a scrape
only the values are. `build_metrics` makes the same families as objects, in twice the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import Metric

from vitald.collectors.reading_definitions import ReadingDefinition, ReadingKind
from vitald.metrics.exposition import WrittenFamily, format_number, write_labels
from vitald.metrics.families import Family, LabelledReadings, build_metrics

# Components beyond twice the present ones that are remembered: those that are replaced are few.
_SPARE = 8


@dataclass(frozen=True, slots=True)
class _Series:
    reading: str
    labels: str  # as written; most series of a component share them


_SeriesOfComponent = dict[str, tuple[_Series, ...]]  # by the name of the family


class ReadingsWriter:
    """Writes the families of some tables of readings."""

    def __init__(self, families: Sequence[Family], labels: Sequence[str]) -> None:
        """`labels`: those of every family, whose values the components have."""
        self._families = families
        self._labels = labels
        self._remembered: dict[tuple[str, ...], _SeriesOfComponent] = {}

    def write_families(
        self, components: Sequence[LabelledReadings]
    ) -> Iterator[Metric | WrittenFamily]:
        """As `build_metrics`. Families whose labels follow from values are objects."""
        if len(self._remembered) > 2 * len(components) + _SPARE:
            self._remembered.clear()
        series = [self._find_series(component) for component in components]
        for family in self._families:
            first = family.first
            if not _has_fixed_series(first):
                yield from build_metrics((family,), self._labels, components)
                continue
            name = _get_sample_name(family)
            lines: list[str] = []
            for component, series_of_component in zip(components, series):
                values = component.readings.values
                for one in series_of_component[family.name]:
                    value = values.get(one.reading)
                    if isinstance(value, (int, float)):
                        number = format_number(value * first.scale)
                        lines.append(f"{name}{one.labels} {number}\n")
            kind = "counter" if first.kind is ReadingKind.COUNTER else "gauge"
            yield WrittenFamily(family.name, first.help, kind, lines)

    def _find_series(self, component: LabelledReadings) -> _SeriesOfComponent:
        key = tuple(component.labels)
        found = self._remembered.get(key)
        if found is None:
            shared: dict[str, str] = {}
            found = self._remembered[key] = {
                family.name: tuple(self._list_series(family, component.labels, shared))
                for family in self._families
                if _has_fixed_series(family.first)
            }
        return found

    def _list_series(
        self, family: Family, labels: Sequence[str], shared: dict[str, str]
    ) -> Iterator[_Series]:
        """`shared`: the written labels so far; equal ones are one object."""
        first = family.first
        names = [*self._labels, *filter(None, (first.label,)), *first.former_labels]
        for label_value, reading in family.readings.items():
            own = [label_value] if first.label else []
            values = [*labels, *own, *reading.former_labels.values()]
            written = write_labels(dict(zip(names, values)))
            yield _Series(reading.name, shared.setdefault(written, written))


def _get_sample_name(family: Family) -> str:
    return f"{family.name}_total" if family.first.kind is ReadingKind.COUNTER else family.name


def _has_fixed_series(definition: ReadingDefinition) -> bool:
    """Whether its labels follow from the component alone: not from a text or a number of parts."""
    return definition.kind is not ReadingKind.STATE and not definition.each
