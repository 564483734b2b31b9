"""
The ledger's tables: their columns and indexes, and the version of all this.

Owns     what is stored of each value, and creating the tables in a new file.
Refuses  statements and checks, which are `table`'s, and when they run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vitald.ledger.table as sums
from vitald.ledger.table import (
    COMPONENT,
    COUNT,
    FLAG,
    ID,
    NAME,
    NUMBER,
    OBJECT,
    TEXT,
    TIME,
    WHOLE,
    ZIPPED,
    RowDamaged,
    Table,
    json_of,
    list_of,
    mapping_of,
    member_of,
    optional,
    record,
)
from vitald.model.component import Device, Mark, MarkKind
from vitald.model.diagnostic import Fault, Measure, Report, Run, RunRequest, Test
from vitald.model.event import Event, Trust
from vitald.model.finding import (
    Acceptance,
    Finding,
    FindingState,
    Incident,
    Member,
    Requirement,
    ResolvedFault,
    Transition,
)
from vitald.model.source import Position
from vitald.model.words import Action, Outcome, Remedy, When

VERSION = 1  # `PRAGMA user_version`


@dataclass(frozen=True, slots=True)
class PastTransition:
    """A transition as stored, with the state and action that its finding had then."""

    time: float
    finding: int
    state: FindingState
    action: Action
    cause: str
    event: str | None

    @classmethod
    def from_transition(cls, transition: Transition) -> PastTransition:
        finding = transition.finding
        return cls(
            time=transition.time,
            finding=finding.id,
            state=finding.state,
            action=finding.action,
            cause=transition.cause,
            event=transition.event,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """A change that a user requested, for the audit log."""

    time: float
    uid: int
    pid: int
    verb: str
    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class Seal:
    """What a ledger must contain: the number of commits, and the combined checksums of its open
    findings.
    """

    commits: int = 0
    opened: int = 0
    id: int = 1  # there is one


def _make_run(
    *,
    kind: str,
    level: int,
    gpus: tuple[int, ...],
    requester: str,
    reason: str,
    busy: bool,
    **columns: Any,
) -> Run:
    request = RunRequest(check=kind, level=level, gpus=gpus, by=requester, reason=reason, busy=busy)
    return Run(request=request, **columns)


def _collect_members(members: Iterable[Member]) -> tuple[Member, ...]:
    if not (made := tuple(members)):
        raise RowDamaged("an incident without members")
    return made


_REQUIREMENT = record(
    Requirement,
    action=member_of(Action),
    when=member_of(When),
    reason=TEXT,
    unusable=FLAG,
    unknown=FLAG,
)
_ACCEPTANCE = record(
    Acceptance, by=TEXT, reason=TEXT, since=TIME, until=TIME, required=_REQUIREMENT
)
_MEMBER = record(
    Member,
    component=COMPONENT,
    code=NAME,
    name=TEXT,
    count=COUNT,
    first=TIME,
    last=TIME,
    boot_id=TEXT,
    usec=optional(COUNT),
    addresses=list_of(TEXT, frozenset),
    pids=list_of(COUNT, frozenset),
    processes=list_of(TEXT, frozenset),
    raw=TEXT,
)
_TEST = record(
    Test, name=TEXT, category=TEXT, status=TEXT, gpus=mapping_of(TEXT), cpus=mapping_of(TEXT)
)
_FAULT = record(
    Fault,
    code=NAME,
    test=TEXT,
    text=TEXT,
    gpu=optional(WHOLE),
    device=TEXT,
    error_id=optional(WHOLE),
    category=optional(WHOLE),
    severity=optional(WHOLE),
    remedy=member_of(Remedy),
    confirm=FLAG,
    confirmed=FLAG,
    by_text=FLAG,
    implied=FLAG,
)
_MEASURE = record(
    Measure,
    name=TEXT,
    value=NUMBER,
    device=TEXT,
    minimum=optional(NUMBER),
    maximum=optional(NUMBER),
)
_REPORT = record(
    Report,
    outcome=member_of(Outcome),
    reason=TEXT,
    remedy=member_of(Remedy),
    reboot_required=FLAG,
    replacement_required=FLAG,
    tests=list_of(_TEST),
    faults=list_of(_FAULT),
    culprits=list_of(WHOLE),
    measures=list_of(_MEASURE),
    dcgm_version=TEXT,
    driver_version=TEXT,
    device_ids=list_of(TEXT),
    serials=mapping_of(TEXT, int),
)

EVENTS = Table(
    "events",
    Event,
    {
        "identity": NAME,
        "time": TIME,
        "source": TEXT,
        "kind": TEXT,
        "code": NAME,
        "component": COMPONENT,
        "boot_id": TEXT,
        "trust": member_of(Trust),
        "follows": optional(NAME),
        "simulated_until": optional(TIME),
        "fields": json_of(OBJECT),
        "raw": TEXT,
    },
    serial="INTEGER PRIMARY KEY AUTOINCREMENT",
    constraints=("UNIQUE (identity)",),
)
FINDINGS = Table(
    "findings",
    Finding,
    {
        "id": ID,
        "component": COMPONENT,
        "code": NAME,
        "kind": TEXT,
        "since": TIME,
        "last": TIME,
        "count": COUNT,
        "boot_id": TEXT,
        "title": TEXT,
        "raw": TEXT,
        "fields": json_of(OBJECT),
        "source": TEXT,
        "base": json_of(_REQUIREMENT),
        "context": optional(json_of(_REQUIREMENT)),
        "implied": optional(json_of(_REQUIREMENT)),
        "driver": optional(json_of(_REQUIREMENT)),
        "escalation": optional(json_of(_REQUIREMENT)),
        "incident": COUNT,
        "read_since": TIME,
        "quiet_s": optional(TIME),
        "confirmed_by": TEXT,
        "confirmed_action": member_of(Action),
        "remedy_at": optional(TIME),
        "state": member_of(FindingState),
        "accepted": optional(json_of(_ACCEPTANCE)),
        "simulated_until": optional(TIME),
        "cleared_at": optional(TIME),
        "cleared_by": optional(TEXT),
    },
    constraints=("PRIMARY KEY (id)",),
    replaces=True,
)
TRANSITIONS = Table(
    "transitions",
    PastTransition,
    {
        "time": TIME,
        "finding": ID,
        "state": member_of(FindingState),
        "action": member_of(Action),
        "cause": TEXT,
        "event": optional(TEXT),
    },
    serial="INTEGER PRIMARY KEY",
    constraints=("UNIQUE (finding, time, cause)",),
)
INCIDENTS = Table(
    "incidents",
    Incident,
    {
        "id": ID,
        "members": json_of(list_of(_MEMBER, _collect_members)),
        "since": TIME,
        "last": TIME,
        "boot_id": TEXT,
        "usec": optional(COUNT),
        "rule": TEXT,
        "simulated": FLAG,
        "closed_at": optional(TIME),
    },
    constraints=("PRIMARY KEY (id)",),
    replaces=True,
)
MARKS = Table(
    "marks",
    Mark,
    {"device": NAME, "time": TIME, "kind": member_of(MarkKind), "fault": TEXT, "detail": TEXT},
    serial="INTEGER PRIMARY KEY",
    constraints=("UNIQUE (device, time, kind, fault, detail)",),
)
DEVICES = Table(
    "devices",
    Device,
    {"component": COMPONENT, "uuid": TEXT, "serial": TEXT, "reset_at": TIME, "placed_at": TIME},
    constraints=("PRIMARY KEY (component)",),
    replaces=True,
)
RESOLVED = Table(
    "resolved",
    ResolvedFault,
    {"component": COMPONENT, "code": NAME, "time": TIME},
    serial="INTEGER PRIMARY KEY",
    constraints=("UNIQUE (component, code)",),
    replaces=True,
)
RUNS = Table(
    "runs",
    _make_run,
    {
        "id": NAME,
        "kind": NAME.of("request.check"),
        "level": COUNT.of("request.level"),
        "gpus": json_of(list_of(COUNT)).of("request.gpus"),
        "requester": TEXT.of("request.by"),
        "reason": TEXT.of("request.reason"),
        "busy": FLAG.of("request.busy"),
        "began": TIME,
        "ended": TIME,
        "exit_code": optional(WHOLE),
        "command": TEXT,
        "preempted": TEXT,
        "report": json_of(_REPORT),
        "raw": ZIPPED,  # deleted after a time, and with a checksum of its own
    },
    constraints=("PRIMARY KEY (id)",),
    replaces=True,
    unsummed=1,
)
POSITIONS = Table(
    "positions",
    Position,
    {"source": NAME, "boot_id": TEXT, "cursor": TEXT},
    constraints=("PRIMARY KEY (source)",),
    replaces=True,
)
AUDIT = Table(
    "audit",
    AuditRecord,
    {"time": TIME, "uid": WHOLE, "pid": WHOLE, "verb": TEXT, "target": TEXT, "reason": TEXT},
    serial="INTEGER PRIMARY KEY",
    constraints=("UNIQUE (time, uid, pid, verb, target)",),
)
SEAL = Table(
    "seal",
    Seal,
    {"id": ID, "commits": COUNT, "opened": COUNT},
    constraints=("PRIMARY KEY (id)",),
    replaces=True,
)
# What a start reads
STATE = (FINDINGS, INCIDENTS, MARKS, DEVICES, RESOLVED, POSITIONS, SEAL)
_INDEXES = (
    "events_time ON events (time)",
    "events_code ON events (code, id)",
    "events_kind ON events (kind, id)",
    "events_component ON events (component, id)",
    "events_follows ON events (follows) WHERE follows IS NOT NULL",
    "findings_open ON findings (id) WHERE state != 'cleared'",
    "findings_incident ON findings (incident)",
    "transitions_finding ON transitions (finding)",
    "incidents_last ON incidents (last)",
    "incidents_open ON incidents (id) WHERE closed_at IS NULL",
    "runs_ended ON runs (ended)",
    "runs_kind ON runs (kind, level, ended)",
)


def create_tables(db: sqlite3.Connection) -> None:
    """Create the tables in a new ledger, in one transaction, and register SQL's `checksum`."""
    sums.register_function(db)
    if read_version(db):
        return
    db.execute("BEGIN IMMEDIATE")
    for table in (*STATE, EVENTS, TRANSITIONS, RUNS, AUDIT):
        db.execute(table.definition)
    for index in _INDEXES:
        db.execute(f"CREATE INDEX {index}")
    SEAL.put(db, (Seal(),))
    db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")


def read_version(db: sqlite3.Connection) -> int:
    """Version of a ledger's schema; 0 for a new one."""
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
