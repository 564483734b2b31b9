"""What system tests share that needs more than this machine has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from tests.control_plane.build import find_built_programs
from tests.control_plane.cluster_node import NAMES, REBOOT, ClusterNode, create_cluster_node
from tests.control_plane.plane import ControlPlane
from tests.control_plane.publisher import Publisher
from tests.harness import Node
from tests.system.lines import xid
from tests.system.nvml import as_if_real
from vitald.simulator.simulated_node import SimulatedNode


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for all tests, which run one after the other. It is not built here: that takes longer
    than a test may.
    """
    require(
        find_built_programs(),
        "a Kubernetes control plane (.venv/bin/python -m tests.control_plane.build, ten minutes)",
    )
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), NAMES) as plane:
        yield plane


@pytest.fixture
def cluster_node(control_plane: ControlPlane) -> Iterator[ClusterNode]:
    """A Node object of the test's own, with a kubelet's token."""
    with create_cluster_node(control_plane) as node:
        yield node


@pytest.fixture
def make_publisher(tmp_path: Path, cluster_node: ClusterNode) -> Iterator[Callable[..., Publisher]]:
    """Takes what Publisher takes after the folder and without the node; stops them at the end."""
    made: list[Publisher] = []

    def make(daemon: Any, **settings: Any) -> Publisher:
        folder = tmp_path / f"publisher{len(made)}"
        made.append(Publisher(folder, daemon, settings.pop("node", cluster_node), **settings))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def node_with_lost_gpu(
    make_node: Callable[..., Node],
    make_publisher: Callable[..., Publisher],
    cluster_node: ClusterNode,
    tmp_path: Path,
) -> ClusterNode:
    """The fourth of eight GPUs fell off the bus: the kernel reported it, which is not enough for a
    repair, and NVML has lost it.
    """
    gpus = as_if_real(SimulatedNode(tmp_path / "gpus", "h100"))
    node = make_node(gpus=gpus)
    node.start()
    make_publisher(node).start()
    cluster_node.wait_for_status("True")
    node.write(xid(1, pci=gpus.addresses[3].removesuffix(".0")))
    cluster_node.wait_for_status("False")
    assert cluster_node.read_status(REBOOT) == "False"
    gpus.lose(3)
    cluster_node.wait_for_status("True", REBOOT)
    return cluster_node
