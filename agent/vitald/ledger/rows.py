"""
Conversion between the data model and rows, in both directions.

Owns     which column holds what, the JSON inside a column, and the validity of a row: its checksum
         is right, and each value has the expected type. A row to write is a dict, a row that was
         read an `sqlite3.Row`; both are accessed by column names.
Refuses  SQL and connections.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any, TypeVar

import vitald.ledger.schema as schema
from vitald.ledger.sums import UNSUMMED, compute_checksum
from vitald.model import (
    KERNEL_LOG,
    Acceptance,
    Action,
    Component,
    Device,
    Event,
    Fields,
    Finding,
    FindingState,
    Incident,
    Mark,
    MarkKind,
    Member,
    Position,
    Requirement,
    Transition,
    Trust,
    When,
)
from vitald.model.diagnostic import Fault, Measure, Outcome, Remedy, Report, Run, RunRequest, Test

Row = dict[str, object]
T = TypeVar("T")

# The layers of a finding's requirement: attribute of a finding, key in the column `asked`.
_LAYERS = {
    "base": "ruled",
    "context": "context",
    "implied": "told",
    "driver": "driver",
    "escalation": "escalated",
}
_CONFIRMED = "confirmed"  # key in the same column of a finding of which not all is confirmed
_NO_DATE = 62_135_596_800.0  # seconds to the year 1, and fewer than to the year 9999
# What reading a row raises if it is damaged or not the daemon's.
UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
    OverflowError,
    zlib.error,
)


class RowDamaged(ValueError):
    """A row is not as it was written; the text says which."""


class _SummedTable:
    """A table with the columns that the checksum of a row covers."""

    def __init__(self, name: str, columns: str, *, may_lack: bool = False) -> None:
        """`may_lack`: rows of earlier versions have no checksum."""
        self._name = name
        self._values = itemgetter(*columns.split(", "))
        self._missing = (UNSUMMED, None) if may_lack else (UNSUMMED,)

    def add_sum(self, row: Row) -> Row:
        row["sum"] = compute_checksum(*self._values(row))
        return row

    def check_sum(self, row: sqlite3.Row) -> None:
        """Raises RowDamaged."""
        found = row["sum"]
        if found not in self._missing and found != compute_checksum(*self._values(row)):
            raise RowDamaged(f"{self._name}: a row's checksum is wrong ({self._values(row)[0]})")


_EVENTS = _SummedTable("events", schema.EVENT, may_lack=True)
_TRANSITIONS = _SummedTable("transitions", schema.TRANSITION, may_lack=True)
_RUNS = _SummedTable("runs", schema.RUN_SUMMARY, may_lack=True)
_FINDINGS, _INCIDENTS = (
    _SummedTable("findings", schema.FINDING),
    _SummedTable("incidents", schema.INCIDENT),
)
_MARKS, _DEVICES = _SummedTable("marks", schema.MARK), _SummedTable("devices", schema.DEVICE)
_SETTLED, _POSITIONS = (
    _SummedTable("settled", schema.SETTLED),
    _SummedTable("positions", schema.POSITION),
)
_SEALS = _SummedTable("seal", schema.SEAL)


# --- values with the expected type; each function raises RowDamaged


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise RowDamaged(f"no text: {value!r}")
    return value


def _read_name(value: object) -> str:
    if not _read_text(value):
        raise RowDamaged("an empty name")
    return str(value)


def _read_time(value: object) -> float:
    """A time in seconds that has a date."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _NO_DATE:
        raise RowDamaged(f"no time: {value!r}")
    return float(value)


