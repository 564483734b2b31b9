"""
judge: what one event's judgement costs, and what a storm of them does to those who ask.

`event`: the daemon's judge in this process, made from a ledger with a million events behind it,
with 0 to 1,000 findings open, found one by one or all within a second; five kinds of event by
turns. The floor is one frozen record made out of another and put into a dictionary, in the same
rounds; the timer's own cost is in both.

`storm`: 100,000 Xid 45 lines into the real kernel log, at full speed and paced, while a client asks
/v1/status again and again; by turns it asks a bare server that answers the same bytes over a Unix
socket, too, which is the floor. A line is seen, or its number lies in a span told as lost.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from tests.bench import ring
from tests.bench.measure import (
    SETTLE_S,
    Connection,
    Helper,
    Json,
    Node,
    Skipped,
    Usage,
    forget_peak,
    less,
    load,
    memory_mib,
    node,
    pid_of,
    rss_mib,
    scratch,
    spread,
    timed,
)
from tests.harness import UnixConnection
from tests.waiting import until
from vitald import catalog
from vitald.catalog import Catalog
from vitald.collectors.kernel_log.drills import DrillRegistry
from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.judge.engine import Judge
from vitald.ledger import schema
from vitald.ledger.store import FILE, Ledger
from vitald.model.component import Mark, MarkKind
from vitald.model.event import Event

EVENTS = 1_000_000
OPEN = (0, 10, 100, 1000)
ROUNDS = 4000
_SPACED_S = 600.0  # each a story of its own
LINES = 100_000
PACE = 20_000  # records a second, in the paced form
_DAYS = 80.0
_BATCH = 50_000
_BURST = 20
_ASKED = 300
_CATCH_UP_S = 60.0
_MICRO = 1e6


def run() -> Json:
    with scratch() as folder:
        event = _cost(folder)
    try:
        storm = _storms()
    except Skipped as reason:
        storm = {"skipped": str(reason)}
    return {"event": event, "storm": storm, "load": load()}


# One event's judgement


def _judge(rules: Catalog, ledger: Ledger) -> Callable[[Event], object]:
    """The daemon's judge as a start makes it: folds one event in, and hands over what is to be
    stored. The one place that knows how.
    """
    judge = Judge(rules, ledger.read_state().memory)
    return lambda event: (judge.apply_event(event), judge.take_changes())


def _cost(folder: Path) -> Json:
    rules = catalog.load_catalog()
    figures: Json = {}
    for name, events in (("empty", 0), ("million", EVENTS)):
        ledger = Ledger(folder / name)
        ledger.open()
        ledger.close()
        building, _ = timed(lambda: _fill(folder / name / FILE, rules, events))
        ledger.open()
        spaced = {
            f"{count}_open": _series(rules, _judge(rules, ledger), count, _SPACED_S)
            for count in OPEN
        }
        figures[name] = {
            "events": events,
            "ledger_mib": round(ledger.measure_size() / 2**20),
            "build_s": round(building, 1),
            "make_judge_ms": spread([timed(lambda: _judge(rules, ledger))[0] for _ in range(20)]),
            **spaced,
            f"{OPEN[-1]}_open_at_once": _series(rules, _judge(rules, ledger), OPEN[-1], 0.001),
        }
        ledger.close()
    return {"unit": "us", "rounds": ROUNDS, **figures}


def _series(rules: Catalog, apply: Callable[[Event], object], count: int, apart_s: float) -> Json:
    """Times of each kind of event with so many findings open, each on a device of its own, beside
    the floor.
    """
    line = _lines(rules)
    now = time.time() - 60.0
    fallen = [
        _at(
            line(79, f"{number:04x}:01:00", "GPU has fallen off the bus."),
            number,
            now - (count - number) * apart_s,
        )
        for number in range(count)
    ]
    opening = [timed(lambda: apply(event))[0] for event in fallen]
    states = ("0x0 (None)", "0x1 (GPU Reset Required)")
    kinds = {
        "counted_again": line(31, "f000:01:00", "Ch 0000000b, MMU Fault"),
        "follows_from_it": line(45, "f000:01:00", "Ch 00000018"),
        "asks_for_nothing": line(45, "f000:02:00", "Ch 00000018"),
        "opens": line(
            154, "f000:03:00", f"GPU recovery action changed from {states[0]} to {states[1]}"
        ),
        "closes": line(
            154, "f000:03:00", f"GPU recovery action changed from {states[1]} to {states[0]}"
        ),
    }
    taken: dict[str, list[float]] = {name: [] for name in (*kinds, "floor")}
    kept: dict[object, Event] = {}
    for number in range(ROUNDS):
        for place, (name, template) in enumerate(kinds.items()):
            event = _at(template, count + number * len(kinds) + place, now + number * 0.01)
            taken[name].append(timed(lambda: apply(event))[0])
        taken["floor"].append(timed(lambda: kept.update({event.code: replace(event, time=now)}))[0])
    figures = {name: spread(seconds, _MICRO) for name, seconds in taken.items()}
    floor = figures["floor"]
    return {
        "opening_these": spread(opening, _MICRO),
        **figures,
        "difference": {name: less(figures[name], floor) for name in kinds},
    }


def _lines(rules: Catalog) -> Callable[[int, str, str], Event]:
    interpreter = Interpreter(rules, DrillRegistry(), None, userspace="confirmed")

    def event(code: int, address: str, message: str) -> Event:
        text = ring.xid(code, address, message).rstrip().partition(b">")[2]
        sighting = interpreter.parse_record(text)
        assert sighting is not None, text
        return interpreter.make_event(
            sighting, text, 0, identity="", time=0.0, boot_id="bench", usec=0
        )

    return event


def _at(event: Event, number: int, at: float) -> Event:
    """The same once more, as another record."""
    return replace(
        event,
        identity=f"kmsg:bench:{number}",
        time=at,
        fields={**event.fields, "usec": round((at % 1e6) * 1e6)},
    )


def _fill(path: Path, rules: Catalog, count: int) -> None:
    """Events straight into the file, of several codes on many devices, over the last weeks."""
    line = _lines(rules)
    said = (
        (31, "Ch 00000008, MMU Fault"),
        (13, "Graphics Exception"),
        (43, "Ch 00000010"),
        (45, "Ch 00000018"),
        (94, "Contained: SM (0x1)"),
    )
    templates = [
        line(code, f"0000:{bus:02x}:00", message) for code, message in said for bus in range(1, 65)
    ]
    chance = random.Random(4)
    begun, step = time.time() - _DAYS * 86400, _DAYS * 86400 / max(1, count)

    def make(number: int) -> Event:
        boot = f"{number // 100_000:08x}-0000-4000-8000-000000000000"
        identity, at = f"kmsg:{boot}:{number}", begun + number * step
        return replace(chance.choice(templates), identity=identity, time=at, boot_id=boot)

    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = OFF")
        for first in range(0, count, _BATCH):
            db.execute("BEGIN")
            schema.EVENTS.put(db, map(make, range(first, min(first + _BATCH, count))))
            db.execute("COMMIT")
        if count:
            marks = (
                Mark(
                    device=f"gpu/0000:{bus:02x}:00.0",
                    time=begun + (bus + 64 * day) * 3600,
                    kind=MarkKind.FAULT,
                    fault="xid/94",
                )
                for bus in range(1, 65)
                for day in range(24)
            )
            schema.MARKS.put(db, marks)


# A storm


def _storms() -> Json:
    with scratch() as folder, ring.unlimited() as out:
        made = node(folder, kernel_log="kmsg")
        with (
            made as running,
            Helper(_serve, folder / "bare.sock", json.dumps(running.status()).encode()),
        ):
            time.sleep(SETTLE_S)
            with Helper(_client, running.socket, folder / "bare.sock", _ASKED) as client:
                quiet = _answers(client)
            storms: Json = {
                name: _storm(running, folder, out, pace)
                for name, pace in (
                    ("full_speed", None),
                    ("paced", PACE),
                    ("full_speed_again", None),
                )
            }
    return {"unit": "ms", "lines": LINES, "pace_per_s": PACE, "quiet": quiet, **storms}


def _storm(running: Node, folder: Path, out: int, pace: int | None) -> Json:
    pid, domain = pid_of(running), random.randrange(0x1000, 0xF000)
    time.sleep(SETTLE_S)
    first = _reach(running, out, domain)
    before, read = rss_mib(pid), _counters(running)
    forget_peak(pid)
    usage = Usage.of(pid)
    with Helper(_client, running.socket, folder / "bare.sock", 0) as client:
        writing, _ = timed(lambda: _write(out, domain, pace))
        written = time.monotonic()
        last = _reach(running, out, domain)
        caught_up = time.monotonic() - written
        client.pipe.send("end")
        asked = _answers(client)
    used = Usage.of(pid).since(usage)
    counted = [after - was for after, was in zip(_counters(running), read)]
    time.sleep(SETTLE_S)
    status, memory = running.status(), memory_mib(pid)
    incidents = status.get("incidents")
    seen, twice, spans = _accounts(running.state / FILE, domain, first, last)
    missed = sum(end - begin + 1 for begin, end in spans)
    return {
        "status_asked": asked,
        "write_s": round(writing, 3),
        "caught_up_after_s": round(caught_up, 3),
        "cpu_s": round(used.cpu_s, 3),
        "cpu_us_per_line_judged": round(1e6 * used.cpu_s / max(1, seen), 1),
        "lines_judged": seen,
        "judged_twice": twice,
        "records_in_gaps": missed,
        "gaps": len(spans),
        "records_of_others": (others := last - first - 1 - LINES),
        "balances": LINES <= seen + missed <= LINES + others,  # exactly, where nobody else wrote
        "records_read_by_counter": counted[0],
        "records_lost_by_counter": counted[1],
        "rss_before_mib": before,
        "rss_after_mib": memory["rss"],
        "rss_max_mib": memory["rss_max"],
        "open_findings": status["openFindings"],
        "incidents": len(incidents) if isinstance(incidents, list) else incidents,
    }


def _write(out: int, domain: int, pace: int | None) -> None:
    """At a level that stays away from a serial console, which takes a millisecond a line."""
    ring.lift()
    message = "errorString CTX SWITCH TIMEOUT, Info 0x4c012"
    lines = [
        f"<4>NVRM: Xid (PCI:{domain:04x}:{number % 8 + 1:02x}:00): 45, pid={1000 + number},"
        f" name=python3, Ch {number % 64:08x}, {message}\n".encode()
        for number in range(LINES)
    ]
    begun = time.monotonic()
    for number, line in enumerate(lines):
        os.write(out, line)
        if pace is not None and number % _BURST == 0:
            time.sleep(max(0.0, begun + number / pace - time.monotonic()))


def _reach(running: Node, out: int, domain: int) -> int:
    """Write a mark, and wait until the daemon has judged it. Returns its sequence number."""
    end = time.monotonic() + _CATCH_UP_S
    mark = ring.xid(
        154,
        f"{domain:04x}:ff:1f",
        "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
        time.monotonic_ns(),
    )
    while (seq := ring.write_known(out, mark)) is None:
        if time.monotonic() > end:
            raise TimeoutError("the kernel drops what is written")
        ring.lift()
        time.sleep(0.1)

    def reached() -> bool:
        page = running.get(f"/v1/events?newest=true&limit=1&component=gpu/{domain:04x}:ff:1f.0")[
            "events"
        ]
        return any(str(event["identity"]).endswith(f":{seq}") for event in page)

    until(reached, f"record {seq}", _CATCH_UP_S)
    return seq


def _counters(running: Node) -> list[float]:
    return [
        running.metric(f"vitald_kernel_records_{name}_total") or 0.0 for name in ("read", "lost")
    ]


def _accounts(
    path: Path, domain: int, first: int, last: int
) -> tuple[int, int, list[tuple[int, int]]]:
    """Lines of ours that were judged, how many of them more than once, and the spans between the
    marks that were told as lost.
    """
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        judged, texts = db.execute(
            "SELECT count(*), count(DISTINCT raw) FROM events WHERE code = 'xid/45' AND component"
            " LIKE ?",
            (f"gpu/{domain:04x}:%",),
        ).fetchone()
        told = [
            json.loads(fields)
            for (fields,) in db.execute(
                "SELECT fields FROM events WHERE code = 'vitald/records_lost'"
            )
        ]
    spans: list[tuple[int, int]] = []
    for fields in told:
        if isinstance(fields.get("ranges"), list):
            flat = [
                number
                for part in fields["ranges"]
                for number in (part if isinstance(part, list) else [part])
            ]
            spans += zip(flat[::2], flat[1::2])
        else:
            spans.append((fields["first_seq"], fields["last_seq"]))
    return (
        judged,
        judged - texts,
        [(begin, end) for begin, end in spans if first < begin and end < last],
    )


def _answers(client: Helper) -> Json:
    told = client.ask(seconds=_CATCH_UP_S)
    assert isinstance(told, dict)
    figures, floor = spread(told["daemon"]), spread(told["bare"])
    return {"daemon": figures, "floor": floor, "difference": less(figures, floor)}


def _client(pipe: Connection, daemon: Path, bare: Path, most: int) -> None:
    """Asks both by turns, `most` times or until it is told to end. Tells the times of both."""
    connections = {
        "daemon": UnixConnection(daemon, timeout=30.0),
        "bare": UnixConnection(bare, timeout=30.0),
    }
    taken: dict[str, list[float]] = {name: [] for name in connections}
    for connection in connections.values():
        _get(connection)
    pipe.send("ready")
    while len(taken["bare"]) < most if most else not pipe.poll():
        for name, connection in connections.items():
            taken[name].append(timed(lambda: _get(connection))[0])
    pipe.send(taken)


def _get(connection: http.client.HTTPConnection) -> None:
    connection.request("GET", "/v1/status")
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, answer.status


def _serve(pipe: Connection, path: Path, body: bytes) -> None:
    """A server that has its answer ready, until the pipe ends."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/v1/status", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.UnixSite(runner, str(path)).start()
        pipe.send("ready")
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe.fileno(), ended.set)
        await ended.wait()

    asyncio.run(serve())
