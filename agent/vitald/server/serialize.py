"""The types of the data model as JSON, for the API, the command line and `scan`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast, overload

from vitald.catalog import Catalog, Rule
from vitald.core.jobs import Job
from vitald.judge.lifecycle import find_clears
from vitald.judge.verdict import (
    DescribeComponent,
    format_reasons,
    get_component_name,
    sort_by_strength,
)
from vitald.ledger.queries import FindingHistory, RowList, StoredEvent
from vitald.model.component import DeviceNames
from vitald.model.event import VOUCHED, Event
from vitald.model.finding import Acceptance, Finding, Incident, Member, Transition, Verdict
from vitald.model.source import Sample, SourceHealth, SourceState
from vitald.model.words import Action
from vitald.timestamps import format_rfc3339

if TYPE_CHECKING:
    from vitald.server import schema

Json = dict[str, object]


@overload
def format_moment(time: float) -> str: ...
@overload
def format_moment(time: None) -> None: ...
@overload
def format_moment(time: float | None) -> str | None: ...
def format_moment(time: float | None) -> str | None:
    """RFC 3339, UTC, milliseconds."""
    return None if time is None else format_rfc3339(time)


def count_damaged(listed: Sequence[object]) -> int:
    """How many rows of the ledger are left out of a list, for they are not as they were written."""
    return listed.damaged if isinstance(listed, RowList) else 0


def format_event(stored: StoredEvent) -> schema.ApiEvent:
    seen = stored.event
    return {
        "id": stored.id,
        "time": format_moment(seen.time),
        "source": seen.source,
        "kind": seen.kind,
        "code": seen.code,
        "component": seen.component.name,
        "trust": seen.trust.value,
        "simulated": seen.is_simulated,
        "raw": seen.raw,
        "followedBy": list(stored.followed_by),
        "fields": dict(seen.fields),
        "bootId": seen.boot_id,
        "identity": seen.identity,
    }


def format_device(names: DeviceNames) -> schema.ApiDevice:
    """What is known of a device, without what is not."""
    known: dict[str, object] = {
        "index": int(names.index) if names.index.isdecimal() else None,
        "serial": names.serial,
        "uuid": names.uuid,
        "slot": names.slot,
        "module": names.module,
        "pci": names.address,
        "names": list(names.aliases),
        "text": names.text,
    }
    return cast(
        "schema.ApiDevice",
        {name: value for name, value in known.items() if value not in (None, "", [])},
    )


def format_finding(
    found: Finding, catalog: Catalog, names: DeviceNames | None = None
) -> schema.ApiFinding:
    """`names`: of its device, None where they are not known."""
    entry = catalog.find_rule(found.code)
    ruling = entry.apply_to(found.fields)
    requirement = found.requirement
    return {
        "id": found.id,
        "incident": found.incident,
        "state": found.state.value,
        "component": found.component.name,
        "device": format_device(names) if names is not None else None,
        "kind": found.kind,
        "code": found.code,
        "title": found.title,
        "action": requirement.action.value,
        "when": requirement.when.value,
        "unusable": found.unusable,
        "instruction": requirement.action.phrase,
        "actionReason": requirement.reason,
        "class": entry.fault_class.value,
        "meaning": entry.meaning,
        "advice": ruling.advice,
        "since": format_moment(found.since),
        "last": format_moment(found.last),
        "count": found.count,
        "raw": found.raw,
        "fields": dict(found.fields),
        "accepted": format_acceptance(found.accepted),
        "clears": [*find_clears(found, catalog).list_phrases(), "a named person, with a reason"],
        "confirmed": found.is_confirmed,
        "confirmedBy": found.confirmed_by or None,
        "confirmedAction": found.confirmed_action.value if found.confirmed_by else None,
        "witnesses": (
            []
            if found.is_confirmed
            else list(catalog.find_witnesses(found.code, found.component.kind))
        ),
        "writtenByProcess": found.fields.get(VOUCHED) is False,
        "simulated": found.is_simulated,
        "simulatedUntil": format_moment(found.simulated_until),
        "bootId": found.boot_id,
        "clearedAt": format_moment(found.cleared_at),
        "clearedBy": found.cleared_by,
        "source": entry.source,
    }


def format_acceptance(accepted: Acceptance | None) -> schema.ApiAcceptance | None:
    """Who accepted a finding, and until when; null if it is not accepted."""
    if accepted is None:
        return None
    return {
        "by": accepted.by,
        "reason": accepted.reason,
        "since": format_moment(accepted.since),
        "until": format_moment(accepted.until),
    }


def format_flags(judged: Verdict) -> schema.Flags:
    """What is required, and whether a source besides the kernel log confirms it."""
    return {
        "rebootRequired": judged.reboot_required,
        "rebootConfirmed": judged.reboot_confirmed,
        "replacementRequired": judged.replacement_required,
        "replacementConfirmed": judged.replacement_confirmed,
    }


def format_verdict(judged: Verdict) -> schema.ApiVerdict:
    return {
        "status": judged.status.value,
        **format_flags(judged),
        "action": judged.action.value,
        "simulated": judged.simulated,
        "reasons": list(judged.reasons),
    }


def format_transition(
    changed: Transition, catalog: Catalog, names: DeviceNames | None
) -> schema.WatchFinding:
    return {
        "type": "finding",
        "cause": changed.cause,
        "event": changed.event,
        "finding": format_finding(changed.finding, catalog, names),
    }


def format_source(health: SourceHealth) -> schema.ApiSource:
    """`deadline` is the moment by which it must be read again."""
    fresh = health.is_fresh(time.monotonic())
    return {
        "name": health.name,
        "state": "stale" if health.state is SourceState.OK and not fresh else health.state.value,
        "lastRead": format_moment(health.last_seen),
        "deadline": (
            format_moment(health.last_seen + health.deadline)
            if health.last_seen is not None
            else None
        ),
        "detail": health.detail,
    }


def plain(value: Sample) -> schema.Reading:
    """A reading: whole numbers are written as such; a part that could not be read is null."""
    if isinstance(value, tuple):
        return [_plain_part(part) for part in value]
    return cast("schema.Reading", _plain_part(value))  # a single value is never NaN


def _plain_part(value: float | str) -> float | str | None:
    if isinstance(value, float) and math.isnan(value):
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else value


def format_job(seen: Job) -> schema.ApiJob:
    """`state`: `lost` if its end was not reported; `ended` is then when it cannot have run any
    more.
    """
    state: Literal["running", "ended", "died", "lost"]
    if seen.ended is None:
        state = "running"
    elif seen.lost:
        state = "lost"
    else:
        state = "died" if seen.failed else "ended"
    return {
        "job": seen.id,
        "user": seen.user,
        "uid": seen.uid,
        "state": state,
        "began": format_moment(seen.began),
        "ended": format_moment(seen.ended),
        "exitCode": seen.exit_code,
        "signal": seen.signal,
        "reason": seen.reason,
    }


def format_incident(
    incident: Incident,
    findings: Iterable[Finding],
    catalog: Catalog,
    jobs: Iterable[Job] = (),
    describe: DescribeComponent = get_component_name,
) -> schema.ApiIncident:
    """One incident: its root, what it requires, and its members, the root first. `findings` are its
    open ones, `jobs` those near it; `describe`: as for a verdict.
    """
    own = sort_by_strength(list(findings))
    root_code = incident.root.code
    root = catalog.find_rule(incident.root.code)
    joining = next((rule for rule in catalog.correlation.rules if rule.name == incident.rule), None)
    strongest = own[0] if own else None
    return {
        "id": incident.id,
        "state": "open" if incident.closed_at is None else "over",
        "component": incident.root.component.name,
        "code": incident.root.code,
        "title": (
            root.apply_to({}).title
            if not own
            else next(
                (finding.title for finding in own if finding.code == incident.root.code), root.title
            )
        ),
        "action": (strongest.action if strongest else Action.NONE).value,
        "when": strongest.when.value if strongest else None,
        "instruction": (strongest.action if strongest else Action.NONE).phrase,
        "line": next(
            iter(format_reasons(own, {incident.id: incident}, describe)),
            f"{incident.root.component.name}: {root.title} ({root_code}): {Action.NONE.phrase}",
        ),
        "findings": [finding.id for finding in own],
        "correlation": joining.title if joining is not None else "",
        "since": format_moment(incident.since),
        "last": format_moment(incident.last),
        "count": incident.event_count,
        "closedAt": format_moment(incident.closed_at),
        "simulated": incident.simulated,
        "members": [
            _format_member(member, number == 0, catalog)
            for number, member in enumerate(incident.members)
        ],
        "jobs": [format_job(job) for job in jobs],
    }


def _format_member(member: Member, is_root: bool, catalog: Catalog) -> schema.ApiMember:
    return {
        "component": member.component.name,
        "code": member.code,
        "title": catalog.find_rule(member.code).title,
        "role": "root" if is_root else "consequence",
        "count": member.count,
        "first": format_moment(member.first),
        "last": format_moment(member.last),
        "raw": member.raw,
    }


def format_history(
    past: FindingHistory,
    incident: schema.ApiIncident | None,
    catalog: Catalog,
    flags: schema.Flags,
    names: DeviceNames | None = None,
) -> schema.Why:
    """The chain of one finding: lines, events, incident, rule, layers of the required action,
    flags, and every transition. `names`: of its device.
    """
    return {
        "finding": format_finding(past.finding, catalog, names),
        "events": [format_event(stored) for stored in past.events],
        "incident": incident,
        "rule": format_rule(catalog.find_rule(past.finding.code)),
        "layers": _format_layers(past.finding, catalog),
        "flags": flags,
        "transitions": [
            {
                "time": format_moment(transition.time),
                "state": transition.state.value,
                "action": transition.action.value,
                "cause": transition.cause,
                "event": transition.event,
            }
            for transition in past.transitions
        ],
    }


def _format_layers(finding: Finding, catalog: Catalog) -> list[schema.Layer]:
    """What the finding requires, by what requires it. A layer that equals the finding's requirement
    decides.
    """
    entry = catalog.find_rule(finding.code)
    table = f"{entry.source} (profile {catalog.profile}, {entry.origin or 'not listed'})"
    layers = (
        ("base", finding.base, table),
        ("context", finding.context, ""),
        ("implied", finding.implied, ""),
        ("driver", finding.driver, ""),
        ("escalation", finding.escalation, ""),
    )
    return [
        {
            "layer": name,
            "action": requirement.action.value,
            "when": requirement.when.value,
            "reason": requirement.reason or source,
            "decides": requirement == finding.requirement,
        }
        for name, requirement, source in layers
        if requirement is not None
    ]


def format_suspects(
    scored: Mapping[str, tuple[float, list[tuple[str, int, float]]]],
    catalog: Catalog,
    names: Mapping[str, str],
) -> list[schema.Suspect]:
    """Lemon scores, the highest first. `names` says in which slot a device is."""
    return [
        {
            "device": device,
            "component": names.get(device, device),
            "score": score,
            "suspect": score >= catalog.lemon.suspect,
            "parts": [
                {"kind": kind, "count": count, "points": points} for kind, count, points in parts
            ],
        }
        for device, (score, parts) in sorted(scored.items(), key=lambda item: -item[1][0])
    ]


def scan_event(number: int, raw: str, seen: Event, time: float | None = None) -> Json:
    """A line that `vitald scan` recognised: the line's own statements. `untrusted` where a process
    wrote it: no event, not judged.
    """
    fields = seen.fields
    return {
        "type": "event" if seen.is_trusted else "untrusted",
        "line": number,
        "time": format_moment(time),
        "simulated": seen.is_simulated,
        "kind": seen.kind,
        "code": fields.get("number"),
        "pci": fields.get("pci"),
        "pid": fields.get("pid"),
        "process": fields.get("process"),
        "link": fields.get("link"),
        "fatal": fields.get("fatal"),
        "facility": fields.get("facility"),
        "raw": raw,
    }


def format_rule(entry: Rule) -> schema.ApiRule:
    """A catalogue entry, as `vitald explain` and the API show it."""
    return {
        "code": entry.code,
        "title": entry.title,
        "mnemonic": entry.mnemonic,
        "meaning": entry.meaning,
        "advice": entry.advice,
        "class": entry.fault_class.value,
        "action": entry.action.value,
        "when": entry.when.value,
        "instruction": entry.action.phrase,
        "clears": entry.clears.list_phrases(),
        "escalation": entry.escalation,
        "sharedCause": entry.shared_cause,
        "ofPeers": entry.of_peers,
        "cases": [
            {
                "where": {field: list(values) for field, values in case.where.items()},
                "action": case.action.value if case.action else None,
                "atLeast": case.at_least.value if case.at_least else None,
                "escalation": case.escalation or None,
                "title": case.title,
                "advice": case.advice,
            }
            for case in entry.cases
        ],
        "known": entry.is_known,
        "source": entry.source,
        "origin": entry.origin,
    }
