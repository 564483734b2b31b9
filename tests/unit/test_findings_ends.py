"""How a finding ends: by a reboot, by quiet, with its drill, by a named person, and by nothing
else.
"""

from __future__ import annotations

import pytest

from tests.unit.builders import act, booted, catalogue, empty, event, gpu, only, said
from vitald.judge.engine import Judge
from vitald.model.component import NODE, Component
from vitald.model.event import ACCEPTED, CLEARED, IDENTITY, Event, Trust
from vitald.model.finding import FindingState
from vitald.model.words import Action, ComponentKind, When

DAY = 86400.0


# --- reboot


def test_a_reboot_clears_what_its_rule_says_and_no_more() -> None:
    findings = empty()
    for number, code in enumerate(("xid/79", "nvml/row_remap_failed", "xid/44", "xid/31")):
        findings.apply_event(event(code, gpu(number)))
    changes = findings.apply_event(booted("boot-b", 10.0))
    assert {change.finding.code for change in changes} == {
        "xid/79",
        "xid/31",
    }  # a failed remap asks for a replacement, 44 for a quiet day
    assert {(change.time, change.cause, change.finding.state) for change in changes} == {
        (10.0, "the node was rebooted (boot boot-b)", FindingState.CLEARED)
    }
    assert [found.code for found in findings.open_findings] == ["nvml/row_remap_failed", "xid/44"]


def test_a_reboot_clears_nothing_that_was_seen_since() -> None:
    findings = empty()
    findings.apply_event(event("xid/79"))
    findings.apply_event(event("xid/79", boot="boot-b", time=11.0))
    assert findings.apply_event(booted("boot-b", 10.0)) == []
    assert [said(change)[1] for change in findings.apply_event(booted("boot-c", 20.0))] == [
        "xid/79"
    ]


def test_a_reboot_follows_the_action_that_stands() -> None:
    """Raised to a replacement by its case, the finding survives the reboot that its table would
    allow.
    """
    findings = Judge(catalogue("hyperpod"))
    findings.apply_event(
        event(
            "sxid/10001",
            component=Component(ComponentKind.NVSWITCH, "0000:c1:00.0"),
            fields={"fatal": True},
        )
    )
    assert findings.open_findings[0].action is Action.REPLACE_NODE
    assert findings.apply_event(booted("boot-b", 10.0)) == []


# --- quiet


def test_quiet_ends_at_the_very_moment() -> None:
    findings = empty()
    findings.apply_event(event("xid/31", time=100.0))
    assert findings.next_due == 3700.0
    assert findings.expire_findings(3699.999) == []
    change = only(findings.expire_findings(9000.0))
    assert (change.time, change.finding.cleared_at, change.cause) == (
        3700.0,
        3700.0,
        "quiet for as long as its rule requires",
    )
    assert findings.next_due == float("inf")


def test_each_repeat_begins_the_quiet_anew() -> None:
    findings = empty()
    findings.apply_event(event("xid/31", time=0.0))
    findings.apply_event(event("xid/31", time=3000.0))
    assert findings.expire_findings(3600.0) == []
    assert only(findings.expire_findings(6600.0)).time == 6600.0


def test_a_later_event_first_ends_what_was_quiet_before_it() -> None:
    findings = empty()
    findings.apply_event(event("xid/31", time=0.0))
    changes = findings.apply_event(event("xid/31", time=4000.0))
    assert [(change.time, change.finding.state, change.finding.id) for change in changes] == [
        (3600.0, FindingState.CLEARED, 1),
        (4000.0, FindingState.OPEN, 2),
    ]


def test_several_ends_come_in_their_order() -> None:
    findings = empty()
    findings.apply_event(event("xid/44", time=0.0))
    findings.apply_event(event("xid/31", time=50.0))
    findings.apply_event(event("xid/13", time=20.0))
    assert [(change.time, change.finding.code) for change in findings.expire_findings(2 * DAY)] == [
        (3620.0, "xid/13"),
        (3650.0, "xid/31"),
        (DAY, "xid/44"),
    ]


@pytest.mark.parametrize("code", ["xid/79", "xid/64", "xid/119", "xid/63"])
def test_what_needs_a_remedy_never_grows_old(code: str) -> None:
    findings = empty()
    findings.apply_event(event(code))
    assert all(change.finding.is_open for change in findings.expire_findings(1e12))
    assert findings.next_due == float("inf")
    assert [finding.code for finding in findings.open_findings] == [code]


def test_a_stronger_event_does_not_shorten_the_wait() -> None:
    findings = empty()
    findings.apply_event(
        event("xid/145", fields={})
    )  # not decoded: a person must look, 24 h of quiet
    findings.apply_event(
        event("xid/145", fields={"unit": "RLW_REMAP", "status_bits": [1]})
    )  # restart the workload, 1 h of quiet
    findings.expire_findings(2 * 3600.0)
    assert len(findings.open_findings) == 1


def test_quiet_counts_from_when_it_was_listened_again() -> None:
    """What nobody read of a former boot began days ago and ended now: that is no quiet day
    since.
    """
    findings = empty()
    gap = {"after": 0.0, "before": 3 * DAY, "orderly": False}
    findings.apply_event(event("vitald/not_watched", NODE, 0.0, trust=Trust.DAEMON, fields=gap))
    assert findings.next_due == 4 * DAY


# --- drills


