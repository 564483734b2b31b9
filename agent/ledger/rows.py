"""
Facts as rows, and rows as facts: for each noun both directions, side by side.

Owns     which column holds what of a fact, and the JSON inside a column. A row that is written is a dict, a row that is read an
         `sqlite3.Row`; both go by the columns' names.
Refuses  SQL and connections.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from dataclasses import asdict, dataclass
from typing import Any

from agent.diagnostics.report import Ask, Fault, Measure, Outcome, Remedy, Report, Run, Test
from agent.model import (
    Acceptance,
    Action,
    Asked,
    Component,
    Device,
    Event,
    Finding,
    FindingState,
    Incident,
    Mark,
    MarkKind,
    Member,
    Transition,
    Trust,
    When,
)
from agent.sources.source import KERNEL_LOG, Position

Row = dict[str, object]

_LAYERS = ("ruled", "context", "told", "driver", "escalated")


def event_row(event: Event) -> Row:
    return {
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


def event_of(row: sqlite3.Row) -> Event:
    return Event(
        identity=row["identity"],
        time=row["time"],
        source=row["source"],
        kind=row["kind"],
        code=row["code"],
        component=Component.parse(row["component"]),
        boot_id=row["boot_id"],
        trust=Trust(row["trust"]),
        follows=row["follows"],
        simulated_until=row["simulated_until"],
        fields=json.loads(row["fields"]),
        raw=row["raw"],
    )


def finding_row(finding: Finding) -> Row:
    layers = {name: getattr(finding, name) for name in _LAYERS}
    asked = {name: _asked_list(one) for name, one in layers.items() if one is not None}
    # In the form of a layer, which an older version reads and leaves aside.
    asked["confirmed"] = _asked_list(Asked(Action.NONE, When.NOW, finding.confirmed_by))
    return {
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
        "accepted": json.dumps(_acceptance_table(finding.accepted)) if finding.accepted is not None else None,
        "source": finding.source,
        "incident": finding.incident,
        "heard_since": finding.heard_since,
        "quiet_s": finding.quiet_s,
        "shadow": finding.shadow,
        "remedy_at": finding.remedy_at,
    }


def finding_of(row: sqlite3.Row) -> Finding:
    layers = {name: _asked(*one) for name, one in json.loads(row["asked"] or "{}").items()}
    return Finding(
        id=row["id"],
        component=Component.parse(row["component"]),
        code=row["code"],
        kind=row["kind"],
        since=row["since"],
        last=row["last"],
        count=row["count"],
        boot_id=row["boot_id"],
        title=row["title"],
        raw=row["raw"],
        fields=json.loads(row["fields"]),
        source=row["source"],
        ruled=layers.get("ruled") or Asked(Action(row["action"]), When(row["due"])),
        context=layers.get("context"),
        told=layers.get("told"),
        driver=layers.get("driver"),
        escalated=layers.get("escalated"),
        incident=row["incident"],
        heard_since=row["heard_since"],
        quiet_s=row["quiet_s"],
        confirmed_by=layers["confirmed"].because if "confirmed" in layers else _seen_itself(row["source"]),
        shadow=bool(row["shadow"]),
        accepted=_acceptance(**json.loads(row["accepted"])) if row["accepted"] else None,
        remedy_at=row["remedy_at"],
        state=FindingState(row["state"]),
        simulated_until=row["simulated_until"],
        cleared_at=row["cleared_at"],
        cleared_by=row["cleared_by"],
    )


def _seen_itself(source: str) -> str:
    """Of a finding that an older version wrote: whether its source is its own witness."""
    return "" if source == KERNEL_LOG else source


def _asked_list(asked: Asked) -> list[object]:
    return [asked.action.value, asked.when.value, asked.because, asked.unusable]


def _asked(action: str, when: str, because: str, unusable: bool = False) -> Asked:
    """From what `_asked_list` made of it; a former version wrote three values."""
    return Asked(Action(action), When(when), because, unusable)


def _acceptance_table(accepted: Acceptance) -> Row:
    return {**asdict(accepted), "asked": _asked_list(accepted.asked)}


def _acceptance(*, asked: list[Any], **told: Any) -> Acceptance:
    return Acceptance(asked=_asked(*asked), **told)


@dataclass(frozen=True, slots=True)
class PastTransition:
    """A transition as it was stored: of the finding only how it stood then."""

    time: float
    state: str
    action: str
    cause: str
    event: str | None


def transition_row(transition: Transition) -> Row:
    return {
        "time": transition.time,
        "finding": transition.finding.id,
        "state": transition.finding.state.value,
        "action": transition.finding.action.value,
        "cause": transition.cause,
        "event": transition.event,
    }


def transition_of(row: sqlite3.Row) -> PastTransition:
    return PastTransition(time=row["time"], state=row["state"], action=row["action"], cause=row["cause"], event=row["event"])


def incident_row(incident: Incident) -> Row:
    return {
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


def incident_of(row: sqlite3.Row) -> Incident:
    return Incident(
        id=row["id"],
        members=tuple(_member(*listed) for listed in json.loads(row["members"])),
        since=row["since"],
        last=row["last"],
        boot_id=row["boot_id"],
        usec=row["usec"],
        story=row["story"],
        simulated=bool(row["simulated"]),
        closed_at=row["closed_at"],
    )


def _listed(member: Member) -> list[object]:
    return [
        *(member.component.name, member.code, member.name, member.count, member.first, member.last, member.boot_id, member.usec),
        *(sorted(member.places), sorted(member.pids), sorted(member.processes), member.raw),
    ]


def _member(
    component: str,
    code: str,
    name: str,
    count: int,
    first: float,
    last: float,
    boot_id: str,
    usec: int | None,
    places: list[str],
    pids: list[int],
    processes: list[str],
    raw: str,
) -> Member:
    """From what `_listed` made of it."""
    return Member(
        component=Component.parse(component),
        code=code,
        name=name,
        count=count,
        first=first,
        last=last,
        boot_id=boot_id,
        usec=usec,
        places=frozenset(places),
        pids=frozenset(pids),
        processes=frozenset(processes),
        raw=raw,
    )


def mark_row(mark: Mark) -> Row:
    return {"device": mark.device, "time": mark.time, "kind": mark.kind.value, "fault": mark.fault, "detail": mark.detail}


def mark_of(row: sqlite3.Row) -> Mark:
    return Mark(device=row["device"], time=row["time"], kind=MarkKind(row["kind"]), fault=row["fault"], detail=row["detail"])


def device_row(device: Device) -> Row:
    return {
        "component": device.component.name,
        "uuid": device.uuid,
        "serial": device.serial,
        "reset_at": device.reset_at,
        "placed_at": device.placed_at,
    }


def device_of(row: sqlite3.Row) -> Device:
    return Device(
        component=Component.parse(row["component"]),
        uuid=row["uuid"],
        serial=row["serial"],
        reset_at=row["reset_at"],
        placed_at=row["placed_at"],
    )


def settled_row(settled: tuple[Component, str, float]) -> Row:
    component, code, time = settled
    return {"component": component.name, "code": code, "time": time}


def settled_of(row: sqlite3.Row) -> tuple[Component, str, float]:
    return Component.parse(row["component"]), row["code"], row["time"]


def run_row(run: Run) -> Row:
    told = {
        "ask": asdict(run.ask),
        "report": asdict(run.report),
        "exit_code": run.exit_code,
        "command": run.command,
        "preempted": run.preempted,
    }
    return {
        "id": run.id,
        "kind": run.ask.check,
        "level": run.ask.level,
        "began": run.began,
        "ended": run.ended,
        "told": json.dumps(told, default=lambda member: member.value),
        "raw": zlib.compress(run.raw.encode(errors="replace")) if run.raw else None,
    }


def run_of(row: sqlite3.Row) -> Run:
    """`raw` is empty where the row was read without it, or it is no longer kept."""
    told = json.loads(row["told"])
    ask, report, raw = told["ask"], told["report"], row["raw"]
    return Run(
        id=row["id"],
        ask=Ask(**{**ask, "gpus": tuple(ask["gpus"])}),
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
                "faults": tuple(Fault(**{**one, "remedy": Remedy(one["remedy"])}) for one in report["faults"]),
                "measures": tuple(Measure(**one) for one in report["measures"]),
                "culprits": tuple(report["culprits"]),
                "device_ids": tuple(report["device_ids"]),
                "serials": {int(gpu): serial for gpu, serial in report["serials"].items()},
            }
        ),
    )


def position_row(position: Position) -> Row:
    return {"source": position.source, "boot_id": position.boot_id, "cursor": position.cursor}


def position_of(row: sqlite3.Row) -> Position:
    return Position(source=row["source"], boot_id=row["boot_id"], cursor=row["cursor"])
