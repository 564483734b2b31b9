"""vitald-slurm.path and its service without systemd: a thread that waits for another file in the
place of the first, runs the health check, and pauses. What is renamed into place meanwhile is
missed, as systemd misses it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tests.harness import ROOT

_POLL_S = 0.02


def read_pause() -> float:
    """The pause of the service, in seconds."""
    unit = (ROOT / "systemd/vitald-slurm.service").read_text()
    [line] = [line for line in unit.splitlines() if line.startswith("ExecStartPost=/bin/sleep ")]
    return float(line.split()[-1])


class PathUnit:
    """Calls `check` for each change of `path`. `runs`: when each run ended, on the monotonic
    clock.
    """

    def __init__(self, path: Path, check: Callable[[], object]) -> None:
        self.runs: list[float] = []
        self._path = path
        self._check = check
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PathUnit:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join(30.0)

    def _watch(self) -> None:
        pause, seen = read_pause(), self._identify()
        while not self._stopping.wait(_POLL_S):
            if self._identify() == seen:
                continue
            self._check()
            self.runs.append(time.monotonic())
            self._stopping.wait(pause)
            seen = self._identify()

    def _identify(self) -> tuple[int, int]:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return 0, 0
        return status.st_ino, status.st_mtime_ns
