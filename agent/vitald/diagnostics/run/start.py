"""
Starting a diagnostic program: in a session of its own, with an environment that hides no device and
knows of no job.

Owns     the environment, and in words why a program does not start.
Refuses  the loop: looking for a program and running it read a disk, which may hang.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vitald.config.paths import FOLDERS
from vitald.diagnostics.check import Command
from vitald.diagnostics.run import tool
from vitald.diagnostics.run.held_processes import HeldProcesses
from vitald.text import clean_line

_OOM_SCORE = "500"  # the daemon's is below 0, and a diagnostic is what the node can best do without

# What the daemon's environment has for the daemon, a job's for its devices, or for a loader that
# changes what runs.
_DROPPED_PREFIXES = (
    *(
        "CUDA_",
        "NVIDIA_",
        "SLURM",
        "SBATCH_",
        "SRUN_",
        "PMI_",
        "PMIX_",
        "LISTEN_",
        "WATCHDOG_",
        "SYSTEMD_",
        "MEMORY_PRESSURE_",
    ),
    *("PYTHON", "VITALD_", "LC_"),
)
_DROPPED = frozenset(
    (
        *(
            "LD_PRELOAD",
            "LD_AUDIT",
            "BASH_ENV",
            "ENV",
            "LANG",
            "LANGUAGE",
            "VIRTUAL_ENV",
            "GPU_DEVICE_ORDINAL",
            "ROCR_VISIBLE_DEVICES",
        ),
        *(
            "NEURON_RT_VISIBLE_CORES",
            "NEURON_RT_NUM_CORES",
            "NOTIFY_SOCKET",
            "JOURNAL_STREAM",
            "INVOCATION_ID",
            "MANAGERPID",
            "MAINPID",
        ),
        *(
            f"{kind}_DIRECTORY"
            for kind in ("RUNTIME", "STATE", "CACHE", "LOGS", "CONFIGURATION", "CREDENTIALS")
        ),
    )
)
_HINTS = {
    errno.EACCES: "no right to, or it is not marked executable",
    errno.ENOEXEC: "neither a program for this machine nor a script with an interpreter line",
    errno.EISDIR: "it is a folder",
    errno.ETXTBSY: "another process is writing to it",
}


class NotStarted(Exception):
    """The text says why, for people."""


@dataclass(frozen=True, slots=True)
class Started:
    """A running program. The caller reaps it and closes the pipes."""

    popen: subprocess.Popen[bytes]
    pipes: tuple[int, ...]  # its stdout and stderr, to be read
    processes: HeldProcesses


def start_program(command: Command, delegated: Path | None) -> Started:
    """`delegated`: as for HeldProcesses. Raises NotStarted."""
    environment = clean_environment(os.environ) | dict(command.environment)
    _refuse_tampered("".join(command.argv[:1]), environment["PATH"])
    reading, writing = zip(os.pipe(), os.pipe())
    try:
        popen = subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=writing[0],
            stderr=writing[1],
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    except (OSError, ValueError, IndexError) as error:
        for fd in reading:
            os.close(fd)
        raise NotStarted(
            _explain_failure(error, clean_line("".join(command.argv[:1])), environment["PATH"])
        ) from error
    finally:
        for fd in writing:
            os.close(fd)
    with suppress(OSError):
        Path(f"/proc/{popen.pid}/oom_score_adj").write_text(_OOM_SCORE)
    return Started(popen, reading, HeldProcesses(popen.pid, delegated))


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a diagnostic: without variables that hide devices from it, name a job,
    or are the daemon's own.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith(_DROPPED_PREFIXES) and name not in _DROPPED
    }
    folders = [
        folder for folder in environment.get("PATH", "").split(":") if folder.startswith("/")
    ]
    return kept | {"LC_ALL": "C", "PATH": ":".join(dict.fromkeys((*folders, *FOLDERS)))}


def _refuse_tampered(name: str, search: str) -> None:
    """Raises NotStarted for a program that root must not run, since others could change it."""
    found = shutil.which(name, path=search)
    if found is not None and (tampering := tool.find_tampering(found)):
        raise NotStarted(f"{clean_line(found)} is not run as root: {clean_line(tampering)}")


def _explain_failure(error: OSError | ValueError | IndexError, name: str, search: str) -> str:
    """Why a program does not start."""
    if not name or not isinstance(error, OSError):
        return (
            f"{name!r} cannot be run: {error}"
            if name
            else "there is no program to run: its name is empty"
        )
    words = (
        f"{os.strerror(error.errno or 0)} ({errno.errorcode.get(error.errno or 0, error.errno)})"
    )
    found = shutil.which(name, os.F_OK, path=search)
    if error.errno == errno.ENOENT and found is not None:
        return f"{clean_line(found)} cannot be run: its interpreter is missing: {words}"
    if error.errno == errno.ENOENT:
        return (
            f"{name} is not there: {words}"
            if "/" in name
            else f"there is no {name} on PATH: {words}"
        )
    return (
        f"{clean_line(found or name)} cannot be run:"
        f" {_HINTS.get(error.errno or 0, 'the system refuses')}: {words}"
    )
