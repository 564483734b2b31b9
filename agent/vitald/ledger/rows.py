"""
Facts as rows, and rows as facts: for each noun both directions, side by side.

Owns     which column holds what of a fact, the JSON inside a column, and whether a row is one that
         we wrote: its checksum is right, and each value is of the kind that a fact has. A row that
         is written is a dict, a row that is read an `sqlite3.Row`; both go by the columns' names.
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
from vitald.ledger.sums import UNSUMMED, checksum
from vitald.model import (
    KERNEL_LOG,
    Acceptance,
    Action,
    Asked,
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
    Transition,
    Trust,
    When,
)
from vitald.model.diagnostic import Fault, Measure, Outcome, Remedy, Report, Run, RunRequest, Test

Row = dict[str, object]
T = TypeVar("T")

_LAYERS = ("ruled", "context", "told", "driver", "escalated")
_NO_DATE = 62_135_596_800.0  # seconds to the year 1, and fewer than to the year 9999
# What a row that is none of ours raises when it is read.
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
    """A row is not as it was written; the text says of what."""


class _Table:
    """The columns whose values a row's checksum is made of."""

    def __init__(self, name: str, columns: str, *, may_lack: bool = False) -> None:
        """`may_lack`: rows from before there were checksums have none."""
        self._name = name
        self._values = itemgetter(*columns.split(", "))
        self._missing = (UNSUMMED, None) if may_lack else (UNSUMMED,)

    def summed(self, row: Row) -> Row:
        row["sum"] = checksum(*self._values(row))
        return row

    def check(self, row: sqlite3.Row) -> None:
        """Raises RowDamaged."""
        found = row["sum"]
        if found not in self._missing and found != checksum(*self._values(row)):
            raise RowDamaged(f"{self._name}: a row's checksum is wrong ({self._values(row)[0]})")


_EVENTS = _Table("events", schema.EVENT, may_lack=True)
_TRANSITIONS = _Table("transitions", schema.TRANSITION, may_lack=True)
_RUNS = _Table("runs", schema.RUN_TOLD, may_lack=True)
_FINDINGS, _INCIDENTS = _Table("findings", schema.FINDING), _Table("incidents", schema.INCIDENT)
_MARKS, _DEVICES = _Table("marks", schema.MARK), _Table("devices", schema.DEVICE)
_SETTLED, _POSITIONS = _Table("settled", schema.SETTLED), _Table("positions", schema.POSITION)
_SEALS = _Table("seal", schema.SEAL)


# --- values as they must be. Each raises RowDamaged.


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise RowDamaged(f"no text: {value!r}")
    return value


def _name(value: object) -> str:
    if not _text(value):
        raise RowDamaged("an empty name")
    return str(value)


