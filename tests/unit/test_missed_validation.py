"""A validation that ended without a pass: what is shown of it, and when it is required again."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.pace import patient
from tests.unit.builders import booted, catalogue
from tests.unit.test_diagnostics_manager import House, Tested, ask, told
from tests.unit.test_validation import FACTS, Watched, passed, pending_finding
from vitald.cli.diag.overview import _describe_validation
from vitald.cli.status import _format_diagnostics
from vitald.core.node_state import NodeState
from vitald.core.pipeline import Pipeline
from vitald.core.validation_history import read_missed_validation
from vitald.diagnostics import schedule, validation, validation_planner
from vitald.diagnostics.validation import find_pending
from vitald.judge.missed_validation import follow_validation
from vitald.ledger import Ledger
from vitald.model import Batch, Event
from vitald.model.codes import VALIDATION_PENDING
from vitald.model.diagnostic import Outcome, Report
from vitald.model.validation import MissedValidation, Trigger, ValidationEnd, ValidationStage
from vitald.server.diagnostics_view import serialize_validation
from vitald.worker_thread import WorkerThread

MISSED = MissedValidation(
    level=2,
    after=Trigger.REBOOT,
    because="the node was rebooted",
    reason="MIG is on",
    since=time.time() - 100.0,
    ended=time.time() - 50.0,
    is_impossible=True,
)


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "SETTLE_S", 0.0)
    monkeypatch.setattr(validation_planner, "SETTLE_S", 0.0)


def end(reason: ValidationEnd = ValidationEnd.IMPOSSIBLE) -> tuple[Event, Event]:
    """The event that requires a validation after a reboot, and its end without a pass."""
    node = Watched()
    node.judge(booted("boot-b", 2.0))
    assert node.pending is not None
    pending = find_pending([node.pending])
    assert pending is not None
    return node.events[-1], validation.make_end_event(pending, reason, "MIG is on", FACTS)


def find_required(house: House) -> list[Event]:
    return [each for each in house.told if each.code == VALIDATION_PENDING]


async def pass_rounds(house: House) -> None:
    for _ in range(3):
        rounds = len(house.batches)
        house.manager._changed.set()
        await house.until(lambda: len(house.batches) > rounds, "a round")


def test_the_events_show_what_was_missed_until_a_pass_of_the_level() -> None:
    required, over = end()
    assert follow_validation(None, required) is None
    missed = follow_validation(None, over)
    assert missed is not None and missed.describe() == (
        "the node was rebooted, and level 2 did not pass: MIG is on"
    )
    assert abs(missed.since - required.time) < 0.001
    at = over.time + 10.0
    for stays in (passed(at, level=1), passed(at, began=required.time - 1.0)):
        assert follow_validation(missed, stays) == missed
    assert follow_validation(missed, replace(passed(at), simulated_until=at)) == missed
    assert follow_validation(missed, passed(at)) is None
    assert follow_validation(missed, required) is None, "it is pending again"
    assert follow_validation(None, end(ValidationEnd.DISABLED)[1]) is None
    no_verdict = follow_validation(None, end(ValidationEnd.NO_VERDICT)[1])
    assert no_verdict is not None and not no_verdict.is_impossible


def test_it_is_restored_from_the_ledger(tmp_path: Path) -> None:
    required, over = end()

    async def work() -> list[MissedValidation | None]:
        thread, state = WorkerThread("test"), NodeState("boot-b", 0.0, device_reset=False)
        pipeline = Pipeline(Ledger(tmp_path), thread, state, catalogue(), "boot-b")
        await pipeline.open(catalogue())
        found = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pipeline.run)
            for event in (required, over, passed(over.time + 5.0, 1), passed(over.time + 9.0)):
                await pipeline.store(Batch("diagnostics", (event,)))
                found.append(read_missed_validation(tmp_path / "ledger.db"))
                assert found[-1] == state.missed_validation
            tasks.cancel_scope.cancel()
        await pipeline.close()
        thread.close()
        return found

    found = asyncio.run(asyncio.wait_for(work(), patient(30.0)))
    assert [missed is not None for missed in found] == [False, True, True, False]


def test_it_is_required_again_when_the_program_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation_planner, "_OBSTACLE_S", 0.1)
    missing = ["dcgmi is not installed"]

    async def work() -> None:
        house = House(Tested(why_missing=lambda: missing[0]))
        house.node.open = [pending_finding(after="reboot")]
        async with house.open():
            while "over" not in house.told[-1].fields:
                await pass_rounds(house)
            house.node.open = []
            house.node.missed_validation = follow_validation(None, house.told[-1])
            await house.until(
                lambda: house.manager.validation.stage is ValidationStage.OFF, "what is shown"
            )
            assert house.manager.validation.missed is not None
            events = len(house.told)
            await pass_rounds(house)
            assert len(house.told) == events, "not while the program is missing"
            missing[0] = ""
            while len(house.told) == events:
                await pass_rounds(house)
            again = house.told[-1]
            house.node.open, house.node.missed_validation = [pending_finding(**again.fields)], None
            while not house.runs:
                await pass_rounds(house)
        assert "over" not in again.fields
        assert (again.fields["level"], again.fields["after"]) == (2, "reboot")

    told(work)


@pytest.mark.parametrize(
    ("outcome", "more", "is_required"),
    [
        (Outcome.PASS, {}, True),
        (Outcome.ERROR, {}, False),
        (Outcome.PASS, {"is_impossible": False}, False),  # three runs had no verdict
        (Outcome.PASS, {"after": Trigger.RESET}, False),  # not configured any more
        (Outcome.PASS, {"returned": True}, False),  # each pass of level 1 would require it again
        (Outcome.FAIL, {"returned": True, "level": 1}, True),
    ],
)
def test_it_is_required_again_after_a_run_with_a_verdict(
    outcome: Outcome, more: dict[str, Any], is_required: bool
) -> None:
    async def work() -> None:
        async def answer(*_: object) -> Report:
            return Report(outcome=outcome)

        house = House(Tested(how=answer))
        house.manager._validation.settings = replace(
            house.manager._validation.settings, after=("reboot",)
        )
        house.node.missed_validation = replace(MISSED, **more)
        async with house.open():
            await pass_rounds(house)
            assert find_required(house) == []
            await house.ended(house.manager.request_run(ask(1)))
            await pass_rounds(house)
        assert bool(find_required(house)) is is_required

    told(work)


def test_that_it_was_required_again_is_known_after_its_next_end() -> None:
    again = validation.make_return_event(MISSED, 2, FACTS)
    pending = find_pending([pending_finding(**again.fields)])
    assert pending is not None
    wait = validation.make_wait_event(pending, "idle GPUs", FACTS, 1e9)
    assert wait is not None
    pending = find_pending([pending_finding(**wait.fields)])
    assert pending is not None
    over = validation.make_end_event(pending, ValidationEnd.IMPOSSIBLE, "MIG is on", FACTS)
    missed = follow_validation(None, over)
    assert missed is not None and missed.returned


def test_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    house = House()
    house.node.missed_validation = MISSED
    shown = serialize_validation(house.manager.validation)
    house.manager.close()
    house.lane.close()
    assert shown["stage"] == "none" and shown["detail"].startswith("not validated: the node was")
    assert "not validated since " in _describe_validation(shown)
    [line] = _format_diagnostics({"going": [], "last": [], "passes": [], "validation": shown})
    assert line.startswith("  not validated since ")
    assert line.endswith(": the node was rebooted; MIG is on: vitald diag list")
    without = serialize_validation(replace(house.manager.validation, missed=None))
    assert (
        list(_format_diagnostics({"going": [], "last": [], "passes": [], "validation": without}))
        == []
    )
