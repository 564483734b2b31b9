"""A process that logs to a file: what the daemon and the publisher of a test have in common."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any, TypeVar

from tests.pace import patient
from tests.warm import Process

_STOP_S = 10.0
_SHOWN_CHARACTERS = 8000  # of the log of a test that failed
P = TypeVar("P", bound="LoggedProcess")


class LoggedProcess:
    """Runs while its context lasts. `errors`: the file with its log."""

    def __init__(self, errors: Path) -> None:
        self.errors = errors
        self.process: Process | None = None

    def __enter__(self: P) -> P:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop()
        if kind is not None and self.errors.exists():
            print(self.errors.read_text()[-_SHOWN_CHARACTERS:])

    def start(self, *, wait: bool = True) -> None:
        """`wait`: until it does its work."""
        raise NotImplementedError

    def stop(self, number: int = signal.SIGTERM) -> float:
        """Seconds that it took to end; 0 if it was not running."""
        process, self.process = self.process, None
        if process is None:
            return 0.0
        begun = time.monotonic()
        process.send_signal(number)
        try:
            process.wait(patient(_STOP_S))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        return time.monotonic() - begun

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def read_log(self, *names: str) -> list[dict[str, Any]]:
        """The entries of its log with these names."""
        lines = self.errors.read_text().splitlines() if self.errors.exists() else []
        entries = [
            json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")
        ]
        return [entry for entry in entries if entry.get("event") in names]
