"""A ledger that is damaged in any way, and is the only evidence: the verdict is the same, a
stronger one, or unknown; never a milder one.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

from tests.unit.builders import catalogue, event, gpu
from vitald.core.node_state import NodeState
from vitald.core.pipeline import Pipeline
from vitald.ledger.errors import LedgerError, LedgerNewer
from vitald.ledger.schema import AuditRecord
from vitald.ledger.store import FILE, Ledger
from vitald.model.finding import Verdict
from vitald.model.source import Batch, Position
from vitald.model.words import Status
from vitald.worker_thread import WorkerThread

BOOT = "boot-a"
KNOWN = catalogue()
LOST, REPLACED = "vitald/ledger_lost", "vitald/ledger_replaced"
PAGE = 4096
MILD = [Status.HEALTHY, Status.DEGRADED, Status.UNHEALTHY]
# `VITALD_TESTS_DAMAGE=1000` tries as many as a release is tried with.
CORRUPTIONS = int(os.environ.get("VITALD_TESTS_DAMAGE", settings.default.max_examples * 3 // 4))


@dataclass(frozen=True)
class Found:
    """What a start makes of a ledger."""

    verdict: Verdict | None  # None: it is refused, and nothing answers
    codes: frozenset[str]
    positions: frozenset[str]

    @property
    def unknown(self) -> bool:
        return self.verdict is None or self.verdict.status is Status.UNKNOWN


async def started(folder: Path) -> Found:
    """As the daemon starts, with no source to look again."""
    lane, board = WorkerThread("test"), NodeState(BOOT, 0.0, device_reset=False)
    pipeline = Pipeline(Ledger(folder), lane, board, KNOWN, BOOT)
    try:
        await pipeline.open(KNOWN)
        positions = frozenset(
            source for source in ("kernel_log", "nvml") if pipeline.position(source) is not None
        )
        found = Found(board.verdict(), frozenset(one.code for one in board.findings), positions)
        await pipeline.close()
    except LedgerNewer:
        return Found(None, frozenset(), frozenset())
    finally:
        lane.close()
    return found


def start(folder: Path) -> Found:
    return asyncio.run(started(folder))


@dataclass(frozen=True)
class Base:
    """A ledger as a stop or a kill left it, its verdict, and how it was before."""

    name: str
    folder: Path
    former: Path
    found: Found


FAULTS = {
    "much": [
        *("xid/79", "xid/48", "nvml/row_remap_failed", "xid/31", "xid/63"),
        *("xid/119", "xid/95", "xid/45", "xid/154"),
    ],
    "little": ["xid/999"],
}


async def fill(folder: Path, killed: Path, former: Path, codes: list[str]) -> None:
    lane = WorkerThread("test")
    pipeline = Pipeline(Ledger(folder), lane, NodeState(BOOT, 0.0, device_reset=False), KNOWN, BOOT)
    await pipeline.open(KNOWN)
    judging = asyncio.create_task(pipeline.run())
    await pipeline.store(
        Batch(
            "nvml",
            (event("device/identity", gpu(), time.time() - 700),),
            Position("nvml", BOOT, "{}"),
        )
    )
    for number in range(6 * len(codes)):
        if number == 4 * len(codes):
            with closing(sqlite3.connect(folder / FILE)) as db:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            shutil.copytree(folder, former)
        at, fields = time.time() - 600 + number, {"pid": number, "recovery": 2, "filler": "x" * 200}
        one = event(
            codes[number // 6],
            gpu(number // 6),
            at,
            identity=f"record {number}",
            fields=fields,
            raw=f"line {number} " * 9,
        )
        await pipeline.store(Batch("kernel_log", (one,), Position("kernel_log", BOOT, str(number))))
    if len(codes) > 1:
        audit = AuditRecord(time=time.time(), uid=0, pid=1, verb="", target="2", reason="test")
        await pipeline.actions.clear_finding(2, "root", audit)
        await pipeline.actions.accept_finding(4, "root", audit, 1e9)
    shutil.copytree(folder, killed)
    judging.cancel()
    await pipeline.close()
    lane.close()


@pytest.fixture(scope="module")
def work() -> Iterator[Path]:
    folder = Path(
        tempfile.mkdtemp(
            prefix="vitald-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        )
    )
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def bases(work: Path) -> list[Base]:
    made = []
    for name, codes in FAULTS.items():
        clean, killed, former = (work / f"{name} {how}" for how in ("stopped", "killed", "former"))
        asyncio.run(fill(clean, killed, former, codes))
        (killed / f"{FILE}-shm").unlink()
        for folder in (clean, killed):
            made.append(
                Base(folder.name, folder, former, start(shutil.copytree(folder, work / "as it is")))
            )
            shutil.rmtree(work / "as it is")
    return made


def test_what_the_ledgers_say_undamaged(bases: list[Base]) -> None:
    statuses = {
        base.name: base.found.verdict.status.value
        for base in bases
        if base.found.verdict is not None
    }
    assert statuses == {
        "much stopped": "unhealthy",
        "much killed": "unhealthy",
        "little stopped": "degraded",
        "little killed": "degraded",
    }
    assert all(base.found.positions == {"kernel_log", "nvml"} for base in bases)


# --- ways to damage it. Each gets the folder, how it was before, and the chance.

Way = Callable[[Path, Path, random.Random], object]


def some_file(folder: Path, chance: random.Random) -> Path:
    return chance.choice(sorted(path for path in folder.iterdir() if path.stat().st_size))


def flipped(path: Path, chance: random.Random, times: int, most: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(times):
        data[chance.randrange(min(len(data), most or len(data)))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def bit(folder: Path, former: Path, chance: random.Random) -> None:
    flipped(some_file(folder, chance), chance, 1)


def bits(folder: Path, former: Path, chance: random.Random) -> None:
    flipped(some_file(folder, chance), chance, 20)


def header(folder: Path, former: Path, chance: random.Random) -> None:
    flipped(some_file(folder, chance), chance, 1, 100)


def cut(folder: Path, former: Path, chance: random.Random) -> None:
    path = some_file(folder, chance)
    os.truncate(path, chance.randrange(path.stat().st_size))


def torn_log(folder: Path, former: Path, chance: random.Random) -> None:
    """Cut at a frame, or in one, or gone; a ledger that has none is cut."""
    log = folder / f"{FILE}-wal"
    if not log.exists():
        return cut(folder, former, chance)
    frames = (log.stat().st_size - 32) // (PAGE + 24)
    ends = (
        0,
        32,
        32 + chance.randrange(frames) * (PAGE + 24),
        chance.randrange(log.stat().st_size),
    )
    os.truncate(log, chance.choice(ends))
    return None


def pages(path: Path) -> int:
    return max(1, path.stat().st_size // PAGE)


def with_page(path: Path, number: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(number * PAGE)
        file.write(content)


def zeroed(folder: Path, former: Path, chance: random.Random) -> None:
    path = some_file(folder, chance)
    with_page(path, chance.randrange(pages(path)), bytes(PAGE))


def noise(folder: Path, former: Path, chance: random.Random) -> None:
    path = some_file(folder, chance)
    with_page(path, chance.randrange(pages(path)), chance.randbytes(chance.randrange(1, 9000)))


def page_of(path: Path, number: int) -> bytes:
    return path.read_bytes()[number * PAGE : (number + 1) * PAGE]


def swapped(folder: Path, former: Path, chance: random.Random) -> None:
    path = some_file(folder, chance)
    one, other = (chance.randrange(pages(path)) for _ in range(2))
    first, second = page_of(path, one), page_of(path, other)
    with_page(path, one, second)
    with_page(path, other, first)


def another_page(folder: Path, former: Path, chance: random.Random) -> None:
    path = some_file(folder, chance)
    with_page(path, chance.randrange(pages(path)), page_of(path, chance.randrange(pages(path))))


def earlier_page(folder: Path, former: Path, chance: random.Random) -> None:
    """A write that the disk lost: the page is as it was before."""
    was = former / FILE
    number = chance.randrange(min(pages(was), pages(folder / FILE)))
    with_page(folder / FILE, number, page_of(was, number))


def earlier_file(folder: Path, former: Path, chance: random.Random) -> None:
    for path in folder.iterdir():
        if path.name.startswith(FILE):
            path.unlink()
    shutil.copy(former / FILE, folder / FILE)


def removed(folder: Path, former: Path, chance: random.Random) -> None:
    some_file(folder, chance).unlink()


SQL = [
    *(
        f"UPDATE findings SET {what}"
        for what in (
            *("fields = 'null'", "fields = '[]'", "fields = '7'", "base = '{}'"),
            *("base = 'null'", "base = replace(base, 'reboot_node', 'observe')"),
            *("base = replace(base, 'now', 'maintenance')", "implied = base"),
            *("state = 'cleared', cleared_at = 1", "state = 'closed'"),
            *("component = 'toaster/1'", "component = 'gpu/'", "component = ''", "id = -id"),
            *("count = -1", "count = 'many'", "since = 9e999", "last = 1e300"),
            *("since = 'today'", "code = ''", "code = 'xid/39'", "title = X'ff'"),
            *("incident = -4", "quiet_s = 1", "simulated_until = 1"),
            *("sum = NULL", "sum = 0", "sum = -1", "accepted = '{}'", "accepted = '[]'"),
            *("boot_id = 'boot-b'", "source = 7", "raw = ''"),
        )
    ),
    *("DELETE FROM findings", "DELETE FROM findings WHERE id = 1", "DELETE FROM seal"),
    *("UPDATE seal SET opened = 0", "UPDATE seal SET commits = 0", "DROP TABLE findings"),
    *("DROP TABLE seal", "DROP TABLE positions", "DROP INDEX findings_open"),
    *("PRAGMA user_version = 0", "PRAGMA user_version = 70"),
    *(
        f"UPDATE {what}"
        for what in (
            *("incidents SET members = '[]'", "incidents SET members = 'null'"),
            *("incidents SET last = 9e999", "incidents SET usec = -5"),
            *("marks SET kind = 'beer'", "marks SET time = 'now'"),
            *("devices SET component = 'gpu'", "devices SET uuid = 5"),
            *("resolved SET time = 9e999", "resolved SET code = ''", "positions SET cursor = 7"),
            *("positions SET boot_id = 'boot-b'", "positions SET cursor = '100000'"),
            *("events SET fields = 'null'", "events SET code = 'xid/1'"),
        )
    ),
    *(
        f"DELETE FROM {what}"
        for what in (
            *("incidents", "marks", "devices", "resolved", "positions", "events", "transitions"),
        )
    ),
]


def nonsense(folder: Path, former: Path, chance: random.Random) -> None:
    with (
        closing(sqlite3.connect(folder / FILE, isolation_level=None)) as db,
        suppress(sqlite3.IntegrityError),
    ):
        db.execute(chance.choice(SQL))


WAYS: list[Way] = [
    *(bit, bits, header, cut, torn_log, zeroed, noise, swapped, another_page),
    *(earlier_page, earlier_file, removed, nonsense, nonsense, bit, zeroed),
]


def is_milder(before: Found, after: Found) -> bool:
    if after.unknown or after.verdict is None or before.verdict is None:
        return False
    was, now = before.verdict, after.verdict
    if MILD.index(now.status) < MILD.index(was.status):
        return True
    # Of a node that stays unhealthy the flags may be fewer only where it is told that findings are
    # lost.
    flags = now.action.rank >= was.action.rank and now.reboot_required >= was.reboot_required
    return LOST not in after.codes and not (
        flags and now.replacement_required >= was.replacement_required
    )


def damaged(base: Base, folder: Path, seed: int) -> str:
    shutil.copytree(base.folder, folder)
    chance = random.Random(seed)
    way = WAYS[seed % len(WAYS)]
    way(folder, base.former, chance)
    return way.__name__


def outcome(before: Found, after: Found) -> str:
    if after.unknown:
        return "unknown"
    return (
        "lost, and still unhealthy"
        if LOST in after.codes
        else "replaced"
        if REPLACED in after.codes
        else "same"
    )


def test_no_damage_makes_the_verdict_milder(bases: list[Base], work: Path) -> None:
    """Nor does the start after that one, which finds the ledger that was begun anew."""
    became: Counter[str] = Counter()
    wrong = []
    for seed in range(CORRUPTIONS):
        base, folder = bases[seed // len(WAYS) % len(bases)], work / "damaged"
        how = damaged(base, folder, seed)
        for after in (start(folder), start(folder)):
            became[outcome(base.found, after)] += 1
            if is_milder(base.found, after):
                wrong.append((seed, base.name, how, after.verdict, after.codes))
        shutil.rmtree(folder)
    assert wrong == []
    assert (
        min(became[what] for what in ("same", "replaced", "unknown", "lost, and still unhealthy"))
        >= CORRUPTIONS // 50
    )


def test_no_row_that_makes_no_sense_is_believed(bases: list[Base], work: Path) -> None:
    wrong = []
    for base in bases:
        for sql in SQL:
            folder = shutil.copytree(base.folder, work / "damaged")
            with (
                closing(sqlite3.connect(folder / FILE, isolation_level=None)) as db,
                suppress(sqlite3.IntegrityError),
            ):
                db.execute(sql)
            if is_milder(base.found, start(folder)):
                wrong.append((base.name, sql))
            shutil.rmtree(folder)
    assert wrong == []


def without_its_findings(base: Base, folder: Path) -> Path:
    shutil.copytree(base.folder, folder)
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as db:
        db.execute("DELETE FROM findings WHERE id = 1")
    return folder


def test_what_is_lost_is_read_again_and_what_is_whole_is_not(
    bases: list[Base], tmp_path: Path
) -> None:
    """Whole, its lines would be counted twice. What a source remembers of its own goes on in either
    case.
    """
    lost = start(without_its_findings(bases[0], tmp_path / "lost"))
    assert LOST in lost.codes and lost.positions == {"nvml"}
    folder = shutil.copytree(bases[0].folder, tmp_path / "whole")
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as db:
        db.execute("UPDATE resolved SET code = 'xid/1'")
    whole = start(folder)
    assert (
        REPLACED in whole.codes
        and LOST not in whole.codes
        and whole.positions == {"kernel_log", "nvml"}
    )
    assert whole.codes - {REPLACED} == bases[0].found.codes


@pytest.mark.parametrize("number", range(4))
def test_killed_before_what_was_rescued_is_stored(
    bases: list[Base], tmp_path: Path, number: int
) -> None:
    """The damaged ledger has been set aside, and the one that was begun anew is empty."""
    folder = without_its_findings(bases[number], tmp_path / "damaged")

    async def begun() -> None:
        lane = WorkerThread("test")
        await Pipeline(
            Ledger(folder), lane, NodeState(BOOT, 0.0, device_reset=False), KNOWN, BOOT
        ).ledger_writer.open_ledger()
        lane.close()

    asyncio.run(begun())
    assert list(folder.glob(f"{FILE}.damaged-*"))
    for _ in range(2):
        after = start(folder)
        assert after.unknown and LOST in after.codes


def test_a_ledger_that_cannot_be_read_makes_the_node_unknown(
    bases: list[Base], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it can be: then what was open stands again. Where it turns out to be damaged, that is
    told.
    """

    def fails(self: Ledger, **_: object) -> None:
        raise LedgerError("out of reach")

    async def late(folder: Path) -> tuple[Found, Found]:
        lane, board = WorkerThread("test"), NodeState(BOOT, 0.0, device_reset=False)
        pipeline = Pipeline(Ledger(folder), lane, board, KNOWN, BOOT)
        with monkeypatch.context() as patched:
            patched.setattr(Ledger, "open", fails)
            patched.setattr(Ledger, "rescue", lambda self: None)
            await pipeline.open(KNOWN)
        first = Found(board.verdict(), frozenset(one.code for one in board.findings), frozenset())
        judging = asyncio.create_task(pipeline.run())
        pipeline.ledger_writer._retry_at = 0.0
        await pipeline.store(
            Batch("kernel_log", (event("xid/45", gpu(9), time.time(), identity="new"),))
        )
        await pipeline.wait_until_stored()
        judging.cancel()
        found = Found(board.verdict(), frozenset(one.code for one in board.findings), frozenset())
        await pipeline.close()
        lane.close()
        return first, found

    first, then = asyncio.run(late(shutil.copytree(bases[0].folder, tmp_path / "sound")))
    assert first.unknown and "vitald/ledger_unread" in first.codes
    assert then.codes >= bases[0].found.codes and "vitald/ledger_unread" not in then.codes
    assert not is_milder(bases[0].found, then)
    _, then = asyncio.run(late(without_its_findings(bases[0], tmp_path / "damaged")))
    assert LOST in then.codes and "vitald/ledger_unread" not in then.codes
