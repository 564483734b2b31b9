"""Clocks that a test can advance: of an event loop, so that a deadline passes at a defined moment,
and in the place of the module `time`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

HOUR_S = 3600.0
T = TypeVar("T")


class TurnedLoop(asyncio.SelectorEventLoop):
    """Its time is the monotonic clock plus the seconds by which it was advanced."""

    _turned_s = 0.0

    def time(self) -> float:
        return super().time() + self._turned_s

    def turn(self, seconds: float = HOUR_S) -> None:
        self._turned_s += seconds


def turn(seconds: float = HOUR_S) -> None:
    """Advances the clock, from within a coroutine that `run_turned` runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, TurnedLoop)
    loop.turn(seconds)


def run_turned(story: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, on a TurnedLoop."""
    loop = TurnedLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(story)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class StandingClock:
    """Takes the place of the module `time` in a module under test. It stands still until `now` is
    changed: what happens meanwhile did not have to wait.
    """

    def __init__(self) -> None:
        self.now = 1_770_000_000.0

    def monotonic(self) -> float:
        return self.now - 1_000_000.0

    def time(self) -> float:
        return self.now
