"""
line_cost: what a kernel record costs the CPU.

The ring is filled with ordinary records and read again and again from its oldest, each time by a
bare loop of os.read and by the daemon's own hot loop, by turns; of each the best round counts. A
recognised event is taken from its text to its finding, without disk. All in µs of this process.

`drip` is what one record costs a running daemon when records come one at a time, as they do on a
node at work: the whole way from the wake-up to sleeping again, in µs of the daemon's CPU, beside a
bare reader of its own.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.bench import ring
from tests.bench.measure import ROOT, SETTLE_S, Helper, Json, Usage, load, node, pid_of, scratch
from vitald import catalog
from vitald.collectors.kernel_log.drills import DrillRegistry
from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.collectors.kernel_log.kmsg import Kmsg, _Cursor
from vitald.collectors.kernel_log.lines import strip_prefix
from vitald.collectors.kernel_log.record import split_record
from vitald.judge.engine import Judge
from vitald.topology.pci_inventory import PciInventory

ROUNDS = 60
_FILL = 3000
_BUFFER = 16384
_DRIPS, _DRIPS_PER_S = 1000, 200
_READ = "vitald_kernel_records_read_total"
_CORPUS = ROOT / "tests/data/kernel_lines.jsonl"
_XID = b"NVRM: Xid (PCI:0000:65:00): 79, pid=1234, name=python3, GPU has fallen off the bus."


def run() -> Json:
    rules = catalog.load_catalog()
    interpreter = Interpreter(
        rules, DrillRegistry(), PciInventory(Path("/sys")), userspace="confirmed"
    )
    return {
        "unit": "µs",
        **_records(interpreter),
        "drip": _drip(),
        "event": _events(interpreter, Judge(rules)),
        "load": load(),
    }


def _records(interpreter: Interpreter) -> Json:
    with ring.unlimited() as out:
        for line in ring.ordinary(_FILL):
            os.write(out, line)
    source = Kmsg("/dev/kmsg", interpreter, "bench")
    fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        held = _bare(fd)
        texts = [found[4] for data in held if (found := split_record(data)) is not None]
        recognised = sum(1 for text in texts if interpreter.parse_record(text) is not None)
        bare: list[float] = []
        drain: list[float] = []
        splitting: list[float] = []
        recognising: list[float] = []
        for _ in range(ROUNDS):
            bare.append(_per(len(held), lambda: _bare(fd)))
            drain.append(_per(len(held), lambda: _drain(source, fd)))
            splitting.append(_per(len(held), lambda: [split_record(data) for data in held]))
            recognising.append(_per(len(texts), lambda: _all(interpreter.parse_record, texts)))
    finally:
        os.close(fd)
    return {
        "records": len(held),
        "recognised_among_them": recognised,
        "mean_bytes": round(sum(map(len, held)) / len(held)),
        "drain": _best(drain),
        "floor": _best(bare),
        "difference": round(min(drain) - min(bare), 3),
        "of_which": {"split": _best(splitting), "recognise": _best(recognising)},
        "recognise_by_line": {
            text.decode()[:60]: _cost(interpreter, text) for text in ring.one_of_each()
        },
    }


def _drip() -> Json:
    with scratch() as folder, ring.unlimited() as out, node(folder, kernel_log="kmsg") as running:
        time.sleep(SETTLE_S)
        with Helper(ring.bare_reader, "drip", b"no such text") as bare:
            read, before = running.metric(_READ) or 0.0, Usage.of(pid_of(running))
            for line in ring.ordinary(_DRIPS):
                os.write(out, line)
                time.sleep(1 / _DRIPS_PER_S)
            used = Usage.of(pid_of(running)).since(before)
            read = (running.metric(_READ) or 0.0) - read
            ring.finish(out, "drip")
            told = bare.ask()
        assert isinstance(told, dict)
        floor = 1e6 * told["cpu_s"] / told["read"]
        cost = 1e6 * used.cpu_s / read
        return {
            "records": read,
            "per_s": _DRIPS_PER_S,
            "daemon": round(cost, 1),
            "wakeups_per_record": round(used.voluntary / read, 2),
            "floor": round(floor, 1),
            "difference": round(cost - floor, 1),
        }


def _events(interpreter: Interpreter, findings: Judge) -> Json:
    """Recognise, interpret and fold: one Xid 79 again and again, the same on ever new devices, and
    every kind in the corpus.
    """
    rounds = range(2000)
    new = [
        _XID.replace(
            b"0000:65:00", b"%04x:%02x:%02x" % (number >> 13, number >> 5 & 0xFF, number & 0x1F)
        )
        for number in rounds
    ]
    known = [message for message in _corpus() if interpreter.parse_record(message) is not None]
    figures: Json = {
        "xid_79_again": _best(
            [
                _per(len(rounds), lambda: _fold(interpreter, findings, (_XID for _ in rounds)))
                for _ in range(9)
            ]
        ),
        "xid_79_new_device": _best(
            [
                _per(len(new), lambda: _fold(interpreter, Judge(interpreter.catalog), new))
                for _ in range(9)
            ]
        ),
    }
    figures["all_kinds"] = _best(
        [_per(len(known), lambda: _fold(interpreter, findings, known)) for _ in range(99)]
    )
    figures["recognise_only"] = _best(
        [_per(len(known), lambda: _all(interpreter.parse_record, known)) for _ in range(99)]
    )
    slowest = max(known, key=lambda text: _cost(interpreter, text))
    figures["slowest_recognition"] = {
        "best": _cost(interpreter, slowest),
        "line": slowest.decode("utf-8", "replace")[:160],
    }
    return figures


def _corpus() -> list[bytes]:
    lines = (
        strip_prefix(json.loads(line)["line"].encode())
        for line in _CORPUS.read_text(encoding="utf-8").splitlines()
    )
    return [line.message for line in lines if line is not None]


def _bare(fd: int) -> list[bytes]:
    """Every record that the ring holds, read as cheaply as Python can."""
    os.lseek(fd, 0, os.SEEK_SET)
    records: list[bytes] = []
    read, keep = os.read, records.append
    try:
        while True:
            try:
                keep(read(fd, _BUFFER))
            except BrokenPipeError:
                continue
    except BlockingIOError:
        return records


def _drain(source: Kmsg, fd: int) -> int:
    """The same by the daemon's hot loop."""
    os.lseek(fd, 0, os.SEEK_SET)
    cursor = _Cursor(None)
    found, drained = 0, False
    while not drained:
        events, drained = source._drain_ring(fd, cursor, live=True)
        found += len(events)
    return found


def _all(recognise: Callable[[bytes], object], texts: Iterable[bytes]) -> None:
    for text in texts:
        recognise(text)


def _cost(interpreter: Interpreter, text: bytes) -> float:
    """µs to recognise one line, or to see that it is nothing."""
    return round(
        min(_per(100, lambda: _all(interpreter.parse_record, [text] * 100)) for _ in range(7)), 2
    )


def _fold(interpreter: Interpreter, findings: Judge, texts: Iterable[bytes]) -> None:
    for number, text in enumerate(texts):
        sighting = interpreter.parse_record(text)
        assert sighting is not None
        findings.apply_event(
            interpreter.make_event(
                sighting,
                text,
                0,
                identity=f"kmsg:bench:{number}",
                time=time.time(),
                boot_id="bench",
                usec=number,
            )
        )


def _per(count: int, work: Callable[[], object]) -> float:
    """µs of one among `count`."""
    begun = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - begun) / count / 1e3


def _best(rounds: list[float]) -> Json:
    return {"best": round(min(rounds), 3), "median": round(sorted(rounds)[len(rounds) // 2], 3)}
