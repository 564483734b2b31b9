"""
The ledger's tables: migrations, columns, and the statements that write rows.

Owns     the SQL of the schema, its version and its migrations. Values are bound by column names, so
         that their order does not matter.
Refuses  the meaning of rows: that is `rows`.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import vitald.ledger.sums as sums

# One entry for each version, applied in order; `user_version` is the number of applied ones. A step
# that adds a column to a table with checksums must compute these again.
MIGRATIONS = (
    """
    CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT, identity TEXT NOT NULL UNIQUE, time REAL NOT NULL,
        source TEXT NOT NULL,
        kind TEXT NOT NULL, code TEXT NOT NULL, component TEXT NOT NULL, boot_id TEXT NOT NULL,
        trust TEXT NOT NULL,
        follows TEXT, simulated_until REAL, fields TEXT NOT NULL, raw TEXT NOT NULL);
    CREATE INDEX events_time ON events (time);
    CREATE INDEX events_code ON events (code, id);
    CREATE INDEX events_kind ON events (kind, id);
    CREATE INDEX events_component ON events (component, id);
    CREATE INDEX events_follows ON events (follows) WHERE follows IS NOT NULL;
    CREATE TABLE findings (
        id INTEGER PRIMARY KEY, component TEXT NOT NULL, code TEXT NOT NULL, kind TEXT NOT NULL,
        action TEXT NOT NULL,
        due TEXT NOT NULL, since REAL NOT NULL, last REAL NOT NULL, count INTEGER NOT NULL,
        boot_id TEXT NOT NULL,
        title TEXT NOT NULL, raw TEXT NOT NULL, fields TEXT NOT NULL, state TEXT NOT NULL,
        simulated_until REAL,
        cleared_at REAL, cleared_by TEXT);
    CREATE INDEX findings_open ON findings (id) WHERE state = 'open';
    CREATE TABLE transitions (
        id INTEGER PRIMARY KEY, time REAL NOT NULL, finding INTEGER NOT NULL,
        state TEXT NOT NULL, action TEXT NOT NULL,
        cause TEXT NOT NULL, event TEXT, UNIQUE (finding, time, cause));
    CREATE TABLE positions (source TEXT PRIMARY KEY, boot_id TEXT NOT NULL, cursor TEXT NOT NULL);
    CREATE TABLE audit (id INTEGER PRIMARY KEY, time REAL NOT NULL, uid INTEGER NOT NULL,
    pid INTEGER NOT NULL, verb TEXT NOT NULL, target TEXT NOT NULL, reason TEXT NOT NULL,
    UNIQUE (time, uid, pid, verb, target));
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
        id INTEGER PRIMARY KEY, since REAL NOT NULL, last REAL NOT NULL, closed_at REAL,
        story TEXT NOT NULL, simulated INTEGER NOT NULL,
        boot_id TEXT NOT NULL, usec INTEGER, members TEXT NOT NULL);
    CREATE INDEX incidents_last ON incidents (last);
    CREATE INDEX incidents_open ON incidents (id) WHERE closed_at IS NULL;
    CREATE TABLE marks (
        id INTEGER PRIMARY KEY, device TEXT NOT NULL, time REAL NOT NULL, kind TEXT NOT NULL,
        fault TEXT NOT NULL, detail TEXT NOT NULL,
        UNIQUE (device, time, kind, fault, detail));
    CREATE TABLE devices (component TEXT PRIMARY KEY, uuid TEXT NOT NULL, serial TEXT NOT NULL,
    reset_at REAL NOT NULL, placed_at REAL NOT NULL);
    """,
    # Before this, the text of `cleared_by` showed which findings were closed by evidence.
    """
    CREATE TABLE settled (id INTEGER PRIMARY KEY, component TEXT NOT NULL, code TEXT NOT NULL,
    time REAL NOT NULL, UNIQUE (component, code));
    INSERT OR REPLACE INTO settled (component, code, time) SELECT component, code, cleared_at FROM (
        SELECT id, component, code, cleared_at FROM findings
        WHERE state = 'cleared' AND simulated_until IS NULL AND NOT shadow
        AND cleared_at IS NOT NULL
        AND cleared_by NOT LIKE 'the node was rebooted%'
        AND cleared_by NOT LIKE 'quiet for as long as%'
        AND cleared_by NOT LIKE 'told as a consequence of%'
        AND cleared_by NOT LIKE 'the catalogue no longer%'
        ORDER BY id DESC LIMIT 1000) ORDER BY id;
    """,
    """
    CREATE TABLE runs (
        id TEXT PRIMARY KEY, kind TEXT NOT NULL, level INTEGER NOT NULL, began REAL NOT NULL,
        ended REAL NOT NULL, told TEXT NOT NULL, raw BLOB);
    CREATE INDEX runs_ended ON runs (ended);
    CREATE INDEX runs_kind ON runs (kind, level, ended);
    """,
    """
    ALTER TABLE findings ADD COLUMN accepted TEXT;
    """,
    # What confirmed a finding; and a checksum for each row. Existing events, of which there may be
    # a million, get none; every row that a verdict depends on gets one.
    """
    ALTER TABLE events ADD COLUMN sum INTEGER;
    ALTER TABLE transitions ADD COLUMN sum INTEGER;
    ALTER TABLE runs ADD COLUMN sum INTEGER;
    ALTER TABLE findings ADD COLUMN confirmed_by TEXT;
    ALTER TABLE findings ADD COLUMN sum INTEGER;
    UPDATE findings SET sum = checksum(id, component, code, kind, action, due, since, last,
    count, boot_id, title, raw, fields, state,
        simulated_until, cleared_at, cleared_by, asked, source, incident, heard_since, quiet_s,
        shadow, remedy_at, accepted, confirmed_by);
    ALTER TABLE incidents ADD COLUMN sum INTEGER;
    UPDATE incidents SET sum = checksum(id, since, last, closed_at, story, simulated, boot_id,
    usec, members);
    ALTER TABLE marks ADD COLUMN sum INTEGER;
    UPDATE marks SET sum = checksum(device, time, kind, fault, detail);
    ALTER TABLE devices ADD COLUMN sum INTEGER;
    UPDATE devices SET sum = checksum(component, uuid, serial, reset_at, placed_at);
    ALTER TABLE settled ADD COLUMN sum INTEGER;
    UPDATE settled SET sum = checksum(component, code, time);
    ALTER TABLE positions ADD COLUMN sum INTEGER;
    UPDATE positions SET sum = checksum(source, boot_id, cursor);
    CREATE TABLE seal (id INTEGER PRIMARY KEY, commits INTEGER NOT NULL, opened INTEGER NOT NULL,
    sum INTEGER NOT NULL);
    INSERT INTO seal SELECT 1, 0, coalesce(digest(sum), 0), 0
        FROM findings WHERE state != 'cleared';
    UPDATE seal SET sum = checksum(commits, opened);
    """,
)
VERSION = len(MIGRATIONS)
_SUMMED_SINCE = 6


def read_version(db: sqlite3.Connection) -> int:
    """Number of migrations that were applied to a ledger; 0 for a new one."""
    number: int = db.execute("PRAGMA user_version").fetchone()[0]
    return number


def inspect_version(path: Path, *, log: bool = True) -> int:
    """The version of a ledger that no process has open, without changing any of its files.

    Opening a ledger whose writer was killed would change it: the last connection that closes moves
    the write-ahead log into the file. `log`: the write-ahead log is read, too; SQLite would remove
    one that is too damaged to be read. Raises sqlite3.Error.
    """
    beside = path.with_name(path.name + "-wal")
    # Without locks SQLite keeps the index of a log in memory; without a log it would create one.
    how = "vfs=unix-none" if log and beside.exists() and beside.stat().st_size else "immutable=1"
    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&{how}", uri=True, isolation_level=None)
    ) as db:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        return read_version(db)


def migrate_schema(db: sqlite3.Connection) -> None:
    """Migrate an older ledger, or an empty one, to this version.

    Each step is one transaction with its version number: after a full disk, a signal or a power cut
    the ledger has either version. That is why no copy is made before: it would protect from nothing
    else, take the space of a second ledger, and lack what was evaluated after the upgrade.
    """
    sums.register_functions(db)
    behind = read_version(db)
    for number, script in enumerate(MIGRATIONS[behind:], start=behind + 1):
        db.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT;")


def _build_insert(otherwise: str, table: str, columns: str) -> str:
    named = ", ".join(f":{column}" for column in columns.split(", "))
    return f"INSERT OR {otherwise} INTO {table} ({columns}) VALUES ({named})"


def _build_summed_insert(otherwise: str, table: str, columns: str) -> str:
    return _build_insert(otherwise, table, f"{columns}, sum")


def _build_sum_update(table: str, columns: str) -> str:
    return f"UPDATE {table} SET sum = checksum({columns})"


def is_summed(db: sqlite3.Connection) -> bool:
    """Whether the rows of this ledger have checksums."""
    return read_version(db) >= _SUMMED_SINCE


def list_columns(db: sqlite3.Connection, columns: str) -> str:
    """The columns and the checksum for SELECT, also for a ledger without checksums."""
    return f"{columns}, {'sum' if is_summed(db) else sums.UNSUMMED} AS sum"


EVENT = (
    "identity, time, source, kind, code, component, boot_id, trust, follows, simulated_until,"
    " fields, raw"
)
FINDING = (
    "id, component, code, kind, action, due, since, last, count, boot_id, title, raw, fields,"
    " state, simulated_until, cleared_at, cleared_by, asked, source, incident, heard_since,"
    " quiet_s, remedy_at, accepted, confirmed_by"
)
TRANSITION = "time, finding, state, action, cause, event"
INCIDENT = "id, since, last, closed_at, story, simulated, boot_id, usec, members"
MARK = "device, time, kind, fault, detail"
DEVICE = "component, uuid, serial, reset_at, placed_at"
SETTLED = "component, code, time"
POSITION = "source, boot_id, cursor"
RUN_SUMMARY = "id, kind, level, began, ended, told"
RUN = f"{RUN_SUMMARY}, raw"  # the output is deleted after a time, and zlib has its own checksum
SEAL = "commits, opened"
AUDIT = "time, uid, pid, verb, target, reason"

ADD_EVENT = _build_summed_insert("IGNORE", "events", EVENT)
PUT_FINDING = _build_summed_insert("REPLACE", "findings", FINDING)
ADD_TRANSITION = _build_summed_insert("IGNORE", "transitions", TRANSITION)
PUT_INCIDENT = _build_summed_insert("REPLACE", "incidents", INCIDENT)
ADD_MARK = _build_summed_insert("IGNORE", "marks", MARK)
PUT_DEVICE = _build_summed_insert("REPLACE", "devices", DEVICE)
PUT_SETTLED = _build_summed_insert("REPLACE", "settled", SETTLED)
PUT_POSITION = _build_summed_insert("REPLACE", "positions", POSITION)
PUT_RUN = _build_summed_insert("REPLACE", "runs", RUN)
PUT_SEAL = _build_summed_insert("REPLACE", "seal", f"id, {SEAL}")
ADD_AUDIT = _build_insert("IGNORE", "audit", AUDIT)
DROP_MARK = "DELETE FROM marks WHERE " + " AND ".join(
    f"{column} = :{column}" for column in MARK.split(", ")
)
SUM_MARKS = _build_sum_update("marks", MARK)
SUM_SETTLED = _build_sum_update("settled", SETTLED)
