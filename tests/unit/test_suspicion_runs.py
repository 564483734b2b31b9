"""The diagnostic that a suspicion requests: when, how often, and where none can run."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.unit.builders import event
from tests.unit.diagnosing import run_of
from tests.unit.test_diagnostics_manager import BUSY, House, Tested, _quick, ask, told
from vitald.core.suspicion import Request
from vitald.diagnostics import suspicion
from vitald.diagnostics.schedule import SCHEDULE
from vitald.diagnostics.suspicion import SUSPICION
from vitald.model import NODE, Event, Trust
from vitald.model.codes import DIAGNOSTIC_REQUESTED
from vitald.model.diagnostic import Outcome, Remedy, Report, RunRequest, Stage
from vitald.model.notice import JOB_NOT_FINITE

__all__ = ["_quick"]  # the fixture
PASSED = Report(outcome=Outcome.PASS)
LATER = Report(outcome=Outcome.ERROR, remedy=Remedy.RETRY)
ASKED_AT = 1_795_000_000.0
REQUEST = Request(time=ASKED_AT, level=3, because="why", users=frozenset((1, 2)))


def not_finite(user: int) -> Event:
    said = {"job": "1", "uid": user}
    return event(JOB_NOT_FINITE, NODE, time.time() - 60.0, trust=Trust.JOB, fields=said)


class Suspected(House):
    """What it stores is published, as the pipeline does it."""

    def __init__(self, *checks: Tested, users: int = 2, **settings: Any) -> None:
        super().__init__(*checks, **settings)
        for user in range(users):
            self.node.suspicion.take_event(not_finite(1000 + user))

    async def _stored(self) -> None:
        for batch in self.batches[-1:]:
            for each in batch.events:
                if each.code == DIAGNOSTIC_REQUESTED:
                    self.node.suspicion.take_event(each)
        await super()._stored()

    @property
    def requests(self) -> list[Event]:
        return [each for each in self.told if each.code == DIAGNOSTIC_REQUESTED]


def test_a_suspicion_runs_once_on_idle_devices() -> None:
    async def work() -> None:
        house = Suspected()
        house.detector.uses = BUSY
        async with house.open():
            await house.until(lambda: house.manager.active, "the run")
            (queued,) = house.manager.active
            assert (queued.ask.by, queued.ask.label) == (SUSPICION, "dcgm level 3")
            assert queued.ask.reason.startswith("jobs of 2 users (1000, 1001) computed values that")
            await house.until(lambda: house.manager.active[0].waits_for, "what it waits for")
            assert house.manager.active[0].stage is Stage.WAITING
            house.detector.uses = ()
            await house.until(lambda: house.runs, "its end")
            assert [run.ask.by for run in house.runs] == [SUSPICION]
            await house.until(lambda: not house.manager.active, "the queue")
            house.node.suspicion.take_event(not_finite(2001))
            house.node.suspicion.take_event(not_finite(2002))
            many = len(house.batches) + 20
            await house.until(lambda: len(house.batches) > many, "many more looks")
            assert (len(house.requests), len(house.runs)) == (1, 1)  # not again today

        (request,) = house.requests
        assert request.trust is Trust.DAEMON and request.fields["uids"] == [1000, 1001]
        assert request.raw.startswith("DCGM's diagnostic, level 3, once the devices are idle: jobs")

    told(work)


def missing() -> str:
    return "dcgmi is not installed"


@pytest.mark.parametrize(
    ("check", "settings"),
    [
        (Tested(), {"enabled": False}),
        (Tested(), {"suspicion_s": 0.0}),
        (Tested(), {"users": 1}),
        (Tested(why_missing=missing), {}),
    ],
)
def test_where_none_can_run_none_is_requested(check: Tested, settings: dict[str, Any]) -> None:
    async def work() -> None:
        house = Suspected(check, Tested(name="other", levels=(0,)), **settings)
        async with house.open():
            await house.until(lambda: len(house.batches) > 20, "many looks")
            assert (house.requests, house.runs, house.manager.active) == ([], [], ())

    told(work)


def test_a_scheduled_run_that_waits_becomes_the_requested_one() -> None:
    async def work() -> None:
        house = Suspected(Tested(periods={3: 86400.0}), users=0)
        house.detector.uses = BUSY
        async with house.open():
            house.manager._queue.enqueue(ask(3, by=SCHEDULE), first=False)
            for user in (1000, 1001):
                house.node.suspicion.take_event(not_finite(user))
            await house.until(
                lambda: [run.ask.by for run in house.manager.active] == [SUSPICION], "the run"
            )

    told(work)


def test_a_run_that_a_person_removed_does_not_come_back() -> None:
    async def work() -> None:
        house = Suspected()
        house.detector.uses = BUSY
        async with house.open():
            await house.until(lambda: house.manager.active, "the run")
            assert house.manager.cancel_run(house.manager.active[0].id, "root", "no") is not None
            await house.until(lambda: house.runs, "its record")
            many = len(house.batches) + 20
            await house.until(lambda: len(house.batches) > many, "many more looks")
            assert house.manager.active == ()

    told(work)


def test_another_run_that_gives_a_verdict_answers() -> None:
    async def work() -> None:
        house = Suspected()
        house.detector.uses = BUSY
        async with house.open():
            await house.until(lambda: house.manager.active, "the run")
            house.manager._history.add_run(
                run_of(PASSED, level=3, by=SCHEDULE, began=time.time() + 1.0)
            )
            await house.until(lambda: not house.manager.active, "the end of the request")
            await asyncio.sleep(0)

    told(work)


@pytest.mark.parametrize(
    ("run", "is_open"),
    [
        (run_of(PASSED, level=3, began=ASKED_AT + 60), False),
        (run_of(PASSED, level=4, began=ASKED_AT + 60), False),
        (run_of(PASSED, level=2, began=ASKED_AT + 60), True),
        (run_of(PASSED, level=3, began=ASKED_AT - 60), True),
        (run_of(PASSED, level=3, gpus=(1,), began=ASKED_AT + 60), True),
        (run_of(PASSED, level=3, preempted="job 1", began=ASKED_AT + 60), True),
        (run_of(LATER, level=3, by=SUSPICION, began=ASKED_AT + 60), True),
        (run_of(LATER, level=3, by=SCHEDULE, began=ASKED_AT + 60), True),
        (
            run_of(Report(outcome=Outcome.NOT_APPLICABLE), by=SUSPICION, level=3, began=ASKED_AT),
            False,
        ),
        (run_of(PASSED, check="gemm", level=3, began=ASKED_AT + 60), True),
    ],
)
def test_what_answers_a_request(run: Any, is_open: bool) -> None:
    assert suspicion.is_open(REQUEST, [run], ASKED_AT + 3600.0) is is_open


def test_a_request_that_found_no_idle_time_ends() -> None:
    assert suspicion.is_open(REQUEST, [], ASKED_AT + 6.9 * 86400.0)
    assert not suspicion.is_open(REQUEST, [], ASKED_AT + 7.1 * 86400.0)


def test_three_tries_without_a_verdict_are_enough() -> None:
    """Those that made room for work apart."""
    began = [ASKED_AT + at * 3600.0 for at in range(1, 9)]
    tried = [run_of(LATER, level=3, by=SUSPICION, began=at) for at in began[:3]]
    made_room = [run_of(LATER, level=3, by=SUSPICION, preempted="job 1", began=at) for at in began]
    now = ASKED_AT + 86400.0
    assert suspicion.is_open(REQUEST, [*tried[:2], *made_room], now)
    assert not suspicion.is_open(REQUEST, [*tried, *made_room], now)


def test_one_that_made_room_is_tried_again_later_and_later() -> None:
    tries = []
    for began, wait in ((60.0, 600.0), (3600.0, 1200.0), (7200.0, 2400.0)):
        tries.append(
            run_of(LATER, level=3, by=SUSPICION, preempted="job 1", began=ASKED_AT + began)
        )
        ended = tries[-1].ended
        assert suspicion.find_run(REQUEST, tries, ended + wait - 1.0) is None
        assert suspicion.find_run(REQUEST, tries, ended + wait + 1.0) == RunRequest(
            check="dcgm", level=3, by=SUSPICION, reason="why"
        )


@pytest.mark.parametrize(
    ("every_s", "most", "obstacle", "may"),
    [
        (86400.0, 3, "", True),
        (0.0, 3, "", False),
        (86400.0, 1, "", False),
        (86400.0, 3, "dcgmi is not installed", False),
        (2 * 86400.0, 3, "", False),
    ],
)
def test_when_one_more_may_be_requested(
    every_s: float, most: int, obstacle: str, may: bool
) -> None:
    now = ASKED_AT + 1.5 * 86400.0
    assert suspicion.may_request(REQUEST, now, every_s, most, obstacle) is may
