"""When a check is due: slots that spread a fleet, runs that fill them, restarts, retries, and
clocks that jump.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitald.diagnostics.schedule import MAX_RETRIES, SETTLE_S, Moment, Plan, Schedule
from vitald.model.diagnostic import Report, Run, RunRequest
from vitald.model.words import Outcome, Remedy

HOUR = 3600.0
DAY = 24 * HOUR
NOW = 1_700_000_000.0
LEVEL_1 = Plan(check="dcgm", level=1, every_s=HOUR, needs_idle=False)
LEVEL_2 = Plan(check="dcgm", level=2, every_s=DAY, needs_idle=True)
SCHEDULE = Schedule(host="node-17")
due_time = SCHEDULE.find_due_time
PASSED = Report(outcome=Outcome.PASS)
BUSY = Report(outcome=Outcome.ERROR, reason="another diagnostic runs", remedy=Remedy.RETRY)


def run(
    plan: Plan,
    began: float,
    report: Report = PASSED,
    *,
    seconds: float = 10.0,
    preempted: str = "",
    **ask: object,
) -> Run:
    asked = replace(RunRequest(check=plan.check, level=plan.level), **ask)  # type: ignore[arg-type]
    return Run(
        id=f"{began}",
        request=asked,
        began=began,
        ended=began + seconds,
        report=report,
        preempted=preempted,
    )


def at(now: float, *, up_s: float = 30 * DAY, running_s: float = 20 * DAY) -> Moment:
    return Moment(now=now, up_s=up_s, running_s=running_s)


def slot_after(plan: Plan, when: float, schedule: Schedule = SCHEDULE) -> float:
    """The first slot from a time on, seen from outside: what is due after a run half a period
    before it.
    """
    return schedule.find_due_time(plan, [run(plan, when - plan.every_s / 2, seconds=0.0)], at(when))


# --- slots


def test_a_run_on_its_slot_is_followed_by_the_next_slot() -> None:
    slot = slot_after(LEVEL_2, NOW)
    assert NOW <= slot < NOW + DAY
    assert due_time(LEVEL_2, [run(LEVEL_2, slot + 5.0)], at(slot + 60)) == pytest.approx(slot + DAY)


def test_a_run_that_was_late_by_most_of_the_period_fills_the_next_slot_too() -> None:
    slot = slot_after(LEVEL_2, NOW)
    for late, following in ((11 * HOUR, 1), (13 * HOUR, 2), (23.9 * HOUR, 2)):
        due = due_time(LEVEL_2, [run(LEVEL_2, slot + late)], at(slot + late + 60))
        assert due == pytest.approx(slot + following * DAY), late


def test_a_long_run_is_not_due_again_before_it_has_ended() -> None:
    slot = slot_after(LEVEL_1, NOW)
    due = due_time(LEVEL_1, [run(LEVEL_1, slot, seconds=55 * 60)], at(slot + 56 * 60))
    assert due == pytest.approx(slot + HOUR)
    due = due_time(LEVEL_1, [run(LEVEL_1, slot, seconds=8.5 * HOUR)], at(slot + 8.5 * HOUR))
    assert due == pytest.approx(slot + 9 * HOUR)


def test_a_fleet_is_spread_evenly_over_the_period() -> None:
    for plan in (LEVEL_1, LEVEL_2):
        hosts = [Schedule(host=f"ip-10-1-{number // 250}-{number % 250}") for number in range(1000)]
        tenths = Counter(
            int((slot_after(plan, NOW, host) - NOW) / plan.every_s * 10) for host in hosts
        )
        assert set(tenths) == set(range(10))
        assert max(tenths.values()) < 140  # 100 expected, 9.5 their deviation
        assert min(tenths.values()) > 65


def test_a_fleet_that_comes_back_at_once_parts_ways() -> None:
    restarted = at(NOW, running_s=0.0)
    hosts = [Schedule(host=f"node-{number}") for number in range(1000)]
    delays = sorted(
        host.find_due_time(LEVEL_2, [run(LEVEL_2, NOW - 9 * DAY)], restarted) - NOW
        for host in hosts
    )
    assert 0.0 <= delays[0] < 3.0
    assert 295.0 < delays[-1] < 300.0
    assert 130 < delays[500] < 170


def test_levels_of_one_host_have_phases_of_their_own() -> None:
    together = 0
    for number in range(500):
        host = Schedule(host=f"node-{number}")
        first, second = slot_after(LEVEL_1, NOW, host), slot_after(LEVEL_2, NOW, host)
        together += abs((second - first + HOUR / 2) % HOUR - HOUR / 2) < 60.0
    assert together < 50  # of 500: 2 minutes of an hour are 17


def test_the_same_host_has_the_same_slots_after_a_restart_and_another_check_has_others() -> None:
    assert slot_after(LEVEL_2, NOW) == slot_after(LEVEL_2, NOW, Schedule(host="node-17"))
    assert slot_after(LEVEL_2, NOW) != slot_after(replace(LEVEL_2, check="nccl"), NOW)
    # The phase is a promise to whoever upgrades: a fleet must not run twice because of a new
    # version.
    assert slot_after(LEVEL_2, NOW) - NOW == pytest.approx(56114.29, abs=0.01)


def test_what_has_no_period_is_never_due() -> None:
    for every_s in (0.0, -1.0, math.inf, math.nan):
        plan = replace(LEVEL_2, every_s=every_s)
        assert due_time(plan, [], at(NOW)) == math.inf, every_s


# --- starts


def test_level_1_runs_after_boot_once_the_node_has_settled() -> None:
    booted = at(NOW, up_s=20.0, running_s=5.0)
    before = [run(LEVEL_1, NOW - 300.0)]  # of the boot before, minutes ago
    due = due_time(LEVEL_1, before, booted)
    assert NOW - 20.0 + SETTLE_S <= due < NOW - 20.0 + SETTLE_S + 30.0


def test_a_daemon_that_comes_late_in_a_boot_starts_level_1_soon() -> None:
    due = due_time(LEVEL_1, [], at(NOW, up_s=DAY, running_s=1.0))
    assert NOW - 1.0 <= due < NOW + 30.0


def test_a_restart_in_the_same_boot_neither_repeats_nor_skips() -> None:
    slot = slot_after(LEVEL_1, NOW)
    ran = [run(LEVEL_1, slot)]
    for minutes in (1, 29, 59):
        restarted = at(slot + 60.0 * minutes, up_s=DAY, running_s=0.0)
        assert due_time(LEVEL_1, ran, restarted) == pytest.approx(slot + HOUR)


def test_an_hour_whose_level_1_failed_is_not_repeated_by_a_restart_either() -> None:
    slot = slot_after(LEVEL_1, NOW)
    for outcome in (Outcome.FAIL, Outcome.CONFIG, Outcome.NOT_APPLICABLE):
        ran, now = [run(LEVEL_1, slot, Report(outcome=outcome))], at(slot + 60, running_s=0.0)
        assert due_time(LEVEL_1, ran, now) == pytest.approx(slot + HOUR), outcome


def test_slots_that_passed_while_the_daemon_was_off_are_made_up_for_once() -> None:
    """As a new node is tested soon."""
    back = at(NOW, running_s=0.0)
    assert NOW <= due_time(LEVEL_2, [], back) < NOW + 300.0
    runs = [run(LEVEL_2, NOW - 9.4 * DAY)]
    due = due_time(LEVEL_2, runs, back)
    assert NOW <= due < NOW + 300.0
    later = due_time(LEVEL_2, runs, at(NOW + 60, running_s=60.0))
    assert later == pytest.approx(due), "it does not run away"
    runs.append(run(LEVEL_2, due))
    after = due_time(LEVEL_2, runs, at(due + 60, running_s=360.0))
    assert due + DAY / 2 <= after <= due + 1.5 * DAY


def test_a_slot_that_passed_while_the_devices_were_busy_stays_due() -> None:
    slot = slot_after(LEVEL_2, NOW)
    assert due_time(LEVEL_2, [run(LEVEL_2, slot - DAY)], at(slot + 5 * HOUR)) == pytest.approx(slot)


def test_nothing_runs_before_the_node_has_settled() -> None:
    due = due_time(LEVEL_2, [run(LEVEL_2, NOW - 3 * DAY)], at(NOW, up_s=10.0, running_s=0.0))
    assert due >= NOW - 10.0 + SETTLE_S


# --- which runs count


def test_a_pass_of_a_higher_level_fills_the_slot_of_the_lower() -> None:
    slot = slot_after(LEVEL_1, NOW)

    def due(other: Run) -> float:
        return due_time(LEVEL_1, [run(LEVEL_1, slot - HOUR), other], at(slot + 60))

    assert due(run(LEVEL_2, slot - 60.0)) == pytest.approx(slot + HOUR)
    failed = run(LEVEL_2, slot - 60.0, Report(outcome=Outcome.FAIL))
    nccl = run(replace(LEVEL_2, check="nccl"), slot - 60.0)
    assert due(failed) == due(nccl) == pytest.approx(slot)
    slot = slot_after(LEVEL_2, NOW)
    runs = [run(LEVEL_2, slot - DAY), run(LEVEL_1, slot - 60)]
    assert due_time(LEVEL_2, runs, at(slot)) == pytest.approx(slot)


def test_a_persons_run_counts_if_it_was_of_all_devices_and_came_to_a_result() -> None:
    slot = slot_after(LEVEL_2, NOW)

    def due(report: Report = PASSED, **more: Any) -> float:
        theirs = run(LEVEL_2, slot - 3600, report, by="root, pid 4711", **more)
        return due_time(LEVEL_2, [run(LEVEL_2, slot - DAY), theirs], at(slot - 600))

    cancelled = Report(outcome=Outcome.INCONCLUSIVE, reason="cancelled by root")
    assert due() == pytest.approx(slot + DAY)
    assert [due(gpus=(3,)), due(cancelled), due(preempted="job 7")] == pytest.approx([slot] * 3)


# --- again


def test_what_could_not_run_is_tried_after_10_20_and_40_minutes_and_then_in_the_next_slot() -> None:
    slot = slot_after(LEVEL_2, NOW)
    for report, preempted in (
        (BUSY, ""),
        (replace(BUSY, remedy=Remedy.EXCLUSIVE_RERUN), ""),
        (Report(outcome=Outcome.INCONCLUSIVE, remedy=Remedy.EXCLUSIVE_RERUN), ""),
        (Report(outcome=Outcome.INCONCLUSIVE), "job 123 (slurm)"),
        (PASSED, "job 123 (slurm)"),
    ):
        runs, due, delays = [run(LEVEL_2, slot - DAY)], slot, []
        for _ in range(MAX_RETRIES + 2):
            runs.append(run(LEVEL_2, due, report, preempted=preempted))
            due = due_time(LEVEL_2, runs, at(runs[-1].ended))
            delays.append(due - runs[-1].ended)
        assert [round(delay / 60.0) for delay in delays[:3]] == [10, 20, 40], report
        assert runs[-1].began == pytest.approx(slot + DAY)
        assert delays[-1] == pytest.approx(600.0), "in the next slot it begins anew"


def test_an_error_that_does_not_go_away_waits_for_the_next_slot() -> None:
    slot = slot_after(LEVEL_2, NOW)
    for remedy in (Remedy.NONE, Remedy.FIX_CONFIG, Remedy.INVESTIGATE):
        failed = run(LEVEL_2, slot, Report(outcome=Outcome.ERROR, remedy=remedy))
        assert due_time(LEVEL_2, [failed], at(slot + 60)) == pytest.approx(slot + DAY)


def test_a_retry_never_waits_longer_than_for_the_slot() -> None:
    slot = slot_after(LEVEL_1, NOW)
    tries = [run(LEVEL_1, slot + minutes * 60, BUSY) for minutes in (0, 10, 30)]
    assert due_time(LEVEL_1, tries, at(slot + 31 * 60)) == pytest.approx(slot + HOUR)
    every = replace(LEVEL_1, check="dcgm_health", every_s=60.0)
    slot = slot_after(every, NOW)
    assert due_time(every, [run(every, slot, BUSY, seconds=1.0)], at(slot + 2)) == pytest.approx(
        slot + 60.0
    )


def test_a_slot_that_begins_right_after_a_try_does_not_hurry_the_next() -> None:
    slot = slot_after(LEVEL_1, NOW)
    late = [run(LEVEL_1, slot + HOUR - 120.0, BUSY)]
    assert due_time(LEVEL_1, late, at(late[0].ended)) - late[0].ended == pytest.approx(600.0)


def test_a_retry_that_was_due_while_the_daemon_was_off_comes_soon() -> None:
    slot = slot_after(LEVEL_2, NOW)
    due = due_time(LEVEL_2, [run(LEVEL_2, slot, BUSY)], at(slot + 2 * HOUR, running_s=0.0))
    assert slot + 2 * HOUR <= due < slot + 2 * HOUR + 300.0


def test_somebody_elses_failed_try_is_not_the_schedules() -> None:
    slot = slot_after(LEVEL_2, NOW)
    runs = [run(LEVEL_2, slot), run(LEVEL_2, slot + HOUR, BUSY, by="finding #12")]
    assert due_time(LEVEL_2, runs, at(slot + HOUR + 60)) == pytest.approx(slot + DAY)


# --- clocks and settings that change


def test_a_clock_that_was_put_back_does_not_stop_the_schedule() -> None:
    years = [run(LEVEL_2, NOW + 365 * DAY), run(LEVEL_2, NOW - 40 * DAY)]
    due = due_time(LEVEL_2, years, at(NOW))
    assert due <= NOW
    assert (
        NOW + DAY / 2
        <= due_time(LEVEL_2, [*years, run(LEVEL_2, NOW)], at(NOW + 60))
        <= NOW + 1.5 * DAY
    )


def test_a_clock_that_was_put_back_a_little_repeats_nothing() -> None:
    due = due_time(LEVEL_2, [run(LEVEL_2, NOW + 300.0)], at(NOW))
    assert NOW + DAY / 2 <= due <= NOW + 2 * DAY


def test_a_clock_that_was_put_far_ahead_asks_for_one_run() -> None:
    ahead = at(NOW + 3650 * DAY)
    assert due_time(LEVEL_2, [run(LEVEL_2, NOW)], ahead) <= ahead.now
    after = due_time(LEVEL_2, [run(LEVEL_2, NOW), run(LEVEL_2, ahead.now)], at(ahead.now + 60))
    assert after > ahead.now + DAY / 2 - 1


def test_a_clock_that_jumped_during_a_run() -> None:
    for ended in (0.0, NOW + 9999 * DAY):
        for report in (PASSED, BUSY):
            jumped = replace(run(LEVEL_2, NOW, report), ended=ended)
            assert NOW + 60 < due_time(LEVEL_2, [jumped], at(NOW + 60)) <= NOW + 2 * DAY


def test_a_period_that_was_changed() -> None:
    daily, hourly = LEVEL_2, replace(LEVEL_2, every_s=HOUR)
    started = at(NOW, running_s=0.0)
    assert NOW <= due_time(hourly, [run(daily, NOW - 5 * HOUR)], started) < NOW + 300.0
    later = due_time(daily, [run(hourly, NOW - HOUR / 2)], started)
    assert NOW + 11 * HOUR < later <= NOW + 1.5 * DAY


# --- in the long run


@given(
    st.lists(st.tuples(st.floats(0.05, 4.0), st.floats(0.0, 3.0)), min_size=1, max_size=12),
    st.integers(0, 10_000),
    st.sampled_from([HOUR, 6 * HOUR, DAY]),
    st.booleans(),
)
def test_never_more_than_one_a_slot_and_never_none_in_two(
    lives: list[tuple[float, float]], host: int, every_s: float, needs_idle: bool
) -> None:
    """A daemon that is on for a while and off for a while, in one boot, and may always run."""
    schedule, plan = (
        Schedule(host=str(host)),
        Plan(check="dcgm", level=2, every_s=every_s, needs_idle=needs_idle),
    )
    runs: list[Run] = []
    now = NOW
    for on, off in lives:
        start, end = now, now + on * every_s
        while now < end:
            due = schedule.find_due_time(
                plan, runs, Moment(now=now, up_s=now - NOW + 30 * DAY, running_s=now - start)
            )
            assert due <= max(now, runs[-1].began + 2 * every_s if runs else 0.0, start + 300.0), (
                "none in two periods"
            )
            if due > now:
                now = min(due, end)
                continue
            runs.append(run(plan, now, seconds=30.0))
            now += 30.0
        now = end + off * every_s
    slots = Counter(
        math.floor((one.began - slot_after(plan, NOW, schedule)) / every_s) for one in runs
    )
    assert max(slots.values(), default=0) <= 1
    gaps = [later.began - earlier.began for earlier, later in pairwise(runs)]
    assert min(gaps, default=every_s) >= every_s / 2


@given(
    st.lists(
        st.builds(
            lambda plan, ago, seconds, outcome, remedy, by, preempted, gpus: replace(
                run(
                    plan,
                    NOW - ago,
                    Report(outcome=outcome, remedy=remedy),
                    seconds=seconds,
                    preempted=preempted,
                ),
                request=RunRequest(check="dcgm", level=plan.level, by=by, gpus=gpus),
            ),
            st.sampled_from([LEVEL_1, LEVEL_2]),
            st.floats(-1e9, 1e9),
            st.floats(-1e6, 1e6),
            st.sampled_from(Outcome),
            st.sampled_from(Remedy),
            st.sampled_from(["schedule", "root"]),
            st.sampled_from(["", "job 1"]),
            st.sampled_from([(), (0,)]),
        ),
        max_size=8,
    ),
    st.floats(0.0, 1e8),
    st.floats(0.0, 1e8),
    st.sampled_from([LEVEL_1, LEVEL_2]),
)
def test_whatever_is_remembered_a_run_is_due_within_two_periods_and_then_makes_way(
    runs: list[Run], up_s: float, running_s: float, plan: Plan
) -> None:
    moment = Moment(now=NOW, up_s=max(up_s, running_s), running_s=running_s)
    due = due_time(plan, runs, moment)
    assert due <= NOW + 2.5 * plan.every_s + SETTLE_S + 330.0
    assert due_time(plan, list(reversed(runs)), moment) == due
    done = [*runs, run(plan, NOW)]
    assert due_time(plan, done, moment) > NOW, "no run repeats at once"
