"""How often something may be done: at most so many times at once, and so many in a minute."""

from __future__ import annotations

import math
from dataclasses import dataclass

_ROUNDING_S = 1e-6  # a shorter wait may be shorter than any clock shows


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
