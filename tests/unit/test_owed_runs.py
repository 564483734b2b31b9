"""What was requested is run, or says why not: over work that goes first, restarts and a day."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from typing import Any

import pytest

from tests.unit.builders import finding
from tests.unit.diagnostics_house import (
    BUSY,
    PASSED,
    House,
    Tested,
    ask,
    quick,
    settled_after_boot,
    told,
)
from tests.waiting import until_async
from vitald.backoff import Backoff
from vitald.diagnostics import queue
from vitald.diagnostics.check import Execute
from vitald.diagnostics.queue import OwedRuns
from vitald.diagnostics.schedule import MAX_RETRIES, SCHEDULE
from vitald.diagnostics.settings import DiagnosticsSettings
from vitald.diagnostics.source import HELD, OVERDUE
from vitald.model.component import Component
from vitald.model.diagnostic import ActiveRun, OwedRun, Report, Run, RunRequest, Stage
from vitald.model.source import Position
from vitald.model.words import Action, ComponentKind, Outcome, Remedy

__all__ = ["quick"]

DAY_S = 86400.0
FAILED_JOB = RunRequest(check="dcgm", level=2, by="job 5", reason="job 5 ended with exit 3")
STOPPED = Report(outcome=Outcome.INCONCLUSIVE, reason="it made room", remedy=Remedy.RETRY)


def aged(position: Position, seconds: float) -> Position:
    """As it would be if all requests had been made that much earlier."""
    memory = json.loads(position.cursor)
    memory["owed"] = [{**one, "since": one["since"] - seconds} for one in memory["owed"]]
    return replace(position, cursor=json.dumps(memory))


async def preempted(house: House, request: RunRequest = FAILED_JOB) -> ActiveRun:
    """A requested run that began and had to make room for a job; the job has ended."""
    house.programs.ends = False
    first = house.manager.request_run(request)
    await until_async(lambda: house.programs.runs, "its program")
    await house.manager.begin_job("9")
    house.manager.end_job("9")
    await house.ended(first)
    house.programs.ends = True
    return first


# --- work that goes first


def test_what_made_room_is_run_when_its_next_attempt_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        async with House().open() as house:
            first = await preempted(house)
            (waiting,) = house.manager.active
            assert (waiting.request, waiting.requested_at) == (FAILED_JOB, first.requested_at)
            assert waiting.stage is Stage.WAITING and waiting.id != first.id
            assert "the next attempt at" in waiting.waits_for and "job 9" in waiting.waits_for
            left = house.position
        monkeypatch.setattr(queue, "_BACKOFF", Backoff(0.0, 0.0))
        later = json.loads(left.cursor)
        later["owed"][0]["not_before"] = time.time() - 1.0
        async with House(after=replace(left, cursor=json.dumps(later))).open() as house:
            await until_async(lambda: not house.manager.active, "its verdict")
            (run,) = house.runs
            assert (run.id, run.request, run.report) == (waiting.id, FAILED_JOB, PASSED)
            assert json.loads(house.position.cursor)["owed"] == []

    told(work)


def test_who_requests_what_waits_for_its_next_attempt_gets_it_now() -> None:
    """It keeps the reason for which it is owed."""

    async def work() -> None:
        async with House().open() as house:
            await preempted(house)
            going = house.manager.request_run(ask(2))
            assert (await house.ended(going)).request == FAILED_JOB
            assert house.manager.active == ()

    told(work)


def test_attempts_become_rarer_and_each_has_its_own_id() -> None:
    runs, now = OwedRuns(), 1000.0
    runs.put(OwedRun(id="a-1", request=FAILED_JOB, since=now))
    waited, ids = [], []
    for _ in range(5):
        (before,) = runs.list_runs()
        ids.append(before.id)
        run = Run(id=before.id, request=before.request, began=now, ended=now, report=STOPPED)
        runs.take_result(run, cut=True)
        (after,) = runs.list_runs()
        assert (after.since, after.request, after.why) == (1000.0, FAILED_JOB, "it made room")
        waited.append(after.not_before - now)
    assert waited == [600.0, 1200.0, 2400.0, 2400.0, 2400.0]
    assert ids == ["a-1", "a-1.2", "a-1.3", "a-1.4", "a-1.5"]


def test_what_a_program_reports_at_its_own_end_is_an_answer_after_some_repetitions() -> None:
    runs = OwedRuns()
    runs.put(OwedRun(id="a", request=FAILED_JOB, since=0.0))
    for _ in range(MAX_RETRIES + 1):
        (before,) = runs.list_runs()
        run = Run(id=before.id, request=before.request, began=1.0, ended=2.0, report=STOPPED)
        runs.take_result(run, cut=False)
    assert runs.list_runs() == []


def test_a_person_cancels_what_waits_for_its_next_attempt() -> None:
    async def work() -> None:
        async with House().open() as house:
            await preempted(house)
            (waiting,) = house.manager.active
            assert house.manager.cancel_run(waiting.id, "root", "enough") is not None
            await until_async(lambda: house.runs[-1].id == waiting.id, "its record")
            assert "cancelled by root: enough" in house.runs[-1].report.reason
            assert house.manager.active == ()
            assert house.manager.cancel_run(waiting.id, "root", "again") is None

    told(work)


# --- restarts


@pytest.mark.parametrize("gpus", [(), (1,)])
def test_what_waits_survives_the_daemon(gpus: tuple[int, ...]) -> None:
    """Without an end of the daemon: as after SIGKILL, the ledger has what was handed in."""

    async def work() -> None:
        asked = replace(FAILED_JOB, gpus=gpus)
        killed = House()
        killed.detector.uses = BUSY
        async with killed.open():
            first = killed.manager.request_run(asked)
            await killed.manager.store_requests()
            left = killed.position
        house = House(after=left)
        house.detector.uses = BUSY
        async with house.open():
            await until_async(lambda: house.manager.active, "what is owed")
            (waiting,) = house.manager.active
            assert (waiting.id, waiting.request, waiting.requested_at) == (
                first.id,
                asked,
                first.requested_at,
            )
            house.detector.uses = ()
            assert (await house.ended(waiting)).report == PASSED

    told(work)


def test_a_request_before_the_ledger_was_read_is_owed_beside_the_former_ones() -> None:
    async def work() -> None:
        former = House()
        former.detector.uses = BUSY
        async with former.open():
            former.manager.request_run(FAILED_JOB)
            await former.manager.store_requests()
        house = House(after=former.position)
        house.detector.uses = BUSY
        house.manager.request_run(ask(3))
        async with house.open():
            await until_async(lambda: house.manager.active[-1].waits_for, "both")
            assert {run.request.level for run in house.manager.active} == {2, 3}

    told(work)


def test_what_the_daemons_end_cut_is_owed() -> None:
    async def work() -> None:
        house = House()
        async with house.open():
            house.programs.ends = False
            house.manager.request_run(FAILED_JOB)
            await until_async(lambda: house.programs.runs, "its program")
        left = house.position
        (kept,) = json.loads(left.cursor)["owed"]
        assert (kept["why"], kept["attempts"]) == ("vitald was stopped", 1)
        async with House(after=left).open() as later:
            await until_async(lambda: later.manager.active, "what is owed")
            assert later.manager.active[0].request == FAILED_JOB

    told(work)


def test_a_memory_from_before_requests_were_kept_is_read_and_a_broken_one_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def work() -> None:
        async with House(after=Position("diagnostics", "boot-a", '{"once":[],"vain":{}}')).open():
            pass
        assert "memory_not_read" not in capsys.readouterr().out
        broken = Position("diagnostics", "boot-a", '{"owed":[{"id":"a"}]}')
        async with House(after=broken).open() as house:
            assert house.manager.active == ()
        assert "memory_not_read" in capsys.readouterr().out

    told(work)


def test_a_check_that_is_gone_after_a_restart_is_owed_no_more() -> None:
    async def work() -> None:
        former = House(Tested(name="other", levels=(0,)))
        former.programs.ends = False
        async with former.open():
            former.manager.request_run(RunRequest(check="other", by="root"))
            await until_async(lambda: former.programs.runs, "its program")
        async with House(after=former.position).open() as house:
            await until_async(lambda: house.runs, "its record")
            assert "removed from the configuration" in house.runs[0].report.reason
            assert house.manager.active == ()

    told(work)


# --- since when


@pytest.mark.parametrize("by", ["schedule", "finding"])
def test_since_when_a_run_is_owed_survives_restarts_and_work(by: str) -> None:
    """Also of what the schedule or a finding requests anew."""

    def make(after: Position | None = None) -> House:
        house = House(Tested(periods={2: 86400.0} if by == "schedule" else {}), after=after)
        if by == "finding":
            house.node.open = [finding(Action.INSPECT, code="xid/999", last=time.time() - 60.0)]
        house.detector.uses = BUSY
        return house

    def level_2(house: House) -> list[ActiveRun]:
        return [run for run in house.manager.active if run.request.level == 2]

    async def work() -> None:
        async with make().open() as former:
            await until_async(lambda: level_2(former), "level 2")
            requested_at = level_2(former)[0].requested_at
            await former.manager.store_requests()
            left = former.position
        async with make(left).open() as house:
            await until_async(lambda: level_2(house)[0].waits_for, "level 2 again")
            assert level_2(house)[0].requested_at == requested_at
            house.detector.uses, house.programs.ends = (), False
            await until_async(lambda: "dcgm level 2" in house.programs.runs, "its program")
            await house.manager.begin_job("9")
            await until_async(lambda: house.runs and house.runs[-1].preempted, "the end")
            (waiting,) = level_2(house)
            assert waiting.requested_at == requested_at

    settled_after_boot(work)


def test_what_nothing_requires_any_more_is_not_owed() -> None:
    async def work() -> None:
        former = House(Tested(periods={2: 86400.0}))
        former.detector.uses = BUSY
        async with former.open():
            await until_async(lambda: former.manager.active, "level 2")
            await former.manager.store_requests()
            left = former.position
        for other in (
            House(after=left),
            House(Tested(periods={2: 1e9}), enabled=False, after=left),
        ):
            async with other.open():
                await until_async(lambda: not other.manager.active, "it to be over")

    settled_after_boot(work)


# --- a day


async def overdue(request: RunRequest, **more: Any) -> House:
    """A node that never was idle for the request; the day has passed while it was not running."""
    former = House()
    former.detector.uses = BUSY
    async with former.open():
        former.manager.request_run(request)
        await former.manager.store_requests()
        left = former.position
    house = House(after=aged(left, DAY_S), **more)
    house.detector.uses = BUSY
    return house


@pytest.mark.parametrize(
    "request_",
    [ask(3), replace(FAILED_JOB, gpus=(1,)), replace(FAILED_JOB, level=3)],
    ids=["level 3", "one GPU", "a job's"],
)
def test_what_only_a_person_requests_ends_after_a_day_and_says_why(request_: RunRequest) -> None:
    async def work() -> None:
        house = await overdue(request_)
        async with house.open():
            await until_async(lambda: house.runs, "its record")
            assert house.runs[0].request == request_
            assert "did not run within a day" in house.runs[0].report.reason
            assert house.manager.active == () and OVERDUE not in house.codes

    told(work)


def judges(house: House) -> None:
    """The judge, for what is overdue."""

    def judge() -> None:
        opened = {event.component: event for event in house.told if event.kind == "diagnostic"}
        calm = house.batches[-1].calm if house.batches else frozenset()
        house.node.open = [
            finding(Action.OBSERVE, code=event.code, component=component, fields=event.fields)
            for component, event in opened.items()
            if event.code in (OVERDUE, HELD) and (component, event.code) not in calm
        ]

    house.node.on_findings = judge


@pytest.mark.parametrize(("setting", "code"), [("report", OVERDUE), ("drain", HELD)])
def test_a_node_that_owes_a_level_2_for_a_day_says_so_until_it_has_run(
    setting: str, code: str
) -> None:
    async def work() -> None:
        house = await overdue(FAILED_JOB, overdue=setting)
        judges(house)
        async with house.open():
            await until_async(lambda: len(house.batches) > 10, "some batches")
            (event,) = house.told
            where = Component(ComponentKind.NODE, "dcgm-2")
            assert (event.code, event.component) == (code, where)
            assert "(job 5 ended with exit 3)" in event.raw
            (holding,) = house.batches[-1].holding
            assert (holding.code, holding.component) == (code, where)
            house.detector.uses = ()
            await until_async(lambda: house.batches[-1].calm, "its end")
            assert house.batches[-1].calm == {(where, code)}
            assert [run.report for run in house.runs] == [PASSED]

    told(work)


def test_an_entry_that_opens_no_finding_is_reported_once() -> None:
    """A site may give it the action `none`."""

    async def work() -> None:
        async with (await overdue(FAILED_JOB)).open() as house:
            await until_async(lambda: len(house.batches) > 10, "some batches")
            assert house.codes == [OVERDUE]

    told(work)


def test_a_reload_changes_what_an_overdue_run_requires() -> None:
    async def work() -> None:
        house = await overdue(FAILED_JOB)
        judges(house)
        async with house.open():
            for setting, code, former in (("drain", HELD, OVERDUE), ("report", OVERDUE, HELD)):
                await until_async(lambda: former in house.codes, "the finding")
                house.reload(DiagnosticsSettings(overdue=setting))
                await until_async(lambda: house.told[-1].code == code, "the other one")
                assert former in {code for batch in house.batches for _, code in batch.calm}

    told(work)


@pytest.mark.parametrize(("setting", "runs"), [("report", False), ("drain", True)])
def test_a_node_that_is_held_does_not_wait_for_the_next_slot(setting: str, runs: bool) -> None:
    """The schedule's run made room too often; a new slot begins in half a day."""

    async def work() -> None:
        made_room = Report(outcome=Outcome.INCONCLUSIVE, reason="room", remedy=Remedy.RETRY)
        request = RunRequest(check="dcgm", level=2, by=SCHEDULE)
        now = time.time()
        kept = OwedRun(
            id="a.2", request=request, since=now - DAY_S, attempts=4, not_before=now - 1.0
        )
        memory = {"once": [], "vain": {}, "owed": [asdict(kept)]}
        after = Position("diagnostics", "boot-a", json.dumps(memory))
        house = House(Tested(periods={2: 86400.0}), overdue=setting, after=after)
        house.node.remembered = [
            Run(
                id=f"b{number}",
                request=request,
                began=now - 60.0 + number,
                ended=now - 60.0 + number,
                report=made_room,
                command="dcgmi",
                preempted="job 9",
            )
            for number in range(MAX_RETRIES + 1)
        ]
        async with house.open():
            if runs:
                await until_async(lambda: house.runs, "the run")
                assert house.runs[0].id == "a.2"
            else:
                await until_async(lambda: len(house.batches) > 10, "some batches")
                assert house.runs == [] and house.manager.active

    settled_after_boot(work)


