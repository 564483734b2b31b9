"""What system tests share that needs more than this machine has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import require
from tests.control_plane.build import CannotBuild, find_programs
from tests.control_plane.plane import ControlPlane


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for all tests, which run one after the other."""
    try:
        find_programs()
    except CannotBuild as error:
        require(False, f"a Kubernetes control plane: {error}")
    with ControlPlane(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane
