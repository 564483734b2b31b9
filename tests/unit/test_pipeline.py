"""The one way through: what comes a second time adds nothing, and nothing that was taken is lost by
a stop.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.builders import catalogue, event, gpu
from tests.unit.test_runs import FULL
from tests.waiting import WAIT_S, until_async
from vitald.core import (
    evaluator,
    ledger_writer,
    work_queue,
)
from vitald.core import pipeline as module
from vitald.core.node_state import NodeState
from vitald.core.pipeline import Pipeline
from vitald.ledger.errors import LedgerDamaged, LedgerError
from vitald.ledger.queries import PastQuery, read_events, read_runs
from vitald.ledger.schema import AuditRecord
from vitald.ledger.store import Ledger, LedgerEntry
from vitald.model.component import NODE
from vitald.model.event import BOOT as BOOTED
from vitald.model.event import CLOCK_STEPPED, IDENTITY, Event, Trust
from vitald.model.finding import Memory, Transition
from vitald.model.source import Batch, Position
from vitald.worker_thread import WorkerThread

BOOT = "boot-a"
CODES = ("xid/79", "xid/31", "xid/45", "xid/63", "xid/154", "xid/999")


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Pipeline]:
    lane = WorkerThread("test")
    pipeline = Pipeline(
        Ledger(folder), lane, NodeState(BOOT, 0.0, device_reset=False), catalogue(), BOOT
    )
    await pipeline.open(catalogue())
    async with anyio.create_task_group() as tasks:  # as the daemon does it
        tasks.start_soon(pipeline.run)
        yield pipeline
        tasks.cancel_scope.cancel()
    await pipeline.close()
    lane.close()


async def idle(pipeline: Pipeline) -> None:
    while pipeline._queue.items or pipeline._busy:
        await asyncio.sleep(0.001)


def batches(numbers: list[int]) -> list[Batch]:
    """A record each, told by its number: the same number is the same record."""
    made = []
    for number in numbers:
        one = event(
            CODES[number % len(CODES)],
            gpu(number % 3),
            1000.0 + number,
            identity=f"record {number}",
            fields={"recovery": 2, "pid": number},
        )
        made.append(
            Batch("kernel_log", (one,), Position("kernel_log", BOOT, str(number)), again=True)
        )
    return made


async def told(folder: Path, handed: list[Batch], restart_at: int) -> tuple[object, ...]:
    """What stands, and what is stored, after these batches with a restart in between."""
    for part in (handed[:restart_at], handed[restart_at:]):
        async with running(folder) as pipeline:
            for batch in part:
                await pipeline.put(batch)
                await idle(pipeline)
            standing = [
                (found.code, found.component, found.requirement, found.count)
                for found in pipeline.judge.open_findings
            ]
            incidents = [
                (one.root.code, one.event_count, len(one.members))
                for one in pipeline.judge.incidents
                if one.closed_at is None
            ]
    return (
        standing,
        incidents,
        [one.event.identity for one in read_events(folder / "ledger.db", PastQuery())],
    )


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.integers(0, 11), unique=True, max_size=8), st.integers(0, 16))
def test_the_same_twice_adds_nothing(
    tmp_path_factory: object, numbers: list[int], cut: int
) -> None:
    """Read again from another place, before a restart or after it: one record is one event, counted
    once.
    """
    once, twice = (tmp_path_factory.mktemp(name) for name in ("once", "twice"))  # type: ignore[attr-defined]
    numbers = sorted(numbers)
    whole = asyncio.run(told(once, batches(numbers), 0))
    assert asyncio.run(told(twice, batches(numbers + numbers), cut)) == whole


def test_a_stop_loses_nothing_that_was_taken(tmp_path: Path) -> None:
    """Cancelled at once after many events were handed in: each is judged, and stored with what it
    changed.
    """

    async def work() -> None:
        events = tuple(
            event("xid/31", gpu(), 1000.0, identity=f"record {number}") for number in range(300)
        )
        async with running(tmp_path) as pipeline:
            await pipeline.put(Batch("kernel_log", events, Position("kernel_log", BOOT, "300")))
            for _ in range(6):  # it is in the middle of judging them
                await asyncio.sleep(0)

    async def again() -> tuple[int, str]:
        async with running(tmp_path) as pipeline:
            (found,) = pipeline.judge.open_findings
            position = pipeline.position("kernel_log")
            return found.count, position.cursor if position is not None else ""

    asyncio.run(work())
    assert asyncio.run(again()) == (300, "300")
    assert len(read_events(tmp_path / "ledger.db", PastQuery(limit=1000))) == 300


# --- when something is judged, and by which clock


class Clock(SimpleNamespace):
    """What the pipeline knows of time; it passes only when it is told to."""

    def __init__(self) -> None:
        super().__init__(
            CLOCK_BOOTTIME=time.CLOCK_BOOTTIME,
            perf_counter=time.perf_counter,
            now=10_000.0,
            awake=100.0,
            up=100.0,
        )

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.awake

    def clock_gettime(self, clock: int) -> float:
        assert clock == time.CLOCK_BOOTTIME
        return self.up

    def passes(self, seconds: float, *, asleep: bool = False) -> None:
        self.now += seconds
        self.up += seconds
        self.awake += 0.0 if asleep else seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for one in (module, evaluator, work_queue, ledger_writer):
        monkeypatch.setattr(one, "time", made)
    return made


def codes(folder: Path) -> list[str]:
    return [one.event.code for one in read_events(folder / "ledger.db", PastQuery(limit=1000))]


def test_a_suspend_is_no_step_of_the_clock(tmp_path: Path, clock: Clock) -> None:
    async def work() -> None:
        async with running(tmp_path) as pipeline:
            clock.passes(3600.0, asleep=True)
            await pipeline.put(Batch("kernel_log", (event("xid/79", time=clock.now),)))
            await idle(pipeline)
            clock.now += 60.0
            await pipeline.put(Batch("kernel_log", (event("xid/119", time=clock.now),)))
            await idle(pipeline)

    asyncio.run(work())
    assert codes(tmp_path) == ["xid/79", CLOCK_STEPPED, "xid/119"]


def test_a_step_is_told_behind_what_was_queued_before_it(tmp_path: Path, clock: Clock) -> None:
    """What was read by the old clock is judged by the old clock."""

    async def work() -> None:
        async with running(tmp_path) as pipeline:
            await pipeline.put(Batch("kernel_log", (event("xid/79", time=clock.now),)))
            clock.now += 3600.0
            await pipeline.put(Batch("kernel_log", (event("xid/119", time=clock.now),)))
            await idle(pipeline)
            assert {found.code: found.last for found in pipeline.judge.open_findings} == {
                "xid/79": clock.now,
                "xid/119": clock.now,
            }

    asyncio.run(work())
    assert codes(tmp_path) == ["xid/79", CLOCK_STEPPED, "xid/119"]


def test_nothing_ends_by_quiet_before_what_is_queued_has_been_judged(
    tmp_path: Path, clock: Clock
) -> None:
    """It was seen again before its quiet time was over, and the judge is late."""

    async def work() -> None:
        async with running(tmp_path) as pipeline:
            await pipeline.put(
                Batch(
                    "kernel_log", (event("xid/31", time=clock.now, identity="one"),), caught_up=True
                )
            )
            await idle(pipeline)
            again = event("xid/31", time=clock.now + 3590.0, identity="two")
            clock.passes(3601.0)
            await pipeline.put(Batch("kernel_log", (again,)))
            await idle(pipeline)
            (found,) = pipeline.judge.open_findings
            assert (found.id, found.count) == (1, 2)
            clock.passes(3600.0)
            pipeline._queue._added.set()
            await until_async(lambda: pipeline.judge.open_findings == ())

    asyncio.run(work())


@pytest.mark.parametrize("stepped", [0.0, -3600.0])
def test_what_happens_after_a_person_asked_is_told(
    tmp_path: Path, clock: Clock, stepped: float
) -> None:
    """Cleared at one moment, judged at a later one: a fault in between was not dealt with. Nor did
    anybody ask in the future.
    """

    async def work() -> None:
        async with running(tmp_path) as pipeline:
            await pipeline.put(
                Batch("kernel_log", (event("xid/79", time=clock.now, identity="one"),))
            )
            await idle(pipeline)
            audit = AuditRecord(
                time=clock.now + 1.0, uid=0, pid=1, verb="clear", target="1", reason="why"
            )
            again = event("xid/79", time=clock.now + stepped + 3.0, identity="two")
            clock.passes(5.0)
            clock.now += stepped
            assert await pipeline.actions.clear_finding(1, "alice", audit) is not None
            if stepped:
                clock.passes(1.0)
                again = event("xid/79", time=clock.now, identity="two")
            await pipeline.put(Batch("kernel_log", (again,)))
            await idle(pipeline)
            (found,) = pipeline.judge.open_findings
            assert (found.code, found.count) == ("xid/79", 1)

    asyncio.run(work())


def test_a_batch_judged_in_parts_is_stored_as_judged(tmp_path: Path) -> None:
    """A record that changes its name or its clock within a batch is remembered as the judge
    has it.
    """
    many = [event("xid/119", gpu(1), 2000.0, identity=f"many {number}") for number in range(20)]
    faults = [event("xid/119", gpu(0), 1000.0, identity="fault")]
    told = [
        event(IDENTITY, gpu(0), 2000.0, identity="name", fields={"uuid": "GPU-1"}),
        event(
            CLOCK_STEPPED,
            NODE,
            2000.0,
            identity="step",
            trust=Trust.DAEMON,
            fields={"seconds": 500.0},
        ),
    ]

    async def work() -> None:
        async with running(tmp_path) as pipeline:
            await pipeline.put(Batch("kernel_log", (*faults, *many, *told)))
            await idle(pipeline)
            kept = pipeline.judge.memory
        again = Ledger(tmp_path)
        again.open()
        memory = again.read_state().memory
        assert {(mark.device, mark.time, mark.kind) for mark in memory.marks} == {
            (mark.device, mark.time, mark.kind) for mark in kept.marks
        }
        assert ("GPU-1", 1500.0) in {(mark.device, mark.time) for mark in memory.marks}

    asyncio.run(work())


# --- a ledger that is ill


def test_a_boot_is_told_to_what_is_remembered_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is out of reach at the start: what the boot cured ends when it is read at last."""

    async def before() -> None:
        async with running(tmp_path) as pipeline:
            await pipeline.report_boot()
            faults = (
                event("xid/79", boot=BOOT),
                event("nvml/row_remap_failed", gpu(1), boot=BOOT),
                event("xid/63", gpu(2), boot=BOOT),
            )
            await pipeline.put(Batch("kernel_log", faults, Position("kernel_log", BOOT, "1")))
            await idle(pipeline)

    async def after() -> None:
        def fails(self: Ledger) -> None:
            raise LedgerError("out of reach")

        with monkeypatch.context() as patched:
            patched.setattr(Ledger, "open", fails)
            patched.setattr(Ledger, "rescue", lambda self: None)
            pipeline = Pipeline(
                Ledger(tmp_path),
                lane := WorkerThread("test"),
                NodeState("boot-b", 0.0, device_reset=False),
                catalogue(),
                "boot-b",
            )
            await pipeline.open(catalogue())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pipeline.run)
            await pipeline.report_boot()
            pipeline.ledger_writer._retry_at = 0.0
            again = event("xid/63", gpu(2), 5000.0, boot="boot-b")
            await pipeline.put(Batch("kernel_log", (again,), Position("kernel_log", "boot-b", "1")))
            await idle(pipeline)
            await until_async(lambda: pipeline.node_state.ledger.ok)
            await idle(pipeline)
            tasks.cancel_scope.cancel()
        assert pipeline.node_state.ledger.ok
        assert {
            found.code for found in pipeline.judge.open_findings if found.kind in ("xid", "nvml")
        } == {
            "nvml/row_remap_failed",
            "xid/63",
        }
        await pipeline.close()
        lane.close()

    asyncio.run(before())
    asyncio.run(after())
    assert codes(tmp_path).count(BOOTED) == 1
    ledger = Ledger(tmp_path)
    ledger.open()
    standing = [
        (found.code, found.count, found.since)
        for found in ledger.read_state().memory.findings
        if found.kind in ("xid", "nvml")
    ]
    assert standing == [
        ("nvml/row_remap_failed", 1, 0.0),
        ("xid/63", 2, 0.0),
    ]  # what was seen meanwhile and what is remembered go on as one