# --- what answers a request


@pytest.mark.parametrize(
    ("level", "gpus", "outcome", "answers"),
    [
        (2, (), Outcome.PASS, True),
        (2, (), Outcome.FAIL, True),
        (2, (), Outcome.CONFIG, True),
        (3, (), Outcome.PASS, True),
        (3, (), Outcome.FAIL, False),  # what it found may be of level 3 alone
        (1, (), Outcome.PASS, False),
        (2, (0,), Outcome.PASS, False),
        (2, (), Outcome.ERROR, False),
        (2, (), Outcome.NOT_APPLICABLE, False),
    ],
)
def test_which_runs_of_others_answer_a_request(
    level: int, gpus: tuple[int, ...], outcome: Outcome, answers: bool
) -> None:
    runs = OwedRuns()
    runs.put(OwedRun(id="a", request=FAILED_JOB, since=0.0))
    request = ask(level, gpus=gpus)
    other = Run(id="b", request=request, began=1.0, ended=2.0, report=Report(outcome=outcome))
    runs.take_result(other, cut=False)
    assert (runs.list_runs() == []) is answers


def test_a_run_of_more_gpus_answers_for_fewer() -> None:
    runs = OwedRuns()
    runs.put(OwedRun(id="a", request=replace(FAILED_JOB, gpus=(1, 2)), since=0.0))
    for gpus, left in (((1,), 1), ((1, 2, 3), 0)):
        run = Run(id="b", request=ask(2, gpus=gpus), began=1.0, ended=2.0, report=PASSED)
        runs.take_result(run, cut=False)
        assert len(runs.list_runs()) == left


async def cannot(ask: RunRequest, execute: Execute) -> Report:
    return Report(outcome=Outcome.ERROR, reason="dcgmi is broken", remedy=Remedy.INVESTIGATE)


@pytest.mark.parametrize("by", ["job 5", SCHEDULE])
def test_a_run_that_cannot_be_mended_by_waiting_is_answered(by: str) -> None:
    async def work() -> None:
        async with House(Tested(how=cannot)).open() as house:
            await house.ended(house.manager.request_run(ask(2, by=by)))
            assert house.manager.active == ()
            assert json.loads(house.position.cursor)["owed"] == []

    told(work)
