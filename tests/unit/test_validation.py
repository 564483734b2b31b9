"""Validation before return: what requires it, what proves it, and how a run changes it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import FUZZ, booted, catalogue, event, finding, gpu
from tests.unit.test_diagnostics_manager import BUSY, House, Tested, told
from vitald.collectors.event_factory import EventFactory
from vitald.core.daemon_events import DaemonEvents
from vitald.core.evaluator import Evaluator
from vitald.core.validation_gate import ValidationPolicy
from vitald.diagnostics import device_access, schedule, source, validation, validation_planner
from vitald.diagnostics.validation import VALIDATION, find_pending, make_run_events
from vitald.judge.engine import Judge
from vitald.ledger import LedgerEntry
from vitald.model import NODE, Action, Component, ComponentKind, Event, Fields, Finding, Trust, When
from vitald.model.codes import (
    ACCEPTED,
    CLEARED,
    DIAGNOSTIC_PASSED,
    IDENTITY,
    REPLACED,
    RESET,
    VALIDATION_FAILED,
    VALIDATION_PENDING,
)
from vitald.model.diagnostic import Fault, Outcome, Report, Run, RunRequest
from vitald.model.validation import Trigger, ValidationEnd, ValidationStage

ALWAYS = ValidationPolicy(level=2, after=[trigger.value for trigger in Trigger])


class Clocked(DaemonEvents):
    """Dates what it makes by the test's clock, where that is set."""

    now: float | None = None

    def make_event(
        self, code: str, fields: Fields, component: Component, raw: str, at: float | None = None
    ) -> Event:
        return super().make_event(code, fields, component, raw, self.now if at is None else at)


class Watched:
    """The evaluator of a node whose validation is required."""

    def __init__(self, policy: ValidationPolicy = ALWAYS, *, is_open: bool = True) -> None:
        self.clock = Clocked("boot-a")
        self.evaluator = Evaluator(Judge(catalogue()), self.clock)
        self.evaluator.validation.policy = policy
        self.evaluator.validation.is_open = is_open
        self.events: list[Event] = []

    def judge(self, *events: Event) -> list[str]:
        """The codes of the events that were added."""
        entry = self.evaluator.evaluate_events(LedgerEntry(), *events)
        self.events += entry.events
        return [each.code for each in entry.events[len(events) :]]

    @property
    def pending(self) -> Finding | None:
        return self.evaluator.judge.find_open(NODE, VALIDATION_PENDING)

    def replay(self) -> list[tuple[str, str]]:
        """What a fresh judge, without settings, has open after the same events."""
        fresh = Judge(catalogue())
        for each in self.events:
            fresh.apply_event(each)
        return [(found.component.name, found.code) for found in fresh.open_findings]

    @property
    def open(self) -> list[tuple[str, str]]:
        findings = self.evaluator.judge.open_findings
        return [(found.component.name, found.code) for found in findings]


def passed(at: float, level: int = 2, began: float | None = None, **more: Any) -> Event:
    fields = {
        "level": level,
        "check": "dcgm",
        "run": "r",
        "began": at - 1.0 if began is None else began,
    }
    return event(DIAGNOSTIC_PASSED, NODE, at, trust=Trust.DAEMON, fields=fields, **more)


def lost(at: float = 1.0, **more: Any) -> Event:
    return event("xid/79", gpu(1), at, **more)


def later() -> float:
    return time.time() + 10.0


# --- what requires it


def test_a_cleared_fault_requires_it_in_the_same_transaction() -> None:
    node = Watched()
    assert node.judge(lost()) == []
    assert node.judge(booted("boot-b", 2.0)) == [VALIDATION_PENDING]
    assert node.open == [("node", VALIDATION_PENDING)]
    assert node.pending is not None and node.pending.makes_unfit(between_jobs=False)
    assert node.pending.action is Action.OBSERVE and node.pending.when is When.NOW
    fields = node.pending.fields
    assert (fields["after"], fields["level"]) == ("cleared", 2)
    assert fields["because"] == f"xid/79 of {gpu(1).name} is over"


