"""
Queries about the past, for the API and for a replay.

Each opens a read-only connection of its own, so that reading never waits for a commit, nor delays
one. They raise LedgerError, never sqlite3's own errors. A list leaves out damaged rows and counts
them; a single row that is damaged is an error.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from vitald.ledger.errors import LedgerError, refuse_newer
from vitald.ledger.schema import (
    EVENTS,
    FINDINGS,
    INCIDENTS,
    RUNS,
    TRANSITIONS,
    PastTransition,
    read_version,
)
from vitald.ledger.table import UNREADABLE, RowDamaged, Table
from vitald.model.diagnostic import Run
from vitald.model.event import Event, Trust
from vitald.model.finding import Finding, FindingState, Incident
from vitald.model.words import Action

_CACHE_KIB = 512
_READ_S = 3.0  # limit for one query; a cold disk and a rare code can take long
_EVIDENCE = 4  # events of a finding: this number of the first, and of the last


@contextmanager
def _connect(path: Path, options: str = "") -> Iterator[sqlite3.Connection]:
    if path.exists() and not path.is_file():  # opening a named pipe would block
        raise LedgerError(f"{path}: is no plain file")
    try:
        with closing(
            sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro{options}",
                uri=True,
                timeout=1.0,
                isolation_level=None,
            )
        ) as db:
            db.row_factory = sqlite3.Row
            yield db
    except (sqlite3.Error, *UNREADABLE) as error:
        raise LedgerError(f"{path}: {error}") from error


T = TypeVar("T")


class RowList(list[T]):
    """The result of a query. `damaged`: number of damaged rows that are left out; `last`: id of the
    last row.
    """

    damaged = 0
    last = 0

    @classmethod
    def from_rows(cls, rows: Iterable[sqlite3.Row], make: Callable[[sqlite3.Row], T]) -> RowList[T]:
        listed: RowList[T] = cls()
        for row in rows:
            try:
                listed.append(make(row))
            except UNREADABLE:
                listed.damaged += 1
        return listed


def is_ledger(path: Path) -> bool:
    """Whether the file is an SQLite database. Raises OSError."""
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class PastQuery:
    """A selection of events, or of changes of findings. `after` is the id of the last one already
    read, `before` that of the first, `since` a time in seconds since the epoch; the others narrow
    it.
    """

    after: int = 0
    before: int | None = None
    since: float | None = None
    component: str | None = None
    code: str | None = None
    kind: str | None = None
    limit: int = 100
    newest: bool = False  # the last `limit` instead of the first


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event with its id in the ledger, and the records that continue it."""

    id: int
    event: Event
    followed_by: tuple[str, ...] = ()


def read_events(path: Path, query: PastQuery) -> RowList[StoredEvent]:
    """Events in the ledger's order."""
    narrow, values = _narrow(query)
    ids, wanted = _limit_ids(query)
    where = ["follows IS NULL", *ids, *narrow]
    wanted += values
    if query.since is not None:
        # By the index on time first; ids follow time except for records found at a start, hence
        # the margin.
        where.append(
            "time >= ? AND id > coalesce((SELECT id FROM events WHERE time >= ? ORDER BY time LIMIT"
            " 1), 0) - 5000"
        )
        wanted += [query.since, query.since]
    order = "DESC" if query.newest else "ASC"
    with _connect(path) as db:
        sql = EVENTS.select(f"WHERE {' AND '.join(where)} ORDER BY id {order} LIMIT ?", also=", id")
        _limit_time(db)
        rows = db.execute(sql, (*wanted, query.limit)).fetchall()
        stored = RowList.from_rows(rows, lambda row: _read_stored(db, row))
    if query.newest:
        stored.reverse()
    stored.last = rows[-1]["id"] if rows else 0
    return stored


def _limit_ids(query: PastQuery) -> tuple[list[str], list[object]]:
    """Conditions on the id, and their values."""
    if query.before is None:
        return ["id > ?"], [query.after]
    return ["id > ?", "id < ?"], [query.after, query.before]


def _narrow(query: PastQuery) -> tuple[list[str], list[object]]:
    """Conditions on the columns that events and findings have, and their values."""
    columns = {"component": query.component, "code": query.code, "kind": query.kind}
    wanted = {column: value for column, value in columns.items() if value is not None}
    return [f"{column} = ?" for column in wanted], [*wanted.values()]


def _limit_time(db: sqlite3.Connection) -> None:
    """A query that takes longer is interrupted and raises an error."""
    db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    end = time.monotonic() + _READ_S
    db.set_progress_handler(lambda: time.monotonic() > end, 20_000)


