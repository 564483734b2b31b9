"""`vitald publish` with the real daemon, and what a real API server answered once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import require
from tests.control_plane.cluster_node import ClusterNode
from tests.control_plane.plane import ControlPlane
from tests.control_plane.publisher import Publisher
from tests.control_plane.recorded import FILE, RecordedServer, record, tell_story
from tests.harness import Node


@pytest.mark.core
def test_from_the_first_write_to_the_last(node: Node, tmp_path: Path) -> None:
    require(shutil.which("openssl"), "openssl")
    with RecordedServer(tmp_path / "server") as server:
        cluster_node = ClusterNode(server, server.name)
        publisher = Publisher(tmp_path / "publisher", node, cluster_node)
        try:
            tell_story(publisher, node, cluster_node, server)
        finally:
            publisher.stop()
            print(publisher.errors.read_text()[-4000:], *server.unknown)
        assert not (server.unknown or server.writes_left)


def test_the_api_server_takes_what_was_recorded(
    control_plane: ControlPlane, cluster_node: ClusterNode, tmp_path: Path
) -> None:
    """If not: .venv/bin/python -m tests.control_plane.recorded"""
    recording = json.loads(FILE.read_text())
    name = recording["node"]["metadata"]["name"]
    now = record(control_plane, cluster_node, tmp_path)
    writes = [
        [
            (
                json.dumps(write["request"]).replace(each["node"]["metadata"]["uid"], "UID"),
                write["status"],
            )
            for write in each["writes"]
        ]
        for each in (recording, now)
    ]
    assert writes[1] == [
        (request.replace(name, cluster_node.name), status) for request, status in writes[0]
    ]
