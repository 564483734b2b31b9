"""
The ledger's writer: one SQLite file, written by one thread.

SQLite in WAL mode. A commit of events is synchronous (FULL): it is on disk before anything is
published. A position alone is not (NORMAL): it survives a killed process, and a power cut begins a
new boot anyway. All methods block and belong in a worker thread; each raises LedgerError, never
sqlite3's own errors. The open findings are stored in their current form, so that the cost of a
start depends on the open findings, not on the history.

Owns     opening, committing, deleting what is too old or too much, and setting a damaged file
         aside.
Refuses  queries about the past: readers have connections of their own (`queries`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import vitald.ledger.disk as disk
import vitald.ledger.restore as restore
import vitald.ledger.schema as schema
from vitald.ledger.errors import LedgerDamaged, LedgerError, refuse_newer
from vitald.ledger.restore import RestoredState
from vitald.ledger.schema import AuditRecord, PastTransition, Seal
from vitald.ledger.table import UNREADABLE, combine_sums
from vitald.model.diagnostic import Run
from vitald.model.event import Event
from vitald.model.finding import Changes, Finding, Transition
from vitald.model.source import Position
from vitald.timestamps import format_compact

T = TypeVar("T")

FILE = "ledger.db"
# Number of commits, in a file of its own: an older copy of the ledger cannot know it
COUNT = "ledger.count"
_CACHE_KIB = 2048
_MAX_RESOLVED = 4096  # resolved faults: as many as the judge keeps
# Messages of SQLite that are no DatabaseError, and mean damage: in the text of a column, or in the
# table of tables.
_DAMAGE = (
    "malformed",
    "Could not decode",
    "no such table",
    "no such column",
    "already exists",
    "unsupported file format",
)
_MAX_TRIM_ROWS = 5000  # per call, so that no commit waits for long
_MARKS_S = 90 * 86400.0  # longer than the window of any escalation policy and of the lemon score


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What one transaction stores: events, what they changed, the position of their source, the
    runs that they come from, and who requested the change. A `durable` one is committed even if it
    has a position only.
    """

    events: tuple[Event, ...] = ()
    transitions: tuple[Transition, ...] = ()
    changes: Changes = Changes()
    position: Position | None = None
    audit: AuditRecord | None = None
    runs: tuple[Run, ...] = ()
    durable: bool = False


def count_events(entries: Iterable[LedgerEntry]) -> int:
    """Number of events in these entries."""
    return sum(len(entry.events) for entry in entries)


