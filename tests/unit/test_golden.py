"""
Golden tests: every scenario and a replay of 20,000 events are answered as they were before.

`python -m tests.unit.test_golden` writes tests/data/golden/ again, where a change of behaviour is
intended; with `scenarios` or `replay` only that one.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tests import golden
from tests.scenarios.story import Node, tell_story
from tests.scenarios.test_scenarios import STORIES
from tests.unit.builders import ROOT, catalogue, interpreter, source
from vitald.judge.engine import Judge
from vitald.judge.verdict import compute_verdict
from vitald.ledger.store import FILE, Ledger, LedgerEntry
from vitald.model.component import Component
from vitald.model.event import Event, Trust
from vitald.server import serialize

EXAMPLE = ROOT / "config.example.toml"
HOW = "python -m tests.unit.test_golden"
Json = dict[str, Any]

# Words for people, which may be put better while what they tell of stays.
_WORDS = (
    "cause",
    "title",
    "reason",
    "actionReason",
    "meaning",
    "advice",
    "instruction",
    "clears",
    "reasons",
)


# --- the scenarios: what is answered after each line, and what the ledger holds at the end

# Of a finding's JSON: what its entry always says of it. The catalogue has a table of its own.
_IN_SHORT = ("code", "component", "action", "when", "count")
# Of the catalogue's entry, and what no scenario has: a source that knows boards
_LEFT_OUT = ("meaning", "source", "class", "device")
# What a ledger holds of the judgement. Checksums and numbers of rows are no part of it.
_TABLES = ("findings", "incidents", "transitions", "marks", "devices", "resolved")
_JSON = ("fields", "base", "context", "implied", "driver", "escalation", "accepted", "members")


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
            shown[name] = {key: value for key, value in told.items() if key not in _LEFT_OUT}
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
    for name in _JSON:
        if found.get(name) is not None:
            found[name] = golden.parse(found[name])
    return found


def test_scenarios(tmp_path: Path) -> None:
    golden.hold("scenarios", tell_all(tmp_path)[0], f"{HOW} scenarios", may_grow=True)


# --- a replay: many events of all codes, folded as the daemon folds them

EVENTS = 20_000
_EACH = 2_000  # events from one digest to the next
_SEED = 16
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


# What the generator draws from: the codes that occur in several scenarios.
CODES = (
    *("aer/fatal", "dcgm/58", "dcgm/80", "device/reset", "diagnostic/failed"),
    *("diagnostic/passed", "edac/corrected", "edac/uncorrected", "edac/uncorrected_counted"),
    *("expect/efa_not_all", "expect/neuron", "fs/not_of_the_node", "fs/readonly"),
    *("gpu_lost/off_bus", "hung_task/blocked", "ib/link_down", "ib/port_down"),
    *("ib/port_failed", "network/missing", "neuron/fewer", "neuron/hbm_ecc_repairable"),
    *("neuron/missing", "nvme/lost", "nvml/ecc_uncorrected", "nvml/failing", "nvml/gpu_lost"),
    *("nvml/gpu_missing", "nvml/hung", "nvml/recovery_action", "nvml/row_remap_failed"),
    *("nvml/row_remap_pending", "nvml/spare_rows_low", "nvml/sram_threshold"),
    *("nvml/unavailable", "oom/killed", "pci/corrected_errors", "pci/removed", "pci/unbound"),
    *("sxid/20034", "uvm/global_fatal_error", "xid/109", "xid/119", "xid/120", "xid/13"),
    *("xid/144", "xid/149", "xid/154", "xid/171", "xid/172", "xid/31", "xid/43", "xid/45"),
    *("xid/46", "xid/48", "xid/54", "xid/63", "xid/64", "xid/74", "xid/79", "xid/92"),
    *("xid/94", "xid/95"),
)


def draw_table() -> Json:
    """Of each code its kind of component, whether a line tells it, and fields for its cases."""
    reader = interpreter()
    found: Json = {}
    for code in CODES:
        rule = catalogue().rules[code]
        fields: list[Json] = []
        for sample in rule.samples:
            sighting = reader.parse_record(sample.encode())
            if sighting is not None:
                record: Json = {"identity": "i", "time": 0.0, "boot_id": "a", "usec": None}
                fields.append(
                    dict(reader.make_event(sighting, sample.encode(), 0, **record).fields)
                )
        found[code] = {
            "component": rule.component.value,
            "line": bool(rule.samples),
            "fields": [{}, *fields, *(_holding(case.where) for case in rule.cases)][:8],
        }
    return found


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
        self._of_a_gpu = [one for one in self._codes if table[one]["component"] == "gpu"]
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

    Returns after each 2,000 events the digests of the transitions stored meanwhile, of all that
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
        **stored(path, ("incidents", "marks", "devices", "resolved")),
    }


def _drop_device(answer: Mapping[str, object]) -> Json:
    return {key: value for key, value in answer.items() if key != "device"}


def answered(judge: Judge, now: float) -> Json:
    """What the API would answer of what stands: verdict, findings, scores."""
    rules = catalogue()
    shown = judge.open_findings
    verdict = compute_verdict(shown, [source(now)], now, {one.id: one for one in judge.incidents})
    return {
        "verdict": serialize.format_verdict(verdict),
        "answers": [_drop_device(serialize.format_finding(one, rules)) for one in shown],
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
    rows = Mixture(draw_table()).events(EVENTS)
    golden.hold("replay", replay(rows, tmp_path), f"{HOW} replay")


def test_the_summary_of_scenarios_is_of_what_is_stored() -> None:
    whole = golden.read("scenarios")
    told = {key: entry[0] for key, entry in golden.read_summary("scenarios").items()}
    assert told == {key: golden.digest(value) for key, value in whole.items()}


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        if "scenarios" in names or not names:
            golden.write_large("scenarios", *tell_all(Path(folder)))
        if "replay" in names or not names:
            golden.write("replay", replay(Mixture(draw_table()).events(EVENTS), Path(folder)))


if __name__ == "__main__":
    main(sys.argv[1:])
