"""
How much the counters of one component grew within a window.

A sample is kept where a counter changed. Counters that have a window of an hour or more are kept
across a restart of the daemon, not of the node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from vitald.catalog.threshold import Threshold
from vitald.collectors.crossing import list_numbers, replace_unknown_parts
from vitald.model import Readings

Samples = deque[tuple[float, tuple[float, ...]]]  # monotonic time, and the counter's parts

_MIN_KEPT_WINDOW_S = 3600.0
# The time of the last read is stored rounded down to this, so that not every poll is a change
_READ_STEP_S = 600.0
# Of a counter in a window of more than an hour: growth within a day is then known to some minutes
_MAX_SAMPLES = 256


class CounterGrowth:
    """The samples of one component's counters that have a window."""

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
