"""Which answers of a watch are recorded, and that a watch is read beside other runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

from tests.unit.builders import catalogue, finding, gpu
from tests.unit.test_diagnostics_manager import House, Node, Tested, ask, told
from vitald.diagnostics.check import Command, Execute
from vitald.diagnostics.check_set import CheckSet
from vitald.diagnostics.interpreter import RunInterpreter
from vitald.diagnostics.recording import RecordingPolicy
from vitald.diagnostics.schedule import SCHEDULE
from vitald.model import Action
from vitald.model.diagnostic import Fault, Outcome, Report, Run, RunRequest

HEALTHY = Report(outcome=Outcome.PASS)
UNANSWERED = Report(outcome=Outcome.ERROR, reason="no answer")


def failing(times_limit: float | None = None, text: str = "replays") -> Report:
    fault = Fault(
        code="dcgm_health/pcie", test="PCIe system", text=text, gpu=0, times_limit=times_limit
    )
    return Report(outcome=Outcome.FAIL, reason=text, faults=(fault,))


@dataclass(slots=True)
class Watched(Tested):
    """A watch that answers what the test says."""

    name: str = "dcgm_health"
    levels: tuple[int, ...] = (0,)
    report: Report = HEALTHY
    settling: bool = False

    def is_settling(self) -> bool:
        return self.settling

    def needs_idle(self, level: int) -> bool:
        return False

    async def run_check(self, ask: RunRequest, execute: Execute) -> Report:
        await execute(Command(argv=("dcgmi", "health"), deadline_s=60.0))
        return self.report


class Recorded:
    """A policy for one watch of a node. Answers come every 15 seconds."""

    def __init__(self) -> None:
        self.watch, self.node = Watched(), Node()
        checks = CheckSet({self.watch.name: self.watch}, cast("Any", None), cast("Any", None))
        self.interpreter = RunInterpreter("diagnostics", "b", cast("Any", self.node), catalogue())
        self.policy = RecordingPolicy(checks, cast("Any", self.node), self.interpreter)
        self.time = 1_000_000.0

    def answer(self, report: Report, *, by: str = SCHEDULE, cut: bool = False) -> bool:
        """True if it is recorded. Its events then open and close findings."""
        self.time += 15.0
        run = Run(
            id=str(self.time),
            ask=RunRequest(check=self.watch.name, by=by),
            began=self.time,
            ended=self.time,
            report=report,
        )
        recorded = self.policy.accept_run(run, cut)
        if recorded:
            self.interpreter.make_events(run, cut=cut)
            self.node.open = [
                finding(Action.INSPECT, code=fault.code, component=gpu(0))
                for fault in report.faults
            ]
        return recorded


def test_equal_answers_are_recorded_once() -> None:
    node = Recorded()
    assert node.answer(HEALTHY)
    assert not any(node.answer(HEALTHY) for _ in range(100))
    assert node.answer(failing(2.0))
    assert not node.answer(failing(2.4, "other figures in the text"))
    assert node.answer(failing(3225.8)), "another order of magnitude may have another action"
    assert node.answer(HEALTHY)
    assert not node.answer(HEALTHY)


def find_recorded(answers: Iterable[bool]) -> list[int]:
    """The numbers of the answers that were recorded."""
    return [number for number, recorded in enumerate(answers) if recorded]


def test_an_answer_that_alternates_is_recorded_twenty_times_and_its_finding_stays_open() -> None:
    node = Recorded()
    day = [failing(2.0) if number % 2 else HEALTHY for number in range(5760)]
    recorded = find_recorded(map(node.answer, day))
    assert 18 <= len(recorded) <= 24, "the bucket, and what it regains meanwhile"
    assert recorded[-1] == len(recorded) - 1 < 30, "all of them within the first minutes"
    assert [open_finding.code for open_finding in node.node.open] == ["dcgm_health/pcie"]
    assert find_recorded(node.answer(HEALTHY) for _ in range(100)) == [40], "ten minutes"
    assert node.node.open == []


def test_an_answer_that_returns_restarts_the_wait_for_equal_answers() -> None:
    node = Recorded()
    for number in range(100):
        node.answer(failing(2.0) if number % 2 else HEALTHY)
    hour = [HEALTHY if number % 39 else failing(2.0) for number in range(240)]
    assert find_recorded(map(node.answer, hour)) == []


def test_a_fault_that_is_new_is_recorded_at_once_and_one_that_returns_within_three_minutes() -> (
    None
):
    node = Recorded()
    for number in range(101):
        node.answer(failing(2.0) if number % 2 else HEALTHY)
    assert node.answer(failing(3225.8)), "never seen before, so it is not withheld"
    both = [failing(3225.8) if number % 2 else failing(2.0) for number in range(480)]
    answers = [node.answer(report) for report in both]
    assert answers[240:].count(True) <= 21, "the second hour"
    gaps = [later - earlier for earlier, later in pairwise(find_recorded(answers))]
    assert max(gaps) * 15.0 <= 180.0 + 15.0


def test_a_recovery_leaves_a_change_for_the_fault_that_returns() -> None:
    """Wherever in the alternation an answer stays: the fault is open within one answer."""
    for count in range(60):
        node = Recorded()
        for number in range(count):
            node.answer(failing(2.0) if number % 2 else HEALTHY)
        node.answer(failing(2.0))
        assert node.node.open, count


def test_a_clock_that_is_set_back_neither_adds_changes_nor_ends_the_wait() -> None:
    node = Recorded()
    for number in range(200):
        node.answer(failing(2.0) if number % 2 else HEALTHY)
    node.time -= 86400.0
    assert find_recorded(node.answer(HEALTHY) for _ in range(60)) == [40]


def test_an_answer_that_a_person_requests_is_recorded() -> None:
    node = Recorded()
    assert node.answer(HEALTHY)
    assert node.answer(HEALTHY, by="root, pid 1")


def test_answers_that_do_not_count_yet_and_stopped_runs_are_not_recorded() -> None:
    node = Recorded()
    node.watch.settling = True
    assert not node.answer(Report(outcome=Outcome.INCONCLUSIVE))
    node.watch.settling = False
    assert not node.answer(Report(outcome=Outcome.INCONCLUSIVE), cut=True)
    assert node.answer(HEALTHY)


def test_a_finding_that_was_cleared_by_mistake_returns_within_ten_minutes() -> None:
    node = Recorded()
    node.answer(failing())
    node.node.open = []
    answers = [node.answer(failing()) for _ in range(60)]
    assert answers.count(True) == 1 and answers.index(True) * 15.0 <= 600.0


def test_a_finding_that_the_watch_does_not_report_is_closed() -> None:
    node = Recorded()
    node.answer(HEALTHY)
    node.node.open = [finding(Action.INSPECT, code="dcgm_health/sm", component=gpu(0))]
    answers = [node.answer(HEALTHY) for _ in range(60)]
    assert answers.count(True) == 1


def test_a_watch_without_an_answer_opens_a_finding_within_ten_minutes() -> None:
    node = Recorded()
    node.answer(HEALTHY)
    answers = [node.answer(UNANSWERED) for _ in range(200)]
    assert [number for number, recorded in enumerate(answers) if recorded] == [0, 20, 40]
    assert node.answer(HEALTHY)


def test_a_watch_is_read_beside_an_active_run_and_its_answers_are_shown() -> None:
    async def work() -> None:
        watch = Watched(periods={0: 0.05})
        house = House(Tested(periods={}), watch)
        house.programs.ends = False
        async with house.open():
            active = house.manager.request_run(ask(1))
            await house.until(lambda: house.programs.runs, "the run of a test")
            await house.until(lambda: len(house.watch_programs.runs) >= 4, "four answers")
            assert house.manager.active[0].id == active.id, "the test goes on"
            assert [run.report.outcome for run in house.runs] == [Outcome.PASS], "one is recorded"
            last = house.manager.last_runs["dcgm_health", 0]
            assert last.id != house.runs[0].id
            assert house.manager.find_recent_run(last.id) is not None
            watch.report = failing()
            await house.until(lambda: "dcgm_health/pcie" in house.codes, "its fault")
            house.node.open = [finding(Action.INSPECT, code="dcgm_health/pcie", component=gpu(0))]
            watch.report = HEALTHY
            await house.until(lambda: house.runs[-1].report.outcome is Outcome.PASS, "its end")
            assert any(
                event.code == "dcgm_health/pcie" and event.fields.get("recovered") is True
                for event in house.told
            )
            house.programs.end()
            assert (await house.ended(active)).report.outcome is Outcome.PASS
            assert house.manager._queue._waiters.keys() <= {run.id for run in house.manager.active}

    told(work)


def test_a_watch_is_not_read_during_a_release() -> None:
    async def work() -> None:
        house = House(Watched(periods={0: 0.05}))
        house.node.told_released = "for an upgrade"
        async with house.open():
            await house.until(lambda: house.manager.active, "a queued run")
            await asyncio.sleep(0.2)
            assert house.watch_programs.runs == []
            assert "release" in house.manager.active[0].waits_for
            house.node.told_released = ""
            await house.until(lambda: house.watch_programs.runs, "the read")

    told(work)


def test_a_watch_that_is_requested_while_it_is_active_is_refused_and_another_check_is_not() -> None:
    async def work() -> None:
        house = House(Tested(), Watched())
        house.watch_programs.ends = False
        async with house.open():
            request = replace(ask(0), check="dcgm_health")
            reading = house.manager.request_run(request)
            await house.until(lambda: house.watch_programs.runs, "the read")
            tested = house.manager.request_run(ask(2))
            await house.ended(tested)
            assert house.manager.cancel_run(reading.id, "root", "enough") is not None
            assert (await house.ended(reading)).report.reason == "cancelled by root: enough"

    told(work)
