"""A clock that a test sets forward: it stands in for the module `time`."""

from __future__ import annotations

import time


class Clock:
    """The real clock, and how far it was set forward, in seconds."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def time(self) -> float:
        return time.time() + self.ahead

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead
