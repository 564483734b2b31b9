"""`vitald publish` with the real daemon and the recorded answers of a real API server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import require
from tests.control_plane.cluster_node import ClusterNode
from tests.control_plane.plane import ControlPlane
from tests.control_plane.publisher import Publisher
from tests.control_plane.recorded import FILE, RecordedServer, record, run_scenario
from tests.harness import Json, Node


@pytest.mark.core
def test_from_the_first_write_to_the_last(node: Node, tmp_path: Path) -> None:
    require(shutil.which("openssl"), "openssl")
    with RecordedServer(tmp_path / "server") as server:
        cluster_node = ClusterNode(server, server.name)
        publisher = Publisher(tmp_path / "publisher", node, cluster_node)
        try:
            run_scenario(publisher, node, cluster_node, server)
        finally:
            publisher.stop()
            print(publisher.errors.read_text()[-4000:], *server.unknown)
        assert not (server.unknown or server.writes_left)


def test_the_api_server_takes_what_was_recorded(
    control_plane: ControlPlane, cluster_node: ClusterNode, tmp_path: Path
) -> None:
    """If not: .venv/bin/python -m tests.control_plane.recorded"""
    recorded = json.loads(FILE.read_text())
    assert list_writes(record(control_plane, cluster_node, tmp_path)) == list_writes(recorded)


def list_writes(recording: Json) -> list[tuple[str, str, int]]:
    """Path, request and status of each write, without name and UID of the node. In the order of
    each path: conditions and events are written by tasks of their own.
    """
    metadata = recording["node"]["metadata"]
    found = []
    for write in recording["writes"]:
        request = json.dumps(write["request"])
        for differs in (metadata["name"], metadata["uid"]):
            request = request.replace(differs, "NODE")
        found.append((json.loads(request)["path"], request, write["status"]))
    return sorted(found, key=lambda write: write[0])
