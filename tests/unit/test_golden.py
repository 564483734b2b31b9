"""
Golden tests: what was answered before the code behind it was rewritten is answered still.

They go through what stays where it is: scenario files, events and the ledger's columns, the API's
JSON, the command line. What they take of the package by name stands at the top.

`python -m tests.unit.test_golden` writes tests/data/golden/ anew, where a change of behaviour is
meant; with names (`scenarios`, `replay`, `catalogue`, ...) only these.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import random
import re
import sqlite3
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, redirect_stderr, redirect_stdout
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from tests import golden
from tests.scenarios.story import Node, tell_story
from tests.scenarios.test_scenarios import STORIES
from tests.system.document import DOCUMENT
from tests.unit.builders import LINES, ROOT, catalogue, interpreter, labelled, source
from vitald import config as configs
from vitald import tomlfile
from vitald.cli import build_parser
from vitald.cli import main as call
from vitald.judge.engine import Judge
from vitald.judge.verdict import compute_verdict
from vitald.ledger import FILE, Ledger, LedgerEntry
from vitald.model import Component, Event, Trust
from vitald.server import serialize

EXAMPLE = ROOT / "config.example.toml"
HOW = "python -m tests.unit.test_golden"
Json = dict[str, Any]

# Words for people, which may be put better while what they tell of stays.
_WORDS = ("cause", "title", "because", "meaning", "advice", "todo", "clears", "reasons")


# --- the scenarios: what is answered after each line, and what the ledger holds at the end

# Of a finding's JSON: what its entry always says of it. The catalogue has a table of its own.
_IN_SHORT = ("code", "component", "action", "when", "count")
_OF_THE_ENTRY = ("meaning", "source", "class")
# What a ledger holds of the judgement. Checksums and numbers of rows are no part of it.
_TABLES = ("findings", "incidents", "transitions", "marks", "devices", "settled")
_MEMBER = (
    *("component", "code", "name", "count", "first", "last", "boot_id", "usec"),
    *("places", "pids", "processes", "raw"),
)
_ASKED = ("action", "when", "because", "unusable", "unknown")


def tell_all(folder: Path) -> tuple[Json, Json]:
    """Every scenario's complete form by its name, and what can be read of it at a glance."""
    whole, short = {}, {}
    for path in STORIES:
        steps = Steps()
        node = tell_story(path, folder / path.stem, look=steps.look)
        node.restart("")  # which has all of it stored
        node.end()
        whole[path.stem] = {"steps": steps.told, "ledger": stored(folder / path.stem / FILE)}
        short[path.stem] = {**steps.shown["running"], "findings": steps.in_short}
    return whole, short


class Steps:
    """What the API would answer after each line of a story: what the line changes."""

    def __init__(self) -> None:
        self.told: Json = {}
        self.shown: Json = {}
        self.in_short: list[str] = []

    def look(self, node: Node, text: str) -> None:
        opened, rules = node.judge.open_findings, node.catalog
        findings = {f"finding {one.id}": serialize.format_finding(one, rules) for one in opened}
        self.in_short = [" ".join(str(one[key]) for key in _IN_SHORT) for one in findings.values()]
        found_in = defaultdict(list)
        for found in node.standing:
            found_in[found.incident].append(found)
        incidents = {
            f"incident {number}": serialize.format_incident(one, found_in[number], rules)
            for number, one in ((one.id, one) for one in node.judge.incidents)
        }
        verdicts = {
            work: serialize.format_verdict(verdict) for work, verdict in node.verdicts().items()
        }
        scores = serialize.format_suspects(
            node.judge.score_devices(node.now + node.stepped), node.catalog, {}
        )
        shown: Json = {**verdicts, "suspects": scores, **incidents}
        for name, told in findings.items():
            shown[name] = {key: value for key, value in told.items() if key not in _OF_THE_ENTRY}
        changed = {name: one for name, one in shown.items() if self.shown.get(name) != one}
        gone = sorted(self.shown.keys() - shown.keys())
        if changed or gone:
            step = f"{len(self.told):03} {text[:70]}"
            self.told[step] = {**changed, "gone": gone} if gone else changed
        self.shown = shown


