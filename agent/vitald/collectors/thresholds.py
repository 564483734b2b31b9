"""
Compares the readings of one source with the catalogue's thresholds.

A crossing becomes an event of the source; what that means is up to the catalogue and the judge. The
readings of a poll go through three steps:

    threshold_memory  a sample is kept where a counter grew
    comparison        what each threshold of a group shows: crossed, not crossed, or unknown
    thresholds        what that changes about what was reported before

States last: a group of thresholds holds while one of them is crossed, is reported once it has held
for as long as the threshold requires, and again when it is over. A value that cannot be observed
neither begins nor ends anything. Occurrences (counters that rise and readings that change) are
compared with what was reported last, so that each rise and each change is reported once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitald.catalog.threshold import Comparison, Threshold, ThresholdGroup
from vitald.collectors.comparison import (
    PARTS,
    Crossed,
    ReadingComparer,
    format_value,
    get_carried_fields,
    to_field_value,
    to_number,
    to_whole_number,
)
from vitald.collectors.device_registry import MISSED
from vitald.collectors.threshold_memory import (
    ComponentMemory,
    ThresholdIndex,
    ThresholdMemory,
    list_numbers,
    make_key,
    replace_unknown_parts,
)
from vitald.model.component import Component
from vitald.model.event import CLEARED, SETTLING, Value
from vitald.model.source import Readings

_MIN_RISE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A threshold that a component crossed. `text` is for operators."""

    component: Component
    identity: str
    code: str
    fields: Mapping[str, Value]
    text: str


@dataclass(frozen=True, slots=True)
class Observed:
    """What one poll shows.

    `crossings`: what was not reported before. `holding`: states that were reported before and hold
    still. `calm`: component and code of states that are not reported and do not hold.
    """

    crossings: list[Crossing] = field(default_factory=list)
    holding: list[Crossing] = field(default_factory=list)
    calm: set[tuple[Component, str]] = field(default_factory=set)


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

    def configure(self, groups: Iterable[ThresholdGroup]) -> None:
        """Use the thresholds of a reloaded catalogue; what is remembered stays."""
        self._index = ThresholdIndex.build(groups)

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
    ) -> Observed:
        """What the values that these polls read show.

        `now` is on the monotonic clock. `siblings`: the last readings of all components that one of
        them may be compared with.
        """
        index, memory = self._index, self._memory
        for readings in polled:
            component = memory.find_or_add(readings.identity)
            component.growth.record_readings(readings, index.windows, now)
            if component.watched_since is None:
                component.watched_since = now
        comparer = ReadingComparer(components=memory.components, siblings=siblings, now=now)
        poll = PollEvaluation(comparer, settle_s=self._settle_s)
        for readings in polled:
            component = memory.components[readings.identity]
            if component.codes is not index.codes:
                poll.end_without_limit(component.keep_codes(index.codes), readings)
            for group, compared in index.by_kind[readings.component.kind]:
                if compared.isdisjoint(readings.fresh):
                    continue
                evaluate = poll.evaluate_state if group.is_state else poll.evaluate_changes
                evaluate(group, readings, component)
        memory.limit_size({readings.identity for readings in polled})
        return poll.observed


