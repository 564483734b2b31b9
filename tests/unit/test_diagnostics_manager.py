"""Who runs what and when, with checks and programs that do what the test says."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.builders import finding
from tests.unit.diagnostics_house import (
    BUSY,
    FAILED,
    PASSED,
    House,
    Tested,
    ask,
    quick,
    settled_after_boot,
    told,
)
from tests.waiting import WAIT_S, until_async
from vitald.catalog import Clears
from vitald.core.jobs import BEGAN, ENDED, Job
from vitald.core.node_state import NodeState
from vitald.diagnostics import device_access, run_events
from vitald.diagnostics.check import Command, Execute, ProgramEnd
from vitald.diagnostics.schedule import SCHEDULE
from vitald.model.diagnostic import ActiveRun, Refusal, Report, Run, RunRequest, Stage
from vitald.model.event import Event
from vitald.model.source import Batch
from vitald.model.words import Action, Outcome, Remedy
from vitald.server.routes.jobs import JobRoutes

__all__ = ["quick"]


# --- it ends when it should, whenever that is said


class Steps:
    """A check of two commands that stops at a place until it may go on."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.reached, self.on = asyncio.Event(), asyncio.Event()

    async def __call__(self, ask: RunRequest, execute: Execute) -> Report:
        await self._at("before")
        first = await execute(Command(argv=("first",), deadline_s=60.0))
        await self._at("between")
        second = await execute(Command(argv=("second",), deadline_s=60.0))
        await self._at("after")
        return (
            FAILED
            if {first.ended, second.ended} == {ProgramEnd.EXITED}
            else Report(outcome=Outcome.ERROR)
        )

    async def _at(self, place: str) -> None:
        if place == self.place:
            self.reached.set()
            await self.on.wait()


def test_what_is_told_to_end_starts_no_more_programs() -> None:
    async def work(how: str, place: str, started: list[str]) -> None:
        steps = Steps(place)
        async with House(Tested(how=steps)).open() as house:
            run = await _told_to_end(house, steps, how)
            assert (run.report.outcome, run.report.faults) == (Outcome.INCONCLUSIVE, ())
            assert bool(run.preempted) == (how != "cancel")
            assert house.programs.runs == started
            # It says nothing of the hardware, nor that it could not be run.
            assert set(house.codes) == {"diagnostic/ran"}

    for how in ("cancel", "job", "release"):
        told(partial(work, how, "before", []))
        told(partial(work, how, "between", ["first"]))


async def _told_to_end(house: House, steps: Steps, how: str) -> Run:
    """A run of level 2, ended while it stands at its place, which it then leaves."""
    going = house.manager.request_run(ask(2))
    await steps.reached.wait()
    ending = asyncio.create_task(_end(house, how))
    await until_async(lambda: house.manager.active[0].stage is Stage.ENDING, "its end")
    steps.on.set()
    run = await house.ended(going)
    await ending
    return run


async def _end(house: House, how: str) -> None:
    if how == "cancel":
        assert house.manager.cancel_run(None, "root", "enough") is not None
    elif how == "job":
        await house.manager.begin_job("9")
    else:
        await house.manager.prepare_release()


def test_what_ended_by_itself_stands() -> None:
    """Its programs have ended, and what they printed is being read: that was found, whoever comes
    now.
    """

    async def work(how: str) -> None:
        steps = Steps("after")
        async with House(Tested(how=steps)).open() as house:
            run = await _told_to_end(house, steps, how)
            assert (run.report, run.preempted) == (FAILED, "")

    for how in ("cancel", "job", "release"):
        told(partial(work, how))


def test_what_is_over_and_not_stored_yet_is_shown_and_cannot_be_cancelled() -> None:
    async def work() -> None:
        async with House().open() as house:
            house.ledger_open.clear()
            going = house.manager.request_run(ask(2))
            await until_async(lambda: house.runs, "its end")
            (shown,) = house.manager.active
            assert (shown.id, shown.stage) == (going.id, Stage.ENDING)
            assert house.manager.cancel_run(None, "root", "enough") is None
            await house.manager.begin_job("9")  # waits for nothing
            house.ledger_open.set()
            run = await house.ended(going)
            assert (run.report, run.preempted) == (PASSED, "")
            assert house.manager.active == ()

    told(work)