def stored(path: Path, tables: Iterable[str] = _TABLES, where: str = "1") -> Json:
    """What a ledger's file holds: rows by the columns' names, in the order of their storing."""
    with closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        return {
            table: [
                _row(row, numbered=table in ("findings", "incidents"))
                for row in db.execute(f"SELECT * FROM {table} WHERE {where} ORDER BY rowid")
            ]
            for table in tables
        }


def _row(row: sqlite3.Row, *, numbered: bool) -> Json:
    """`numbered`: whether the row's number is told to anybody."""
    left_out = ("sum",) if numbered else ("sum", "id")
    found = {name: row[name] for name in row.keys() if name not in left_out}  # noqa: SIM118
    for name in {"fields", "asked", "accepted", "members"} & found.keys():
        found[name] = golden.parse(found[name])
    # By their places or by their names: it says the same.
    if isinstance(found.get("members"), list):
        found["members"] = [_named(_MEMBER, one) for one in found["members"]]
    if isinstance(found.get("asked"), dict):
        found["asked"] = {layer: _named(_ASKED, one) for layer, one in found["asked"].items()}
    return found


def _named(names: Iterable[str], values: Any) -> Any:
    return dict(zip(names, values)) if isinstance(values, list) else values


def test_scenarios(tmp_path: Path) -> None:
    golden.hold("scenarios", tell_all(tmp_path)[0], f"{HOW} scenarios", may_grow=True)


# --- a replay: many events of all codes, folded as the daemon folds them

EVENTS = 100_000
_EACH = 5_000  # events from one digest to the next
_SEED = 16
_OFTEN = 8  # in scenarios: codes that are told together here, too
_BEGUN = 1_700_000_000.0
DEVICES = {
    "node": ["node"],
    "gpu": [f"gpu/0000:{bus:02x}:00.0" for bus in (0x19, 0x3B, 0x4C, 0x5D, 0x9B, 0xAB, 0xBB, 0xCB)],
    "nvswitch": [f"nvswitch/0000:{bus:02x}:00.0" for bus in (0x85, 0x86, 0x87, 0x88)],
    "neuron": [f"neuron/0000:{bus:02x}:1e.0" for bus in (0xCC, 0xB5, 0xB6, 0xBC)],
    "nic": [f"nic/0000:{bus:02x}:00.0" for bus in (0x1A, 0x3C, 0x4D, 0x5E)],
    "pci": [f"pci/0000:{bus:02x}:01.0" for bus in (0x17, 0x3A, 0x4B, 0x84)],
    "cpu": ["cpu/0", "cpu/1"],
    "dimm": ["dimm/MC0.dimm0", "dimm/MC1.dimm0"],
    "disk": ["disk/nvme0", "disk/nvme0n1", "disk/nvme1n1p1", "disk/sda"],
}
# What the daemon and people do; the generator below says when.
_ACTS = ("vitald/cleared", "vitald/remedy_begun", "vitald/accepted")
_OWN = (
    *("vitald/boot", "vitald/clock_stepped", "device/identity", "device/replaced", "job/died"),
    *_ACTS,
)


