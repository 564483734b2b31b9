"""
How tests wait: for a condition, and long. A wait that succeeds costs nothing, so one limit does for
all; it ends a test whose condition will never hold, on a machine however busy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Union

WAIT_S = 60.0

# What is waited for; a function says it when it did not come, with what was there instead.
What = Union[str, Callable[[], str]]


def until(holds: Callable[[], object], what: What = "it to hold", seconds: float = WAIT_S) -> None:
    """`seconds`: only where what is waited for takes longer by itself."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(_describe_failure(what, seconds))
        time.sleep(0.01)


async def until_async(holds: Callable[[], object], what: What = "it to hold") -> None:
    """In the loop of the test, which goes on meanwhile."""
    end = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(_describe_failure(what, WAIT_S))
        await asyncio.sleep(0.002)


def _describe_failure(what: What, seconds: float) -> str:
    return f"waited {seconds:g} s for {what if isinstance(what, str) else what()}"