class Ledger:
    """The ledger in one directory. Not thread-safe: one thread writes, and readers open connections
    of their own.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.fresh = False  # nothing has been stored in it yet
        self.gone = False  # it is new, and a ledger that was open at this path has disappeared
        self._db: sqlite3.Connection | None = None
        self._opened: disk.Identity | None = None
        self._log: disk.Identity | None = None  # its write-ahead log
        self._count = disk.CommitCount(folder / COUNT)
        self._seal = Seal()
        self._anew = False  # created deliberately, and nothing committed yet
        self._opened_sums: dict[int, int] = {}  # checksums of the open findings' rows, by id

    def open(self, *, anew: bool = False) -> None:
        """Open for writing; create the file as needed. Raises LedgerError.

        `anew`: an empty file is accepted, although there was a ledger before.
        """
        self.close()
        self._translate_errors(partial(self._open, anew=anew))

    def _open(self, *, anew: bool) -> None:
        self.fresh = self.gone = False
        if strange := disk.describe_irregular(self.path):
            raise LedgerError(strange)
        log = self.path.with_name(FILE + "-wal")
        lost = disk.count_lost_frames(log) if log.exists() else 0
        with suppress(sqlite3.Error, OSError):  # other problems are reported below
            refuse_newer(
                self.path,
                schema.inspect_version(self.path, log=not lost) if self.path.is_file() else 0,
            )
        self._refuse_unmounted()
        self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        os.close(fd)
        if lost:
            raise LedgerDamaged(
                f"{log}: it is damaged, and up to {lost} pages that were committed cannot be read"
                " from it"
            )
        db = sqlite3.connect(self.path, timeout=2.0, isolation_level=None, check_same_thread=False)
        db.row_factory = sqlite3.Row
        try:
            self._prepare(db, anew=anew)
        except BaseException:
            db.close()
            raise
        self._db, self._opened, self._log = (
            db,
            disk.identify_file(self.path),
            disk.identify_file(log),
        )

    def _prepare(self, db: sqlite3.Connection, *, anew: bool) -> None:
        """Create the tables of a new file; check that it is the ledger that was written last."""
        version = schema.read_version(db)
        refuse_newer(self.path, version)
        self._anew = self._anew or anew
        if version == 0 and self._count.read() and not self._anew:
            self.fresh = not self.path.stat().st_size
            raise LedgerDamaged(f"{self.path}: what was in it is gone")
        if version == 0:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA synchronous = FULL")
        schema.create_tables(db)
        self.fresh = version == 0
        self.gone = self.fresh and self._opened is not None and not anew
        self._seal = self._read_seal(db)
        if not self._anew:
            self._refuse_earlier()
        sums = db.execute("SELECT id, sum FROM findings WHERE state != 'cleared'")
        self._opened_sums = {row["id"]: row["sum"] for row in sums if isinstance(row["sum"], int)}
        self._count.open()

    def _read_seal(self, db: sqlite3.Connection) -> Seal:
        try:
            (seal,) = map(schema.SEAL.read, db.execute(schema.SEAL.select()))
        except UNREADABLE as error:
            raise LedgerDamaged(
                f"{self.path}: what it must hold cannot be read: {error!r}"
            ) from error
        return seal

    def _refuse_earlier(self) -> None:
        """Raises LedgerDamaged if the file has fewer commits than were counted.

        A commit is on disk before it is counted, so the file is an older one, or its write-ahead
        log is missing.
        """
        counted = self._count.read()
        if counted > self._seal.commits:
            raise LedgerDamaged(
                f"{self.path}: it was committed to {counted} times, and {self._seal.commits} of"
                " these are in it"
            )

    def _refuse_unmounted(self) -> None:
        """Raises LedgerError if the file system of the ledger is no longer mounted.

        A ledger in the directory below the mount point would be hidden by the next mount.
        """
        if self._opened is not None and disk.is_unmounted(self.path.parent, self._opened[0]):
            raise LedgerError(f"{self.path}: the file system that it was on is not mounted")

    def close(self) -> None:
        db, self._db = self._db, None
        self._count.close()
        if db is not None:
            try:
                db.close()
            except sqlite3.Error as error:
                raise LedgerError(f"{self.path}: {error}") from error

    def read_state(self) -> RestoredState:
        """All that a start needs. Its cost depends on what is open and on the devices' history."""
        return self._translate_errors(
            lambda: restore.read_verified(self.path, self._get_connection(), self._count)
        )

    def commit(self, entries: Sequence[LedgerEntry]) -> None:
        """Store entries in one transaction, which is on disk when this returns. Events that are
        stored already are skipped.
        """
        self._translate_errors(lambda: self._commit(entries))

    def _commit(self, entries: Sequence[LedgerEntry]) -> None:
        db = self._get_connection()
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        # A burst of lines changes the same findings and incidents again and again: only their last
        # values are stored.
        findings = {
            transition.finding.id: transition.finding
            for entry in entries
            for transition in entry.transitions
        }
        incidents = {
            incident.id: incident for entry in entries for incident in entry.changes.incidents
        }
        try:
            for entry in entries:
                _store_entry(db, entry)
            schema.INCIDENTS.put(db, incidents.values())
            sums = self._put_findings(db, findings.values())
            changed = [self._opened_sums.get(id_, 0) for id_ in sums]
            seal = Seal(
                self._seal.commits + 1, combine_sums((self._seal.opened, *changed, *sums.values()))
            )
            schema.SEAL.put(db, (seal,))
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        self._seal = seal
        for id_, sum_ in sums.items():
            self._opened_sums.pop(id_, None)
            self._opened_sums |= {id_: sum_} if sum_ else {}
        self._refuse_replaced()
        self._count.write(seal.commits)
        self.fresh = self.gone = self._anew = False

    def _put_findings(self, db: sqlite3.Connection, findings: Iterable[Finding]) -> dict[int, int]:
        """The checksums of their rows by id; 0 for a closed finding, which the seal leaves out."""
        findings = tuple(findings)
        sums = schema.FINDINGS.put(db, findings)
        return {finding.id: sum_ if finding.is_open else 0 for finding, sum_ in zip(findings, sums)}

    def _refuse_replaced(self) -> None:
        """Raises LedgerDamaged if the open file is no longer the one at its path.

        SQLite does not check this, and what it writes to a removed file is lost with the process.
        """
        log = disk.identify_file(self.path.with_name(FILE + "-wal"))
        self._log = self._log or log
        if disk.identify_file(self.path) != self._opened or log != self._log:
            raise LedgerDamaged(
                f"{self.path}: it was removed, or another file put in its place, while it was open"
            )

    def find_stored(self, identities: Sequence[str]) -> set[str]:
        """The identities among these of events that are stored already."""
        return self._translate_errors(lambda: self._find_stored(identities))

    def _find_stored(self, identities: Sequence[str]) -> set[str]:
        db, found = self._get_connection(), set[str]()
        for begin in range(0, len(identities), 500):
            part = identities[begin : begin + 500]
            marks = ",".join("?" * len(part))
            found.update(
                row[0]
                for row in db.execute(
                    f"SELECT identity FROM events WHERE identity IN ({marks})", part
                )
            )
        return found

    def store_position(self, position: Position) -> None:
        """Store a position that no events go with. Survives a killed process, not a power cut."""

        def write() -> None:
            db = self._get_connection()
            db.execute("PRAGMA synchronous = NORMAL")
            schema.POSITIONS.put(db, (position,))
            self._refuse_replaced()

        self._translate_errors(write)

    def delete_old(self, now: float, keep_s: float, max_bytes: int) -> int:
        """Delete the oldest events beyond age or size, a few thousand at a time; open findings
        stay. Returns the number of deleted events.
        """
        return self._translate_errors(
            lambda: delete_old_rows(self._get_connection(), now, keep_s, max_bytes)
        )

    def forget_output(self, before: float) -> None:
        """Delete the output of the runs that ended before a time; their reports stay."""
        self._translate_errors(
            lambda: self._get_connection().execute(
                "UPDATE runs SET raw = NULL WHERE ended < ? AND raw IS NOT NULL", (before,)
            )
        )

    def measure_size(self) -> int:
        """Bytes of the ledger on disk, with its write-ahead log."""
        return sum(
            path.stat().st_size
            for path in self.path.parent.glob(f"{FILE}*")
            if path.suffix in (".db", ".db-wal", ".db-shm")
        )

    def set_aside(self, now: float) -> Path | None:
        """Rename a damaged ledger, so that a new one can be created. Returns its new path; None if
        there is nothing to keep.
        """
        self.close()
        if self.fresh or not os.path.lexists(self.path):
            return None
        self._refuse_unmounted()
        name = f"{FILE}.damaged-{format_compact(now)}"
        aside, number = self.path.with_name(name), 1
        while os.path.lexists(aside):
            number += 1
            aside = self.path.with_name(f"{name}-{number}")
        try:
            self.path.rename(aside)
            log = self.path.with_name(FILE + "-wal")
            if os.path.lexists(log) and log.lstat().st_size:
                # SQLite finds the log by this name.
                log.rename(aside.with_name(aside.name + "-wal"))
            log.unlink(missing_ok=True)
            self.path.with_name(FILE + "-shm").unlink(missing_ok=True)
        except OSError as error:
            raise LedgerError(f"{self.path}: {error.strerror}") from error
        return aside

    def rescue(self, *, damaged: bool = False) -> RestoredState | None:
        """What can be read of a ledger that cannot be opened for writing. None if nothing can.

        All of it or nothing; with `damaged` each readable row, and `lost` names what is missing.
        """
        return restore.rescue_state(self.path, self._count, damaged=damaged)

    def _get_connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise LedgerError(f"{self.path}: not open")
        return self._db

    def _translate_errors(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except sqlite3.DatabaseError as error:
            # A subclass (OperationalError: full, read-only, locked) is an obstacle; DatabaseError
            # itself is damage.
            damaged = type(error) is sqlite3.DatabaseError or any(
                words in str(error) for words in _DAMAGE
            )
            raise (LedgerDamaged if damaged else LedgerError)(f"{self.path}: {error}") from error
        except UnicodeDecodeError as error:  # in SQLite's own message about a damaged text
            raise LedgerDamaged(f"{self.path}: {error}") from error
        # TypeError, ValueError and OverflowError: a value that cannot be stored.
        except (OSError, sqlite3.Error, ValueError, TypeError, OverflowError) as error:
            raise LedgerError(
                f"{self.path}: {getattr(error, 'strerror', None) or error}"
            ) from error


def _store_entry(db: sqlite3.Connection, entry: LedgerEntry) -> None:
    """Store all of an entry but the findings and incidents that it changed."""
    before = db.total_changes
    schema.EVENTS.put(db, entry.events)
    added = db.total_changes - before
    changes = (change for change in entry.transitions if change.cause)
    schema.TRANSITIONS.put(db, map(PastTransition.from_transition, changes))
    # A commit whose answer came too late is repeated: times must not be shifted a second time.
    again = bool(entry.events) and not added
    _store_changes(db, replace(entry.changes, shifted=0.0) if again else entry.changes)
    schema.RUNS.put(db, entry.runs)
    if entry.position is not None:
        schema.POSITIONS.put(db, (entry.position,))
    if entry.audit is not None:
        schema.AUDIT.put(db, (entry.audit,))


def _store_changes(db: sqlite3.Connection, changes: Changes) -> None:
    if changes.shifted:
        db.execute("UPDATE OR REPLACE marks SET time = time + ?", (changes.shifted,))
        db.execute("UPDATE resolved SET time = time + ?", (changes.shifted,))
        schema.RESOLVED.update_sums(db)
    db.executemany(
        "UPDATE OR IGNORE marks SET device = ? WHERE device = ?",
        [(new, old) for old, new in changes.renamed],
    )
    if changes.shifted or changes.renamed:
        schema.MARKS.update_sums(db)
    schema.MARKS.put(db, changes.marks)
    schema.MARKS.delete(db, changes.forgotten)
    schema.DEVICES.put(db, changes.devices)
    if changes.resolved:
        schema.RESOLVED.put(db, changes.resolved)
        db.execute(
            "DELETE FROM resolved WHERE id IN (SELECT id FROM resolved ORDER BY id DESC LIMIT -1"
            " OFFSET ?)",
            (_MAX_RESOLVED,),
        )


def delete_old_rows(db: sqlite3.Connection, now: float, keep_s: float, max_bytes: int) -> int:
    """Delete events that are older than `keep_s`, else the oldest ones while the ledger is larger
    than `max_bytes`; and the closed findings, incidents, marks and runs of that time.

    Deletes a few thousand events per call. Returns their number.
    """
    oldest = now - keep_s
    dropped = db.execute(
        "DELETE FROM events WHERE id IN (SELECT id FROM events WHERE time < ? LIMIT ?)",
        (oldest, _MAX_TRIM_ROWS),
    ).rowcount
    if not dropped and _measure_used_bytes(db) > max_bytes:
        dropped = _delete_oldest_events(db)
        if dropped:
            row = db.execute("SELECT time FROM events ORDER BY id LIMIT 1").fetchone()
            oldest = max(oldest, row[0])
    if dropped:
        db.execute(
            "DELETE FROM transitions WHERE time < ? AND finding IN (SELECT id FROM findings"
            " WHERE state = 'cleared')",
            (oldest,),
        )
        db.execute("DELETE FROM findings WHERE state = 'cleared' AND cleared_at < ?", (oldest,))
        db.execute("DELETE FROM incidents WHERE closed_at < ?", (oldest,))
        db.execute("DELETE FROM marks WHERE time < ?", (now - _MARKS_S,))
        db.execute("DELETE FROM runs WHERE ended < ?", (oldest,))
        # execute() would step once and free one page
        db.executescript(f"PRAGMA incremental_vacuum({_MAX_TRIM_ROWS})")
    return dropped


def _delete_oldest_events(db: sqlite3.Connection) -> int:
    """Delete up to a quarter of the events, and never the last one."""
    first, last = db.execute("SELECT min(id), max(id) FROM events").fetchone()
    if first is None or first >= last:
        return 0
    end = first + min(_MAX_TRIM_ROWS, (last - first) // 4 + 1)
    return db.execute("DELETE FROM events WHERE id < ?", (end,)).rowcount


def _measure_used_bytes(db: sqlite3.Connection) -> int:
    pages: int = (
        db.execute("PRAGMA page_count").fetchone()[0]
        - db.execute("PRAGMA freelist_count").fetchone()[0]
    )
    size: int = db.execute("PRAGMA page_size").fetchone()[0]
    return pages * size
