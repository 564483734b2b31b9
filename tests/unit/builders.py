"""Values that the unit tests are made of: events, findings, sources, and how a line is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from vitald import tomlfile
from vitald.catalog import Catalog, Ruling, load_catalog
from vitald.collectors.kernel_log.drills import DrillRegistry
from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.collectors.kernel_log.lines import strip_prefix
from vitald.collectors.kernel_log.recognise import Recogniser
from vitald.collectors.kernel_log.record import ParsedLine
from vitald.judge.engine import Judge
from vitald.model.component import NODE, Component
from vitald.model.event import BOOT, Event, Trust
from vitald.model.finding import Finding, Requirement, Transition
from vitald.model.source import SourceHealth, SourceState
from vitald.model.words import Action, ComponentKind, When

ROOT = Path(__file__).resolve().parent.parent.parent
LINES = ROOT / "tests" / "data" / "kernel_lines.jsonl"
DCGM_SAMPLES = ROOT / "tests" / "data" / "dcgm"
LABELS = ("kind", "code", "pci", "pid", "process", "link", "fatal")


@cache
def catalogue(profile: str = "nvidia", overrides: str = "") -> Catalog:
    """`overrides` is what would stand under [catalog.overrides] in a configuration."""
    return load_catalog(profile, tomlfile.parse_toml(overrides, "overrides"))


def recogniser(profile: str = "nvidia") -> Recogniser:
    """A fresh one: it keeps an address between records."""
    return Recogniser(catalogue(profile).rules.values())


def recognise(text: str) -> ParsedLine | None:
    return recogniser().parse_record(text.encode())


def seen(text: str) -> ParsedLine:
    """What a line is recognised as; a line that is not recognised fails the test."""
    sighting = recognise(text)
    assert sighting is not None, text
    return sighting


def ruling(text: str, profile: str = "nvidia") -> Ruling:
    """What the catalogue says about a line."""
    event = interpreter(profile).make_event(
        seen(text), text.encode(), 0, identity="i", time=0.0, boot_id="a", usec=None
    )
    return catalogue(profile).find_rule(event.code).apply_to(event.fields)


def interpreter(
    profile: str = "nvidia", *, userspace: str = "ignore", overrides: str = ""
) -> Interpreter:
    return Interpreter(catalogue(profile, overrides), DrillRegistry(), None, userspace=userspace)


def labelled(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def labels_of(sighting: ParsedLine | None) -> dict[str, object]:
    """A sighting in the words of the labelled lines."""
    if sighting is None or sighting.context:
        return {**dict.fromkeys(LABELS), "kind": "noise"}
    said = {name: getattr(sighting, name) for name in LABELS}
    return {**said, "code": sighting.number}


def read_line(known: Recogniser, line: bytes) -> ParsedLine | None:
    """As the file reader does it, and only what the kernel wrote."""
    found = strip_prefix(line)
    return known.parse_record(found.message) if found is not None and not found.facility else None


def gpu(number: int = 0) -> Component:
    return Component(ComponentKind.GPU, f"0000:{number:02x}:00.0")


def event(
    code: str = "xid/79",
    component: Component | None = None,
    time: float = 0.0,
    *,
    identity: str = "",
    boot: str = "boot-a",
    trust: Trust = Trust.KERNEL,
    fields: Mapping[str, Any] | None = None,
    follows: str | None = None,
    simulated_until: float | None = None,
    raw: str = "",
) -> Event:
    where = component if component is not None else gpu()
    return Event(
        identity=identity or f"{code}@{where.name}@{time}",
        time=time,
        source="kernel_log",
        kind=code.partition("/")[0],
        code=code,
        component=where,
        boot_id=boot,
        raw=raw,
        trust=trust,
        fields=fields or {},
        follows=follows,
        simulated_until=simulated_until,
    )


def booted(boot: str, time: float) -> Event:
    return event(BOOT, NODE, time, boot=boot, trust=Trust.DAEMON)


def act(code: str, found: Finding, time: float, by: str = "alice", reason: str = "why") -> Event:
    """What a named person does about a finding."""
    return event(
        code,
        found.component,
        time,
        trust=Trust.DAEMON,
        fields={"code": found.code, "by": by, "reason": reason},
    )


def finding(
    action: Action = Action.REBOOT_NODE, when: When = When.NOW, number: int = 1, **changes: Any
) -> Finding:
    values: dict[str, Any] = {
        "id": number,
        "component": gpu(number),
        "code": "xid/79",
        "kind": "xid",
        "base": Requirement(action, when),
        "source": "kernel_log",
        "since": 0.0,
        "last": 0.0,
        "count": 1,
        "boot_id": "boot-a",
        "title": "a title",
        "raw": "",
        "fields": {},
        "confirmed_by": "nvml",
    }
    return Finding(**{**values, **changes})


def source(
    looked: float,
    deadline: float = 30.0,
    state: SourceState = SourceState.OK,
    name: str = "kernel_log",
) -> SourceHealth:
    return SourceHealth(
        name=name, state=state, last_seen=looked, polled_at=looked, deadline=deadline
    )


def empty() -> Judge:
    return Judge(catalogue())


def only(changes: list[Transition]) -> Transition:
    (change,) = changes
    return change


def said(change: Transition) -> tuple[str, str, str]:
    """Component, code and action, for a short comparison."""
    return change.finding.component.name, change.finding.code, change.finding.action.value
