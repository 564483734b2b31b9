"""The real `vitald publish` beside a real daemon and a cluster."""

from __future__ import annotations

from pathlib import Path

from tests.control_plane.cluster_node import ClusterNode
from tests.harness import Node
from tests.publisher_process import PublisherProcess


class Publisher(PublisherProcess):
    """One configuration, and the process that runs with it.

    with Publisher(tmp_path, node, cluster_node) as publisher:
        node.write("NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.")
        cluster_node.wait_for_status("False")
    """

    def __init__(
        self,
        folder: Path,
        daemon: Node,
        cluster_node: ClusterNode,
        *,
        token: str = "",
        server: str = "",
        kubernetes: str = "",
        publish: str = "",
    ) -> None:
        """`token`: by default the kubelet's. `server`: by default the control plane's. `kubernetes`
        and `publish`: more lines of these sections.
        """
        plane = cluster_node.plane
        self.cluster_node, self.token_file = cluster_node, folder / "token"
        sections = f"""
[kubernetes]
enabled = true
node = "{cluster_node.name}"
server = "{server or plane.server}"
ca = "{plane.certificate}"
token_file = "{self.token_file}"
{kubernetes}
"""
        super().__init__(folder, daemon, sections, publish=publish)
        self.write_token(token or cluster_node.kubelet_token)

    def write_token(self, token: str) -> None:
        """Replaces the file, as a kubelet does."""
        aside = self.token_file.with_suffix(".new")
        aside.write_text(token)
        aside.replace(self.token_file)