@pytest.mark.parametrize(
    ("what", "after"),
    [
        (booted("boot-b", 2.0), "reboot"),
        (event(RESET, gpu(1), 2.0, trust=Trust.DAEMON), "reset"),
        (
            event(RESET, gpu(1), 2.0, trust=Trust.DAEMON, fields={"persistent": True}),
            "reset",
        ),
        (event(REPLACED, gpu(1), 2.0, trust=Trust.DAEMON, fields={"by": "alice"}), "replacement"),
    ],
)
def test_what_requires_it_without_a_fault(what: Event, after: str) -> None:
    node = Watched()
    assert node.judge(what) == [VALIDATION_PENDING]
    assert node.pending is not None and node.pending.fields["after"] == after
    others = [trigger.value for trigger in Trigger if trigger.value != after]
    assert Watched(ValidationPolicy(level=2, after=others)).judge(what) == []


def test_another_serial_in_the_slot_requires_it_and_the_first_one_does_not() -> None:
    def identity(serial: str, at: float) -> Event:
        return event(IDENTITY, gpu(1), at, trust=Trust.DAEMON, fields={"serial": serial})

    node = Watched()
    assert node.judge(identity("1", 1.0), identity("1", 2.0)) == []
    assert node.judge(identity("2", 3.0)) == [VALIDATION_PENDING]
    assert node.pending is not None and node.pending.fields["after"] == "replacement"


@pytest.mark.parametrize(
    "events",
    [
        [lost(simulated_until=9e9), booted("boot-b", 2.0)],
        [lost(fields={"vouched": False}), booted("boot-b", 2.0)],
        [event("xid/13", gpu(1), 1.0), booted("boot-b", 2.0)],  # the application's own
        [event("ib/port_lost", Component(ComponentKind.NIC, "mlx5_0/1"), 1.0), booted("b", 2.0)],
        [event("lockup/soft", NODE, 1.0), booted("boot-b", 2.0)],
        # The driver let go of it when its last client ended, such as vitald.
        [event(RESET, gpu(1), 2.0, trust=Trust.DAEMON, fields={"persistent": False})],
    ],
    ids=["drill", "hearsay", "application", "network", "processor", "no persistence"],
)
def test_what_is_no_fault_that_a_diagnostic_finds_requires_nothing(events: list[Event]) -> None:
    node = Watched(ValidationPolicy(level=2, after=["cleared", "reset"]))
    assert node.judge(*events) == []


def test_a_person_s_clear_requires_it_and_an_acceptance_does_not() -> None:
    fields = {"code": "xid/79", "by": "alice", "reason": "why", "until": 9e9}
    node = Watched()
    assert node.judge(lost(), event(ACCEPTED, gpu(1), 2.0, trust=Trust.DAEMON, fields=fields)) == []
    node = Watched()
    cleared = event(CLEARED, gpu(1), 2.0, trust=Trust.DAEMON, fields=fields)
    assert node.judge(lost(), cleared) == [VALIDATION_PENDING]


@pytest.mark.parametrize(("level", "required"), [(1, True), (2, False), (3, False)])
def test_a_run_that_disproved_the_fault_is_the_validation(level: int, required: bool) -> None:
    over = {"level": level, "check": "dcgm", "run": "r", "recovered": True}
    node = Watched()
    assert node.judge(event("nvml/gpu_lost", gpu(2), 1.0, trust=Trust.DAEMON)) == []
    codes = node.judge(event("nvml/gpu_lost", gpu(2), 2.0, trust=Trust.DAEMON, fields=over))
    assert ("gpu/0000:02:00.0", "nvml/gpu_lost") not in node.open
    assert (codes == [VALIDATION_PENDING]) == required


def test_nothing_before_the_first_start_requires_it() -> None:
    node = Watched(is_open=False)
    assert node.judge(lost(), booted("boot-b", 2.0)) == []