def test_two_jobs_at_once_are_both_given_the_devices() -> None:
    async def work() -> None:
        async with House().open() as house:
            house.programs.ends = False
            going = house.manager.request_run(ask(2))
            await until_async(lambda: house.programs.runs, "its program")
            await asyncio.gather(house.manager.begin_job("1"), house.manager.begin_job("2"))
            assert (await house.ended(going)).preempted == "job 1"
            assert set(house.programs.graces) == {1.0}, "a job does not wait for the usual grace"
            again = house.manager.request_run(ask(2))
            house.manager.end_job("1")
            await until_async(lambda: house.manager.active[0].waits_for, "what it waits for")
            assert house.manager.active[0].waits_for == "idle devices: job 2"
            assert house.manager.blocked == "job 2"
            house.programs.ends = True
            house.manager.end_job("2")
            assert (await house.ended(again)).report == PASSED

    told(work)


def test_a_job_that_begins_during_the_look_finds_the_devices_free() -> None:
    async def work() -> None:
        async with House().open() as house:
            loop, begun = asyncio.get_running_loop(), threading.Event()

            def look() -> None:
                if not begun.is_set():
                    begun.set()
                    asyncio.run_coroutine_threadsafe(house.manager.begin_job("9"), loop).result(
                        WAIT_S
                    )

            house.detector.on_look = look
            going = house.manager.request_run(ask(2))
            await until_async(lambda: house.manager.active[0].waits_for, "what it waits for")
            assert house.programs.runs == []
            house.manager.end_job("9")
            await house.ended(going)

    told(work)


def test_what_is_asked_for_during_the_look_is_not_begun_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        async with House().open() as house:
            loop, asked = asyncio.get_running_loop(), list[ActiveRun]()
            house.detector.uses = BUSY

            def look(_: Path) -> tuple[str, ...]:
                if not asked:
                    asked.append(
                        asyncio.run_coroutine_threadsafe(_asking(house, ask(2)), loop).result(
                            WAIT_S
                        )
                    )
                return ()

            monkeypatch.setattr(device_access, "find_leftovers", look)
            await house.ended(house.manager.request_run(ask(1)))
            await until_async(
                lambda: "python3" in house.manager.active[0].waits_for, "what it waits for"
            )
            assert house.programs.runs == ["dcgm level 1"]

    told(work)


async def _asking(house: House, wanted: RunRequest) -> ActiveRun:
    return house.manager.request_run(wanted)


def test_nothing_begins_between_letting_go_and_the_release() -> None:
    async def work() -> None:
        async with House().open() as house:
            await house.manager.prepare_release()  # the release itself takes effect a little later
            with pytest.raises(Refusal, match="released"):
                house.manager.request_run(ask(1))
            house.node.told_released = "all GPUs"
            assert house.manager.blocked == "the end of the release: all GPUs"
            house.node.told_released = ""
            await house.ended(house.manager.request_run(ask(1)))

    told(work)


def test_work_that_comes_gets_the_devices_and_what_cannot_be_told_counts_as_work() -> None:
    async def work() -> None:
        async with House().open() as house:
            house.programs.ends = False
            going = house.manager.request_run(ask(2))
            await until_async(lambda: house.programs.runs, "its program")

            def fails() -> None:
                raise KeyError("a fault of ours")

            house.detector.on_look = fails
            assert "not known" in (await house.ended(going)).preempted

    told(work)


def test_the_driver_is_asked_afresh_right_before_a_run_and_while_it_has_the_devices() -> None:
    """What was read a minute ago knows nothing of a pod that began since."""

    async def work() -> None:
        house = House()
        house.programs.ends = False
        house.node.driver = {"gpu/0": [4711.0]}
        house.detector.on_look = lambda: setattr(
            house.detector,
            "uses",
            BUSY if house.detector.context.compute == {"gpu/0": [4711.0]} else (),
        )
        async with house.open():
            going = house.manager.request_run(ask(2))
            await until_async(lambda: house.manager.active[0].waits_for, "what it waits for")
            assert not house.programs.runs
            house.node.driver = {}
            house.manager.end_job("x")  # which has it looked at once more
            await until_async(lambda: house.programs.runs, "its program")
            before = len(house.node.asked_now)
            await until_async(lambda: len(house.node.asked_now) > before + 1, "two more questions")
            house.node.driver = {"gpu/0": [4711.0]}
            assert "python3" in (await house.ended(going)).preempted

    told(work)


def test_a_driver_that_does_not_answer_starts_nothing_and_ends_nothing() -> None:
    async def work() -> None:
        house = House()
        house.programs.ends = False
        house.node.driver = None
        async with house.open():
            house.manager.request_run(ask(2))
            await until_async(lambda: house.manager.active[0].waits_for, "what it waits for")
            assert "not known: the driver does not say" in house.manager.active[0].waits_for
            house.node.driver = {}
            house.manager.end_job("x")
            await until_async(lambda: house.programs.runs, "its program")
            house.node.driver = None
            before = len(house.node.asked_now)
            await until_async(lambda: len(house.node.asked_now) > before + 1, "two more questions")
            assert house.manager.active[0].stage is Stage.RUNNING

    told(work)


# --- who waits for whom


def test_what_waits_for_idle_devices_keeps_nothing_else_waiting() -> None:
    """On a node that is busy for days the hourly level 1 goes on."""

    async def work() -> None:
        house = House(Tested(periods={1: 3600.0, 2: 86400.0}))
        house.detector.uses = BUSY
        async with house.open():
            await until_async(lambda: house.runs, "level 1")
            assert [run.request.level for run in house.runs] == [1]
            (waiting,) = house.manager.active
            assert waiting.request.level == 2 and "python3" in waiting.waits_for

    settled_after_boot(work)


def test_a_higher_level_that_may_run_stands_for_the_lower() -> None:
    async def work() -> None:
        house = House(Tested(periods={1: 3600.0, 2: 86400.0}))
        async with house.open():
            await until_async(lambda: house.runs, "level 2")
            await until_async(lambda: not house.manager.active, "the end")
            assert [run.request.level for run in house.runs] == [2]

    settled_after_boot(work)


def test_only_what_nobody_asked_for_waits_until_devices_have_been_idle() -> None:
    async def work() -> None:
        house = House()
        house.detector.idle_s = 10.0
        house.node.open = [finding(Action.INSPECT, code="xid/999", last=time.time())]
        async with house.open():
            await until_async(
                lambda: [going.request.level for going in house.manager.active] == [2],
                "level 1, and level 2 asked for",
            )
            await until_async(lambda: house.manager.active[0].waits_for, "what it waits for")
            assert "idle for 300 s: 10 s so far" in house.manager.active[0].waits_for
            (waiting,) = house.manager.active
            going = house.manager.request_run(ask(2))
            assert going.id == waiting.id, "the one that waits is theirs now"
            assert (await house.ended(going)).request.by == "root, pid 1"

    told(work)


def test_what_somebody_asked_for_is_not_taken_from_them() -> None:
    async def work() -> None:
        house = House()
        house.detector.uses = BUSY
        async with house.open():
            going = house.manager.request_run(ask(2))
            with pytest.raises(
                Refusal, match="waiting already, requested by root, pid 1"
            ) as refused:
                house.manager.request_run(ask(2, by="alice, pid 2"))
            assert going.id in refused.value.hint
            house.manager.cancel_run(going.id, "root", "enough")
            beside = house.manager.request_run(ask(2, busy=True))
            assert (await house.ended(beside)).report == PASSED

    told(work)


def test_what_a_finding_asked_for_is_over_with_it() -> None:
    async def work() -> None:
        house = House()
        house.detector.uses = BUSY
        house.node.open = [finding(Action.INSPECT, code="xid/999", last=time.time())]
        async with house.open():
            await until_async(
                lambda: [going.request.level for going in house.manager.active] == [2], "level 2"
            )
            house.node.open = []
            await until_async(lambda: not house.manager.active, "its end")
            assert (
                "finding #1 is over" in house.runs[-1].report.reason
                and "diagnostic/not_run" not in house.codes
            )

    told(work)


def test_who_takes_the_schedules_run_out_of_the_line_does_not_get_it_back_at_once() -> None:
    async def work() -> None:
        house = House(Tested(periods={2: 86400.0}))
        house.detector.uses = BUSY
        async with house.open():
            await until_async(lambda: house.manager.active, "level 2")
            house.manager.cancel_run(house.manager.active[0].id, "root", "not today")
            looks = len(house.batches)
            await until_async(lambda: len(house.batches) > looks + 5, "some more looks")
            assert house.manager.active == ()
            (due,) = house.manager.scheduled
            assert due.at > time.time()

    settled_after_boot(work)


def test_what_fails_before_its_program_starts_is_not_tried_all_the_time() -> None:
    async def raises(ask: RunRequest, execute: Execute) -> Report:
        raise KeyError("a fault of ours")

    async def reports(ask: RunRequest, execute: Execute) -> Report:
        await asyncio.sleep(0.001)
        return Report(outcome=Outcome.ERROR, reason="no such folder", remedy=Remedy.RETRY)

    async def work(house: House) -> None:
        async with house.open():
            await until_async(lambda: house.runs, "level 1")
            looks = len(house.batches)
            await until_async(lambda: len(house.batches) > looks + 5, "some more looks")
            assert [run.report.outcome for run in house.runs] == [Outcome.ERROR]

    for how in (raises, reports):
        scheduled, asked_for = House(Tested(how=how, periods={1: 3600.0})), House(Tested(how=how))
        asked_for.node.open = [finding(Action.INSPECT, code="xid/999", last=time.time())]
        for house in (scheduled, asked_for):
            settled_after_boot(partial(work, house))


# --- faults of ours, and of what it stands on


def test_what_cannot_be_told_of_one_run_is_said_once_and_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = run_events.make_events

    def broken(run: Run, *rest: Any, **more: Any) -> list[Event]:
        if run.request.level == 1:
            raise KeyError("a fault of ours")
        return real(run, *rest, **more)

    async def work() -> None:
        monkeypatch.setattr(run_events, "make_events", broken)
        async with House().open() as house:
            await house.ended(house.manager.request_run(ask(1)))
            await house.ended(house.manager.request_run(ask(2)))
            assert house.codes == [
                "diagnostic/ran",
                "vitald/not_judged",
                "diagnostic/ran",
                "diagnostic/passed",
            ]
            assert [run.request.level for run in house.runs] == [1, 2]

    told(work)


def test_what_could_not_be_handed_in_is_handed_in_again_as_the_same() -> None:
    async def work() -> None:
        house = House()
        source = house.manager.source.read_batches(None)
        await source.__anext__()
        going = house.manager.request_run(ask(1))
        first = await _with_run(source)
        await cast("Any", source).aclose()  # the daemon could not take it
        again = await _with_run(house.manager.source.read_batches(None))
        assert again.events == first.events and again.runs == first.runs and again.again
        assert not first.again and going.id == first.runs[0].id
        house.manager.close()

    told(work)


async def _with_run(source: AsyncIterator[Batch]) -> Batch:
    async for batch in source:
        if batch.runs:
            return batch
    raise AssertionError("it ended")


def test_a_fault_of_ours_does_not_end_what_runs() -> None:
    async def work() -> None:
        house = House()
        house.programs.ends = False
        source = house.manager.source.read_batches(None)
        await source.__anext__()
        going = house.manager.request_run(ask(2))

        def fails() -> None:
            raise KeyError("a fault of ours")

        with pytest.raises(KeyError):
            async for _ in source:
                if house.programs.runs:
                    house.node.on_findings = fails
        assert house.manager.active[0].stage is Stage.RUNNING
        house.node.on_findings = lambda: None
        house.programs.end()
        batch = await _with_run(house.manager.source.read_batches(None))
        assert batch.runs[0].id == going.id and batch.runs[0].report == PASSED
        house.manager.close()

    told(work)


def test_a_look_that_hangs_keeps_only_those_waiting_who_need_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_access, "_DETECTOR_TIMEOUT_S", 0.02)
    stuck = threading.Event()

    async def work() -> None:
        async with House().open() as house:
            house.detector.on_look = lambda: stuck.wait(WAIT_S)
            waits = house.manager.request_run(ask(2))
            await until_async(
                lambda: "not known" in house.manager.active[0].waits_for, "that it is not known"
            )
            assert (await house.ended(house.manager.request_run(ask(1)))).report == PASSED
            assert "not known" in house.manager.blocked
            stuck.set()
            assert (await house.ended(waits)).report == PASSED

    told(work)


