"""An audit's three injections, until a real Slurm and a real Kubernetes API server stop using the
node. At the default periods; `-s` prints the times (docs/audit.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.control_plane.cluster_node import ClusterNode
from tests.control_plane.publisher import Publisher
from tests.dcgmi import Answer, Dcgmi
from tests.harness import Node
from tests.path_unit import PathUnit
from tests.system.lines import xid
from tests.system.nvml import as_if_real
from tests.system.test_audit import INJECTED, _compiler, dcgmi, gpus, wait_for_answer
from tests.system.test_publish_events import list_own_keys, publisher
from tests.system.test_slurm import Slurm, installed, slurm
from vitald.simulator.node import SimulatedNode

__all__ = ["_compiler", "dcgmi", "gpus", "installed", "publisher", "slurm"]  # fixtures

Inject = Callable[[], None]

INJECTIONS = ("dcgm", "xid", "gpu")
# How long each may take, in seconds. The watches of DCGM
# are read every 15 s, the inventory of PCI at a uevent or with the next poll.
AT_MOST_S = {"dcgm": 20.0, "xid": 5.0, "gpu": 10.0}


@pytest.fixture
def node(make_node: Callable[..., Node], dcgmi: Dcgmi, gpus: SimulatedNode) -> Node:
    """A healthy node with eight GPUs. Answers of DCGM count at once."""
    made = make_node(
        gpus=as_if_real(gpus),
        extra=f"""
[dcgm]
program = "{dcgmi.path}"
level_1 = "off"
level_2 = "off"
most = 1
[dcgm_health]
settle = "0.1s"
""",
    )
    made.start()
    wait_for_answer(made, "pass")
    made.wait(lambda status: status["status"] == "healthy", 15.0)
    return made


@pytest.fixture(params=INJECTIONS)
def injection(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def inject(injection: str, node: Node, dcgmi: Dcgmi, gpus: SimulatedNode) -> Inject:
    injections: dict[str, Inject] = {
        "dcgm": lambda: dcgmi.answer("health -c", Answer(stdout=INJECTED)),
        "xid": lambda: node.write(xid(1, pci=gpus.addresses[0])),
        "gpu": lambda: gpus.remove(3),
    }
    return injections[injection]


def test_slurm_drains_at_once(slurm: Slurm, node: Node, inject: Inject, injection: str) -> None:
    """With vitald-slurm.path, which a thread stands in for here."""
    slurm.config.unlink(missing_ok=True)
    slurm.config.symlink_to(node.config)
    node.until((node.runtime / "fitness").exists, 10.0, "the file")
    with ExitStack() as units:
        path = node.runtime / "fitness"
        units.enter_context(PathUnit(path, lambda: slurm.by_hand("healthcheck")))
        begun = time.monotonic()
        inject()
        node.until(lambda: slurm.known().held, AT_MOST_S[injection], "the node to be drained")
        took = time.monotonic() - begun
    print(f"\n{injection}: DRAIN in Slurm after {took:.2f} s")
    assert slurm.known().reason.startswith("vitald: ")


@pytest.mark.control_plane
def test_kubernetes_schedules_nothing_there(
    node: Node,
    publisher: Publisher,
    cluster_node: ClusterNode,
    inject: Inject,
    injection: str,
) -> None:
    begun = time.monotonic()
    inject()
    cluster_node.wait(
        lambda: list_own_keys(cluster_node) == ["vitald.io/unhealthy"],
        AT_MOST_S[injection],
        "the taint",
    )
    took = time.monotonic() - begun
    cluster_node.wait_for_status("False")
    print(
        f"\n{injection}: on the API server the taint after {took:.2f} s, the condition after"
        f" {time.monotonic() - begun:.2f} s"
    )
