"""
The store: one SQLite file, written by one lane.

SQLite in WAL mode. A commit of events is synchronous (FULL): it is on disk before anything shows
it. A reading position alone is not (NORMAL): it survives a killed process, and a power cut begins a
new boot anyway. All methods block and belong in a lane; each raises LedgerError, never sqlite3's
own errors. The open findings are stored as they stand, so that starting costs the open ones, not
the history.

Owns     the file from the first byte to its being set aside: opening, what a commit stores, what a
         start remembers, what is trimmed, what can be rescued.
Refuses  answering questions about the past: readers have connections of their own (`queries`).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import vitald.ledger.disk as disk
import vitald.ledger.rows as rows
import vitald.ledger.schema as schema
from vitald import __version__
from vitald.ledger.rows import RowDamaged
from vitald.ledger.sums import digest
from vitald.model import Changes, Component, Event, Finding, Memory, Position, Transition
from vitald.model.diagnostic import Run
from vitald.timestamps import format_compact

T = TypeVar("T")

FILE = "ledger.db"
# How often was committed to it: what a file that went back to an earlier state cannot know
COUNT = "ledger.count"
_CACHE_KIB = 2048
_TRIM_ROWS = 5000
_ENDED = 1000  # closed findings of which a start remembers how they ended
_JOINABLE_S = 600.0  # an incident that is over may be joined for so long at most
_SETTLED = 4096  # faults that were dealt with: as many as the judge remembers
_MARKS_S = 90 * 86400.0  # longer than any ladder's window or the score's
_UNREADABLE = (sqlite3.Error, OSError, *rows.UNREADABLE)
_READ_AT_START = ("findings", "incidents", "marks", "devices", "settled", "positions", "seal")
# What SQLite calls an obstacle, and is damage: in the text of a column, or in the table of tables.
_DAMAGE = (
    "malformed",
    "Could not decode",
    "no such table",
    "no such column",
    "already exists",
    "duplicate column",
    "unsupported file format",
)


class LedgerError(Exception):
    """The store cannot be read or written; the text says which file and why."""


class LedgerDamaged(LedgerError):
    """The file is no sound database, or not the one that was opened."""


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
    """What is committed together: events, what they changed, how far the source has read, the runs
    that they come from, who asked.
    """

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
    ended: dict[tuple[Component, str, bool], str] = field(
        default_factory=dict
    )  # how the last finding of each fault, drill or not, ended
    lost: frozenset[str] = (
        frozenset()
    )  # tables of which not all could be read, or that may have been longer


def unsaved(entries: Iterable[Entry]) -> int:
    """How many events wait in these entries."""
    return sum(len(entry.events) for entry in entries)


def refuse_newer(path: Path, version: int) -> None:
    """What a newer vitald wrote is not for an older one: not knowing its tables, it would judge by
    half of them. Raises LedgerNewer.
    """
    if version > schema.VERSION:
        raise LedgerNewer(
            f"{path}: written by a newer vitald: its schema is {version}, and vitald {__version__}"
            f" knows those up to {schema.VERSION}. The file is left as it is. Install the newer"
            " vitald again, or move the file away to begin a new ledger"
        )


class Ledger:
    """The store in one directory. Not thread-safe: one lane writes; readers open connections of
    their own.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.fresh = False  # nothing has been stored in it yet
        self.gone = False  # and it stands where another one was, of which nothing is left
        self._db: sqlite3.Connection | None = None
        self._opened: disk.Identity | None = None
        self._log: disk.Identity | None = None  # its write-ahead log
        self._count = disk.Count(folder / COUNT)
        self._seal = rows.Seal()
        self._anew = False  # it was begun on purpose, and nothing has been committed to it yet
        self._opened_sums: dict[int, int] = {}  # checksums of the open findings' rows, by their ids

    def open(self, *, anew: bool = False) -> None:
        """Open for writing, creating and migrating as needed. Raises LedgerError.

        `anew`: where it is empty, that is as it should be, although there was one before.
        """
        self.close()
        self._guard(partial(self._open, anew=anew))

    def _open(self, *, anew: bool) -> None:
        self.fresh = self.gone = False
        if strange := disk.strange(self.path):
            raise LedgerError(strange)
        log = self.path.with_name(FILE + "-wal")
        lost = disk.lost_frames(log) if log.exists() else 0
        with suppress(sqlite3.Error, OSError):  # what is wrong with the file is told below, in full
            refuse_newer(
                self.path, schema.found(self.path, log=not lost) if self.path.is_file() else 0
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
            version = schema.version(db)
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
            schema.migrate(db)
            self.fresh, self.gone = (
                version == 0,
                version == 0 and self._opened is not None and not anew,
            )
            self._seal = self._read_seal(db)
            if not self._anew:
                self._refuse_earlier()
            sums = db.execute("SELECT id, sum FROM findings WHERE state != 'cleared'")
            self._opened_sums = {
                row["id"]: row["sum"] for row in sums if isinstance(row["sum"], int)
            }
            self._count.open()
        except BaseException:
            db.close()
            raise
        self._db, self._opened, self._log = db, disk.identity(self.path), disk.identity(log)

    def _read_seal(self, db: sqlite3.Connection) -> rows.Seal:
        try:
            (seal,) = map(rows.seal_of, db.execute(f"SELECT {schema.SEAL}, sum FROM seal"))
        except rows.UNREADABLE as error:
            raise LedgerDamaged(
                f"{self.path}: what it must hold cannot be read: {error!r}"
            ) from error
        return seal

    def _refuse_earlier(self) -> None:
        """What was committed was on the disk before it was counted. Where there is less, the file
        is an older one, or its log is gone.
        """
        counted = self._count.read()
        if counted > self._seal.commits:
            raise LedgerDamaged(
                f"{self.path}: it was committed to {counted} times, and {self._seal.commits} of"
                " these are in it"
            )

    def _refuse_unmounted(self) -> None:
        """What lies underneath a file system that is not mounted is not where a ledger belongs: it
        will be covered again.
        """
        if self._opened is not None and disk.unmounted(self.path.parent, self._opened[0]):
            raise LedgerError(f"{self.path}: the file system that it was on is not mounted")

    def close(self) -> None:
        db, self._db = self._db, None
        self._count.close()
        if db is not None:
            try:
                db.close()
            except sqlite3.Error as error:
                raise LedgerError(f"{self.path}: {error}") from error

    def remembered(self) -> Remembered:
        """All that a start needs. Costs what is open and the devices' records, not the history."""
        return self._guard(self._sound)

    def _sound(self) -> Remembered:
        """What is remembered, where all of it can be. An index that lacks a row would hide an open
        finding without a word.
        """
        db = self._connection()
        for table in _READ_AT_START:
            said = db.execute(f"PRAGMA integrity_check('{table}')").fetchone()[0]
            if said != "ok":
                raise LedgerDamaged(f"{self.path}: {said}")
        try:
            remembered = self._remembered(_Reading(db))
        except rows.UNREADABLE as error:
            raise LedgerDamaged(f"{self.path}: a row cannot be read: {error!r}") from error
        if remembered.lost:
            raise LedgerDamaged(
                f"{self.path}: rows of {', '.join(sorted(remembered.lost))} are missing"
            )
        return remembered

    def _remembered(self, read: _Reading) -> Remembered:
        counted = self._count.read()  # first: whoever writes the store meanwhile counts on
        (last,) = read("", _first, "SELECT coalesce(max(last), 0) FROM incidents") or (0.0,)
        table = (
            "findings NOT INDEXED" if read.damaged else "findings"
        )  # an index that lacks a row would hide it
        summed = read(
            "findings",
            _finding_and_sum,
            read.of(table, schema.FINDING, "WHERE state != 'cleared' ORDER BY id"),
        )
        findings = sorted((finding for finding, _ in summed), key=lambda finding: finding.id)
        highest_finding = read("", _first, "SELECT coalesce(max(id), 0) FROM findings")
        highest_incident = read("", _first, "SELECT coalesce(max(id), 0) FROM incidents")
        joinable = read.of("incidents", schema.INCIDENT, "WHERE closed_at IS NULL OR last > ?")
        memory = Memory(
            findings=tuple(findings),
            incidents=read("incidents", rows.incident_of, joinable, last - _JOINABLE_S),
            marks=read("marks", rows.mark_of, read.of("marks", schema.MARK, "ORDER BY id")),
            devices=read("devices", rows.device_of, read.of("devices", schema.DEVICE)),
            settled=read(
                "settled", rows.settled_of, read.of("settled", schema.SETTLED, "ORDER BY id")
            ),
            next_finding=int(
                max((*highest_finding, *(finding.id for finding in findings)), default=0)
            )
            + 1,
            next_incident=int(
                max((*highest_incident, *(finding.incident for finding in findings)), default=0)
            )
            + 1,
        )
        latest = f"WHERE state = 'cleared' AND NOT shadow ORDER BY id DESC LIMIT {_ENDED}"
        cleared = reversed(
            read("cleared", rows.finding_of, read.of("findings", schema.FINDING, latest))
        )
        ended = {(one.component, one.code, one.simulated): one.cleared_by or "" for one in cleared}
        positions = read("positions", rows.position_of, read.of("positions", schema.POSITION))
        if not _are_all(read, [sum_ for _, sum_ in summed], counted):
            read.lost.add("findings")
        return Remembered(
            memory,
            {position.source: position for position in positions},
            ended,
            frozenset(read.lost),
        )

    def commit(self, entries: Sequence[Entry]) -> None:
        """Store entries in one transaction, on disk when it returns. An event stored before is not
        stored again.
        """
        self._guard(lambda: self._commit(entries))

    def _commit(self, entries: Sequence[Entry]) -> None:
        db = self._connection()
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        # Of findings and incidents, which a storm changes with each line, only how they stand at
        # the end.
        findings = {one.finding.id: one.finding for entry in entries for one in entry.transitions}
        incidents = {one.id: one for entry in entries for one in entry.changes.incidents}
        try:
            for entry in entries:
                added = db.executemany(schema.ADD_EVENT, map(rows.event_row, entry.events)).rowcount
                db.executemany(
                    schema.ADD_TRANSITION,
                    [rows.transition_row(one) for one in entry.transitions if one.cause],
                )
                # Tried again after an answer that came too late, it must not shift a second time
                # what it shifted.
                again = bool(entry.events) and not added
                _store_changes(db, replace(entry.changes, shifted=0.0) if again else entry.changes)
                db.executemany(schema.PUT_RUN, map(rows.run_row, entry.runs))
                if entry.position is not None:
                    db.execute(schema.PUT_POSITION, rows.position_row(entry.position))
                if entry.audit is not None:
                    db.execute(schema.ADD_AUDIT, asdict(entry.audit))
            db.executemany(schema.PUT_INCIDENT, map(rows.incident_row, incidents.values()))
            sums = self._put_findings(db, findings.values())
            changed = (
                one for id_, sum_ in sums.items() for one in (self._opened_sums.get(id_, 0), sum_)
            )
            seal = rows.Seal(self._seal.commits + 1, digest((self._seal.opened, *changed)))
            db.execute(schema.PUT_SEAL, rows.seal_row(seal))
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        self._seal = seal
        for id_, sum_ in sums.items():
            self._opened_sums.pop(id_, None)
            self._opened_sums |= {id_: sum_} if sum_ else {}
        self._still_there()
        self._count.write(seal.commits)
        self.fresh = self.gone = self._anew = False

    def _put_findings(self, db: sqlite3.Connection, findings: Iterable[Finding]) -> dict[int, int]:
        """The checksums of their rows by their ids; of one that is closed nothing is to be vouched
        for, which is 0.
        """
        sums = {}
        for finding in findings:
            row = rows.finding_row(finding)
            db.execute(schema.PUT_FINDING, row)
            sums[finding.id] = int(str(row["sum"])) if finding.open else 0
        return sums

    def _still_there(self) -> None:
        """What is written to a file that was removed is gone with the process; SQLite does not
        look. Raises LedgerDamaged.
        """
        log = disk.identity(self.path.with_name(FILE + "-wal"))
        self._log = self._log or log
        if disk.identity(self.path) != self._opened or log != self._log:
            raise LedgerDamaged(
                f"{self.path}: it was removed, or another file put in its place, while it was open"
            )

    def known(self, identities: Sequence[str]) -> set[str]:
        """Which of these events are stored already."""
        return self._guard(lambda: self._known(identities))

    def _known(self, identities: Sequence[str]) -> set[str]:
        db, found = self._connection(), set[str]()
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

    def note(self, position: Position) -> None:
        """Store a position after records that meant nothing. Survives a killed process, not a power
        cut.
        """

        def write() -> None:
            db = self._connection()
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(schema.PUT_POSITION, rows.position_row(position))
            self._still_there()

        self._guard(write)

    def trim(self, now: float, keep_s: float, most_bytes: int) -> int:
        """Drop the oldest events beyond age or size, a few thousand at a time; open findings stay.
        Returns how many went.
        """
        return self._guard(lambda: self._trim(now, keep_s, most_bytes))

    def _trim(self, now: float, keep_s: float, most_bytes: int) -> int:
        db = self._connection()
        oldest = now - keep_s
        dropped = db.execute(
            "DELETE FROM events WHERE id IN (SELECT id FROM events WHERE time < ? LIMIT ?)",
            (oldest, _TRIM_ROWS),
        ).rowcount
        if not dropped and _used_bytes(db) > most_bytes:
            first, last = db.execute("SELECT min(id), max(id) FROM events").fetchone()
            if first is not None and first < last:
                dropped = db.execute(
                    "DELETE FROM events WHERE id < ?",
                    (first + min(_TRIM_ROWS, (last - first) // 4 + 1),),
                ).rowcount
                oldest = max(
                    oldest, db.execute("SELECT time FROM events ORDER BY id LIMIT 1").fetchone()[0]
                )
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
            db.executescript(
                f"PRAGMA incremental_vacuum({_TRIM_ROWS})"
            )  # execute() would step once and free one page
        return dropped

    def forget_output(self, before: float) -> None:
        """Drop what programs printed in runs that ended before; what they came to stays."""
        self._guard(
            lambda: self._connection().execute(
                "UPDATE runs SET raw = NULL WHERE ended < ? AND raw IS NOT NULL", (before,)
            )
        )

    def size(self) -> int:
        """Bytes of the store on disk, the write-ahead log included."""
        return sum(
            path.stat().st_size
            for path in self.path.parent.glob(f"{FILE}*")
            if path.suffix in (".db", ".db-wal", ".db-shm")
        )

    def set_aside(self, now: float) -> Path | None:
        """Move a damaged store out of the way, so that a new one can begin. Returns its new name;
        None where there is nothing to keep.
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
            if (
                os.path.lexists(log) and log.lstat().st_size
            ):  # under this name SQLite still finds it
                log.rename(aside.with_name(aside.name + "-wal"))
            log.unlink(missing_ok=True)
            self.path.with_name(FILE + "-shm").unlink(missing_ok=True)
        except OSError as error:
            raise LedgerError(f"{self.path}: {error.strerror}") from error
        return aside

    def rescue(self, *, damaged: bool = False) -> Remembered | None:
        """What can still be read of a store that cannot be opened for writing. None if nothing.

        All of it or nothing; `damaged`: row by row, and what is lost is told.
        """
        if disk.strange(self.path):
            return None
        # On a read-only disk SQLite cannot make the shared memory that a write-ahead log needs; a
        # copy elsewhere can be read. There, too, what an older vitald wrote can be migrated; where
        # it is damaged and cannot be, it is read as it is.
        for attempt in (
            self._remembered_there,
            self._remembered_in_a_copy,
            partial(self._remembered_there, older=True),
        ):
            with suppress(*_UNREADABLE):
                return attempt(damaged=damaged)
        return None

    def _remembered_there(self, *, damaged: bool, older: bool = False) -> Remembered:
        return self._remembered_in(
            f"{self.path.absolute().as_uri()}?mode=ro", damaged=damaged, older=older
        )

    def _remembered_in_a_copy(self, *, damaged: bool) -> Remembered:
        with tempfile.TemporaryDirectory(prefix="vitald-") as folder:
            for suffix in ("", "-wal"):
                if (part := self.path.with_name(FILE + suffix)).exists():
                    shutil.copyfile(part, Path(folder) / part.name)
            return self._remembered_in(f"file:{folder}/{FILE}", damaged=damaged, migrate=True)

    def _remembered_in(
        self, uri: str, *, damaged: bool, migrate: bool = False, older: bool = False
    ) -> Remembered:
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
            db.row_factory = sqlite3.Row
            if damaged:  # an index that cannot be told any more must not hide the tables
                db.execute("PRAGMA writable_schema = ON")
            if migrate:  # an older vitald's
                schema.migrate(db)
            elif not older and schema.version(db) < schema.VERSION:
                raise RowDamaged(f"{self.path}: an older vitald's")
            remembered = self._remembered(_Reading(db, damaged=damaged))
        if remembered.lost and not damaged:
            raise RowDamaged(f"{self.path}: not all of it can be read")
        return remembered

    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise LedgerError(f"{self.path}: not open")
        return self._db

    def _guard(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except sqlite3.DatabaseError as error:
            # A subclass (OperationalError: full, read-only, locked) is an obstacle; DatabaseError
            # itself is damage.
            damaged = type(error) is sqlite3.DatabaseError or any(
                words in str(error) for words in _DAMAGE
            )
            raise (LedgerDamaged if damaged else LedgerError)(f"{self.path}: {error}") from error
        except UnicodeDecodeError as error:  # of SQLite's own words about a text that is damaged
            raise LedgerDamaged(f"{self.path}: {error}") from error
        except (
            OSError,
            sqlite3.Error,
            ValueError,
            TypeError,
            OverflowError,
        ) as error:  # the latter: a value that cannot be stored
            raise LedgerError(
                f"{self.path}: {getattr(error, 'strerror', None) or error}"
            ) from error


def _first(row: sqlite3.Row) -> float:
    value: float = row[0]
    return value


def _finding_and_sum(row: sqlite3.Row) -> tuple[Finding, int]:
    return rows.finding_of(row), row["sum"]


def _are_all(read: _Reading, sums: Sequence[int], counted: int) -> bool:
    """Whether these are the open findings that stood at the last commit: none is missing, and none
    is as it was before.
    """
    if not read.summed:
        return not read.damaged
    seals = read("", rows.seal_of, read.of("seal", schema.SEAL))
    return len(seals) == 1 and seals[0].opened == digest(sums) and seals[0].commits >= counted


class _Reading:
    """Reads what a start needs: all of it, or of a damaged store as much as can be read.

    `lost` names what could not be read whole. `summed`: the rows have checksums.
    """

    def __init__(self, db: sqlite3.Connection, *, damaged: bool = False) -> None:
        self._db = db
        self.damaged = damaged
        self.lost: set[str] = set()
        self.summed = schema.is_summed(db)

    def of(self, table: str, columns: str, where: str = "") -> str:
        return f"SELECT {schema.read(self._db, columns)} FROM {table} {where}".rstrip()

    def __call__(
        self, what: str, make: Callable[[sqlite3.Row], T], sql: str, *values: float
    ) -> tuple[T, ...]:
        """`what` is lost where not all rows can be read; nothing is where that is empty."""
        if not self.damaged:
            return tuple(map(make, self._db.execute(sql, values)))
        made, whole = self._salvaged(make, sql, *values)
        if what and not whole:
            self.lost.add(what)
        return made

    def _salvaged(
        self, make: Callable[[sqlite3.Row], T], sql: str, *values: float
    ) -> tuple[tuple[T, ...], bool]:
        """The rows that can be read, from both ends: a damaged page hides what lies behind it. And
        whether these are all.
        """
        made: dict[tuple[object, ...], T] = {}
        whole = True
        for query in (sql, f"{sql} DESC" if " ORDER BY " in sql else sql):
            try:
                for row in self._db.execute(query, values):
                    try:
                        made[tuple(row)] = make(row)
                    except _UNREADABLE:
                        whole = False
            except sqlite3.Error:
                whole = False
        return tuple(made.values()), whole


def _store_changes(db: sqlite3.Connection, changes: Changes) -> None:
    if changes.shifted:
        db.execute("UPDATE OR REPLACE marks SET time = time + ?", (changes.shifted,))
        db.execute("UPDATE settled SET time = time + ?", (changes.shifted,))
        db.execute(schema.SUM_SETTLED)
    db.executemany(
        "UPDATE OR IGNORE marks SET device = ? WHERE device = ?",
        [(new, old) for old, new in changes.renamed],
    )
    if changes.shifted or changes.renamed:
        db.execute(schema.SUM_MARKS)
    db.executemany(schema.ADD_MARK, map(rows.mark_row, changes.marks))
    db.executemany(schema.DROP_MARK, map(rows.mark_row, changes.forgotten))
    db.executemany(schema.PUT_DEVICE, map(rows.device_row, changes.devices))
    if changes.settled:
        db.executemany(schema.PUT_SETTLED, map(rows.settled_row, changes.settled))
        db.execute(
            "DELETE FROM settled WHERE id IN (SELECT id FROM settled ORDER BY id DESC LIMIT -1"
            " OFFSET ?)",
            (_SETTLED,),
        )


def _used_bytes(db: sqlite3.Connection) -> int:
    pages: int = (
        db.execute("PRAGMA page_count").fetchone()[0]
        - db.execute("PRAGMA freelist_count").fetchone()[0]
    )
    size: int = db.execute("PRAGMA page_size").fetchone()[0]
    return pages * size
