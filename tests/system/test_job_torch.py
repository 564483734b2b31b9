"""A real PyTorch run, two ranks with gloo on the CPU, on a real daemon. Not in the gate: torch
takes 5 GB. With it: VITALD_TEST_TORCH=PYTHON tests/run tests/system/test_job_torch.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness import ROOT, Json, Node, free_port
from tests.pace import patient
from tests.system.job_events import list_events, wait_for_job_socket

PROGRAM = ROOT / "tests/torch_program.py"


class TorchRun:
    """The two ranks, and what they print."""

    def __init__(self, node: Node, python: str) -> None:
        self.node = node
        self.folder = node.folder / "training"
        self.folder.mkdir()
        self._python, self._port = python, free_port()
        self.ranks = [self._start(rank) for rank in range(2)]

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": os.environ["PATH"],
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._port),
            "TORCHELASTIC_RUN_ID": "gloo",
            "VITALD_JOB_SOCKET": str(self.node.runtime / "job/job.sock"),
        }
        return subprocess.Popen([self._python, PROGRAM, self.folder], env=environment)

    def read_last_step(self, rank: int) -> int:
        path = self.folder / f"rank{rank}"
        printed = path.read_text() if path.exists() else ""
        lines = printed[: printed.rfind("\n") + 1].splitlines()
        return int(lines[-1]) if lines else -1

    def end(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[TorchRun]:
    python = os.environ.get("VITALD_TEST_TORCH", "")
    if not python:
        pytest.skip("needs PyTorch: VITALD_TEST_TORCH=PYTHON")
    with Node(tmp_path) as node:
        wait_for_job_socket(node)
        made = TorchRun(node, python)
        node.until(lambda: made.read_last_step(1) > 200, 60.0, "steps")
        yield made
        made.end()


def wait(node: Node, code: str, seconds: float) -> Json:
    """The first event with the code."""
    node.until(lambda: list_events(node, code), seconds, code)
    return list_events(node, code)[0]


@pytest.mark.timeout(400)
@pytest.mark.slow
def test_a_training_run(run: TorchRun, capsys: pytest.CaptureFixture[str]) -> None:
    """A stopped rank stalls both; NaN; advice is followed by a checkpoint of both; the daemon is
    killed and started again; a killed rank is reported with its exact last step.
    """
    node, took = run.node, list[str]()

    def measure(what: str, wait_for: Callable[[], object]) -> None:
        begun = time.monotonic()
        wait_for()
        took.append(f"{what} {time.monotonic() - begun:.2f} s")

    run.ranks[0].send_signal(signal.SIGUSR1)
    measure("not finite", lambda: wait(node, "job/not_finite", 10.0))
    assert node.cli("advise", "save", "--for", "20m", "--reason", "reset").returncode == 0
    measure(
        "checkpoint",
        lambda: node.until(lambda: len([*run.folder.glob("checkpoint*.[01]")]) >= 2, 20.0, "two"),
    )
    saved = wait(node, "job/checkpoint", 10.0)
    assert saved["fields"]["ranks"] == 2
    assert node.cli("advise", "none", "--reason", "done").returncode == 0

    node.restart(signal.SIGKILL)
    node.until(
        lambda: [job["ranks"] for job in node.get("/v1/jobs")["reported"]] == [2], 60.0, "both"
    )
    time.sleep(3.0)  # so that the daemon has seen steps
    run.ranks[1].send_signal(signal.SIGSTOP)
    measure("stalled", lambda: wait(node, "job/stalled", 150.0))
    assert "1" in wait(node, "job/stalled", 1.0)["fields"]["ranks"]
    run.ranks[1].send_signal(signal.SIGCONT)
    measure("resumed", lambda: wait(node, "job/resumed", 10.0))

    run.ranks[1].kill()
    measure("rank ended", lambda: wait(node, "job/rank_ended", patient(1.0)))
    ended = next(
        each for each in list_events(node, "job/rank_ended") if each["fields"]["rank"] == 1
    )
    assert ended["fields"]["step"] in (run.read_last_step(1), run.read_last_step(1) + 1)
    assert (node.status()["status"], node.findings()) == ("healthy", [])
    with capsys.disabled():
        print("\nPyTorch with gloo: " + ", ".join(took))
