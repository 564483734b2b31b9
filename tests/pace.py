"""
How much slower this machine is than a quiet one of two cores, measured once for a run of the tests.

Owns     the measure, and the time limits that are made with it.

A test waits for a condition, for up to `WAIT_S`: a wait that succeeds costs nothing, so the limit
may be long. Other limits are written for a quiet machine and passed through `patient`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import median

WAIT_S = 60.0  # for a condition that holds at once or soon, on any machine
_QUIET_S = 0.1  # what `_measure` takes on a quiet machine of two cores
_VARIABLE = "VITALD_TESTS_SLOWNESS"  # from the process that measured to those that it starts
_LOAD = "import asyncio, json, argparse, sqlite3"
_MOST = 20.0


def patient(seconds: float) -> float:
    """So many seconds of a quiet machine, here and now. Never fewer."""
    return seconds * slowness()


def slowness() -> float:
    """1 on a quiet machine, and never less; 3 where everything takes three times as long."""
    said = os.environ.get(_VARIABLE)
    return float(said) if said else measure_slowness(1)


def measure_slowness(workers: int) -> float:
    """Measure, for this process and all that it starts. `workers` test at the same time, once they
    have begun.
    """
    crowd = max(1.0, workers / (os.cpu_count() or 1))
    found = min(_MOST, max(1.0, _measure() / _QUIET_S) * crowd)
    os.environ[_VARIABLE] = f"{found:.2f}"
    return found


def _measure() -> float:
    """Seconds that an interpreter takes to start and import: processor, memory and disk together,
    as most tests need them.
    """
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", _LOAD], check=True)
        took.append(time.perf_counter() - begun)
    return median(took)
