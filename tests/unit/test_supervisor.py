"""Sources that fail, hang, and cannot even be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from tests.waiting import WAIT_S
from vitald.backoff import Backoff
from vitald.core import supervisor as module
from vitald.core.supervisor import Supervisor
from vitald.model.source import Batch, SourceFailed, SourceState


class Pipeline:
    """What is handed in."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.said: list[tuple[str, object]] = []
        self.room = asyncio.Event()
        self.room.set()
        self.changed = asyncio.Event()

    def position(self, _: str) -> None:
        return None

    async def put(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.changed.set()
        await self.room.wait()

    async def put_own_event(self, code: str, fields: dict[str, Any], *_: object) -> None:
        self.said.append((code, fields.get("recovered")))
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(WAIT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    @property
    def states(self) -> list[SourceState]:
        return [batch.state for batch in self.batches]


class Source:
    """Each attempt goes by its own script: batches, then what it does instead of the next one."""

    name = "kernel_log"
    deadline_s = 30.0

    def __init__(self, *attempts: Callable[[], Any]) -> None:
        self.attempts = list(attempts)
        self.silent = asyncio.Event()  # it has handed in its batch, and does what it does

    async def read_batches(self, _: object) -> AsyncIterator[Batch]:
        yield Batch(self.name, caught_up=True)
        self.silent.set()
        await self.attempts.pop(0)()


async def hangs() -> None:
    await asyncio.Event().wait()


async def fails() -> None:
    raise SourceFailed("it is not there")


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))

    def pass_(self, watched: Supervisor, seconds: float, step: float = 5.0) -> str:
        """What the pulse sees on its way."""
        stuck = ""
        for _ in range(round(seconds / step)):
            self.now += step
            stuck = watched.cancel_hanging()
        return stuck


def supervise(pipeline: Any) -> Supervisor:
    return Supervisor(pipeline)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(module, "_BACKOFF", Backoff(0.0, 0.0))
    return Clock(monkeypatch)


def test_a_source_that_hangs_is_cancelled_and_read_again(clock: Clock) -> None:
    async def tell() -> None:
        pipeline, source = Pipeline(), Source(hangs, hangs)
        watched = supervise(pipeline)
        task = asyncio.create_task(watched.read(source))
        await source.silent.wait()
        assert clock.pass_(watched, 90.0) == ""
        assert pipeline.states == [SourceState.OK], "three deadlines are not over yet"
        clock.pass_(watched, 5.0)
        await pipeline.until(lambda: len(pipeline.said) == 2)
        assert pipeline.states == [SourceState.OK, SourceState.FAILED, SourceState.OK]
        assert pipeline.batches[1].detail == "it gave no sign of life for 90 s"
        assert pipeline.said == [("vitald/source_failed", False), ("vitald/source_failed", True)]
        assert watched.cancel_hanging() == ""
        task.cancel()

    asyncio.run(tell())


def test_one_that_cannot_be_cancelled_is_named(clock: Clock) -> None:
    released = asyncio.Event()

    async def clings() -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()

    async def tell() -> None:
        pipeline, source = Pipeline(), Source(clings)
        watched = supervise(pipeline)
        task = asyncio.create_task(watched.read(source))
        await source.silent.wait()
        assert clock.pass_(watched, 105.0) == ""
        assert clock.pass_(watched, 5.0) == "kernel_log"
        task.cancel()
        released.set()

    asyncio.run(tell())


def test_who_waits_for_the_judge_does_not_hang(clock: Clock) -> None:
    async def tell() -> None:
        pipeline, source = Pipeline(), Source(hangs)
        pipeline.room.clear()
        watched = supervise(pipeline)
        task = asyncio.create_task(watched.read(source))
        await pipeline.until(lambda: bool(pipeline.batches))
        assert clock.pass_(watched, 600.0) == ""
        pipeline.room.set()
        await source.silent.wait()
        assert (pipeline.states, pipeline.said) == ([SourceState.OK], [])
        task.cancel()

    asyncio.run(tell())


def test_time_in_which_the_daemon_itself_was_stopped_is_no_silence(clock: Clock) -> None:
    async def tell() -> None:
        pipeline, source = Pipeline(), Source(hangs)
        watched = supervise(pipeline)
        task = asyncio.create_task(watched.read(source))
        await source.silent.wait()
        clock.pass_(watched, 3600.0, step=3600.0)
        await asyncio.sleep(0)
        assert (pipeline.states, pipeline.said) == ([SourceState.OK], [])
        task.cancel()

    asyncio.run(tell())


def test_one_that_fails_again_and_again_is_told_once(clock: Clock) -> None:
    class Absent(Source):
        async def read_batches(self, _: object) -> AsyncIterator[Batch]:
            attempt = self.attempts.pop(0)
            if attempt is hangs:
                self.silent.set()
            await attempt()
            yield Batch(self.name)

    async def tell() -> None:
        pipeline, source = Pipeline(), Absent(fails, fails, fails, hangs)
        task = asyncio.create_task(supervise(pipeline).read(source))
        await source.silent.wait()
        assert pipeline.states == [SourceState.FAILED] * 3
        assert pipeline.said == [("vitald/source_failed", False)]
        task.cancel()

    asyncio.run(tell())


def test_a_past_that_hangs_does_not_keep_us_from_the_present(clock: Clock) -> None:
    async def past() -> AsyncIterator[Batch]:
        yield Batch("kernel_log")
        await hangs()

    async def tell() -> None:
        pipeline = Pipeline()
        watched = supervise(pipeline)
        task = asyncio.create_task(watched.read_past("kernel_log", past()))
        await pipeline.until(lambda: bool(pipeline.batches))
        await asyncio.sleep(0)
        clock.pass_(watched, 155.0)
        await task
        assert pipeline.said == [("vitald/not_watched", None)]

    asyncio.run(tell())
