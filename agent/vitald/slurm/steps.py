"""
Job steps of Slurm on this node, found by their processes.

Owns     how a step's process is recognised.
Refuses  querying Slurm: a job may have the node without a step, which only scontrol knows.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

# Not `slurmstepd infinity`, which holds cgroups and runs for ever.
_STEP = re.compile(rb"slurmstepd: \[([0-9]+)")


def find_jobs_with_steps(procfs: Path) -> list[str]:
    """The ids of the jobs that have a process here, each once. Raises OSError without a procfs."""
    jobs: dict[str, None] = {}
    for pid in os.listdir(procfs):  # noqa: PTH208  # pathlib costs twice as much
        if not pid.isdecimal():
            continue
        with suppress(OSError), open(f"{procfs}/{pid}/comm", "rb") as comm:
            if comm.read() != b"slurmstepd\n":
                continue
            with open(f"{procfs}/{pid}/cmdline", "rb") as line:
                found = _STEP.match(line.read(64))
                jobs |= {found[1].decode(): None} if found else {}
    return list(jobs)
