"""Which repair of the node is due, and for which finding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.builders import finding as asks
from vitald.judge.repairs import find_due_repairs, waits_for_idle
from vitald.model.finding import Acceptance, Finding, FindingState, Requirement
from vitald.model.words import Action, Repair, When


def due(
    *findings: Finding, reset: bool = False, idle: bool = False, drills: bool = False
) -> dict[Repair, int]:
    found = find_due_repairs(findings, device_reset=reset, idle=idle, drills=drills)
    return {repair: one.id for repair, one in found.items()}


ACCEPTED = Acceptance(
    by="alice", reason="x", since=0.0, until=9e9, required=Requirement(Action.REBOOT_NODE, When.NOW)
)


@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize(
    "one",
    [
        asks(confirmed_by=""),
        asks(state=FindingState.IN_REMEDY),
        asks(accepted=ACCEPTED),
        asks(simulated_until=9e9),
        asks(simulated_until=9e9, confirmed_by=""),
        asks(when=When.MAINTENANCE),
        replace(
            asks(),
            base=Requirement(Action.REPLACE_NODE, When.MAINTENANCE, unusable=True),
        ),
        asks(Action.INSPECT),
        asks(Action.RESTART_WORKLOAD),
        asks(Action.OBSERVE),
        asks(Action.NONE),
    ],
)
def test_what_is_never_due(one: Finding, idle: bool) -> None:
    assert due(one, idle=idle) == {}


@pytest.mark.parametrize(
    ("action", "repair"),
    [
        (Action.RESET_DEVICE, Repair.REBOOT),
        (Action.REBOOT_NODE, Repair.REBOOT),
        (Action.REPLACE_NODE, Repair.REPLACE),
    ],
)
def test_what_is_due_now(action: Action, repair: Repair) -> None:
    assert due(asks(action)) == {repair: 1}
    assert due(asks(action, When.AFTER_JOB)) == {}
    assert due(asks(action, When.AFTER_JOB), idle=True) == {repair: 1}


def test_a_site_that_resets_devices_reboots_for_none() -> None:
    assert due(asks(Action.RESET_DEVICE), reset=True) == {}
    assert due(asks(Action.REBOOT_NODE), reset=True) == {Repair.REBOOT: 1}


def test_both_repairs_each_with_its_first_finding() -> None:
    found = due(
        asks(Action.REPLACE_NODE, number=4),
        asks(Action.REBOOT_NODE, confirmed_by="", number=1),
        asks(Action.RESET_DEVICE, number=2),
        asks(Action.REBOOT_NODE, number=3),
    )
    assert found == {Repair.REPLACE: 4, Repair.REBOOT: 2}


def test_a_drill_is_due_for_those_who_ask_for_drills() -> None:
    drill = asks(simulated_until=9e9, confirmed_by="")
    assert due(drill, drills=True) == {Repair.REBOOT: 1}
    assert due(replace(drill, state=FindingState.IN_REMEDY), drills=True) == {}
    later = asks(when=When.AFTER_JOB, simulated_until=9e9, confirmed_by="")
    assert (due(later, drills=True), due(later, drills=True, idle=True)) == ({}, {Repair.REBOOT: 1})


def test_an_escalation_decides_when_it_is_due() -> None:
    escalated = Requirement(Action.REPLACE_NODE, When.AFTER_JOB, reason="again")
    one = asks(Action.RESTART_WORKLOAD, escalation=escalated)
    assert (due(one), due(one, idle=True)) == ({}, {Repair.REPLACE: 1})


@pytest.mark.parametrize(
    ("findings", "waits"),
    [
        ([], False),
        ([asks()], False),
        ([asks(when=When.AFTER_JOB)], True),
        ([asks(), asks(when=When.AFTER_JOB, number=2)], False),  # a reboot is due anyway
        ([asks(), asks(Action.REPLACE_NODE, When.AFTER_JOB, number=2)], True),
        ([asks(when=When.AFTER_JOB, confirmed_by="")], False),
        ([asks(when=When.AFTER_JOB, simulated_until=9e9)], True),
        ([asks(when=When.MAINTENANCE)], False),
    ],
)
def test_whether_a_repair_waits_for_the_job(findings: list[Finding], waits: bool) -> None:
    assert waits_for_idle(iter(findings), device_reset=False) is waits
