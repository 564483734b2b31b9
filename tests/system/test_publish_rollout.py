"""
A rollout of the shipped DaemonSet, on a real API server with its scheduler and controllers: it goes
on only as far as publishers write to their nodes. The kubelets' part is done by this test, with the
shipped readiness probe and a real publisher for each revision.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from tests.control_plane.build import find_built_programs
from tests.control_plane.cluster_node import ClusterNode
from tests.control_plane.manifests import (
    ACCOUNT,
    NAMESPACE,
    apply_manifests,
    choose_component,
    copy_manifests,
)
from tests.control_plane.plane import POD_CONTROLLERS, ControlPlane
from tests.control_plane.publisher import Publisher
from tests.harness import Node
from tests.waiting import until

pytestmark = [pytest.mark.control_plane, pytest.mark.xdist_group("control_plane")]

MACHINES = tuple(f"machine-{number:02}" for number in range(20))
AT_ONCE = 2  # 10 % of them
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
REVISION = "revision"  # an annotation of the pod's template
FIRST, BROKEN, MENDED = "", "broken", "mended"


class Kubelets:
    """Of all machines: they run what the scheduler puts there, end what is deleted, and probe each
    pod. `publishers`: what runs in the pods of each revision.
    """

    def __init__(self, plane: ControlPlane, publishers: dict[str, Publisher]) -> None:
        self._plane, self._publishers = plane, publishers
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Kubelets:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(0.2):
            probed = {
                revision: "False" if publisher.probe_readiness() else "True"
                for revision, publisher in self._publishers.items()
            }
            for pod in list_pods(self._plane):
                self._run_pod(pod, probed[get_revision(pod)])

    def _run_pod(self, pod: dict[str, Any], is_ready: str) -> None:
        path = f"{PODS}/{pod['metadata']['name']}"
        conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
        if "deletionTimestamp" in pod["metadata"]:
            self._plane.call("DELETE", path, {"gracePeriodSeconds": 0})
        elif "nodeName" in pod["spec"] and conditions.get("Ready") != is_ready:
            ready = {"type": "Ready", "status": is_ready}
            status = {"phase": "Running", "conditions": [ready]}
            self._plane.call("PATCH", f"{path}/status", {"status": status})


def list_pods(plane: ControlPlane) -> list[dict[str, Any]]:
    """Those of the DaemonSet."""
    selector = "labelSelector=app.kubernetes.io/name=vitald"
    pods: list[dict[str, Any]] = plane.demand("GET", f"{PODS}?{selector}")["items"]
    return pods


def get_revision(pod: dict[str, Any]) -> str:
    revision: str = pod["metadata"]["annotations"].get(REVISION, FIRST)
    return revision


def count_pods(plane: ControlPlane, revision: str) -> int:
    return sum(get_revision(pod) == revision for pod in list_pods(plane))


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """Of its own, with the shipped manifests and nodes that pods can run on."""
    require(find_built_programs(), "a Kubernetes control plane")
    with ControlPlane(tmp_path / "plane", MACHINES) as plane:
        for name in MACHINES:
            plane.create_machine(name)
        manifests = copy_manifests(tmp_path)
        choose_component(manifests)
        with plane.controllers(*POD_CONTROLLERS), apply_manifests(plane, manifests):
            yield plane


@contextmanager
def publishers(plane: ControlPlane, folder: Path) -> Iterator[dict[str, Publisher]]:
    """One of each revision: the second has another account, whose rights nothing gave it."""
    plane.demand(
        "POST",
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
        {"metadata": {"name": "without-rights"}},
    )
    accounts = {FIRST: ACCOUNT, BROKEN: "without-rights", MENDED: ACCOUNT}
    with Node(folder / "daemon") as daemon:
        made = {
            revision: Publisher(
                folder / f"publisher {revision}",
                daemon,
                ClusterNode(plane, machine),
                token=plane.create_pod_token(machine, NAMESPACE, account),
            )
            for (revision, account), machine in zip(accounts.items(), MACHINES)
        }
        try:
            for publisher in made.values():
                publisher.start()
            yield made
        finally:
            for publisher in made.values():
                publisher.stop()


def test_a_publisher_that_cannot_write_stops_it_at_a_tenth(
    plane: ControlPlane, tmp_path: Path
) -> None:
    with publishers(plane, tmp_path) as running, Kubelets(plane, running):
        assert "successfully rolled out" in await_rollout(plane)
        roll_out(plane, BROKEN)
        until(lambda: count_pods(plane, BROKEN) == AT_ONCE, "the new pods")
        reason = running[BROKEN].probe_readiness()
        assert "403" in reason, reason
        with pytest.raises(subprocess.CalledProcessError) as failed:
            await_rollout(plane, "5s")
        reached = failed.value.stdout.splitlines()[-1]
        assert f"{AT_ONCE} out of {len(MACHINES)} new pods have been updated" in reached
        assert count_pods(plane, FIRST) == len(MACHINES) - AT_ONCE
        roll_out(plane, MENDED)
        assert "successfully rolled out" in await_rollout(plane)
        assert count_pods(plane, MENDED) == len(MACHINES)


def roll_out(plane: ControlPlane, revision: str) -> None:
    template = {"metadata": {"annotations": {REVISION: revision}}}
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/vitald"
    plane.demand("PATCH", path, {"spec": {"template": template}})


def await_rollout(plane: ControlPlane, limit: str = "120s") -> str:
    """What kubectl prints. Raises CalledProcessError after the limit."""
    which = ("-n", NAMESPACE, "rollout", "status", "daemonset/vitald", f"--timeout={limit}")
    return plane.kubectl(*which)
