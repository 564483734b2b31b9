"""The judge's narrow time limits: what happens on either side of each."""

from __future__ import annotations

import pytest

from tests.unit.builders import act, booted, empty, event, finding, only
from vitald.judge import lifecycle
from vitald.model.component import NODE
from vitald.model.event import ACCEPTED, CLEARED, Trust


@pytest.mark.parametrize(("apart", "counts"), [(29.0, False), (31.0, True)])
def test_two_witnesses_of_one_thing_tell_of_it_within_30_s(apart: float, counts: bool) -> None:
    told = event("xid/79", time=apart, fields={"witness": "nvml"})
    assert lifecycle.is_counted(told, finding()) is counts


@pytest.mark.parametrize(("before", "history"), [(59.0, False), (61.0, True)])
def test_a_reckoned_time_may_be_off_by_60_s(before: float, history: bool) -> None:
    """A line that may have been written after its fault was dealt with is told again."""
    judge = empty()
    found = only(judge.apply_event(event(time=900.0))).finding
    judge.apply_event(act(CLEARED, found, 1000.0))
    changes = judge.apply_event(event(time=1000.0 - before, fields={"approximate": True}))
    assert (changes == []) is history


@pytest.mark.parametrize(("after", "still"), [(3590.0, True), (3610.0, False)])
def test_an_acceptance_outlasts_a_boot_for_an_hour_where_a_line_tells_the_fault(
    after: float, still: bool
) -> None:
    judge = empty()
    judge.apply_event(booted("boot-a", 0.0))
    found = only(judge.apply_event(event(time=10.0))).finding
    asked = act(ACCEPTED, found, 20.0)
    judge.apply_event(
        event(
            ACCEPTED,
            found.component,
            20.0,
            trust=Trust.DAEMON,
            fields={**asked.fields, "until": 1e6},
        )
    )
    judge.apply_event(booted("boot-b", 100.0))
    judge.apply_event(event(time=100.0 + after, boot="boot-b"))
    (again,) = (one for one in judge.open_findings if one.code == found.code)
    assert (again.accepted is not None) is still


@pytest.mark.parametrize(("after", "stands"), [(29.0, True), (31.0, False)])
def test_a_driver_takes_30_s_to_load(after: float, stands: bool) -> None:
    """The banner at the end of a load is no evidence against what failed in the probe of
    that load.
    """
    judge = empty()
    judge.apply_event(event("gpu_init_failed/unsupported", time=100.0))
    judge.apply_event(event("driver/loaded", NODE, 100.0 + after))
    assert bool(judge.open_findings) is stands


def test_a_finding_does_not_end_before_the_change_that_ended_it() -> None:
    """The driver's recommendation leaves a quiet time of a day, of which 30 h have passed."""
    judge = empty()
    judge.apply_event(event("xid/79", time=0.0))
    changes = judge.apply_event(event("xid/154", time=108_000.0, fields={"recovery": 0}))
    assert [(change.time, change.finding.is_open) for change in changes] == [
        (108_000.0, True),
        (108_000.0, False),
    ]
    assert judge.open_findings == ()


def test_a_line_of_an_older_boot_that_is_read_late_leaves_a_finding_in_its_boot() -> None:
    """Otherwise this boot's own event, applied again, would close it as rebooted away."""
    judge = empty()
    judge.apply_event(booted("boot-a", 0.0))
    judge.apply_event(booted("boot-b", 100.0))
    judge.apply_event(event("xid/157", time=110.0, boot="boot-b"))
    judge.apply_event(event("xid/157", time=90.0, boot="boot-a"))
    found = only(judge.apply_event(event("xid/157", time=120.0, boot="boot-b"))).finding
    assert (found.boot_id, found.count) == ("boot-b", 3)
