"""Which libnvidia-ml.so.1 is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitald.collectors.nvml.attachment import LOADERS_CHOICE, find_library
from vitald.collectors.nvml.settings import NvmlSettings


@pytest.mark.parametrize(
    "folder", ["usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu"]
)
def test_the_operators_driver_is_found_wherever_its_system_puts_libraries(
    tmp_path: Path, folder: str
) -> None:
    settings = NvmlSettings(driver_root=tmp_path / "driver")
    assert find_library(settings) == LOADERS_CHOICE
    library = settings.driver_root / folder / "libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.symlink_to("libnvidia-ml.so.580.95.05")
    assert find_library(settings) == LOADERS_CHOICE  # the driver is not there yet
    library.with_name("libnvidia-ml.so.580.95.05").touch()
    assert find_library(settings) == str(library)


def test_a_configured_library_comes_first(tmp_path: Path) -> None:
    library = tmp_path / "driver/usr/lib64/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    configured = Path("/opt/libnvidia-ml.so.1")
    settings = NvmlSettings(driver_root=tmp_path / "driver", library=configured)
    assert find_library(settings) == str(configured)


def test_a_tree_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    loop = tmp_path / "driver"
    loop.symlink_to(loop)
    assert find_library(NvmlSettings(driver_root=loop)) == LOADERS_CHOICE
