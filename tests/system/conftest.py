"""What system tests share that needs more than this machine has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from tests.control_plane.build import find_built_programs
from tests.control_plane.cluster_node import NAMES, ClusterNode, create_cluster_node
from tests.control_plane.plane import ControlPlane
from tests.control_plane.publisher import Publisher


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
