"""A real `vitald publish`, with a configuration of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.harness import PYTHON, ROOT, LoggedProgram, Node
from tests.waiting import WAIT_S, until


class PublisherProcess(LoggedProgram):
    """One configuration in a folder, and the process that runs with it."""

    def __init__(self, folder: Path, daemon: Node, sections: str, *, publish: str = "") -> None:
        """`sections` of the configuration; `publish`: more lines of that one."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.daemon = folder, daemon
        self.state = folder / "publish"
        self.config = folder / "publish.toml"
        self.errors = folder / "publish.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.config.write_text(f"""
[socket]
path = "{daemon.socket}"
[log]
format = "json"
[publish]
state = "{self.state}"
{publish}
{sections}
""")

    def start(self, *, wait: bool = True) -> None:
        """`wait`: until it follows the daemon."""
        before = len(self.read_log("publishing"))
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [
                    *(PYTHON, "-m", "vitald", "publish", f"--config={self.config}"),
                    f"--ready-file={self.folder}/ready",
                ],
                stdout=errors,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ},
            )
        if wait:
            until(lambda: len(self.read_log("publishing")) > before, "vitald publish")

    def send(self, number: int) -> None:
        """A signal, to the running process."""
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> float:
        """Seconds that it took to end; 0 if it was not running."""
        process, self.process = self.process, None
        if process is None:
            return 0.0
        begun = time.monotonic()
        process.send_signal(number)
        try:
            process.wait(WAIT_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        return time.monotonic() - begun

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def run(self, *arguments: str, verb: str = "publish") -> subprocess.CompletedProcess[str]:
        """`vitald publish ARGUMENTS` with this configuration, to its end."""
        return subprocess.run(
            [PYTHON, "-m", "vitald", verb, *arguments, "--config", str(self.config)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )

    def read_log(self, *names: str) -> list[dict[str, Any]]:
        """The entries of its log with these names."""
        lines = self.errors.read_text().splitlines() if self.errors.exists() else []
        entries = [
            json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")
        ]
        return [entry for entry in entries if entry.get("event") in names]

    def read_memory_kib(self, which: str = "Rss") -> int:
        """`Rss` or `Pss` of /proc/PID/smaps_rollup."""
        assert self.process is not None
        rollup = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        return int(rollup.partition(f"\n{which}:")[2].split()[0])
