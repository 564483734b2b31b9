"""Events, taints and removal: what is written once, beside others, and not left behind."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import get_answer
from vitald.model.words import Action, Status
from vitald.publish.http import read_retry_after
from vitald.publish.kubernetes.client import (
    ApiRefused,
    ApiUnreachable,
    KubernetesClient,
)
from vitald.publish.kubernetes.node_events import EventRunner, build_event, is_announced
from vitald.publish.kubernetes.node_object import NodeObject, NodeTaint
from vitald.publish.kubernetes.reconcile import LastTransition
from vitald.publish.kubernetes.retire import NotRetired, retire_node
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.publish.kubernetes.taint import merge_taints
from vitald.publish.retry import Retry
from vitald.publish.state_store import (
    FILE,
    Cursor,
    StateInUse,
    StateStore,
    lock_state,
)
from vitald.publish.summary import NodeSummary
from vitald.publish.transitions import (
    ChangeKind,
    FindingChange,
    NoTransitions,
    TransitionPage,
    TransitionReader,
    parse_page,
)
from vitald.server import endpoints

EVENTS = "kubernetes-events"
NODE = NodeObject(name="node1", uid="u", resource_version="1")
STATE = NodeSummary(
    status=Status.HEALTHY,
    action=Action.NONE,
    reason="Healthy",
    lines=(),
    reboot_reason="",
    replacement_reason="",
    changed_at=0.0,
    findings=(),
    open_findings=0,
    is_complete=True,
    accelerators=(),
    boot_id="b",
)


def make_change(number: int, **values: Any) -> FindingChange:
    change = FindingChange(
        id=number,
        at=time.time(),
        kind=ChangeKind.OPENED,
        finding=number,
        component="gpu/0000:65:00.0",
        device="",
        code="xid/79",
        reason="Xid79",
        title="GPU has fallen off the bus",
        action=Action.REBOOT_NODE,
        cause="xid/79 seen",
        simulated=False,
    )
    return replace(change, **values)


@dataclass
class Ledger:
    """Stands for the daemon's: two transitions a page."""

    changes: list[FindingChange] = field(default_factory=list)

    async def read_page(self, after: int) -> TransitionPage:
        later = [change for change in self.changes if change.id > after]
        more = later[1].id if len(later) > 2 else None
        return TransitionPage(tuple(later[:2]), more, self.newest)

    async def read_newest(self) -> TransitionPage:
        return TransitionPage(tuple(self.changes[-1:]), None, self.newest)

    @property
    def newest(self) -> int:
        return self.changes[-1].id if self.changes else 0


@dataclass
class Cluster:
    """Stands for the API server. `lose_answer`: to which request the answer gets lost."""

    node: NodeObject = NODE
    events: dict[str, Any] = field(default_factory=dict)
    repeated: int = 0
    lose_answer: Callable[[Any], bool] = lambda _: False

    async def read_node(self) -> NodeObject:
        return self.node

    async def create_event(self, event: Any) -> bool:
        name = event["metadata"]["name"]
        is_new = name not in self.events
        self.repeated += not is_new
        self.events.setdefault(name, event)
        if is_new and self.lose_answer(event):
            raise ApiUnreachable("the connection broke off")
        return is_new

    @property
    def notes(self) -> list[str]:
        return [event["note"] for event in self.events.values()]


def run_for(
    cluster: Cluster, ledger: Ledger, folder: Path, seconds: float = 0.0, *, steps: int = 1
) -> EventRunner:
    """A publisher from its start until it was killed, after so many attempts."""

    async def run() -> EventRunner:
        store = StateStore(folder)
        runner = EventRunner(
            cast("KubernetesClient", cluster),
            cast("TransitionReader", ledger),
            store,
            "vitald.io",
            drills=False,
        )
        try:
            for _ in range(steps):
                await runner._work_off()
        finally:
            store.close()
        return runner

    return asyncio.run(run())


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """The folder of a publisher that has begun with an empty ledger."""
    run_for(Cluster(), Ledger(), tmp_path)
    return tmp_path


def test_the_first_start_begins_with_the_present(tmp_path: Path) -> None:
    cluster, ledger = Cluster(), Ledger([make_change(1), make_change(2)])
    run_for(cluster, ledger, tmp_path)
    assert cluster.notes == []
    ledger.changes.append(make_change(3))
    run_for(cluster, ledger, tmp_path)
    assert len(cluster.notes) == 1


def test_an_answer_that_is_lost_neither_repeats_nor_loses_an_event(begun: Path) -> None:
    """As a process that is killed between the event and the position."""
    ledger = Ledger([make_change(number) for number in range(1, 6)])
    cluster = Cluster(lose_answer=lambda _: True)
    for _ in range(10):
        run_for(cluster, ledger, begun)
    assert (len(cluster.notes), cluster.repeated) == (5, 5)


