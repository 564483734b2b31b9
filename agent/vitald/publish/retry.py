"""
When a receiver that failed is tried again; and how often something may be done: at most so many
times at once, and so many in a minute.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from vitald.backoff import Backoff

_UNREACHABLE = Backoff(1.0, 8.0)  # hence what it says is right within 10 s of its return
_REFUSED = Backoff(1.0, 60.0)
_LEAST_JITTER = 0.1
_ROUNDING_S = 1e-6  # a shorter wait may be shorter than any clock shows


@dataclass(slots=True)
class Retry:
    """Failures in succession. Another kind of failure begins anew: a server that answers again may
    refuse for a moment.
    """

    unreachable: Backoff = _UNREACHABLE
    refused: Backoff = _REFUSED
    failures: int = field(default=0, init=False)
    _was_unreachable: bool = field(default=False, init=False)

    def note_failure(self, *, is_unreachable: bool, retry_after_s: float | None = None) -> float:
        """Seconds until the next attempt. They are spread widely: when an API server returns, all
        nodes of a cluster see that together.
        """
        if is_unreachable != self._was_unreachable:
            self.failures, self._was_unreachable = 0, is_unreachable
        backoff = self.unreachable if is_unreachable else self.refused
        delay = backoff.delay_s(self.failures) * random.uniform(_LEAST_JITTER, 1.0)  # noqa: S311
        self.failures += 1
        if retry_after_s is None:
            return delay
        return max(delay, retry_after_s * random.uniform(1.0, 1.2))  # noqa: S311

    def note_success(self) -> None:
        self.failures = 0


@dataclass(slots=True)
class RateLimit:
    """`burst` times at once and `per_minute` in the long run, hence at most the sum of them in any
    minute. Times on the monotonic clock.

    `full_at`: from when on a whole burst is possible. It is all that is to be remembered.
    """

    per_minute: float
    burst: int
    full_at: float = 0.0

    def find_wait_s(self, now: float, reserve: int = 0) -> float:
        """Seconds until it may be done once, with so many more left of the burst; 0 for now."""
        wait = self.full_at - now - (self.burst - 1 - reserve) * self._period_s
        return wait if wait > _ROUNDING_S else 0.0

    def count_available(self, now: float) -> int:
        """How often it may be done at once."""
        spent = (self.full_at - now - _ROUNDING_S) / self._period_s
        return self.burst - max(0, math.ceil(spent))

    def count(self, now: float) -> None:
        """It is done once."""
        self.full_at = max(self.full_at, now) + self._period_s

    def take(self, now: float) -> float:
        """Seconds to wait; 0 if it may be done now, which counts it."""
        wait = self.find_wait_s(now)
        if not wait:
            self.count(now)
        return wait

    @property
    def refill_s(self) -> float:
        """How long it takes until a whole burst is possible again."""
        return self.burst * self._period_s

    @property
    def _period_s(self) -> float:
        return 60.0 / self.per_minute
