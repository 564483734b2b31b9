"""What the publisher loads: it runs on every node, beside the daemon."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each costs 0.5 to 2 MiB, and the publisher needs none of it.
UNNEEDED = (
    "anyio",
    "vitald.catalog",
    "vitald.collectors",
    "vitald.config.sections",
    "vitald.core",
    "vitald.judge",
    "vitald.ledger",
    "vitald.server.app",
    "vitald.server.routes",
    "vitald.server.schema",
)


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    code = "import sys, vitald.cli.publish, vitald.publish.publisher, vitald.publish.config; "
    code += "print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], text=True, check=True, capture_output=True)
    return set(told.stdout.split())


@pytest.mark.parametrize("module", UNNEEDED)
def test_the_publisher_does_not_load(module: str, loaded: set[str]) -> None:
    assert "vitald.publish.sink" in loaded
    assert module not in loaded
