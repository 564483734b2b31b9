"""
Families of readings as lines of a page, for the readings that a node has hundreds of.

What a component's series are called follows from its labels, so it is written once; at a scrape
only the values are. `build_metrics` makes the same families as objects, in twice the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from vitald.collectors.reading_definitions import ReadingDefinition, ReadingKind
from vitald.metrics.exposition import WrittenFamily, format_number, write_labels
from vitald.metrics.families import Family, LabelledReadings, build_metrics


class ReadingsWriter:
    """Writes the families of some tables of readings."""

    def __init__(self, families: Sequence[Family], labels: Sequence[str]) -> None:
        """`labels`: those of every family, whose values the components have."""
        self._families = families
        self._labels = labels
        self._components: list[Sequence[str]] = []  # by their labels
        self._series: dict[str, list[tuple[int, str, str]]] = {
            family.name: [] for family in families
        }

    def write_families(
        self, components: Sequence[LabelledReadings]
    ) -> Iterator[Metric | WrittenFamily]:
        """As `build_metrics`. Families whose labels follow from values are objects."""
        labels = [component.labels for component in components]
        if labels != self._components:
            self._components = labels
            self._series = {
                family.name: list(self._list_series(family)) for family in self._families
            }
        values = [component.readings.values for component in components]
        for family in self._families:
            first = family.first
            if not _has_fixed_series(first):
                yield from build_metrics((family,), self._labels, components)
                continue
            lines: list[str] = []
            scale = first.scale
            for place, reading, prefix in self._series[family.name]:
                value = values[place].get(reading)
                if isinstance(value, (int, float)):
                    lines.append(f"{prefix}{format_number(value * scale)}\n")
            kind = "counter" if first.kind is ReadingKind.COUNTER else "gauge"
            yield WrittenFamily(family.name, first.help, kind, lines)

    def _list_series(self, family: Family) -> Iterator[tuple[int, str, str]]:
        """Each place among the components, its reading, and what stands before the value."""
        name = family.name + ("_total" if family.first.kind is ReadingKind.COUNTER else "")
        for place, labels in enumerate(self._components):
            shared = dict(zip(self._labels, labels))
            for label_value, reading in family.readings.items():
                own = {family.first.label: label_value} if family.first.label else {}
                yield place, reading, f"{name}{write_labels({**shared, **own})} "


def _has_fixed_series(definition: ReadingDefinition) -> bool:
    """Whether its labels follow from the component alone: not from a text or a number of parts."""
    return definition.kind is not ReadingKind.STATE and not definition.each
