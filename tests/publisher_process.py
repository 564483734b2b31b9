"""A real `vitald publish`, with a configuration of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.harness import PYTHON, ROOT, Node
from tests.logged_process import LoggedProcess
from tests.pace import patient

_START_S = 15.0


class PublisherProcess(LoggedProcess):
    """One configuration in a folder, and the process that runs with it."""

    def __init__(self, folder: Path, daemon: Node, sections: str, *, publish: str = "") -> None:
        """`sections` of the configuration; `publish`: more lines of that one."""
        super().__init__(folder / "publish.log")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.state = folder / "publish"
        self.config = folder / "publish.toml"
        self.daemon = daemon
        self.config.write_text(f"""
[socket]
path = "{daemon.socket}"
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
                [PYTHON, "-m", "vitald", "publish", "--config", str(self.config)],
                stdout=errors,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ},
            )
        if wait:
            Node.until(
                lambda: len(self.read_log("publishing")) > before, _START_S, "vitald publish"
            )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`vitald publish ARGUMENTS` with this configuration, to its end."""
        return subprocess.run(
            [PYTHON, "-m", "vitald", "publish", *arguments, "--config", str(self.config)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=patient(60.0),
        )

    def read_memory_kib(self, which: str = "Rss") -> int:
        """`Rss` or `Pss` of /proc/PID/smaps_rollup."""
        assert self.process is not None
        rollup = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        return int(rollup.partition(f"\n{which}:")[2].split()[0])
