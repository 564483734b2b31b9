"""
What the publisher remembers over a restart: since when each condition has its status, and how far
events have been sent. A small SQLite file of its own, because it cannot write the ledger.

A file that cannot be used is set aside and begun anew: the node's own conditions and the names of
its events stand in for it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import structlog

from vitald.publish.kubernetes.reconcile import LastTransition

log: structlog.stdlib.BoundLogger = structlog.get_logger("publish")

FILE = "publish.db"
_VERSION = 1
_SCHEMA = f"""
CREATE TABLE transitions (
    node TEXT NOT NULL, type TEXT NOT NULL, status TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (node, type)
);
CREATE TABLE cursors (name TEXT PRIMARY KEY, position INTEGER NOT NULL);
PRAGMA user_version = {_VERSION};
"""


class StateStore:
    """Blocking, and fast: a few rows."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._database = self._open()

    def read_transitions(self, node: str) -> dict[str, LastTransition]:
        """Of the node with this uid, by condition type."""
        rows = self._database.execute(
            "SELECT type, status, at FROM transitions WHERE node = ?", (node,)
        )
        return {type_: LastTransition(status, at) for type_, status, at in rows}

    def write_transitions(self, node: str, transitions: Mapping[str, LastTransition]) -> None:
        """Replace what is stored of the node; other nodes of that name are forgotten."""
        with self._database:
            self._database.execute("DELETE FROM transitions")
            self._database.executemany(
                "INSERT INTO transitions VALUES (?, ?, ?, ?)",
                [(node, type_, each.status, each.at) for type_, each in transitions.items()],
            )

    def read_cursor(self, name: str) -> int | None:
        row = self._database.execute(
            "SELECT position FROM cursors WHERE name = ?", (name,)
        ).fetchone()
        return None if row is None else int(row[0])

    def write_cursor(self, name: str, position: int) -> None:
        with self._database:
            self._database.execute("INSERT OR REPLACE INTO cursors VALUES (?, ?)", (name, position))

    def close(self) -> None:
        self._database.close()

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return _connect(self.path)
        except sqlite3.DatabaseError as error:
            aside = self.path.with_name(f"{FILE}.damaged-{int(time.time())}")
            self.path.rename(aside)
            log.error("state_set_aside", path=str(aside), error=str(error))
            return _connect(self.path)


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, check_same_thread=False)
    try:
        with closing(database.execute("PRAGMA user_version")) as found:
            version = int(found.fetchone()[0])
        if version == 0:
            database.executescript(_SCHEMA)
        elif version != _VERSION:
            raise sqlite3.DatabaseError(f"version {version}, this program knows {_VERSION}")
    except sqlite3.DatabaseError:
        database.close()
        raise
    return database