@dataclass(frozen=True, slots=True)
class PollEvaluation:
    """The thresholds at one poll. `observed` is filled in."""

    comparer: ReadingComparer
    settle_s: float
    observed: Observed = field(default_factory=Observed)

    def end_without_limit(self, codes: Iterable[str], readings: Readings) -> None:
        """Report the end of what was reported by thresholds that the catalogue has no longer."""
        for code in codes:
            fields = {
                "code": code,
                "by": "the configuration",
                "reason": "it has no limit for this any more",
            }
            self._report(readings, CLEARED, fields, f"{code} has no limit any more")

    def _report(
        self, readings: Readings, code: str, fields: Mapping[str, Value], text: str
    ) -> None:
        self.observed.crossings.append(make_crossing(readings, code, fields, text))

    # --- states

    def evaluate_state(
        self, group: ThresholdGroup, readings: Readings, memory: ComponentMemory
    ) -> None:
        """Report the group's state if it begins or is over."""
        outcome = self.comparer.compare_group(group, readings)
        if outcome.crossed is not None:
            self._report_holding(group, outcome.crossed, readings, memory)
        elif (shown_by := memory.find_state(group.code)) is not None:
            self._report_over(group, shown_by, readings, memory, known=outcome.is_known)
        else:
            memory.pending_since.pop(group.code, None)
            if not outcome.is_unknown:
                self.observed.calm.add((readings.component, group.code))
                memory.well.add(group.code)

    def _report_holding(
        self,
        group: ThresholdGroup,
        crossed: Crossed,
        readings: Readings,
        memory: ComponentMemory,
    ) -> None:
        threshold, fields, text = crossed.threshold, crossed.fields, crossed.text
        is_settling = self._is_settling(group.code, readings, memory)
        if is_settling:
            fields[SETTLING] = True
        if group.code in memory.open_states:
            memory.pending_since.pop(group.code, None)
            if group.code in memory.settling and not is_settling:
                memory.settling.discard(group.code)
                self._report(readings, group.code, fields, text)
                return
            # What grew in a window may have been resolved since, unless it still grows.
            if not threshold.over_s or memory.growth.grew_at(threshold.of, self.comparer.now):
                crossing = make_crossing(readings, group.code, fields, text)
                self.observed.holding.append(crossing)
            return
        if not self._has_lasted(group, threshold.for_s, memory):
            return
        memory.former_states.pop(group.code, None)
        memory.open_states[group.code] = threshold.of
        if is_settling:
            memory.settling.add(group.code)
        if threshold.for_s:
            text += f" for {threshold.for_s:g} s"
        self._report(readings, group.code, fields, text)

    def _report_over(
        self,
        group: ThresholdGroup,
        shown_by: str,
        readings: Readings,
        memory: ComponentMemory,
        *,
        known: bool,
    ) -> None:
        """No threshold is crossed by what this poll read, but the state was reported before.

        `shown_by`: the reading that showed it. `known`: at least one threshold could be compared.
        """
        code = group.code
        if shown_by not in readings.fresh:
            return  # that reading was not read again
        other = self.comparer.find_crossed_earlier(group, readings)
        if other is not None:
            memory.replace_state(code, other.of)
            memory.pending_since.pop(code, None)
            return
        if not known:
            memory.pending_since.pop(code, None)
            return
        # Growth in a window is over when the window has passed: near its limit, it would otherwise
        # begin and end again and again.
        times = (
            threshold.clears_after_s for threshold in group.thresholds if threshold.of == shown_by
        )
        if not self._has_lasted(group, max(times, default=0.0), memory):
            return
        memory.remove_state(code)
        value = readings.values.get(shown_by)
        fields = {"recovered": True, shown_by: to_field_value(value)}
        self._report(readings, code, fields, f"{shown_by} is {format_value(value)} again")

    def _is_settling(self, code: str, readings: Readings, memory: ComponentMemory) -> bool:
        """Whether it may still change: the component has not been watched for long, and was not
        seen without it. A device that is missing was seen if its other readings were.
        """
        if code in memory.well or memory.watched_since is None:
            return False
        was_here = self.comparer.components.get(readings.identity.removeprefix(MISSED), memory).well
        if readings.identity.startswith(MISSED) and was_here:
            return False
        return self.comparer.now - memory.watched_since < self.settle_s

    def _has_lasted(self, group: ThresholdGroup, seconds: float, memory: ComponentMemory) -> bool:
        """Whether the group has been as it is now for so long."""
        since = memory.pending_since.setdefault(group.code, self.comparer.now)
        if self.comparer.now - since < seconds:
            return False
        del memory.pending_since[group.code]
        return True

    # --- occurrences

    def evaluate_changes(
        self, group: ThresholdGroup, readings: Readings, memory: ComponentMemory
    ) -> None:
        """Report what differs from what was reported of the component."""
        for threshold in group.thresholds:
            value = readings.values.get(threshold.of)
            if value is None or threshold.of not in readings.fresh:
                continue
            key = make_key(group.code, threshold.of)
            before = memory.reported.get(key)
            if group.state and value == before:
                self._note_holding(group, threshold, readings)
            changes = threshold.test is Comparison.CHANGES
            is_same = before == (value if changes else list_numbers(value))
            if is_same and key not in memory.restarted:
                continue  # nearly always
            if any(
                readings.values.get(name) not in wanted for name, wanted in threshold.only.items()
            ):
                continue
            compare = _compare_word if changes else _compare_counter
            crossing = compare(group.code, threshold, readings, memory)
            if crossing is not None:
                self.observed.crossings.append(crossing)

    def _note_holding(
        self, group: ThresholdGroup, threshold: Threshold, readings: Readings
    ) -> None:
        """A state that is reported by a change, and was reported before."""
        value = readings.values[threshold.of]
        fields = {threshold.of: to_field_value(value), **get_carried_fields(threshold, readings)}
        text = f"{threshold.of} is {format_value(value)}"
        self.observed.holding.append(make_crossing(readings, group.code, fields, text))


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
    since = "" if before is not None else ", at the first poll"
    text = f"{threshold.of} rose by {rise:g} to {sum(current):g}{since}"
    return make_crossing(readings, code, fields, text)


def make_crossing(
    readings: Readings, code: str, fields: Mapping[str, Value], text: str
) -> Crossing:
    return Crossing(
        component=readings.component,
        identity=readings.identity,
        code=code,
        fields=fields,
        text=text,
    )
