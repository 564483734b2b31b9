"""A suspicion on a real daemon: reports of two users request a diagnostic, and nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.dcgmi import Dcgmi, diag
from tests.harness import PYTHON, ROOT, Json, Node
from tests.job_rank import Rank
from tests.system.document import conforms
from tests.system.job_events import job_socket, list_events, wait_for_job_socket, wait_until
from tests.system.test_diagnostics import _compiler, dcgmi, gpus
from tests.system.test_waiting import TRAINS, WAITS
from vitald.simulator.node import SimulatedNode

__all__ = ["_compiler", "dcgmi", "gpus"]  # the fixtures
REQUESTED = "vitald/diagnostic_requested"
_BAD = (
    "import os, sys, time; sys.path.insert(0, sys.argv[1]); import tests.job_rank\n"
    "uid = int(sys.argv[2]); os.setresuid(uid, uid, uid)\n"
    "from pathlib import Path\n"
    "ranks = [tests.job_rank.Rank(Path('job/job.sock'), rank=0, job=str(job)) for job in range(9)]\n"
    "for rank in ranks: rank.step(1, flags=1)\n"
    "print('sent', flush=True); time.sleep(60)"
)


@pytest.fixture
def make(make_node: Callable[..., Node], dcgmi: Dcgmi, gpus: SimulatedNode) -> Callable[..., Node]:
    """A node whose diagnostics run only for suspicions."""

    def made(diagnostics: str = "") -> Node:
        extra = f"""waiting_after = "4s"
[diagnostics]
idle = "1s"
{diagnostics}
[dcgm]
program = "{dcgmi.path}"
level_1 = "off"
level_2 = "off"
level_3 = "off"
most = 2
[dcgm_health]
enabled = false
"""
        node = make_node(gpus=gpus, extra=extra)
        node.start()
        node.wait(lambda status: status["status"] == "healthy", 15.0)
        return node

    return made


@pytest.fixture
def report_bad() -> Iterator[Callable[[Node, int], None]]:
    """Nine jobs of a user report a loss that is not finite."""
    started: list[subprocess.Popen[str]] = []

    def start(node: Node, uid: int) -> None:
        wait_for_job_socket(node)
        process = subprocess.Popen(
            [PYTHON, "-c", _BAD, str(ROOT), str(uid)],
            cwd=node.runtime,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "sent\n"
        wait_until(
            lambda: (
                sum(each["fields"]["uid"] == uid for each in list_events(node, "job/not_finite"))
                == 9
            )
        )

    yield start
    for process in started:
        process.kill()
        process.communicate()


def verdict(node: Node) -> tuple[object, ...]:
    """All that a suspicion must not change."""
    status = node.status()
    names = ("status", "action", "reasons", "rebootRequired", "replacementRequired", "openFindings")
    return (*(status[name] for name in names), node.cli("check", "--strict").returncode)


def list_runs(node: Node) -> list[Json]:
    runs: list[Json] = node.get("/v1/diagnostics/runs")["runs"]
    return runs


def last_step(node: Node) -> object:
    jobs = node.get("/v1/jobs")["reported"]
    return jobs[0]["step"] if jobs else None


def test_two_users_request_one_diagnostic(
    make: Callable[..., Node],
    dcgmi: Dcgmi,
    gpus: SimulatedNode,
    report_bad: Callable[[Node, int], None],
) -> None:
    dcgmi.answer("diag -r 2", diag(level=2))
    node = make()
    gpus.set_values(None, TRAINS)
    node.wait(lambda status: status["waitingSeconds"] == 0, 15.0)
    before = verdict(node)
    report_bad(node, 65534)
    assert list_events(node, REQUESTED) == [] and verdict(node) == before
    report_bad(node, 65533)
    wait_until(lambda: list_events(node, REQUESTED), 30.0)
    (event,) = list_events(node, REQUESTED)
    assert event["fields"]["uids"] == [65533, 65534] and event["trust"] == "daemon"
    wait_until(lambda: "because jobs of 2 users (65533, 65534)" in node.cli("status").stdout)
    (shown,) = [row for row in node.cli("status").stdout.splitlines() if "because jobs" in row]
    assert shown.startswith("  diagnostic dcgm level 2 waits for ")
    assert verdict(node) == before and list_runs(node) == []

    node.restart()  # it is still requested, and not again
    wait_until(lambda: "because jobs of 2 users" in node.cli("status").stdout, 30.0)
    gpus.set_values(None, {"utilization": "0 0", "procs": None, "power_mw": 80000})
    wait_until(lambda: list_runs(node), 60.0)
    (run,) = list_runs(node)
    assert (run["by"], run["level"], run["outcome"]) == ("suspicion", 2, "pass"), (
        run["why"],
        run["preempted"],
    )
    node.restart()
    node.wait(lambda status: status["status"] == "healthy", 30.0)
    assert verdict(node) == before
    assert len(list_events(node, REQUESTED)) == len(list_runs(node)) == 1


def test_off_means_that_nothing_is_requested(
    make: Callable[..., Node], report_bad: Callable[[Node, int], None]
) -> None:
    node = make('suspicion = "off"')
    report_bad(node, 65533)
    report_bad(node, 65534)
    wait_until(lambda: node.cli("diag", "list").returncode == 0)
    assert list_events(node, REQUESTED) == []
    assert "because" not in node.cli("status").stdout


def test_the_gpu_that_took_no_part_in_a_stall_scores(
    make: Callable[..., Node], gpus: SimulatedNode
) -> None:
    gpus.set_values(None, TRAINS)
    node = make()
    node.wait(lambda status: status["waitingSeconds"] == 0, 15.0)
    before = verdict(node)
    wait_for_job_socket(node)
    rank = Rank(job_socket(node), rank=0, job="1234", step_limit_s=2)
    for step in range(5):
        rank.step(step)
        wait_until(lambda: last_step(node) == step)
    gpus.set_values(None, WAITS)
    gpus.set_values(3, {"utilization": "0 0", "power_mw": 80000})
    wait_until(lambda: node.status()["suspects"], 60.0)
    status = node.get("/v1/status")
    conforms("NodeStatus", status)
    (suspect,) = status["suspects"]
    assert suspect["component"] == f"gpu/{gpus.addresses[3]}"
    assert [(part["kind"], part["count"]) for part in suspect["parts"]] == [("job_stalled_here", 1)]
    assert suspect["score"] == 0.5 and suspect["suspect"] is False
    assert verdict(node) == before
    rank.close()