def kinds() -> Json:
    """What the generator draws from: each code, its kind of component, fields for its cases."""
    found: Json = {}

    def add(code: str, kind: str, fields: Mapping[str, Any], line: bool) -> None:
        entry = found.setdefault(code, {"component": kind, "line": line, "fields": []})
        if fields not in entry["fields"] and len(entry["fields"]) < 8:
            entry["fields"].append(dict(fields))

    reader = interpreter()
    texts = [one for rule in catalogue().rules.values() for one in rule.samples]
    texts += [re.sub(r"^.*?(?=NVRM: |nvidia-)", "", str(one["line"])) for one in labelled(LINES)]
    for text in texts:
        sighting = reader.parse_record(text.encode())
        if sighting is not None:
            record: Json = {"identity": "i", "time": 0.0, "boot_id": "a", "usec": None}
            one = reader.make_event(sighting, text.encode(), 0, **record)
            add(one.code, one.component.kind.value, one.fields, line=True)
    for code, rule in catalogue().rules.items():
        line = rule.kind in ("xid", "sxid")
        for case in ({}, *(_holding(case.where) for case in rule.cases)):
            add(code, rule.component.value, case, line)
    add("xid/9999", "gpu", {}, line=True)
    add("sxid/99999", "nvswitch", {"fatal": True}, line=True)
    scenarios = " ".join(path.read_text(encoding="utf-8") for path in STORIES)
    often = Counter(re.findall(r"\b[a-z_]+/[a-z0-9_]+(?=[ @])", scenarios))
    for code, entry in found.items():
        entry["often"] = often[code] >= _OFTEN
    return {code: entry for code, entry in found.items() if code not in _OWN}


def _holding(where: Mapping[str, tuple[Any, ...]]) -> Json:
    """Fields for which a case holds."""
    fields: Json = {}
    for name, values in where.items():
        if name.endswith("_above"):
            fields[name.removesuffix("_above")] = values[0] + 1
        elif name.endswith("_not"):
            fields.setdefault(name.removesuffix("_not"), 99)
        else:
            fields[name] = values[0]
    return fields


class Mixture:
    """Events as rows, the same on every Python: only `random.random` is drawn from."""

    def __init__(self, table: Json) -> None:
        self._draw = random.Random(_SEED).random
        self._codes = sorted(table)
        self._table = table
        curing = ("device/", "driver/", "diagnostic/")
        often = [one for one in self._codes if table[one]["often"]]
        self._of_a_gpu = [one for one in often if table[one]["component"] == "gpu"]
        self._curing = [one for one in self._codes if one.startswith(curing)]
        self._now, self._boot, self._booted, self._number = _BEGUN, 0, _BEGUN, 0
        self._last: list[Json] = []  # some that were told before, which people speak of

    def events(self, count: int) -> Iterator[Json]:
        """The first is a boot."""
        yield self._reboot()
        for _ in range(count - 1):
            one = self._draw()
            if one > 0.35 and self._last:
                yield self._storm()
                continue
            if one > 0.27:
                self._now += round(self._draw() * 40.0, 3)
                yield self._beside()
                continue
            self._now += self._gap()
            if one < 0.001:
                yield self._reboot()
            elif one < 0.012 and self._last:
                yield self._act()
            elif one < 0.0122:
                yield self._step()
            elif one < 0.014:
                yield self._identity()
            elif one < 0.016:
                yield self._death()
            elif one < 0.018 and self._last:
                who = self._pick(self._last)["component"]
                yield self._row("device/replaced", who, {"by": "alice"})
            elif one < 0.03:
                yield self._seen(self._pick(self._curing))
            elif one < 0.18 and self._last:
                yield self._again()
            else:
                yield self._seen(self._pick(self._codes))

    def _pick(self, of: Any) -> Any:
        return of[int(self._draw() * len(of))]

    def _gap(self) -> float:
        """Seconds to the next event: most come in bursts, some after hours."""
        one = self._draw()
        if one < 0.7:
            return round(self._draw(), 3)
        return round(self._draw() * (60.0 if one < 0.9 else 600.0 if one < 0.99 else 7200.0), 3)

    def _row(self, code: str, component: str, fields: Json, **more: Any) -> Json:
        self._number += 1
        kind = code.partition("/")[0]
        return {
            "identity": f"event {self._number}",
            "time": round(self._now, 3),
            "source": "vitald" if kind in ("vitald", "device", "job") else kind,
            "kind": kind,
            "code": code,
            "component": component,
            "boot_id": f"boot-{self._boot}",
            "trust": "daemon",
            "fields": fields,
            "raw": f"{code} of {component} #{self._number % 5}",
            **more,
        }

    def _reboot(self) -> Json:
        self._boot, self._booted = self._boot + 1, self._now
        return self._row("vitald/boot", "node", {})

    def _step(self) -> Json:
        seconds = round((self._draw() - 0.5) * 1200.0, 3)
        self._now += seconds
        return self._row("vitald/clock_stepped", "node", {"seconds": seconds})

    def _identity(self) -> Json:
        who = self._pick([*DEVICES["gpu"], *DEVICES["neuron"]])
        return self._row("device/identity", who, {"uuid": f"board-{int(self._draw() * 24)}"})

    def _death(self) -> Json:
        who = self._pick(["node", *DEVICES["gpu"]])
        return self._row("job/died", who, {"job": str(int(self._draw() * 500)), "exit_code": 1})

    def _act(self) -> Json:
        """A named person does something about what was told before, which may be over."""
        of = self._pick(self._last)
        fields = {"code": of["code"], "by": self._pick(("alice", "bob")), "reason": "known"}
        if of.get("simulated_until") is not None:
            fields["drill"] = True
        code = self._pick(_ACTS)
        if code == "vitald/accepted":
            fields["until"] = round(self._now + self._draw() * 86400.0 * 7, 3)
        return self._row(code, of["component"], fields)

    def _again(self) -> Json:
        """What was told before is told of the same device once more, perhaps after other words."""
        of = self._pick(self._last)
        return self._seen(of["code"], of["component"])

    def _beside(self) -> Json:
        """What is often told of a GPU, of one of two, or what a person does about it."""
        code, who = self._pick(self._of_a_gpu), self._pick(DEVICES["gpu"][:2])
        if self._draw() > 0.1:
            return self._seen(code, who)
        fields = {"code": code, "by": "alice", "reason": "seen to"}
        return self._row("vitald/cleared", who, fields)

    def _storm(self) -> Json:
        """The last fault is told once more, a few milliseconds later."""
        self._now += round(self._draw() * 0.05, 3)
        of = self._last[-1]
        fields = dict(of["fields"])
        if "usec" in fields:
            fields["usec"] = max(0, int((self._now - self._booted) * 1e6))
        more = {key: of[key] for key in ("source", "trust", "simulated_until") if key in of}
        return self._row(of["code"], of["component"], fields, **more)

    def _seen(self, code: str, component: str = "") -> Json:
        entry = self._table[code]
        where = component or self._pick(DEVICES[entry["component"]])
        fields: Json = dict(self._pick(entry["fields"]))
        if "pci" in fields:
            fields["pci"] = where.partition("/")[2]
        if "pid" in fields or self._draw() < 0.1:
            fields["pid"] = 1000 + int(self._draw() * 40)
            fields["process"] = f"train{fields['pid'] % 4}"
        more: Json = {}
        one = self._draw()
        if entry["line"]:
            fields["usec"] = max(0, int((self._now - self._booted) * 1e6))
            more = {"source": "kernel_log", "trust": "kernel"}
            if one < 0.06:
                more["trust"] = "untrusted"
            elif one < 0.14:
                more["trust"] = "accepted"
                fields |= {"facility": 1, "vouched": one < 0.08}
            elif one < 0.18 and self._last:
                more["follows"] = self._last[-1]["identity"]
            elif one < 0.21:  # read late
                fields["approximate"] = one < 0.2
                longest = 900.0 if self._draw() < 0.5 else 90.0
                more["time"] = round(self._now - self._draw() * longest, 3)
                more["boot_id"] = f"boot-{self._boot - (one < 0.19)}"
        elif one < 0.014:
            fields["again"] = "the driver was loaded"
        if one > 0.96:
            more["simulated_until"] = round(self._now + self._draw() * 3600.0, 3)
            more["trust"] = "announced" if entry["line"] else "daemon"
        row = self._row(code, where, fields, **more)
        self._last = [*self._last[-59:], row]
        return row


