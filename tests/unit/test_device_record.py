"""A device's record in a storm: what is kept is bounded, and what it is asked for is answered as by
looking through all of it.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import catalogue, event, gpu
from vitald.judge.device_history import _MAX_PROCESSES, DeviceHistory
from vitald.judge.engine import Judge
from vitald.model.component import MarkKind
from vitald.model.words import Action

FAULT, PLACES = "xid/13", ("", " gpc=1", " gpc=2")
MARKS = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 12), st.sampled_from(PLACES)), max_size=40
)


@given(MARKS, MARKS, st.integers(0, 120), st.integers(0, 120), st.sampled_from(PLACES))
def test_processes_are_counted_as_by_looking_at_each_mark(
    first: list[tuple[int, int, str]],
    then: list[tuple[int, int, str]],
    now: int,
    window: int,
    place: str,
) -> None:
    """Also after more came, in whatever order of time."""
    history = DeviceHistory()
    for some in (first, then):
        for time, who, where in some:
            history.add_mark("gpu", float(time), MarkKind.PROCESS, FAULT, f"boot:{who}{where}")
        wanted = {
            mark.detail.partition(" ")[0]
            for mark in history.list_marks("gpu")
            if 0 <= now - mark.time <= window and (not place or mark.detail.endswith(place))
        }
        assert history._count_processes("gpu", FAULT, place.strip(), now, window) == len(wanted)


def test_of_a_storm_some_processes_are_remembered() -> None:
    """And one now and then, so that the window is never empty."""
    history = DeviceHistory()
    for number in range(5000):
        history.add_mark("gpu", 1000.0 + number, MarkKind.PROCESS, FAULT, f"boot:{number}")
    kept = [mark.time for mark in history.list_marks("gpu")]
    assert _MAX_PROCESSES < len(kept) < _MAX_PROCESSES + 5
    assert kept[-1] > 4000.0
    history.shift_times(50.0)
    assert history._count_processes("gpu", FAULT, "", 6050.0, 5100.0) == len(kept)


def test_a_storm_on_one_gpu_is_that_gpus_and_on_all_is_the_applications() -> None:
    alone, everywhere = Judge(catalogue()), Judge(catalogue())
    for number in range(400):
        seen = {"pid": number, "usec": number}
        alone.apply_event(
            event("xid/31", gpu(), 1000.0 + number, identity=f"a {number}", fields=seen)
        )
        everywhere.apply_event(
            event("xid/31", gpu(number % 8), 1000.0 + number, identity=f"b {number}", fields=seen)
        )
    assert [found.action for found in alone.open_findings if found.escalation is not None] != []
    assert {found.action for found in everywhere.open_findings} == {Action.RESTART_WORKLOAD}
