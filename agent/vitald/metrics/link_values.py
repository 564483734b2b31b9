"""
One value for all links of a GPU, instead of one for each.

A link that cannot be read keeps its last count in a sum: without it the sum would fall, which
Prometheus takes for a restart from zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from vitald.collectors.reading_definitions import LinkMerge, ReadingTable
from vitald.metrics.families import Family
from vitald.model import Readings

_MERGES: Mapping[LinkMerge, Callable[[Iterable[float]], float]] = {
    LinkMerge.SUM: sum,
    LinkMerge.LOWEST: min,
    LinkMerge.HIGHEST: max,
}
_HELP = {
    LinkMerge.SUM: "Sum of all links.",
    LinkMerge.LOWEST: "The lowest of all links.",
    LinkMerge.HIGHEST: "The highest of all links.",
}


def merge_families(families: Iterable[Family]) -> tuple[Family, ...]:
    """The families without the label of the link; those that another one gives are left out."""
    return tuple(
        _merge_family(family, family.first.links) if family.first.links else family
        for family in families
        if family.first.links is not LinkMerge.OMIT
    )


def _merge_family(family: Family, how: LinkMerge) -> Family:
    text = f"{family.first.help} {_HELP[how]}"
    return replace(family, first=replace(family.first, each="", help=text))


class LinkValues:
    """Merges the values of links, and remembers the last count of each."""

    def __init__(self, tables: Iterable[ReadingTable]) -> None:
        self._merges = {
            reading.name: reading.links
            for table in tables
            for reading in table.readings
            if reading.links in _MERGES
        }
        # By GPU and reading. The readings' own where complete: no second copy in memory
        self._counts: dict[tuple[str, str], tuple[float, ...]] = {}

    def merge_values(self, gpus: Sequence[Readings]) -> list[Readings]:
        """The readings of all GPUs, with one value for all links. Counts of GPUs that are not
        among them are forgotten.
        """
        present = {gpu.identity for gpu in gpus}
        self._counts = {key: counts for key, counts in self._counts.items() if key[0] in present}
        return [replace(gpu, values={**gpu.values, **self._merge_gpu(gpu)}) for gpu in gpus]

    def _merge_gpu(self, gpu: Readings) -> dict[str, float]:
        merged = {}
        for name, how in self._merges.items():
            values = gpu.values.get(name)
            if not isinstance(values, tuple) or how is None:
                continue
            if how is LinkMerge.SUM:
                values = self._complete_counts((gpu.identity, name), values)
            if known := _list_known(values):
                merged[name] = _MERGES[how](known)
        return merged

    def _complete_counts(
        self, key: tuple[str, str], counts: tuple[float, ...]
    ) -> tuple[float, ...]:
        before = self._counts.get(key, ())
        if len(counts) < len(before) or _list_known(counts) is not counts:
            counts = tuple(
                former if math.isnan(count) else count
                for count, former in zip_longest(counts, before, fillvalue=math.nan)
            )
        self._counts[key] = counts
        return counts


def _list_known(values: tuple[float, ...]) -> tuple[float, ...]:
    """Those that are numbers; the same object if all are."""
    if not math.isnan(sum(values)):
        return values
    return tuple(value for value in values if not math.isnan(value))