def _read_number(value: object, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RowDamaged(f"no number of {least} or more: {value!r}")
    return value


def _read_flag(value: object) -> bool:
    if value not in (0, 1):
        raise RowDamaged(f"neither true nor false: {value!r}")
    return bool(value)


def _read_optional(read: Callable[[object], T], value: object) -> T | None:
    return None if value is None else read(value)


def _read_component(value: object) -> Component:
    made = Component.parse_name(_read_text(value))
    if made.name != value:
        raise RowDamaged(f"no component: {value!r}")
    return made


def _read_fields(value: object) -> Fields:
    made = json.loads(_read_text(value))
    if not isinstance(made, dict):
        raise RowDamaged(f"no fields: {type(made).__name__}")
    return made


def _read_list(value: object, read: Callable[[object], T]) -> list[T]:
    if not isinstance(value, list):
        raise RowDamaged(f"no list: {value!r}")
    return [read(item) for item in value]


# --- types of the data model


def event_row(event: Event) -> Row:
    row: Row = {
        "identity": event.identity,
        "time": event.time,
        "source": event.source,
        "kind": event.kind,
        "code": event.code,
        "component": event.component.name,
        "boot_id": event.boot_id,
        "trust": event.trust.value,
        "follows": event.follows,
        "simulated_until": event.simulated_until,
        "fields": json.dumps(event.fields),
        "raw": event.raw,
    }
    return _EVENTS.add_sum(row)


def event_of(row: sqlite3.Row) -> Event:
    _EVENTS.check_sum(row)
    return Event(
        identity=_read_name(row["identity"]),
        time=_read_time(row["time"]),
        source=_read_text(row["source"]),
        kind=_read_text(row["kind"]),
        code=_read_name(row["code"]),
        component=_read_component(row["component"]),
        boot_id=_read_text(row["boot_id"]),
        trust=Trust(row["trust"]),
        follows=_read_optional(_read_name, row["follows"]),
        simulated_until=_read_optional(_read_time, row["simulated_until"]),
        fields=_read_fields(row["fields"]),
        raw=_read_text(row["raw"]),
    )


def finding_row(finding: Finding) -> Row:
    layers = {key: getattr(finding, name) for name, key in _LAYERS.items()}
    asked = {key: _list_requirement(layer) for key, layer in layers.items() if layer is not None}
    if finding.confirmed_action is not Action.REPLACE_NODE:
        asked[_CONFIRMED] = [finding.confirmed_action.value]
    row: Row = {
        "id": finding.id,
        "component": finding.component.name,
        "code": finding.code,
        "kind": finding.kind,
        "action": finding.action.value,
        "due": finding.when.value,
        "since": finding.since,
        "last": finding.last,
        "count": finding.count,
        "boot_id": finding.boot_id,
        "title": finding.title,
        "raw": finding.raw,
        "fields": json.dumps(finding.fields),
        "state": finding.state.value,
        "simulated_until": finding.simulated_until,
        "cleared_at": finding.cleared_at,
        "cleared_by": finding.cleared_by,
        "asked": json.dumps(asked),
        "accepted": json.dumps(_tabulate_acceptance(finding.accepted))
        if finding.accepted is not None
        else None,
        "confirmed_by": finding.confirmed_by,
        "source": finding.source,
        "incident": finding.incident,
        "heard_since": finding.heard_since,
        "quiet_s": finding.quiet_s,
        "remedy_at": finding.remedy_at,
    }
    return _FINDINGS.add_sum(row)


def finding_of(row: sqlite3.Row) -> Finding:
    _FINDINGS.check_sum(row)
    asked = _read_layers(row["asked"])
    (confirmed,) = asked.pop(_CONFIRMED, [Action.REPLACE_NODE])
    layers = {name: _make_requirement(*layer) for name, layer in asked.items()}
    return Finding(
        id=_read_number(row["id"], 1),
        component=_read_component(row["component"]),
        code=_read_name(row["code"]),
        kind=_read_text(row["kind"]),
        since=_read_time(row["since"]),
        last=_read_time(row["last"]),
        count=_read_number(row["count"]),
        boot_id=_read_text(row["boot_id"]),
        title=_read_text(row["title"]),
        raw=_read_text(row["raw"]),
        fields=_read_fields(row["fields"]),
        source=_read_text(row["source"]),
        base=layers.get("ruled") or Requirement(Action(row["action"]), When(row["due"])),
        context=layers.get("context"),
        implied=layers.get("told"),
        driver=layers.get("driver"),
        escalation=layers.get("escalated"),
        incident=_read_number(row["incident"]),
        heard_since=_read_time(row["heard_since"]),
        quiet_s=_read_optional(_read_time, row["quiet_s"]),
        confirmed_by=_read_text(row["confirmed_by"])
        if row["confirmed_by"] is not None
        else _default_confirmation(row["source"]),
        confirmed_action=Action(confirmed),
        accepted=_make_acceptance(**json.loads(_read_text(row["accepted"])))
        if row["accepted"] is not None
        else None,
        remedy_at=_read_optional(_read_time, row["remedy_at"]),
        state=FindingState(row["state"]),
        simulated_until=_read_optional(_read_time, row["simulated_until"]),
        cleared_at=_read_optional(_read_time, row["cleared_at"]),
        cleared_by=_read_optional(_read_text, row["cleared_by"]),
    )


def _read_layers(value: object) -> dict[str, list[Any]]:
    made = json.loads(_read_text(value)) if value is not None else {}
    if not isinstance(made, dict) or not made.keys() <= {*_LAYERS.values(), _CONFIRMED}:
        raise RowDamaged("what it asks for is not what a finding has")
    return made


def _default_confirmation(source: str) -> str:
    """`confirmed_by` of a finding of an earlier version: its source, unless that is the log."""
    return "" if source == KERNEL_LOG else source


def _list_requirement(asked: Requirement) -> list[object]:
    return [asked.action.value, asked.when.value, asked.because, asked.unusable, asked.unknown]


def _make_requirement(
    action: object, when: object, because: object, unusable: object = False, unknown: object = False
) -> Requirement:
    """From what `_list_requirement` made of it; former versions wrote three values, and four."""
    return Requirement(
        Action(action), When(when), _read_text(because), _read_flag(unusable), _read_flag(unknown)
    )


def _tabulate_acceptance(accepted: Acceptance) -> Row:
    return {**asdict(accepted), "asked": _list_requirement(accepted.asked)}


def _make_acceptance(
    *, asked: list[Any], by: object, reason: object, since: object, until: object
) -> Acceptance:
    return Acceptance(
        asked=_make_requirement(*asked),
        by=_read_text(by),
        reason=_read_text(reason),
        since=_read_time(since),
        until=_read_time(until),
    )


@dataclass(frozen=True, slots=True)
class PastTransition:
    """A transition as stored, with the state and action that its finding had then."""

    time: float
    state: str
    action: str
    cause: str
    event: str | None


def transition_row(transition: Transition) -> Row:
    row: Row = {
        "time": transition.time,
        "finding": transition.finding.id,
        "state": transition.finding.state.value,
        "action": transition.finding.action.value,
        "cause": transition.cause,
        "event": transition.event,
    }
    return _TRANSITIONS.add_sum(row)


def transition_of(row: sqlite3.Row) -> PastTransition:
    _TRANSITIONS.check_sum(row)
    return PastTransition(
        time=_read_time(row["time"]),
        state=FindingState(row["state"]).value,
        action=Action(row["action"]).value,
        cause=_read_text(row["cause"]),
        event=_read_optional(_read_text, row["event"]),
    )


def incident_row(incident: Incident) -> Row:
    row: Row = {
        "id": incident.id,
        "since": incident.since,
        "last": incident.last,
        "closed_at": incident.closed_at,
        "story": incident.story,
        "simulated": incident.simulated,
        "boot_id": incident.boot_id,
        "usec": incident.usec,
        "members": json.dumps([_list_member(member) for member in incident.members]),
    }
    return _INCIDENTS.add_sum(row)


def incident_of(row: sqlite3.Row) -> Incident:
    _INCIDENTS.check_sum(row)
    members = tuple(_read_list(json.loads(_read_text(row["members"])), _read_member))
    if not members:
        raise RowDamaged("an incident of nothing")
    return Incident(
        id=_read_number(row["id"], 1),
        members=members,
        since=_read_time(row["since"]),
        last=_read_time(row["last"]),
        boot_id=_read_text(row["boot_id"]),
        usec=_read_optional(_read_number, row["usec"]),
        story=_read_text(row["story"]),
        simulated=_read_flag(row["simulated"]),
        closed_at=_read_optional(_read_time, row["closed_at"]),
    )


# A member is stored as a list, in this order.
_MEMBER_COLUMNS = (
    "component",
    "code",
    "name",
    "count",
    "first",
    "last",
    "boot_id",
    "usec",
    "places",
    "pids",
    "processes",
    "raw",
)


def _list_member(member: Member) -> list[object]:
    """The values of a member in the order of `_MEMBER_COLUMNS`."""
    return [
        member.component.name,
        member.code,
        member.name,
        member.count,
        member.first,
        member.last,
        member.boot_id,
        member.usec,
        sorted(member.places),
        sorted(member.pids),
        sorted(member.processes),
        member.raw,
    ]


def _read_member(listed: object) -> Member:
    """The member from the list that `_list_member` made."""
    values = _read_list(listed, _as_it_is)
    if len(values) != len(_MEMBER_COLUMNS):
        raise RowDamaged(f"no member: {len(values)} values")
    row = dict(zip(_MEMBER_COLUMNS, values))
    return Member(
        component=_read_component(row["component"]),
        code=_read_name(row["code"]),
        name=_read_text(row["name"]),
        count=_read_number(row["count"]),
        first=_read_time(row["first"]),
        last=_read_time(row["last"]),
        boot_id=_read_text(row["boot_id"]),
        usec=_read_optional(_read_number, row["usec"]),
        places=frozenset(_read_list(row["places"], _read_text)),
        pids=frozenset(_read_list(row["pids"], _read_number)),
        processes=frozenset(_read_list(row["processes"], _read_text)),
        raw=_read_text(row["raw"]),
    )


def _as_it_is(value: object) -> object:
    return value


def mark_row(mark: Mark) -> Row:
    return _MARKS.add_sum(
        {
            "device": mark.device,
            "time": mark.time,
            "kind": mark.kind.value,
            "fault": mark.fault,
            "detail": mark.detail,
        }
    )


def mark_of(row: sqlite3.Row) -> Mark:
    _MARKS.check_sum(row)
    return Mark(
        device=_read_name(row["device"]),
        time=_read_time(row["time"]),
        kind=MarkKind(row["kind"]),
        fault=_read_text(row["fault"]),
        detail=_read_text(row["detail"]),
    )


def device_row(device: Device) -> Row:
    row: Row = {
        "component": device.component.name,
        "uuid": device.uuid,
        "serial": device.serial,
        "reset_at": device.reset_at,
        "placed_at": device.placed_at,
    }
    return _DEVICES.add_sum(row)


def device_of(row: sqlite3.Row) -> Device:
    _DEVICES.check_sum(row)
    return Device(
        component=_read_component(row["component"]),
        uuid=_read_text(row["uuid"]),
        serial=_read_text(row["serial"]),
        reset_at=_read_time(row["reset_at"]),
        placed_at=_read_time(row["placed_at"]),
    )


def settled_row(settled: tuple[Component, str, float]) -> Row:
    component, code, time = settled
    return _SETTLED.add_sum({"component": component.name, "code": code, "time": time})


def settled_of(row: sqlite3.Row) -> tuple[Component, str, float]:
    _SETTLED.check_sum(row)
    return _read_component(row["component"]), _read_name(row["code"]), _read_time(row["time"])


def run_row(run: Run) -> Row:
    report = asdict(run.report)
    del report["addresses"]
    details = {
        "ask": asdict(run.ask),
        "report": report,
        "exit_code": run.exit_code,
        "command": run.command,
        "preempted": run.preempted,
    }
    row: Row = {
        "id": run.id,
        "kind": run.ask.check,
        "level": run.ask.level,
        "began": run.began,
        "ended": run.ended,
        "told": json.dumps(details, default=lambda member: member.value),
        "raw": zlib.compress(run.raw.encode(errors="replace")) if run.raw else None,
    }
    return _RUNS.add_sum(row)


def run_of(row: sqlite3.Row) -> Run:
    """`raw` is empty if the row was read without it, or it is no longer kept."""
    _RUNS.check_sum(row)
    details = json.loads(row["told"])
    ask, report, raw = details["ask"], details["report"], row["raw"]
    return Run(
        id=row["id"],
        ask=RunRequest(**{**ask, "gpus": tuple(ask["gpus"])}),
        began=row["began"],
        ended=row["ended"],
        exit_code=details["exit_code"],
        command=details["command"],
        preempted=details["preempted"],
        raw=zlib.decompress(raw).decode() if raw else "",
        report=Report(
            **{
                **report,
                "outcome": Outcome(report["outcome"]),
                "remedy": Remedy(report["remedy"]),
                "tests": tuple(Test(**test) for test in report["tests"]),
                "faults": tuple(
                    Fault(**{**fault, "remedy": Remedy(fault["remedy"])})
                    for fault in report["faults"]
                ),
                "measures": tuple(Measure(**measure) for measure in report["measures"]),
                "culprits": tuple(report["culprits"]),
                "device_ids": tuple(report["device_ids"]),
                "serials": {int(gpu): serial for gpu, serial in report["serials"].items()},
            }
        ),
    )


def position_row(position: Position) -> Row:
    return _POSITIONS.add_sum(
        {"source": position.source, "boot_id": position.boot_id, "cursor": position.cursor}
    )


def position_of(row: sqlite3.Row) -> Position:
    _POSITIONS.check_sum(row)
    return Position(
        source=_read_name(row["source"]),
        boot_id=_read_text(row["boot_id"]),
        cursor=_read_text(row["cursor"]),
    )


@dataclass(frozen=True, slots=True)
class Seal:
    """What a ledger must contain: the number of commits, and the combined checksums of its open
    findings.
    """

    commits: int = 0
    opened: int = 0


def seal_row(seal: Seal) -> Row:
    return _SEALS.add_sum({"id": 1, "commits": seal.commits, "opened": seal.opened})


def seal_of(row: sqlite3.Row) -> Seal:
    _SEALS.check_sum(row)
    return Seal(commits=_read_number(row["commits"]), opened=_read_number(row["opened"]))
