"""What a run means, told to the real catalogue and the real judge."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from tests.unit.builders import catalogue, event, gpu
from vitald.collectors.event_factory import EventFactory
from vitald.diagnostics.run_events import (
    NOT_RUN,
    PASSED,
    RAN,
    RunMemory,
    make_events,
    mark_confirmed,
)
from vitald.judge.engine import Judge
from vitald.model.component import NODE, Component
from vitald.model.diagnostic import Fault, Report, Run, RunRequest, Test
from vitald.model.event import Event
from vitald.model.words import Action, ComponentKind, Outcome, Remedy

GPUS = 4
WRONG_MEMORY = Fault(
    code="dcgm/58",
    test="memory",
    text="wrong values",
    gpu=1,
    error_id=58,
    remedy=Remedy.REPLACE,
    confirm=True,
)
REMAP_FAILED = Fault(
    code="dcgm/80",
    test="software",
    text="row remap failed",
    gpu=2,
    error_id=80,
    remedy=Remedy.REPLACE,
)
ENGINE_DOWN = Fault(
    code="dcgm/engine_down", test="engine", text="nobody answers", remedy=Remedy.FIX_CONFIG
)
MEMORY = Test(name="memory", gpus={str(index): "Pass" for index in range(GPUS)})


@dataclass
class Places:
    """GPUs by index. `boards`: what is in each."""

    there: int = GPUS
    boards: dict[Component, str] = field(default_factory=dict)

    def find_gpu(self, index: int, serial: str = "", address: str = "") -> Component | None:
        return gpu(index) if index < GPUS else None

    def find_number(self, component: Component) -> int | None:
        return [gpu(index) for index in range(self.there)].index(component)

    def list_testable_gpus(self) -> set[Component]:
        return self.list_gpus()

    def list_gpus(self) -> set[Component]:
        return {gpu(index) for index in range(self.there)}

    def get_identity(self, component: Component) -> str:
        return self.boards.get(component, component.name)


class Story:
    """Runs one after the other, and what becomes of them."""

    def __init__(self) -> None:
        self.places, self.seen, self.facts, self.now = (
            Places(),
            RunMemory(),
            EventFactory("diagnostics", "boot-a"),
            1000.0,
        )
        self.judge = Judge(catalogue())
        self.last: list[Event] = []

    def run(
        self,
        *faults: Fault,
        level: int = 2,
        check: str = "dcgm",
        outcome: Outcome | None = None,
        gpus: Sequence[int] = (),
        cut: bool = False,
        preempted: str = "",
        busy: bool = False,
        tests: tuple[Test, ...] = (),
        device_ids: tuple[str, ...] = (),
    ) -> Story:
        self.now += 100.0
        said = outcome or (Outcome.FAIL if faults else Outcome.PASS)
        blamed = (
            tuple(sorted({fault.gpu for fault in faults if fault.gpu is not None}))
            if said is Outcome.FAIL
            else ()
        )
        remedies = {fault.remedy for fault in faults}
        report = Report(
            outcome=said,
            faults=faults,
            culprits=blamed,
            tests=tests,
            device_ids=device_ids,
            reboot_required=said is Outcome.FAIL
            and bool(remedies & {Remedy.RESET_GPU, Remedy.REBOOT}),
            replacement_required=said is Outcome.FAIL and Remedy.REPLACE in remedies,
        )
        run = Run(
            id=f"{self.now}",
            request=RunRequest(check=check, level=level, gpus=tuple(gpus), busy=busy),
            began=self.now - 50.0,
            ended=self.now,
            report=report,
            command=check,
            preempted=preempted,
        )
        self.told = mark_confirmed(run, self.places, self.seen).report
        self.last = make_events(
            run, self.facts, catalogue(), self.places, self.seen, self.judge.open_findings, cut=cut
        )
        for one in self.last:
            self.judge.apply_event(one)
        return self

    def restart(self) -> Story:
        self.seen = RunMemory.from_memory(json.loads(json.dumps(self.seen.memory)))
        return self

    @property
    def findings(self) -> dict[tuple[str, str], Action]:
        return {(one.component.name, one.code): one.action for one in self.judge.open_findings}

    @property
    def codes(self) -> list[str]:
        return [one.code for one in self.last]


ONE = (gpu(1).name, "dcgm/58")


def test_a_run_without_a_verdict_changes_nothing() -> None:
    for outcome in (Outcome.ERROR, Outcome.INCONCLUSIVE, Outcome.NOT_APPLICABLE):
        story = Story().run(REMAP_FAILED).run(WRONG_MEMORY)
        before = story.findings
        story.run(WRONG_MEMORY, replace(REMAP_FAILED, gpu=3), outcome=outcome)
        assert story.findings == before and story.codes == [RAN], outcome
        # Nor did it make the run before it forgotten.
        assert story.run(WRONG_MEMORY).findings[ONE] is Action.REPLACE_NODE, outcome


def test_what_is_found_twice_on_one_device_is_believed() -> None:
    for first, second in ((2, 2), (1, 2), (2, 1)):
        story = Story().run(WRONG_MEMORY, level=first)
        assert story.findings == {ONE: Action.INSPECT}
        story.restart().run(WRONG_MEMORY, level=second)
        assert story.findings == {ONE: Action.REPLACE_NODE}, (first, second)


def test_another_device_or_another_error_confirms_nothing() -> None:
    story = Story().run(WRONG_MEMORY).run(replace(WRONG_MEMORY, gpu=3))
    assert set(story.findings.values()) == {Action.INSPECT}
    assert not story.told.replacement_required
    story.run(replace(WRONG_MEMORY, code="dcgm/52", gpu=3))
    assert [one.fields["confirmed"] for one in story.last if one.code == "dcgm/52"] == [False]
    story = Story().run(WRONG_MEMORY)
    story.places.boards[gpu(1)] = "GPU-another"
    assert story.run(WRONG_MEMORY).findings == {ONE: Action.INSPECT}
    story, code = Story(), "efa_loopback/failed"
    for name in ("efa0", "efa1"):
        fault = Fault(code=code, test="loopback", text="no", device=name, confirm=True)
        story.run(fault, check="efa_loopback", level=0)
    assert [one.fields["confirmed"] for one in story.last if one.code == code] == [False]


def test_a_pass_in_between_begins_anew_and_one_at_a_lower_level_does_not() -> None:
    """The hourly level 1 between two runs of level 2 cannot see what these find."""
    story = Story().run(WRONG_MEMORY).run(level=1).restart().run(level=1)
    assert story.findings == {ONE: Action.INSPECT}
    assert story.run(WRONG_MEMORY).findings == {ONE: Action.REPLACE_NODE}
    assert Story().run(WRONG_MEMORY).run().run(WRONG_MEMORY).findings == {ONE: Action.INSPECT}


def test_a_failure_elsewhere_forgets_only_what_was_tested_again() -> None:
    story = (
        Story()
        .run(WRONG_MEMORY)
        .run(REMAP_FAILED, tests=(replace(MEMORY, gpus={"1": "Skip"}),))
        .run(WRONG_MEMORY)
    )
    assert story.findings[ONE] is Action.REPLACE_NODE
    story = Story().run(WRONG_MEMORY).run(REMAP_FAILED, tests=(MEMORY,)).run(WRONG_MEMORY)
    assert story.findings[ONE] is Action.INSPECT


def test_a_pass_of_some_gpus_speaks_for_these() -> None:
    others = replace(WRONG_MEMORY, gpu=3)
    story = Story().run(WRONG_MEMORY, others).run(gpus=(1,))
    assert set(story.findings) == {(gpu(3).name, "dcgm/58")}
    assert story.run(others).findings == {(gpu(3).name, "dcgm/58"): Action.REPLACE_NODE}


def test_a_pass_that_missed_a_gpu_says_nothing_of_that_one() -> None:
    tested = replace(MEMORY, gpus={"0": "Pass", "2": "Pass", "3": "Pass"})
    story = Story()
    story.judge.apply_event(event("xid/999", gpu(1), 900.0))
    story.judge.apply_event(event("xid/999", gpu(2), 900.0))
    assert set(story.run(tests=(tested,)).findings) == {(gpu(1).name, "xid/999")}
    assert story.codes.count(PASSED) == 3
    assert story.run(device_ids=("2330",) * 3).findings and story.codes == [RAN], (
        "three of four, and nobody knows which"
    )
    assert story.run(device_ids=("2330",) * 4).findings == {}


def test_drills_are_neither_cleared_nor_tested() -> None:
    story = Story()
    story.judge.apply_event(event("xid/999", gpu(1), 900.0, simulated_until=10_000.0))
    story.judge.apply_event(event("dcgm/engine_down", NODE, 900.0, simulated_until=10_000.0))
    assert len(story.run().findings) == 2


def test_the_engine_that_answers_again_is_seen_by_whoever_asks() -> None:
    """Whatever the levels: each of them needs it."""
    for finds, level, sees, other in (
        ("dcgm", 2, "dcgm_health", 0),
        ("dcgm_health", 0, "dcgm", 1),
        ("dcgm", 2, "dcgm", 1),
    ):
        story = Story().run(ENGINE_DOWN, check=finds, level=level, outcome=Outcome.ERROR)
        assert story.findings == {("node", "dcgm/engine_down"): Action.INSPECT}
        assert story.run(check=sees, level=other).findings == {}, (finds, sees)


def test_runs_in_vain_are_said_by_check_and_level() -> None:
    story = Story()
    for _ in range(3):
        story.restart().run(outcome=Outcome.ERROR).run(
            check="dcgm_health", level=0, outcome=Outcome.ERROR
        ).run(level=1)
    assert set(story.findings) == {("node/dcgm-2", NOT_RUN), ("node/dcgm_health", NOT_RUN)}
    assert set(story.run(check="dcgm_health", level=0).findings) == {("node/dcgm-2", NOT_RUN)}
    story.seen = RunMemory()  # even where that was forgotten
    assert story.run().findings == {}


def test_what_was_ended_or_is_a_persons_own_affair_is_not_in_vain() -> None:
    story = Story()
    for _ in range(4):
        story.run(outcome=Outcome.INCONCLUSIVE, cut=True).run(
            outcome=Outcome.INCONCLUSIVE, preempted="job 1"
        )
        story.run(outcome=Outcome.ERROR, gpus=(99,)).run(
            outcome=Outcome.INCONCLUSIVE, busy=True
        ).run(outcome=Outcome.NOT_APPLICABLE)
    assert story.findings == {}


def test_what_goes_on_failing_counts_once_in_the_record() -> None:
    """A watch that is read every ten minutes would make any device a lemon within the hour."""
    story = Story()
    for _ in range(5):
        story.run(REMAP_FAILED)
    _, counted = story.judge.score_devices(story.now)[gpu(2).name]
    assert {kind: count for kind, count, _ in counted}["diagnostic_failed"] == 1


def test_wrong_settings_of_a_link_test_end_nothing() -> None:
    slow = Fault(code="nccl/slow", test="all-reduce", text="slow")
    story = Story().run(slow, check="nccl", level=0)
    assert story.findings
    assert story.run(check="nccl", level=0, outcome=Outcome.CONFIG).findings
    assert story.run(check="nccl", level=0).findings == {}


def test_all_devices_of_one_error_are_told() -> None:
    fault = Fault(code="efa_loopback/failed", test="loopback", text="no", confirm=True)
    addresses = [f"0000:a{number}:00.0" for number in range(3)]
    adapters = [replace(fault, device=f"nic/{address}") for address in addresses]
    story = Story().run(*adapters, check="efa_loopback", level=0)
    assert {one.component for one in story.last if one.code == fault.code} == {
        Component(ComponentKind.NIC, address) for address in addresses
    }


def test_memory_has_a_bound_and_a_strange_one_is_refused() -> None:
    story = Story()
    story.run(
        *(
            replace(WRONG_MEMORY, code=f"dcgm/{number}", gpu=number % GPUS)
            for number in range(1000, 6000)
        )
    )
    assert len(story.seen.unconfirmed) <= 1024
    for strange in ({"once": {}}, {"once": [["dcgm"]]}, {"vain": []}, {"vain": {"dcgm": "x"}}):
        with pytest.raises((TypeError, ValueError)):
            RunMemory.from_memory(strange)


def test_the_flags_of_a_run_wait_for_the_second_one() -> None:
    """As the finding does: two words of one daemon must not contradict each other."""
    story = Story()
    for confirmed, action in ((False, Action.INSPECT), (True, Action.REPLACE_NODE)):
        told = story.run(WRONG_MEMORY).told
        assert (told.replacement_required, told.faults[0].confirmed) == (confirmed, confirmed)
        assert story.findings == {ONE: action}


def test_what_is_certain_at_once_raises_its_flag_at_once() -> None:
    story = Story().run(REMAP_FAILED, WRONG_MEMORY)
    assert story.told.replacement_required
    reset = replace(WRONG_MEMORY, code="dcgm/999", severity=6, remedy=Remedy.RESET_GPU)
    assert not Story().run(reset).told.reboot_required
    assert Story().run(reset).run(reset).told.reboot_required


def test_an_xid_that_the_diagnostic_names_is_that_xid() -> None:
    story = Story().run(
        Fault(
            code="xid/79",
            test="memory",
            text="Detected XID 79 for GPU 1",
            gpu=1,
            error_id=101,
            remedy=Remedy.REBOOT,
        )
    )
    assert story.told.reboot_required
    assert story.findings[gpu(1).name, "xid/79"] is Action.REBOOT_NODE
