"""Thresholds of the catalogue, arranged for one poll's comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vitald.catalog.threshold import Comparison, ThresholdGroup
from vitald.model import ComponentKind


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
