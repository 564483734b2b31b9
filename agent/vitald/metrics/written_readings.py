"""
Families of readings as text of a page, for the readings that a node has hundreds of.

What a component's series are called follows from its labels, so it is written once, with a gap for
each value; at a scrape the gaps are filled. `build_metrics` makes the same families as objects, in
several times the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import Metric

from vitald.collectors.reading_definitions import ReadingDefinition, ReadingKind
from vitald.metrics.exposition import WrittenFamily, format_number, write_labels
from vitald.metrics.families import Family, LabelledReadings, build_metrics
from vitald.model import Sample

_NUMBERS = {float, int}
_MISSING = {type(None)}


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
