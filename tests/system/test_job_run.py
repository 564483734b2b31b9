"""A job of two processes with `vitald_job`, and what shells report, on a real daemon."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import PYTHON, ROOT, Json, Node
from tests.pace import patient
from tests.system.job_events import job_socket, list_events, wait_for_job_socket, wait_until


class Run:
    """The two ranks."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.ranks = [self._start(rank) for rank in range(2)]

    def _start(self, rank: int) -> subprocess.Popen[str]:
        socket = str(job_socket(self.node))
        output = open(self.node.folder / f"rank{rank}", "w")
        with output:
            return subprocess.Popen(
                [PYTHON, "-m", "tests.job_program", socket, str(rank)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/agent"},
                stdout=output,
                text=True,
            )

    def last_step(self, rank: int) -> int:
        printed = (self.node.folder / f"rank{rank}").read_text()
        lines = printed[: printed.rfind("\n") + 1].splitlines()
        return int(lines[-1]) if lines else -1

    def wait_for_steps(self) -> None:
        """Until the daemon has seen each rank make steps: a rank that it has read once is not known
        to make any.
        """
        wait_until(lambda: self._read_step() > 20)
        seen = self._read_step()
        wait_until(lambda: self._read_step() > seen + 20)

    def _read_step(self) -> int:
        """The last step that both ranks have made, as the daemon has it."""
        jobs = self.node.get("/v1/jobs")["reported"]
        return jobs[0]["step"] or 0 if jobs and jobs[0]["ranks"] == 2 else 0

    def end(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()


def count_saved(node: Node) -> int:
    saved: int = sum(event["fields"]["ranks"] for event in list_events(node, "job/checkpoint"))
    return saved


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as made:
        wait_for_job_socket(made)
        yield made


@pytest.fixture
def run(node: Node) -> Iterator[Run]:
    made = Run(node)
    made.wait_for_steps()
    yield made
    made.end()


def test_a_run_from_a_stall_to_a_killed_rank(node: Node, run: Run) -> None:
    before = node.status()
    run.ranks[1].send_signal(signal.SIGSTOP)
    wait_until(lambda: list_events(node, "job/stalled"))
    assert list_events(node, "job/stalled")[0]["fields"]["ranks"] == "1"
    run.ranks[1].send_signal(signal.SIGCONT)
    wait_until(lambda: list_events(node, "job/resumed"))

    run.ranks[0].send_signal(signal.SIGUSR1)
    wait_until(lambda: list_events(node, "job/not_finite"))
    assert list_events(node, "job/not_finite")[0]["fields"]["ranks"] == "0"

    advise = ("advise", "save", "--for", "20m", "--reason", "planned reset")
    assert node.cli(*advise).returncode == 0
    # The two do not agree on a step, so these are two checkpoints or one.
    wait_until(lambda: count_saved(node) == 2)

    run.ranks[1].kill()
    wait_until(lambda: list_events(node, "job/rank_ended"), seconds=5)
    run.ranks[1].wait()
    (ended,) = list_events(node, "job/rank_ended")
    assert (ended["fields"]["rank"], ended["fields"]["pid"]) == (1, run.ranks[1].pid)
    assert ended["fields"]["step"] in (run.last_step(1), run.last_step(1) + 1)

    after = node.status()
    assert [after[key] for key in ("status", "rebootRequired", "replacementRequired")] == [
        before[key] for key in ("status", "rebootRequired", "replacementRequired")
    ]
    assert node.findings() == []


def test_a_daemon_that_restarts_during_a_run(node: Node, run: Run) -> None:
    node.restart(signal.SIGKILL)
    run.wait_for_steps()
    assert list_events(node, "job/rank_ended") == []
    run.ranks[0].kill()
    wait_until(lambda: list_events(node, "job/rank_ended"))
    assert list_events(node, "job/rank_ended")[0]["fields"]["step"] >= run.last_step(0)


def tell(node: Node, *words: str) -> str:
    done = subprocess.run(
        [PYTHON, "-m", "vitald", "tell", *words],
        cwd=ROOT,
        env={**os.environ, "VITALD_JOB_SOCKET": str(job_socket(node))},
        capture_output=True,
        text=True,
        timeout=patient(20),
    )
    assert (done.returncode, done.stdout) == (0, "")
    return done.stderr


def reported(node: Node) -> list[Json]:
    jobs: list[Json] = node.get("/v1/jobs")["reported"]
    return jobs


def test_a_shell_reports_a_job(node: Node) -> None:
    """Each call is a connection of its own, and the daemon sees one rank."""
    for step in range(3):
        assert tell(node, f"step={step}", "loss=2.5", "job=77") == ""
    tell(node, "phase=checkpoint", "limit=30m", "job=77")
    wait_until(lambda: reported(node) and reported(node)[0]["state"] == "checkpoint")
    (job,) = reported(node)
    assert (job["ranks"], job["step"], job["loss"], job["claimed"]) == (1, 2, 2.5, "77")
    tell(node, "error=oom", "text=no memory", "job=77")
    wait_until(lambda: list_events(node, "job/error"))
    assert list_events(node, "job/error")[0]["fields"]["what"] == "oom"
    tell(node, "phase=end", "job=77")
    wait_until(lambda: not reported(node))
    assert list_events(node, "job/rank_ended") == []


def test_the_output_of_a_job(node: Node) -> None:
    output = "step 1\nRuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    done = subprocess.run(
        [PYTHON, "-m", "vitald", "tee"],
        cwd=ROOT,
        env={**os.environ, "VITALD_JOB_SOCKET": str(job_socket(node))},
        input=output,
        capture_output=True,
        text=True,
        timeout=patient(20),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")
    wait_until(lambda: list_events(node, "job/error"))
    (event,) = list_events(node, "job/error")
    assert event["fields"]["what"] == "cuda" and "uncorrectable ECC" in event["raw"]
    assert event["trust"] == "job" and node.findings() == []
    assert list_events(node, "job/rank_ended") == []
