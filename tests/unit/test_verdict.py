"""The fold over open findings and sources: status, action, flags, and the reasons that are told."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import finding, source
from vitald.judge.verdict import compute_verdict, sort_by_strength
from vitald.model.component import NODE
from vitald.model.finding import Acceptance, Requirement
from vitald.model.source import SourceHealth, SourceState
from vitald.model.words import Action, Status, When, WorkPhase

NOW = 100.0
FRESH, STALE = source(looked=90.0), source(looked=60.0)
UNFIT = [Action.RESET_DEVICE, Action.REBOOT_NODE, Action.REPLACE_NODE]
MILD = [Action.OBSERVE, Action.INSPECT, Action.RESTART_WORKLOAD]


def test_nothing_open_and_all_looked_at_is_healthy() -> None:
    verdict = compute_verdict([], [FRESH], NOW)
    assert (
        verdict.status,
        verdict.action,
        verdict.reboot_required,
        verdict.replacement_required,
    ) == (
        Status.HEALTHY,
        Action.NONE,
        False,
        False,
    )
    assert (verdict.simulated, verdict.reasons) == (False, ())


def status(action: Action, when: When) -> Status:
    return compute_verdict([finding(action, when)], [FRESH], NOW).status


def test_only_what_must_be_done_now_is_unhealthy() -> None:
    assert {status(action, When.NOW) for action in UNFIT} == {Status.UNHEALTHY}
    assert {status(action, When.AFTER_JOB) for action in UNFIT} == {Status.DEGRADED}
    assert {status(action, when) for action in MILD for when in When} == {Status.DEGRADED}


@pytest.mark.parametrize(
    "ill",
    [
        STALE,
        source(looked=99.0, state=SourceState.FAILED),
        source(looked=99.0, state=SourceState.STARTING),
    ],
)
def test_a_source_that_does_not_look_makes_unknown(ill: SourceHealth) -> None:
    """Silence is not health, and not a fault either: only what stands may be worse."""
    assert compute_verdict([], [ill], NOW).status is Status.UNKNOWN
    assert compute_verdict([], [FRESH, ill], NOW).status is Status.UNKNOWN
    for action in MILD:
        assert compute_verdict([finding(action)], [ill], NOW).status is Status.UNKNOWN
    for action in UNFIT:
        assert (
            compute_verdict([finding(action, When.AFTER_JOB)], [ill], NOW).status is Status.UNKNOWN
        )
        assert compute_verdict([finding(action)], [ill], NOW).status is Status.UNHEALTHY


@pytest.mark.parametrize(("looked", "status"), [(70.0, Status.HEALTHY), (69.9, Status.UNKNOWN)])
def test_the_deadline_is_the_last_fresh_moment(looked: float, status: Status) -> None:
    assert compute_verdict([], [source(looked=looked, deadline=30.0)], NOW).status is status


def test_no_sources_are_no_reason_to_doubt() -> None:
    assert compute_verdict([], [], NOW).status is Status.HEALTHY


def test_the_action_is_the_strongest_open_one() -> None:
    for actions in itertools.permutations(Action, 3):
        strongest = max(actions, key=list(Action).index)
        assert (
            compute_verdict(
                [finding(action, number=number) for number, action in enumerate(actions)], [], NOW
            ).action
            is strongest
        )


@pytest.mark.parametrize(
    ("action", "reboot", "reboot_by_site", "replacement"),
    [
        (Action.NONE, False, False, False),
        (Action.OBSERVE, False, False, False),
        (Action.INSPECT, False, False, False),
        (Action.RESTART_WORKLOAD, False, False, False),
        (Action.RESET_DEVICE, True, False, False),
        (Action.REBOOT_NODE, True, True, False),
        (Action.REPLACE_NODE, False, False, True),
    ],
)
@pytest.mark.parametrize("when", [When.NOW, When.AFTER_JOB])
def test_the_flags(
    action: Action, reboot: bool, reboot_by_site: bool, replacement: bool, when: When
) -> None:
    """A replacement implies no reboot; a site that resets devices itself needs none for a reset
    alone.
    """
    ours, sites = (
        compute_verdict([finding(action, when)], [], NOW),
        compute_verdict([finding(action, when)], [], NOW, device_reset=True),
    )
    assert (ours.reboot_required, ours.replacement_required) == (reboot, replacement)
    assert (sites.reboot_required, sites.replacement_required) == (reboot_by_site, replacement)
    assert (sites.status, sites.action) == (ours.status, ours.action)


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("work", WorkPhase)
def test_what_waits_for_maintenance_or_is_accepted_changes_nothing_but_the_text(
    action: Action, work: WorkPhase
) -> None:
    """Shown as degraded, at any time; a device that cannot be used waits for nothing, unless
    somebody accepted it.
    """
    accepted = Acceptance(
        by="alice", reason="why", since=0.0, until=9.0, required=Requirement(action, When.NOW)
    )
    unusable = Requirement(action, When.MAINTENANCE, unusable=True)
    unknown = Requirement(action, When.MAINTENANCE, unknown=True)
    for one in (
        finding(base=unknown),
        finding(action, When.MAINTENANCE),
        finding(action, accepted=accepted),
        finding(base=unusable, accepted=accepted),
    ):
        verdict = compute_verdict([one], [], NOW, work=work)
        assert (verdict.status, verdict.reboot_required, verdict.replacement_required) == (
            Status.DEGRADED,
            False,
            False,
        )
        assert verdict.action is Action.OBSERVE
    assert compute_verdict([finding(base=unusable)], [], NOW, work=work).status is Status.UNHEALTHY


def test_the_remedy_is_told_before_the_device_that_cannot_be_used() -> None:
    """A line that asks a person to look beside a flag that asks for a reboot would be read as no
    reboot.
    """
    look = finding(base=Requirement(Action.INSPECT, When.NOW, unusable=True), number=1)
    idle = finding(Action.INSPECT, number=2)
    reboot = finding(Action.REBOOT_NODE, number=3)
    waits = finding(Action.REPLACE_NODE, When.MAINTENANCE, number=4)
    assert sort_by_strength([waits, idle, look, reboot]) == [reboot, look, idle, waits]
    assert (
        compute_verdict([waits, idle, look, reboot], [], NOW)
        .reasons[0]
        .endswith(": reboot the node")
    )


def test_the_flags_are_of_all_findings_not_of_the_strongest() -> None:
    verdict = compute_verdict(
        [
            finding(Action.REPLACE_NODE, number=1),
            finding(Action.REBOOT_NODE, number=2),
            finding(Action.OBSERVE, number=3),
        ],
        [],
        NOW,
    )
    assert (verdict.reboot_required, verdict.replacement_required, verdict.action) == (
        True,
        True,
        Action.REPLACE_NODE,
    )


def test_a_drill_counts_and_says_so() -> None:
    verdict = compute_verdict([finding(Action.REBOOT_NODE, simulated_until=500.0)], [], NOW)
    assert (verdict.status, verdict.reboot_required, verdict.simulated) == (
        Status.UNHEALTHY,
        True,
        True,
    )
    assert verdict.reasons == ("SIMULATED: gpu/0000:01:00.0: a title (xid/79): reboot the node",)


def test_the_reasons_say_all_the_worst_first() -> None:
    findings = [
        finding(Action.OBSERVE, number=1, component=NODE, code="oom/killed"),
        finding(Action.REBOOT_NODE, number=2, since=9.0),
        finding(Action.REBOOT_NODE, number=3, since=5.0),
        finding(Action.RESET_DEVICE, When.AFTER_JOB, number=4),
        finding(Action.RESET_DEVICE, number=5, since=50.0),
    ]
    verdict = compute_verdict(
        findings, [FRESH, SourceHealth(name="nvml", state=SourceState.FAILED, deadline=1.0)], NOW
    )
    assert verdict.reasons == (
        "gpu/0000:03:00.0: a title (xid/79): reboot the node",
        "gpu/0000:02:00.0: a title (xid/79): reboot the node",
        "gpu/0000:05:00.0: a title (xid/79): reset the device",
        "gpu/0000:04:00.0: a title (xid/79): reset the device after the running job",
        "node: a title (oom/killed): keep an eye on it",
        "source nvml is not being read: failed",
    )


def test_of_equals_the_older_comes_first_and_then_the_lower_number() -> None:
    findings = [
        finding(number=3, since=1.0),
        finding(number=2, since=1.0),
        finding(number=9, since=0.0),
    ]
    assert [found.id for found in sort_by_strength(findings)] == [9, 2, 3]


def test_a_silent_source_tells_why() -> None:
    failed = SourceHealth(
        name="kernel_log",
        state=SourceState.FAILED,
        deadline=30.0,
        detail="/dev/kmsg: Permission denied",
    )
    assert compute_verdict([], [failed], NOW).reasons == (
        "source kernel_log is not being read: /dev/kmsg: Permission denied",
    )


def test_a_source_past_its_deadline_is_not_told_to_be_ok() -> None:
    (reason,) = compute_verdict([], [STALE], NOW).reasons
    assert not reason.endswith("ok")


FINDINGS = st.lists(
    st.builds(
        finding, st.sampled_from(list(Action)), st.sampled_from(list(When)), st.integers(1, 200)
    ),
    max_size=5,
    unique_by=lambda one: one.id,
)
SOURCES = st.lists(st.builds(source, looked=st.floats(0.0, NOW)), max_size=3)


@given(
    findings=FINDINGS, sources=SOURCES, site=st.booleans(), chance=st.randoms(use_true_random=False)
)
def test_the_order_of_what_is_folded_does_not_matter(
    findings: list, sources: list, site: bool, chance: object
) -> None:
    other = list(findings)
    chance.shuffle(other)  # type: ignore[attr-defined]
    one, two = (
        compute_verdict(findings, sources, NOW, device_reset=site),
        compute_verdict(other, sources[::-1], NOW, device_reset=site),
    )
    assert (one.status, one.action, one.reboot_required, one.replacement_required) == (
        two.status,
        two.action,
        two.reboot_required,
        two.replacement_required,
    )
    assert sorted(one.reasons) == sorted(two.reasons)
    assert len(one.reasons) >= len(findings)


@given(findings=FINDINGS, sources=SOURCES, more=FINDINGS)
def test_more_findings_never_make_it_better(findings: list, sources: list, more: list) -> None:
    fewer, all_ = (
        compute_verdict(findings, sources, NOW),
        compute_verdict(findings + more, sources, NOW),
    )
    order = [Status.HEALTHY, Status.DEGRADED, Status.UNKNOWN, Status.UNHEALTHY]
    assert order.index(all_.status) >= order.index(fewer.status)
    assert all_.action.rank >= fewer.action.rank
    assert all_.reboot_required >= fewer.reboot_required
    assert all_.replacement_required >= fewer.replacement_required
