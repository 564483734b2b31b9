"""The real `vitald publish` beside a real daemon, in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.control_plane.cluster_node import ClusterNode
from tests.harness import PYTHON, ROOT, Node
from tests.probe import run_probe
from tests.waiting import WAIT_S, until


def probe_readiness(ready_file: Path) -> str:
    """What the readiness probe says of this file; "" if the publisher is ready."""
    done = run_probe('"/run/vitald-publish/ready"', repr(str(ready_file)), "published")
    assert bool(done.stderr) == bool(done.returncode), done
    return done.stderr.strip()


class Publisher:
    """One configuration, and the process that runs with it.

    with Publisher(tmp_path, node, cluster_node) as publisher:
        node.write("NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.")
        cluster_node.wait_for_status("False")
    """

    def __init__(
        self,
        folder: Path,
        daemon: Node,
        cluster_node: ClusterNode,
        *,
        token: str = "",
        server: str = "",
        kubernetes: str = "",
        publish: str = "",
    ) -> None:
        """`token`: by default the kubelet's. `server`: by default the control plane's. `kubernetes`
        and `publish`: more lines of these sections.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.daemon, self.cluster_node = folder, daemon, cluster_node
        self.state = folder / "publish"
        self.token_file = folder / "token"
        self.config = folder / "publish.toml"
        self.errors = folder / "publish.log"
        self.process: subprocess.Popen[bytes] | None = None
        plane = cluster_node.plane
        self.write_token(token or cluster_node.kubelet_token)
        self.config.write_text(f"""
[socket]
path = "{daemon.socket}"
[log]
format = "json"
[publish]
state = "{self.state}"
{publish}
[kubernetes]
enabled = true
node = "{cluster_node.name}"
server = "{server or plane.server}"
ca = "{plane.certificate}"
token_file = "{self.token_file}"
{kubernetes}
""")

    def __enter__(self) -> Publisher:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if error is not None and self.errors.exists():
            print(self.errors.read_text()[-8000:])

    def write_token(self, token: str) -> None:
        """Replaces the file, as a kubelet does."""
        aside = self.token_file.with_suffix(".new")
        aside.write_text(token)
        aside.replace(self.token_file)

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

    def probe_readiness(self) -> str:
        """Why the pod's readiness probe fails; "" if it does not."""
        return probe_readiness(self.folder / "ready")

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

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`vitald publish ARGUMENTS` with this configuration, to its end."""
        return subprocess.run(
            [PYTHON, "-m", "vitald", "publish", *arguments, "--config", str(self.config)],
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
