"""
The store: one SQLite file, written by one lane.

SQLite in WAL mode. A commit of events is synchronous (FULL): it is on disk before anything shows it. A reading position
alone is not (NORMAL): it survives a killed process, and a power cut begins a new boot anyway. All methods block and
belong in a lane; each raises LedgerError, never sqlite3's own errors. The open findings are stored as they stand, so
that starting costs the open ones, not the history.

Owns     the file from the first byte to its being set aside: opening, what a commit stores, what a start remembers, what
         is trimmed, what can be rescued.
Refuses  answering questions about the past: readers have connections of their own (`queries`).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

import agent.ledger.rows as rows
import agent.ledger.schema as schema
from agent.diagnostics.report import Run
from agent.model import Changes, Event, Memory, Transition
from agent.sources.source import Position

T = TypeVar("T")

FILE = "ledger.db"
_CACHE_KIB = 2048
_TRIM_ROWS = 5000
_JOINABLE_S = 600.0  # an incident that is over may be joined for so long at most
_SETTLED = 4096  # faults that were dealt with: as many as the judge remembers
_MARKS_S = 90 * 86400.0  # longer than any ladder's window or the score's
_UNREADABLE = (sqlite3.Error, OSError, ValueError, TypeError, KeyError)


class LedgerError(Exception):
    """The store cannot be read or written; the text says which file and why."""


class LedgerDamaged(LedgerError):
    """The file is there but is no sound database."""


class LedgerNewer(LedgerError):
    """The file was written by a later version; it is left as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """A change that somebody asked for."""

    time: float
    uid: int
    pid: int
    verb: str
    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class Entry:
    """What is committed together: events, what they changed, how far the source has read, the runs that they come from, who asked."""

    events: tuple[Event, ...] = ()
    transitions: tuple[Transition, ...] = ()
    changes: Changes = Changes()
    position: Position | None = None
    audit: Audit | None = None
    runs: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a start needs to know."""

    memory: Memory
    positions: dict[str, Position]


def unsaved(entries: Iterable[Entry]) -> int:
    """How many events wait in these entries."""
    return sum(len(entry.events) for entry in entries)


class Ledger:
    """The store in one directory. Not thread-safe: one lane writes; readers open connections of their own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._db: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open for writing, creating and migrating as needed. Raises LedgerError."""
        self.close()
        self._guard(self._open)

    def _open(self) -> None:
        self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        os.close(fd)
        db = sqlite3.connect(self.path, timeout=2.0, isolation_level=None, check_same_thread=False)
        db.row_factory = sqlite3.Row
        try:
            version = schema.version(db)
            if version > schema.VERSION:
                raise LedgerNewer(
                    f"{self.path}: written by a newer vitald (schema {version}, this one knows {schema.VERSION}); left as it is"
                )
            if version == 0:
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("PRAGMA synchronous = FULL")
            schema.migrate(db)
        except BaseException:
            db.close()
            raise
        self._db = db

    def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            try:
                db.close()
            except sqlite3.Error as error:
                raise LedgerError(f"{self.path}: {error}") from error

    def remembered(self) -> Remembered:
        """All that a start needs. Costs what is open and the devices' records, not the history."""
        return self._guard(self._remembered)

    def _remembered(self) -> Remembered:
        db = self._connection()
        last = db.execute("SELECT coalesce(max(last), 0) FROM incidents").fetchone()[0]
        findings = db.execute(f"SELECT {schema.FINDING} FROM findings WHERE state != 'cleared' ORDER BY id")
        incidents = db.execute(f"SELECT {schema.INCIDENT} FROM incidents WHERE closed_at IS NULL OR last > ?", (last - _JOINABLE_S,))
        memory = Memory(
            findings=tuple(map(rows.finding_of, findings)),
            incidents=tuple(map(rows.incident_of, incidents)),
            marks=tuple(map(rows.mark_of, db.execute(f"SELECT {schema.MARK} FROM marks ORDER BY id"))),
            devices=tuple(map(rows.device_of, db.execute(f"SELECT {schema.DEVICE} FROM devices"))),
            settled=tuple(map(rows.settled_of, db.execute(f"SELECT {schema.SETTLED} FROM settled ORDER BY id"))),
            next_finding=db.execute("SELECT coalesce(max(id), 0) + 1 FROM findings").fetchone()[0],
            next_incident=db.execute("SELECT coalesce(max(id), 0) + 1 FROM incidents").fetchone()[0],
        )
        read = map(rows.position_of, db.execute(f"SELECT {schema.POSITION} FROM positions"))
        positions = {position.source: position for position in read}
        return Remembered(memory, positions)

    def commit(self, entries: Sequence[Entry]) -> None:
        """Store entries in one transaction, on disk when it returns. An event stored before is not stored again."""
        self._guard(lambda: self._commit(entries))

    def _commit(self, entries: Sequence[Entry]) -> None:
        db = self._connection()
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        try:
            for entry in entries:
                added = db.executemany(schema.ADD_EVENT, map(rows.event_row, entry.events)).rowcount
                latest = {transition.finding.id: transition.finding for transition in entry.transitions}
                db.executemany(schema.PUT_FINDING, map(rows.finding_row, latest.values()))
                db.executemany(schema.ADD_TRANSITION, [rows.transition_row(one) for one in entry.transitions if one.cause])
                # Tried again after an answer that came too late, it must not shift a second time what it shifted.
                again = bool(entry.events) and not added
                _store_changes(db, replace(entry.changes, shifted=0.0) if again else entry.changes)
                db.executemany(schema.PUT_RUN, map(rows.run_row, entry.runs))
                if entry.position is not None:
                    db.execute(schema.PUT_POSITION, rows.position_row(entry.position))
                if entry.audit is not None:
                    db.execute(schema.ADD_AUDIT, asdict(entry.audit))
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def known(self, identities: Sequence[str]) -> set[str]:
        """Which of these events are stored already."""
        return self._guard(lambda: self._known(identities))

    def _known(self, identities: Sequence[str]) -> set[str]:
        db, found = self._connection(), set[str]()
        for begin in range(0, len(identities), 500):
            part = identities[begin : begin + 500]
            marks = ",".join("?" * len(part))
            found.update(row[0] for row in db.execute(f"SELECT identity FROM events WHERE identity IN ({marks})", part))
        return found

    def note(self, position: Position) -> None:
        """Store a position after records that meant nothing. Survives a killed process, not a power cut."""

        def write() -> None:
            db = self._connection()
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(schema.PUT_POSITION, rows.position_row(position))

        self._guard(write)

    def trim(self, now: float, keep_s: float, most_bytes: int) -> int:
        """Drop the oldest events beyond age or size, a few thousand at a time; open findings stay. Returns how many went."""
        return self._guard(lambda: self._trim(now, keep_s, most_bytes))

    def _trim(self, now: float, keep_s: float, most_bytes: int) -> int:
        db = self._connection()
        oldest = now - keep_s
        dropped = db.execute("DELETE FROM events WHERE id IN (SELECT id FROM events WHERE time < ? LIMIT ?)", (oldest, _TRIM_ROWS)).rowcount
        if not dropped and _used_bytes(db) > most_bytes:
            first, last = db.execute("SELECT min(id), max(id) FROM events").fetchone()
            if first is not None and first < last:
                dropped = db.execute("DELETE FROM events WHERE id < ?", (first + min(_TRIM_ROWS, (last - first) // 4 + 1),)).rowcount
                oldest = max(oldest, db.execute("SELECT time FROM events ORDER BY id LIMIT 1").fetchone()[0])
        if dropped:
            db.execute("DELETE FROM transitions WHERE time < ? AND finding IN (SELECT id FROM findings WHERE state = 'cleared')", (oldest,))
            db.execute("DELETE FROM findings WHERE state = 'cleared' AND cleared_at < ?", (oldest,))
            db.execute("DELETE FROM incidents WHERE closed_at < ?", (oldest,))
            db.execute("DELETE FROM marks WHERE time < ?", (now - _MARKS_S,))
            db.execute("DELETE FROM runs WHERE ended < ?", (oldest,))
            db.executescript(f"PRAGMA incremental_vacuum({_TRIM_ROWS})")  # execute() would step once and free one page
        return dropped

    def forget_output(self, before: float) -> None:
        """Drop what programs printed in runs that ended before; what they came to stays."""
        self._guard(lambda: self._connection().execute("UPDATE runs SET raw = NULL WHERE ended < ? AND raw IS NOT NULL", (before,)))

    def size(self) -> int:
        """Bytes of the store on disk, the write-ahead log included."""
        return sum(path.stat().st_size for path in self.path.parent.glob(f"{FILE}*") if path.suffix in (".db", ".db-wal", ".db-shm"))

    def set_aside(self, now: float) -> Path:
        """Move a damaged store out of the way, so that a new one can begin. Returns its new name."""
        self.close()
        aside = self.path.with_name(f"{FILE}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}")
        try:
            self.path.replace(aside)
            for suffix in ("-wal", "-shm"):
                self.path.with_name(FILE + suffix).unlink(missing_ok=True)
        except OSError as error:
            raise LedgerError(f"{self.path}: {error.strerror}") from error
        return aside

    def rescue(self) -> Remembered | None:
        """What can still be read of a store that cannot be opened for writing. None if nothing."""
        # On a read-only disk SQLite cannot make the shared memory that a write-ahead log needs; a copy elsewhere can be read.
        with suppress(*_UNREADABLE):
            return self._remembered_in(f"file:{self.path}?mode=ro")
        with suppress(*_UNREADABLE), tempfile.TemporaryDirectory(prefix="vitald-") as folder:
            for suffix in ("", "-wal"):
                if (part := self.path.with_name(FILE + suffix)).exists():
                    shutil.copyfile(part, Path(folder) / part.name)
            return self._remembered_in(f"file:{folder}/{FILE}", migrate=True)
        return None

    def _remembered_in(self, uri: str, *, migrate: bool = False) -> Remembered:
        try:
            with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
                db.row_factory = sqlite3.Row
                if migrate:  # an older vitald's
                    schema.migrate(db)
                self._db = db
                return self._remembered()
        finally:
            self._db = None

    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise LedgerError(f"{self.path}: not open")
        return self._db

    def _guard(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except sqlite3.DatabaseError as error:
            # A subclass (OperationalError: full, read-only, locked) is an obstacle; DatabaseError itself is damage.
            damaged = type(error) is sqlite3.DatabaseError or "malformed" in str(error)
            raise (LedgerDamaged if damaged else LedgerError)(f"{self.path}: {error}") from error
        except (OSError, sqlite3.Error, ValueError, TypeError, OverflowError) as error:  # the latter: a value that cannot be stored
            raise LedgerError(f"{self.path}: {getattr(error, 'strerror', None) or error}") from error


def _store_changes(db: sqlite3.Connection, changes: Changes) -> None:
    if changes.shifted:
        db.execute("UPDATE OR REPLACE marks SET time = time + ?", (changes.shifted,))
        db.execute("UPDATE settled SET time = time + ?", (changes.shifted,))
    db.executemany("UPDATE OR IGNORE marks SET device = ? WHERE device = ?", [(new, old) for old, new in changes.renamed])
    db.executemany(schema.PUT_INCIDENT, map(rows.incident_row, changes.incidents))
    db.executemany(schema.ADD_MARK, map(rows.mark_row, changes.marks))
    db.executemany(schema.DROP_MARK, map(rows.mark_row, changes.forgotten))
    db.executemany(schema.PUT_DEVICE, map(rows.device_row, changes.devices))
    if changes.settled:
        db.executemany(schema.PUT_SETTLED, map(rows.settled_row, changes.settled))
        db.execute("DELETE FROM settled WHERE id IN (SELECT id FROM settled ORDER BY id DESC LIMIT -1 OFFSET ?)", (_SETTLED,))


def _used_bytes(db: sqlite3.Connection) -> int:
    pages: int = db.execute("PRAGMA page_count").fetchone()[0] - db.execute("PRAGMA freelist_count").fetchone()[0]
    size: int = db.execute("PRAGMA page_size").fetchone()[0]
    return pages * size
