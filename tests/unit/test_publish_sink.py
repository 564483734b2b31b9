"""When a sink is written: how often, what has to wait, and what others changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.clock import StandingClock
from tests.unit.test_publish_kubernetes import HEALTHY, SILENT, UNHEALTHY
from tests.waiting import until_async
from vitald.model.words import Action, Status
from vitald.publish import sink as sink_module
from vitald.publish.retry import RateLimit
from vitald.publish.sink import (
    _BURST,
    _RESERVED,
    _WRITES_PER_MINUTE,
    SinkFailed,
    SinkRunner,
    is_worse,
)
from vitald.publish.state_store import StateStore
from vitald.publish.summary import PublishedState

DEGRADED = replace(HEALTHY, status=Status.DEGRADED, action=Action.OBSERVE)
WORST = replace(UNHEALTHY, action=Action.REPLACE_NODE, replacement_reason="Xid79")
UNREAD = replace(HEALTHY, status=Status.UNKNOWN, reason="SourceNotRead")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    clock = StandingClock()
    monkeypatch.setattr(sink_module, "time", clock)
    monkeypatch.setattr(sink_module, "WORSE_S", 0.0)
    monkeypatch.setattr(sink_module, "BETTER_S", 0.0)
    return clock


class Receiver:
    """A sink. `compared`: every attempt; `written`: what differed from the one before."""

    name = "kubernetes"

    def __init__(self) -> None:
        self.compared: list[PublishedState] = []
        self.written: list[PublishedState] = []
        self.error: SinkFailed | None = None

    async def write_state(self, state: PublishedState) -> bool:
        self.compared.append(state)
        if self.error is not None:
            raise self.error
        did_write = self.written[-1:] != [state]
        if did_write:
            self.written.append(state)
        return did_write

    def get_recheck_s(self, state: PublishedState) -> float:
        del state
        return 1e6


@asynccontextmanager
async def run_sink(receiver: Receiver, folder: Path) -> AsyncIterator[SinkRunner]:
    store = StateStore(folder)
    runner = SinkRunner(receiver, store)
    task = asyncio.ensure_future(runner.run())
    try:
        yield runner
    finally:
        task.cancel()
        store.close()


async def offer(runner: SinkRunner, clock: StandingClock, *states: PublishedState) -> None:
    """Each one until it is written, or has to wait."""
    for state in states:
        runner.offer_state(state)
        await until_async(lambda: runner._due > clock.monotonic())


def list_moments(limit: RateLimit, reserve: int, seconds: float) -> Sequence[float]:
    """When something is done that is always due."""
    now, done = 1000.0, []
    while now < 1000.0 + seconds:
        wait = limit.find_wait_s(now, reserve)
        if not wait:
            limit.count(now)
            done.append(now)
        now += wait or 0.001
    return done


def test_no_minute_has_more_than_its_writes() -> None:
    moments = list_moments(RateLimit(_WRITES_PER_MINUTE - _BURST, _BURST), 0, 1000.0)
    later = moments[_WRITES_PER_MINUTE:]
    assert all(after - before > 60.0 for before, after in zip(moments, later, strict=False))
    assert max(after - before for before, after in pairwise(moments)) == pytest.approx(15.0)


def test_better_news_waits_as_long_as_the_documentation_says() -> None:
    limit = RateLimit(_WRITES_PER_MINUTE - _BURST, _BURST)
    assert len(list_moments(limit, reserve=0, seconds=0.1)) == 8
    assert limit.find_wait_s(1000.0) == pytest.approx(15.0)
    assert limit.find_wait_s(1000.0, _RESERVED) == pytest.approx(75.0)


def test_a_reserve_is_left_by_what_may_not_use_it() -> None:
    limit = RateLimit(4, 8)
    assert len(list_moments(limit, reserve=5, seconds=0.1)) == 3
    assert len(list_moments(limit, reserve=0, seconds=0.1)) == 5
    assert limit.find_wait_s(1000.0, reserve=5) == pytest.approx(15.0 * 6)


def test_after_twenty_flaps_worse_news_does_not_wait(tmp_path: Path, clock: StandingClock) -> None:
    receiver = Receiver()

    async def flap() -> None:
        async with run_sink(receiver, tmp_path) as runner:
            await offer(runner, clock, *[HEALTHY, UNHEALTHY] * 20)
            assert receiver.written == [HEALTHY, UNHEALTHY, HEALTHY, UNHEALTHY]
            await offer(runner, clock, WORST, SILENT)
            assert receiver.written[4:] == [WORST, SILENT]
            await offer(runner, clock, HEALTHY)
            assert receiver.written[-1] == SILENT, "better news waits"
            assert runner.health.waiting == 1
            clock.now += 3600.0
            runner._changed.set()
            await until_async(lambda: receiver.written[-1] == HEALTHY)

    asyncio.run(flap())


def test_a_restart_is_no_new_budget(tmp_path: Path, clock: StandingClock) -> None:
    receiver = Receiver()

    async def restart(count: int) -> None:
        for number in range(count):
            async with run_sink(receiver, tmp_path) as runner:
                lines = (f"restart {number}",)
                await offer(runner, clock, replace(UNHEALTHY, lines=lines))

    asyncio.run(restart(20))
    assert len(receiver.written) == _BURST
    clock.now += 60.0
    asyncio.run(restart(20))
    assert len(receiver.written) == _WRITES_PER_MINUTE


def test_a_clock_that_was_set_back_stops_nothing(tmp_path: Path, clock: StandingClock) -> None:
    receiver = Receiver()

    async def run() -> None:
        async with run_sink(receiver, tmp_path) as runner:
            await offer(runner, clock, HEALTHY)
        clock.now -= 86400.0
        async with run_sink(receiver, tmp_path) as runner:
            await offer(runner, clock, UNHEALTHY)
            clock.now += 120.0
            runner._changed.set()
            await until_async(lambda: receiver.written[-1] == UNHEALTHY)

    asyncio.run(run())


def test_what_needs_no_write_costs_nothing(tmp_path: Path, clock: StandingClock) -> None:
    receiver = Receiver()

    async def compare() -> None:
        async with run_sink(receiver, tmp_path) as runner:
            await offer(runner, clock, HEALTHY)
            for number in range(100):
                runner.note_change(is_urgent=False)
                await until_async(lambda number=number: len(receiver.compared) == number + 2)
            await offer(runner, clock, DEGRADED, HEALTHY, DEGRADED)
        assert receiver.written == [HEALTHY, DEGRADED, HEALTHY, DEGRADED]

    asyncio.run(compare())


def test_what_others_change_is_compared_but_not_while_the_receiver_fails(
    tmp_path: Path, clock: StandingClock
) -> None:
    receiver = Receiver()

    async def change() -> None:
        async with run_sink(receiver, tmp_path) as runner:
            runner.note_change(is_urgent=True)  # nothing is known to write yet
            await offer(runner, clock, HEALTHY)
            receiver.written.append(UNHEALTHY)  # by another
            runner.note_change(is_urgent=False)
            await until_async(lambda: receiver.written == [HEALTHY, UNHEALTHY, HEALTHY])
            receiver.error = SinkFailed("gone", retry_after_s=1e6)
            await offer(runner, clock, UNHEALTHY)
            attempts, due = len(receiver.compared), runner._due
            runner.note_change(is_urgent=False)
            assert runner._due == due
            receiver.error = None
            runner.note_change(is_urgent=True)
            await until_async(lambda: receiver.written[-1] == UNHEALTHY)
            assert len(receiver.compared) == attempts + 1

    asyncio.run(change())


def test_what_others_change_during_a_write_is_compared_after_it(
    tmp_path: Path, clock: StandingClock
) -> None:
    receiver = Receiver()

    async def change() -> None:
        async with run_sink(receiver, tmp_path) as runner:
            begun, ended = asyncio.Event(), asyncio.Event()
            write = receiver.write_state

            async def write_slowly(state: PublishedState) -> bool:
                begun.set()
                await ended.wait()
                return await write(state)

            receiver.write_state = write_slowly  # type: ignore[method-assign]
            runner.offer_state(HEALTHY)
            await begun.wait()
            runner.note_change(is_urgent=False)
            ended.set()
            await until_async(lambda: len(receiver.compared) == 2)
            await until_async(lambda: runner._due > clock.monotonic())

    asyncio.run(change())
    assert receiver.compared == [HEALTHY, HEALTHY]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *((None, HEALTHY), (HEALTHY, DEGRADED), (DEGRADED, UNHEALTHY), (UNHEALTHY, WORST)),
        *((HEALTHY, UNREAD), (HEALTHY, SILENT), (UNHEALTHY, UNREAD), (UNHEALTHY, SILENT)),
        *((SILENT, UNHEALTHY), (replace(UNHEALTHY, reboot_reason=""), UNHEALTHY)),
    ],
)
def test_what_is_worse_news(before: PublishedState | None, after: PublishedState) -> None:
    """That nothing is known is worse than anything, also than unhealthy: the fault may be gone, or
    have grown.
    """
    assert is_worse(before, after)
    if before not in (None, SILENT, UNHEALTHY):
        assert not is_worse(after, before)
    assert not is_worse(after, after)
    assert not is_worse(after, HEALTHY)
