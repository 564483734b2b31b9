"""A repaired node returns: a real Slurm and a real API server keep it out until it is validated."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import require
from tests.control_plane.cluster_node import VALIDATED, ClusterNode
from tests.control_plane.publisher import Publisher
from tests.dcgmi import Dcgmi, diag
from tests.harness import Node
from tests.pace import patient
from tests.system.lines import wait_for_pid, xid
from tests.system.machine import Machine
from tests.system.nvml import as_if_real
from tests.system.test_slurm import Slurm, installed, slurm
from vitald.simulator.node import SimulatedNode

__all__ = ["installed", "slurm"]  # fixtures

PENDING = "A diagnostic must pass before the node is used again (validation/pending)"


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    require(
        shutil.which("cc") or shutil.which("gcc"), "a C compiler (apt-get install gcc libc6-dev)"
    )


@pytest.fixture
def dcgmi(tmp_path: Path) -> Iterator[Dcgmi]:
    with Dcgmi(tmp_path / "bin", gpus=2) as made:
        yield made


@pytest.fixture
def gpus(tmp_path: Path) -> SimulatedNode:
    return as_if_real(SimulatedNode(tmp_path / "gpus", "h100", 2))


@pytest.fixture
def machine(make_node: Callable[..., Node], dcgmi: Dcgmi, gpus: SimulatedNode) -> Machine:
    """Not started yet. Nothing runs on it but what validation asks for."""
    extra = f"""
[dcgm]
program = "{dcgmi.path}"
level_1 = "off"
level_2 = "off"
[dcgm_health]
enabled = false
"""
    return Machine(make_node(gpus=gpus, extra=extra))


def break_gpu(node: Node, gpus: SimulatedNode) -> None:
    node.write(xid(1, pci=gpus.addresses[1].removesuffix(".0")))
    wait_for_pid(node, 1)
    node.wait(lambda status: status["status"] == "unhealthy")


def test_slurm_keeps_the_node_drained_until_the_diagnostic_has_passed(
    slurm: Slurm, machine: Machine, dcgmi: Dcgmi, gpus: SimulatedNode
) -> None:
    node = machine.node
    slurm.config.unlink(missing_ok=True)
    slurm.config.symlink_to(node.config)
    node.start()
    node.wait(lambda status: status["status"] == "healthy", 15.0)
    break_gpu(node, gpus)
    slurm.by_hand("healthcheck")
    known = slurm.known()
    assert "DRAIN" in known.states and "xid/79" in known.reason
    dcgmi.answer("diag -r 2", diag(level=2, gpus=2, delay_s=3.0))
    machine.reboot()
    began = time.monotonic()
    slurm.by_hand("healthcheck")
    known = slurm.known()
    assert "DRAIN" in known.states and known.reason.startswith(f"vitald: node: {PENDING}")
    node.wait(lambda status: status["status"] == "healthy", 30.0)
    slurm.by_hand("healthcheck")
    slurm.wait(lambda known: known.states == {"IDLE"}, "the node to be resumed")
    print(f"boot to resumed, with a diagnostic of 3 s: {time.monotonic() - began:.1f} s")


def test_kubernetes_has_a_condition(
    machine: Machine,
    make_publisher: Callable[..., Publisher],
    cluster_node: ClusterNode,
    dcgmi: Dcgmi,
    gpus: SimulatedNode,
) -> None:
    node = machine.node
    node.start()
    make_publisher(node).start()
    cluster_node.wait_for_status("True", 20.0, VALIDATED)
    assert cluster_node.read_reason(VALIDATED) == "NotRequired"
    break_gpu(node, gpus)
    # Long enough for the condition to be seen before the diagnostic has passed.
    dcgmi.answer("diag -r 2", diag(level=2, gpus=2, delay_s=patient(8.0)))
    machine.reboot()
    began = time.monotonic()
    cluster_node.wait_for_status("False", 15.0, VALIDATED)
    assert cluster_node.read_reason(VALIDATED) == "ValidationPending"
    assert (cluster_node.read_status(), cluster_node.read_reason()) == (
        "False",
        "ValidationPending",
    )
    cluster_node.wait_for_status("True", 30.0, VALIDATED)
    cluster_node.wait_for_status("True", 15.0)
    print(
        f"boot to ready, with a diagnostic of {patient(8.0):g} s: {time.monotonic() - began:.1f} s"
    )
    dcgmi.path.unlink()
    cluster_node.wait_for_status("Unknown", 60.0, VALIDATED)
    assert cluster_node.read_reason(VALIDATED) == "ValidationOff"
