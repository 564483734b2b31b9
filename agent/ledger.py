"""
What has happened, durably: events, findings, transitions, positions, and who changed what.

SQLite in WAL mode. A commit of events is synchronous (FULL): it is on disk before anything shows it. A reading position
alone is not (NORMAL): it survives a killed process, and a power cut begins a new boot anyway. All methods block and
belong in a lane; each raises LedgerError, never sqlite3's own errors. The open findings are stored as they stand, so
that starting costs the open ones, not the history.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from agent.model import (
    Action,
    Asked,
    Changes,
    Component,
    Device,
    Event,
    Finding,
    FindingState,
    Incident,
    Mark,
    MarkKind,
    Member,
    Memory,
    Transition,
    Trust,
    When,
)
from agent.sources.source import Position

T = TypeVar("T")

FILE = "ledger.db"
_CACHE_KIB = 2048
_TRIM_ROWS = 5000
_EVIDENCE = 4  # of a finding's events, so many of the first and of the last
_READ_S = 3.0  # for one query; a cold disk and a rare code can take long
_JOINABLE_S = 600.0  # an incident that is over may be joined for so long at most
_SETTLED = 4096  # faults that were dealt with: as many as the judge remembers
_MARKS_S = 90 * 86400.0  # longer than any ladder's window or the score's
_UNREADABLE = (sqlite3.Error, OSError, ValueError, TypeError, KeyError)

# One entry a version, applied in order; `user_version` says how many have been.
MIGRATIONS = (
    """
    CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT, identity TEXT NOT NULL UNIQUE, time REAL NOT NULL, source TEXT NOT NULL,
        kind TEXT NOT NULL, code TEXT NOT NULL, component TEXT NOT NULL, boot_id TEXT NOT NULL, trust TEXT NOT NULL,
        follows TEXT, simulated_until REAL, fields TEXT NOT NULL, raw TEXT NOT NULL);
    CREATE INDEX events_time ON events (time);
    CREATE INDEX events_code ON events (code, id);
    CREATE INDEX events_kind ON events (kind, id);
    CREATE INDEX events_component ON events (component, id);
    CREATE INDEX events_follows ON events (follows) WHERE follows IS NOT NULL;
    CREATE TABLE findings (
        id INTEGER PRIMARY KEY, component TEXT NOT NULL, code TEXT NOT NULL, kind TEXT NOT NULL, action TEXT NOT NULL,
        due TEXT NOT NULL, since REAL NOT NULL, last REAL NOT NULL, count INTEGER NOT NULL, boot_id TEXT NOT NULL,
        title TEXT NOT NULL, raw TEXT NOT NULL, fields TEXT NOT NULL, state TEXT NOT NULL, simulated_until REAL,
        cleared_at REAL, cleared_by TEXT);
    CREATE INDEX findings_open ON findings (id) WHERE state = 'open';
    CREATE TABLE transitions (
        id INTEGER PRIMARY KEY, time REAL NOT NULL, finding INTEGER NOT NULL, state TEXT NOT NULL, action TEXT NOT NULL,
        cause TEXT NOT NULL, event TEXT, UNIQUE (finding, time, cause));
    CREATE TABLE positions (source TEXT PRIMARY KEY, boot_id TEXT NOT NULL, cursor TEXT NOT NULL);
    CREATE TABLE audit (id INTEGER PRIMARY KEY, time REAL NOT NULL, uid INTEGER NOT NULL, pid INTEGER NOT NULL, verb TEXT NOT NULL, target TEXT NOT NULL, reason TEXT NOT NULL, UNIQUE (time, uid, pid, verb, target));
    """,
    """
    ALTER TABLE findings ADD COLUMN asked TEXT;
    ALTER TABLE findings ADD COLUMN source TEXT NOT NULL DEFAULT 'kernel_log';
    ALTER TABLE findings ADD COLUMN incident INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE findings ADD COLUMN heard_since REAL NOT NULL DEFAULT 0;
    ALTER TABLE findings ADD COLUMN quiet_s REAL;
    ALTER TABLE findings ADD COLUMN shadow INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE findings ADD COLUMN remedy_at REAL;
    DROP INDEX findings_open;
    CREATE INDEX findings_open ON findings (id) WHERE state != 'cleared';
    CREATE INDEX findings_incident ON findings (incident);
    CREATE INDEX transitions_finding ON transitions (finding);
    CREATE TABLE incidents (
        id INTEGER PRIMARY KEY, since REAL NOT NULL, last REAL NOT NULL, closed_at REAL, story TEXT NOT NULL, simulated INTEGER NOT NULL,
        boot_id TEXT NOT NULL, usec INTEGER, members TEXT NOT NULL);
    CREATE INDEX incidents_last ON incidents (last);
    CREATE INDEX incidents_open ON incidents (id) WHERE closed_at IS NULL;
    CREATE TABLE marks (
        id INTEGER PRIMARY KEY, device TEXT NOT NULL, time REAL NOT NULL, kind TEXT NOT NULL, fault TEXT NOT NULL, detail TEXT NOT NULL,
        UNIQUE (device, time, kind, fault, detail));
    CREATE TABLE devices (component TEXT PRIMARY KEY, uuid TEXT NOT NULL, serial TEXT NOT NULL, reset_at REAL NOT NULL, placed_at REAL NOT NULL);
    """,
    # Before this, the words of `cleared_by` told which ends were evidence.
    """
    CREATE TABLE settled (id INTEGER PRIMARY KEY, component TEXT NOT NULL, code TEXT NOT NULL, time REAL NOT NULL, UNIQUE (component, code));
    INSERT OR REPLACE INTO settled (component, code, time) SELECT component, code, cleared_at FROM (
        SELECT id, component, code, cleared_at FROM findings
        WHERE state = 'cleared' AND simulated_until IS NULL AND NOT shadow AND cleared_at IS NOT NULL
        AND cleared_by NOT LIKE 'the node was rebooted%' AND cleared_by NOT LIKE 'quiet for as long as%'
        AND cleared_by NOT LIKE 'told as a consequence of%' AND cleared_by NOT LIKE 'the catalogue no longer%'
        ORDER BY id DESC LIMIT 1000) ORDER BY id;
    """,
)


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
    """What is committed together: events, what they changed, how far the source has read, who asked."""

    events: tuple[Event, ...] = ()
    transitions: tuple[Transition, ...] = ()
    changes: Changes = Changes()
    position: Position | None = None
    audit: Audit | None = None


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a start needs to know."""

    memory: Memory
    positions: dict[str, Position]


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event with its place in the ledger, and the records that continue it."""

    id: int
    event: Event
    followed_by: tuple[str, ...] = ()


class Ledger:
    """The store in one directory. Not thread-safe: one lane writes; readers open connections of their own (`read_events` and its like)."""

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
        try:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > len(MIGRATIONS):
                raise LedgerNewer(
                    f"{self.path}: written by a newer vitald (schema {version}, this one knows {len(MIGRATIONS)}); left as it is"
                )
            if version == 0:
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("PRAGMA synchronous = FULL")
            _migrate(db)
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
        memory = Memory(
            findings=tuple(_finding(*row) for row in db.execute(f"SELECT {_FINDING} FROM findings WHERE state != 'cleared' ORDER BY id")),
            incidents=tuple(
                _incident(*row)
                for row in db.execute(f"SELECT {_INCIDENT} FROM incidents WHERE closed_at IS NULL OR last > ?", (last - _JOINABLE_S,))
            ),
            marks=tuple(
                Mark(device=device, time=time_, kind=MarkKind(kind), fault=fault, detail=detail)
                for device, time_, kind, fault, detail in db.execute("SELECT device, time, kind, fault, detail FROM marks ORDER BY id")
            ),
            devices=tuple(
                Device(component=Component.parse(component), uuid=uuid, serial=serial, reset_at=reset_at, placed_at=placed_at)
                for component, uuid, serial, reset_at, placed_at in db.execute(
                    "SELECT component, uuid, serial, reset_at, placed_at FROM devices"
                )
            ),
            settled=tuple(
                (Component.parse(component), code, time_)
                for component, code, time_ in db.execute("SELECT component, code, time FROM settled ORDER BY id")
            ),
            next_finding=db.execute("SELECT coalesce(max(id), 0) + 1 FROM findings").fetchone()[0],
            next_incident=db.execute("SELECT coalesce(max(id), 0) + 1 FROM incidents").fetchone()[0],
        )
        positions = {row[0]: Position(*row) for row in db.execute("SELECT source, boot_id, cursor FROM positions")}
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
                added = db.executemany(_INSERT_EVENT, map(_event_row, entry.events)).rowcount
                latest = {transition.finding.id: transition.finding for transition in entry.transitions}
                db.executemany(_UPSERT_FINDING, map(_finding_row, latest.values()))
                db.executemany(
                    "INSERT OR IGNORE INTO transitions (time, finding, state, action, cause, event) VALUES (?, ?, ?, ?, ?, ?)",
                    [
                        (t.time, t.finding.id, t.finding.state.value, t.finding.action.value, t.cause, t.event)
                        for t in entry.transitions
                        if t.cause
                    ],
                )
                # Tried again after an answer that came too late, it must not shift a second time what it shifted.
                again = bool(entry.events) and not added
                _store_changes(db, replace(entry.changes, shifted=0.0) if again else entry.changes)
                if entry.position is not None:
                    db.execute(_UPSERT_POSITION, _position_row(entry.position))
                if (audit := entry.audit) is not None:
                    db.execute(
                        "INSERT OR IGNORE INTO audit (time, uid, pid, verb, target, reason) VALUES (?, ?, ?, ?, ?, ?)",
                        (audit.time, audit.uid, audit.pid, audit.verb, audit.target, audit.reason),
                    )
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
            db.execute(_UPSERT_POSITION, _position_row(position))

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
            db.executescript(f"PRAGMA incremental_vacuum({_TRIM_ROWS})")  # execute() would step once and free one page
        return dropped

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
                if migrate:  # an older vitald's
                    _migrate(db)
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


def _migrate(db: sqlite3.Connection) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        db.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT;")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which events. `after` is the id of the last one already seen, `since` a time; `kind` or `code` narrow it."""

    after: int = 0
    since: float | None = None
    component: str | None = None
    code: str | None = None
    kind: str | None = None
    limit: int = 100
    newest: bool = False  # the last `limit` instead of the first