@pytest.mark.parametrize(
    "policy",
    [
        ValidationPolicy(level=0, after=ALWAYS.after),
        ValidationPolicy(level=2, after=ALWAYS.after, find_obstacle=lambda: "no dcgmi"),
    ],
)
def test_where_it_is_off_nothing_is_held_back(policy: ValidationPolicy) -> None:
    node = Watched(policy)
    assert node.judge(lost(), booted("boot-b", 2.0)) == []
    assert node.open == []


# --- what proves it


def pended(level: int = 2) -> Watched:
    node = Watched(ValidationPolicy(level=level, after=ALWAYS.after))
    node.judge(booted("boot-b", 2.0))
    return node


@pytest.mark.parametrize(
    ("evidence", "closes"),
    [
        (lambda: passed(later()), True),
        (lambda: passed(later(), level=3), True),
        (lambda: passed(later(), level=1), False),
        (lambda: passed(later(), began=1.0), False),
        (lambda: passed(later(), simulated_until=9e9), False),
        (
            lambda: event(
                "diagnostic/neuron_passed",
                NODE,
                later(),
                trust=Trust.DAEMON,
                fields={"level": 3, "began": later()},
            ),
            False,
        ),
        (lambda: event("driver/loaded", NODE, later()), False),
    ],
    ids=["same", "higher", "lower", "began before", "drill", "neuron", "driver load"],
)
def test_only_a_later_pass_at_the_level_proves_it(evidence: Any, closes: bool) -> None:
    node = pended()
    node.judge(evidence())
    assert (node.pending is None) == closes


def test_a_reboot_ends_nothing_and_begins_it_again() -> None:
    node = pended()
    assert node.pending is not None
    before = node.pending
    assert node.judge(booted("boot-c", later())) == [VALIDATION_PENDING]
    assert node.pending.id == before.id and node.pending.last > before.last
    node.judge(passed(later(), began=before.last))
    assert node.pending is not None, "that run began before the second boot"


def test_the_heavier_trigger_stays() -> None:
    node = Watched()
    node.judge(lost(), booted("boot-b", 2.0), booted("boot-c", 3.0))
    assert node.pending is not None and node.pending.fields["after"] == "cleared"
    assert "xid/79" in str(node.pending.fields["because"])


OPERATIONS = st.lists(
    st.sampled_from(["fault", "boot", "reset", "drill", "pass 1", "pass 2", "old pass", "clear"]),
    max_size=12,
)


@FUZZ
@given(OPERATIONS)
def test_it_is_pending_from_a_trigger_to_a_pass_or_a_person(operations: list[str]) -> None:
    """A small model, and a replay without settings that comes to the same findings."""
    node, is_pending = Watched(), False
    start = time.time()
    for number, what in enumerate(operations):
        node.clock.now = at = start + 100.0 * number
        if what == "fault":
            node.judge(lost(at, boot=f"boot-{number}"))
        elif what == "drill":
            node.judge(lost(at, simulated_until=at + 10.0))
        elif what == "boot":
            node.judge(booted(f"boot-{number + 1000}", at))
            is_pending = True
        elif what == "reset":
            node.judge(event(RESET, gpu(2), at, trust=Trust.DAEMON))
            is_pending = True
        elif what == "clear" and node.pending is not None:
            fields = {"code": VALIDATION_PENDING, "by": "alice", "reason": "why"}
            node.judge(event(CLEARED, NODE, at, trust=Trust.DAEMON, fields=fields))
            is_pending = False
        elif what == "old pass":
            node.judge(passed(at + 50.0, began=start - 1000.0))
        elif what.startswith("pass"):
            node.judge(passed(at + 50.0, level=int(what[-1])))
            is_pending = is_pending and what == "pass 1"
        assert (node.pending is not None) == is_pending
    assert node.replay() == node.open


# --- how a run changes it

FACTS = EventFactory("diagnostics", "boot-a")


