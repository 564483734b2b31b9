"""A rate limit: so many at once, and so many a second."""

from __future__ import annotations


class TokenBucket:
    """The caller gives the time, in seconds."""

    __slots__ = ("_burst", "_per_s", "_tokens", "_updated")

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._tokens = burst
        self._updated = now

    def take(self, now: float) -> bool:
        """Whether one more is allowed now."""
        passed = max(0.0, now - self._updated)
        self._tokens = min(self._burst, self._tokens + passed * self._per_s)
        self._updated = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def is_full(self, now: float) -> bool:
        """Whether it has been at rest, and may be forgotten."""
        return self._tokens + max(0.0, now - self._updated) * self._per_s >= self._burst
