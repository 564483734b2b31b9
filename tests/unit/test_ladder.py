"""Which run the open findings ask for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.builders import finding, gpu
from vitald.catalog import Clears
from vitald.diagnostics.planner import find_manual_level, request_runs
from vitald.model.component import NODE, Component
from vitald.model.diagnostic import Report, Run, RunRequest
from vitald.model.finding import Finding
from vitald.model.words import Action, ComponentKind, Outcome

NOW = 100_000.0
SUSPECT = finding(Action.INSPECT, code="xid/999", last=NOW - 10)
AT_3, AT_2 = Clears(diagnostic=3, reboot=True), Clears(diagnostic=2)


def run(level: int, began: float, outcome: Outcome = Outcome.PASS, check: str = "dcgm") -> Run:
    return Run(
        id=f"{check}{level}@{began}",
        request=RunRequest(check=check, level=level),
        began=began,
        ended=began + 5,
        report=Report(outcome=outcome),
    )


def levels(
    found: Finding, clears: Clears, *runs: Run, most: int = 2, now: float = NOW
) -> list[int]:
    return [ask.level for ask in request_runs([found], lambda _: clears, past(*runs), most, now)]


def past(*runs: Run) -> dict[tuple[str, int], list[Run]]:
    found: dict[tuple[str, int], list[Run]] = {}
    for one in runs:
        found.setdefault((one.request.check, one.request.level), []).append(one)
    return found


def test_a_suspicion_climbs_step_by_step() -> None:
    later = NOW + 4000
    assert levels(SUSPECT, AT_3) == [1]
    assert levels(SUSPECT, AT_3, run(1, NOW)) == [2]
    assert levels(SUSPECT, AT_3, run(1, NOW), run(2, NOW + 10), now=later) == []
    assert levels(SUSPECT, AT_3, run(1, NOW), run(2, NOW + 10), most=3, now=later) == [3]
    assert levels(SUSPECT, AT_2, run(1, NOW), run(2, NOW + 10), most=4, now=later) == []


def test_what_ran_before_it_was_seen_settles_nothing() -> None:
    assert levels(SUSPECT, AT_3, run(1, NOW - 5000), run(2, NOW - 5000)) == [1]


def test_a_run_that_came_to_nothing_is_tried_again_a_little_later() -> None:
    vain = run(1, NOW, Outcome.INCONCLUSIVE)
    assert levels(SUSPECT, AT_3, vain, now=NOW + 60) == []
    assert levels(SUSPECT, AT_3, vain, now=NOW + 700) == [1]


def test_a_fault_that_goes_on_asks_once_an_hour() -> None:
    again = finding(Action.INSPECT, code="xid/999", last=NOW + 100)
    assert levels(again, AT_3, run(1, NOW), now=NOW + 110) == []
    assert levels(again, AT_3, run(1, NOW), now=NOW + 3700) == [1]


@pytest.mark.parametrize(("found_at", "asked_for"), [(1, 2), (2, 2), (3, None)])
def test_what_must_be_found_twice_is_looked_for_again(found_at: int, asked_for: int | None) -> None:
    once = finding(
        Action.INSPECT,
        code="dcgm/58",
        last=NOW - 10,
        fields={"check": "dcgm", "level": found_at, "confirmed": False},
        since=NOW - 10,
    )
    clears = Clears(diagnostic=1)
    assert levels(once, clears, run(found_at, NOW - 15, Outcome.FAIL)) == (
        [] if asked_for is None or asked_for == found_at else [asked_for]
    )
    assert levels(once, clears, run(found_at, NOW - 15, Outcome.FAIL), now=NOW + 601) == (
        [] if asked_for is None else [asked_for]
    )
    twice = finding(
        Action.INSPECT,
        code="dcgm/58",
        last=NOW - 10,
        fields={"check": "dcgm", "level": found_at, "confirmed": True},
    )
    assert levels(twice, clears, run(1, NOW, Outcome.FAIL)) == []


@pytest.mark.parametrize(
    "found",
    [
        finding(Action.REBOOT_NODE, last=NOW),
        finding(Action.NONE, last=NOW),
        finding(Action.INSPECT, last=NOW, simulated_until=NOW + 600),
        finding(Action.INSPECT, last=NOW, component=Component(ComponentKind.NIC, "0000:a0:19.0")),
    ],
)
def test_what_asks_for_no_diagnostic(found: Finding) -> None:
    assert levels(found, AT_3) == []


def test_each_level_is_asked_for_once_and_says_by_whom() -> None:
    two = [SUSPECT, finding(Action.OBSERVE, number=2, code="nvml/trend", last=NOW)]
    (ask,) = request_runs(two, lambda _: AT_3, {}, 2, NOW)
    assert (ask.check, ask.level, ask.by) == ("dcgm", 1, "finding #1")
    assert gpu(1).name in ask.reason and "xid/999" in ask.reason


def test_neuron_devices_have_their_own() -> None:
    found = finding(
        Action.INSPECT,
        code="neuron/dma_aborts",
        last=NOW,
        component=Component(ComponentKind.NEURON, "0000:a0:1b.0"),
    )
    (ask,) = request_runs([found], lambda _: AT_3, {}, 2, NOW)
    assert (ask.check, ask.level) == ("nccom", 0)
    assert (
        request_runs([found], lambda _: AT_3, past(run(0, NOW + 1, check="nccom")), 2, NOW + 9000)
        == []
    )


def test_what_only_a_person_may_ask_for_is_said() -> None:
    assert find_manual_level(SUSPECT, AT_3, 2) == 3
    assert find_manual_level(SUSPECT, AT_3, 3) == 0
    assert find_manual_level(finding(Action.INSPECT, component=NODE), AT_2, 1) == 2
    assert find_manual_level(finding(Action.REPLACE_NODE), AT_3, 2) == 0


def test_a_run_of_some_gpus_settles_nothing_and_delays_nothing() -> None:
    some = replace(run(1, NOW), request=RunRequest(check="dcgm", level=1, gpus=(0,)))
    assert levels(SUSPECT, AT_3, some, now=NOW + 10) == [1]


def test_what_came_to_nothing_does_not_undo_what_passed() -> None:
    """A level 1 that passed stays so when the next one had to make room."""
    assert levels(
        SUSPECT, AT_3, run(1, NOW), run(1, NOW + 20, Outcome.INCONCLUSIVE), now=NOW + 60
    ) == [2]


def test_what_is_found_twice_and_asks_for_the_same_is_not_tested_for_ever() -> None:
    """Its fields stay those of the first time, since nothing stronger was said."""
    unclear = finding(
        Action.INSPECT,
        code="dcgm/unclear",
        since=NOW,
        last=NOW + 900,
        fields={"check": "dcgm", "level": 1, "confirmed": False},
    )
    found = [run(1, NOW - 5, Outcome.FAIL), run(2, NOW + 895, Outcome.FAIL)]
    assert levels(unclear, Clears(diagnostic=1), *found[:1], now=NOW + 700) == [2]
    assert levels(unclear, Clears(diagnostic=1), *found, now=NOW + 90_000) == []


def test_what_a_diagnostic_found_and_nobody_need_confirm_is_left_to_the_schedule() -> None:
    hot = finding(
        Action.OBSERVE,
        code="dcgm/40",
        since=NOW,
        last=NOW,
        fields={"check": "dcgm", "level": 2, "confirmed": True},
    )
    assert levels(hot, AT_2, run(2, NOW - 100, Outcome.FAIL), now=NOW + 90_000) == []


def test_what_comes_back_although_it_passed_is_loaded_once_a_day() -> None:
    """DCGM's watch complains again after each run that passes: a new finding each time."""
    health = finding(
        Action.INSPECT,
        code="dcgm_health/memory",
        last=NOW,
        fields={"check": "dcgm_health", "level": 0, "confirmed": True},
    )
    (first,) = request_runs([health], lambda _: AT_2, past(run(1, NOW + 5)), 2, NOW + 20)
    assert first.level == 2
    done = replace(run(2, NOW + 30), request=first)
    again = replace(health, id=7, since=NOW + 8000, last=NOW + 8000)
    assert levels(again, AT_2, done, run(1, NOW + 8005), now=NOW + 8020) == []
    assert levels(again, AT_2, done, run(1, NOW + 8005), now=NOW + 86_600) == [2]
    other = replace(again, component=gpu(5))
    assert levels(other, AT_2, done, run(1, NOW + 8005), now=NOW + 8020) == [2]


def test_what_was_found_at_a_higher_level_needs_that_level() -> None:
    found = finding(
        Action.INSPECT,
        code="dcgm/58",
        last=NOW,
        fields={"check": "dcgm", "level": 3, "confirmed": False},
    )
    assert find_manual_level(found, Clears(diagnostic=1), 2) == 3
    assert find_manual_level(replace(found, simulated_until=NOW + 60), Clears(diagnostic=1), 2) == 0


def test_a_clock_that_was_put_back_does_not_hold_it_up() -> None:
    assert levels(SUSPECT, AT_3, run(1, NOW + 86_400), now=NOW) == [2]
    assert levels(SUSPECT, AT_3, run(1, NOW + 86_400, Outcome.ERROR), now=NOW) == [1]
