"""Whether the node is known to be idle while a repair waits for that."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from tests.clock import StandingClock
from tests.waiting import WAIT_S
from vitald.diagnostics import device_access
from vitald.diagnostics.device_access import DeviceAccess, IdleMonitor
from vitald.diagnostics.idle.detector import Use, UseKind

TRAINING = Use(kind=UseKind.PROCESS, words="python3 (pid 7)")


class Access:
    """The devices: for how long nothing has used them, and who does."""

    def __init__(self) -> None:
        self.idle_s = 1e6
        self.uses: Sequence[Use] = ()
        self.jobs: list[str] = []
        self.sees_all = True
        self.measured = 0

    async def measure_idle(self) -> tuple[float, Sequence[Use]]:
        self.measured += 1
        return self.idle_s, self.uses

    def sees_all_work(self) -> bool:
        return self.sees_all

    def list_jobs(self) -> list[str]:
        return self.jobs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    made = StandingClock()
    monkeypatch.setattr(device_access, "time", made)
    monkeypatch.setattr(device_access, "_IDLE_PERIOD_S", 0.0)
    return made


def watch(access: Access, idle_s: float = 300.0, **more: Any) -> IdleMonitor:
    given: dict[str, Any] = {"is_needed": lambda: True, "is_testing": lambda: False, **more}
    return IdleMonitor(cast("DeviceAccess", access), idle_s=idle_s, **given)


def measured(made: IdleMonitor, access: Access, more: int = 2) -> IdleMonitor:
    """After it has measured that often again. The real loop runs."""

    async def work() -> None:
        wanted = access.measured + more
        running = asyncio.ensure_future(made.run())
        while access.measured < wanted:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()

    asyncio.run(asyncio.wait_for(work(), WAIT_S))
    return made


def test_before_the_first_measurement(clock: StandingClock) -> None:
    assert not watch(Access()).is_idle()


def test_a_node_that_nothing_has_used_for_long_enough(clock: StandingClock) -> None:
    access = Access()
    access.idle_s = 290.0
    made = measured(watch(access), access)
    assert not made.is_idle()
    clock.now += 11.0
    assert made.is_idle()


def test_an_old_measurement_counts_no_more(clock: StandingClock) -> None:
    access = Access()
    made = measured(watch(access), access)
    clock.now += 29.0
    assert made.is_idle()
    clock.now += 1.0
    assert not made.is_idle()


def test_a_use_ends_it(clock: StandingClock) -> None:
    access = Access()
    made = measured(watch(access), access)
    access.uses = [TRAINING]
    assert not measured(made, access).is_idle()
    access.uses, access.idle_s = (), 0.0
    assert not measured(made, access).is_idle()


def test_a_job_counts_at_once(clock: StandingClock) -> None:
    access = Access()
    made = measured(watch(access), access)
    access.jobs = ["7"]
    assert not made.is_idle()
    access.jobs = []
    assert made.is_idle()


def test_where_not_all_work_is_seen_the_node_is_never_idle(clock: StandingClock) -> None:
    access = Access()
    access.sees_all = False
    assert not measured(watch(access), access).is_idle()


def test_nothing_is_measured_otherwise(clock: StandingClock) -> None:
    async def work(made: IdleMonitor) -> None:
        running = asyncio.ensure_future(made.run())
        for _ in range(100):
            await asyncio.sleep(0)
        running.cancel()

    states: list[dict[str, Any]] = [{"is_needed": lambda: False}, {"is_testing": lambda: True}]
    for state in states:
        access = Access()
        made = watch(access, **state)
        asyncio.run(work(made))
        assert (access.measured, made.is_idle()) == (0, False), state
