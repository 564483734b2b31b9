"""Hands the batches of a running task to an asynchronous iterator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from vitald.model import Batch
from vitald.tasks import end_tasks

Emit = Callable[[Batch], Awaitable[None]]


async def iterate_batches(produce: Callable[[Emit], Awaitable[None]]) -> AsyncIterator[Batch]:
    """The batches that `produce` emits. It is cancelled when the iterator is closed, and what it
    raises is raised here.

    `emit` returns once the batch was processed, that is when the next one is requested: readings
    taken while the pipeline is busy would be out of date when their turn comes.
    """
    queue: asyncio.Queue[Batch | None] = asyncio.Queue()

    async def emit(batch: Batch) -> None:
        queue.put_nowait(batch)
        await queue.join()

    producer = asyncio.ensure_future(produce(emit))
    producer.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (batch := await queue.get()) is not None:
            yield batch
            queue.task_done()
        await producer
    finally:
        await end_tasks([producer])