def test_a_replaced_ledger_is_not_ahead_of_what_was_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is still queued when a damaged ledger is replaced is read again after a crash."""
    commit = Ledger.commit

    def damaged(self: Ledger, entries: Sequence[LedgerEntry]) -> None:
        monkeypatch.setattr(Ledger, "commit", commit)
        raise LedgerDamaged("malformed")

    async def work() -> dict[str, str]:
        lane = WorkerThread("test")
        pipeline = Pipeline(
            Ledger(tmp_path), lane, NodeState(BOOT, 0.0, device_reset=False), catalogue(), BOOT
        )
        await pipeline.open(catalogue())
        many = tuple(
            event("xid/31", identity=f"record {number}")
            for number in range(module._MAX_TRANSACTION)
        )
        await pipeline.put(Batch("kernel_log", many, Position("kernel_log", BOOT, "512")))
        await pipeline.put(Batch("other", (event("xid/79", gpu(1)),), Position("other", BOOT, "1")))
        entries, _ = await pipeline._evaluate_queue()
        monkeypatch.setattr(Ledger, "commit", damaged)
        await pipeline._store_entries(entries)
        again = Ledger(tmp_path)  # here the daemon is killed
        again.open()
        lane.close()
        return {
            source: position.cursor for source, position in again.read_state().positions.items()
        }

    assert asyncio.run(work()) == {"kernel_log": "512"}


def test_a_durable_position_is_in_the_ledger_as_soon_as_that_is_said(tmp_path: Path) -> None:
    """Others are written later."""

    async def work() -> None:
        async with running(tmp_path) as pipeline:
            await pipeline.put(Batch("later", (), Position("later", BOOT, "1")))
            await pipeline.put(Batch("kept", (), Position("kept", BOOT, "2"), durable=True))
            await pipeline.wait_until_stored()
            again = Ledger(tmp_path)  # here the daemon is killed
            again.open()
            assert again.read_state().positions["kept"].cursor == "2"
            again.close()

    asyncio.run(work())


def test_a_rescued_ledger_keeps_its_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damaged at the start, and the daemon is killed before it has read anything."""
    opened = Ledger.open

    async def before() -> None:
        async with running(tmp_path) as pipeline:
            await pipeline.put(
                Batch("kernel_log", (event("xid/79"),), Position("kernel_log", BOOT, "7"))
            )
            await idle(pipeline)

    def damaged(self: Ledger) -> None:
        monkeypatch.setattr(Ledger, "open", opened)
        raise LedgerDamaged("malformed")

    async def after() -> str:
        lane = WorkerThread("test")
        pipeline = Pipeline(
            Ledger(tmp_path), lane, NodeState(BOOT, 0.0, device_reset=False), catalogue(), BOOT
        )
        monkeypatch.setattr(Ledger, "open", damaged)
        await pipeline.open(catalogue())
        again = Ledger(tmp_path)
        again.open()
        lane.close()
        return again.read_state().positions["kernel_log"].cursor

    asyncio.run(before())
    assert asyncio.run(after()) == "7"


