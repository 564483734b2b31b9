"""
What the publisher remembers over a restart: since when each condition has its status, which taints
it has set, how far events have been sent, what receivers of notifications know, and since when the
GPUs are released. A small SQLite file of its own, because it cannot write the ledger.

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
from pathlib import Path

import structlog

from vitald.lock import hold_lock
from vitald.publish.kubernetes.reconcile import LastTransition
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("publish")

FILE = "publish.db"
_VERSION = 2
_WRITE_S = 5.0
_SCHEMA = f"""
BEGIN;
CREATE TABLE transitions (
    node TEXT NOT NULL, type TEXT NOT NULL, status TEXT NOT NULL, at REAL NOT NULL,
    reason TEXT NOT NULL, before_status TEXT, before_at REAL, before_reason TEXT,
    PRIMARY KEY (node, type)
);
CREATE TABLE taints (key TEXT PRIMARY KEY);
CREATE TABLE cursors (
    name TEXT PRIMARY KEY, position INTEGER NOT NULL, at REAL NOT NULL, combined INTEGER NOT NULL
);
CREATE TABLE moments (name TEXT PRIMARY KEY, at REAL NOT NULL);
PRAGMA user_version = {_VERSION};
COMMIT;
"""
# Apart from the rest: files of that version may lack it.
_RECEIVERS = "CREATE TABLE IF NOT EXISTS receivers (name TEXT PRIMARY KEY, progress TEXT NOT NULL)"


class StateInUse(Exception):
    """Another publisher runs with the same folder. The text names it."""


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
        self._taints: frozenset[str] = frozenset()
        self._cursors: dict[str, Cursor] = {}
        self._moments: dict[str, float] = {}
        self._receivers: dict[str, str] = {}
        self._is_failing = False
        self._thread = WorkerThread("publish-state")
        self._database = self._open(may_create=may_create)

    def read_transitions(self, node: str) -> dict[str, LastTransition]:
        """Of the node with this uid, by condition type."""
        return dict(self._transitions.get(node, {}))

    async def write_transitions(self, node: str, transitions: Mapping[str, LastTransition]) -> None:
        """Replace what is stored of the node; other nodes of that name are forgotten."""
        self._transitions = {node: dict(transitions)}
        rows = [(node, type_, *_build_columns(each)) for type_, each in transitions.items()]
        await self._replace_rows("transitions", rows, 8)

    def read_taints(self) -> frozenset[str]:
        """Keys of taints that may be on the node."""
        return self._taints

    async def add_taint(self, key: str) -> None:
        if key not in self._taints:
            await self._write_taints(self._taints | {key})

    async def drop_taints(self, keys: Collection[str]) -> None:
        if not self._taints.isdisjoint(keys):
            await self._write_taints(self._taints.difference(keys))

    async def _write_taints(self, keys: frozenset[str]) -> None:
        self._taints = keys
        await self._replace_rows("taints", [(key,) for key in keys], 1)

    def read_cursor(self, name: str) -> Cursor | None:
        return self._cursors.get(name)

    async def write_cursor(self, name: str, cursor: Cursor) -> None:
        self._cursors[name] = cursor
        rows = [
            (owner, each.position, each.at, each.combined) for owner, each in self._cursors.items()
        ]
        await self._replace_rows("cursors", rows, 4)

    def read_moment(self, name: str) -> float:
        """Seconds since the epoch; 0 if there is none."""
        return self._moments.get(name, 0.0)

    async def write_moment(self, name: str, at: float) -> None:
        self._moments[name] = at
        await self._replace_rows("moments", list(self._moments.items()), 2)

    def read_progress(self, receiver: str) -> str:
        """What was stored of this receiver of notifications, "" if nothing was."""
        return self._receivers.get(receiver, "")

    async def write_progress(self, receiver: str, progress: str) -> None:
        self._receivers[receiver] = progress
        await self._replace_rows("receivers", list(self._receivers.items()), 2)

    async def keep_receivers(self, names: Collection[str]) -> None:
        """Forget all others."""
        kept = {name: text for name, text in self._receivers.items() if name in names}
        if kept != self._receivers:
            self._receivers = kept
            await self._replace_rows("receivers", list(kept.items()), 2)

    def close(self) -> None:
        """Without waiting: all that was stored is on disk, and the disk may hang."""
        if self._database is not None:
            self._thread.post(self._database.close)
        self._thread.close()

    # --- the file

    async def _replace_rows(
        self, table: str, rows: Sequence[tuple[object, ...]], width: int
    ) -> None:
        """Store the whole table, so that a failed write is made good by the next one."""
        database = self._database
        if database is None:
            return

        def write() -> None:
            with database:
                database.execute(f"DELETE FROM {table}")
                marks = ", ".join("?" * width)
                database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

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
        for node, type_, *columns in database.execute(
            "SELECT node, type, status, at, reason, before_status, before_at, before_reason"
            " FROM transitions"
        ):
            transitions.setdefault(str(node), {})[str(type_)] = _read_columns(*columns)
        self._moments = {
            str(name): float(at) for name, at in database.execute("SELECT name, at FROM moments")
        }
        self._receivers = {
            str(name): str(text)
            for name, text in database.execute("SELECT name, progress FROM receivers")
        }
        self._taints = frozenset(str(key) for (key,) in database.execute("SELECT key FROM taints"))
        self._cursors = {
            str(name): Cursor(position=int(position), at=float(at), combined=int(combined))
            for name, position, at, combined in database.execute(
                "SELECT name, position, at, combined FROM cursors"
            )
        }
        self._transitions = transitions


def _build_columns(transition: LastTransition) -> tuple[object, ...]:
    before = transition.before
    return (
        *(transition.status, transition.at, transition.reason),
        *((None, None, None) if before is None else (before.status, before.at, before.reason)),
    )


def _read_columns(
    status: object,
    at: float,
    reason: object,
    before_status: object,
    before_at: float | None,
    before_reason: object,
) -> LastTransition:
    """Raises ValueError."""
    before = None
    if before_status is not None:
        before = LastTransition(str(before_status), float(before_at or 0.0), str(before_reason))
    return LastTransition(str(status), float(at), str(reason), before)
