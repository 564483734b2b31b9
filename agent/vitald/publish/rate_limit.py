"""A token bucket: at most so many writes at once, and so many in a minute."""

from __future__ import annotations

from dataclasses import dataclass, field

_ROUNDING = 1e-6  # else the last wait may be shorter than any clock shows


@dataclass(slots=True)
class RateLimit:
    """`burst` writes at once, `per_minute` in the long run. Times on the monotonic clock."""

    per_minute: float
    burst: int
    _left: float = field(init=False)
    _at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._left = float(self.burst)

    def take(self, now: float) -> float:
        """Seconds to wait before a write; 0 if it may be done now, which counts it."""
        gained = max(0.0, now - self._at) * self.per_minute / 60.0 if self._at else 0.0
        self._left = min(float(self.burst), self._left + gained)
        self._at = now
        if self._left >= 1.0 - _ROUNDING:
            self._left = max(0.0, self._left - 1.0)
            return 0.0
        return (1.0 - self._left) * 60.0 / self.per_minute
