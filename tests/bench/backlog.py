"""
backlog: what a storm of faults costs that waits for a daemon when it starts, and how it answers meanwhile.

20,000 Xid 31 lines, each of a process of its own, by turns on eight GPUs, lie in the kernel log (a followed file) when the daemon is
started again. `status_asked`: `GET /v1/status` again and again until they are judged, by turns with a bare server that answers the same
bytes over a Unix socket, which is the floor. `cpu_us_per_line`: the daemon's processor time from its first answer until they are judged;
`floor_us_per_line` is one row of the same bytes inserted into a table without an index, in transactions of the same size, in this process.
"""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from tests.bench.judge import _answers, _client, _serve
from tests.bench.measure import SETTLE_S, Helper, Json, Usage, load, node, pid_of, scratch, timed
from tests.harness import Node

LINES = 20_000
_GPUS = 8
_BATCH = 512
_CATCH_UP_S = 300.0
_BOOT_S = 10.0


def line(number: int) -> str:
    """An Xid 31 of a process that has had none before."""
    where = f"PCI:0000:{number % _GPUS + 1:02x}:00"
    said = f"Ch {number % 64:08x}, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f{number:08x}_00000000."
    stamp = f"[{_BOOT_S + number / 1000:12.6f}]"
    return f"<3>{stamp} NVRM: Xid ({where}): 31, pid={1000 + number}, name=python3, {said} Fault is of type FAULT_PDE ACCESS_TYPE_READ"


def run() -> Json:
    with scratch() as folder:
        made = node(folder)
        with made as running:
            time.sleep(SETTLE_S)
            answer = json.dumps(running.status()).encode()
        with made.log.open("a") as log:
            log.writelines(f"{line(number)}\n" for number in range(LINES))
        with Helper(_serve, folder / "bare.sock", answer), made as running:
            figures = _catch_up(running, folder)
        floor, _ = timed(lambda: _insert(folder / "floor.db"))
    return {"lines": LINES, **figures, "floor_us_per_line": round(1e6 * floor / LINES, 1), "load": load()}


def _catch_up(running: Node, folder: Path) -> Json:
    usage, begun = Usage.of(pid_of(running)), time.monotonic()
    before = _judged(running)
    with Helper(_client, running.socket, folder / "bare.sock", 0) as client:
        running.until(lambda: _judged(running) >= LINES, _CATCH_UP_S, "all lines to be judged")
        took = time.monotonic() - begun
        used = Usage.of(pid_of(running)).since(usage)
        client.pipe.send("end")
        asked = _answers(client)
    return {
        "judged_before_the_first_answer": before,
        "caught_up_after_s": round(took, 2),
        "cpu_us_per_line": round(1e6 * used.cpu_s / max(1, LINES - before), 1),
        "status_asked": asked,
    }


def _judged(running: Node) -> int:
    """As it is stored: asking the daemon would be one more request."""
    with closing(sqlite3.connect(f"file:{running.state / 'ledger.db'}?mode=ro", uri=True, timeout=5.0)) as db:
        (count,) = db.execute("SELECT count(*) FROM events WHERE code = 'xid/31'").fetchone()
    time.sleep(0.2)
    return int(count)


def _insert(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE lines (id INTEGER PRIMARY KEY, raw TEXT)")
        for first in range(0, LINES, _BATCH):
            db.execute("BEGIN")
            db.executemany("INSERT INTO lines (raw) VALUES (?)", [(line(number),) for number in range(first, min(LINES, first + _BATCH))])
            db.execute("COMMIT")
