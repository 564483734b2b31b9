"""The one way through: what comes a second time adds nothing, and nothing that was taken is lost by a stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.board import Board
from agent.lane import Lane
from agent.ledger import Ledger, Query, read_events
from agent.pipeline import Pipeline
from agent.sources.source import Batch, Position
from tests.unit.builders import catalogue, event, gpu

BOOT = "boot-a"
CODES = ("xid/79", "xid/31", "xid/45", "xid/63", "xid/154", "xid/999")


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Pipeline]:
    lane = Lane("test")
    pipeline = Pipeline(Ledger(folder), lane, Board(BOOT, 0.0, device_reset=False), catalogue(), BOOT)
    await pipeline.open(catalogue())
    async with anyio.create_task_group() as tasks:  # as the daemon does it
        tasks.start_soon(pipeline.run)
        yield pipeline
        tasks.cancel_scope.cancel()
    await pipeline.close()
    lane.close()


async def idle(pipeline: Pipeline) -> None:
    while pipeline._queue or pipeline._busy:
        await asyncio.sleep(0.001)


def batches(numbers: list[int]) -> list[Batch]:
    """A record each, told by its number: the same number is the same record."""
    made = []
    for number in numbers:
        one = event(
            CODES[number % len(CODES)], gpu(number % 3), 1000.0 + number, identity=f"record {number}", fields={"recovery": 2, "pid": number}
        )
        made.append(Batch("kernel_log", (one,), Position("kernel_log", BOOT, str(number)), again=True))
    return made


async def told(folder: Path, handed: list[Batch], restart_at: int) -> tuple[object, ...]:
    """What stands, and what is stored, after these batches with a restart in between."""
    for part in (handed[:restart_at], handed[restart_at:]):
        async with running(folder) as pipeline:
            for batch in part:
                await pipeline.put(batch)
                await idle(pipeline)
            standing = [(found.code, found.component, found.asked, found.count) for found in pipeline.judge.opened]
            incidents = [(one.root.code, one.count, len(one.members)) for one in pipeline.judge.incidents if one.closed_at is None]
    return standing, incidents, [one.event.identity for one in read_events(folder / "ledger.db", Query())]


@settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 11), unique=True, max_size=8), st.integers(0, 16))
def test_the_same_twice_adds_nothing(tmp_path_factory: object, numbers: list[int], cut: int) -> None:
    """Read again from another place, before a restart or after it: one record is one event, counted once."""
    once, twice = (tmp_path_factory.mktemp(name) for name in ("once", "twice"))  # type: ignore[attr-defined]
    numbers = sorted(numbers)
    whole = asyncio.run(told(once, batches(numbers), 0))
    assert asyncio.run(told(twice, batches(numbers + numbers), cut)) == whole


def test_a_stop_loses_nothing_that_was_taken(tmp_path: Path) -> None:
    """Cancelled at once after many events were handed in: each is judged, and stored with what it changed."""

    async def work() -> None:
        events = tuple(event("xid/31", gpu(), 1000.0, identity=f"record {number}") for number in range(300))
        async with running(tmp_path) as pipeline:
            await pipeline.put(Batch("kernel_log", events, Position("kernel_log", BOOT, "300")))
            for _ in range(6):  # it is in the middle of judging them
                await asyncio.sleep(0)

    async def again() -> tuple[int, str]:
        async with running(tmp_path) as pipeline:
            (found,) = pipeline.judge.opened
            position = pipeline.position("kernel_log")
            return found.count, position.cursor if position is not None else ""

    asyncio.run(work())
    assert asyncio.run(again()) == (300, "300")
    assert len(read_events(tmp_path / "ledger.db", Query(limit=1000))) == 300
