"""
What the publisher remembers over a restart: since when each condition has its status, what it has
written to the node, how far events have been sent, and since when the GPUs are released. A small
SQLite file of its own, because it cannot write the ledger.

Everything is in memory, and each change is stored before anything is written elsewhere, by a thread
of its own, since a slow disk must not stop the event loop. Publishing goes on where the file cannot
be written: the node's own conditions and the names of its events stand in for it. A damaged file is
set aside and begun anew.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import structlog

from vitald.lock import hold_lock
from vitald.publish.kubernetes.reconcile import LastTransition
from vitald.publish.notify.progress import Progress, format_progress, parse_progress
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("publish")

FILE = "publish.db"
_VERSION = 1
_WRITE_S = 5.0
_SCHEMA = f"""
BEGIN;
CREATE TABLE transitions (
    node TEXT NOT NULL, type TEXT NOT NULL, status TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (node, type)
);
CREATE TABLE written (kind TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (kind, name));
CREATE TABLE cursors (
    name TEXT PRIMARY KEY, position INTEGER NOT NULL, at REAL NOT NULL, combined INTEGER NOT NULL
);
CREATE TABLE moments (name TEXT PRIMARY KEY, at REAL NOT NULL);
PRAGMA user_version = {_VERSION};
COMMIT;
"""
# It came later. An older version does not read it, so the file keeps its version.
_RECEIVERS = "CREATE TABLE IF NOT EXISTS receivers (name TEXT PRIMARY KEY, progress TEXT NOT NULL)"


class StateInUse(Exception):
    """Another publisher runs with the same folder. The text names it."""


class WrittenKind(Enum):
    CONDITION = "condition"
    LABEL = "label"
    ANNOTATION = "annotation"
    TAINT = "taint"


@dataclass(frozen=True, slots=True)
class WrittenName:
    """The name of something that was written to the node."""

    kind: WrittenKind
    name: str

    def describe(self) -> str:
        return f"{self.kind.value} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far the ledger's transitions have been sent.

    `at` is the time of the transition at `position`: where that differs, the ledger is another one.
    `combined`: the last transition of those that one event is about to stand for; 0 if there are
    none.
    """

    position: int
    at: float
    combined: int = 0


@dataclass(frozen=True, slots=True)
class _Table:
    """All rows of a table of so many columns."""

    name: str
    rows: Sequence[tuple[object, ...]]
    width: int


