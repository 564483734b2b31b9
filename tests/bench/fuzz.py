"""
A long run by hand: `python -m tests.bench.fuzz --seconds N [--seed S] [--out FILE]`.

Real lines are mutated, and random bytes made, and both go through everything that reads what others
wrote: the record grammar, the prefixes, recognition, interpretation, the findings, JSON, the
ledger, the configuration. Told as JSON:

    crash        an exception other than those that a caller is told to expect
    hang         one input that takes longer than 50 ms, three times in a row
    false event  a noise line, a real line quoted by another program, or random text that is
    recognised wrong kind   a line whose process or task is named like another fault, and is taken
    for that fault

`soup` (the words of real lines in random order) may by chance make a true line; what it gives is
shown for a person to judge.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import string
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import TypeVar

from tests.bench.measure import ROOT, Json, rss_mib, scratch
from vitald import catalog, config, tomlfile
from vitald.catalog import CatalogError
from vitald.collectors.kernel_log.drills import DrillRegistry
from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.collectors.kernel_log.kmsg import Kmsg, _Cursor
from vitald.collectors.kernel_log.lines import strip_prefix
from vitald.collectors.kernel_log.parsed_line import ParsedLine
from vitald.collectors.kernel_log.record import KernelRecord, TornRecord
from vitald.collectors.pci.inventory import PciInventory
from vitald.config import ConfigError
from vitald.judge.engine import Judge
from vitald.judge.verdict import compute_verdict
from vitald.ledger import Ledger, LedgerEntry, StoredEvent
from vitald.model import Event, Transition
from vitald.server import serialize

T = TypeVar("T")
CORPORA = (
    ROOT / "tests/data/kernel_lines.jsonl",
    ROOT.parent / "shared/reference/kernel-lines.dev.jsonl",
)
HANG_S = 0.05
_LONGEST = 1 << 16  # what `scan` and the file source look at of one line
_SHOWN = 40
_COMMIT = 1000
_CONFIG_SHARE = 0.02
_EDGES = (
    b"0",
    b"-1",
    b"4294967295",
    b"99999999999999999999",
    b"0x",
    b"\xff",
    b"\\x0a",
    b"\\x",
    b"\x00",
    b", ",
    b"): ",
    b"name=",
    b"pid=",
    b"PCI:",
)
_PREFIXES = (
    "",
    "[ 1137.356721] ",
    "[Sun Feb 23 16:24:18 2025] ",
    "<3>",
    "<11>[    1.000000] ",
    "kern  :err   : [  12.345678] ",
    "Feb 23 16:24:18 node-1 kernel: ",
    "Feb 23 16:24:18 node-1 kernel: [ 1137.356721] ",
    "2025-01-21T04:41:44.285060+00:00 node kernel: ",
    "3,1234,5678901,-;",
    "4,99999999999,1,c,caller=T1;",
    "10.0.0.1: kern: warning: [2025-01-21T04:41:44.28Z]: ",
)
_QUOTES = (
    'containerd[812]: time="2025-01-21T04:41:44Z" level=info msg="{}"',
    "python3[77]: {}",
    "systemd[1]: {}",
    'audit: type=1300 msg=audit(1.1:2): comm="{}"',
    "CPU: 3 PID: 77 Comm: {} Tainted: G",
    "Modules linked in: {}",
    "nfs: xid 79 {}",
    "kubelet: E0121 {}",
    "dockerd[1]: {}",
    "grep: {}",
    "kauditd_printk_skb: {}",
    'overlayfs: upperdir is in-use: "{}"',
    "Command line: BOOT_IMAGE=/vmlinuz {}",
    "traps: {}[77] trap invalid opcode ip:1 sp:2 error:0",
    "# {}",
    "> {}",
    "'{}'",
)
_NAMED = (
    (
        "xid/13",
        (
            "NVRM: Xid (PCI:0000:65:00): 13, pid=1234, name={}, Graphics SM Warp Exception on (GPC "
            "1, TPC 2, SM 0): Out Of Range Address"
        ),
    ),
    ("xid/45", "NVRM: Xid (PCI:0000:65:00): 45, pid=1234, name={}, Ch 00000010"),
    (
        "oom",
        (
            "Out of memory: Killed process 4242 ({}) total-vm:1kB, anon-rss:1kB, file-rss:0kB, "
            "shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0"
        ),
    ),
    ("hung_task", "INFO: task {}:4242 blocked for more than 120 seconds."),
    ("lockup", "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [{}:4242]"),
)


@dataclass(slots=True)
class Report:
    """What has been tried and what came of it."""

    tried: Counter[str] = field(default_factory=Counter)
    recognised: Counter[str] = field(default_factory=Counter)
    crashes: dict[str, Json] = field(default_factory=dict)
    crash_count: int = 0
    hangs: list[Json] = field(default_factory=list)
    hang_count: int = 0
    false_events: dict[str, Json] = field(default_factory=dict)
    false_count: int = 0
    wrong_kinds: dict[str, Json] = field(default_factory=dict)
    soup: dict[str, str] = field(default_factory=dict)
    slowest: dict[str, tuple[float, str]] = field(default_factory=dict)

    def attempt(
        self,
        target: str,
        given: object,
        work: Callable[[], T],
        expected: tuple[type[Exception], ...] = (),
        limit: float = HANG_S,
    ) -> T | None:
        """The result of `work`; None where it raised. What it should not do is noted."""
        self.tried[target] += 1
        begun = time.perf_counter()
        result: T | None = None
        try:
            result = work()
        except expected:
            pass
        except Exception as error:
            self._crashed(target, given, error)
        seconds = time.perf_counter() - begun
        if seconds > min(limit, self.slowest.get(target, (0.0, ""))[0]):
            seconds = min(
                [seconds, *(_again(work) for _ in range(2))]
            )  # the machine itself may have been slow
            if seconds > limit:
                self.hang_count += 1
                if len(self.hangs) < _SHOWN:
                    self.hangs.append(
                        {
                            "target": target,
                            "seconds": round(seconds, 3),
                            "length": len(_shown(given, None)),
                            "input": _shown(given),
                        }
                    )
            if seconds > self.slowest.get(target, (0.0, ""))[0]:
                self.slowest[target] = (seconds, _shown(given, 200))
        return result

    def _crashed(self, target: str, given: object, error: Exception) -> None:
        self.crash_count += 1
        place = traceback.extract_tb(error.__traceback__)[-1]
        key = f"{target}: {type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
        known = self.crashes.setdefault(
            key,
            {
                "error": str(error)[:300],
                "times": 0,
                "input": _shown(given),
                "trace": traceback.format_exc()[-1500:],
            },
        )
        known["times"] = int(str(known["times"])) + 1
        if known["times"] == 1:
            print(f"CRASH {key}: {error}\n  {_shown(given)}", file=sys.stderr)

    def false_event(self, origin: str, given: bytes, sighting: ParsedLine) -> None:
        self.false_count += 1
        key = f"{origin}: {sighting.code}"
        if key not in self.false_events and len(self.false_events) < _SHOWN:
            self.false_events[key] = {
                "origin": origin,
                "code": sighting.code,
                "input": _shown(given),
            }
            print(f"FALSE EVENT {key}\n  {_shown(given)}", file=sys.stderr)

    def json(self) -> Json:
        return {
            "crashes": self.crash_count,
            "hangs": self.hang_count,
            "false_events": self.false_count,
            "wrong_kinds": len(self.wrong_kinds),
            "tried": dict(self.tried),
            "recognised": dict(self.recognised.most_common()),
            "slowest_ms": {
                target: {"ms": round(1e3 * seconds, 2), "input": shown}
                for target, (seconds, shown) in self.slowest.items()
            },
            "crash_inputs": self.crashes,
            "hang_inputs": self.hangs,
            "false_event_inputs": list(self.false_events.values()),
            "wrong_kind_inputs": list(self.wrong_kinds.values()),
            "soup_recognised": self.soup,
        }


def _again(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    with contextlib.suppress(Exception):
        work()
    return time.perf_counter() - begun


def _shown(given: object, most: int | None = 500) -> str:
    return (given if isinstance(given, str) else repr(given))[:most]


class Mutator:
    """Makes inputs out of the corpus."""

    def __init__(self, chance: random.Random, lines: Sequence[bytes]) -> None:
        self.chance = chance
        self.lines = lines
        self.words = sorted({word for line in lines for word in line.split()})
        self._ways = (
            self._flip,
            self._insert,
            self._drop,
            self._repeat,
            self._splice,
            self._swap,
            self._edge,
            self._number,
            self._case,
            self._escape,
        )

    def mutated(self) -> bytes:
        line = self.chance.choice(self.lines)
        for _ in range(self.chance.choice((0, 1, 1, 1, 2, 3, 6))):
            line = self.chance.choice(self._ways)(line)
        if self.chance.random() < 0.01:
            line = self._long(line)
        return line[:_LONGEST]

    def random_text(self) -> tuple[str, bytes]:
        """Bytes, printable characters, or words of letters."""
        kind, length = (
            self.chance.choice(("bytes", "printable", "words")),
            self.chance.choice((3, 20, 80, 200, 900)),
        )
        if kind == "bytes":
            return kind, self.chance.randbytes(length)
        if kind == "printable":
            return kind, "".join(self.chance.choices(string.printable, k=length)).encode()
        words = (
            "".join(self.chance.choices(string.ascii_letters, k=self.chance.randrange(1, 10)))
            for _ in range(length // 6 + 1)
        )
        return (
            kind,
            "".join(
                word + self.chance.choice((" ", ": ", "-", " (", ") ", ", ", " 0x1 ", " 79 "))
                for word in words
            ).encode(),
        )

    def soup(self) -> bytes:
        return b" ".join(self.chance.choices(self.words, k=self.chance.randrange(1, 14)))

    def _place(self, line: bytes) -> tuple[int, int]:
        start = self.chance.randrange(len(line) + 1)
        return start, min(len(line), start + self.chance.choice((1, 2, 4, 12, 40)))

    def _flip(self, line: bytes) -> bytes:
        start, _ = self._place(line)
        return line[:start] + bytes((self.chance.randrange(256),)) + line[start + 1 :]

    def _insert(self, line: bytes) -> bytes:
        start, _ = self._place(line)
        return (
            line[:start] + self.chance.randbytes(self.chance.choice((1, 2, 8, 32))) + line[start:]
        )

    def _drop(self, line: bytes) -> bytes:
        start, end = self._place(line)
        return line[:start] + line[end:]

    def _repeat(self, line: bytes) -> bytes:
        start, end = self._place(line)
        return line[:end] + line[start:end] * self.chance.choice((1, 2, 5, 50)) + line[end:]

    def _splice(self, line: bytes) -> bytes:
        other = self.chance.choice(self.lines)
        return line[: self._place(line)[0]] + other[self._place(other)[0] :]

    def _swap(self, line: bytes) -> bytes:
        words = line.split(b" ")
        one, two = self.chance.randrange(len(words)), self.chance.randrange(len(words))
        words[one], words[two] = words[two], words[one]
        return b" ".join(words)

    def _edge(self, line: bytes) -> bytes:
        start, end = self._place(line)
        return line[:start] + self.chance.choice(_EDGES) + line[end:]

    def _number(self, line: bytes) -> bytes:
        places = [place for place, byte in enumerate(line) if 0x30 <= byte <= 0x39]
        if not places:
            return line
        place = self.chance.choice(places)
        return (
            line[:place]
            + str(self.chance.randrange(10 ** self.chance.choice((1, 3, 9, 19)))).encode()
            + line[place + 1 :]
        )

    def _case(self, line: bytes) -> bytes:
        start, end = self._place(line)
        return line[:start] + line[start:end].swapcase() + line[end:]

    def _escape(self, line: bytes) -> bytes:
        start, end = self._place(line)
        return line[:start] + b"".join(b"\\x%02x" % byte for byte in line[start:end]) + line[end:]

    def _long(self, line: bytes) -> bytes:
        """A line of tens of KiB: what a regular expression must not choke on."""
        start, end = self._place(line)
        part = self.chance.choice(
            (
                line[start:end] or b"x",
                self.chance.choice(self.words) + b" ",
                b" ",
                b", ",
                b"0x1 ",
                b"a",
                b"(",
                b"name=x, ",
                b"0",
            )
        )
        return (
            line[:end]
            + part * (self.chance.choice((900, 8000, _LONGEST)) // len(part))
            + line[end:]
        )


class Fuzz:
    """One run."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        labelled = [
            json.loads(line)
            for path in CORPORA
            if path.exists()
            for line in path.read_text().splitlines()
        ]
        self.noise = [str(one["line"]).encode() for one in labelled if one["kind"] == "noise"]
        self.faults = [
            line.message
            for one in labelled
            if one["kind"] != "noise"
            and (line := strip_prefix(str(one["line"]).encode())) is not None
        ]
        self.mutator = Mutator(self.chance, [str(one["line"]).encode() for one in labelled])
        self.rules = catalog.load_catalog()
        self.interpreter = Interpreter(
            self.rules, DrillRegistry(), PciInventory(Path("/sys")), userspace="confirmed"
        )
        self.findings = Judge(self.rules)
        self.report = Report()
        self.now = time.time()
        self.serial = 0
        self.held: list[tuple[Event, list[Transition]]] = []
        self.ledger = Ledger(folder)
        self.ledger.open()
        self.source = Kmsg("/dev/kmsg", self.interpreter, "fuzz")
        self.cursor = _Cursor(None)
        self.sender, self.receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.receiver.setblocking(False)
        self.example = next(
            (path.read_text() for path in (ROOT / "config.example.toml",) if path.exists()),
            '[metrics]\nlisten = "off"\n',
        )
        self.config_limit_s = HANG_S + 3 * _again(
            lambda: config.parse(
                "", {"catalog": {"overrides": {"xid/79": {"action": "inspect"}}}}, "limit"
            )
        )
        self.ways: tuple[tuple[float, Callable[[], None]], ...] = (
            (0.50, self.line),
            (0.12, self.record),
            (0.10, self.drain),
            (0.10, self.quoted),
            (0.06, self.named),
            (0.06, self.random_text),
            (0.04, self.soup_line),
            (_CONFIG_SHARE / 2, self.config_text),
            (_CONFIG_SHARE / 2, self.config_tables),
        )

    def run(self, seconds: float) -> None:
        self.all_noise()
        end = time.monotonic() + seconds
        weights, ways = [weight for weight, _ in self.ways], [way for _, way in self.ways]
        while time.monotonic() < end:
            for way in self.chance.choices(ways, weights, k=100):
                way()
        self.commit()

    def all_noise(self) -> None:
        """Every noise line as it is, behind every prefix, and quoted."""
        for raw in self.noise:
            stripped = strip_prefix(raw)
            message = stripped.message if stripped is not None else raw
            for given in (
                raw,
                *(prefix.encode() + message for prefix in _PREFIXES),
                *(_quote(quote, message) for quote in _QUOTES),
            ):
                self._nothing("noise", given)

    def line(self) -> None:
        """A line of a rendered log, all the way to JSON."""
        raw = self.mutator.mutated()
        line = self.report.attempt("strip", raw, lambda: strip_prefix(raw))
        if line is not None:
            self._judge(line.message, line.facility)

    def record(self) -> None:
        """A record of /dev/kmsg."""
        data = self._record()
        record = self.report.attempt("parse", data, lambda: KernelRecord.parse(data), (TornRecord,))
        if record is not None:
            self._judge(record.text, record.facility)

    def drain(self) -> None:
        """Records through the daemon's own loop: a socket gives one a read, as /dev/kmsg does."""
        sent = [data for _ in range(self.chance.randrange(1, 6)) if (data := self._record()[:8000])]
        for data in sent:
            self.sender.send(data)
        found = self.report.attempt(
            "drain",
            sent,
            lambda: self.source._drain_ring(self.receiver.fileno(), self.cursor, live=True),
        )
        for event in found[0] if found is not None else ():
            self._apply(event, sent)
        if self._last_seq() > 10**12:
            self.cursor.position = None

    def quoted(self) -> None:
        """A real fault, mutated or not, quoted by somebody else."""
        message = (
            self.chance.choice(self.faults)
            if self.chance.random() < 0.5
            else self.mutator.mutated()
        )
        quoted = _quote(self.chance.choice(_QUOTES), message.replace(b"\n", b" "))
        self._nothing("quoted", self.chance.choice(_PREFIXES).encode() + quoted)

    def named(self) -> None:
        """A process that is called like another fault."""
        kind, form_ = self.chance.choice(_NAMED)
        given = _quote(form_, self.chance.choice(self.faults))
        sighting = self.report.attempt(
            "recognise", given, lambda: self.interpreter.parse_record(given)
        )
        if sighting is not None and kind not in (sighting.kind, sighting.code):
            self.report.wrong_kinds.setdefault(
                f"{kind} as {sighting.code}",
                {"expected": kind, "code": sighting.code, "input": _shown(given)},
            )

    def random_text(self) -> None:
        kind, text = self.mutator.random_text()
        self._nothing(f"random {kind}", text)

    def soup_line(self) -> None:
        given = self.mutator.soup()
        sighting = self.report.attempt(
            "recognise", given, lambda: self.interpreter.parse_record(given)
        )
        if sighting is not None and len(self.report.soup) < _SHOWN:
            self.report.soup.setdefault(sighting.code, _shown(given))

    def config_text(self) -> None:
        """The example file, mutated."""
        lines = Mutator(self.chance, [line.encode() for line in self.example.splitlines() if line])
        shuffled = self.example.encode().splitlines()
        for _ in range(self.chance.randrange(1, 6)):
            shuffled.insert(self.chance.randrange(len(shuffled) + 1), lines.mutated()[:2000])
        text = (
            b"\n".join(shuffled)
            .decode("utf-8", "replace")
            .replace("#", self.chance.choice(("#", "", "")))
        )
        tables = self.report.attempt(
            "toml.parse",
            text,
            lambda: tomlfile.parse_toml(text, "fuzz"),
            (ValueError,),
            self.config_limit_s,
        )
        if tables is not None:
            self.report.attempt(
                "config.parse",
                text,
                lambda: config.parse(text, tables, "fuzz"),
                (ConfigError, CatalogError),
                self.config_limit_s,
            )

    def config_tables(self) -> None:
        """Known and unknown keys with values of every type."""
        tables: tomlfile.Table = {}
        for _ in range(self.chance.randrange(1, 4)):
            section = self.chance.choice((*config.SECTIONS, "metric", ""))
            known = list(config.settings_of(section)) if section in config.SECTIONS else []
            keys = self.chance.choices((*known, "unknown", ""), k=self.chance.randrange(4))
            tables[section] = (
                {key: self._value(3) for key in keys}
                if self.chance.random() < 0.9
                else self._value(2)
            )
        if self.chance.random() < 0.3:
            codes = self.chance.choices((*list(self.rules.rules)[:50], "xid/999", "nonsense"), k=2)
            tables["catalog"] = {"overrides": {code: self._override() for code in codes}}
        self.report.attempt(
            "config.parse",
            tables,
            lambda: config.parse("", tables, "fuzz"),
            (ConfigError, CatalogError),
            self.config_limit_s,
        )

    def commit(self) -> None:
        """What was judged, as the ledger stores it, and the verdict that is shown."""
        entries = [
            LedgerEntry(events=(event,), transitions=tuple(changes)) for event, changes in self.held
        ]
        self.held.clear()
        self.report.attempt(
            "ledger", f"{len(entries)} events", lambda: self.ledger.commit(entries), limit=5.0
        )
        self.report.attempt(
            "verdict",
            "",
            lambda: json.dumps(
                serialize.format_verdict(compute_verdict(self.findings.open_findings, [], self.now))
            ),
            limit=1.0,
        )

    def _last_seq(self) -> int:
        return self.cursor.position.seq if self.cursor.position is not None else 0

    def _record(self) -> bytes:
        if self.chance.random() < 0.1:
            return self.mutator.mutated()
        last = self._last_seq()
        seq = self.chance.choice(
            (last + 1, last + 1, last + 1, last, last + 5, 0, self.chance.randrange(10**20))
        )
        level = self.chance.choice((0, 3, 6, 8, 11, 30, 9999))
        head = f"{level},{seq},{self.chance.choice((0, 1, 10**9, 10**19))},-"
        line = strip_prefix(self.mutator.mutated())
        text = line.message.replace(b"\n", b"\\x0a") if line is not None else b""
        tail = self.chance.choice((b"", b"", b" SUBSYSTEM=pci\n DEVICE=+pci:0000:65:00.0\n"))
        return head.encode() + b";" + text + b"\n" + tail

    def _nothing(self, origin: str, given: bytes) -> None:
        line = self.report.attempt("strip", given, lambda: strip_prefix(given))
        for text in {given, line.message} if line is not None else {given}:
            sighting = self.report.attempt(
                "recognise", text, lambda: self.interpreter.parse_record(text)
            )
            if sighting is not None:
                self.report.false_event(origin, text, sighting)

    def _judge(self, text: bytes, facility: int | None) -> None:
        sighting = self.report.attempt(
            "recognise", text, lambda: self.interpreter.parse_record(text)
        )
        if sighting is None:
            return
        self.report.recognised[sighting.kind] += 1
        self.serial += 1
        self.now += self.chance.choice((0.0, 0.01, 1.0, 30.0))
        event = self.report.attempt(
            "event",
            text,
            lambda: self.interpreter.make_event(
                sighting,
                text,
                facility,
                identity=f"fuzz:{self.serial}",
                time=self.now,
                boot_id="fuzz",
                usec=self.serial,
            ),
        )
        if event is not None:
            self._apply(event, text)

    def _apply(self, event: Event, given: object) -> None:
        changes = self.report.attempt("apply", given, lambda: self.findings.apply_event(event))
        for change in changes or ():
            self.report.attempt(
                "json",
                given,
                lambda: json.dumps(serialize.format_transition(change, self.rules)).encode(),
            )
        self.report.attempt(
            "json",
            given,
            lambda: json.dumps(serialize.format_event(StoredEvent(1, event))).encode(),
        )
        self.held.append((event, changes or []))
        if len(self.held) >= _COMMIT:
            self.commit()

    def _value(self, depth: int) -> object:
        pick = self.chance.randrange(12 if depth else 9)
        if pick < 3:
            return self.chance.choice(
                (
                    "",
                    "off",
                    "kmsg",
                    "file",
                    "127.0.0.1:9820",
                    "[::1]:1",
                    ":",
                    "::",
                    "[",
                    "1.2.3.4:99999",
                    "90d",
                    "512MiB",
                    "9" * 9 + "GiB",
                    "/x",
                    "\x00",
                    "/a\x00b",
                    "é" * 200,
                )
            )
        if pick < 5:
            return self.chance.choice((0, -1, 1, 2**63, 10**400, True, False))
        if pick < 7:
            return self.chance.choice((0.0, -1.5, float("nan"), float("inf"), 1e308))
        if pick < 9:
            return self.chance.choice((date(2025, 1, 1), datetime(1, 1, 1)))
        if pick < 10:
            return [self._value(depth - 1) for _ in range(self.chance.randrange(4))]
        return {
            self.chance.choice(("a", "", "xid/79", "action", "nvidia")): self._value(depth - 1)
            for _ in range(self.chance.randrange(4))
        }

    def _override(self) -> object:
        keys = (
            "action",
            "title",
            "class",
            "clears",
            "when",
            "match",
            "cases",
            "component",
            "escalation",
            "fatal",
            "starts",
            "contains",
            "unknown",
            "samples",
            "state",
        )
        words = (
            "inspect",
            "none",
            "reboot_node",
            "hardware",
            "quiet:24h",
            "quiet:",
            "reboot",
            "(",
            "(?P<pci>",
            "now",
            "{bdf}",
            "{",
            "a" * 3,
        )

        def value() -> object:
            return self.chance.choice(
                (self.chance.choice(words), [self.chance.choice(words)], self._value(2))
            )

        return (
            {self.chance.choice(keys): value() for _ in range(self.chance.randrange(1, 4))}
            if self.chance.random() < 0.9
            else self._value(2)
        )


