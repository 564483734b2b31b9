"""
Waiting for a condition. A wait that succeeds costs nothing, so one long limit is enough for all
tests: it only ends a test whose condition never holds, and is not reached on a busy machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Union

WAIT_S = 60.0

# Describes the condition in the error message. A function is called when the wait has failed, and
# can add the state at that time.
Description = Union[str, Callable[[], str]]


def until(
    holds: Callable[[], object], what: Description = "it to hold", seconds: float = WAIT_S
) -> None:
    """Blocks until `holds()` is true. Raises AssertionError after `seconds`, which only conditions
    that take more than a minute by themselves need.
    """
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(_describe_failure(what, seconds))
        time.sleep(0.01)


async def until_async(holds: Callable[[], object], what: Description = "it to hold") -> None:
    """The same without blocking the event loop."""
    end = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(_describe_failure(what, WAIT_S))
        await asyncio.sleep(0.002)


def _describe_failure(what: Description, seconds: float) -> str:
    return f"waited {seconds:g} s for {what if isinstance(what, str) else what()}"
