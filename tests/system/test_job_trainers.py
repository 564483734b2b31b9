"""
The hooks of docs/jobs-client.md as they are printed there, in real runs of two ranks with gloo on
the CPU, on a real daemon. Not in the gate, as test_job_torch.py:

    VITALD_TEST_TORCH=PYTHON tests/run tests/system/test_job_trainers.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness import ROOT, Json, Node, free_port
from tests.system.job_events import job_socket, list_events, wait_for_job_socket

PROGRAM = ROOT / "tests/trainer_program.py"
FRAMEWORKS = {"plain": "torch", "transformers": "transformers", "lightning": "lightning.pytorch"}


class TrainerRun:
    """A program of two ranks, with the launcher that the framework expects."""

    def __init__(self, node: Node, python: str, framework: str) -> None:
        self.node = node
        self.evaluates = framework != "plain"
        self.folder = node.folder / "t"
        self.folder.mkdir()
        self.output = node.folder / "trainer.log"
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(node.folder),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "VITALD_JOB_ID": framework,
            "VITALD_JOB_SOCKET": str(job_socket(node)),
        }
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2"]
        launcher += [f"--master-port={free_port()}"]
        if framework == "lightning":  # starts the second rank itself
            launcher = []
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [python, *launcher, str(PROGRAM), framework, str(self.folder)],
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def get_job(self) -> Json:
        """What the daemon knows of it; empty before it has both ranks."""
        assert self.process.poll() in (None, 0), self.output.read_text()[-4000:]
        jobs = [job for job in self.node.get("/v1/jobs")["reported"] if job["ranks"] == 2]
        return jobs[0] if jobs else {}

    def get_step(self) -> int:
        return self.get_job().get("step") or 0

    def set_flag(self, name: str) -> None:
        (self.folder / name).touch()

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(params=FRAMEWORKS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TrainerRun]:
    python, module = os.environ.get("VITALD_TEST_TORCH", ""), FRAMEWORKS[request.param]
    if not python:
        pytest.skip("needs PyTorch: VITALD_TEST_TORCH=PYTHON")
    if subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode:
        pytest.skip(f"{python} lacks {module}")
    with Node(tmp_path) as node:
        wait_for_job_socket(node)
        made = TrainerRun(node, python, request.param)
        try:
            yield made
        finally:
            made.end()
            sys.stdout.write(made.output.read_text()[-4000:])


@pytest.mark.timeout(400)
@pytest.mark.slow
def test_the_hook_of_the_manual(run: TrainerRun) -> None:
    """Steps, loss and both ranks; advice is followed by one checkpoint of both; evaluations are a
    phase; NaN; an end that is no death.
    """
    node = run.node
    node.until(lambda: run.get_step() > 60, 120.0, "steps")
    assert list_events(node, "job/checkpoint") == []
    node.until(lambda: run.get_job().get("loss"), 10.0, "a loss")
    if run.evaluates:
        node.until(lambda: run.get_job().get("state") == "eval", 60.0, "an evaluation")

    assert node.cli("advise", "save", "--for", "20m", "--reason", "reset").returncode == 0
    node.until(lambda: list_events(node, "job/checkpoint"), 30.0, "the checkpoint")
    saved = run.get_step()
    node.until(lambda: run.get_step() > saved + 60, 60.0, "three more questions")
    (checkpoint,) = list_events(node, "job/checkpoint")
    assert checkpoint["fields"]["ranks"] == 2
    assert [*run.folder.rglob("*checkpoint-*"), *run.folder.glob("advised-*.ckpt")]
    assert run.get_job()["saved"]

    run.set_flag("nan")
    node.until(lambda: list_events(node, "job/not_finite"), 30.0, "not finite")
    run.set_flag("stop")
    node.until(lambda: run.process.poll() is not None, 60.0, "its end")
    assert run.process.returncode == 0, run.output.read_text()[-4000:]
    node.until(lambda: not node.get("/v1/jobs")["reported"], 30.0, "the job's end")
    for code in ("job/rank_ended", "job/error", "job/stalled", "job/checkpoint_failed"):
        assert list_events(node, code) == []
    assert (node.status()["status"], node.findings()) == ("healthy", [])