def pending_finding(**fields: Any) -> Finding:
    given = {"level": 2, "first": 2, "after": "cleared", "because": "a fault is over", **fields}
    return finding(
        Action.OBSERVE,
        number=7,
        component=NODE,
        code=VALIDATION_PENDING,
        kind="validation",
        last=100.0,
        fields=given,
    )


def run_of(outcome: Outcome, level: int = 2, *, began: float = 200.0, **more: Any) -> Run:
    report = Report(outcome=outcome, reason="the reason", faults=more.pop("faults", ()))
    ask = RunRequest(check="dcgm", level=level, by=VALIDATION, gpus=more.pop("gpus", ()))
    return Run(id="r", ask=ask, began=began, ended=began + 60.0, report=report, **more)


def change(run: Run, /, *, cut: bool = False, complete: bool = True, **fields: Any) -> list[Event]:
    pending = find_pending([pending_finding(**fields)])
    return make_run_events(run, pending, FACTS, cut=cut, complete=complete)


def test_a_failure_goes_one_level_up_once() -> None:
    (up,) = change(run_of(Outcome.FAIL))
    assert (up.code, up.fields["level"], up.fields["failed"]) == (VALIDATION_PENDING, 3, "2")
    verdict = change(run_of(Outcome.FAIL, 3), level=3, failed="2")
    assert [each.code for each in verdict] == [VALIDATION_PENDING, VALIDATION_FAILED]
    decided = find_pending([pending_finding(**verdict[0].fields)])
    assert decided is not None and decided.is_decided
    waits = validation.find_reason_to_wait(decided, (), lambda _: Any, 1e9)
    assert waits == "a repair or a person"


def test_a_failed_level_is_not_passed_by_the_same_level() -> None:
    """The judge requires the next one from then on."""
    node = pended()
    (up,) = make_run_events(
        run_of(Outcome.FAIL, began=later()),
        find_pending(node.evaluator.judge.open_findings),
        FACTS,
        cut=False,
        complete=True,
    )
    node.judge(up, passed(later() + 200.0, level=2))
    assert node.pending is not None
    node.judge(passed(later() + 300.0, level=3))
    assert node.pending is None


@pytest.mark.parametrize(
    "run",
    [
        run_of(Outcome.PASS),
        run_of(Outcome.FAIL, level=1),
        run_of(Outcome.FAIL, gpus=(3,)),
        run_of(Outcome.FAIL, began=50.0),
        run_of(Outcome.INCONCLUSIVE, preempted="job 12"),
    ],
    ids=["a pass closes it by itself", "lower", "of one GPU", "began before", "made room"],
)
def test_runs_that_change_nothing(run: Run) -> None:
    assert change(run) == []
    assert change(run_of(Outcome.ERROR), cut=True) == []


def test_no_verdict_is_tried_three_times() -> None:
    fields: dict[str, Any] = {}
    delays = []
    for _ in range(2):
        run = run_of(Outcome.ERROR)
        (again,) = change(run, **fields)
        delays.append(again.fields["not_before"] - run.ended)
        fields = dict(again.fields)
    assert delays == [60.0, 120.0]
    codes = [each.code for each in change(run_of(Outcome.ERROR), **fields)]
    assert codes == [VALIDATION_PENDING, VALIDATION_FAILED], "a fault was known"
    (over,) = change(run_of(Outcome.ERROR), **{**fields, "after": "reboot"})
    assert over.fields["over"] == "no_verdict", "no fault was known: a fleet goes on"
    two = {**fields, "after": "reboot", "failed": "2"}
    assert len(change(run_of(Outcome.ERROR), **two)) == 2, "but a run has found one"


def test_the_reason_of_a_try_stays_in_the_finding() -> None:
    pending = find_pending([pending_finding(tries=1, not_before=1060.0)])
    assert pending is not None
    waits = validation.find_reason_to_wait(pending, (), lambda _: Any, 1000.0)
    assert waits == "its next try"
    assert validation.make_wait_event(pending, waits, FACTS, 1000.0) is None
    assert validation.make_wait_event(pending, "idle devices: x", FACTS, 1000.0) is not None


