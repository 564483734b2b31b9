"""
docs/kubernetes.md, done as it says: its commands install vitald on a cluster that refuses what
hardened ones refuse, and what it shows of a node is what kubectl shows.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import require
from tests.control_plane.build import find_built_programs
from tests.control_plane.cluster_node import ClusterNode
from tests.control_plane.manifests import choose_component, copy_manifests, drop
from tests.control_plane.plane import ADMIN, POD_CONTROLLERS, ControlPlane
from tests.doc_commands import Where, commands
from tests.harness import ROOT
from tests.waiting import WAIT_S, until

pytestmark = [pytest.mark.control_plane, pytest.mark.xdist_group("control_plane")]
PAGE = "docs/kubernetes.md"
MACHINES = ("machine-1", "hybrid-1")  # nodes that pods can run on
NODES = {
    "machine-1": {},
    "hybrid-1": {"eks.amazonaws.com/compute-type": "hybrid"},
    "fargate-1": {"eks.amazonaws.com/compute-type": "fargate"},
    "virtual-1": {"type": "virtual-kubelet"},
}
# kustomize knows these as such; kubectl ignores the namespace of the others.
CLUSTER_WIDE = {"Namespace", "ClusterRole", "ClusterRoleBinding"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ControlPlane]:
    """Of its own, with the controllers that make pods, and nodes of each kind."""
    require(find_built_programs(), "a Kubernetes control plane")
    with ControlPlane(tmp_path / "plane") as plane:
        for name, labels in NODES.items():
            plane.create_machine(name, labels)
        with plane.controllers(*POD_CONTROLLERS):
            yield plane


@pytest.mark.parametrize("by", ["helm install", "kubectl apply"])
def test_its_commands_install_on_a_hardened_cluster(
    cluster: ControlPlane, tmp_path: Path, by: str
) -> None:
    (block,) = [block for block in read_blocks() if by in block]
    for name in ("helm/vitald", "kubernetes"):
        shutil.copytree(ROOT / "packaging" / name, tmp_path / "packaging" / name)
    path = f"{cluster.programs}:{os.environ['PATH']}"
    kubeconfig = cluster.write_kubeconfig(ADMIN)
    done = subprocess.run(
        ["sh", "-euc", block],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "KUBECONFIG": str(kubeconfig)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    wait_for_pods(cluster, "vitald")


@pytest.mark.parametrize("other_rights", ["rbac.yaml", "impersonate.yaml"])
def test_an_overlay_moves_everything_into_its_namespace(
    control_plane: ControlPlane, tmp_path: Path, other_rights: str
) -> None:
    """Every choice of the manifests is in it, and one of the two for rights, and for scrapes."""
    manifests = copy_manifests(tmp_path)
    for folder in (manifests, manifests / "publish"):
        kustomization = folder / "kustomization.yaml"
        text = kustomization.read_text("utf-8")
        kustomization.write_text(re.sub(r"^( *)# (- |components:)", r"\1\2", text, flags=re.M))
    drop(manifests / "publish/kustomization.yaml", other_rights)
    drop(manifests / "kustomization.yaml", "pod-monitor-large-fleet.yaml")
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    content = {"namespace": "gpu-health", "resources": ["../kubernetes"]}
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(content))
    documents = list(yaml.safe_load_all(control_plane.kubectl("kustomize", str(overlay))))
    assert {document["kind"] for document in documents} >= {"NetworkPolicy", "ResourceQuota"}
    elsewhere = {
        document["kind"]
        for document in documents
        if document["metadata"].get("namespace") != "gpu-health"
    }
    assert elsewhere == CLUSTER_WIDE
    subjects = [subject for document in documents for subject in document.get("subjects", ())]
    accounts = [subject for subject in subjects if subject["kind"] == "ServiceAccount"]
    assert {subject["namespace"] for subject in accounts} == {"gpu-health"}


def test_in_another_namespace_it_has_its_rights_and_runs(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    manifests = copy_manifests(tmp_path)
    kustomization = manifests / "kustomization.yaml"
    text = kustomization.read_text("utf-8")
    kustomization.write_text(text.replace("namespace: vitald", "namespace: gpu-health"))
    choose_component(manifests)
    cluster.kubectl("apply", "-k", str(manifests))
    wait_for_pods(cluster, "gpu-health")
    for account in ("vitald", "vitald-sweep"):
        whose = f"--as=system:serviceaccount:gpu-health:{account}"
        answer = cluster.kubectl("auth", "can-i", "patch", "node", "--subresource=status", whose)
        assert answer == "yes\n"


def read_blocks() -> list[str]:
    """The commands of each block, which follow one another in the lines of the page."""
    blocks: list[str] = []
    last = 0
    for command in commands(PAGE, Where.CLUSTER):
        if command.line == last + 1:
            blocks[-1] += f"\n{command.text}"
        else:
            blocks.append(command.text)
        last = command.line
    return blocks


def wait_for_pods(plane: ControlPlane, namespace: str) -> None:
    """One of the DaemonSet on each node that pods can run on, and one of the sweep."""

    def find_nodes(name: str) -> list[str]:
        """ "" for a pod that waits for one."""
        selector = f"labelSelector=app.kubernetes.io/name={name}"
        listed = plane.demand("GET", f"/api/v1/namespaces/{namespace}/pods?{selector}")
        return sorted(pod["spec"].get("nodeName", "") for pod in listed["items"])

    def are_there() -> bool:
        return find_nodes("vitald") == sorted(MACHINES) and len(find_nodes("vitald-sweep")) == 1

    try:
        until(are_there, "the pods")
    except AssertionError as error:
        events = plane.kubectl("-n", namespace, "get", "events", "-o", "wide")
        raise AssertionError(f"{find_nodes('vitald')}: {events}") from error
    sets = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/vitald"
    until(lambda: _read_wanted(plane, sets) == len(MACHINES), "no pod that cannot run")


def _read_wanted(plane: ControlPlane, path: str) -> int:
    status: dict[str, int] = plane.demand("GET", path)["status"]
    return status["desiredNumberScheduled"]


# --- the sample


def test_a_node_is_described_as_on_the_page(node_with_lost_gpu: ClusterNode) -> None:
    described: list[str] = []

    def has_event() -> bool:
        text = node_with_lost_gpu.plane.kubectl("describe", "node", node_with_lost_gpu.name)
        described[:] = pick(text.replace(node_with_lost_gpu.name, "gpu-17"))
        return "opened: reboot the node" in text

    until(has_event, "the Event")
    (shown,) = re.findall(r"^```\n(Name: .*?)^```", (ROOT / PAGE).read_text("utf-8"), re.M | re.S)
    assert normalize(described) == normalize(shown.splitlines()), "\n".join(described)


def pick(text: str) -> list[str]:
    """What vitald wrote."""
    kept = ("Name:", "Labels:", "Conditions:", "  Type ", "Events:")
    return [line for line in text.splitlines() if line.startswith(kept) or "vitald.io/" in line]


def normalize(lines: list[str]) -> list[str]:
    """Without moments, and the widths of columns."""
    moment = r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d [+]0000"
    words = [re.sub(moment, "MOMENT", line) for line in lines]
    words = [re.sub(r"^(  (?:Warning|Normal) +\w+ +)\d+\w+", r"\1AGE", line) for line in words]
    return [" ".join(line.split()) for line in words if line.strip(" .-")]
