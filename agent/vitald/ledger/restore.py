"""
Reads from a ledger what a daemon needs when it starts, or what is left of it in a damaged file.

Owns     which rows a start reads, and how it notices that some of them are missing.
Refuses  writing, and deciding what follows from damage: that is `store` and its callers.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import vitald.ledger.disk as disk
import vitald.ledger.schema as schema
from vitald.ledger.errors import LedgerDamaged
from vitald.ledger.table import UNREADABLE, RowDamaged, Table, combine_sums
from vitald.model.component import Component
from vitald.model.finding import Finding, Memory
from vitald.model.source import Position

T = TypeVar("T")

_MAX_ENDED = 1000  # closed findings whose cause of closing is read
_JOINABLE_S = 600.0  # longest time after its end in which an incident may still be joined
_UNREADABLE = (sqlite3.Error, OSError, *UNREADABLE)


@dataclass(frozen=True, slots=True)
class RestoredState:
    """Everything that a start reads from the ledger.

    `ended` holds the cause with which the last finding of each fault was closed, by component,
    code and whether it was a drill. `lost` names the tables that could not be read completely, or
    may have had more rows.
    """

    memory: Memory
    positions: dict[str, Position]
    ended: dict[tuple[Component, str, bool], str] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()


class RowReader:
    """Runs the queries of a start: all rows, or as many as can be read of a damaged ledger.

    `lost` names the tables that were not read completely.
    """

    def __init__(self, db: sqlite3.Connection, *, damaged: bool = False) -> None:
        self._db = db
        self.damaged = damaged
        self.lost: set[str] = set()

    def read_table(self, table: Table[T], where: str = "", *values: float) -> tuple[T, ...]:
        """The values of these rows. The table is added to `lost` if one is unreadable."""
        made, complete = self.read_rows(table.read, table.select(where), *values)
        if not complete:
            self.lost.add(table.name)
        return made

    def read_rows(
        self, make: Callable[[sqlite3.Row], T], sql: str, *values: float
    ) -> tuple[tuple[T, ...], bool]:
        """The result of `make` for each row, and whether all could be read."""
        if not self.damaged:
            return tuple(map(make, self._db.execute(sql, values))), True
        return self._salvage_rows(make, sql, *values)

    def read_number(self, sql: str) -> float:
        """The only value of a query; 0 if it cannot be read."""
        found, _ = self.read_rows(_read_first, sql)
        return max(found, default=0.0)

    def _salvage_rows(
        self, make: Callable[[sqlite3.Row], T], sql: str, *values: float
    ) -> tuple[tuple[T, ...], bool]:
        """The readable rows, and whether these are all of them.

        The table is read from both ends, because a damaged page hides the rows behind it.
        """
        made: dict[tuple[object, ...], T] = {}
        complete = True
        for query in (sql, f"{sql} DESC" if " ORDER BY " in sql else sql):
            try:
                for row in self._db.execute(query, values):
                    try:
                        made[tuple(row)] = make(row)
                    except _UNREADABLE:
                        complete = False
            except sqlite3.Error:
                complete = False
        return tuple(made.values()), complete


def read_verified(path: Path, db: sqlite3.Connection, count: disk.CommitCount) -> RestoredState:
    """Everything that a start needs. Raises LedgerDamaged if any of it is damaged or missing.

    The integrity of indexes is checked first: an index without one of its rows would hide an open
    finding.
    """
    for table in schema.STATE:
        problem = db.execute(f"PRAGMA integrity_check('{table.name}')").fetchone()[0]
        if problem != "ok":
            raise LedgerDamaged(f"{path}: {problem}")
    try:
        remembered = _read_all(RowReader(db), count)
    except UNREADABLE as error:
        raise LedgerDamaged(f"{path}: a row cannot be read: {error!r}") from error
    if remembered.lost:
        raise LedgerDamaged(f"{path}: rows of {', '.join(sorted(remembered.lost))} are missing")
    return remembered


def rescue_state(path: Path, count: disk.CommitCount, *, damaged: bool) -> RestoredState | None:
    """What can be read of a ledger that cannot be opened for writing. None if nothing can.

    All of it or nothing; with `damaged` each readable row, and `lost` names the incomplete tables.
    """
    if disk.describe_irregular(path):
        return None
    # On a read-only disk SQLite cannot create the shared memory that a write-ahead log needs; a
    # copy elsewhere can be read.
    for attempt in (_read_in_place, _read_copy):
        with suppress(*_UNREADABLE):
            return attempt(path, count, damaged=damaged)
    return None


def _read_in_place(path: Path, count: disk.CommitCount, *, damaged: bool) -> RestoredState:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with closing(_connect(uri, damaged=damaged)) as db:
        return _read_readable(path, db, count, damaged=damaged)


def _read_copy(path: Path, count: disk.CommitCount, *, damaged: bool) -> RestoredState:
    """As the file is, in a temporary copy."""
    with tempfile.TemporaryDirectory(prefix="vitald-") as folder:
        for suffix in ("", "-wal"):
            if (part := path.with_name(path.name + suffix)).exists():
                shutil.copyfile(part, Path(folder) / part.name)
        with closing(_connect(f"file:{folder}/{path.name}", damaged=damaged)) as db:
            return _read_readable(path, db, count, damaged=damaged)


def _connect(uri: str, *, damaged: bool) -> sqlite3.Connection:
    db = sqlite3.connect(uri, uri=True, isolation_level=None)
    db.row_factory = sqlite3.Row
    try:
        if damaged:  # an index whose definition is unreadable must not hide the tables
            db.execute("PRAGMA writable_schema = ON")
    except BaseException:
        db.close()
        raise
    return db


def _read_readable(
    path: Path, db: sqlite3.Connection, count: disk.CommitCount, *, damaged: bool
) -> RestoredState:
    remembered = _read_all(RowReader(db, damaged=damaged), count)
    if remembered.lost and not damaged:
        raise RowDamaged(f"{path}: not all of it can be read")
    return remembered


def _read_all(reader: RowReader, count: disk.CommitCount) -> RestoredState:
    # The count comes first: a daemon that writes the ledger meanwhile increases it.
    counted = count.read()
    summed = _read_open_findings(reader)
    findings = tuple(sorted((finding for finding, _ in summed), key=lambda finding: finding.id))
    memory = _read_memory(reader, findings)
    positions = reader.read_table(schema.POSITIONS)
    ended = _read_ended(reader)
    if not _is_complete(reader, [sum_ for _, sum_ in summed], counted):
        reader.lost.add("findings")
    return RestoredState(
        memory,
        {position.source: position for position in positions},
        ended,
        frozenset(reader.lost),
    )


def _read_open_findings(reader: RowReader) -> tuple[tuple[Finding, int], ...]:
    """The open findings with the checksums of their rows."""
    # In a damaged ledger an index may lack a row.
    index = "NOT INDEXED " if reader.damaged else ""
    query = schema.FINDINGS.select(f"{index}WHERE state != 'cleared' ORDER BY id")
    made, complete = reader.read_rows(_read_finding_and_sum, query)
    if not complete:
        reader.lost.add(schema.FINDINGS.name)
    return made


def _read_memory(reader: RowReader, findings: tuple[Finding, ...]) -> Memory:
    read, read_number = reader.read_table, reader.read_number
    last = read_number("SELECT coalesce(max(last), 0) FROM incidents")
    finding_id = read_number("SELECT coalesce(max(id), 0) FROM findings")
    incident_id = read_number("SELECT coalesce(max(id), 0) FROM incidents")
    joinable = "WHERE closed_at IS NULL OR last > ?"
    return Memory(
        findings=findings,
        incidents=read(schema.INCIDENTS, joinable, last - _JOINABLE_S),
        marks=read(schema.MARKS, "ORDER BY id"),
        devices=read(schema.DEVICES),
        resolved=read(schema.RESOLVED, "ORDER BY id"),
        next_finding=int(max((finding_id, *(item.id for item in findings)))) + 1,
        next_incident=int(max((incident_id, *(item.incident for item in findings)))) + 1,
    )


def _read_ended(reader: RowReader) -> dict[tuple[Component, str, bool], str]:
    latest = f"WHERE state = 'cleared' ORDER BY id DESC LIMIT {_MAX_ENDED}"
    cleared, complete = reader.read_rows(schema.FINDINGS.read, schema.FINDINGS.select(latest))
    if not complete:
        reader.lost.add("cleared")
    return {
        (finding.component, finding.code, finding.is_simulated): finding.cleared_by or ""
        for finding in reversed(cleared)
    }


def _is_complete(reader: RowReader, sums: Sequence[int], counted: int) -> bool:
    """Whether these rows are the open findings as of the last commit: none missing, none older."""
    seals, _ = reader.read_rows(schema.SEAL.read, schema.SEAL.select())
    return len(seals) == 1 and seals[0].opened == combine_sums(sums) and seals[0].commits >= counted


def _read_first(row: sqlite3.Row) -> float:
    value: float = row[0]
    return value


def _read_finding_and_sum(row: sqlite3.Row) -> tuple[Finding, int]:
    return schema.FINDINGS.read(row), row["sum"]
