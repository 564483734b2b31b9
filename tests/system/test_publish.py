"""`vitald publish` with the real daemon and a real Kubernetes API server."""

from __future__ import annotations

from pathlib import Path

from tests.control_plane.cluster_node import ClusterNode
from tests.control_plane.publisher import Publisher
from tests.harness import Node

XID_79 = "NVRM: Xid (PCI:0000:65:00): 79, pid=1234, name=python3, GPU has fallen off the bus."


def test_a_fault_is_visible_within_a_second(
    tmp_path: Path, node: Node, cluster_node: ClusterNode
) -> None:
    with Publisher(tmp_path / "publisher", node, cluster_node):
        cluster_node.wait_for_status("True", 15.0)
        node.write(XID_79)
        took = cluster_node.wait_for_status("False", 1.0)
        print(f"fault line to condition: {took:.2f} s")
        assert cluster_node.read_reason() == "Xid79"
        assert cluster_node.labels["status"] == "unhealthy"
        assert [finding["code"] for finding in cluster_node.findings["findings"]] == ["xid/79"]