def test_where_no_engine_runs_it_ends() -> None:
    down = (Fault(code="dcgm/engine_down", test="engine", text="down"),)
    (over,) = change(run_of(Outcome.ERROR, faults=down), tries=2, after="reboot")
    assert over.fields["over"] == "impossible"
    (over,) = change(run_of(Outcome.NOT_APPLICABLE), after="reboot")
    assert (over.fields["over"], over.raw) == ("impossible", "not validated: the reason")


@pytest.mark.parametrize("after", ["cleared", "replacement"])
@pytest.mark.parametrize("outcome", [Outcome.ERROR, Outcome.NOT_APPLICABLE])
def test_where_a_fault_was_known_no_engine_does_not_end_it(after: str, outcome: Outcome) -> None:
    down = (Fault(code="dcgm/engine_down", test="engine", text="down"),)
    events = change(run_of(outcome, faults=down), tries=2, after=after)
    assert [each.code for each in events] == [VALIDATION_PENDING, VALIDATION_FAILED]
    assert not any("over" in each.fields for each in events)


def test_a_clock_that_was_set_back_is_a_try_and_the_newest_event_dates_it() -> None:
    """Otherwise no pass would ever be newer, and a run would follow the other at once."""
    node = Watched()
    node.clock.now = 5000.0
    node.judge(booted("boot-b", 5000.0))
    findings = node.evaluator.judge.open_findings
    run = run_of(Outcome.PASS, began=200.0)
    (again,) = make_run_events(run, find_pending(findings), FACTS, cut=False, complete=True)
    assert (again.fields["tries"], again.fields["not_before"]) == (1, run.ended + 60.0)
    node.judge(passed(run.ended, began=run.began))
    assert node.pending is not None
    node.judge(again)
    assert node.pending is not None and node.pending.last == run.ended
    node.judge(passed(run.ended + 120.0, began=run.ended + 60.0))
    assert node.pending is None
    assert node.replay() == node.open


def test_the_clock_was_set_back_between_two_boots() -> None:
    node = Watched()
    for boot, now in (("boot-b", 5000.0), ("boot-c", 100.0)):
        node.clock.now = now
        node.judge(booted(boot, now))
    assert node.pending is not None and node.pending.last == 100.0
    node.judge(passed(400.0, began=300.0))
    assert node.pending is None


def test_the_end_of_a_validation_counts_after_the_clock_was_set_back() -> None:
    node = Watched()
    node.clock.now = time.time() + 5000.0
    node.judge(booted("boot-b", node.clock.now))
    pending = find_pending(node.evaluator.judge.open_findings)
    assert pending is not None
    node.judge(validation.make_end_event(pending, ValidationEnd.DISABLED, "off", FACTS))
    assert node.pending is None


def test_a_pass_of_some_gpus_is_no_verdict() -> None:
    (again,) = change(run_of(Outcome.PASS), complete=False)
    assert again.fields["tries"] == 1 and "every GPU" in again.raw


