"""Each table gives back what was stored, and refuses a row that is not the daemon's."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from tests.unit.builders import event, finding, gpu
from tests.unit.test_runs import FULL
from vitald.ledger import schema
from vitald.ledger.schema import AuditRecord, PastTransition, Seal
from vitald.ledger.table import UNREADABLE, RowDamaged, Table, compute_checksum
from vitald.model.component import Device, Mark, MarkKind
from vitald.model.event import Trust
from vitald.model.finding import (
    Acceptance,
    FindingState,
    Incident,
    Member,
    Requirement,
    ResolvedFault,
)
from vitald.model.source import Position
from vitald.model.words import Action, When

REQUIRED = Requirement(Action.RESET_DEVICE, When.AFTER_JOB, "a reason", True, True)
MEMBER = Member(
    component=gpu(),
    code="xid/79",
    name="xid/79:alias",
    count=3,
    first=1.5,
    last=2.5,
    boot_id="boot-a",
    usec=17,
    addresses=frozenset({"0000:65:00.0", "0000:64:00.0"}),
    pids=frozenset({1, 2}),
    processes=frozenset({"python3"}),
    raw="NVRM: Xid",
)
# One value for each table, none of whose fields has its default.
VALUES: dict[Table[Any], Any] = {
    schema.EVENTS: replace(
        event(
            "xid/79",
            time=3.25,
            raw="NVRM: Xid",
            trust=Trust.ANNOUNCED,
            fields={"a": 1, "b": [1, 2], "c": None},
        ),
        follows="another",
        simulated_until=9.5,
    ),
    schema.FINDINGS: finding(
        id=7,
        since=1.0,
        last=2.0,
        count=4,
        fields={"pid": 1},
        base=REQUIRED,
        context=replace(REQUIRED, action=Action.INSPECT),
        implied=replace(REQUIRED, reason="implied"),
        driver=replace(REQUIRED, when=When.NOW),
        escalation=replace(REQUIRED, unusable=False),
        incident=5,
        read_since=0.5,
        quiet_s=60.0,
        confirmed_by="nvml",
        confirmed_action=Action.RESET_DEVICE,
        remedy_at=1.75,
        state=FindingState.IN_REMEDY,
        accepted=Acceptance(by="alice", reason="x", since=1.0, until=2.0, required=REQUIRED),
        simulated_until=3.0,
        cleared_at=4.0,
        cleared_by="bob",
    ),
    schema.TRANSITIONS: PastTransition(1.0, 7, FindingState.CLEARED, Action.OBSERVE, "why", "id"),
    schema.INCIDENTS: Incident(
        id=5,
        members=(MEMBER, replace(MEMBER, code="xid/48", usec=None)),
        since=1.0,
        last=2.0,
        boot_id="boot-a",
        usec=5,
        rule="bus",
        simulated=True,
        closed_at=3.0,
    ),
    schema.MARKS: Mark(device="GPU-1", time=1.0, kind=MarkKind.FAULT, fault="xid/79", detail="d"),
    schema.DEVICES: Device(component=gpu(), uuid="u", serial="s", reset_at=1.0, placed_at=2.0),
    schema.RESOLVED: ResolvedFault(gpu(), "xid/79", 1.0),
    schema.RUNS: FULL,
    schema.POSITIONS: Position("kernel_log", "boot-a", "[1, 2]"),
    schema.AUDIT: AuditRecord(time=1.0, uid=0, pid=1, verb="clear", target="7", reason="x"),
    schema.SEAL: Seal(commits=4, opened=77),
}
TABLES = pytest.mark.parametrize("table", VALUES, ids=lambda table: table.name)


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.row_factory = sqlite3.Row
    schema.create_tables(connection)
    yield connection
    connection.close()


def stored(db: sqlite3.Connection, table: Table[Any]) -> sqlite3.Row:
    row: sqlite3.Row = db.execute(table.select()).fetchone()
    return row


def with_right_sum(table: Table[Any], row: sqlite3.Row, column: str, value: object) -> Any:
    """The row with another value, as a writer would have left it that is not the daemon."""
    changed = {**{key: row[key] for key in row.keys()}, column: value}  # noqa: SIM118
    summed = [*changed.values()][: -2 if table is schema.RUNS else -1]
    return {**changed, "sum": compute_checksum(*summed)}


@TABLES
def test_what_is_stored_comes_back(db: sqlite3.Connection, table: Table[Any]) -> None:
    (sum_,) = table.put(db, [VALUES[table]])
    row = stored(db, table)
    assert (table.read(row), row["sum"]) == (VALUES[table], sum_)


@pytest.mark.parametrize("value", [value for value in VALUES.values() if is_dataclass(value)])
def test_no_field_is_forgotten(value: Any) -> None:
    """Neither by the table, nor by the value that the test above stores."""
    (table,) = (table for table in VALUES if VALUES[table] is value)
    missing = {field.name for field in fields(value)} - {*table.columns.split(", ")}
    assert missing <= ({"request"} if table is schema.RUNS else set())
    assert not [
        field.name
        for field in fields(value)
        if getattr(value, field.name) == field.default
        and (table, field.name) != (schema.SEAL, "id")
    ]


@TABLES
def test_a_changed_row_is_noticed(db: sqlite3.Connection, table: Table[Any]) -> None:
    table.put(db, [VALUES[table]])
    db.execute(f"UPDATE {table.name} SET sum = sum + 1")
    with pytest.raises(RowDamaged, match=f"{table.name}: a row's checksum is wrong"):
        table.read(stored(db, table))


@TABLES
@pytest.mark.parametrize("wrong", ["not it", "{}", -1, 9e999, b"\xff", None], ids=str)
def test_a_value_of_another_type_is_refused(
    db: sqlite3.Connection, table: Table[Any], wrong: object
) -> None:
    """Whatever its checksum: by the column, or because it is a right value of it."""
    table.put(db, [VALUES[table]])
    row = stored(db, table)
    for column in table.columns.split(", ")[:-1]:
        try:
            made = table.read(with_right_sum(table, row, column, wrong))
        except UNREADABLE:
            continue
        assert table.write(made)[table.columns.split(", ").index(column)] == wrong, column


@pytest.mark.parametrize("change", [{"reason": None}, {"more": 1}, {"action": "beer"}])
def test_a_requirement_with_other_keys_or_values_is_refused(
    db: sqlite3.Connection, change: dict[str, object]
) -> None:
    table = schema.FINDINGS
    table.put(db, [VALUES[table]])
    row = stored(db, table)
    base = {**json.loads(row["base"]), **change}
    with pytest.raises(UNREADABLE):
        table.read(with_right_sum(table, row, "base", json.dumps(base)))


def test_an_incident_without_members_is_refused(db: sqlite3.Connection) -> None:
    table = schema.INCIDENTS
    table.put(db, [VALUES[table]])
    with pytest.raises(RowDamaged, match="an incident without members"):
        table.read(with_right_sum(table, stored(db, table), "members", "[]"))


@pytest.mark.parametrize(
    "table",
    [schema.EVENTS, schema.TRANSITIONS, schema.MARKS, schema.AUDIT, schema.RESOLVED],
    ids=lambda table: table.name,
)
def test_a_value_that_cannot_be_stored_is_not_left_out(
    db: sqlite3.Connection, table: Table[Any]
) -> None:
    """SQLite stores a NaN as NULL."""
    value = VALUES[table]
    wrong = (
        value._replace(time=math.nan) if table is schema.RESOLVED else replace(value, time=math.nan)
    )
    with pytest.raises(sqlite3.IntegrityError, match=f"{table.name}.time"):
        table.put(db, [wrong])


def test_a_row_is_deleted_by_its_values(db: sqlite3.Connection) -> None:
    kept = replace(VALUES[schema.MARKS], detail="another")
    schema.MARKS.put(db, [VALUES[schema.MARKS], kept])
    schema.MARKS.delete(db, [VALUES[schema.MARKS]])
    assert schema.MARKS.read(stored(db, schema.MARKS)) == kept