def test_a_drill_ends_when_it_said_and_touches_no_real_finding() -> None:
    findings = empty()
    findings.apply_event(event("xid/79"))
    findings.apply_event(event("xid/79", time=1.0, simulated_until=61.0))
    assert findings.next_due == 61.0
    assert [found.is_simulated for found in findings.open_findings] == [False, True]
    change = only(findings.expire_findings(100.0))
    assert (change.finding.is_simulated, change.time, change.cause) == (
        True,
        61.0,
        "the drill is over",
    )
    assert [found.is_simulated for found in findings.open_findings] == [False]


def test_a_drill_may_be_quiet_before_it_is_over() -> None:
    findings = empty()
    findings.apply_event(event("xid/31", simulated_until=7200.0))
    assert only(findings.expire_findings(7200.0)).cause == "quiet for as long as its rule requires"


def test_a_drill_does_not_raise_a_real_finding() -> None:
    findings = empty()
    findings.apply_event(event("xid/94", fields={"rst": False, "drst": False}))
    findings.apply_event(event("xid/94", fields={"rst": True, "drst": False}, simulated_until=60.0))
    assert [(found.is_simulated, found.action) for found in findings.open_findings] == [
        (False, Action.RESTART_WORKLOAD),
        (True, Action.RESET_DEVICE),
    ]


# --- a named person


def test_a_person_closes_with_name_and_reason() -> None:
    findings = empty()
    findings.apply_event(event("xid/64"))
    findings.apply_event(event("xid/79", gpu(1)))
    done = act(CLEARED, findings.open_findings[0], 50.0, "alice", "board replaced")
    change = only(findings.apply_event(done))
    assert (change.finding.code, change.finding.state, change.finding.cleared_at) == (
        "xid/64",
        FindingState.CLEARED,
        50.0,
    )
    assert change.cause == change.finding.cleared_by == "cleared by alice: board replaced"
    assert [found.code for found in findings.open_findings] == ["xid/79"]
    assert findings.apply_event(done) == []


def test_what_was_cleared_opens_anew_with_a_new_number() -> None:
    findings = empty()
    findings.apply_event(event())
    findings.apply_event(act(CLEARED, findings.open_findings[0], 1.0))
    assert only(findings.apply_event(event(time=2.0))).finding.id == 2


# --- what an end proves about lines that were written before it


def ends() -> dict[str, tuple[list[Event], bool]]:
    """What happens after a fault at 0, and whether it shows that the fault was dealt with."""
    return {
        "a person": (
            [
                event(
                    CLEARED,
                    time=50.0,
                    trust=Trust.DAEMON,
                    fields={"code": "xid/31", "by": "alice", "reason": "why"},
                )
            ],
            True,
        ),
        "a reset": ([event("device/reset", time=50.0)], True),
        "another board": (
            [
                event(IDENTITY, time=10.0, fields={"uuid": "one"}),
                event(IDENTITY, time=50.0, fields={"uuid": "two"}),
            ],
            True,
        ),
        "quiet": ([event("xid/13", gpu(1), time=5000.0)], False),
        "its cause": ([event("xid/79", time=5.0)], False),
        "a boot": ([booted("boot-b", 50.0)], False),  # its lines are known by their boot's id
    }


@pytest.mark.parametrize("how", ends())
def test_only_evidence_makes_history_of_older_lines(how: str) -> None:
    events, evidence = ends()[how]
    code = "xid/63" if how == "a reset" else "xid/31"
    findings = empty()
    opened = only(findings.apply_event(event(code, time=0.0))).finding
    closed = [
        change.finding.id
        for one in events
        for change in findings.apply_event(one)
        if not change.finding.is_open
    ]
    assert closed == [opened.id]
    assert [(component, one) for component, one, _ in findings.memory.resolved] == (
        [(gpu(), code)] if evidence else []
    )


def test_a_rule_that_asks_for_nothing_makes_no_history() -> None:
    """It is taken back, and an old line is judged by what stands then."""
    findings = empty()
    findings.apply_event(event("xid/31", time=0.0))
    changes = findings.reload_catalog(
        catalogue(overrides='"xid/31" = { action = "none", cases = [] }'), 50.0
    )
    assert [change.finding.state for change in changes] == [FindingState.CLEARED]
    findings.reload_catalog(catalogue(), 60.0)
    assert only(findings.apply_event(event("xid/31", time=40.0))).opened


def test_ending_an_acceptance_that_there_is_not_decides_nothing() -> None:
    findings = empty()
    opened = only(findings.apply_event(event())).finding
    fields = {"code": "xid/79", "by": "alice", "reason": "no", "until": 1.0}
    ended = event(ACCEPTED, time=1.0, trust=Trust.DAEMON, fields=fields)
    change = only(findings.apply_event(ended))
    assert (change.finding, change.cause) == (opened, "")


@pytest.mark.parametrize("noticed_by", ["time", "event"])
def test_an_acceptance_ends_when_its_finding_has_waited_too_long(noticed_by: str) -> None:
    """At the time of the step of its escalation policy, whatever notices it."""
    findings = empty()
    findings.apply_event(event("xid/63"))
    fields = {"code": "xid/63", "by": "alice", "reason": "spares", "until": 60 * DAY}
    findings.apply_event(event(ACCEPTED, time=1.0, trust=Trust.DAEMON, fields=fields))
    assert only(findings.open_findings).accepted is not None
    if noticed_by == "time":
        changes = findings.expire_findings(31 * DAY)
    else:
        changes = findings.apply_event(event("xid/31", gpu(1), 31 * DAY))
    waited = [change for change in changes if change.finding.code == "xid/63"]
    assert [(change.time, change.finding.when) for change in waited] == [
        (30 * DAY, When.AFTER_JOB),
        (30 * DAY, When.AFTER_JOB),
    ]
    assert waited[-1].finding.accepted is None
