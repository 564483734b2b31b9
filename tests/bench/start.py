"""
start: from exec to the first answered /v1/status and to "ready", with nothing remembered and with a
million events.

The floor is Python importing what the daemon imports, and ending. The ledger of a million events is
made once, by the ledger's own commits, out of lines of every common kind spread over eighty days,
ten findings open; it is started from with its pages in memory and with its pages dropped from it.
Then the queries on it that an operator asks.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.bench.measure import (
    SETTLE_S,
    Json,
    Node,
    command,
    environment,
    load,
    memory_mib,
    node,
    pid_of,
    scratch,
    spread,
    timed,
)
from tests.waiting import until
from vitald import catalog
from vitald.catalog import Catalog
from vitald.collectors.kernel_log.drills import DrillRegistry
from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.judge.engine import Judge
from vitald.ledger.store import Ledger, LedgerEntry
from vitald.model.component import Component
from vitald.model.event import Event
from vitald.model.words import ComponentKind

EVENTS = 1_000_000
OPEN = 10
ROUNDS = 7
ASKED = 15
_BATCH = 20_000
_DAYS = 80.0
_RARE = 200_000  # one Xid 79 among so many
_PATIENCE_S = 60.0
_ENOUGH_S = 6.0
_LINES = (
    (
        b"NVRM: Xid (PCI:0000:%02x:00): 31, pid=%d, name=python3, Ch 00000008, intr 00000000. MMU"
        b" Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2e_38000000. Fault is of type"
        b" FAULT_PDE ACCESS_TYPE_VIRT_READ"
    ),
    (
        b"NVRM: Xid (PCI:0000:%02x:00): 13, pid=%d, name=train, Graphics SM Warp Exception on (GPC"
        b" 1, TPC 2, SM 0): Out Of Range Address"
    ),
    b"NVRM: Xid (PCI:0000:%02x:00): 43, pid=%d, name=python3, Ch 00000010",
    (
        b"NVRM: Xid (PCI:0000:%02x:00): 45, pid=%d, name=python3, Ch 00000018, errorString CTX"
        b" SWITCH TIMEOUT, Info 0x4c012"
    ),
    (
        b"NVRM: Xid (PCI:0000:%02x:00): 94, pid=%d, name=python3, Contained: SM (0x1). RST: No,"
        b" D-RST: No"
    ),
    (
        b"Out of memory: Killed process 4%02d (python3) total-vm:%dkB, anon-rss:1048576kB,"
        b" file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:2100kB oom_score_adj:0"
    ),
    b"pcieport 0000:%02x:01.0: AER: Corrected error received: 0000:%02x:00.0",
)
_QUERIES = {
    "first_100": "limit=100",
    "newest_of_rare_code": "newest=true&code=xid/79",
    "newest_100": "newest=true&limit=100",
    "newest_of_absent_kind": "newest=true&kind=neuron",
    "newest_of_common_kind": "newest=true&kind=xid",
    "first_of_rare_code": "code=xid/79",
    "of_component": "component=gpu/0000:07:00.0",
    "since_last_hour": "since=1h",
    "newest_since_last_hour": "newest=true&since=1h",
    "rare_code_since_last_hour": "code=xid/79&since=1h",
    "since_half": f"since={EVENTS // 2}",
    "absent_code": "code=xid/9999",
}


def run() -> Json:
    with scratch() as folder:
        empty = node(folder, name="empty")
        full = node(folder, name="full", extra='[ledger]\nmax_size = "8GiB"')
        building, size = timed(lambda: _build(full.state))
        times: dict[str, list[dict[str, float]]] = {"empty": [], "million": [], "million_cold": []}
        imports: list[float] = []
        bare: list[float] = []
        for _ in range(ROUNDS + 1):
            times["empty"].append(_start(empty))
            times["million"].append(_start(full))
            _forget(full.state)
            times["million_cold"].append(_start(full))
            imports.append(_python("import vitald.daemon, vitald.cli.run", folder))
            bare.append(_python("pass", folder))
        figures: Json = {
            name: {what: spread([one[what] for one in taken[1:]]) for what in taken[0]}
            for name, taken in times.items()
        }
        return {
            "unit": "ms",
            "events": EVENTS,
            "open_findings": OPEN,
            "ledger_mib": round(size / 2**20),
            "build_s": round(building, 1),
            **figures,
            "floor_imports": spread(imports[1:]),
            "floor_python": spread(bare[1:]),
            "queries": _ask(full),
            "load": load(),
        }


def _start(made: Node) -> dict[str, float]:
    """Seconds from exec. Stops the daemon again."""
    said = made.errors.stat().st_size if made.errors.exists() else 0
    begun = time.monotonic()
    made.start(wait=False)
    answered = ready = 0.0
    try:
        while not (answered and ready):
            if time.monotonic() - begun > _PATIENCE_S:
                raise TimeoutError(f"not ready within {_PATIENCE_S:g} s")
            if not answered and made.socket.exists() and made.answers("/v1/status"):
                answered = time.monotonic() - begun
            with made.errors.open() as errors:
                errors.seek(said)
                if not ready and '"event": "ready"' in errors.read():
                    ready = time.monotonic() - begun
            time.sleep(0.002)
        findings = made.status()["openFindings"]
        assert findings in (0, OPEN), findings
    finally:
        stopping = made.stop()
    return {"answered": answered, "ready": ready, "stop": stopping}


def _python(code: str, folder: Path) -> float:
    return timed(
        lambda: subprocess.run(
            command("-c", code), check=True, env={**os.environ, **environment(folder)}
        )
    )[0]


def _forget(folder: Path) -> None:
    """Drop the ledger's pages from memory, and nobody else's."""
    for path in folder.iterdir():
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def _build(folder: Path) -> int:
    """A ledger with a past. Returns its bytes."""
    rules = catalog.load_catalog()
    ledger = Ledger(folder)
    ledger.open()
    batch: list[Event] = []
    for event in _past(rules):
        batch.append(event)
        if len(batch) == _BATCH:
            ledger.commit([LedgerEntry(events=tuple(batch))])
            batch.clear()
    findings = Judge(rules)
    opened = [
        replace(event, identity=f"{event.identity}:open", component=_gpu(number))
        for number, event in enumerate(_newest(rules))
    ]
    ledger.commit(
        [
            LedgerEntry(events=(event,), transitions=tuple(findings.apply_event(event)))
            for event in opened
        ]
    )
    ledger.commit([LedgerEntry(events=tuple(batch))])
    size = ledger.measure_size()
    ledger.close()
    return size


def _past(rules: Catalog) -> Iterator[Event]:
    chance = random.Random(2)
    kinds = [list(_variants(rules, line)) for line in _LINES]
    rare = _event(
        rules,
        b"NVRM: Xid (PCI:0000:41:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
    )
    begun, step = time.time() - _DAYS * 86400, _DAYS * 86400 / EVENTS
    for number in range(EVENTS - OPEN):
        template = rare if number % _RARE == _RARE // 2 else chance.choice(chance.choice(kinds))
        boot = f"{number // 100_000:08x}-0000-4000-8000-000000000000"
        yield replace(
            template, identity=f"kmsg:{boot}:{number}", time=begun + number * step, boot_id=boot
        )


def _variants(rules: Catalog, line: bytes) -> Iterator[Event]:
    numbers = line.count(b"%")
    for number in range(1, 65):
        yield _event(rules, line % (number, 3000 + number * 7)[:numbers])


def _newest(rules: Catalog) -> list[Event]:
    line = (
        b"NVRM: Xid (PCI:0000:%02x:00): 48, pid=77, name=python3, An uncorrectable double bit error"
        b" (DBE) has been detected on GPU in the framebuffer at partition 1, subpartition 0."
    )
    now = time.time() - 60
    return [
        replace(
            _event(rules, line % number), identity=f"open:{number}", time=now, boot_id=_boot_id()
        )
        for number in range(OPEN)
    ]


def _event(rules: Catalog, line: bytes) -> Event:
    interpreter = Interpreter(rules, DrillRegistry(), None, userspace="confirmed")
    sighting = interpreter.parse_record(line)
    assert sighting is not None, line
    return interpreter.make_event(
        sighting, line, 0, identity="", time=0.0, boot_id="", usec=123456789
    )


def _gpu(number: int) -> Component:
    return Component(ComponentKind.GPU, f"0000:{number:02x}:00.0")


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _ask(made: Node) -> Json:
    """Each query again and again, beside an answer that costs nothing."""
    asked: Json = {}
    with made:
        time.sleep(SETTLE_S)
        asked["memory_before_mib"] = memory_mib(pid_of(made))
        asked["floor_healthz"] = spread(
            [timed(lambda: made.get("/healthz"))[0] for _ in range(ASKED)]
        )
        for name, query in _QUERIES.items():
            asked[name] = _asked(made, query)
        asked["memory_after_mib"] = memory_mib(pid_of(made))
    return asked


def _asked(made: Node, query: str) -> Json:
    times: list[float] = []
    counts: set[int] = set()
    statuses: set[int] = set()
    while len(times) < ASKED and sum(times) < _ENOUGH_S:
        seconds, (status, answer) = timed(
            lambda: made.request("GET", f"/v1/events?{query}", timeout=30.0)
        )
        times.append(seconds)
        statuses.add(status)
        counts.add(len(answer.get("events", [])))
    # A query that was given up goes on in the daemon, and until it ends the others are answered
    # from memory.
    blind, _ = timed(
        lambda: until(
            lambda: made.get("/v1/events?limit=1")["events"], "the ledger to be read again"
        )
    )
    return {
        "query": query,
        "statuses": sorted(statuses),
        "events": sorted(counts),
        **spread(times),
        "then_blind_s": round(blind, 2),
    }