def _quote(quote: str, message: bytes) -> bytes:
    before, _, after = quote.partition("{}")
    return before.encode() + message + after.encode()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.fuzz", description=(__doc__ or "").strip().partition("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="to try the same inputs again")
    parser.add_argument("--out", type=Path, default=None, metavar="FILE")
    arguments = parser.parse_args()
    seed = (
        arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    )
    with scratch() as folder:
        fuzz = Fuzz(seed, folder)
        before, begun = rss_mib("self"), time.monotonic()
        with contextlib.suppress(KeyboardInterrupt):
            fuzz.run(arguments.seconds)
        seconds = time.monotonic() - begun
        tried = sum(fuzz.report.tried.values())
        document: Json = {
            "seed": seed,
            "seconds": round(seconds, 1),
            "attempts": tried,
            "attempts_per_s": round(tried / seconds),
            "open_findings": len(fuzz.findings.open_findings),
            "rss_mib": [before, rss_mib("self")],
            **fuzz.report.json(),
        }
        fuzz.ledger.close()
    text = json.dumps(document, indent=2)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")
    else:
        print(text)
    report = fuzz.report
    return (
        1
        if report.crash_count or report.hang_count or report.false_count or report.wrong_kinds
        else 0
    )


if __name__ == "__main__":
    sys.exit(main())