# --- its runs


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for the next round."""
    for name in ("_PERIOD_S", "_QUEUED_PERIOD_S"):
        monkeypatch.setattr(source, name, 0.01)
    monkeypatch.setattr(device_access, "find_leftovers", lambda _: ())


@pytest.fixture
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation_planner, "SETTLE_S", 0.0)


def opened(house: House, *more: Finding) -> None:
    house.node.open = [pending_finding(), *more]


@pytest.mark.usefixtures("_settled")
def test_it_starts_as_soon_as_the_devices_are_idle() -> None:
    """Not after the time for which a scheduled run waits."""

    async def work() -> None:
        house = House()
        house.detector.idle_s = 0.0
        house.detector.uses = BUSY
        opened(house)
        async with house.open():
            await house.until(lambda: house.manager.validation.detail, "what it waits for")
            await house.until(
                lambda: "idle devices: python3" in house.manager.validation.detail, "the users"
            )
            note = next(each for each in house.told if each.code == VALIDATION_PENDING)
            assert "it waits for" in note.raw
            house.detector.uses = ()
            await house.until(lambda: house.runs, "the run")
            assert (house.runs[0].ask.by, house.runs[0].ask.level) == (VALIDATION, 2)

    told(work)


@pytest.mark.usefixtures("_settled")
@pytest.mark.parametrize(
    ("other", "runs"),
    [
        (finding(Action.REBOOT_NODE, number=9), False),
        (finding(Action.REBOOT_NODE, number=9, code="dcgm/80", kind="dcgm"), True),
        (finding(Action.OBSERVE, number=9), True),
    ],
    ids=["a repair comes first", "of a diagnostic", "fit"],
)
def test_a_fault_that_a_diagnostic_would_only_find_again(other: Finding, runs: bool) -> None:
    async def work() -> None:
        house = House()
        house.node.cleared_at = type(house.node.cleared_at)(reboot=True)
        opened(house, other)
        async with house.open():
            if runs:
                await house.until(lambda: house.runs, "the run")
            else:
                await house.until(lambda: VALIDATION_PENDING in house.codes, "a note")
                assert "it waits for the end of xid/79" in house.told[0].raw
                await asyncio.sleep(0.1)
                assert house.manager.active == ()

    told(work)


def test_after_a_boot_it_waits_until_the_devices_have_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(validation_planner, "SETTLE_S", 1e9)

    async def work() -> None:
        house = House()
        opened(house)
        async with house.open():
            await house.until(lambda: "settle" in house.manager.validation.detail, "the reason")
            assert house.manager.active == ()

    told(work)
    assert schedule.SETTLE_S == 120.0


@pytest.mark.parametrize(
    ("after", "up_s", "waits"),
    [
        ("reboot", 119.0, "settle"),
        ("reboot", 150.0, "its turn"),
        ("reboot", 221.0, ""),
        ("cleared", 119.0, "settle"),
        ("cleared", 150.0, ""),
    ],
)
def test_nodes_without_a_fault_part_ways_after_a_common_outage(
    after: str, up_s: float, waits: str
) -> None:
    async def work() -> None:
        house = House()
        house.detector.uses = BUSY
        house.node.open = [pending_finding(after=after)]
        planner = house.manager._validation
        moment = schedule.Moment(now=1e9, up_s=up_s, running_s=60.0)
        assert planner.plan_run(moment, spread_s=100.0) == (not waits)
        if waits:
            assert waits in house.manager.validation.detail
        house.manager.close()
        house.lane.close()

    told(work)
    parts = {schedule.Schedule(host=f"n{i}").get_boot_spread_s("dcgm", 2) for i in range(100)}
    assert 0.0 <= min(parts) < 60.0 and 240.0 < max(parts) < 300.0


@pytest.mark.usefixtures("_settled")
def test_it_takes_over_a_scheduled_run_and_goes_when_it_is_over() -> None:
    async def work() -> None:
        house = House(Tested(periods={2: 3600.0}))
        house.detector.idle_s = 0.0
        house.detector.uses = BUSY
        opened(house)
        async with house.open():
            await house.until(
                lambda: [run.ask.by for run in house.manager.active] == [VALIDATION], "its run"
            )
            house.node.open = []
            await house.until(
                lambda: VALIDATION not in [run.ask.by for run in house.manager.active], "its end"
            )

    told(work)


@pytest.mark.usefixtures("_settled")
def test_a_program_that_is_gone_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation_planner, "_OBSTACLE_S", 0.1)

    async def work() -> None:
        house = House(Tested(why_missing=lambda: "dcgmi is not installed"))
        house.node.open = [pending_finding(after="reboot")]
        async with house.open():
            await house.until(lambda: "over" in house.told[-1].fields, "its end")
            over = house.told[-1]
            assert over.fields["over"] == "impossible"
            assert over.raw == "not validated: dcgmi is not installed"
            house.node.open = []
            await house.until(
                lambda: house.manager.validation.stage is ValidationStage.OFF, "what is shown"
            )
            assert house.manager.validation.detail == "dcgmi is not installed"

    told(work)


@pytest.mark.usefixtures("_settled")
@pytest.mark.parametrize("after", ["cleared", "reboot"])
def test_a_program_that_is_gone_for_a_moment_ends_nothing(after: str) -> None:
    """A package that is being upgraded: rounds are shorter than that, and a run that was queued
    starts the next one at once.
    """
    missing = [""]

    async def work() -> None:
        house = House(Tested(why_missing=lambda: missing[0]))
        house.detector.idle_s = 0.0
        house.detector.uses = BUSY
        house.node.open = [pending_finding(after=after)]
        async with house.open():
            await house.until(lambda: house.manager.active, "its run in the queue")
            missing[0] = "dcgmi is not installed"
            await house.until(lambda: not house.manager.active, "its end")
            assert "a way to run it: dcgmi" in house.manager.validation.detail
            rounds = len(house.batches)
            await house.until(lambda: len(house.batches) > rounds + 20, "many rounds")
            missing[0], house.detector.uses = "", ()
            await house.until(
                lambda: (
                    [run.ask.by for run in house.runs][-1:] == [VALIDATION]
                    and house.runs[-1].report.outcome is Outcome.PASS
                ),
                "the run",
            )
            assert not any("over" in each.fields for each in house.told)
            assert VALIDATION_FAILED not in house.codes

    told(work)
    assert validation_planner._OBSTACLE_S == 600.0


@pytest.mark.usefixtures("_settled")
@pytest.mark.parametrize(("after", "failed"), [("cleared", ""), ("reboot", "2")])
def test_where_a_fault_was_known_it_fails_until_diagnostics_can_run(
    monkeypatch: pytest.MonkeyPatch, after: str, failed: str
) -> None:
    monkeypatch.setattr(validation_planner, "_OBSTACLE_S", 0.1)
    missing = ["dcgmi is not installed"]

    async def work() -> None:
        house = House(Tested(why_missing=lambda: missing[0]))
        level = 3 if failed else 2
        house.node.open = [pending_finding(after=after, failed=failed, level=level)]
        async with house.open():
            await house.until(lambda: VALIDATION_FAILED in house.codes, "the verdict")
            note, verdict = house.told[-2:]
            assert verdict.raw == f"level {level} cannot run: dcgmi is not installed"
            said = finding(
                Action.INSPECT, component=NODE, code=VALIDATION_FAILED, kind="validation", number=8
            )
            house.node.open = [pending_finding(**note.fields), said]
            await asyncio.sleep(0.2)
            assert house.codes.count(VALIDATION_FAILED) == 1, "once"
            missing[0] = ""
            await house.until(lambda: house.told[-1].fields.get("obstacle") == "", "the end")
            assert house.runs == [], "a run must begin after the note"
            house.node.open = [pending_finding(**house.told[-1].fields), said]
            await house.until(lambda: "recovered" in house.told[-1].fields, "the verdict's end")
            house.node.open = house.node.open[:1]
            await house.until(lambda: house.runs, "the run")
            assert not any("over" in each.fields for each in house.told)

    told(work)


@pytest.mark.usefixtures("_settled")
def test_a_verdict_that_begins_again_is_over() -> None:
    async def work() -> None:
        house = House()
        failed = finding(
            Action.INSPECT, component=NODE, code=VALIDATION_FAILED, kind="validation", number=8
        )
        opened(house, failed)
        async with house.open():
            await house.until(lambda: VALIDATION_FAILED in house.codes, "its end")
            over = next(each for each in house.told if each.code == VALIDATION_FAILED)
            assert over.fields["recovered"] is True

    told(work)