def as_event(row: Json) -> Event:
    """The fact that a row of the ledger holds."""
    known = {
        **row,
        "component": Component.parse_name(row["component"]),
        "trust": Trust(row["trust"]),
    }
    return Event(**known)


def replay(rows: Iterable[Json], folder: Path) -> Json:
    """
    Fold events as the daemon does, into a judge and a ledger.

    Returns after each 5,000 events the digests of the transitions stored meanwhile, of all that
    stands then, and of what the API answers; at the end how many transitions each code had.
    """
    rules = catalogue()
    ledger, judge, told = Ledger(folder), Judge(rules), {}
    ledger.open()
    entries: list[LedgerEntry] = []
    counts: Counter[str] = Counter()
    for number, row in enumerate(rows, start=1):
        event = as_event(row)
        changes = judge.apply_event(event)
        remembered = judge.take_changes()
        entries.append(
            LedgerEntry(events=(event,), transitions=tuple(changes), changes=remembered),
        )
        counts.update(one.finding.code for one in changes)
        if number % _EACH == 0:
            ledger.commit(entries)
            entries = []
            stands = {**standing(folder / FILE), **answered(judge, event.time)}
            told[f"{number:06}"] = digests(stands)
            forget_told(folder / FILE)
    ledger.close()
    return {**told, "transitions": dict(sorted(counts.items()))}


