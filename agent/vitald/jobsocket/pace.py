"""
Whether a job has become slow, and whether one of its ranks holds up the others.

Pure: the caller gives the time. A rank's step time says nothing in a synchronous job, where all
ranks wait for the slowest; its time before the first collective does.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from vitald.jobsocket.rank import BUSY_TIMES, Window, find_median

SUSTAINED_S = 600.0
SLOW_FACTOR = 1.3  # of the best median step time of this attempt
STRAGGLER_FACTOR = 1.2  # of the median of the job's other ranks on this node
_STEPS = 20  # of which the median is taken
_DEVIATIONS = 5.0  # as [nvml.peers] of the catalogue
_SIGMA = 1.4826  # ratio of standard deviation to median absolute deviation
_MIN_SIBLINGS = 3  # a median of fewer means little


class Sustained:
    """Whether a condition has held for `SUSTAINED_S`."""

    __slots__ = ("_since", "is_open")

    def __init__(self) -> None:
        self._since: float | None = None
        self.is_open = False

    def update(self, now: float, *, holds: bool) -> bool:
        """Whether that changed `is_open`."""
        if not holds:
            self._since = None
        elif self._since is None:
            self._since = now
        was_open, since = self.is_open, self._since
        self.is_open = since is not None and (was_open or now - since >= SUSTAINED_S)
        return self.is_open != was_open


class Pace:
    """The step time of a job: the median over its ranks, at each reading that found a step."""

    __slots__ = ("_best", "_steps", "slow")

    def __init__(self) -> None:
        self._steps = Window(_STEPS)
        self._best: float | None = None
        self.slow = Sustained()

    def restart(self) -> None:
        """Another attempt of the job: its best time may be another."""
        self._steps.clear()
        self._best = None

    def add(self, seconds: float) -> None:
        self._steps.add(seconds)
        median = self._steps.median
        if len(self._steps) >= _STEPS and median:
            self._best = median if self._best is None else min(self._best, median)

    def judge(self, now: float) -> bool:
        """Whether the job became slow, or fast again."""
        median, best = self._steps.median, self._best
        is_slow = median is not None and best is not None and median > SLOW_FACTOR * best
        return self.slow.update(now, holds=is_slow)

    @property
    def median(self) -> float | None:
        return self._steps.median

    @property
    def best(self) -> float | None:
        return self._best


@dataclass(frozen=True, slots=True)
class Comparison:
    """The busy time of a rank, and the median of its siblings."""

    own: float
    others: float


def find_stragglers(busy: Mapping[Hashable, Window]) -> dict[Hashable, Comparison]:
    """The ranks of one job whose busy time is far above their siblings', by their key."""
    medians = {
        key: window.median or 0.0 for key, window in busy.items() if len(window) >= BUSY_TIMES // 2
    }
    if len(medians) <= _MIN_SIBLINGS:
        return {}
    found: dict[Hashable, Comparison] = {}
    for key, own in medians.items():
        others = [median for other, median in medians.items() if other != key]
        middle = find_median(others) or 0.0
        spread = find_median([abs(other - middle) for other in others]) or 0.0
        margin = max(_DEVIATIONS * _SIGMA * spread, (STRAGGLER_FACTOR - 1.0) * middle)
        if middle > 0.0 and own - middle > margin:
            found[key] = Comparison(own, middle)
    return found