def _moment(value: object) -> float:
    """Seconds, of a time that has a date."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _NO_DATE:
        raise RowDamaged(f"no time: {value!r}")
    return float(value)


def _number(value: object, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RowDamaged(f"no number of {least} or more: {value!r}")
    return value


def _flag(value: object) -> bool:
    if value not in (0, 1):
        raise RowDamaged(f"neither true nor false: {value!r}")
    return bool(value)


def _or_none(read: Callable[[object], T], value: object) -> T | None:
    return None if value is None else read(value)


def _component(value: object) -> Component:
    made = Component.parse(_text(value))
    if made.name != value:
        raise RowDamaged(f"no component: {value!r}")
    return made


def _fields(value: object) -> Fields:
    made = json.loads(_text(value))
    if not isinstance(made, dict):
        raise RowDamaged(f"no fields: {type(made).__name__}")
    return made


def _list(value: object, read: Callable[[object], T]) -> list[T]:
    if not isinstance(value, list):
        raise RowDamaged(f"no list: {value!r}")
    return [read(one) for one in value]


# --- the nouns


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
    return _EVENTS.summed(row)


def event_of(row: sqlite3.Row) -> Event:
    _EVENTS.check(row)
    return Event(
        identity=_name(row["identity"]),
        time=_moment(row["time"]),
        source=_text(row["source"]),
        kind=_text(row["kind"]),
        code=_name(row["code"]),
        component=_component(row["component"]),
        boot_id=_text(row["boot_id"]),
        trust=Trust(row["trust"]),
        follows=_or_none(_name, row["follows"]),
        simulated_until=_or_none(_moment, row["simulated_until"]),
        fields=_fields(row["fields"]),
        raw=_text(row["raw"]),
    )


def finding_row(finding: Finding) -> Row:
    layers = {name: getattr(finding, name) for name in _LAYERS}
    asked = {name: _asked_list(one) for name, one in layers.items() if one is not None}
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
        "accepted": json.dumps(_acceptance_table(finding.accepted))
        if finding.accepted is not None
        else None,
        "confirmed_by": finding.confirmed_by,
        "source": finding.source,
        "incident": finding.incident,
        "heard_since": finding.heard_since,
        "quiet_s": finding.quiet_s,
        "shadow": finding.shadow,
        "remedy_at": finding.remedy_at,
    }
    return _FINDINGS.summed(row)


def finding_of(row: sqlite3.Row) -> Finding:
    _FINDINGS.check(row)
    layers = {name: _asked(*one) for name, one in _asked_table(row["asked"]).items()}
    return Finding(
        id=_number(row["id"], 1),
        component=_component(row["component"]),
        code=_name(row["code"]),
        kind=_text(row["kind"]),
        since=_moment(row["since"]),
        last=_moment(row["last"]),
        count=_number(row["count"]),
        boot_id=_text(row["boot_id"]),
        title=_text(row["title"]),
        raw=_text(row["raw"]),
        fields=_fields(row["fields"]),
        source=_text(row["source"]),
        ruled=layers.get("ruled") or Asked(Action(row["action"]), When(row["due"])),
        context=layers.get("context"),
        told=layers.get("told"),
        driver=layers.get("driver"),
        escalated=layers.get("escalated"),
        incident=_number(row["incident"]),
        heard_since=_moment(row["heard_since"]),
        quiet_s=_or_none(_moment, row["quiet_s"]),
        confirmed_by=_text(row["confirmed_by"])
        if row["confirmed_by"] is not None
        else _seen_itself(row["source"]),
        shadow=_flag(row["shadow"]),
        accepted=_acceptance(**json.loads(_text(row["accepted"])))
        if row["accepted"] is not None
        else None,
        remedy_at=_or_none(_moment, row["remedy_at"]),
        state=FindingState(row["state"]),
        simulated_until=_or_none(_moment, row["simulated_until"]),
        cleared_at=_or_none(_moment, row["cleared_at"]),
        cleared_by=_or_none(_text, row["cleared_by"]),
    )


def _asked_table(value: object) -> dict[str, list[Any]]:
    made = json.loads(_text(value)) if value is not None else {}
    if not isinstance(made, dict) or not made.keys() <= {*_LAYERS}:
        raise RowDamaged("what it asks for is not what a finding has")
    return made


def _seen_itself(source: str) -> str:
    """Of a finding that an older version wrote: whether its source is its own witness."""
    return "" if source == KERNEL_LOG else source


def _asked_list(asked: Asked) -> list[object]:
    return [asked.action.value, asked.when.value, asked.because, asked.unusable, asked.unknown]


def _asked(
    action: object, when: object, because: object, unusable: object = False, unknown: object = False
) -> Asked:
    """From what `_asked_list` made of it; former versions wrote three values, and four."""
    return Asked(Action(action), When(when), _text(because), _flag(unusable), _flag(unknown))


def _acceptance_table(accepted: Acceptance) -> Row:
    return {**asdict(accepted), "asked": _asked_list(accepted.asked)}


def _acceptance(
    *, asked: list[Any], by: object, reason: object, since: object, until: object
) -> Acceptance:
    return Acceptance(
        asked=_asked(*asked),
        by=_text(by),
        reason=_text(reason),
        since=_moment(since),
        until=_moment(until),
    )


@dataclass(frozen=True, slots=True)
class PastTransition:
    """A transition as it was stored: of the finding only how it stood then."""

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
    return _TRANSITIONS.summed(row)


def transition_of(row: sqlite3.Row) -> PastTransition:
    _TRANSITIONS.check(row)
    return PastTransition(
        time=_moment(row["time"]),
        state=FindingState(row["state"]).value,
        action=Action(row["action"]).value,
        cause=_text(row["cause"]),
        event=_or_none(_text, row["event"]),
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
        "members": json.dumps([_listed(one) for one in incident.members]),
    }
    return _INCIDENTS.summed(row)


def incident_of(row: sqlite3.Row) -> Incident:
    _INCIDENTS.check(row)
    members = tuple(_list(json.loads(_text(row["members"])), _member))
    if not members:
        raise RowDamaged("an incident of nothing")
    return Incident(
        id=_number(row["id"], 1),
        members=members,
        since=_moment(row["since"]),
        last=_moment(row["last"]),
        boot_id=_text(row["boot_id"]),
        usec=_or_none(_number, row["usec"]),
        story=_text(row["story"]),
        simulated=_flag(row["simulated"]),
        closed_at=_or_none(_moment, row["closed_at"]),
    )


def _listed(member: Member) -> list[object]:
    return [
        *(
            member.component.name,
            member.code,
            member.name,
            member.count,
            member.first,
            member.last,
            member.boot_id,
            member.usec,
        ),
        *(sorted(member.places), sorted(member.pids), sorted(member.processes), member.raw),
    ]


def _member(listed: object) -> Member:
    """From what `_listed` made of it."""
    component, code, name, count, first, last, boot_id, usec, places, pids, processes, raw = _list(
        listed, _as_it_is
    )
    return Member(
        component=_component(component),
        code=_name(code),
        name=_text(name),
        count=_number(count),
        first=_moment(first),
        last=_moment(last),
        boot_id=_text(boot_id),
        usec=_or_none(_number, usec),
        places=frozenset(_list(places, _text)),
        pids=frozenset(_list(pids, _number)),
        processes=frozenset(_list(processes, _text)),
        raw=_text(raw),
    )


def _as_it_is(value: object) -> object:
    return value


def mark_row(mark: Mark) -> Row:
    return _MARKS.summed(
        {
            "device": mark.device,
            "time": mark.time,
            "kind": mark.kind.value,
            "fault": mark.fault,
            "detail": mark.detail,
        }
    )


def mark_of(row: sqlite3.Row) -> Mark:
    _MARKS.check(row)
    return Mark(
        device=_name(row["device"]),
        time=_moment(row["time"]),
        kind=MarkKind(row["kind"]),
        fault=_text(row["fault"]),
        detail=_text(row["detail"]),
    )


def device_row(device: Device) -> Row:
    row: Row = {
        "component": device.component.name,
        "uuid": device.uuid,
        "serial": device.serial,
        "reset_at": device.reset_at,
        "placed_at": device.placed_at,
    }
    return _DEVICES.summed(row)


def device_of(row: sqlite3.Row) -> Device:
    _DEVICES.check(row)
    return Device(
        component=_component(row["component"]),
        uuid=_text(row["uuid"]),
        serial=_text(row["serial"]),
        reset_at=_moment(row["reset_at"]),
        placed_at=_moment(row["placed_at"]),
    )


def settled_row(settled: tuple[Component, str, float]) -> Row:
    component, code, time = settled
    return _SETTLED.summed({"component": component.name, "code": code, "time": time})


def settled_of(row: sqlite3.Row) -> tuple[Component, str, float]:
    _SETTLED.check(row)
    return _component(row["component"]), _name(row["code"]), _moment(row["time"])


def run_row(run: Run) -> Row:
    told = {
        "ask": asdict(run.ask),
        "report": asdict(run.report),
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
        "told": json.dumps(told, default=lambda member: member.value),
        "raw": zlib.compress(run.raw.encode(errors="replace")) if run.raw else None,
    }
    return _RUNS.summed(row)


def run_of(row: sqlite3.Row) -> Run:
    """`raw` is empty where the row was read without it, or it is no longer kept."""
    _RUNS.check(row)
    told = json.loads(row["told"])
    ask, report, raw = told["ask"], told["report"], row["raw"]
    return Run(
        id=row["id"],
        ask=RunRequest(**{**ask, "gpus": tuple(ask["gpus"])}),
        began=row["began"],
        ended=row["ended"],
        exit_code=told["exit_code"],
        command=told["command"],
        preempted=told["preempted"],
        raw=zlib.decompress(raw).decode() if raw else "",
        report=Report(
            **{
                **report,
                "outcome": Outcome(report["outcome"]),
                "remedy": Remedy(report["remedy"]),
                "tests": tuple(Test(**one) for one in report["tests"]),
                "faults": tuple(
                    Fault(**{**one, "remedy": Remedy(one["remedy"])}) for one in report["faults"]
                ),
                "measures": tuple(Measure(**one) for one in report["measures"]),
                "culprits": tuple(report["culprits"]),
                "device_ids": tuple(report["device_ids"]),
                "serials": {int(gpu): serial for gpu, serial in report["serials"].items()},
            }
        ),
    )


def position_row(position: Position) -> Row:
    return _POSITIONS.summed(
        {"source": position.source, "boot_id": position.boot_id, "cursor": position.cursor}
    )


def position_of(row: sqlite3.Row) -> Position:
    _POSITIONS.check(row)
    return Position(
        source=_name(row["source"]), boot_id=_text(row["boot_id"]), cursor=_text(row["cursor"])
    )


@dataclass(frozen=True, slots=True)
class Seal:
    """What a ledger must hold: how often it was committed to, and a digest of its open findings'
    checksums.
    """

    commits: int = 0
    opened: int = 0


def seal_row(seal: Seal) -> Row:
    return _SEALS.summed({"id": 1, "commits": seal.commits, "opened": seal.opened})


def seal_of(row: sqlite3.Row) -> Seal:
    _SEALS.check(row)
    return Seal(commits=_number(row["commits"]), opened=_number(row["opened"]))
