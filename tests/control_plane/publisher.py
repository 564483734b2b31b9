"""The real `vitald publish` beside a real daemon, for a node of the control plane."""

from __future__ import annotations

from pathlib import Path

from tests.control_plane.cluster_node import ClusterNode
from tests.harness import Node
from tests.probe import run_probe
from tests.publisher_process import PublisherProcess


def probe_readiness(ready_file: Path) -> str:
    """What the readiness probe says of this file; "" if the publisher is ready."""
    done = run_probe('"/run/vitald-publish/ready"', repr(str(ready_file)), "published")
    assert bool(done.stderr) == bool(done.returncode), done
    return done.stderr.strip()


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
        self.cluster_node = cluster_node
        self.token_file = folder / "token"
        plane = cluster_node.plane
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

    def probe_readiness(self) -> str:
        """Why the pod's readiness probe fails; "" if it does not."""
        return probe_readiness(self.folder / "ready")
