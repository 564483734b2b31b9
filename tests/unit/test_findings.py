"""The life of a finding: opened, repeated, raised, never lowered, closed by evidence and by nothing
else.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.builders import booted, catalogue, empty, event, finding, gpu, only, said
from vitald.judge.engine import Judge
from vitald.judge.open_findings import MAX_FINDINGS
from vitald.model.component import NODE, Component
from vitald.model.event import TOO_MANY, Event, Trust
from vitald.model.finding import FindingState, Memory, Requirement
from vitald.model.words import Action, ComponentKind, When


def recovery(value: int, time: float = 0.0, component: Component | None = None) -> Event:
    return event("xid/154", component, time, fields={"recovery": value})


# --- opened, repeated, raised


def test_an_event_opens_a_finding() -> None:
    findings = empty()
    seen = event("xid/79", time=5.0, raw="the line", fields={"pid": 7})
    change = only(findings.apply_event(seen))
    opened = change.finding
    assert (change.opened, change.time, change.event, change.cause) == (
        True,
        5.0,
        seen.identity,
        "xid/79 seen",
    )
    assert (opened.id, opened.component, opened.code, opened.kind) == (1, gpu(), "xid/79", "xid")
    assert (opened.action, opened.when, opened.title) == (
        Action.REBOOT_NODE,
        When.NOW,
        "GPU has fallen off the bus",
    )
    assert (opened.since, opened.last, opened.count, opened.boot_id) == (5.0, 5.0, 1, "boot-a")
    assert (opened.raw, opened.fields, opened.state, opened.is_simulated) == (
        "the line",
        {"pid": 7},
        FindingState.OPEN,
        False,
    )
    assert findings.open_findings == (opened,)


def test_a_repeat_is_counted_and_tells_nothing_new() -> None:
    findings = empty()
    findings.apply_event(event(time=5.0, raw="first"))
    change = only(findings.apply_event(event(time=9.0, raw="second", boot="boot-b")))
    again = change.finding
    assert (change.opened, change.cause) == (False, "")
    assert (again.id, again.count, again.since, again.last, again.boot_id) == (
        1,
        2,
        5.0,
        9.0,
        "boot-b",
    )
    assert again.raw == "first"  # the line that decided


def test_a_late_record_does_not_turn_back_the_clock() -> None:
    findings = empty()
    findings.apply_event(event(time=9.0))
    assert only(findings.apply_event(event(time=5.0))).finding.last == 9.0


def test_a_follow_up_record_is_not_counted_again() -> None:
    findings = empty()
    findings.apply_event(event("sxid/20034", identity="head"))
    change = only(findings.apply_event(event("sxid/20034", follows="head")))
    assert change.finding.count == 1


def test_findings_are_kept_apart_by_component_code_and_drill() -> None:
    findings = empty()
    for one in (event(), event(component=gpu(1)), event("xid/119"), event(simulated_until=100.0)):
        assert only(findings.apply_event(one)).opened
    assert [found.id for found in findings.open_findings] == [1, 2, 3, 4]


def test_a_stronger_event_raises_with_its_own_line() -> None:
    findings = empty()
    findings.apply_event(event("xid/94", raw="mild", fields={"rst": False, "drst": False}))
    change = only(
        findings.apply_event(
            event("xid/94", time=1.0, raw="strong", fields={"rst": True, "drst": False})
        )
    )
    assert (change.finding.action, change.finding.raw, change.finding.fields) == (
        Action.RESET_DEVICE,
        "strong",
        {"rst": True, "drst": False},
    )
    assert change.finding.title == "Contained error that needs a GPU reset"
    assert change.cause == "xid/94: restart_workload (now) -> reset_device (now)"
    assert (change.finding.count, change.finding.since) == (2, 0.0)


def test_a_weaker_event_never_lowers() -> None:
    findings = empty()
    findings.apply_event(event("xid/94", raw="strong", fields={"rst": True, "drst": False}))
    change = only(
        findings.apply_event(event("xid/94", raw="mild", fields={"rst": False, "drst": False}))
    )
    assert (change.finding.action, change.finding.raw, change.finding.count, change.cause) == (
        Action.RESET_DEVICE,
        "strong",
        2,
        "",
    )


def test_due_now_is_stronger_than_after_the_job() -> None:
    findings = empty()
    findings.apply_event(event("xid/95", fields={"rst": False, "drst": True}))
    assert findings.open_findings[0].when is When.AFTER_JOB
    assert (
        only(
            findings.apply_event(event("xid/95", fields={"rst": True, "drst": False}))
        ).finding.when
        is When.NOW
    )
    assert (
        only(
            findings.apply_event(event("xid/95", fields={"rst": False, "drst": True}))
        ).finding.when
        is When.NOW
    )


@pytest.mark.parametrize("code", ["xid/45", "oom/cgroup", "vitald/nothing"])
def test_what_asks_for_nothing_opens_nothing_unless_unknown(code: str) -> None:
    changes = empty().apply_event(event(code))
    assert [said(change)[2] for change in changes] == (
        ["inspect"] if code == "vitald/nothing" else []
    )


def test_a_none_of_an_ordinary_rule_closes_nothing() -> None:
    findings = empty()
    findings.apply_event(event("xid/149", fields={"unit": "NETIR_LINK_DOWN", "subcode": 4}))
    assert (
        findings.apply_event(event("xid/149", fields={"unit": "NETIR_LINK_DOWN", "subcode": 38}))
        == []
    )
    assert [found.action for found in findings.open_findings] == [Action.RESET_DEVICE]


def test_what_a_process_wrote_is_not_judged() -> None:
    findings = empty()
    assert findings.apply_event(event(trust=Trust.UNTRUSTED)) == []
    assert findings.open_findings == ()
    assert len(findings.apply_event(event(trust=Trust.ACCEPTED))) == 1


# --- state rules: each event replaces the former


def test_the_drivers_own_word_is_followed_up_and_down() -> None:
    findings = empty()
    for value, action in (
        (2, Action.REBOOT_NODE),
        (1, Action.RESET_DEVICE),
        (3, Action.INSPECT),
        (2, Action.REBOOT_NODE),
    ):
        assert only(findings.apply_event(recovery(value))).finding.action is action
    change = only(findings.apply_event(recovery(0, 7.0)))
    assert (change.finding.state, change.finding.cleared_at) == (FindingState.CLEARED, 7.0)
    assert change.cause == "xid/154: Driver: no recovery needed any more"
    assert findings.open_findings == ()
    assert findings.apply_event(recovery(0)) == []


def test_the_drivers_word_is_one_gpus() -> None:
    findings = empty()
    findings.apply_event(recovery(2))
    findings.apply_event(recovery(2, component=gpu(1)))
    findings.apply_event(recovery(0))
    assert [found.component for found in findings.open_findings] == [gpu(1)]


# --- another catalogue


def test_other_rules_change_what_is_open() -> None:
    findings = empty()
    for number, code in enumerate(("xid/79", "xid/31", "nvml/row_remap_failed")):
        findings.apply_event(event(code, gpu(number)))
    changes = findings.reload_catalog(catalogue("hyperpod"), 9.0)
    assert [(change.finding.code, change.time, change.cause) for change in changes] == [
        ("xid/79", 9.0, "the catalogue changed: reboot_node -> replace_node")
    ]
    assert findings.open_findings[0].action is Action.REPLACE_NODE
    assert findings.reload_catalog(catalogue("hyperpod"), 10.0) == []
    assert [change.finding.code for change in findings.apply_event(booted("boot-b", 11.0))] == [
        "xid/31"
    ]


def test_a_replacement_that_the_rules_no_longer_reach_is_taken_back() -> None:
    ordered = Requirement(Action.REPLACE_NODE, When.NOW)
    opened = [
        replace(finding(Action.RESET_DEVICE, code=code), escalation=ordered)
        for code in ("xid/119", "xid/46")
    ]
    findings = Judge(catalogue(), Memory(findings=tuple(opened)))
    findings.reload_catalog(catalogue(), 9.0)
    asked = {found.code: found.action for found in findings.open_findings}
    assert asked == {"xid/119": Action.RESET_DEVICE, "xid/46": Action.REPLACE_NODE}


def test_what_the_new_rules_do_not_ask_for_is_closed() -> None:
    findings = Judge(catalogue(), Memory(findings=(finding(Action.REBOOT_NODE, code="xid/45"),)))
    change = only(findings.reload_catalog(catalogue(), 9.0))
    assert (change.finding.state, change.cause) == (
        FindingState.CLEARED,
        "the catalogue requires nothing for it any more",
    )


# --- the bound


def full() -> Judge:
    """As many open findings as are kept, each of a GPU of its own."""
    opened = [
        finding(number=number, component=Component(ComponentKind.GPU, f"{number:x}"))
        for number in range(MAX_FINDINGS)
    ]
    return Judge(catalogue(), Memory(findings=tuple(opened), next_finding=MAX_FINDINGS))


def test_devices_without_end_are_gathered_under_the_node() -> None:
    findings = full()
    change = only(findings.apply_event(event(component=Component(ComponentKind.GPU, "one more"))))
    assert (change.opened, change.finding.component, change.finding.code) == (True, NODE, TOO_MANY)
    assert change.finding.action is Action.REBOOT_NODE
    again = only(findings.apply_event(event(component=Component(ComponentKind.GPU, "and another"))))
    assert (again.opened, again.finding.component, again.finding.count) == (False, NODE, 2)
    known = only(findings.apply_event(event(component=Component(ComponentKind.GPU, "7"))))
    assert known.finding.component.id == "7"


def test_codes_without_end_are_bounded_too() -> None:
    findings = full()
    for number in range(100, 600):
        findings.apply_event(
            event(f"sxid/{number}", component=Component(ComponentKind.NVSWITCH, "x"))
        )
    assert len(findings.open_findings) == MAX_FINDINGS + 1


def test_at_the_bound_one_devices_recovery_does_not_clear_anothers_fault() -> None:
    findings = full()
    findings.apply_event(recovery(2, component=Component(ComponentKind.GPU, "ill")))
    findings.apply_event(recovery(0, component=Component(ComponentKind.GPU, "well")))
    assert any(found.code == TOO_MANY for found in findings.open_findings)
