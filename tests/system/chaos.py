"""
Faults into the real kernel log while the daemon is killed again and again: each is judged once, or
told as lost.

By hand: `python -m tests.system.chaos --rounds 200 [--seed N] [--folder DIR]`. Prints what happened
as JSON; ends with 1 and keeps the folder (ledger, log of the daemon, what the writer knows) where
an account does not balance.

A writer process of its own writes at a steady random pace and reads each of its records back, so
that it knows which ones the kernel took and under which numbers; and it notes, again and again,
what the oldest record in the ring was. After the last round the daemon is started once more and
catches up. Then, by its ledger:

    missing      a record that is neither judged nor in a counted gap
    twice        a record that was judged twice
    contradicted a record that was judged although a gap says that it was lost
    invented     an event of a record that the kernel never took, or a gap over records that the
                 ring still held
    miscounted   a gap whose count is not its span, or two gaps over the same record
    misfolded    findings or incidents that have counted more or fewer events than the ledger has
                 (what is suppressed as a consequence of something else is not counted in a finding of its
                 own)
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import secrets
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.bench import ring
from tests.bench.measure import Connection, Helper
from tests.harness import Json, Node
from tests.system.lines import ordinary
from tests.waiting import WAIT_S, until

PACE = 120.0  # lines a second, on average
DEVICES = (
    (13,),
    (31,),
    (79,),
    (94,),
    (13, 31, 79),
    (31, 94),
)  # the codes of each; several become one incident, with one finding
BURST, BURST_PACE = (
    500,
    5000.0,
)  # less than the ring holds; so long that the daemon reads, judges and commits the while
OVERRUN = 3000  # more than twice what it holds
_ORDINARY = 0.3  # share of lines that mean nothing
_READ_EVERY = 40
_LOST = "vitald/records_lost"


@dataclass(slots=True)
class Written:
    """What the kernel took, by the writer's own reading."""

    faults: dict[int, str] = field(default_factory=dict)  # sequence number -> text
    ordinary: int = 0
    dropped: int = 0  # faults that were written and never seen in the ring
    strangers: int = 0  # records of others
    unread: int = 0  # records that the ring took from the writer, too
    oldest: list[tuple[float, int]] = field(default_factory=list)  # time, oldest number in the ring


@dataclass(frozen=True, slots=True)
class Held:
    """An event of one of our records, in the ledger."""

    seq: int
    text: str
    component: str
    code: str