def read_events(path: Path, query: Query) -> list[StoredEvent]:
    """Events in the ledger's order, on a connection of its own, so that reading never waits for or delays a commit."""
    where, values = ["follows IS NULL", "id > ?"], [query.after]
    wanted: list[object] = list(values)
    for column, value in (("component", query.component), ("code", query.code), ("kind", query.kind)):
        if value is not None:
            where.append(f"{column} = ?")
            wanted.append(value)
    if query.since is not None:
        # By the index on time first; ids follow time but for records found at a start, hence the margin.
        where.append("time >= ? AND id > coalesce((SELECT id FROM events WHERE time >= ? ORDER BY time LIMIT 1), 0) - 5000")
        wanted += [query.since, query.since]
    order = "DESC" if query.newest else "ASC"
    sql = f"SELECT id, {_EVENT} FROM events WHERE {' AND '.join(where)} ORDER BY id {order} LIMIT ?"
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)) as db:
            db.execute(f"PRAGMA cache_size = -{_CACHE_KIB // 4}")
            end = time.monotonic() + _READ_S
            db.set_progress_handler(lambda: time.monotonic() > end, 20_000)  # then it is interrupted, which is an error
            rows = db.execute(sql, (*wanted, query.limit)).fetchall()
            stored = [StoredEvent(row[0], _event(*row[1:]), _followers(db, row[1])) for row in rows]
    except sqlite3.Error as error:
        raise LedgerError(f"{path}: {error}") from error
    return stored[::-1] if query.newest else stored


