"""When a repair is due on a real daemon: a fault that waits for the running job, and GPUs that are
simulated below the driver's library.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require
from tests.harness import Json, Node
from tests.waiting import until
from vitald.simulator.simulated_node import SimulatedNode

DUE, NOT_DUE = 0, 10
IDLE = '[diagnostics]\nidle = "1s"\n'
DRAIN_AND_RESET = {"fi.230.0": "u32:4"}  # NVML field 230: the GPU's recovery action


@pytest.fixture
def gpus(tmp_path: Path) -> SimulatedNode:
    require(
        shutil.which("cc") or shutil.which("gcc"), "a C compiler (apt-get install gcc libc6-dev)"
    )
    return SimulatedNode(tmp_path / "gpus", "h100")


@pytest.fixture
def node(tmp_path: Path, gpus: SimulatedNode) -> Iterator[Node]:
    with Node(tmp_path / "node", gpus=gpus, extra=IDLE) as made:
        yield made


def summary(node: Node) -> Json:
    """With drills: findings of simulated GPUs are simulated."""
    return node.get("/v1/summary?drills=true")


def reboot_due(node: Node) -> str | None:
    word: str | None = summary(node)["rebootDue"]
    return word


@pytest.mark.usefixtures("whole_machine")
def test_a_repair_that_waits_for_the_job(node: Node, gpus: SimulatedNode) -> None:
    require(os.geteuid() == 0, "root, who sees all processes")
    gpus.set_values(3, DRAIN_AND_RESET)
    until(lambda: summary(node)["findings"], "the finding")
    assert summary(node)["findings"][0]["when"] == "after_job"
    until(lambda: reboot_due(node) == "NvmlRecoveryAction", "the node to be idle")
    # A job counts at once, and its end does not wait for another measurement.
    node.request("POST", "/v1/jobs", {"event": "begin", "job": "7"})
    assert reboot_due(node) is None
    node.request("POST", "/v1/jobs", {"event": "end", "job": "7"})
    assert reboot_due(node) == "NvmlRecoveryAction"
    # For all who do not ask for drills there is nothing to be repaired.
    assert node.get("/v1/summary")["rebootDue"] is None
    done = node.cli("check", "--due", "reboot")
    assert (done.returncode, done.stdout.startswith("whether a reboot is due is unknown")) == (
        30,
        True,
    ), done.stdout