def test_one_event_stands_for_too_many_and_comes_once(begun: Path) -> None:
    ledger = Ledger([make_change(number) for number in range(1, 61)])
    cluster = Cluster(lose_answer=lambda event: event["reason"] == "MoreChanges")
    limited = run_for(cluster, ledger, begun, steps=1)
    assert (len(cluster.notes), limited.health.waiting) == (20, 40)
    store = StateStore(begun)
    asyncio.run(write_combined(store, 60))  # as if killed before the event
    store.close()
    ledger.changes.append(make_change(61))
    for _ in range(3):
        run_for(cluster, ledger, begun)
    assert cluster.notes[20] == "and 40 more changes of findings: vitald findings"
    assert (len(cluster.notes), cluster.repeated) == (22, 1)
    assert cluster.events[[*cluster.events][20]]["type"] == "Warning"


async def write_combined(store: StateStore, combined: int) -> None:
    cursor = store.read_cursor(EVENTS)
    assert cursor is not None and cursor.position == 20
    await store.write_cursor(EVENTS, replace(cursor, combined=combined))


@pytest.mark.parametrize("count", [1, 3, 40])
def test_a_ledger_that_was_begun_anew_is_read_from_its_beginning(begun: Path, count: int) -> None:
    cluster = Cluster()
    run_for(cluster, Ledger([make_change(1), make_change(2), make_change(3)]), begun)
    anew = [make_change(number, at=time.time() + 1) for number in range(1, count + 1)]
    run_for(cluster, Ledger(anew), begun)
    assert len(cluster.notes) == 3 + min(count, 20)


def test_what_is_old_is_not_sent(begun: Path) -> None:
    cluster = Cluster(node=replace(NODE, created=time.time() - 60))
    changes = [
        make_change(1, at=time.time() - 3700),
        make_change(2, at=time.time() - 120),  # of a former node of that name
        make_change(3),
    ]
    runner = run_for(cluster, Ledger(changes), begun)
    assert [event["metadata"]["name"] for event in cluster.events.values()] == [
        cast("Any", build_event(changes[2], cluster.node, "vitald.io"))["metadata"]["name"]
    ]
    assert (runner.health.is_up, runner.health.waiting) == (True, 0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, True),
        ({"action": Action.INSPECT}, True),
        ({"action": Action.RESTART_WORKLOAD}, False),
        ({"kind": ChangeKind.OTHER}, False),
        ({"simulated": True}, False),
    ],
)
def test_what_is_worth_an_event(values: dict[str, Any], expected: bool) -> None:
    assert is_announced(make_change(1, **values), drills=False) is expected
    assert is_announced(make_change(1, **values), drills=True) is (
        expected or "simulated" in values
    )


@given(st.text(max_size=3000), st.integers(1, 253))
def test_an_event_keeps_the_limits_of_the_api(text: str, length: int) -> None:
    node = replace(NODE, name="n" * (length - 1) + ("-" if length == 236 else "n"))
    event = cast("Any", build_event(make_change(1, cause=text, simulated=True), node, "p.io"))
    assert len(event["note"].encode()) <= 1024
    assert event["note"].startswith("SIMULATED: ")
    name = event["metadata"]["name"]
    assert len(name) <= 253 and "-." not in name
    assert len(event["reportingInstance"]) <= 128


@pytest.mark.parametrize("document", [[], {}, {"transitions": 3}, {"transitions": [{}]}])
def test_an_answer_that_is_no_page_is_refused(document: object) -> None:
    with pytest.raises(NoTransitions):
        parse_page(document)


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ({"index": 3, "text": "GPU 3, serial 165001"}, " (GPU 3, serial 165001)"),
        ({"pci": "0000:65:00.0"}, ""),
        (None, ""),
    ],
)
def test_an_event_names_the_board(device: object, text: str) -> None:
    answer: Any = get_answer(endpoints.TRANSITIONS)
    change = {**answer["transitions"][0], "component": "gpu/0000:65:00.0", "device": device}
    page = parse_page({**answer, "transitions": [change]})
    note = build_event(page.changes[0], NODE, "vitald.io")["note"]
    assert str(note).startswith(f"gpu/0000:65:00.0{text}: ")


# --- the taint

_TAINTS = st.builds(
    NodeTaint,
    key=st.sampled_from(["a/b", "c/d", "vitald.io/unhealthy", "old.io/unhealthy"]),
    value=st.sampled_from(["", "x", "inspect", "reboot_node"]),
    effect=st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"]),
)


@given(st.lists(_TAINTS, unique_by=lambda taint: (taint.key, taint.effect)), st.booleans())
def test_taints_of_others_stay(present: list[NodeTaint], is_wanted: bool) -> None:
    ours = ("vitald.io/unhealthy", "old.io/unhealthy")
    wanted = NodeTaint(key=ours[0], value="reboot_node", effect="NoSchedule") if is_wanted else None
    merged = merge_taints(present, ours, wanted)
    place = {(wanted.key, wanted.effect)} if wanted else set()
    theirs = [
        each
        for each in present
        if (each.key not in ours or each.value in ("", "x") or each.effect == "NoExecute")
        and (each.key, each.effect) not in place
    ]
    assert [each for each in merged if each != wanted] == theirs
    assert (wanted in merged) == is_wanted
    assert merge_taints(merged, ours, wanted) == merged, "nothing to do the second time"