def test_processes_that_cannot_be_listed_and_checks_that_break_are_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(_: Path) -> tuple[str, ...]:
        raise OSError("no procfs")

    def breaks() -> str:
        raise ValueError("a fault of ours")

    async def work() -> None:
        async with House(
            Tested(), Tested(name="other", levels=(0,), why_missing=breaks)
        ).open() as house:
            assert "a fault of ours" in house.manager.unavailable["other"]
            with pytest.raises(Refusal, match="a fault of ours"):
                house.manager.request_run(RunRequest(check="other"))
            monkeypatch.setattr(device_access, "find_leftovers", fails)
            going = house.manager.request_run(ask(1))
            await until_async(
                lambda: "no procfs" in house.manager.active[0].waits_for, "why it waits"
            )
            monkeypatch.setattr(device_access, "find_leftovers", lambda _: ())
            await house.ended(going)

    told(work)


# --- the daemon's end and its start


def test_what_the_daemons_end_cut_short_is_told() -> None:
    async def work() -> None:
        house = House(Tested(), Tested(name="other", levels=(0,), periods={0: 1.0}))
        async with house.open():
            house.programs.ends = False
            house.manager.request_run(ask(2))
            await until_async(lambda: house.programs.runs, "its program")
            house.manager.request_run(ask(3))
            await until_async(lambda: len(house.manager.active) >= 2, "who waits")
        told_now = [
            run for batch in house.manager.source.take_pending_batches() for run in batch.runs
        ]
        assert [(run.request.level, run.report.outcome) for run in told_now] == [
            (2, Outcome.INCONCLUSIVE)
        ]
        assert "stopped" in told_now[0].report.reason
        assert [
            event.code
            for batch in house.manager.source.take_pending_batches()
            for event in batch.events
        ] == ["diagnostic/ran"]

    told(work)


def test_runs_are_remembered_as_soon_as_they_can_be_read() -> None:
    """A ledger that is out of reach at the start must not have everything run at once for good."""

    async def work() -> None:
        house = House()
        began = time.time() - 50.0
        former = Run(
            id="former",
            request=ask(1, by=SCHEDULE),
            began=began,
            ended=began + 1,
            report=PASSED,
            command="dcgmi",
        )
        house.node.remembered = [former]
        real = house.node.read_runs
        reads: Iterator[Callable[[], Sequence[Run]]] = iter([lambda: 1 / 0])  # type: ignore[list-item, return-value]
        house.node.read_runs = lambda: next(reads, real)()  # type: ignore[method-assign]
        async with house.open():
            await until_async(lambda: ("dcgm", 1) in house.manager.last_runs, "what it remembers")
            assert house.manager.last_runs["dcgm", 1].id == "former"
            await house.ended(house.manager.request_run(ask(1)))
            assert house.manager.last_runs["dcgm", 1].id != "former"

    told(work)


def test_what_only_a_person_may_ask_for_is_shown() -> None:
    async def work() -> None:
        house = House()
        house.node.cleared_at = Clears(diagnostic=3)
        house.node.open = [
            finding(Action.INSPECT, code="xid/157", number=12, last=time.time() + 60.0)
        ]
        async with house.open():
            await until_async(lambda: house.batches[-1].detail, "the hint")
            assert house.batches[-1].detail == "needs a person: finding #12: vitald diag run 3"

    told(work)


def test_nothing_is_kept_of_what_has_ended() -> None:
    async def work() -> None:
        async with House().open() as house:
            for _ in range(30):
                await house.ended(house.manager.request_run(ask(1)))
            assert house.manager.active == ()
            assert len(house.manager._results.pending) == 0
            assert len(house.manager._history.past["dcgm", 1]) <= 10
            assert [run.id for run in house.counted] == [run.id for run in house.runs]

    told(work)


# --- the scheduler's word


def test_an_end_that_overtakes_its_begin_is_told_after_it() -> None:
    """As when a prolog was given up while the disk was slow: the job must not run for ever."""

    async def work() -> None:
        stored: list[str] = []
        slow = asyncio.Event()

        async def store(batch: Batch) -> None:
            (one,) = batch.events
            if one.code == BEGAN:
                await slow.wait()
            stored.append(one.code)
            board.jobs.take_event(one)

        board = NodeState("boot-a", time.time(), device_reset=False)
        routes = JobRoutes(board, store, None)
        begin = asyncio.create_task(routes._begin_job(Job(id="7")))
        await asyncio.sleep(0)
        begin.cancel()  # the client has gone
        end = asyncio.create_task(routes._end_job(Job(id="7", exit_code=0), diagnose=False))
        await asyncio.sleep(0)
        slow.set()
        assert (await end)["job"] is not None
        assert stored == [BEGAN, ENDED] and not board.jobs.running

    told(work)
