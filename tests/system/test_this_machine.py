"""The sources on the machine that runs the tests: its own sysfs and procfs, whatever it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import Node

ALL = ["neuron", "network", "pci", "host"]
EXCUSED = {
    "fs/space_low",
    "fs/full",
    "clock/unsynchronised",
    "clock/skewed",
    "host/memory_low",
    "host/stuck_elsewhere",
}  # may well be so


@pytest.mark.core
def test_this_machine_is_read_without_error(tmp_path: Path) -> None:
    with Node(tmp_path, looks=ALL) as node:
        states = {one["name"]: (one["state"], one["detail"]) for one in node.status()["sources"]}
        assert {
            name: state for name, state in states.items() if state[0] not in ("ok", "not present")
        } == {}
        assert {str(finding["code"]) for finding in node.findings()} <= EXCUSED
        said = node.cli("components", "--socket", str(node.socket))
        assert said.returncode == 0, said.stderr
        assert "node/processes" in said.stdout
        assert "what cannot be observed here" in said.stdout
        assert "Traceback" not in node.errors.read_text()
