"""What tests share. A test whose real part is missing skips by hand and fails under CI=true."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.catalog import Catalog, load
from tests.harness import Node


def require(holds: object, what: str) -> None:
    """Skip with a reason, or fail where everything must be there."""
    if holds:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI needs {what}")
    pytest.skip(f"needs {what}")


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A running daemon that follows a file."""
    with Node(tmp_path) as running:
        yield running


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Nodes made to order; whatever still runs at the end is stopped."""
    made: list[Node] = []

    def make(**settings: object) -> Node:
        made.append(Node(tmp_path / f"node{len(made)}", **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def kmsg() -> Iterator[Callable[[str], None]]:
    """Writes lines to the real kernel log, with the kernel's rate limit for writers off meanwhile."""
    require(os.geteuid() == 0 and os.access("/dev/kmsg", os.W_OK), "root and a writable /dev/kmsg")
    setting = Path("/proc/sys/kernel/printk_devkmsg")
    before = setting.read_text()
    setting.write_text("on\n")
    fd = os.open("/dev/kmsg", os.O_WRONLY)

    def write(line: str) -> None:
        os.write(fd, f"{line}\n".encode())

    yield write
    os.close(fd)
    setting.write_text(before)


@pytest.fixture
def promtool() -> str:
    path = shutil.which("promtool")
    require(path, "promtool (apt-get install prometheus)")
    assert path is not None
    return path