def is_ledger(path: Path) -> bool:
    """Whether the file is an SQLite store. Raises OSError."""
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class Stored:
    """A ledger at one moment: its events in the order in which they were judged, and what it remembers of them."""

    events: Iterator[Event]
    opened: tuple[Finding, ...]  # those of rules on trial excepted
    until: float  # of the last event or transition


@contextmanager
def reading(path: Path) -> Iterator[Stored]:
    """All of a ledger, in constant memory, also while a daemon writes it. Raises LedgerError."""
    # A ledger that nobody writes is left as it is found: no write-ahead log is made beside it.
    quiet = "" if path.with_name(path.name + "-wal").exists() else "&immutable=1"
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro{quiet}", uri=True, timeout=1.0, isolation_level=None)) as db:
            db.execute("BEGIN")  # one snapshot for all that is read
            opened = db.execute(f"SELECT {_FINDING} FROM findings WHERE state != 'cleared' AND NOT shadow").fetchall()
            latest = "SELECT max(coalesce((SELECT max(time) FROM events), 0), coalesce((SELECT max(time) FROM transitions), 0))"
            until: float = db.execute(latest).fetchone()[0]
            rows = db.execute(f"SELECT {_EVENT} FROM events ORDER BY id")
            yield Stored((_event(*row) for row in rows), tuple(_finding(*row) for row in opened), until)
    except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
        raise LedgerError(f"{path}: {error}") from error