# --- a ledger that takes no events for a while


@contextmanager
def full(folder: Path) -> Iterator[sqlite3.Connection]:
    """As on a full disk: SQLite refuses every new event, and what takes no room can be written.
    `cured` ends it.
    """
    with closing(sqlite3.connect(folder / "ledger.db", isolation_level=None)) as db:
        db.execute(
            "CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
        yield db


def cured(db: sqlite3.Connection, pipeline: Pipeline) -> None:
    """There is room again, and the time to try it has come."""
    db.execute("DROP TRIGGER full")
    pipeline.ledger_writer._retry_at = 0.0
    pipeline._queue._added.set()


async def noted(pipeline: Pipeline) -> None:
    """The timer has fired, and the lane has done what it was given."""
    await until_async(lambda: pipeline.ledger_writer.positions._timer is None)
    await pipeline.ledger_writer._worker_thread.call(lambda: None)


def faulty(seq: int) -> Batch:
    one = event("xid/79", gpu(seq % 8), 1000.0 + seq, identity=f"record {seq}")
    return Batch("kernel_log", (one,), Position("kernel_log", BOOT, str(seq)))


def ordinary(seq: int) -> Batch:
    return Batch("kernel_log", (), Position("kernel_log", BOOT, str(seq)))


def left(folder: Path) -> tuple[list[str], str]:
    """What a daemon finds that is started after a kill: the records that are stored, and from where
    it reads on.
    """
    with closing(sqlite3.connect(folder / "ledger.db")) as db:
        stored = [
            name
            for (name,) in db.execute(
                "SELECT identity FROM events WHERE source != 'vitald' ORDER BY id"
            )
        ]
        place = db.execute("SELECT cursor FROM positions WHERE source = 'kernel_log'").fetchone()
    return stored, place[0] if place else ""


def test_no_position_is_noted_ahead_of_events_that_are_held(tmp_path: Path) -> None:
    """Killed at any moment, the daemon reads again what never came to the disk."""

    async def work() -> None:
        async with running(tmp_path) as pipeline:
            await pipeline.put(faulty(1))
            await idle(pipeline)
            with full(tmp_path) as db:
                await pipeline.put(faulty(2))
                await idle(pipeline)
                assert not pipeline.node_state.ledger.ok
                await pipeline.put(ordinary(3))
                await noted(pipeline)
                assert left(tmp_path) == (["record 1"], "1")
                await pipeline.put(faulty(4))
                await pipeline.put(ordinary(5))
                await idle(pipeline)
                await noted(pipeline)
                assert left(tmp_path) == (["record 1"], "1")
                cured(db, pipeline)
                await until_async(lambda: pipeline.node_state.ledger.ok)
                await idle(pipeline)
                stored, place = left(tmp_path)
                assert (stored, int(place) >= 4) == (["record 1", "record 2", "record 4"], True)
                await pipeline.put(ordinary(6))
                await noted(pipeline)
                assert left(tmp_path)[1] == "6"

    asyncio.run(work())
    assert left(tmp_path) == (["record 1", "record 2", "record 4"], "6")


def test_no_position_is_noted_ahead_of_events_that_wait_to_be_judged(tmp_path: Path) -> None:
    """An ordinary line behind a fault in the queue, and one that comes while the fault is on its
    way to the disk.
    """

    async def work() -> None:
        async with running(tmp_path) as pipeline:
            blocked, go = threading.Event(), threading.Event()

            def block() -> None:
                blocked.set()
                go.wait(WAIT_S)

            pipeline.ledger_writer._worker_thread.post(block)
            await until_async(blocked.is_set)
            await pipeline.put(faulty(1))
            await pipeline.put(ordinary(2))
            assert pipeline._queue.items
            await until_async(lambda: not pipeline._queue.items)
            await pipeline.put(ordinary(3))
            pipeline.ledger_writer.positions._write_latest()
            assert left(tmp_path) == ([], "")
            go.set()
            await idle(pipeline)
            await noted(pipeline)

    asyncio.run(work())
    assert left(tmp_path) == (["record 1"], "3")


def test_no_position_is_noted_ahead_of_events_that_nobody_has_taken_up_yet(tmp_path: Path) -> None:
    """The judge has not had its turn since they were handed in."""

    async def work() -> None:
        async with running(tmp_path) as pipeline:
            await idle(pipeline)
            await pipeline.put(faulty(1))
            await pipeline.put(ordinary(2))
            assert (len(pipeline._queue.items), pipeline._busy) == (2, False)
            pipeline.ledger_writer.positions._write_latest()
            assert await pipeline.ledger_writer._worker_thread.call(lambda: left(tmp_path)) == (
                [],
                "",
            )

    asyncio.run(work())
    assert left(tmp_path) == (["record 1"], "2")


def test_an_older_position_never_comes_after_a_younger_one(tmp_path: Path) -> None:
    """One that waits to be noted is overtaken by a fault's, which is stored with the fault."""

    async def work() -> None:
        async with running(tmp_path) as pipeline:
            await pipeline.put(ordinary(1))
            await pipeline.put(faulty(2))
            await idle(pipeline)
            await noted(pipeline)
            assert left(tmp_path) == (["record 2"], "2")

    asyncio.run(work())


def test_what_is_answered_and_shown_is_stored(tmp_path: Path) -> None:
    """When somebody is told that a batch was heard, or may see a source stand, what came with it is
    in the file.
    """

    async def work() -> None:
        async with running(tmp_path) as pipeline:
            seen: list[tuple[str, list[str]]] = []
            publish, stands = pipeline.node_state.publish_changes, pipeline.node_state.update_source

            def published(*given: Any, **named: Any) -> None:
                seen.append(("shown", left(tmp_path)[0]))
                publish(*given, **named)

            def stood(*given: Any, **named: Any) -> None:
                seen.append(("looked", left(tmp_path)[0]))
                stands(*given, **named)

            pipeline.node_state.publish_changes, pipeline.node_state.update_source = (
                published,
                stood,
            )  # type: ignore[method-assign]
            await pipeline.store(faulty(1))
            assert left(tmp_path) == (["record 1"], "1")
            assert seen == [("shown", ["record 1"]), ("looked", ["record 1"])]
            audit = AuditRecord(time=2000.0, uid=0, pid=1, verb="clear", target="1", reason="why")
            assert await pipeline.actions.clear_finding(1, "alice", audit) is not None
            with closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
                assert db.execute("SELECT verb FROM audit").fetchall() == [("clear",)]

    asyncio.run(work())


def test_a_stop_while_the_ledger_is_full_stores_what_is_held_once_there_is_room(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with running(tmp_path) as pipeline:
            with full(tmp_path) as db:
                await pipeline.put(faulty(1))
                await idle(pipeline)
                db.execute("DROP TRIGGER full")
            pipeline.ledger_writer._retry_at = 0.0

    asyncio.run(work())
    assert left(tmp_path) == (["record 1"], "1")


def test_a_ledger_that_fails_is_not_tried_again_for_every_event(tmp_path: Path) -> None:
    """A disk that takes its time to refuse would hold up the judging each time."""

    async def work() -> None:
        async with running(tmp_path) as pipeline:
            with full(tmp_path) as db:
                await pipeline.put(faulty(1))
                await idle(pipeline)
                db.execute("DROP TRIGGER full")
                pipeline.ledger_writer._retry_at = time.monotonic() + 60.0
                await pipeline.put(faulty(2))
                await idle(pipeline)
                assert left(tmp_path) == ([], "")
                assert len(pipeline.judge.open_findings) == 3  # both, and the ledger

    asyncio.run(work())


def test_more_than_can_be_held_costs_old_events_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The findings are stored as they stand, with what is known of their history."""
    monkeypatch.setattr(ledger_writer, "MAX_HELD_EVENTS", 3)

    async def work() -> None:
        async with running(tmp_path) as pipeline:
            with full(tmp_path) as db:
                for seq in (0, 8, 1, 9, 17, 25, 33):  # two faults, seen twice and five times
                    await pipeline.put(faulty(seq))
                    await idle(pipeline)
                cured(db, pipeline)
            await until_async(lambda: pipeline.node_state.ledger.ok)
            await idle(pipeline)
            assert (
                pipeline.node_state.ledger.dropped == 5
            )  # of seven, and of what is said of the ledger

    asyncio.run(work())
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
        query = "SELECT component, count FROM findings WHERE code = 'xid/79' ORDER BY id"
        assert db.execute(query).fetchall() == [(gpu(0).name, 2), (gpu(1).name, 5)]
        query = "SELECT count(*) FROM transitions WHERE cause LIKE 'xid/79%'"
        assert db.execute(query).fetchone() == (2,)
    assert left(tmp_path)[1] == "33"


def test_a_position_that_waits_to_be_noted_is_noted_at_the_end(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as pipeline:
            await pipeline.put(ordinary(7))

    asyncio.run(work())
    assert left(tmp_path)[1] == "7"


def test_a_ledger_that_is_gone_is_told_by_ordinary_lines(tmp_path: Path) -> None:
    """On a node that is well the next event may be days away."""
    folder = tmp_path / "state"

    async def work() -> None:
        async with running(folder) as pipeline:
            await pipeline.put(faulty(1))
            await idle(pipeline)
            folder.rename(tmp_path / "elsewhere")
            await pipeline.put(ordinary(2))
            await until_async(lambda: not pipeline.node_state.ledger.ok)

    asyncio.run(work())


def test_a_ledger_that_is_gone_begins_again_with_all_that_stands(tmp_path: Path) -> None:
    """Its place cannot be had for a while. What was stored before and what came meanwhile are in
    the new one, each once, by today's clock.
    """
    folder, moved = tmp_path / "place" / "state", tmp_path / "elsewhere"
    step = event(
        CLOCK_STEPPED, NODE, 3000.0, identity="step", trust=Trust.DAEMON, fields={"seconds": 500.0}
    )

    async def work() -> Memory:
        async with running(folder) as pipeline:
            other = event("xid/119", gpu(7), 1000.0, identity="other")
            await pipeline.put(Batch("other", (other,), Position("other", BOOT, "17")))
            await pipeline.put(faulty(1))
            await idle(pipeline)
            folder.parent.rename(moved)
            folder.parent.write_text("in the way")
            await pipeline.put(faulty(2))
            await until_async(lambda: not pipeline.node_state.ledger.ok)
            await pipeline.put(Batch("kernel_log", (step,)))
            await pipeline.put(replace(faulty(3), again=True))
            await idle(pipeline)
            folder.parent.unlink()
            pipeline.ledger_writer._retry_at = 0.0
            pipeline._queue._added.set()
            await until_async(lambda: pipeline.node_state.ledger.ok)
            await idle(pipeline)
            return pipeline.judge.memory

    standing = asyncio.run(work())
    assert left(folder) == (["record 2", "step", "record 3"], "3")
    again = Ledger(folder)
    again.open()
    remembered = again.read_state()
    assert remembered.positions["other"].cursor == "17"
    assert {one.code for one in remembered.memory.findings} >= {"xid/119", "xid/79"}
    for what in ("findings", "incidents", "marks"):
        assert set(map(str, getattr(remembered.memory, what))) == set(
            map(str, getattr(standing, what))
        )
    again.close()


def test_a_stop_stores_what_was_queued(tmp_path: Path) -> None:
    """Nobody has judged it yet; a diagnostic's result, say, would not come a second time."""

    async def work() -> None:
        lane = WorkerThread("test")
        board = NodeState(BOOT, 0.0, device_reset=False)
        pipeline = Pipeline(Ledger(tmp_path), lane, board, catalogue(), BOOT)
        await pipeline.open(catalogue())
        await pipeline.put(faulty(1))
        await pipeline.put(faulty(2))
        await pipeline.close()
        lane.close()

    asyncio.run(work())
    assert left(tmp_path) == (["record 1", "record 2"], "2")


def test_an_event_that_cannot_be_judged_is_stored_and_told(tmp_path: Path) -> None:
    """A fault of ours, which a device brought about; what comes behind it is judged."""

    async def work() -> None:
        async with running(tmp_path) as pipeline:
            apply = pipeline.judge.apply_event

            def failing(one: Event) -> list[Transition]:
                if one.identity == "record 1":
                    raise ZeroDivisionError
                return apply(one)

            pipeline.judge.apply_event = failing  # type: ignore[method-assign]
            await pipeline.put(Batch("kernel_log", (*faulty(1).events, *faulty(2).events)))
            await idle(pipeline)
            found = {finding.code for finding in pipeline.judge.open_findings}
            assert found == {"vitald/not_judged", "xid/79"}

    asyncio.run(work())
    assert set(codes(tmp_path)) == {"xid/79", "vitald/not_judged"}
    assert left(tmp_path)[0] == ["record 1", "record 2"]


def test_a_diagnostics_run_is_stored_with_its_batch(tmp_path: Path) -> None:
    """Also one that found nothing, of which there is no event."""

    async def work() -> None:
        async with running(tmp_path) as pipeline:
            for name, events in (("one", faulty(1).events), ("two", ())):
                await pipeline.store(Batch("diagnostics", events, runs=(replace(FULL, id=name),)))
            assert {run.id for run in read_runs(tmp_path / "ledger.db", 9)} == {"one", "two"}

    asyncio.run(work())


# --- much to be judged at a start


def test_nobody_waits_for_a_first_look_that_takes_long(tmp_path: Path) -> None:
    """A few lines are judged at once, and who asks waits for that; of a storm what is known so far
    is told.
    """

    async def work() -> None:
        async with running(tmp_path) as pipeline:
            few = tuple(
                event("xid/31", time=1000.0, identity=f"few {number}")
                for number in range(work_queue._BACKLOG)
            )
            await pipeline.put(Batch("kernel_log", few))
            assert not pipeline.node_state.answerable.is_set()
            await idle(pipeline)
            many = tuple(
                event("xid/31", time=2000.0, identity=f"many {number}")
                for number in range(work_queue._BACKLOG + 1)
            )
            await pipeline.put(Batch("kernel_log", many))
            assert (
                pipeline.node_state.answerable.is_set()
                and not pipeline.node_state.first_scan.is_set()
            )

    asyncio.run(work())
