"""What happened on the node when its work stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.builders import catalogue, event, finding, gpu
from vitald.core.story import tell_story
from vitald.model import NODE, Event, Finding, Trust
from vitald.model.notice import JOB_ERROR, JOB_STALLED, WAITING, Notice

BEGAN = 10_000.0
WELL = "This node looks well: no fault of it was observed in the 10 minutes before."


def tell(
    *events: Event, code: str = WAITING, findings: tuple[Finding, ...] = (), known: float = 0.0
) -> str:
    notice = Notice(code=code, component=NODE, since=BEGAN, last=BEGAN, text="t")
    return tell_story(notice, events, findings, catalogue(), known_since=known)


@pytest.mark.parametrize("code", [WAITING, JOB_STALLED])
def test_the_fault_before_it_is_named_with_its_time(code: str) -> None:
    told = tell(event("xid/94", gpu(0), BEGAN - 2), code=code)
    title = catalogue().find_rule("xid/94").apply_to({}).title
    assert told == f"2 s before it began: gpu/0000:00:00.0: {title} (xid/94)."


def test_the_strongest_comes_first_and_another_after_it() -> None:
    told = tell(
        event("xid/94", gpu(0), BEGAN - 300),
        event("xid/79", gpu(1), BEGAN + 30),
        event("xid/79", gpu(1), BEGAN + 40),
    )
    assert told.startswith("30 s after it began: gpu/0000:01:00.0: ")
    assert "with gpu/0000:00:00.0: " in told
    assert told.count("xid/79") == 1


@pytest.mark.parametrize(
    "other",
    [
        event("xid/79", gpu(), BEGAN - 601),
        event("xid/79", gpu(), BEGAN + 121),
        event("xid/79", gpu(), BEGAN, trust=Trust.UNTRUSTED),
        event("xid/79", gpu(), BEGAN, trust=Trust.JOB),
        event("xid/79", gpu(), BEGAN, fields={"vouched": False}),
        event("xid/79", gpu(), BEGAN, simulated_until=BEGAN + 600),
        event("xid/13", gpu(), BEGAN),  # the application's own
        event("job/died", NODE, BEGAN),
        event(WAITING, NODE, BEGAN),
    ],
)
def test_what_is_no_fault_of_the_node_near_it(other: Event) -> None:
    assert tell(other).startswith(WELL)


def test_an_open_finding_outlives_a_restart() -> None:
    opened = replace(finding(since=BEGAN - 60), code="xid/79", component=gpu(3))
    assert "gpu/0000:03:00.0" in tell(findings=(opened,), known=BEGAN + 5)


def test_nothing_is_claimed_of_what_was_not_watched() -> None:
    assert tell(known=BEGAN - 100) == (
        "What happened before it began is not known: vitald started later."
    )


def test_a_finding_that_was_open_before_is_named() -> None:
    """A node with an open fault does not look well, however old the fault is."""
    opened = replace(finding(since=BEGAN - 7200), code="xid/79", component=gpu(3))
    told = tell(findings=(opened,))
    assert told.startswith("No fault of this node began in the 10 minutes before. Open since ear")
    assert "gpu/0000:03:00.0" in told and told.endswith("(xid/79).")
    assert tell(findings=(replace(opened, code="xid/13"),)).startswith(WELL)


def test_silence_is_not_health() -> None:
    notice = Notice(code=WAITING, component=NODE, since=BEGAN, last=BEGAN, text="t")
    told = tell_story(notice, [], [], catalogue(), known_since=0.0, is_observed=False)
    assert "not all of it is observed" in told and "well" not in told


def test_other_notices_have_no_story() -> None:
    assert tell(event("xid/79", gpu(), BEGAN), code=JOB_ERROR) == ""
