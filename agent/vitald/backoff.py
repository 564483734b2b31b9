"""
Exponential back-off: the delay before the next attempt.

The caller waits, and counts its failures in succession, from 0 after a success.
"""

from __future__ import annotations

from dataclasses import dataclass

_DOUBLINGS = 512  # a float holds no power of two from 1024 on


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay after the first failure, and the longest that there is, in seconds."""

    first_s: float
    longest_s: float

    def delay_s(self, failures: int) -> float:
        """Before the next attempt. Each of `failures`, those before the last, doubles it."""
        return min(self.first_s * 2.0 ** min(failures, _DOUBLINGS), self.longest_s)
