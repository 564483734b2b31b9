"""
Slurm's daemon on this node: the environment that it gives the scripts that it runs (the node, the
job, how the job ended), and the steps of jobs, found by their processes.

Owns     the names and formats of these variables, and how a step's process is recognised.
Refuses  querying Slurm: a job may have the node without a step, which only scontrol knows.
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from pathlib import Path

# Not `slurmstepd infinity`, which holds cgroups and runs for ever.
_STEP = re.compile(rb"slurmstepd: \[([0-9]+)")


def read_node_name() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def read_job() -> dict[str, object]:
    """The job that slurmd runs the script for; empty if there is none."""
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job:
        return {}
    known: dict[str, object] = {"job": job, "user": os.environ.get("SLURM_JOB_USER", "")}
    uid = os.environ.get("SLURM_JOB_UID", "")
    return {**known, "uid": int(uid)} if uid.isascii() and uid.isdigit() else known


def read_exit_state() -> dict[str, object]:
    """How the job ended; 0:0 for one cancelled or out of time. Empty for a slurmd before 22.05."""
    found = re.fullmatch(
        r"([0-9]{1,3}):([0-9]{1,3})",
        os.environ.get("SLURM_JOB_EXIT_CODE2", ""),
    )
    if found:
        return {"exitCode": int(found[1]), "signal": int(found[2])}
    status = os.environ.get("SLURM_JOB_EXIT_CODE", "")
    if status.isascii() and status.isdigit():
        return {"exitCode": int(status) >> 8 & 0xFF, "signal": int(status) & 0x7F}
    return {}


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
