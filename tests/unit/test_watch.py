"""Watches: from readings to signs. Each thing is said once, and what is not observed says
nothing.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitald.catalog.threshold import ThresholdGroup, read_threshold
from vitald.collectors.thresholds import Crossing, ThresholdEvaluator
from vitald.model.component import Component
from vitald.model.source import Readings, Sample
from vitald.model.words import ComponentKind


def watched(
    *watches: dict[str, Any], code: str = "nvml/test", state: bool = False
) -> ThresholdGroup:
    return ThresholdGroup(
        code=code,
        component=ComponentKind.GPU,
        thresholds=tuple(map(read_threshold, watches)),
        state=state,
    )


def reading(gpu: int = 0, fresh: set[str] | None = None, **values: Sample) -> Readings:
    return Readings(
        component=Component(ComponentKind.GPU, f"0000:{gpu:02x}:00.0"),
        identity=f"GPU-{gpu}",
        time=0.0,
        polled_at=0.0,
        values=values,
        fresh=frozenset(values if fresh is None else fresh),
    )


def look(
    watcher: ThresholdEvaluator,
    now: float,
    *readings: Readings,
    siblings: tuple[Readings, ...] = (),
) -> list[Crossing]:
    return watcher.evaluate_readings(readings, now, siblings or readings).crossings


def again(watcher: ThresholdEvaluator, one: ThresholdGroup) -> ThresholdEvaluator:
    """As after a restart: through JSON, as it is stored."""
    return ThresholdEvaluator([one], json.loads(json.dumps(watcher.memory)))


def test_a_state_is_said_when_it_begins_and_when_it_ends() -> None:
    watcher = ThresholdEvaluator([watched({"of": "pending", "is": 1})])
    assert look(watcher, 0, reading(pending=0.0)) == []
    begun = look(watcher, 10, reading(pending=1.0))
    assert [(sign.code, dict(sign.fields)) for sign in begun] == [("nvml/test", {"pending": 1})]
    assert look(watcher, 20, reading(pending=1.0)) == []
    ended = look(watcher, 30, reading(pending=0.0))
    assert [dict(sign.fields) for sign in ended] == [{"recovered": True, "pending": 0}]
    assert look(watcher, 40, reading(pending=0.0)) == []


def test_what_is_not_observed_neither_begins_nor_ends() -> None:
    watcher = ThresholdEvaluator([watched({"of": "pending", "is": 1})])
    look(watcher, 0, reading(pending=1.0))
    assert look(watcher, 10, reading()) == []
    assert look(watcher, 20, reading(pending=0.0, fresh=set())) == []  # not read in this look
    assert look(watcher, 30, reading(pending=1.0)) == []  # still said


def test_a_state_must_last_as_long_as_it_says() -> None:
    watcher = ThresholdEvaluator([watched({"of": "t", "above": "limit", "for": "60s"})])
    hot, cold = reading(t=91.0, limit=90.0), reading(t=90.0, limit=90.0)
    assert look(watcher, 0, hot) == look(watcher, 59, hot) == []
    assert (
        look(watcher, 59.5, cold) == look(watcher, 60, hot) == look(watcher, 119, hot) == []
    )  # interrupted: it begins anew
    (sign,) = look(watcher, 120, hot)
    assert sign.fields == {"t": 91, "limit": 90.0}
    assert look(watcher, 130, cold) == look(watcher, 189, cold) == []
    assert [dict(sign.fields)["recovered"] for sign in look(watcher, 190, cold)] == [True]


def test_a_limit_that_is_not_observed_says_nothing() -> None:
    watcher = ThresholdEvaluator([watched({"of": "t", "above": "limit"})])
    assert look(watcher, 0, reading(t=500.0)) == []


def test_of_several_watches_one_is_enough_and_each_may_end_only_what_it_said() -> None:
    one = watched({"of": "slow", "is": 1}, {"of": "fast", "is": 1})
    watcher = ThresholdEvaluator([one])
    assert len(look(watcher, 0, reading(slow=1.0, fast=0.0))) == 1
    assert (
        look(watcher, 1, reading(slow=1.0, fast=0.0, fresh={"fast"})) == []
    )  # `slow` was not read: it may still hold
    assert len(look(watcher, 2, reading(slow=0.0, fast=0.0))) == 1


def test_what_another_watch_saw_at_an_earlier_look_keeps_it_open() -> None:
    """Its reading is of another tier, and current: only a look that reads it may end what
    it says.
    """
    watcher = ThresholdEvaluator([watched({"of": "rare", "is": 1}, {"of": "often", "is": 1})])
    assert len(look(watcher, 0, reading(rare=0.0, often=1.0))) == 1
    assert look(watcher, 10, reading(rare=1.0, often=1.0)) == []
    assert look(watcher, 20, reading(fresh={"often"}, rare=1.0, often=0.0)) == []
    assert look(watcher, 30, reading(fresh={"often"}, rare=1.0, often=0.0)) == []
    (ended,) = look(watcher, 40, reading(rare=0.0, often=0.0))
    assert ended.fields == {"recovered": True, "rare": 0}


def test_only_while_other_readings_allow() -> None:
    watcher = ThresholdEvaluator(
        [watched({"of": "generation", "below": "most", "only": {"idle": 0}})]
    )
    assert look(watcher, 0, reading(generation=1.0, most=5.0, idle=1.0)) == []
    (sign,) = look(watcher, 1, reading(generation=1.0, most=5.0, idle=0.0))
    assert sign.fields == {"generation": 1, "idle": 0, "limit": 5.0}


def test_a_counter_is_told_by_its_growth_since_it_was_last_told() -> None:
    one = watched({"of": "errors", "rises": 1})
    watcher = ThresholdEvaluator([one])
    assert look(watcher, 0, reading(errors=0.0)) == []
    assert [sign.fields for sign in look(watcher, 1, reading(errors=3.0))] == [
        {"errors": 3, "rise": 3}
    ]
    watcher = again(watcher, one)
    assert look(watcher, 2, reading(errors=3.0)) == []  # the baseline survives
    assert [sign.fields["rise"] for sign in look(watcher, 3, reading(errors=5.0))] == [2]
    assert (
        look(watcher, 4, reading(errors=1.0)) == []
    )  # it fell, and nobody saw why: that is where it counts from now
    assert [sign.fields["rise"] for sign in look(watcher, 5, reading(errors=3.0))] == [2]
    assert look(watcher, 5, reading(errors=0.0)) == []


def test_errors_from_before_the_first_look_are_told_with_that() -> None:
    (sign,) = look(
        ThresholdEvaluator([watched({"of": "errors", "rises": 1})]), 0, reading(errors=2.0)
    )
    assert "at the first poll" in sign.text


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(1, 3))
def test_no_growth_is_lost_and_none_told_twice(steps: list[int], least: int) -> None:
    one = watched({"of": "errors", "rises": least})
    watcher, total, told = ThresholdEvaluator([one]), 0, 0
    for number, step in enumerate(steps):
        total += step
        told += sum(
            int(sign.fields["rise"]) for sign in look(watcher, number, reading(errors=float(total)))
        )
        if step % 2:
            watcher = again(watcher, one)
    assert total - told in range(least)  # what has not reached the threshold yet is kept for later


def test_a_rate_counts_what_came_in_its_window() -> None:
    watcher = ThresholdEvaluator(
        [watched({"of": "replays", "above": 0.96, "times": "width", "over": "10m", "per": "1m"})]
    )
    total = 0.0
    for minute in range(40):
        total += 15 if minute < 20 else 16
        signs = look(watcher, minute * 60.0, reading(replays=total, width=16.0))
        if signs:
            break
    assert (
        minute == 23
    )  # 15 a minute are fine for 16 lanes (15.36); the mean of ten minutes passes that with four of 16
    ended = [
        look(watcher, (minute + more) * 60.0, reading(replays=total, width=16.0))
        for more in range(1, 30)
    ]
    assert [[sign.fields["recovered"] for sign in signs] for signs in ended if signs] == [[True]]


def test_a_burst_at_the_first_look_is_no_rate() -> None:
    watcher = ThresholdEvaluator(
        [watched({"of": "replays", "above": 1, "over": "10m", "per": "1m"})]
    )
    assert look(watcher, 0, reading(replays=1e6)) == []
    assert look(watcher, 10, reading(replays=1e6)) == []


def test_a_list_names_its_places() -> None:
    watcher = ThresholdEvaluator([watched({"of": "down", "is": 1})])
    (sign,) = look(watcher, 0, reading(down=(0.0, 1.0, 0.0, 1.0)))
    assert sign.fields == {"down": [1, 1], "links": [1, 3]}
    assert "link 1, 3" in sign.text


def test_counters_of_links_are_told_by_link() -> None:
    one = watched({"of": "failed", "rises": 1})
    watcher = ThresholdEvaluator([one])
    look(watcher, 0, reading(failed=(0.0, 0.0)))
    watcher = again(watcher, one)
    (sign,) = look(watcher, 1, reading(failed=(0.0, 2.0)))
    assert sign.fields == {"failed": 2, "rise": 2, "links": [1]}


def test_an_outlier_among_siblings() -> None:
    watcher = ThresholdEvaluator(
        [watched({"of": "clock", "peers_below": 5, "min_distance": 100, "for": "60s"})]
    )
    clocks = [1980.0, 1975.0, 1985.0, 1980.0, 1980.0, 1970.0, 1980.0, 1410.0]
    readings = tuple(reading(gpu, clock=clock, name="H100") for gpu, clock in enumerate(clocks))
    assert look(watcher, 0, *readings) == []
    (sign,) = look(watcher, 60, *readings)
    assert sign.component.id == "0000:07:00.0"
    assert sign.fields["median"] == 1980


def test_no_outlier() -> None:
    for clocks in (
        [1410.0] * 8,  # all alike
        [1980.0, 1410.0, 1980.0],  # too few to compare with
        [1980.0] * 7 + [1900.0],  # not far enough
    ):
        watcher = ThresholdEvaluator(
            [watched({"of": "clock", "peers_below": 5, "min_distance": 100})]
        )
        readings = [reading(gpu, clock=clock, name="H100") for gpu, clock in enumerate(clocks)]
        assert look(watcher, 0, *readings) == [], clocks


def test_another_model_is_no_sibling() -> None:
    watcher = ThresholdEvaluator([watched({"of": "clock", "peers_below": 5, "min_distance": 100})])
    readings = [reading(gpu, clock=1980.0, name="H100") for gpu in range(4)] + [
        reading(5, clock=1000.0, name="T4")
    ]
    assert look(watcher, 0, *readings) == []


def test_a_changed_value_is_told_once_and_calm_ones_not_at_first() -> None:
    one = watched({"of": "recovery", "changes": 0})
    watcher = ThresholdEvaluator([one])
    assert look(watcher, 0, reading(recovery=0.0)) == []
    assert [sign.fields for sign in look(watcher, 1, reading(recovery=1.0))] == [
        {"recovery": 1, "was": 0}
    ]
    watcher = again(watcher, one)
    assert look(watcher, 2, reading(recovery=1.0)) == []
    assert [sign.fields["recovery"] for sign in look(watcher, 3, reading(recovery=0.0))] == [0]
    assert [
        sign.fields["recovery"]
        for sign in look(ThresholdEvaluator([one]), 0, reading(recovery=2.0))
    ] == [2]
    version = watched({"of": "vbios", "changes": 0})
    other = ThresholdEvaluator([version])
    assert look(other, 0, reading(vbios="96.1")) == []
    assert len(look(again(other, version), 1, reading(vbios="96.2"))) == 1


def test_after_a_boot_what_still_holds_is_told_again() -> None:
    state, word, counter = (
        watched({"of": "pending", "is": 1}, code="nvml/a"),
        watched({"of": "recovery", "changes": 0}, code="nvml/b", state=True),
        watched({"of": "errors", "rises": 1}, code="nvml/c"),
    )
    watcher = ThresholdEvaluator([state, word, counter])
    ill = reading(pending=1.0, recovery=1.0, errors=4.0)
    assert len(look(watcher, 0, ill)) == 3
    watcher.forget_all()
    assert [sign.code for sign in look(watcher, 1, ill)] == [
        "nvml/a",
        "nvml/b",
    ]  # a counter that did not move is no new error
    watcher.forget_component("GPU-0", counters=True)
    signs = look(watcher, 2, reading(pending=0.0, recovery=0.0, errors=1.0))
    assert [(sign.code, sign.fields.get("recovered")) for sign in signs] == [
        ("nvml/a", True),
        ("nvml/c", None),
    ]  # not every finding ends by a reset


def test_what_a_reset_does_not_undo_is_not_told_again_after_it() -> None:
    lifetime, word = (
        watched({"of": "failed", "rises": 1, "lifetime": True}),
        watched({"of": "mig", "changes": 0}, code="nvml/mig"),
    )
    watcher = ThresholdEvaluator([lifetime, word])
    assert len(look(watcher, 0, reading(failed=1.0, mig=1.0))) == 2
    watcher.forget_component("GPU-0", counters=True)
    assert look(watcher, 1, reading(failed=1.0, mig=1.0)) == []


def test_what_was_told_of_an_address_is_known_of_who_is_there() -> None:
    one = watched({"of": "lost", "is": 1})
    watcher = ThresholdEvaluator([one])
    lost = reading(lost=1.0)
    unnamed = Readings(
        component=lost.component,
        identity="0000:00:00.0",
        time=0,
        polled_at=0,
        values=lost.values,
        fresh=lost.fresh,
    )
    assert len(look(watcher, 0, unnamed)) == 1
    watcher.rename_component("0000:00:00.0", "GPU-0")
    assert [sign.fields["recovered"] for sign in look(watcher, 1, reading(lost=0.0))] == [True]


def test_other_watches_over_the_same_memory() -> None:
    watcher = ThresholdEvaluator([watched({"of": "t", "above": 80})])
    look(watcher, 0, reading(t=85.0))
    watcher.configure([watched({"of": "t", "above": 90})])
    assert [sign.fields["recovered"] for sign in look(watcher, 1, reading(t=85.0))] == [True]


def test_a_watch_that_makes_no_sense_is_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"of": "t"}, "exactly one"),
        ({"of": "t", "above": 1, "below": 2}, "exactly one"),
        ({"above": 1}, "of:"),
        ({"of": "t", "abvoe": 1}, "abvoe"),
        ({"of": "t", "above": True}, "above"),
        ({"of": "t", "rises": "x"}, "rises"),
        ({"of": "t", "is": [[]]}, "is"),
        ({"of": "t", "above": 1, "per": "1m"}, "per"),
        ({"of": "t", "rises": 1, "for": "1m"}, "rises"),
        ({"of": "t", "above": 1, "for": "soon"}, "soon"),
        ({"of": "t", "above": 1, "only": 5}, "only"),
    ]
    for table, said in cases:
        with pytest.raises(ValueError, match=said):
            read_threshold(table)


def test_a_counter_that_moves_all_day_is_remembered_within_bounds() -> None:
    """The growth stays what it was, falls included; only when each part of it came is told less
    exactly.
    """
    watcher = ThresholdEvaluator(
        [watched({"of": "errors", "above": 2000, "over": "24h", "per": "24h"})]
    )
    total = value = 0.0
    for number in range(2880):
        if number == 1000:
            value = 0.0  # it began anew
        elif number:
            value, total = value + 1.0, total + 1.0
        if look(watcher, number * 30.0, reading(errors=value)):
            break
    assert abs(total - 2001) <= 2
    (known,) = watcher.memory.values()
    assert len(known["grown"]["errors"]) <= 257


def test_a_counter_that_goes_up_and_down_all_day_has_an_end_too() -> None:
    watcher = ThresholdEvaluator(
        [watched({"of": "errors", "above": 1e9, "over": "24h", "per": "24h"})]
    )
    for number in range(2880):
        look(watcher, number * 30.0, reading(errors=float(number % 2)))
    (known,) = watcher.memory.values()
    assert len(known["grown"]["errors"]) <= 1025


# --- settling


def settling(*, identity: str = "GPU-0", **values: Sample) -> Readings:
    return replace(reading(**values), identity=identity)


def begin(watches: ThresholdGroup, memory: object = None) -> ThresholdEvaluator:
    stored = json.loads(json.dumps(memory)) if memory else None
    return ThresholdEvaluator([watches], stored, settle_s=300.0)


PENDING = watched({"of": "pending", "is": 1})


def fields_of(crossings: list[Crossing]) -> list[dict[str, object]]:
    return [dict(crossing.fields) for crossing in crossings]


def test_what_holds_at_the_first_look_settles_and_is_said_again() -> None:
    watcher = begin(PENDING)
    assert fields_of(look(watcher, 0, reading(pending=1.0))) == [{"pending": 1, "settling": True}]
    observed = watcher.evaluate_readings([reading(pending=1.0)], 299)
    assert observed.crossings == []
    assert fields_of(observed.holding) == [{"pending": 1, "settling": True}]
    assert fields_of(look(watcher, 300, reading(pending=1.0))) == [{"pending": 1}]
    observed = watcher.evaluate_readings([reading(pending=1.0)], 400)
    assert observed.crossings == []
    assert fields_of(observed.holding) == [{"pending": 1}]


def test_what_was_seen_well_needs_no_time() -> None:
    watcher = begin(PENDING)
    look(watcher, 0, reading(pending=0.0))
    assert fields_of(look(watcher, 1, reading(pending=1.0))) == [{"pending": 1}]


def test_what_settled_well_is_seen_well() -> None:
    watcher = begin(PENDING)
    look(watcher, 0, reading(pending=1.0))
    assert fields_of(look(watcher, 10, reading(pending=0.0))) == [{"recovered": True, "pending": 0}]
    assert fields_of(look(watcher, 20, reading(pending=1.0))) == [{"pending": 1}]


def test_a_restart_while_it_settles_says_it_again() -> None:
    first = begin(PENDING)
    look(first, 0, reading(pending=1.0))
    second = begin(PENDING, first.memory)
    assert fields_of(look(second, 0, reading(pending=1.0))) == [{"pending": 1, "settling": True}]
    assert fields_of(look(second, 300, reading(pending=1.0))) == [{"pending": 1}]
    third = begin(PENDING, second.memory)
    assert look(third, 0, reading(pending=1.0)) == [], "it was said, and is open"


def test_a_reset_and_a_driver_load_begin_anew() -> None:
    watcher = begin(PENDING)
    look(watcher, 0, reading(pending=0.0))
    watcher.forget_component("GPU-0")
    assert fields_of(look(watcher, 400, reading(pending=1.0))) == [{"pending": 1, "settling": True}]
    watcher = begin(PENDING)
    look(watcher, 0, reading(pending=0.0))
    watcher.restart_settling()
    assert fields_of(look(watcher, 400, reading(pending=1.0))) == [{"pending": 1, "settling": True}]


def test_a_device_that_was_seen_is_missed_at_once() -> None:
    missing = watched({"of": "missing", "is": 1})
    watcher = ThresholdEvaluator([PENDING, missing], settle_s=300.0)
    look(watcher, 0, reading(pending=0.0))
    gone = settling(identity="missing GPU-0", missing=1.0)
    assert fields_of(look(watcher, 10, gone)) == [{"missing": 1}]
    never_seen = settling(identity="missing GPU-1", missing=1.0)
    assert fields_of(look(watcher, 20, never_seen)) == [{"missing": 1, "settling": True}]