def read_findings(path: Path, limit: int, component: str | None = None, code: str | None = None) -> list[Finding]:
    """The findings that were cleared last, newest first."""
    wanted = {"component": component, "code": code}
    narrow = "".join(f" AND {column} = ?" for column, value in wanted.items() if value is not None)
    values = [value for value in wanted.values() if value is not None]
    sql = f"SELECT {_FINDING} FROM findings WHERE state = 'cleared' AND NOT shadow{narrow} ORDER BY cleared_at DESC LIMIT ?"
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)) as db:
            return [_finding(*row) for row in db.execute(sql, (*values, limit))]
    except sqlite3.Error as error:
        raise LedgerError(f"{path}: {error}") from error


@dataclass(frozen=True, slots=True)
class PastTransition:
    """A transition as it was stored."""

    time: float
    state: str
    action: str
    cause: str
    event: str | None


@dataclass(frozen=True, slots=True)
class Past:
    """All that the ledger knows of one finding: how it changed and why, and the events that it was seen in (of many, the first and the last)."""

    finding: Finding
    transitions: tuple[PastTransition, ...]
    events: tuple[StoredEvent, ...]
    incident: Incident | None


def read_past(path: Path, finding_id: int) -> Past | None:
    """The story of one finding, open or cleared. None where there is no such finding."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)) as db:
            row = db.execute(f"SELECT {_FINDING} FROM findings WHERE id = ?", (finding_id,)).fetchone()
            if row is None:
                return None
            finding = _finding(*row)
            transitions = tuple(
                PastTransition(*one)
                for one in db.execute(
                    "SELECT time, state, action, cause, event FROM transitions WHERE finding = ? ORDER BY id", (finding_id,)
                )
            )
            told = db.execute(f"SELECT {_INCIDENT} FROM incidents WHERE id = ?", (finding.incident,)).fetchone()
            return Past(finding, transitions, _evidence(db, finding, transitions), _incident(*told) if told is not None else None)
    except sqlite3.Error as error:
        raise LedgerError(f"{path}: {error}") from error


def _evidence(db: sqlite3.Connection, finding: Finding, transitions: Sequence[PastTransition]) -> tuple[StoredEvent, ...]:
    first = db.execute("SELECT id FROM events WHERE identity = ?", (transitions[0].event if transitions else None,)).fetchone()
    where = "component = ? AND code = ? AND follows IS NULL AND trust != ? AND (simulated_until IS NOT NULL) = ? AND id >= ? AND time <= ?"
    values = (
        finding.component.name,
        finding.code,
        Trust.UNTRUSTED.value,
        finding.simulated,
        first[0] if first else 0,
        finding.last + 0.001,
    )
    rows: dict[int, Row] = {}
    for order in ("ASC", "DESC"):
        sql = f"SELECT id, {_EVENT} FROM events WHERE {where} ORDER BY id {order} LIMIT {_EVIDENCE}"
        rows.update({row[0]: row for row in db.execute(sql, values)})
    return tuple(StoredEvent(row[0], _event(*row[1:]), _followers(db, row[1])) for _, row in sorted(rows.items()))  # type: ignore[arg-type]


def _followers(db: sqlite3.Connection, identity: str) -> tuple[str, ...]:
    return tuple(row[0] for row in db.execute("SELECT raw FROM events WHERE follows = ? ORDER BY id LIMIT 8", (identity,)))


def _used_bytes(db: sqlite3.Connection) -> int:
    pages: int = db.execute("PRAGMA page_count").fetchone()[0] - db.execute("PRAGMA freelist_count").fetchone()[0]
    size: int = db.execute("PRAGMA page_size").fetchone()[0]
    return pages * size


_EVENT = "identity, time, source, kind, code, component, boot_id, trust, follows, simulated_until, fields, raw"
_INSERT_EVENT = f"INSERT OR IGNORE INTO events ({_EVENT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_FINDING = (
    "id, component, code, kind, action, due, since, last, count, boot_id, title, raw, fields, state, simulated_until, cleared_at, cleared_by, "
    "asked, source, incident, heard_since, quiet_s, shadow, remedy_at"
)
_UPSERT_FINDING = f"INSERT OR REPLACE INTO findings ({_FINDING}) VALUES ({', '.join('?' * 24)})"
_INCIDENT = "id, since, last, closed_at, story, simulated, boot_id, usec, members"
_UPSERT_INCIDENT = f"INSERT OR REPLACE INTO incidents ({_INCIDENT}) VALUES ({', '.join('?' * 9)})"
_UPSERT_POSITION = "INSERT OR REPLACE INTO positions (source, boot_id, cursor) VALUES (?, ?, ?)"
Row = tuple[object, ...]


def _event_row(event: Event) -> Row:
    return (
        *(event.identity, event.time, event.source, event.kind, event.code, event.component.name, event.boot_id, event.trust.value),
        *(event.follows, event.simulated_until, json.dumps(event.fields), event.raw),
    )


def _event(
    identity: str,
    time: float,
    source: str,
    kind: str,
    code: str,
    component: str,
    boot_id: str,
    trust: str,
    follows: str | None,
    simulated_until: float | None,
    fields: str,
    raw: str,
) -> Event:
    return Event(
        identity=identity,
        time=time,
        source=source,
        kind=kind,
        code=code,
        component=Component.parse(component),
        boot_id=boot_id,
        trust=Trust(trust),
        follows=follows,
        simulated_until=simulated_until,
        fields=json.loads(fields),
        raw=raw,
    )


_LAYERS = ("ruled", "context", "told", "driver", "escalated")


def _finding_row(finding: Finding) -> Row:
    layers = {name: getattr(finding, name) for name in _LAYERS}
    asked = {name: [one.action.value, one.when.value, one.because] for name, one in layers.items() if one is not None}
    return (
        *(finding.id, finding.component.name, finding.code, finding.kind, finding.action.value, finding.when.value),
        *(finding.since, finding.last, finding.count, finding.boot_id, finding.title, finding.raw, json.dumps(finding.fields)),
        *(finding.state.value, finding.simulated_until, finding.cleared_at, finding.cleared_by),
        *(json.dumps(asked), finding.source, finding.incident, finding.heard_since, finding.quiet_s, finding.shadow, finding.remedy_at),
    )


def _finding(
    id_: int,
    component: str,
    code: str,
    kind: str,
    action: str,
    due: str,
    since: float,
    last: float,
    count: int,
    boot_id: str,
    title: str,
    raw: str,
    fields: str,
    state: str,
    simulated_until: float | None,
    cleared_at: float | None,
    cleared_by: str | None,
    asked: str | None,
    source: str,
    incident: int,
    heard_since: float,
    quiet_s: float | None,
    shadow: int,
    remedy_at: float | None,
) -> Finding:
    layers = {name: Asked(Action(one[0]), When(one[1]), one[2]) for name, one in json.loads(asked or "{}").items()}
    return Finding(
        id=id_,
        component=Component.parse(component),
        code=code,
        kind=kind,
        since=since,
        last=last,
        count=count,
        boot_id=boot_id,
        title=title,
        raw=raw,
        fields=json.loads(fields),
        source=source,
        ruled=layers.get("ruled") or Asked(Action(action), When(due)),
        context=layers.get("context"),
        told=layers.get("told"),
        driver=layers.get("driver"),
        escalated=layers.get("escalated"),
        incident=incident,
        heard_since=heard_since,
        quiet_s=quiet_s,
        shadow=bool(shadow),
        remedy_at=remedy_at,
        state=FindingState(state),
        simulated_until=simulated_until,
        cleared_at=cleared_at,
        cleared_by=cleared_by,
    )


def _incident_row(incident: Incident) -> Row:
    members = [
        [
            *(one.component.name, one.code, one.name, one.count, one.first, one.last, one.boot_id, one.usec),
            *(sorted(one.places), sorted(one.pids), sorted(one.processes), one.raw),
        ]
        for one in incident.members
    ]
    return (
        *(incident.id, incident.since, incident.last, incident.closed_at, incident.story, incident.simulated),
        *(incident.boot_id, incident.usec, json.dumps(members)),
    )


def _incident(
    id_: int,
    since: float,
    last: float,
    closed_at: float | None,
    story: str,
    simulated: int,
    boot_id: str,
    usec: int | None,
    members: str,
) -> Incident:
    return Incident(
        id=id_,
        members=tuple(
            Member(
                component=Component.parse(component),
                code=code,
                name=name,
                count=count,
                first=first,
                last=last_,
                boot_id=boot,
                usec=clock,
                places=frozenset(places),
                pids=frozenset(pids),
                processes=frozenset(processes),
                raw=raw,
            )
            for component, code, name, count, first, last_, boot, clock, places, pids, processes, raw in json.loads(members)
        ),
        since=since,
        last=last,
        boot_id=boot_id,
        usec=usec,
        story=story,
        simulated=bool(simulated),
        closed_at=closed_at,
    )


def _store_changes(db: sqlite3.Connection, changes: Changes) -> None:
    if changes.shifted:
        db.execute("UPDATE OR REPLACE marks SET time = time + ?", (changes.shifted,))
        db.execute("UPDATE settled SET time = time + ?", (changes.shifted,))
    db.executemany("UPDATE OR IGNORE marks SET device = ? WHERE device = ?", [(new, old) for old, new in changes.renamed])
    db.executemany(_UPSERT_INCIDENT, map(_incident_row, changes.incidents))
    db.executemany(
        "INSERT OR IGNORE INTO marks (device, time, kind, fault, detail) VALUES (?, ?, ?, ?, ?)",
        [(mark.device, mark.time, mark.kind.value, mark.fault, mark.detail) for mark in changes.marks],
    )
    db.executemany(
        "DELETE FROM marks WHERE device = ? AND time = ? AND kind = ? AND fault = ? AND detail = ?",
        [(mark.device, mark.time, mark.kind.value, mark.fault, mark.detail) for mark in changes.forgotten],
    )
    db.executemany(
        "INSERT OR REPLACE INTO devices (component, uuid, serial, reset_at, placed_at) VALUES (?, ?, ?, ?, ?)",
        [(one.component.name, one.uuid, one.serial, one.reset_at, one.placed_at) for one in changes.devices],
    )
    if changes.settled:
        db.executemany(
            "INSERT OR REPLACE INTO settled (component, code, time) VALUES (?, ?, ?)",
            [(component.name, code, time_) for component, code, time_ in changes.settled],
        )
        db.execute("DELETE FROM settled WHERE id IN (SELECT id FROM settled ORDER BY id DESC LIMIT -1 OFFSET ?)", (_SETTLED,))


def _position_row(position: Position) -> Row:
    return position.source, position.boot_id, position.cursor


def unsaved(entries: Iterable[Entry]) -> int:
    """How many events wait in these entries."""
    return sum(len(entry.events) for entry in entries)
