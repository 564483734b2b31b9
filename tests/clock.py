"""An event loop whose clock a test can advance, so that a deadline passes at a defined moment."""

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