@dataclass(frozen=True, slots=True)
class Gap:
    """A span told as lost, when that was seen if known, and how many records it says it has."""

    first: int
    last: int
    time: float | None
    count: int | None


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the daemon remembers of it all."""

    events: list[Held]
    gaps: list[Gap]
    gap_events: int
    findings: dict[tuple[str, str], int]  # component, code -> counted
    incidents: dict[tuple[str, str], int]  # the same, as members of incidents

    @staticmethod
    def read(path: Path, domain: str) -> Ledger:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            ours = f"gpu/{domain}:%"
            events = db.execute(
                "SELECT identity, raw, component, code FROM events WHERE component LIKE ? ORDER"
                " BY id",
                (ours,),
            ).fetchall()
            told = db.execute(
                "SELECT time, fields FROM events WHERE code = ? ORDER BY id", (_LOST,)
            ).fetchall()
            counted = db.execute(
                "SELECT component, code, sum(count) FROM findings WHERE component LIKE ? OR code ="
                " ? GROUP BY component, code",
                (ours, _LOST),
            )
            told_in: Counter[tuple[str, str]] = Counter()
            for (members,) in db.execute("SELECT members FROM incidents"):
                told_in.update(
                    {
                        (member["component"], member["code"]): member["count"]
                        for member in json.loads(members)
                    }
                )
            return Ledger(
                events=[
                    Held(int(identity.rpartition(":")[2]), raw, component, code)
                    for identity, raw, component, code in events
                ],
                gaps=[gap for at, fields in told for gap in _gaps(at, json.loads(fields))],
                gap_events=len(told),
                findings={(component, code): count for component, code, count in counted},
                incidents={
                    key: count
                    for key, count in told_in.items()
                    if key[0].startswith(f"gpu/{domain}:") or key[1] == _LOST
                },
            )


def _gaps(at: float, fields: dict[str, object]) -> list[Gap]:
    """Of one event: its span, or its spans where it has several; the count then belongs to all of
    them together.
    """
    spans = fields.get("ranges")
    if not isinstance(spans, list):
        found_at_start = "recovered" in fields  # such a gap has the time of the record after it
        count = int(str(fields["count"])) + int(str(fields.get("recovered", 0)))
        return [
            Gap(
                int(str(fields["first_seq"])),
                int(str(fields["last_seq"])),
                None if found_at_start else at,
                count,
            )
        ]
    pairs = spans if spans and isinstance(spans[0], list) else list(zip(spans[::2], spans[1::2]))
    whole = sum(last - first + 1 for first, last in pairs) == fields["count"]
    return [Gap(first, last, at, last - first + 1 if whole else None) for first, last in pairs]


def account(written: Written, ledger: Ledger) -> list[str]:
    """Everything that does not balance."""
    wrong: list[str] = []
    judged = Counter(held.seq for held in ledger.events)
    texts = Counter(held.text for held in ledger.events)
    lost = sorted((gap.first, gap.last) for gap in ledger.gaps)
    for seq, text in sorted(written.faults.items()):
        gaps = [f"{first}-{last}" for first, last in lost if first <= seq <= last]
        if not judged[seq] and not gaps:
            wrong.append(f"missing: record {seq} {text!r}")
        if judged[seq] and gaps:
            wrong.append(
                f"contradicted: record {seq} {text!r} is judged, and lost in {', '.join(gaps)}"
            )
    for held in ledger.events:
        if written.faults.get(held.seq) != held.text and not written.unread:
            wrong.append(
                f"invented: an event of record {held.seq} {held.text!r}; the kernel has"
                f" {written.faults.get(held.seq)!r}"
            )
    wrong += [f"twice: record {seq}, {count} times" for seq, count in judged.items() if count > 1]
    wrong += [f"twice: {text!r}, {count} times" for text, count in texts.items() if count > 1]
    for gap in ledger.gaps:
        if gap.count != gap.last - gap.first + 1:
            wrong.append(f"miscounted: gap {gap.first}-{gap.last} says {gap.count}")
        oldest = next(
            (oldest for at, oldest in written.oldest if gap.time is not None and at >= gap.time),
            None,
        )
        if oldest is not None and gap.last >= oldest:
            wrong.append(
                f"invented: gap {gap.first}-{gap.last}, while the ring still held {oldest} and"
                " later"
            )
    wrong += [
        f"miscounted: gaps {one} and {other}" for one, other in pairwise(lost) if other[0] <= one[1]
    ]
    events = Counter((held.component, held.code) for held in ledger.events)
    events.update({("node", _LOST): ledger.gap_events})
    codes = Counter(component for component, _ in events)
    for key in sorted({*events, *ledger.findings, *ledger.incidents}):
        expected, counted, told = (
            events[key],
            ledger.findings.get(key, 0),
            ledger.incidents.get(key, 0),
        )
        if counted > expected or (counted < expected and codes[key[0]] == 1):
            wrong.append(
                f"misfolded: {' '.join(key)} has {expected} events, and its findings counted"
                f" {counted}"
            )
        if told != expected:
            wrong.append(
                f"misfolded: {' '.join(key)} has {expected} events, and incidents counted {told}"
            )
    return wrong


class Writer:
    """The writer process: writes, and knows what became of it."""

    def __init__(self, domain: str, seed: int) -> None:
        self.domain = domain
        self.chance = random.Random(seed)
        self.known = Written()
        self._serial = self._marks = 0
        self._last = -1
        self._pending = 0
        self._out = os.open("/dev/kmsg", os.O_WRONLY | os.O_CLOEXEC)
        self._own = ring.tail()
        self._first = ring.tail()

    def line(self) -> None:
        """A fault, or a line that means nothing."""
        self._serial += 1
        if self.chance.random() < _ORDINARY:
            self._write(f"<6>vitald-chaos {self.domain}: {ordinary(self._serial)}")
        else:
            device = self.chance.randrange(len(DEVICES))
            code = self.chance.choice(DEVICES[device])
            self._fault(
                f"NVRM: Xid (PCI:{self.domain}:{device:02x}:00): {code}, pid={self._serial},"
                f" name=chaos{self._serial}, Ch 0000000b"
            )

    def lines(self, count: int, pace: float = math.inf) -> None:
        begun = time.monotonic()
        for number in range(count):
            self.line()
            if (ahead := begun + number / pace - time.monotonic()) > 0:
                time.sleep(ahead)
        self.read_back()

    def mark(self) -> str:
        """A fault of its own that the kernel has certainly taken: its component, which no other
        mark has.
        """
        self._marks += 1
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            self._serial += 1
            before = len(self.known.faults)
            self._fault(
                f"NVRM: Xid (PCI:{self.domain}:ff:{self._marks:02x}): 79, pid={self._serial},"
                " name=chaos-mark, Ch 00000000"
            )
            self.read_back()
            if len(self.known.faults) > before:
                return f"gpu/{self.domain}:ff:{self._marks:02x}.0"
            ring.lift()
        raise TimeoutError("the kernel drops what is written")

    def _fault(self, text: str) -> None:
        self.known.dropped += 1  # until it is read back
        self._write(
            f"<4>{text}"
        )  # one above goes to a serial console, too, at a millisecond a line

    def _write(self, line: str) -> None:
        os.write(self._out, f"{line}\n".encode())
        self._pending += 1
        if self._pending >= _READ_EVERY:
            self.read_back()

    def read_back(self) -> None:
        """Before the ring could overtake us, too."""
        self._pending = 0
        fault, idle = f"NVRM: Xid (PCI:{self.domain}:", f"vitald-chaos {self.domain}:"
        while (record := _next(self._own)) is not None:
            seq, text = record
            if self._last >= 0:
                self.known.unread += seq - self._last - 1
            self._last = seq
            if text.startswith(fault):
                self.known.faults[seq] = text
                self.known.dropped -= 1
            elif text.startswith(idle):
                self.known.ordinary += 1
            else:
                self.known.strangers += 1
        os.lseek(self._first, 0, os.SEEK_SET)
        if (record := _next(self._first)) is not None:
            self.known.oldest.append((time.time(), record[0]))


def _next(fd: int) -> tuple[int, str] | None:
    """The next record of the ring: number and text."""
    while True:
        try:
            head, _, text = os.read(fd, 16384).decode(errors="replace").partition(";")
        except BrokenPipeError:
            continue
        except BlockingIOError:
            return None
        return int(head.split(",")[1]), text.partition("\n")[0]


def _writer(pipe: Connection, domain: str, seed: int, pace: float) -> None:
    """Until the pipe ends: a line now and then, and what is asked for at once."""
    writer = Writer(domain, seed)
    asked: dict[str, Callable[..., object]] = {
        "lines": writer.lines,
        "mark": writer.mark,
        "known": lambda: writer.known,
    }
    resting = False
    pipe.send("ready")
    while True:
        if not pipe.poll(None if resting else writer.chance.expovariate(pace)):
            writer.line()
            writer.read_back()
            continue
        try:
            name, *arguments = pipe.recv()
        except EOFError:
            return
        if name == "rest":
            resting = True
            pipe.send(None)
        else:
            pipe.send(asked[name](*arguments))


class Campaign:
    """Rounds on one node. Each kind begins with the daemon in any state, and ends it in its own
    way.
    """

    def __init__(self, node: Node, writer: Helper, chance: random.Random) -> None:
        self.node = node
        self.writer = writer
        self.chance = chance
        self.starts = 0
        self._owed = 0  # answers of the writer that nobody has waited for
        self.kinds: dict[str, Callable[[], None]] = {
            "any_moment": self._any_moment,
            "burst": self._burst,
            "starting": self._starting,
            "overrun_while_down": self._overrun_while_down,
            "starting_late": self._starting_late,
            "overrun_while_frozen": self._overrun_while_frozen,
            "overrun_while_reading": self._overrun_while_reading,
            "burst_and_sigterm": self._burst_and_sigterm,
        }

    def run(self, rounds: int) -> Counter[str]:
        """Every kind comes once before any comes again."""
        done: Counter[str] = Counter()
        left: list[str] = []
        self.mark()
        for _ in range(rounds):
            if not left:
                ring.lift()
                left = self.chance.sample(list(self.kinds), len(self.kinds))
            kind = left.pop()
            self.kinds[kind]()
            done[kind] += 1
        self._ask("rest")
        self.mark()
        self.node.stop()
        return done

    def mark(self) -> None:
        """Until the daemon has judged everything that was written so far."""
        self._up()
        component = str(self._ask("mark"))
        until(
            lambda: self.node.get(f"/v1/events?component={component}")["events"],
            f"the mark {component}",
        )

    def _any_moment(self) -> None:
        self._up()
        self._let(0.0, 0.5)
        self.node.kill()

    def _burst(self) -> None:
        self._up()
        self._begin("lines", BURST, BURST_PACE)
        self._let(0.0, 0.1)
        self.node.kill()

    def _burst_and_sigterm(self) -> None:
        self._up()
        self._begin("lines", BURST, BURST_PACE)
        self._let(0.0, 0.1)
        self.node.stop(signal.SIGTERM)

    def _starting(self) -> None:
        """The interpreter has hardly begun."""
        self._start()
        self._let(0.001, 0.02)
        self.node.kill()

    def _starting_late(self) -> None:
        """Imports, the ledger, the first look."""
        self._start()
        self._let(0.1, 0.9)
        self.node.kill()

    def _overrun_while_down(self) -> None:
        self._up()
        self.node.kill()
        self._ask("lines", OVERRUN)

    def _overrun_while_frozen(self) -> None:
        self._up()
        with self.node.frozen():
            self._ask("lines", OVERRUN)
        self._let(0.0, 0.1)
        self.node.kill()

    def _overrun_while_reading(self) -> None:
        self._up()
        self._begin("lines", OVERRUN)
        self._let(0.0, 0.1)
        self.node.kill()

    def _start(self) -> None:
        if self.node.process is None:
            self.starts += 1
            self.node.start(wait=False)

    def _up(self) -> None:
        """Answering; it may still be catching up."""
        self._start()
        until(lambda: self.node.answers("/healthz"), "the daemon to answer")

    def _let(self, least: float, most: float) -> None:
        """A random time: the moment of the kill is what is varied."""
        time.sleep(self.chance.uniform(least, most))

    def _begin(self, *asked: object) -> None:
        self.writer.pipe.send(asked)
        self._owed += 1

    def _ask(self, *asked: object) -> object:
        self._begin(*asked)
        while self._owed > 1:
            self._answer()
        return self._answer()

    def _answer(self) -> object:
        self._owed -= 1
        return self.writer.ask(seconds=WAIT_S)

    def known(self) -> Written:
        known = self._ask("known")
        assert isinstance(known, Written)
        return known


def run(folder: Path, rounds: int, seed: int, pace: float = PACE) -> Json:
    """Rounds on a new node in the folder, with the kernel's limit on writers off. `wrong` says what
    does not balance.
    """
    domain = f"{secrets.randbelow(0xEFFF) + 0x1000:04x}"  # no older line of the ring has it
    begun = time.monotonic()
    node = Node(folder / "node", kernel_log="kmsg")
    node.environment = {
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(folder / "pycache"),
    }  # starts as an installed one does
    try:
        node.start()  # what the ring loses before the first look is not told as lost
        with Helper(_writer, domain, seed, pace) as writer:
            campaign = Campaign(node, writer, random.Random(seed))
            done = campaign.run(rounds)
            written = campaign.known()
    finally:
        node.stop()
    ledger = Ledger.read(node.state / "ledger.db", domain)
    wrong = account(written, ledger)
    if wrong:
        (folder / "written.json").write_text(
            json.dumps({"domain": domain, "wrong": wrong, **asdict(written)}, indent=1)
        )
    return {
        "seed": seed,
        "domain": domain,
        "rounds": dict(sorted(done.items())),
        "starts": campaign.starts,
        "took_s": round(time.monotonic() - begun, 1),
        "faults_taken": len(written.faults),
        "faults_judged": len(ledger.events),
        "faults_in_gaps": sum(
            any(gap.first <= seq <= gap.last for gap in ledger.gaps) for seq in written.faults
        ),
        "gaps": len(ledger.gaps),
        "records_in_gaps": sum(gap.last - gap.first + 1 for gap in ledger.gaps),
        "ordinary_taken": written.ordinary,
        "dropped_by_kernel": written.dropped,
        "records_of_others": written.strangers,
        "unread_by_writer": written.unread,
        "complaints": dict(Counter(str(entry["event"]) for entry in _complaints(node.errors))),
        "wrong": len(wrong),
        "first_wrong": wrong[:20],
    }


def _complaints(path: Path) -> list[dict[str, object]]:
    """What the daemon itself called an error. A kill may have cut a line short."""
    found = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            entry = (
                {"event": line, "level": "error"}
                if line.startswith(("Traceback", "Exception", "Fatal"))
                else {}
            )
        if isinstance(entry, dict) and (
            entry.get("level") in ("error", "critical") or "exception" in entry
        ):
            found.append(entry)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.chaos", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=200, metavar="N")
    parser.add_argument(
        "--seed",
        type=int,
        default=secrets.randbelow(1 << 32),
        metavar="N",
        help="the moments of the kills (default: random)",
    )
    parser.add_argument(
        "--pace", type=float, default=PACE, metavar="N", help=f"lines a second (default: {PACE:g})"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=None,
        metavar="DIR",
        help="work there, and leave everything there",
    )
    asked = parser.parse_args(arguments)
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="vitald-chaos-", dir="/var/tmp"))
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # the limit is put back, the daemon ended
    with ring.unlimited():
        figures = run(folder, asked.rounds, asked.seed, asked.pace)
    if asked.folder is None and not figures["wrong"]:
        shutil.rmtree(folder)
    else:
        figures["folder"] = str(folder)
    print(json.dumps(figures, indent=2))
    return 1 if figures["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
