"""
latency: from a write to /dev/kmsg to the line that a client of /v1/watch gets.

The floor is a bare epoll reader of /dev/kmsg in a process of its own, which sees the same records
in the same rounds; all stamps are CLOCK_MONOTONIC, taken before the write and after the read. Two
forms: `new_devices` opens a finding per round on a device of its own, so that findings heap up;
`flips` opens and closes one finding by turns (Xid 154), so that each round changes the verdict and
nothing heaps up.
"""

from __future__ import annotations

import json
import os
import random
import select
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench import ring
from tests.bench.measure import (
    SETTLE_S,
    Connection,
    Helper,
    Json,
    Node,
    less,
    load,
    node,
    scratch,
    spread,
)

ROUNDS = 300
GAP_S = (0.005, 0.030)
_REQUEST = b"GET /v1/watch HTTP/1.1\r\nHost: vitald\r\n\r\n"
_PATIENCE_S = 2.0
Line = Callable[[int], bytes]  # the record of a round


def run() -> Json:
    with scratch() as folder, ring.unlimited() as out, node(folder, kernel_log="kmsg") as running:
        time.sleep(SETTLE_S)
        domain = random.randrange(0x1000, 0xF000)  # no record of another run has it
        flips = _series(running, out, f"{domain:04x}:f0", _flip(domain))
        devices = _series(running, out, f"{domain:04x}:", _new_device(domain))
        commits = running.metric("vitald_ledger_commits_total") or 1.0
        return {
            "unit": "ms",
            "flips": flips,
            "new_devices": devices,
            "mean_commit": round(
                1e3 * (running.metric("vitald_ledger_commit_seconds_total") or 0.0) / commits, 3
            ),
            "load": load(),
        }


def _new_device(domain: int) -> Line:
    return lambda number: ring.xid(
        79,
        f"{domain:04x}:{number // 32:02x}:{number % 32:02x}",
        "GPU has fallen off the bus.",
        number,
    )


def _flip(domain: int) -> Line:
    states = ("0x0 (None)", "0x1 (GPU Reset Required)")
    said = [f"GPU recovery action changed from {states[up]} to {states[1 - up]}" for up in (0, 1)]
    return lambda number: ring.xid(154, f"{domain:04x}:f0:00", said[number % 2], number)


def _series(running: Node, out: int, address: str, line: Line) -> Json:
    wanted = f"PCI:{address}".encode()
    written: dict[str, float] = {}
    with (
        Helper(ring.bare_reader, address, wanted) as bare,
        Helper(_watcher, running.socket) as watcher,
    ):
        for number in range(ROUNDS):
            record = line(number)
            written[_mark(record.decode())] = time.monotonic()
            os.write(out, record)
            time.sleep(random.uniform(*GAP_S))
        time.sleep(_PATIENCE_S)
        ring.finish(out, address)
        floor = bare.ask()
        watcher.pipe.send("end")
        lines = watcher.ask()
    assert isinstance(floor, dict) and isinstance(lines, list)
    return _compare(written, [(at, record.decode()) for at, record in floor["seen"]], lines)


def _compare(
    written: dict[str, float], read: Sequence[tuple[float, str]], lines: Sequence[tuple[float, str]]
) -> Json:
    """Each round's event, finding and verdict on the socket beside the same record at the bare
    reader.
    """
    bare = {mark: at for at, record in read if (mark := _mark(record)) in written}
    stamps: dict[str, dict[str, float]] = {"event": {}, "finding": {}, "verdict": {}}
    marks: dict[str, str] = {}  # identity of an event -> its round
    pending: list[str] = []
    for at, text in lines:
        change = json.loads(text)
        if change["type"] == "event":
            mark = _mark(change["event"]["raw"])
            if mark in written:
                stamps["event"][mark] = at
                marks[change["event"]["identity"]] = mark
        elif change["type"] == "finding" and change["event"] in marks:
            mark = marks[change["event"]]
            stamps["finding"][mark] = at
            pending.append(mark)
        elif change["type"] == "verdict" and pending:
            # What one batch brought together is answered by one verdict.
            stamps["verdict"].update((mark, at) for mark in pending)
            pending.clear()
    shown = {
        kind: spread([at - written[mark] for mark, at in seen.items()])
        for kind, seen in stamps.items()
    }
    floor = spread([at - written[mark] for mark, at in bare.items()])
    return {
        "rounds": len(written),
        "unseen": {
            "floor": len(written) - len(bare),
            **{kind: len(written) - len(seen) for kind, seen in stamps.items()},
        },
        "daemon": shown,
        "floor": floor,
        "difference": {kind: less(figures, floor) for kind, figures in shown.items()},
        "difference_per_round": {
            kind: spread([at - bare[mark] for mark, at in seen.items() if mark in bare])
            for kind, seen in stamps.items()
        },
    }


def _mark(text: str) -> str:
    """What tells one round's record from another's: device and pid."""
    return text.partition("PCI:")[2].partition(", name=")[0]


def _watcher(pipe: Connection, path: Path) -> None:
    """A client of /v1/watch: keeps each line with the moment when it came; understanding them waits
    until the end.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(str(path))
    sock.sendall(_REQUEST)
    waiting = select.poll()
    waiting.register(sock, select.POLLIN)
    waiting.register(pipe.fileno(), select.POLLIN)
    lines: list[tuple[float, str]] = []
    buffer = b""
    while b'{"type": "verdict"' not in buffer:
        buffer += sock.recv(1 << 20)
    buffer = b""
    pipe.send("ready")
    while True:
        ready = [fd for fd, _ in waiting.poll()]
        if sock.fileno() in ready:
            data = sock.recv(1 << 20)
            now = time.monotonic()
            buffer += data
            *whole, buffer = buffer.split(b"\n")
            # Chunk sizes and ends stand between; of the rest only what follows a record of ours
            # counts.
            lines += [(now, line.decode()) for line in whole if line.startswith(b"{")]
            if not data:
                break
        elif ready:
            break
    pipe.send(lines)