# --- the removal


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(ApiUnreachable("refused"), 2), (ApiRefused(503, "busy"), 2), (ApiRefused(403, "no"), 1)],
)
def test_a_removal_that_fails_is_tried_again_where_that_helps(
    tmp_path: Path, error: Exception, attempts: int
) -> None:
    calls: list[float] = []

    class Client:
        node = "node1"

        async def read_node(self) -> NodeObject:
            calls.append(time.monotonic())
            raise error

    store = StateStore(tmp_path, may_create=False)
    with pytest.raises(NotRetired, match="node1: not everything"):
        asyncio.run(
            retire_node(cast("KubernetesClient", Client()), KubernetesSettings(), store, 0.1)
        )
    assert len(calls) == attempts


# --- the state file


def test_what_is_stored_is_there_again(tmp_path: Path) -> None:
    key = "vitald.io/unhealthy"
    before = LastTransition("False", 4.0, "Xid79")
    transitions = {
        "S": LastTransition("Unknown", 5.0, "DaemonSilent", before),
        "T": LastTransition("True", 5.0, "Healthy"),
    }

    async def write() -> None:
        store = StateStore(tmp_path)
        await store.write_transitions("u", transitions)
        await store.add_taint(key)
        await store.write_cursor("events", Cursor(position=7, at=1.5, combined=9))
        store.close()

    asyncio.run(write())
    store = StateStore(tmp_path)
    assert store.read_transitions("u") == transitions
    assert store.read_transitions("another") == {}
    assert store.read_taints() == {key}
    assert store.read_cursor("events") == Cursor(position=7, at=1.5, combined=9)
    store.close()


def damage_text(path: Path) -> None:
    path.write_bytes(b"no database" * 500)


def damage_version(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")


def damage_table(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE taints")


def damage_row(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO moments VALUES ('x', 'nonsense')")


@pytest.mark.parametrize("damage", [damage_text, damage_version, damage_table, damage_row])
def test_a_damaged_file_is_set_aside(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    StateStore(tmp_path).close()
    time.sleep(0)
    path = tmp_path / FILE
    damage(path)
    (tmp_path / f"{FILE}-journal").write_bytes(b"")
    store = StateStore(tmp_path)
    asyncio.run(store.write_cursor("events", Cursor(position=1, at=0.0)))
    store.close()
    assert len([*tmp_path.glob(f"{FILE}.damaged-*")]) >= 1
    again = StateStore(tmp_path)
    assert again.read_cursor("events") == Cursor(position=1, at=0.0)
    again.close()


def test_publishing_goes_on_without_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = StateStore(tmp_path / "file")
    asyncio.run(store.write_cursor("events", Cursor(position=1, at=0.0)))
    assert store.read_cursor("events") == Cursor(position=1, at=0.0)
    store.close()
    with lock_state(tmp_path / "file"):
        pass


def test_a_write_that_fails_is_made_good_by_the_next(tmp_path: Path) -> None:
    async def write() -> None:
        store = StateStore(tmp_path)
        with sqlite3.connect(tmp_path / FILE) as other:
            other.execute("BEGIN EXCLUSIVE")
            await store.write_cursor("events", Cursor(position=1, at=0.0))
        assert store.read_cursor("events") == Cursor(position=1, at=0.0)
        await store.write_cursor("more", Cursor(position=2, at=0.0))
        store.close()

    asyncio.run(write())
    store = StateStore(tmp_path)
    assert store.read_cursor("events") == Cursor(position=1, at=0.0)
    store.close()


def test_one_publisher_at_a_time(tmp_path: Path) -> None:
    with lock_state(tmp_path), pytest.raises(StateInUse, match=str(tmp_path)), lock_state(tmp_path):
        pass
    with lock_state(tmp_path):
        pass


# --- when to write


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", 7.0),
        ("Thu, 01 Jan 1970 00:02:00 GMT", 20.0),
        ("Thu, 01 Jan 1970 00:00:10 GMT", 0.0),
        ("-5", None),
        ("soon", None),
        ("", None),
        ("9" * 400, 600.0),
    ],
)
def test_retry_after(text: str, expected: float | None) -> None:
    assert read_retry_after(text, 100.0) == expected


def test_delays_between_attempts() -> None:
    def list_delays(count: int, **how: Any) -> Sequence[float]:
        return [retry.note_failure(**how) for _ in range(count)]

    retry = Retry()
    assert 4.0 < max(list_delays(200, is_unreachable=True)) <= 8.0
    first, *later = list_delays(200, is_unreachable=False)
    assert first <= 1.0, "a server that is there again is asked soon"
    assert 30.0 < max(later) <= 60.0
    (asked,) = list_delays(1, is_unreachable=False, retry_after_s=100.0)
    assert 100.0 <= asked <= 120.0
