"""A task that loses a cancellation ends all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import WAIT_S
from vitald.collectors.nvml.collector import iterate_batches
from vitald.model.source import Batch
from vitald.publish import daemon_feed
from vitald.publish.daemon_feed import DaemonFeed
from vitald.tasks import end_tasks


async def lose_cancellations(count: int = 1) -> None:
    """Stands for asyncio.wait_for, whose answer came together with the cancellation."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not count:
                raise
            count -= 1


def run(work: Callable[[], Awaitable[None]]) -> None:
    """To its end, without another cancellation."""

    async def wait() -> None:
        task = asyncio.ensure_future(work())
        done, _ = await asyncio.wait([task], timeout=WAIT_S)
        assert done, "it does not end"
        task.result()

    asyncio.run(wait())


def test_tasks_are_cancelled_until_they_have_ended() -> None:
    async def end() -> None:
        async def fail() -> None:
            raise ValueError("its own")

        tasks = [asyncio.ensure_future(each) for each in (lose_cancellations(2), fail())]
        await asyncio.sleep(0)
        await end_tasks(tasks)
        assert tasks[0].cancelled() and isinstance(tasks[1].exception(), ValueError)

    run(end)


def test_the_feed_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def lose(*_: object) -> None:
        await lose_cancellations()

    monkeypatch.setattr(daemon_feed, "_watch_changes", lose)

    async def end() -> None:
        feed = asyncio.ensure_future(DaemonFeed(tmp_path / "socket", lambda _: None).run())
        await asyncio.sleep(0.01)
        feed.cancel()
        await asyncio.wait([feed])
        assert feed.cancelled()

    run(end)


def test_what_emits_batches_ends() -> None:
    async def end() -> None:
        async def produce(emit: Callable[[Batch], Awaitable[None]]) -> None:
            with suppress(asyncio.CancelledError):
                await emit(Batch([]))
            await asyncio.Event().wait()

        batches = iterate_batches(produce)
        assert await batches.__anext__() == Batch([])
        await batches.aclose()  # type: ignore[attr-defined]

    run(end)
