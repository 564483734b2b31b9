"""The end of tasks that are not in a task group."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

_AGAIN_S = 0.2


async def end_tasks(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel them until they have ended. What they raise is theirs to be read.

    Once is not enough: `asyncio.wait_for` of Python 3.10 and 3.11 loses a cancellation that comes
    together with the answer. Source: github.com/python/cpython/issues/86296.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_AGAIN_S)
