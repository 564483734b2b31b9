"""
Diagnostics of earlier runs that have not ended: those of a run whose daemon was killed are found by
its marker and ended, and DCGM's own are found by their name.

DCGM's host engine starts its tests itself: they have no marker, outlive `dcgmi`, and are waited
for. They end sooner if `dcgmi` gets a SIGTERM here. Under systemd, a daemon that is killed leaves
nothing else: its control group ends with it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from vitald.diagnostics.run.descendants import Descendants, Process, list_processes

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")

_GRACE_S = 10.0  # between SIGTERM and SIGKILL
_FIRST_USER = 1000  # of people; those below are services (login.defs(5), UID_MIN)


class InterruptedRun:
    """The processes of the run that has `marker`. Reading them may hang in the kernel."""

    def __init__(self, marker: str, procfs: Path = Path("/proc")) -> None:
        self._descendants = Descendants(None, marker, procfs)
        self._began: float | None = None

    def end_processes(self) -> list[Process]:
        """Sends SIGTERM at first and SIGKILL after the grace, and returns those that live: to be
        called until none does. Raises OSError if processes cannot be listed.
        """
        now = time.monotonic()
        began = now if self._began is None else self._began
        is_late = now - began >= _GRACE_S
        living = self._descendants.sweep_processes(signal.SIGKILL if is_late else signal.SIGTERM)
        if self._began is None and living:
            log.warning(
                "diagnostic_leftovers_ending", processes=[str(process) for process in living]
            )
        self._began = began
        return living


def find_leftovers(
    procfs: Path = Path("/proc"), names: Sequence[str] = ("nvvs",)
) -> tuple[str, ...]:
    """Diagnostics that go on without who started them, by the names of their programs: `nvvs (pid
    4711)`.

    DCGM's runs under its engine, and outlives a client that was killed. Whatever an ordinary user
    calls by that name is none. Raises OSError where processes cannot be listed.
    """
    named = (
        process
        for process in list_processes(procfs)
        if not process.is_dead
        and (process.name in names or _read_program_name(procfs, process.pid) in names)
    )
    return tuple(str(process) for process in named if _is_systems(procfs, process.pid))


def _is_systems(procfs: Path, pid: int) -> bool:
    """Whether it is root's, a service's or our own."""
    try:
        uid = (procfs / str(pid)).stat().st_uid
    except OSError:
        return False
    return uid < _FIRST_USER or uid == os.geteuid()


def _read_program_name(procfs: Path, pid: int) -> str:
    """The name of the file that it runs; empty where that may not be known."""
    try:
        return Path(f"{procfs}/{pid}/exe").readlink().name.removesuffix(" (deleted)")
    except OSError:
        return ""
