"""
backlog: what a storm of faults costs that waits for a daemon when it starts, and how it answers
meanwhile.

20,000 Xid 31 lines, each of a process of its own, by turns on eight GPUs, lie in the kernel log (a
followed file) when the daemon is started again. `cpu_us_per_line`: the daemon's processor time
until they are judged, less what a start without them takes; the floor is a row of the same bytes
put into a table without an index, in transactions of the same size, in this process. Then once
more, `while_asked`: `GET /v1/status` again and again until they are judged, by turns with a bare
server that answers the same bytes over a Unix socket, which is the floor.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.bench.judge import _answers, _client, _serve
from tests.bench.measure import SETTLE_S, Helper, Json, Usage, load, node, pid_of, scratch, timed
from tests.harness import Node
from tests.waiting import until

LINES = 20_000
_GPUS = 8
_BATCH = 512
_CATCH_UP_S = 300.0
_BOOT_S = 10.0


def line(number: int) -> str:
    """An Xid 31 of a process that has had none before."""
    where = f"PCI:0000:{number % _GPUS + 1:02x}:00"
    said = (
        f"Ch {number % 64:08x}, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @"
        f" 0x7f{number:08x}_00000000."
    )
    stamp = f"[{_BOOT_S + number / 1000:12.6f}]"
    return (
        f"<3>{stamp} NVRM: Xid ({where}): 31, pid={1000 + number}, name=python3, {said} Fault is of"
        " type FAULT_PDE ACCESS_TYPE_READ"
    )


def run() -> Json:
    with scratch() as folder:
        made = node(folder)
        with made as running:
            time.sleep(SETTLE_S)
            answer, start_s = json.dumps(running.status()).encode(), Usage.of(pid_of(running)).cpu_s
        with made.log.open("a") as log:
            log.writelines(f"{line(number)}\n" for number in range(LINES))
        alone = _alone(made, start_s)
        shutil.rmtree(made.state)
        with Helper(_serve, folder / "bare.sock", answer):
            asked = _asked(made, folder)
        floor, _ = timed(lambda: _insert(folder / "floor.db"))
    return {
        "lines": LINES,
        **alone,
        "floor_us_per_line": round(1e6 * floor / LINES, 1),
        "while_asked": asked,
        "load": load(),
    }


def _alone(made: Node, start_s: float) -> Json:
    """Nobody asks. `start_s`: what a start without a backlog takes of the processor."""
    with _started(made) as running:
        took = _caught_up(running)
        used = Usage.of(pid_of(running)).cpu_s
    return {
        "caught_up_after_s": took,
        "start_cpu_s": round(start_s, 2),
        "cpu_us_per_line": round(1e6 * (used - start_s) / LINES, 1),
    }


def _asked(made: Node, folder: Path) -> Json:
    with (
        _started(made) as running,
        Helper(_client, running.socket, folder / "bare.sock", 0) as client,
    ):
        took = _caught_up(running)
        client.pipe.send("end")
        return {"caught_up_after_s": took, "status": _answers(client)}


@contextmanager
def _started(made: Node) -> Iterator[Node]:
    """From the moment when it answers at all."""
    try:
        made.start(wait=False)
        until(lambda: made.answers("/healthz"), "the daemon to answer", _CATCH_UP_S)
        yield made
    finally:
        made.stop()


def _caught_up(running: Node) -> float:
    begun = time.monotonic()
    until(lambda: _judged(running) >= LINES, "all lines to be judged", _CATCH_UP_S)
    return round(time.monotonic() - begun, 2)


def _judged(running: Node) -> int:
    """As it is stored: asking the daemon would be one more request."""
    with closing(
        sqlite3.connect(f"file:{running.state / 'ledger.db'}?mode=ro", uri=True, timeout=5.0)
    ) as db:
        (count,) = db.execute("SELECT count(*) FROM events WHERE code = 'xid/31'").fetchone()
    time.sleep(0.2)
    return int(count)


def _insert(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE lines (id INTEGER PRIMARY KEY, raw TEXT)")
        for first in range(0, LINES, _BATCH):
            db.execute("BEGIN")
            db.executemany(
                "INSERT INTO lines (raw) VALUES (?)",
                [(line(number),) for number in range(first, min(LINES, first + _BATCH))],
            )
            db.execute("COMMIT")
