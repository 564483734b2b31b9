"""What the Kubernetes sink writes: conditions, their times, and the patch."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitald.model.words import Action, Status, When
from vitald.publish.kubernetes.desired import (
    MAX_ANNOTATION_BYTES,
    MAX_MESSAGE_BYTES,
    ConditionStatus,
    DesiredCondition,
    build_own_parts,
    combine,
    format_findings,
    format_message,
)
from vitald.publish.kubernetes.node_object import (
    NameKind,
    NodeCondition,
    NodeName,
    NodeObject,
    parse_node,
)
from vitald.publish.kubernetes.reconcile import LastTransition, build_patch, decide_transition
from vitald.publish.summary import DaemonSilent, FindingSummary, NodeSummary, PublishedState
from vitald.text import limit_bytes

NOW = 1_760_000_000.0
HEALTHY = NodeSummary(
    status=Status.HEALTHY,
    action=Action.NONE,
    reason="Healthy",
    lines=(),
    reboot_reason="",
    replacement_reason="",
    changed_at=NOW - 100,
    findings=(),
    open_findings=0,
    is_complete=True,
    accelerators=("gpu",),
    boot_id="b",
)
XID79 = FindingSummary(
    id=1,
    component="gpu/0000:65:00.0",
    code="xid/79",
    reason="Xid79",
    action=Action.REBOOT_NODE,
    when=When.NOW,
    since=NOW - 5,
    confirmed=True,
    accepted=False,
    simulated=False,
    due=True,
    device="GPU-1",
)
UNHEALTHY = replace(
    HEALTHY,
    status=Status.UNHEALTHY,
    action=Action.REBOOT_NODE,
    reason="Xid79",
    lines=("gpu/0000:65:00.0: GPU has fallen off the bus (xid/79): reboot the node",),
    reboot_reason="Xid79",
    findings=(XID79,),
    open_findings=1,
    changed_at=NOW - 5,
)
SILENT = DaemonSilent(since=NOW, detail="connection refused")
BARE = NodeObject(name="node1", uid="u", resource_version="1")


def write(
    state: PublishedState,
    node: NodeObject,
    now: float,
    memory: dict[str, LastTransition],
    hold: str | None = None,
) -> NodeObject:
    """The node after the sink has written the state, as the API server merges it."""
    desired = combine(build_own_parts(state, "vitald.io", hold).values())
    for condition in desired.conditions:
        memory[condition.type] = decide_transition(
            condition, memory.get(condition.type), node.conditions.get(condition.type), now
        )
    patch = build_patch(desired, memory, node, now, 300.0)
    if patch is None:
        return node
    document = {
        "metadata": {"name": node.name, "uid": node.uid, "resourceVersion": "1", **_of(patch)},
        "status": patch["status"],
    }
    written = parse_node(document)
    return replace(
        node,
        labels={**node.labels, **written.labels},
        annotations={**node.annotations, **written.annotations},
        conditions={**node.conditions, **written.conditions},
    )


def _of(patch: dict[str, object]) -> dict[str, object]:
    metadata = patch["metadata"]
    assert isinstance(metadata, dict)
    return metadata


@pytest.mark.parametrize(
    ("state", "statuses", "reasons"),
    [
        (HEALTHY, "True False False", "Healthy NotRequired NotRequired"),
        (UNHEALTHY, "False True False", "Xid79 Xid79 NotRequired"),
        (SILENT, "Unknown Unknown Unknown", "DaemonSilent DaemonSilent DaemonSilent"),
        (
            replace(HEALTHY, status=Status.UNKNOWN, reason="SourceNotRead"),
            "Unknown False False",
            "SourceNotRead NotRequired NotRequired",
        ),
        (
            replace(UNHEALTHY, reboot_reason="", replacement_reason="Xid79"),
            "False False True",
            "Xid79 NotRequired Xid79",
        ),
    ],
)
def test_conditions(state: PublishedState, statuses: str, reasons: str) -> None:
    conditions = build_own_parts(state, "p.io")["own"].conditions
    assert [condition.type for condition in conditions] == [
        "p.io/Healthy",
        "p.io/RebootRequired",
        "p.io/ReplacementRequired",
    ]
    assert " ".join(condition.status.value for condition in conditions) == statuses
    assert " ".join(condition.reason for condition in conditions) == reasons


def test_a_person_holds_repairs() -> None:
    """The node stays unhealthy. What is not due is not held, nor what is unknown."""
    conditions = build_own_parts(UNHEALTHY, "p.io", "ticket 4711\n" * 1000)["own"].conditions
    assert [(each.status.value, each.reason) for each in conditions] == [
        ("False", "Xid79"),
        ("False", "Held"),
        ("False", "NotRequired"),
    ]
    message = conditions[1].message
    assert message.startswith("held by an annotation: ticket 4711")
    assert message.endswith(UNHEALTHY.lines[0])
    silent = build_own_parts(SILENT, "p.io", "")["own"].conditions
    assert {each.reason for each in silent} == {"DaemonSilent"}


@pytest.mark.parametrize("is_remembered", [True, False])
def test_a_repair_that_was_held_is_due_since_now(is_remembered: bool) -> None:
    """Also where another fault came meanwhile: a controller waits for its time from now on."""
    type_ = "vitald.io/RebootRequired"
    memory: dict[str, LastTransition] = {}
    node = write(HEALTHY, BARE, NOW - 50, memory)
    node = write(UNHEALTHY, node, NOW, memory, hold="ticket 4711")
    held = node.conditions[type_]
    assert (held.reason, held.last_transition) == ("Held", "2025-10-09T08:51:40Z")
    second = replace(UNHEALTHY, changed_at=NOW + 60)
    node = write(second, node, NOW + 60, memory, hold="ticket 4711")
    node = write(second, node, NOW + 3600, memory if is_remembered else {})
    assert node.conditions[type_].last_transition == "2025-10-09T09:53:20Z"


def test_a_written_node_is_not_written_again_before_its_heartbeat() -> None:
    memory: dict[str, LastTransition] = {}
    node = write(UNHEALTHY, BARE, NOW, memory)
    assert node.conditions["vitald.io/Healthy"].message == UNHEALTHY.lines[0]
    assert node.labels == {"vitald.io/status": "unhealthy", "vitald.io/action": "reboot_node"}
    assert write(UNHEALTHY, node, NOW + 299, memory) is node
    again = write(UNHEALTHY, node, NOW + 300, memory)
    assert again.conditions["vitald.io/Healthy"].last_heartbeat == "2025-10-09T08:58:20Z"


def test_the_transition_time_stays_while_the_status_does() -> None:
    """With a second fault, another reason, a foreign delete, and where the memory is lost."""
    memory: dict[str, LastTransition] = {}
    node = write(HEALTHY, BARE, NOW - 50, memory)
    node = write(UNHEALTHY, node, NOW, memory)
    since = node.conditions["vitald.io/Healthy"].last_transition
    assert since == "2025-10-09T08:53:15Z"  # the finding's, not the time of writing
    second = replace(UNHEALTHY, reason="Xid64", changed_at=NOW + 60)
    node = write(second, node, NOW + 60, memory)
    assert node.conditions["vitald.io/Healthy"].reason == "Xid64"
    assert node.conditions["vitald.io/Healthy"].last_transition == since
    node = write(second, replace(node, conditions={}), NOW + 70, memory)
    assert node.conditions["vitald.io/Healthy"].last_transition == since
    node = write(replace(second, changed_at=NOW + 90), node, NOW + 90, {})
    assert node.conditions["vitald.io/Healthy"].last_transition == since


@pytest.mark.parametrize(
    ("changed_at", "expected"), [(NOW - 500, NOW), (NOW + 500, NOW), (NOW - 1, NOW - 1)]
)
def test_a_transition_is_after_the_former_and_not_in_the_future(
    changed_at: float, expected: float
) -> None:
    desired = DesiredCondition(
        type="t", status=ConditionStatus.FALSE, reason="R", message="", changed_at=changed_at
    )
    decided = decide_transition(desired, LastTransition("True", NOW - 100), None, NOW)
    assert decided == LastTransition("False", expected, "R")


def test_what_others_change_is_repaired() -> None:
    memory: dict[str, LastTransition] = {}
    node = write(UNHEALTHY, BARE, NOW, memory)
    forged = replace(node.conditions["vitald.io/Healthy"], status="True")
    for broken in (
        replace(node, conditions={**node.conditions, "vitald.io/Healthy": forged}),
        replace(node, labels={"vitald.io/status": "healthy"}),
        replace(node, annotations={}),
    ):
        assert (
            write(UNHEALTHY, broken, NOW + 1, memory).conditions["vitald.io/Healthy"].status
            == "False"
        )
        assert write(UNHEALTHY, broken, NOW + 1, memory).labels == node.labels
        assert write(UNHEALTHY, broken, NOW + 1, memory).annotations == node.annotations


@given(st.lists(st.text(max_size=700), max_size=40))
def test_a_message_fits(lines: list[str]) -> None:
    message = format_message(lines)
    assert len(message.encode()) <= MAX_MESSAGE_BYTES
    assert message.isprintable() and (message or lines)


@given(st.text(), st.integers(8, 200))
def test_limited_text_fits(text: str, limit: int) -> None:
    assert len(limit_bytes(text, limit).encode()) <= limit


@given(st.lists(st.text(max_size=300), max_size=200))
def test_the_annotation_fits_and_is_json(names: list[str]) -> None:
    findings = [replace(XID79, component=name) for name in names]
    text = format_findings(findings, 10_000)
    assert len(text) <= MAX_ANNOTATION_BYTES
    document = json.loads(text)
    assert document["open"] == 10_000
    assert [one["component"] for one in document["findings"]] == names[: len(document["findings"])]


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ([], "node"),
        ({"metadata": {"name": 5}}, "name"),
        ({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}, "status": 3}, "status"),
        (
            {
                "metadata": {"name": "n", "uid": "u", "resourceVersion": "1"},
                "status": {"conditions": [{"type": "T"}]},
            },
            "status",
        ),
    ],
)
def test_a_broken_node_is_refused_by_name(document: object, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse_node(document)


def test_who_manages_a_condition() -> None:
    entry = {
        "manager": "eks-node-monitoring-agent",
        "fieldsV1": {"f:status": {"f:conditions": {".": {}, 'k:{"type":"KernelReady"}': {}}}},
    }
    metadata = {"name": "n", "uid": "u", "resourceVersion": "1", "managedFields": [entry]}
    assert parse_node({"metadata": metadata}).managers == {
        NodeName(NameKind.CONDITION, "KernelReady"): frozenset({"eks-node-monitoring-agent"})
    }


def test_all_six_fields_of_a_condition_are_written() -> None:
    """A strategic merge patch keeps what is left out."""
    assert len(NodeCondition(type="t", status="True").to_json()) == 6


def test_a_transition_from_a_clock_that_was_ahead_is_dated_now() -> None:
    desired = DesiredCondition(
        type="t",
        status=ConditionStatus.FALSE,
        reason="Xid79",
        message="",
        changed_at=NOW - 10,
    )
    ahead = LastTransition("False", NOW + 3600)
    assert decide_transition(desired, ahead, None, NOW) == LastTransition("False", NOW, "Xid79")


def write_times(*states: tuple[float, PublishedState]) -> list[str]:
    """Since when the node says what it says, each of these many seconds after NOW."""
    memory: dict[str, LastTransition] = {}
    node, found = BARE, []
    for seconds, state in states:
        node = write(state, node, NOW + seconds, memory)
        found.append(node.conditions["vitald.io/Healthy"].last_transition)
    return found


def test_a_short_silence_does_not_begin_the_time_anew() -> None:
    """Karpenter counts ten minutes: else they never end where the daemon crashes again and again.
    Also where a source could not be read, and over several silences.
    """
    unread = replace(HEALTHY, status=Status.UNKNOWN, reason="SourceNotRead", changed_at=0.0)
    since, *later = write_times(
        *((0, UNHEALTHY), (60, SILENT), (70, UNHEALTHY)),
        *((200, unread), (210, SILENT), (400, UNHEALTHY)),
    )
    assert [later[index] == since for index in range(5)] == [False, True, False, False, True]


@pytest.mark.parametrize(
    ("silence", "after"),
    [
        (10, HEALTHY),  # another status
        (10, replace(UNHEALTHY, reason="Xid64")),  # another finding
        (301, UNHEALTHY),
    ],
)
def test_after_a_silence_the_time_begins_anew(silence: float, after: PublishedState) -> None:
    since, unknown, again = write_times((0, UNHEALTHY), (60, SILENT), (60 + silence, after))
    assert since < unknown < again


def test_a_heartbeat_from_a_clock_that_was_ahead_is_written_again() -> None:
    memory: dict[str, LastTransition] = {}
    ahead = write(HEALTHY, BARE, NOW + 3600, memory)
    again = write(HEALTHY, ahead, NOW, memory)
    assert again.conditions["vitald.io/Healthy"].last_heartbeat == "2025-10-09T08:53:20Z"
