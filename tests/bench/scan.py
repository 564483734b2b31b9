"""
scan: what `vitald scan` costs of a log full of faults.

60,000 Xid 31 lines, each of a process of its own, by turns on eight GPUs. `cpu_us_per_line`: the
processor time of the command, less that of a scan of one ordinary line; the floor is one regular
expression for each line of the same file, in this process.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path

from tests.bench.backlog import line
from tests.bench.measure import Json, load, scratch, timed

LINES = 60_000
_XID = re.compile(r"<3>\[ *(\d+\.\d+)\] NVRM: Xid \(PCI:([0-9a-f:]+)\): (\d+), pid=(\d+), (.*)")


def run() -> Json:
    with scratch() as folder:
        storm, quiet = folder / "storm.log", folder / "quiet.log"
        storm.write_text("".join(f"{line(number)}\n" for number in range(LINES)))
        quiet.write_text("[    1.000000] Linux version 6.8.0\n")
        start_s = _measure_cpu(quiet)
        cpu_s = _measure_cpu(storm)
        floor, _ = timed(lambda: _match_lines(storm))
    return {
        "lines": LINES,
        "cpu_s": round(cpu_s, 1),
        "start_s": round(start_s, 2),
        "cpu_us_per_line": round(1e6 * (cpu_s - start_s) / LINES, 1),
        "floor_us_per_line": round(1e6 * floor / LINES, 2),
        "load": load(),
    }


def _measure_cpu(log: Path) -> float:
    """Seconds of processor time of one scan, itself and the kernel for it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "vitald", "scan", str(log)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _match_lines(log: Path) -> int:
    with log.open() as lines:
        return sum(_XID.match(text) is not None for text in lines)
