"""
Thresholds of states: conditions that begin, last and end.

A group holds while one of its thresholds is crossed. It is reported once it has held for as long as
the threshold requires, and again when it is over. A value that cannot be observed neither begins
nor ends anything.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitald.catalog.threshold import Comparison, Threshold, ThresholdGroup
from vitald.collectors.crossing import (
    Crossing,
    CrossingText,
    Evaluation,
    ObservedStates,
    crosses_limit,
    describe_crossing,
    find_difference,
    format_value,
    make_crossing,
    to_field_value,
)
from vitald.collectors.device_registry import MISSED
from vitald.collectors.threshold_memory import ComponentMemory
from vitald.model import Readings
from vitald.model.event import SETTLING

_SIGMA = 1.4826  # ratio of standard deviation to median absolute deviation
_MIN_SIBLINGS = 3  # a median of fewer means little


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEvaluator:
    """Compares the states of one poll, at `now` on the monotonic clock.

    `siblings`: the last readings of all components that one may be compared with. `observed` is
    filled in.
    """

    components: Mapping[str, ComponentMemory]
    siblings: Sequence[Readings]
    now: float
    observed: ObservedStates
    settle_s: float

    def evaluate_group(
        self, group: ThresholdGroup, readings: Readings, memory: ComponentMemory
    ) -> list[Crossing]:
        """The group's crossing, if it has to be reported now that it holds or that it is over."""
        known = unknown = False
        for threshold in group.thresholds:
            if threshold.of not in readings.fresh:
                unknown = True
                continue
            found = self._evaluate_threshold(threshold, readings, memory)
            if found:
                return self._report_holding(group, threshold, found, readings, memory)
            if found is None:
                unknown = True
            else:
                known = True
        if (shown_by := memory.find_state(group.code)) is not None:
            return self._report_over(group, shown_by, readings, memory, known=known)
        memory.pending_since.pop(group.code, None)
        if not unknown:
            self.observed.calm.add((readings.component, group.code))
            memory.well.add(group.code)
        return []

    def _report_holding(
        self,
        group: ThresholdGroup,
        threshold: Threshold,
        found: CrossingText,
        readings: Readings,
        memory: ComponentMemory,
    ) -> list[Crossing]:
        fields, text = found
        is_settling = self._is_settling(group.code, readings, memory)
        if is_settling:
            fields[SETTLING] = True
        if group.code in memory.open_states:
            memory.pending_since.pop(group.code, None)
            if group.code in memory.settling and not is_settling:
                memory.settling.discard(group.code)
                return [make_crossing(readings, group.code, fields, text)]
            # What grew in a window may have been resolved since, unless it still grows.
            if not threshold.over_s or memory.growth.grew_at(threshold.of, self.now):
                crossing = make_crossing(readings, group.code, fields, text)
                self.observed.holding.append(crossing)
            return []
        if not self._has_lasted(group, threshold.for_s, memory):
            return []
        memory.former_states.pop(group.code, None)
        memory.open_states[group.code] = threshold.of
        if is_settling:
            memory.settling.add(group.code)
        if threshold.for_s:
            text += f" for {threshold.for_s:g} s"
        return [make_crossing(readings, group.code, fields, text)]

    def _report_over(
        self,
        group: ThresholdGroup,
        shown_by: str,
        readings: Readings,
        memory: ComponentMemory,
        *,
        known: bool,
    ) -> list[Crossing]:
        """No threshold is crossed by what this poll read, but the state was reported before.

        `shown_by`: the reading that showed it. `known`: at least one threshold could be compared.
        """
        code = group.code
        if shown_by not in readings.fresh:
            return []  # that reading was not read again
        other = self._find_crossed(group, readings, memory)
        if other is not None:
            memory.replace_state(code, other.of)
            memory.pending_since.pop(code, None)
            return []
        if not known:
            memory.pending_since.pop(code, None)
            return []
        # Growth in a window is over when the window has passed: near its limit, it would otherwise
        # begin and end again and again.
        times = (
            threshold.clears_after_s for threshold in group.thresholds if threshold.of == shown_by
        )
        if not self._has_lasted(group, max(times, default=0.0), memory):
            return []
        memory.remove_state(code)
        value = readings.values.get(shown_by)
        fields = {"recovered": True, shown_by: to_field_value(value)}
        return [make_crossing(readings, code, fields, f"{shown_by} is {format_value(value)} again")]

    def _is_settling(self, code: str, readings: Readings, memory: ComponentMemory) -> bool:
        """Whether it may still change: the component has not been watched for long, and was not
        seen without it. A device that is missing was seen if its other readings were.
        """
        if code in memory.well or memory.watched_since is None:
            return False
        was_here = self.components.get(readings.identity.removeprefix(MISSED), memory).well
        if readings.identity.startswith(MISSED) and was_here:
            return False
        return self.now - memory.watched_since < self.settle_s

    def _has_lasted(self, group: ThresholdGroup, seconds: float, memory: ComponentMemory) -> bool:
        """Whether the group has been as it is now for so long."""
        since = memory.pending_since.setdefault(group.code, self.now)
        if self.now - since < seconds:
            return False
        del memory.pending_since[group.code]
        return True

    def _find_crossed(
        self, group: ThresholdGroup, readings: Readings, memory: ComponentMemory
    ) -> Threshold | None:
        """Another threshold of the group that is crossed by a current reading of an earlier
        poll.
        """
        others = (
            threshold
            for threshold in group.thresholds
            if threshold.of not in readings.fresh and not threshold.over_s
        )
        return next(
            (other for other in others if self._evaluate_threshold(other, readings, memory)), None
        )

    def _evaluate_threshold(
        self, threshold: Threshold, readings: Readings, memory: ComponentMemory
    ) -> Evaluation:
        for name, wanted in threshold.only.items():
            if name not in readings.values:
                return None
            if readings.values[name] not in wanted:
                return ()
        values = _get_values(threshold, readings, memory, self.now)
        if values is None:
            return None
        if threshold.test in (Comparison.PEERS_ABOVE, Comparison.PEERS_BELOW):
            return self._compare_siblings(threshold, readings, values[0])
        limit = (
            readings.values.get(threshold.limit)
            if isinstance(threshold.limit, str)
            else threshold.limit
        )
        if threshold.test is Comparison.DIFFERS:
            return find_difference(threshold, values[0], limit)
        times = readings.values.get(threshold.times) if threshold.times else 1.0
        if not isinstance(limit, (int, float)) or not isinstance(times, (int, float)):
            return None
        limit *= times
        hit = [
            place for place, value in enumerate(values) if crosses_limit(threshold, value, limit)
        ]
        return describe_crossing(threshold, readings, values, hit, limit) if hit else ()

    def _compare_siblings(
        self, threshold: Threshold, readings: Readings, own: float | str
    ) -> Evaluation:
        """Compare a value with its siblings' median, in deviations."""
        if isinstance(own, str) or not isinstance(threshold.limit, (int, float)):
            return None
        others = self._list_siblings(threshold, readings)
        if len(others) < _MIN_SIBLINGS:
            return None
        median = statistics.median(others)
        spread = statistics.median(abs(other - median) for other in others) * _SIGMA
        off = own - median if threshold.test is Comparison.PEERS_ABOVE else median - own
        if off <= max(threshold.limit * spread, threshold.min_distance):
            return ()
        text = f"{threshold.of} is {own:g}, its {len(others)} siblings have {median:g}"
        return {
            threshold.of: round(own, 6),
            "median": round(median, 6),
            "deviation": round(spread, 6),
        }, text

    def _list_siblings(self, threshold: Threshold, readings: Readings) -> list[float]:
        """The same reading of other components of this model, under the same conditions."""
        found = []
        for other in self.siblings:
            if other.identity == readings.identity:
                continue
            if other.values.get("name") != readings.values.get("name"):
                continue
            if any(other.values.get(name) not in wanted for name, wanted in threshold.only.items()):
                continue
            memory = self.components.get(other.identity)
            values = _get_values(threshold, other, memory, self.now)
            if values is not None and not isinstance(values[0], str):
                found.append(float(values[0]))
        return found


def _get_values(
    threshold: Threshold, readings: Readings, memory: ComponentMemory | None, now: float
) -> tuple[float | str, ...] | None:
    """The value, or one for each part; with a window, how much it grew per unit of time. None if
    it is unknown.
    """
    value = readings.values.get(threshold.of)
    if value is None:
        return None
    if not threshold.over_s:
        return value if isinstance(value, tuple) else (value,)
    if memory is None or isinstance(value, str):
        return None
    return memory.growth.calculate_rates(threshold, now)
