"""What the nouns look like as JSON: one place, so that the API, the command line and `scan` say the same."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timezone

from agent.catalog import Catalog, Rule
from agent.judge.verdict import status_of
from agent.ledger import StoredEvent
from agent.model import NODE, Action, Component, Event, Finding, SourceHealth, SourceState, Transition, Verdict
from agent.sources.pci import PciInventory

Json = dict[str, object]


def moment(time: float | None) -> str | None:
    """RFC 3339, UTC, milliseconds."""
    if time is None:
        return None
    return datetime.fromtimestamp(time, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def event(stored: StoredEvent) -> Json:
    seen = stored.event
    return {
        "id": stored.id,
        "time": moment(seen.time),
        "source": seen.source,
        "kind": seen.kind,
        "code": seen.code,
        "component": seen.component.name,
        "trust": seen.trust.value,
        "simulated": seen.simulated,
        "raw": seen.raw,
        "followedBy": list(stored.followed_by),
        "fields": dict(seen.fields),
        "bootId": seen.boot_id,
        "identity": seen.identity,
    }


def finding(found: Finding, catalog: Catalog) -> Json:
    entry = catalog.rule(found.code)
    ruling = entry.rule_on(found.fields)
    return {
        "id": found.id,
        "state": found.state.value,
        "component": found.component.name,
        "kind": found.kind,
        "code": found.code,
        "title": found.title,
        "action": found.action.value,
        "when": found.when.value,
        "todo": found.action.words,
        "class": entry.fault_class.value,
        "meaning": entry.meaning,
        "advice": ruling.advice,
        "since": moment(found.since),
        "last": moment(found.last),
        "count": found.count,
        "raw": found.raw,
        "fields": dict(found.fields),
        "clears": [*ruling.clears.words(), "a named person, with a reason"],
        "simulated": found.simulated,
        "simulatedUntil": moment(found.simulated_until),
        "bootId": found.boot_id,
        "clearedAt": moment(found.cleared_at),
        "clearedBy": found.cleared_by,
        "source": entry.source,
    }


def verdict(judged: Verdict) -> Json:
    return {
        "status": judged.status.value,
        "rebootRequired": judged.reboot_required,
        "replacementRequired": judged.replacement_required,
        "action": judged.action.value,
        "simulated": judged.simulated,
        "reasons": list(judged.reasons),
    }


def transition(changed: Transition, catalog: Catalog) -> Json:
    return {"cause": changed.cause, "event": changed.event, "finding": finding(changed.finding, catalog)}


def source(health: SourceHealth) -> Json:
    """`deadline` is the moment by which it must have looked again."""
    fresh = health.fresh(time.monotonic())
    return {
        "name": health.name,
        "state": "stale" if health.state is SourceState.OK and not fresh else health.state.value,
        "lastSeen": moment(health.last_seen),
        "deadline": moment(health.last_seen + health.deadline) if health.last_seen is not None else None,
        "detail": health.detail,
    }


def components(findings: Sequence[Finding], inventory: PciInventory, whole: Verdict) -> list[Json]:
    """What is watched: what PCI shows and whatever else has an open finding, each with its own verdict; the node has the `whole` one."""
    watched: dict[Component, Json] = {NODE: {}}
    for device in inventory.watched():
        pci: Json = {"pci": device.address, "vendor": f"{device.vendor:04x}", "device": f"{device.device:04x}", "driver": device.driver}
        watched[Component(device.kind, device.address)] = pci
    by_component: dict[Component, list[Finding]] = {component: [] for component in watched}
    for found in findings:
        by_component.setdefault(found.component, []).append(found)
    listed: list[Json] = []
    for component, own in by_component.items():
        listed.append(
            {
                "name": component.name,
                "kind": component.kind.value,
                "id": component.id,
                "status": (whole.status if component == NODE else status_of(own)).value,
                "action": (whole.action if component == NODE else Action.strongest(found.action for found in own)).value,
                "findings": len(own),
                "attributes": watched.get(component, {}),
            }
        )
    return listed


def scan_event(number: int, raw: str, seen: Event) -> Json:
    """A line that `vitald scan` recognised: the line's own statements. `untrusted` where a process wrote it: no event, not judged."""
    fields = seen.fields
    return {
        "type": "event" if seen.judged else "untrusted",
        "line": number,
        "kind": seen.kind,
        "code": fields.get("number"),
        "pci": fields.get("pci"),
        "pid": fields.get("pid"),
        "process": fields.get("process"),
        "link": fields.get("link"),
        "fatal": fields.get("fatal"),
        "raw": raw,
    }


def rule(entry: Rule) -> Json:
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
        "todo": entry.action.words,
        "clears": entry.clears.words(),
        "escalation": entry.escalation,
        "cases": [
            {
                "when": {field: list(values) for field, values in case.where.items()},
                "action": case.action.value if case.action else None,
                "atLeast": case.at_least.value if case.at_least else None,
                "title": case.title,
                "advice": case.advice,
            }
            for case in entry.cases
        ],
        "known": entry.known,
        "source": entry.source,
        "origin": entry.origin,
    }