def forget_told(path: Path) -> None:
    """Take out of a ledger what has its digest and only grows."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM transitions")
        db.execute("DELETE FROM marks")
        db.execute("DELETE FROM incidents WHERE closed_at IS NOT NULL")
        db.commit()


def standing(path: Path) -> Json:
    """What a ledger holds, table by table.

    Of transitions, marks and incidents that are over, those since they were last forgotten.
    """
    return {
        **stored(path, ("transitions",)),
        **stored(path, ("findings",), "state != 'cleared'"),
        **stored(path, ("incidents", "marks", "devices", "settled")),
    }


def answered(judge: Judge, now: float) -> Json:
    """What the API would answer of what stands: verdict, findings, scores."""
    rules = catalogue()
    shown = [one for one in judge.open_findings if not one.on_trial]
    verdict = compute_verdict(shown, [source(now)], now, {one.id: one for one in judge.incidents})
    return {
        "verdict": serialize.format_verdict(verdict),
        "answers": [serialize.format_finding(one, rules) for one in shown],
        "suspects": serialize.format_suspects(judge.score_devices(now), rules, {}),
    }


def digests(told: Json) -> Json:
    """How many rows each table has with their digest but for words, and one of all words."""
    said: list[object] = []
    plain = {name: _without_words(value, said) for name, value in told.items()}
    counted = {name: [len(value), golden.digest(value)] for name, value in plain.items()}
    return {**counted, "verdict": plain["verdict"], "words": golden.digest(said)}


def _without_words(value: Any, said: list[object]) -> Any:
    """The value without its words, which are added to `said`."""
    if isinstance(value, list):
        return [_without_words(one, said) for one in value]
    if not isinstance(value, dict):
        return value
    said += [value[key] for key in _WORDS if key in value]
    return {key: _without_words(one, said) for key, one in value.items() if key not in _WORDS}


def test_replay(tmp_path: Path) -> None:
    rows = Mixture(golden.read("kinds")).events(EVENTS)
    golden.hold("replay", replay(rows, tmp_path), f"{HOW} replay")


# --- the catalogue: every entry as it is loaded, whatever its file looks like

# Attributes of the catalogue's classes that were renamed: new name -> name in the data.
RENAMED: dict[str, str] = {
    "clears_codes": "ends",
    "cooccurrences": "companies",
    "alternatives": "instead",
    "driver_recommendation": "word",
    "evidence": "cures",
    "thresholds": "watches",
    "trial": "shadow",
}
PROFILES = ("nvidia", "hyperpod")


def loaded() -> Json:
    """All that is loaded, entry by entry; of other profiles only what differs from the first."""
    first, *others = [entries_of(profile) for profile in PROFILES]
    told = {f"{PROFILES[0]} {name}": entry for name, entry in first.items()}
    for profile, entries in zip(PROFILES[1:], others):
        other = {name: entry for name, entry in entries.items() if entry != first.get(name)}
        told |= {f"{profile} {name}": entry for name, entry in other.items()}
    return told


def entries_of(profile: str) -> Json:
    rules = catalogue(profile)
    unlisted = sorted({rule.kind for rule in rules.rules.values()})
    found = {code: plain(rule) for code, rule in rules.rules.items()}
    found |= {
        f"{kind}/not-listed": plain(rules.find_rule(f"{kind}/not-listed")) for kind in unlisted
    }
    for number, story in enumerate(rules.correlation.rules):
        found[f"story {story.name}"] = {"number": number, **plain(story)}
    found["aliases"] = plain(rules.correlation._aliases)
    found |= {f"ladder {name}": plain(one) for name, one in rules.escalation_policies.items()}
    found |= {f"instance {name}": plain(one) for name, one in rules.instances.items()}
    return {**found, "lemon": plain(rules.lemon)}


def plain(value: Any) -> Any:
    """A value of the catalogue as JSON: dataclasses by their attributes, sets in order."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        names = [one.name for one in dataclasses.fields(value)]
        return {RENAMED.get(name, name): plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(one) for key, one in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(plain(one) for one in value)
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def in_short(entry: Any) -> Json:
    return {name: entry[name] for name in ("action", "when", "title") if name in entry}


def test_catalogue() -> None:
    golden.hold("catalogue", loaded(), f"{HOW} catalogue", may_grow=True)


# --- the API's document: what it means, whatever its schemas are called and their order is

_PROSE = ("description", "summary", "title", "example", "examples", "tags", "discriminator")
_UNORDERED = ("required", "enum", "anyOf", "type")


def meaning(document: Any) -> Json:
    """Each operation with all that it takes and answers, schemas put where they are named."""
    told: Json = {}
    for path, item in document["paths"].items():
        shared = [inlined(document, one) for one in item.get("parameters", ())]
        for method, operation in item.items():
            if method == "parameters":
                continue
            whole = inlined(document, operation)
            parameters = [*shared, *whole.pop("parameters", ())]
            whole["parameters"] = {f"{one['in']} {one['name']}": one for one in parameters}
            told[f"{method.upper()} {path}"] = whole
    return told


def inlined(document: Any, value: Any, above: tuple[str, ...] = ()) -> Any:
    """
    A part of the document without prose and names of schemas.

    A schema that holds itself is told by how many schemas above it stands. What can be written in
    two ways is written in one: `const` as `enum`, a list of types as `anyOf`, `oneOf` as `anyOf`.
    """
    if isinstance(value, list):
        return [inlined(document, one, above) for one in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        name = str(value["$ref"])
        if name in above:
            return {"again": len(above) - above.index(name)}
        target: Any = document
        for step in name.removeprefix("#/").split("/"):
            target = target[step]
        beside = {key: one for key, one in value.items() if key != "$ref"}
        return inlined(document, {**target, **beside}, (*above, name))
    found = {}
    for key, one in value.items():
        if key in ("properties", "patternProperties", "responses", "content", "headers"):
            found[key] = {name: inlined(document, part, above) for name, part in one.items()}
        elif key not in _PROSE:
            found[key] = inlined(document, one, above)
    return _in_one_way(found)


def _in_one_way(schema: Json) -> Json:
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    if isinstance(schema.get("type"), list):
        choices = [{"type": one} for one in schema.pop("type")]
        own = {key: schema.pop(key) for key in tuple(schema) if key not in ("default", "required")}
        schema["anyOf"] = [one if one["type"] == "null" else {**own, **one} for one in choices]
    if "oneOf" in schema:
        schema["anyOf"] = [*schema.get("anyOf", ()), *schema.pop("oneOf")]
    choices = schema.get("anyOf", [])
    if any("anyOf" in one for one in choices):
        schema["anyOf"] = [part for one in choices for part in one.get("anyOf", [one])]
    for key in _UNORDERED:
        if isinstance(schema.get(key), list):
            schema[key] = sorted(schema[key], key=golden.canonical)
    return schema


def test_openapi() -> None:
    golden.hold("openapi", meaning(DOCUMENT), f"{HOW} openapi")


def test_openapi_by_other_names() -> None:
    """Another order, other names of schemas and other prose are no difference."""
    text = golden.canonical(DOCUMENT)
    names = "|".join(map(re.escape, DOCUMENT["components"]["schemas"]))
    text = re.sub(rf'#/components/schemas/({names})"', r'#/components/schemas/Other\1"', text)
    other = golden.parse(text)
    schemas = other["components"]["schemas"]
    other["components"]["schemas"] = {f"Other{name}": schemas[name] for name in reversed(schemas)}
    other["paths"]["/v1/status"]["get"]["description"] = "Something else."
    assert golden.canonical(meaning(other)) == golden.canonical(meaning(DOCUMENT))


# --- the command line, and the configuration

# Verbs that need no daemon, or would do something, with words that make them end at once.
NOBODY = ("--socket", "/nonexistent/vitald.sock")
WITHOUT_DAEMON = (
    *(("status",), ("check",), ("check", "--strict"), ("check", "--as", "npd"), ("findings",)),
    *(("check", "--as", "nagios"), ("check", "--as", "slurm"), ("why", "1"), ("events",)),
    *(("gpus",), ("components",), ("expect",), ("diag", "list"), ("diag", "status")),
    *(("clear", "1", "--reason", "x"), ("remedy", "1", "--reason", "x")),
    ("diag", "run", "1", "--reason", "x"),
    *(("accept", "1", "--for", "1d", "--reason", "x"), ("release", "--reason", "x")),
)
ALONE = (
    *(("version",), ("--version",), ("--help",), (), ("nonsense",), ("explain", "xid/79")),
    *(("explain", "xid/99999"), ("explain", "nosuch/1"), ("explain",), ("scan", "/nonexistent")),
    *(("scan", "LOG"), ("scan", "LOG", "--json"), ("replay", "/nonexistent"), ("replay", "LOG")),
    *(("config", "check", "/nonexistent"), ("config", "check", "WRONG"), ("config", "example")),
    *(("run", "--config", "/nonexistent"), ("run", "--config", "WRONG"), ("config",)),
)


def command_line() -> Json:
    """Each verb with its options and words: how often, which values, what without them."""
    return {" ".join(path): words for path, words in _verbs(build_parser(), ("vitald",))}


Verb = tuple[tuple[str, ...], Json]


def _verbs(one: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[Verb]:
    words: Json = {}
    below: dict[str, argparse.ArgumentParser] = {}
    for action in one._actions:
        if isinstance(action, argparse._SubParsersAction):
            below |= action.choices
            continue
        name = _label(action)
        default = action.default
        words[name] = {
            "kind": type(action).__name__.strip("_"),
            "takes": action.nargs,
            "metavar": action.metavar,
            "choices": [*map(str, action.choices)] if action.choices is not None else None,
            "required": action.required,
            "default": default if isinstance(default, (bool, int, float, list)) else str(default),
            "shown": action.help != argparse.SUPPRESS,
        }
    exclusive = [group._group_actions for group in one._mutually_exclusive_groups]
    groups = [sorted(_label(action) for action in group) for group in exclusive]
    yield path, {**words, **({"one of": groups} if groups else {})}
    for name, sub in below.items():
        yield from _verbs(sub, (*path, name))


def _label(action: argparse.Action) -> str:
    return ", ".join(action.option_strings) or str(action.metavar or action.dest)


def exit_codes(folder: Path) -> Json:
    """What each verb ends with where no daemon answers, and where files are there or not."""
    files = {"LOG": "[    1.0] NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.\n"}
    files["WRONG"] = "[nvml]\nfast = true\n"
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    asked = {" ".join(words) or "nothing": words for words in ALONE}
    asked |= {f"{' '.join(words)}, nobody there": (*words, *NOBODY) for words in WITHOUT_DAEMON}
    found = {}
    for name, words in asked.items():
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            found[name] = _code_of([str(folder / one) if one in files else one for one in words])
    return found


def _code_of(words: list[str]) -> object:
    try:
        return call(words)
    except SystemExit as ended:
        return ended.code or 0


def test_command_line() -> None:
    golden.hold("command_line", command_line(), f"{HOW} command_line")


def test_exit_codes(tmp_path: Path) -> None:
    golden.hold("exit_codes", exit_codes(tmp_path), f"{HOW} command_line")


# One value of each kind that a file can hold.
PROBES = {
    "flag": "true",
    "negative": "-1",
    "zero": "0",
    "number": "3",
    "fraction": "2.5",
    "large": "100000",
    "text": '"word"',
    "empty": '""',
    "path": '"/data/x"',
    "period": '"90s"',
    "size": '"1GiB"',
    "address": '"127.0.0.1:9"',
    "off": '"off"',
    "list": '["a"]',
    "programs": '["/opt/x", "-v"]',
    "table": '{ "x" = 1 }',
}


def configuration() -> Json:
    """Each key with its default, as the example writes it, and which kinds of values it takes."""
    shown: Json = {}
    section = ""
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        if head := re.match(r"\[(\w+)\]", line):
            section = head[1]
        elif key := re.match(r"(#?)(\w+) = (.*)", line):
            shown[f"{section}.{key[2]}"] = {"default": key[3], "set": not key[1]}
    for name, entry in shown.items():
        section, _, key_name = name.partition(".")
        texts = {probe: f"[{section}]\n{key_name} = {value}\n" for probe, value in PROBES.items()}
        entry["takes"] = [probe for probe, text in texts.items() if _is_taken(text, key_name)]
    return shown


def _is_taken(text: str, key: str) -> bool:
    """Whether no mistake is told that names this key."""
    try:
        configs.parse(text, tomlfile.parse_toml(text, "file"), "file")
    except configs.ConfigError as error:
        return not any(key in one for one in error.errors)
    return True


def test_configuration() -> None:
    golden.hold("configuration", configuration(), f"{HOW} configuration")


@pytest.mark.parametrize("name", ["scenarios", "catalogue"])
def test_digests_are_of_what_is_stored(name: str) -> None:
    whole = golden.read(name)
    told = {key: entry[0] for key, entry in golden.read_summary(name).items()}
    assert told == {key: golden.digest(value) for key, value in whole.items()}


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for name in names or WRITERS:
            WRITERS[name](Path(folder) / name)


def write_scenarios(folder: Path) -> None:
    golden.write_large("scenarios", *tell_all(folder))


def write_replay(folder: Path) -> None:
    golden.write("kinds", kinds())
    golden.read.cache_clear()
    folder.mkdir()
    golden.write("replay", replay(Mixture(golden.read("kinds")).events(EVENTS), folder))


def write_catalogue(_: Path) -> None:
    entries = loaded()
    golden.write_large("catalogue", entries, {name: in_short(one) for name, one in entries.items()})


def write_openapi(_: Path) -> None:
    golden.write("openapi", meaning(DOCUMENT))


def write_command_line(folder: Path) -> None:
    golden.write("command_line", command_line())
    golden.write("exit_codes", exit_codes(folder))


WRITERS: dict[str, Callable[[Path], None]] = {
    "scenarios": write_scenarios,
    "replay": write_replay,
    "catalogue": write_catalogue,
    "openapi": write_openapi,
    "command_line": write_command_line,
    "configuration": lambda _: golden.write("configuration", configuration()),
}

if __name__ == "__main__":
    main(sys.argv[1:])
