"""
commit: how long the ledger takes to make one event durable.

An event that opens a finding and moves a position, in one transaction; by turns with 4 KiB written
and fdatasynced in the same folder: at a file's end, where the file system must record the new size,
and in place.
"""

from __future__ import annotations

import os
import time

from tests.bench.measure import Json, less, load, scratch, spread, timed
from vitald import catalog
from vitald.judge.engine import Judge
from vitald.ledger.store import Ledger, LedgerEntry
from vitald.model.component import Component
from vitald.model.event import Event
from vitald.model.source import Position
from vitald.model.words import ComponentKind

ROUNDS = 300
_GAP_S = 0.01  # a fault comes to a disk that was at rest
_BLOCK = bytes(4096)


def run() -> Json:
    with scratch() as folder:
        ledger = Ledger(folder)
        ledger.open()
        flags = os.O_RDWR | os.O_CREAT
        grown, fixed = os.open(folder / "grown", flags), os.open(folder / "fixed", flags)
        os.pwrite(fixed, _BLOCK, 0)
        os.fsync(fixed)
        findings = Judge(catalog.load_catalog())
        commits: list[float] = []
        notes: list[float] = []
        appends: list[float] = []
        overwrites: list[float] = []
        for number in range(ROUNDS):
            time.sleep(_GAP_S)
            entry = _entry(findings, number)
            commits.append(timed(lambda: ledger.commit([entry]))[0])
            time.sleep(_GAP_S)
            appends.append(timed(lambda: _written(grown, number * len(_BLOCK)))[0])
            time.sleep(_GAP_S)
            overwrites.append(timed(lambda: _written(fixed, 0))[0])
            position = Position("kernel_log", "bench", str(number))
            notes.append(timed(lambda: ledger.store_position(position))[0])
        ledger.close()
        os.close(grown)
        os.close(fixed)
    figures, floor = spread(commits), spread(appends)
    return {
        "unit": "ms",
        "commit": figures,
        "note": spread(notes),
        "floor": floor,
        "floor_in_place": spread(overwrites),
        "difference": less(figures, floor),
        "load": load(),
    }


def _written(fd: int, offset: int) -> None:
    os.pwrite(fd, _BLOCK, offset)
    os.fdatasync(fd)


def _entry(findings: Judge, number: int) -> LedgerEntry:
    event = Event(
        identity=f"kmsg:bench:{number}",
        time=time.time(),
        source="kernel_log",
        kind="xid",
        code="xid/79",
        component=Component(ComponentKind.GPU, f"{number:04x}:65:00.0"),
        boot_id="bench",
        raw=(
            f"NVRM: Xid (PCI:{number:04x}:65:00): 79, pid=1234, name=python3, GPU has fallen off"
            " the bus."
        ),
        fields={
            "message": "GPU has fallen off the bus.",
            "number": 79,
            "pci": f"{number:04x}:65:00.0",
            "pid": 1234,
            "process": "python3",
        },
    )
    return LedgerEntry(
        events=(event,),
        transitions=tuple(findings.apply_event(event)),
        position=Position("kernel_log", "bench", str(number)),
    )
