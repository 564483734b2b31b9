"""An event loop whose clock a test turns ahead, so that a deadline passes when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

HOUR_S = 3600.0
T = TypeVar("T")


class TurnedLoop(asyncio.SelectorEventLoop):
    """Its time is that of the machine, and what it was turned ahead."""

    _turned_s = 0.0

    def time(self) -> float:
        return super().time() + self._turned_s

    def turn(self, seconds: float = HOUR_S) -> None:
        self._turned_s += seconds


def turn(seconds: float = HOUR_S) -> None:
    """In a coroutine that `run_turned` runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, TurnedLoop)
    loop.turn(seconds)


def run_turned(story: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run does."""
    loop = TurnedLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(story)
    finally:
        asyncio.set_event_loop(None)
        loop.close()