@contextmanager
def lock_state(folder: Path) -> Iterator[None]:
    """For one publisher at a time. Raises StateInUse.

    Where the folder cannot be used, the publisher runs without a lock, as it runs without a file.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(hold_lock(folder))
        except BlockingIOError:
            raise StateInUse(f"another vitald publish is running with {folder}") from None
        except OSError as error:
            log.warning("state_not_locked", folder=str(folder), error=str(error))
        yield


class StateStore:
    """Reads from memory; a write returns when it is on disk, or has been reported as failed."""

    def __init__(self, folder: Path, *, may_create: bool = True) -> None:
        """`may_create`: make the file if there is none. Raises NoThread."""
        self.path = folder / FILE
        self._transitions: dict[str, dict[str, LastTransition]] = {}
        self._written: frozenset[WrittenName] = frozenset()
        self._cursors: dict[str, Cursor] = {}
        self._moments: dict[str, float] = {}
        self._receivers: dict[str, Progress] = {}
        self._is_failing = False
        self._thread = WorkerThread("publish-state")
        self._database = self._open(may_create=may_create)

    def read_transitions(self, node: str) -> dict[str, LastTransition]:
        """Of the node with this uid, by condition type."""
        return dict(self._transitions.get(node, {}))

    async def write_transitions(self, node: str, transitions: Mapping[str, LastTransition]) -> None:
        """Replace what is stored of the node; other nodes of that name are forgotten."""
        self._transitions = {node: dict(transitions)}
        rows = [(node, type_, each.status, each.at) for type_, each in transitions.items()]
        await self._replace_rows("transitions", rows, 4)

    def read_written(self) -> frozenset[WrittenName]:
        """What may be on the node."""
        return self._written

    async def add_written(self, names: Collection[WrittenName]) -> None:
        if not self._written.issuperset(names):
            await self._write_names(self._written.union(names))

    async def drop_written(self, names: Collection[WrittenName]) -> None:
        if not self._written.isdisjoint(names):
            await self._write_names(self._written.difference(names))

    async def _write_names(self, names: frozenset[WrittenName]) -> None:
        self._written = names
        await self._replace_rows("written", [(each.kind.value, each.name) for each in names], 2)

    def read_cursor(self, name: str) -> Cursor | None:
        return self._cursors.get(name)

    async def write_cursor(self, name: str, cursor: Cursor) -> None:
        self._cursors[name] = cursor
        await self._write_tables(self._list_cursors())

    def read_progress(self, name: str) -> Progress:
        """Of a receiver of notifications."""
        return self._receivers.get(name) or Progress()

    async def write_progress(
        self, name: str, progress: Progress, cursor: Cursor | None = None
    ) -> None:
        """Both together, where there is a cursor."""
        self._receivers[name] = progress
        if cursor is not None:
            self._cursors[name] = cursor
        await self._write_tables(self._list_cursors(), self._list_receivers())

    async def forget_receivers(self, prefix: str, keep: Collection[str]) -> None:
        """Those whose names begin so, but for some: they are no longer configured."""
        former = {*self._receivers, *self._cursors} - {*keep}
        gone = [name for name in former if name.startswith(prefix)]
        if not gone:
            return
        for name in gone:
            self._receivers.pop(name, None)
            self._cursors.pop(name, None)
        await self._write_tables(self._list_cursors(), self._list_receivers())

    def _list_cursors(self) -> _Table:
        rows = [
            (owner, each.position, each.at, each.combined) for owner, each in self._cursors.items()
        ]
        return _Table("cursors", rows, 4)

    def _list_receivers(self) -> _Table:
        rows = [(name, format_progress(each)) for name, each in self._receivers.items()]
        return _Table("receivers", rows, 2)

    def read_moment(self, name: str) -> float:
        """Seconds since the epoch; 0 if there is none."""
        return self._moments.get(name, 0.0)

    async def write_moment(self, name: str, at: float) -> None:
        self._moments[name] = at
        await self._replace_rows("moments", list(self._moments.items()), 2)

    def close(self) -> None:
        """Without waiting: all that was stored is on disk, and the disk may hang."""
        if self._database is not None:
            self._thread.post(self._database.close)
        self._thread.close()

    # --- the file

    async def _replace_rows(
        self, table: str, rows: Sequence[tuple[object, ...]], width: int
    ) -> None:
        await self._write_tables(_Table(table, rows, width))

    async def _write_tables(self, *tables: _Table) -> None:
        """Store whole tables at once, so that a failed write is made good by the next one."""
        database = self._database
        if database is None:
            return

        def write() -> None:
            with database:
                for table in tables:
                    database.execute(f"DELETE FROM {table.name}")
                    marks = ", ".join("?" * table.width)
                    database.executemany(f"INSERT INTO {table.name} VALUES ({marks})", table.rows)

        try:
            await self._thread.call(write, _WRITE_S)
        except (sqlite3.Error, ThreadStuck) as error:
            if not self._is_failing:
                log.error("state_not_stored", path=str(self.path), error=str(error))
            self._is_failing = True
        else:
            self._is_failing = False

    def _open(self, *, may_create: bool) -> sqlite3.Connection | None:
        """None where there is no file, or it cannot be used: then all is kept in memory only."""
        try:
            if not may_create and not self.path.exists():
                return None
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return self._connect()
            except (sqlite3.DatabaseError, ValueError) as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise  # an obstacle; DatabaseError itself is damage
                self._set_aside(error)
            return self._connect()
        except (OSError, sqlite3.Error, ValueError) as error:
            log.error("state_only_in_memory", path=str(self.path), error=str(error))
            return None

    def _set_aside(self, error: Exception) -> None:
        """The rollback journal, too: SQLite would apply it to a new file of that name."""
        aside = self.path.with_name(f"{FILE}.damaged-{int(time.time())}")
        self.path.rename(aside)
        journal = self.path.with_name(f"{FILE}-journal")
        if journal.exists():
            journal.rename(aside.with_name(f"{aside.name}-journal"))
        log.error("state_set_aside", path=str(aside), error=str(error))

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=1.0, check_same_thread=False)
        try:
            database.execute("PRAGMA synchronous = FULL")
            with closing(database.execute("PRAGMA user_version")) as found:
                version = int(found.fetchone()[0])
            if version == 0:
                database.executescript(_SCHEMA)
            elif version != _VERSION:
                raise sqlite3.DatabaseError(f"version {version}, this program knows {_VERSION}")
            database.execute(_RECEIVERS)
            (problem,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if problem != "ok":
                raise sqlite3.DatabaseError(problem)
            self._load(database)
        except sqlite3.OperationalError as error:
            database.close()
            if "no such" in str(error):  # a table or a column
                raise sqlite3.DatabaseError(str(error)) from error
            raise
        except BaseException:
            database.close()
            raise
        return database

    def _load(self, database: sqlite3.Connection) -> None:
        """Raises sqlite3.Error, ValueError."""
        transitions: dict[str, dict[str, LastTransition]] = {}
        for node, type_, status, at in database.execute(
            "SELECT node, type, status, at FROM transitions"
        ):
            transitions.setdefault(str(node), {})[str(type_)] = LastTransition(
                str(status), float(at)
            )
        self._moments = {
            str(name): float(at) for name, at in database.execute("SELECT name, at FROM moments")
        }
        self._receivers = {
            str(name): parse_progress(str(progress))
            for name, progress in database.execute("SELECT name, progress FROM receivers")
        }
        self._written = frozenset(
            WrittenName(WrittenKind(kind), str(name))
            for kind, name in database.execute("SELECT kind, name FROM written")
        )
        self._cursors = {
            str(name): Cursor(position=int(position), at=float(at), combined=int(combined))
            for name, position, at, combined in database.execute(
                "SELECT name, position, at, combined FROM cursors"
            )
        }
        self._transitions = transitions
