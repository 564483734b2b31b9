"""
What is left of a run whose daemon was killed: found by the marker of the run, and ended.

Under systemd nothing is: the control group ends with the daemon. What DCGM's host engine started
has no marker, and is waited for (`find_leftovers`); it ends sooner if `dcgmi` gets a SIGTERM here.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import structlog

from vitald.diagnostics.run.descendants import Descendants, Process

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")

_GRACE_S = 10.0  # between SIGTERM and SIGKILL


class Leavings:
    """The processes of the run that carries `marker`. Everything here may hang in the kernel."""

    def __init__(self, marker: str, procfs: Path = Path("/proc")) -> None:
        self._descendants = Descendants(None, marker, procfs)
        self._began: float | None = None

    def end_processes(self) -> list[Process]:
        """Sends SIGTERM at first and SIGKILL after the grace, and returns who lives: to be called
        until that is nobody. Raises OSError if processes cannot be listed.
        """
        now = time.monotonic()
        began = now if self._began is None else self._began
        is_late = now - began >= _GRACE_S
        living = self._descendants.sweep_processes(signal.SIGKILL if is_late else signal.SIGTERM)
        if self._began is None and living:
            log.warning("diagnostic_leavings_ended", processes=[str(process) for process in living])
        self._began = began
        return living
