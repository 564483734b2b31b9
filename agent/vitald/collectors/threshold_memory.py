"""
What is remembered of each component between polls and across restarts, so that each state and each
rise of a counter is reported once.

It is kept by identity, and stored as part of the source's position. A boot or a reset of the
device clears it; of counters with a window of an hour or more it keeps samples.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from vitald.catalog.threshold import Comparison, Threshold, ThresholdGroup
from vitald.model.source import Readings, Sample
from vitald.model.words import ComponentKind

Samples = deque[tuple[float, tuple[float, ...]]]  # monotonic time, and the counter's parts

_MIN_KEPT_WINDOW_S = 3600.0
# The time of the last read is stored rounded down to this, so that not every poll is a change
_READ_STEP_S = 600.0
# Of a counter in a window of more than an hour: growth within a day is then known to some minutes
_MAX_SAMPLES = 256
# Drives and functions may come and go without end: past this many, components of which nothing was
# reported are forgotten
_MAX_COMPONENTS = 16_384


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


def list_numbers(value: Sample | None) -> tuple[float, ...]:
    if value is None or isinstance(value, str):
        return ()
    return value if isinstance(value, tuple) else (value,)


def replace_unknown_parts(
    values: tuple[float, ...], before: tuple[float, ...]
) -> tuple[float, ...]:
    """Replaces each part that could not be read (NaN) with its earlier value."""
    return tuple(was if math.isnan(value) else value for value, was in zip(values, before))


class CounterGrowth:
    """How much the counters of one component grew within a window.

    A sample is kept where a counter changed. Counters that have a window of an hour or more are
    kept across a restart of the daemon, not of the node.
    """

    __slots__ = ("_read_at", "_resumed", "_samples")

    def __init__(
        self, stored: Mapping[str, Any] | None = None, windows: Iterable[str] = ()
    ) -> None:
        """`stored`: as `build_memory` returned it, of which the counters in `windows` are taken.
        Raises TypeError, ValueError or AttributeError for anything else.
        """
        stored = stored or {}
        self._samples: dict[str, Samples] = {
            reading: deque((float(at), tuple(map(float, values))) for at, values in samples)
            for reading, samples in stored.get("grown", {}).items()
            if reading in windows
        }
        # When counters were last read; after a restart, up to _READ_STEP_S before that.
        self._read_at = float(stored.get("read_at", 0.0))
        self._resumed = set(self._samples)  # counters not read since a restart of the daemon

    def build_memory(self, windows: Mapping[str, tuple[float, ...]]) -> dict[str, Any]:
        """What a restart of the daemon needs, for JSON; empty if it needs nothing."""
        kept = {
            reading: list(samples)
            for reading, samples in self._samples.items()
            if samples and windows.get(reading, (0.0,))[0] >= _MIN_KEPT_WINDOW_S
        }
        if not kept:
            return {}
        return {"grown": kept, "read_at": self._read_at // _READ_STEP_S * _READ_STEP_S}

    def record_readings(
        self, readings: Readings, windows: Mapping[str, tuple[float, ...]], now: float
    ) -> None:
        """Add a sample for each counter that this poll read and that changed."""
        stopped_s = now - self._read_at
        for reading, sizes in windows.items():
            value = readings.values.get(reading)
            if value is None or isinstance(value, str) or reading not in readings.fresh:
                continue
            samples, numbers = self._samples.setdefault(reading, deque()), list_numbers(value)
            if samples and len(samples[-1][1]) != len(numbers):
                samples.clear()
            if samples:
                numbers = replace_unknown_parts(numbers, samples[-1][1])
            if reading in self._resumed:
                self._resumed.discard(reading)
                if samples:
                    _spread_growth(samples, numbers, sizes, stopped_s=stopped_s, now=now)
            self._read_at = now
            if not samples or samples[-1][1] != numbers:
                samples.append((now, numbers))
                self._drop_old_samples(reading, sizes[0], now)

    def _drop_old_samples(self, reading: str, window: float, now: float) -> None:
        samples = self._samples[reading]
        while len(samples) > 1 and samples[1][0] <= now - window:
            samples.popleft()
        if len(samples) > _MAX_SAMPLES and window > _MIN_KEPT_WINDOW_S:
            self._samples[reading] = _thin_samples(samples)

    def calculate_rates(self, threshold: Threshold, now: float) -> tuple[float, ...] | None:
        """Growth of each part in the threshold's window, per its unit of time; None if the counter
        has not been read.
        """
        samples = self._samples.get(threshold.of)
        if samples is None:
            return None
        if len(samples) == 1:  # it has not changed since it was first read
            return (0.0,) * len(samples[0][1])
        start = now - threshold.over_s
        before = [sample for sample in samples if sample[0] <= start]
        inside = before[-1:] + [sample for sample in samples if sample[0] > start]
        grown = [0.0] * len(inside[-1][1])
        for (_, earlier), (_, later) in pairwise(inside):
            for place, (was, at) in enumerate(zip(earlier, later)):
                grown[place] += max(0.0, at - was)  # after a fall it is counted from there
        return tuple(total / threshold.over_s * threshold.per_s for total in grown)

    def grew_at(self, reading: str, now: float) -> bool:
        """Whether the poll at this time found the counter changed."""
        samples = self._samples.get(reading)
        return bool(samples and len(samples) > 1 and samples[-1][0] == now)


def _spread_growth(
    samples: Samples,
    numbers: tuple[float, ...],
    sizes: Iterable[float],
    *,
    stopped_s: float,
    now: float,
) -> None:
    """Distribute what a counter grew by while the daemon was stopped evenly over that time.

    Otherwise the growth of days would count as that of the last minute. A stop that fits into a
    window needs no samples in between. `sizes`: the windows, longest first.
    """
    last_at, last = samples[-1]
    if last == numbers or any(was > at for was, at in zip(last, numbers)):
        return
    for window in sizes:
        if window < stopped_s and now - window > last_at:
            share = 1.0 - window / stopped_s
            values = tuple(was + (at - was) * share for was, at in zip(last, numbers))
            samples.append((now - window, values))
            last_at = now - window


def _thin_samples(samples: Samples) -> Samples:
    """Every second sample, and each one at a fall, as no other may stand for it."""
    every = list(samples)
    kept = deque(every[:1])
    for place in range(1, len(every) - 1):
        before, here, after = kept[-1][1], every[place][1], every[place + 1][1]
        falls = any(not was <= at <= will for was, at, will in zip(before, here, after))
        if place % 2 == 0 or falls:
            kept.append(every[place])
    kept.append(every[-1])
    while len(kept) > 4 * _MAX_SAMPLES:  # a value that rises and falls all day is no counter
        kept.popleft()
    return kept


@dataclass(slots=True)
class ComponentMemory:
    """What is remembered of one component."""

    # Codes of states that were reported as begun, and the reading that showed each
    open_states: dict[str, str] = field(default_factory=dict)
    # The same, from before a boot or a reset: to be reported again, or as over
    former_states: dict[str, str] = field(default_factory=dict)
    # code:reading -> the value that was reported last
    reported: dict[str, Sample] = field(default_factory=dict)
    # code -> since when a state is about to begin or to end (monotonic)
    pending_since: dict[str, float] = field(default_factory=dict)
    growth: CounterGrowth = field(default_factory=CounterGrowth)
    # code:reading of counters that were not read since a boot or a reset
    restarted: set[str] = field(default_factory=set)
    # First poll since a start or a reset (monotonic); None before it
    watched_since: float | None = None
    # Codes of states that did not hold in a poll since then
    well: set[str] = field(default_factory=set)
    # Codes of open states that were reported as settling
    settling: set[str] = field(default_factory=set)
    codes: frozenset[str] | None = None  # of the thresholds at the last poll

    @property
    def is_empty(self) -> bool:
        """Whether nothing was reported of the component."""
        return not (self.open_states or self.former_states or self.reported)

    def find_state(self, code: str) -> str | None:
        """The reading that showed a state when it was reported; None if it was not."""
        return self.open_states.get(code) or self.former_states.get(code)

    def replace_state(self, code: str, reading: str) -> None:
        """Another reading shows the state now."""
        states = self.open_states if code in self.open_states else self.former_states
        states[code] = reading

    def remove_state(self, code: str) -> None:
        """The state is over."""
        self.settling.discard(code)
        self.well.add(code)
        if not self.open_states.pop(code, ""):
            del self.former_states[code]

    def keep_codes(self, codes: frozenset[str]) -> list[str]:
        """Forget what was reported of codes that have no threshold any more, and return these."""
        self.codes = codes
        keys = [key for key in self.reported if key.rpartition(":")[0] not in codes]
        others = {key.rpartition(":")[0] for key in keys}
        others |= (self.open_states.keys() | self.former_states.keys()) - codes
        for key in keys:
            del self.reported[key]
        for code in others:
            self.open_states.pop(code, None)
            self.former_states.pop(code, None)
        return sorted(others)


class ThresholdMemory:
    """The memory of all components of one source, by identity."""

    def __init__(self, stored: Mapping[str, Any], index: ThresholdIndex) -> None:
        """`stored`: as `build_memory` returned it. Raises TypeError, ValueError or AttributeError
        for anything else.
        """
        self.components: dict[str, ComponentMemory] = {
            identity: _restore_component(component, index) for identity, component in stored.items()
        }

    def build_memory(self, index: ThresholdIndex) -> dict[str, Any]:
        """What is to be stored, for JSON."""
        kept = {}
        for identity, memory in self.components.items():
            growth = memory.growth.build_memory(index.windows)
            if growth or not memory.is_empty:
                # What settles is reported again after a restart.
                states = memory.open_states
                settling = {code: states[code] for code in states if code in memory.settling}
                settled = {code: states[code] for code in states if code not in settling}
                stored = {"on": settled, "said": memory.reported}
                former = {**memory.former_states, **settling}
                kept[identity] = {**stored, **({"stood": former} if former else {}), **growth}
        return kept

    def find_or_add(self, identity: str) -> ComponentMemory:
        memory = self.components.get(identity)
        if memory is None:
            memory = self.components[identity] = ComponentMemory()
        return memory

    def forget_component(
        self, identity: str, index: ThresholdIndex, *, counters: bool = False
    ) -> None:
        """Something ended the component's findings: states that still hold are reported again.
        `counters`: its counters begin at zero as well.
        """
        memory = self.components.get(identity)
        if memory is None:
            return
        gone = index.changing_states | index.counters if counters else index.changing_states
        reported = {key: value for key, value in memory.reported.items() if key not in gone}
        self.components[identity] = ComponentMemory(
            former_states={**memory.former_states, **memory.open_states},
            reported=reported,
            restarted=set(reported),
        )

    def restart_settling(self) -> None:
        """Forget what was observed so far, as after a start."""
        for memory in self.components.values():
            memory.watched_since = None
            memory.well.clear()

    def report_again(self, codes: Collection[str]) -> None:
        """Report the open states of these codes again."""
        for memory in self.components.values():
            for code in memory.open_states.keys() & codes:
                memory.former_states[code] = memory.open_states.pop(code)

    def rename_component(self, former: str, identity: str) -> None:
        """The component that was known as `former` goes by `identity` from now on."""
        memory = self.components.pop(former, None)
        if memory is not None and identity not in self.components:
            self.components[identity] = memory

    def limit_size(self, needed: Collection[str]) -> None:
        """Forget components of which nothing was reported, beyond those that are `needed`."""
        surplus = len(self.components) - _MAX_COMPONENTS
        if surplus <= 0:
            return
        idle = [
            identity
            for identity, memory in self.components.items()
            if identity not in needed and memory.is_empty
        ]
        for identity in idle[:surplus]:
            del self.components[identity]


def _restore_component(stored: Mapping[str, Any], index: ThresholdIndex) -> ComponentMemory:
    return ComponentMemory(
        open_states=dict(stored.get("on", {})),
        former_states=dict(stored.get("stood", {})),
        reported={
            key: tuple(value) if isinstance(value, list) else value
            for key, value in stored.get("said", {}).items()
        },
        growth=CounterGrowth(stored, index.windows),
    )
