"""Reads that hang: nobody waits for them, and they do not multiply."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from tests.waiting import until, until_async
from vitald.collectors.device_poller import Broken, ReaderThreads


def threads(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def test_each_device_is_read_once_a_round() -> None:
    readers: ReaderThreads[int] = ReaderThreads("plain")

    async def run() -> None:
        for _ in range(3):
            assert await readers.run_reads(
                {str(number): lambda number=number: number for number in range(64)}
            ) == {str(number): number for number in range(64)}
        assert not readers.under_way

    asyncio.run(run())


def test_an_error_is_told_with_its_device() -> None:
    readers: ReaderThreads[float] = ReaderThreads("broken")
    back = asyncio.run(readers.run_reads({"bad": lambda: 1 / 0, "good": lambda: 1.0}))
    assert back["good"] == 1.0
    assert isinstance(back["bad"], Broken)
    assert isinstance(back["bad"].error, ZeroDivisionError)


def test_a_read_that_hangs_holds_up_the_others_once_and_is_not_started_again() -> None:
    release, started = threading.Event(), []

    def hang() -> str:
        started.append(1)
        release.wait()
        return "late"

    readers: ReaderThreads[str] = ReaderThreads("hung", soon_s=0.05)
    jobs: dict[str, Callable[[], str]] = {"a": lambda: "a", "hung": hang, "z": lambda: "z"}

    async def run() -> None:
        assert await readers.run_reads(jobs) == {"a": "a", "z": "z"}
        assert set(readers.under_way) == {"hung"}
        for _ in range(200):  # an hour of rounds
            assert await readers.run_reads(jobs) == {"a": "a", "z": "z"}
        assert len(started) == 1
        # the last one that worked has just ended
        await until_async(lambda: threads("hung") <= 1, "its thread to end")
        release.set()
        await until_async(lambda: not readers.under_way, "the read to come back")
        assert readers.collect_results() == {"hung": "late"}
        assert set(await readers.run_reads(jobs)) == {"a", "hung", "z"}

    asyncio.run(run())


def test_there_are_never_more_threads_than_devices_and_one() -> None:
    release = threading.Event()
    readers: ReaderThreads[bool] = ReaderThreads("all hung", soon_s=0.01)
    jobs: dict[str, Callable[[], bool]] = {str(number): release.wait for number in range(64)}

    async def run() -> None:
        for _ in range(20):
            assert await readers.run_reads(jobs) == {}
            assert threads("all hung") <= 65
        assert len(readers.under_way) == 64
        release.set()
        await until_async(lambda: not readers.under_way, "the reads to come back")
        assert len(readers.collect_results()) == 64

    asyncio.run(run())
    until(lambda: threads("all hung") == 0, "the threads to end")