def _read_stored(db: sqlite3.Connection, row: sqlite3.Row) -> StoredEvent:
    followers = db.execute(
        "SELECT raw FROM events WHERE follows = ? ORDER BY id LIMIT 8", (row["identity"],)
    )
    return StoredEvent(
        row["id"], EVENTS.read(row), tuple(follower["raw"] for follower in followers)
    )


def read_findings(
    path: Path, limit: int, component: str | None = None, code: str | None = None
) -> RowList[Finding]:
    """The findings that were cleared last, newest first."""
    wanted = {"component": component, "code": code}
    narrow = "".join(f" AND {column} = ?" for column, value in wanted.items() if value is not None)
    values = [value for value in wanted.values() if value is not None]
    query = FINDINGS.select(f"WHERE state = 'cleared'{narrow} ORDER BY cleared_at DESC LIMIT ?")
    with _connect(path) as db:
        return RowList.from_rows(db.execute(query, (*values, limit)), FINDINGS.read)


def read_incidents(path: Path, since: float, limit: int) -> RowList[Incident]:
    """The open incidents, and those of events after `since`: the last first."""
    query = (
        "WHERE closed_at IS NULL OR last >= ? ORDER BY closed_at IS NULL DESC, last DESC LIMIT ?"
    )
    with _connect(path) as db:
        return RowList.from_rows(
            db.execute(INCIDENTS.select(query), (since, limit)), INCIDENTS.read
        )


@dataclass(frozen=True, slots=True)
class FindingHistory:
    """Everything that the ledger has about one finding: its transitions, its incident, and its
    events (of many, the first and the last).
    """

    finding: Finding
    transitions: tuple[PastTransition, ...]
    events: tuple[StoredEvent, ...]
    incident: Incident | None


def read_finding_history(path: Path, finding_id: int) -> FindingHistory | None:
    """The history of one finding, open or cleared. None if there is no such finding."""
    with _connect(path) as db:
        finding = _read_by_id(db, FINDINGS, finding_id)
        if finding is None:
            return None
        changed = db.execute(TRANSITIONS.select("WHERE finding = ? ORDER BY id"), (finding_id,))
        transitions = tuple(map(TRANSITIONS.read, changed))
        return FindingHistory(
            finding,
            transitions,
            _read_evidence(db, finding, transitions),
            _read_by_id(db, INCIDENTS, finding.incident),
        )


def _read_by_id(db: sqlite3.Connection, table: Table[T], id_: int | str) -> T | None:
    row = db.execute(table.select("WHERE id = ?"), (id_,)).fetchone()
    return None if row is None else table.read(row)


@dataclass(frozen=True, slots=True)
class FindingChange:
    """A transition with its id in the ledger, its finding as it is now, and the state and action
    that the finding had before it; None where this is the first that the ledger has.
    """

    id: int
    transition: PastTransition
    finding: Finding
    former: tuple[FindingState, Action] | None


@dataclass(frozen=True, slots=True)
class ChangePage:
    """A page of transitions. `newest`: the highest id in the ledger, 0 if it has none."""

    changes: RowList[FindingChange]
    newest: int


def read_changes(path: Path, query: PastQuery) -> ChangePage:
    """Transitions in the ledger's order. Component, code and kind are those of their findings.
    Raises LedgerError.

    One thread commits, and numbers them as it does, so that no lower id appears later.
    """
    narrow, values = _narrow(query)
    where, wanted = _limit_ids(query)
    if narrow:
        where.append(f"finding IN (SELECT id FROM findings WHERE {' AND '.join(narrow)})")
        wanted += values
    if query.since is not None:
        where.append("time >= ?")
        wanted.append(query.since)
    order = "DESC" if query.newest else "ASC"
    with _connect(path) as db:
        _limit_time(db)
        db.execute("BEGIN")  # one snapshot for all that is read
        former = (
            "(SELECT max(id) FROM transitions earlier WHERE earlier.finding = transitions.finding"
            " AND earlier.id < transitions.id)"
        )
        page = f"WHERE {' AND '.join(where)} ORDER BY id {order} LIMIT ?"
        sql = TRANSITIONS.select(page, also=f", id, {former} AS former")
        rows = db.execute(sql, (*wanted, query.limit)).fetchall()
        changes = RowList.from_rows(
            sorted(rows, key=lambda row: int(row["id"])), lambda row: _read_change(db, row)
        )
        highest = db.execute("SELECT coalesce(max(id), 0) FROM transitions").fetchone()[0]
    changes.last = max((row["id"] for row in rows), default=0)
    return ChangePage(changes, highest)


