"""
Compares the readings of one source with the catalogue's thresholds.

A crossing becomes an event of the source; what that means is up to the catalogue and the judge.
States last: a group of thresholds holds while one of them is crossed, is reported once it has held
for as long as the threshold requires, and again when it is over. A value that cannot be observed
neither begins nor ends anything. Occurrences (counters that rise and readings that change) are
compared with what was reported last, so that each rise and each change is reported once.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitald.catalog.threshold import Comparison, Threshold, ThresholdGroup
from vitald.collectors.crossing import (
    PARTS,
    Crossing,
    CrossingText,
    Evaluation,
    ObservedStates,
    ThresholdIndex,
    crosses_limit,
    describe_crossing,
    find_difference,
    format_value,
    get_carried_fields,
    list_numbers,
    make_crossing,
    make_key,
    replace_unknown_parts,
    to_field_value,
    to_number,
    to_whole_number,
)
from vitald.collectors.device_registry import MISSED
from vitald.collectors.threshold_memory import ComponentMemory, ThresholdMemory
from vitald.model import Component, Readings, Value
from vitald.model.event import CLEARED, SETTLING

_SIGMA = 1.4826  # ratio of standard deviation to median absolute deviation
_MIN_SIBLINGS = 3  # a median of fewer means little
_MIN_RISE = 1e-9


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


def evaluate_changes(
    group: ThresholdGroup, readings: Readings, memory: ComponentMemory, observed: ObservedStates
) -> list[Crossing]:
    """What this poll read that differs from what was reported of the component.

    A state that is reported by a change, and was reported before, is added to `observed`.
    """
    crossings = []
    for threshold in group.thresholds:
        value = readings.values.get(threshold.of)
        if value is None or threshold.of not in readings.fresh:
            continue
        key = make_key(group.code, threshold.of)
        before = memory.reported.get(key)
        if group.state and value == before:
            fields = {
                threshold.of: to_field_value(value),
                **get_carried_fields(threshold, readings),
            }
            text = f"{threshold.of} is {format_value(value)}"
            observed.holding.append(make_crossing(readings, group.code, fields, text))
        changes = threshold.test is Comparison.CHANGES
        if before == (value if changes else list_numbers(value)) and key not in memory.restarted:
            continue  # unchanged: nearly always
        if any(readings.values.get(name) not in wanted for name, wanted in threshold.only.items()):
            continue
        compare = _compare_word if changes else _compare_counter
        crossing = compare(group.code, threshold, readings, memory)
        if crossing is not None:
            crossings.append(crossing)
    return crossings


def _compare_word(
    code: str, threshold: Threshold, readings: Readings, memory: ComponentMemory
) -> Crossing | None:
    """A crossing if the reading differs from what was reported before.

    If nothing was reported, 0 counts as reported, or whatever text is there first.
    """
    key = make_key(code, threshold.of)
    value, before = readings.values[threshold.of], memory.reported.get(key)
    unreported = value if isinstance(value, str) else 0
    if value != before:
        memory.reported[key] = value
    if value == (unreported if before is None else before):
        return None
    fields = {
        threshold.of: to_field_value(value),
        "was": to_field_value(before),
        **get_carried_fields(threshold, readings),
    }
    return make_crossing(readings, code, fields, f"{threshold.of} is {format_value(value)}")


def _compare_counter(
    code: str, threshold: Threshold, readings: Readings, memory: ComponentMemory
) -> Crossing | None:
    """A crossing if a counter, or a part of it, rose by the limit since it was reported."""
    key = make_key(code, threshold.of)
    value, before = readings.values[threshold.of], memory.reported.get(key)
    base = list_numbers(before)
    current = list_numbers(value)
    if len(base) != len(current):
        base = (0.0,) * len(current)
    current = replace_unknown_parts(current, base)
    if before is None and threshold.baseline:
        base = current
    if key in memory.restarted:
        # The counter was reset, unless it is one that nothing resets.
        base = tuple(was if was <= at else 0.0 for was, at in zip(base, current))
    elif not threshold.returns:
        # It fell for no known reason: its new value is not a change to report.
        base = tuple(map(min, base, current))
    limit = max(to_number(threshold.limit), _MIN_RISE)
    risen = [place for place, (was, at) in enumerate(zip(base, current)) if at - was >= limit]
    memory.reported[key] = tuple(
        at if place in risen else was for place, (was, at) in enumerate(zip(base, current))
    )
    memory.restarted.discard(key)
    if not risen:
        return None
    rise = sum(current[place] - base[place] for place in risen)
    fields: dict[str, Value] = {
        threshold.of: to_whole_number(sum(current)),
        "rise": to_whole_number(rise),
    }
    if isinstance(value, tuple):
        fields[f"{PARTS.get(readings.component.kind, 'port')}s"] = list(risen)
    since = "" if before is not None else ", at the first look"
    text = f"{threshold.of} rose by {rise:g} to {sum(current):g}{since}"
    return make_crossing(readings, code, fields, text)
