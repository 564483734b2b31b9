"""
Compares the readings of one source with the catalogue's thresholds.

A crossing becomes an event of the source; what that means is up to the catalogue and the judge.
States, which last, are compared in `state_evaluator`, occurrences in `change_evaluator`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from vitald.catalog.threshold import ThresholdGroup
from vitald.collectors.change_evaluator import evaluate_changes
from vitald.collectors.crossing import Crossing, ObservedStates, make_crossing
from vitald.collectors.state_evaluator import StateEvaluator
from vitald.collectors.threshold_index import ThresholdIndex
from vitald.collectors.threshold_memory import ThresholdMemory
from vitald.model import Component, Readings
from vitald.model.codes import CLEARED


class ThresholdEvaluator:
    """The thresholds of one source, over all its components."""

    def __init__(
        self,
        groups: Iterable[ThresholdGroup],
        memory: Mapping[str, Any] | None = None,
        *,
        settle_s: float = 0.0,
    ) -> None:
        """`memory`: as that property gave it. Raises TypeError, ValueError or AttributeError for
        anything else. `settle_s`: for so long after the start, or a reset of the component, a state
        that was not seen otherwise is reported as settling.
        """
        self._settle_s = settle_s
        self._index = ThresholdIndex.build(groups)
        self._memory = ThresholdMemory(memory or {}, self._index)
        self._observed = ObservedStates()

    def configure(self, groups: Iterable[ThresholdGroup]) -> None:
        """Use the thresholds of a reloaded catalogue; what is remembered stays."""
        self._index = ThresholdIndex.build(groups)
        self._observed = ObservedStates()

    @property
    def holding(self) -> list[Crossing]:
        """States that were reported before, and held at the last poll."""
        return self._observed.holding

    @property
    def calm(self) -> set[tuple[Component, str]]:
        """States that are not reported, and did not hold at the last poll: component and code."""
        return self._observed.calm

    @property
    def memory(self) -> dict[str, Any]:
        """What is to be stored, for JSON."""
        return self._memory.build_memory(self._index)

    def forget_component(self, identity: str, *, counters: bool = False) -> None:
        """Something ended the component's findings: states that still hold are reported again.
        `counters`: its counters begin at zero as well.
        """
        self._memory.forget_component(identity, self._index, counters=counters)

    def forget_all(self) -> None:
        """The node was booted. Counters that were reset will show it."""
        for identity in self._memory.components:
            self._memory.forget_component(identity, self._index)

    def restart_settling(self) -> None:
        """A driver was loaded: what it reports first may change, as after a start."""
        self._memory.restart_settling()

    def report_again(self, codes: Collection[str]) -> None:
        """Report the open states of these codes again: their entries require an action now."""
        self._memory.report_again(codes)

    def rename_component(self, former: str, identity: str) -> None:
        """The component that was known as `former` now gives its identity."""
        self._memory.rename_component(former, identity)

    def evaluate_readings(
        self, polled: Sequence[Readings], now: float, siblings: Sequence[Readings] = ()
    ) -> list[Crossing]:
        """What the values that these polls read show and was not reported before.

        `now` is on the monotonic clock. `siblings`: the last readings of all components that one of
        them may be compared with.
        """
        index, memory = self._index, self._memory
        observed = self._observed = ObservedStates()
        for readings in polled:
            component = memory.find_or_add(readings.identity)
            component.growth.record_readings(readings, index.windows, now)
            if component.watched_since is None:
                component.watched_since = now
        states = StateEvaluator(
            components=memory.components,
            siblings=siblings,
            now=now,
            observed=observed,
            settle_s=self._settle_s,
        )
        crossings: list[Crossing] = []
        for readings in polled:
            component = memory.components[readings.identity]
            if component.codes is not index.codes:
                others = component.keep_codes(index.codes)
                crossings += (_end_without_limit(readings, code) for code in others)
            for group, compared in index.by_kind[readings.component.kind]:
                if compared.isdisjoint(readings.fresh):
                    continue
                if group.is_state:
                    crossings += states.evaluate_group(group, readings, component)
                else:
                    crossings += evaluate_changes(group, readings, component, observed)
        memory.limit_size({readings.identity for readings in polled})
        return crossings


def _end_without_limit(readings: Readings, code: str) -> Crossing:
    """The end of what was reported by a threshold that the catalogue has no longer."""
    fields = {
        "code": code,
        "by": "the configuration",
        "reason": "it has no limit for this any more",
    }
    return make_crossing(readings, CLEARED, fields, f"{code} has no limit any more")