def _read_change(db: sqlite3.Connection, row: sqlite3.Row) -> FindingChange:
    finding = _read_by_id(db, FINDINGS, row["finding"])
    if finding is None:
        raise RowDamaged(f"transition {row['id']}: there is no finding {row['finding']}")
    former = _read_by_id(db, TRANSITIONS, row["former"])
    return FindingChange(
        id=row["id"],
        transition=TRANSITIONS.read(row),
        finding=finding,
        former=None if former is None else (former.state, former.action),
    )


def _read_evidence(
    db: sqlite3.Connection, finding: Finding, transitions: Sequence[PastTransition]
) -> tuple[StoredEvent, ...]:
    first = db.execute(
        "SELECT id FROM events WHERE identity = ?", (transitions[0].event if transitions else None,)
    ).fetchone()
    where = (
        "component = ? AND code = ? AND follows IS NULL AND trust != ? AND (simulated_until IS NOT"
        " NULL) = ? AND id >= ? AND time <= ?"
    )
    values = (
        finding.component.name,
        finding.code,
        Trust.UNTRUSTED.value,
        finding.is_simulated,
        first["id"] if first else 0,
        finding.last + 0.001,
    )
    rows: dict[int, sqlite3.Row] = {}
    for order in ("ASC", "DESC"):
        sql = EVENTS.select(f"WHERE {where} ORDER BY id {order} LIMIT {_EVIDENCE}", also=", id")
        rows.update({row["id"]: row for row in db.execute(sql, values)})
    return tuple(
        RowList.from_rows(
            (row for _, row in sorted(rows.items())), lambda row: _read_stored(db, row)
        )
    )


# Runs without their output
_RUN_COLUMNS = RUNS.columns.replace("raw", "NULL AS raw")


def read_runs(path: Path, limit: int, check: str | None = None) -> RowList[Run]:
    """The last runs of diagnostics, newest first, without their output. Raises LedgerError."""
    where, values = ("WHERE kind = ?", (check, limit)) if check is not None else ("", (limit,))
    with _connect(path) as db:
        return RowList.from_rows(
            db.execute(
                f"SELECT {_RUN_COLUMNS} FROM runs {where} ORDER BY ended DESC LIMIT ?", values
            ),
            RUNS.read,
        )


def read_last_runs(path: Path, each: int) -> RowList[Run]:
    """The last `each` runs of every check and level, oldest first, without their output. Raises
    LedgerError.
    """
    latest = (
        "SELECT *, row_number() OVER (PARTITION BY kind, level ORDER BY ended DESC) AS place FROM"
        " runs"
    )
    with _connect(path) as db:
        return RowList.from_rows(
            db.execute(
                f"SELECT {_RUN_COLUMNS} FROM ({latest}) WHERE place <= ? ORDER BY ended", (each,)
            ),
            RUNS.read,
        )


def read_run(path: Path, run_id: str) -> Run | None:
    """One run, with its output if that is kept. Raises LedgerError."""
    with _connect(path) as db:
        return _read_by_id(db, RUNS, run_id)


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """A ledger at one time: its events in the order in which they were evaluated, and the open
    findings.
    """

    events: Iterator[Event]
    opened: tuple[Finding, ...]
    until: float  # of the last event or transition


@contextmanager
def open_snapshot(path: Path) -> Iterator[LedgerSnapshot]:
    """Read a whole ledger in constant memory, also while a daemon writes it. Raises LedgerError."""
    # A ledger without a writer is left unchanged: no write-ahead log is created beside it.
    quiet = "" if path.with_name(path.name + "-wal").exists() else "&immutable=1"
    try:
        with _connect(path, quiet) as db:
            refuse_newer(path, read_version(db))
            db.execute("BEGIN")  # one snapshot for all that is read
            opened = db.execute(FINDINGS.select("WHERE state != 'cleared'")).fetchall()
            latest = (
                "SELECT max(coalesce((SELECT max(time) FROM events), 0), coalesce((SELECT max(time)"
                " FROM transitions), 0))"
            )
            until: float = db.execute(latest).fetchone()[0]
            rows = db.execute(EVENTS.select("ORDER BY id"))
            yield LedgerSnapshot(map(EVENTS.read, rows), tuple(map(FINDINGS.read, opened)), until)
    except UNREADABLE as error:
        raise LedgerError(f"{path}: {error}") from error
