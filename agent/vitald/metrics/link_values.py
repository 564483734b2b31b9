"""
One value for all links of a GPU, instead of one for each.

Counters are summed as what the links counted since vitald first read them. A sum of their own
counts would fall where a link cannot be read any more, which Prometheus takes for a restart from
zero, and would rise by all that a link ever counted where it can be read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from vitald.collectors.reading_definitions import LinkMerge, ReadingTable
from vitald.metrics.families import Family
from vitald.model import Readings

_WORST: Mapping[LinkMerge, Callable[[Iterable[float]], float]] = {
    LinkMerge.LOWEST: min,
    LinkMerge.HIGHEST: max,
}
_HELP = {
    LinkMerge.SUM: "Sum of all links, since vitald first read them.",
    LinkMerge.LOWEST: "The lowest of all links.",
    LinkMerge.HIGHEST: "The highest of all links.",
}


def merge_families(families: Iterable[Family]) -> tuple[Family, ...]:
    """The families without the label of the link; those that another one gives are left out."""
    return tuple(
        replace(family, first=replace(family.first, each="", help=_extend_help(family)))
        if family.first.links
        else family
        for family in families
        if family.first.links is not LinkMerge.OMIT
    )


def _extend_help(family: Family) -> str:
    assert family.first.links is not None
    return f"{family.first.help} {_HELP[family.first.links]}"


@dataclass(slots=True)
class _Counts:
    """What the links of a GPU counted. `last`: each link's own count when it was read last."""

    last: tuple[float, ...]
    total: float = 0.0

    def update(self, counts: tuple[float, ...]) -> None:
        """A link that is read for the first time begins at 0; one that counts less than before has
        begun again.
        """
        for count, before in zip(counts, self.last):
            if not math.isnan(count) and not math.isnan(before):
                self.total += count - before if count >= before else count
        if len(counts) < len(self.last) or any(map(math.isnan, counts)):
            counts = tuple(
                before if math.isnan(count) else count
                for count, before in zip_longest(counts, self.last, fillvalue=math.nan)
            )
        self.last = counts  # the readings' own, if complete: no second copy in memory


class LinkValues:
    """Merges the values of links, and remembers what they counted."""

    def __init__(self, tables: Iterable[ReadingTable]) -> None:
        self._merges = {
            reading.name: reading.links
            for table in tables
            for reading in table.readings
            if reading.links not in (None, LinkMerge.OMIT)
        }
        self._counts: dict[tuple[str, str], _Counts] = {}  # by GPU and reading

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
            known = [value for value in values if not math.isnan(value)]
            if how is LinkMerge.SUM:
                total = self._count_links((gpu.identity, name), values, any_known=bool(known))
                if total is not None:
                    merged[name] = total
            elif known:
                merged[name] = _WORST[how](known)
        return merged

    def _count_links(
        self, key: tuple[str, str], values: tuple[float, ...], *, any_known: bool
    ) -> float | None:
        """None while no link could be read yet."""
        counts = self._counts.get(key)
        if counts is None and any_known:
            counts = self._counts[key] = _Counts(values)
        if counts is None:
            return None
        counts.update(values)
        return counts.total
