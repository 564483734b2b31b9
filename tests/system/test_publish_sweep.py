"""
`vitald publish sweep`, and the removal from a whole cluster: no way of leaving leaves a stale word.
With the shipped manifests, a real API server, and the tokens that the pods would have.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.control_plane.cluster_node import (
    HEALTHY,
    REBOOT,
    REPLACEMENT,
    ClusterNode,
    create_cluster_node,
)
from tests.control_plane.manifests import (
    ACCOUNT,
    NAMESPACE,
    apply_manifests,
    choose,
    choose_component,
    copy_manifests,
)
from tests.control_plane.plane import ADMIN, ControlPlane
from tests.control_plane.publisher import Publisher
from tests.harness import PYTHON, ROOT, Node
from tests.system.lines import xid
from tests.waiting import WAIT_S, until
from vitald.cli.publish_cluster import LEASE
from vitald.publish.config import load_config
from vitald.publish.kubernetes.cluster_client import METADATA_PAGE, ClusterClient
from vitald.publish.kubernetes.credentials import ClusterAccess
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.publish.kubernetes.sweep import INTERVAL_S, Lease, Sweep

pytestmark = [pytest.mark.control_plane, pytest.mark.xdist_group("control_plane")]

Json = dict[str, Any]
SWEEP = "vitald-sweep"  # its service account
PODS = "app.kubernetes.io/name=vitald"
OWN_TYPES = (HEALTHY, REBOOT, REPLACEMENT)
TAINT = 'taint = "NoSchedule"\n'
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
FOREIGN: Json = {
    "metadata": {
        "labels": {"vitald.io/monitor": "off"},
        "annotations": {"vitald.io/owner": "another"},
    },
    "status": {"conditions": [{"type": "vitald.io/Site", "status": "True"}]},
}


@pytest.fixture(scope="module")
def plane(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """With the manifests, the right to taint among them."""
    manifests = copy_manifests(tmp_path_factory.mktemp("sweep"))
    choose_component(manifests)
    choose(manifests / "publish/kustomization.yaml", "taint.yaml")
    with apply_manifests(control_plane, manifests):
        wait_for_policy(control_plane)
        yield control_plane


def wait_for_policy(plane: ControlPlane) -> None:
    """The API server takes it up after a moment."""
    with create_cluster_node(plane) as node:
        token = create_sweep_token(plane)

        def is_refused() -> bool:
            body = {"metadata": {"labels": {"example.com/try": uuid.uuid4().hex}}}
            return plane.call("PATCH", f"{node.path}/status", body, token=token)[0] == 422

        until(is_refused, "the policy")


@pytest.fixture
def node_on(plane: ControlPlane, cluster_node: ClusterNode) -> ClusterNode:
    """Another manager has written to it, under our prefix too."""
    path = f"{cluster_node.path}/status?fieldManager=another"
    plane.demand("PATCH", path, FOREIGN)
    return cluster_node


@contextmanager
def publisher_pod(
    node: ClusterNode, containers: Sequence[str] = ("vitald", "publish")
) -> Iterator[None]:
    """As the DaemonSet makes it."""
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    pod = {
        "metadata": {"name": f"daemon-{node.name}", "labels": {"app.kubernetes.io/name": "vitald"}},
        "spec": {
            "nodeName": node.name,
            "serviceAccountName": ACCOUNT,
            "containers": [{"name": name, "image": "vitald"} for name in containers],
        },
    }
    node.plane.demand("POST", pods, pod)
    try:
        yield
    finally:
        gone = {"gracePeriodSeconds": 0}
        node.plane.demand("DELETE", f"{pods}/daemon-{node.name}", gone)


@contextmanager
def running_publisher(folder: Path, node: ClusterNode) -> Iterator[Publisher]:
    """It has published that the node needs a reboot."""
    token = node.plane.create_pod_token(node.name, NAMESPACE, ACCOUNT)
    with Node(folder / "daemon") as daemon:
        daemon.write(xid(79))
        publisher = Publisher(folder / "publisher", daemon, node, token=token, kubernetes=TAINT)
        with publisher:
            node.wait_for_status("False")
            until(lambda: list_taints(node), "the taint")
            try:
                yield publisher
            finally:
                publisher.kill()


@contextmanager
def killed_publisher(folder: Path, node: ClusterNode) -> Iterator[Publisher]:
    """The same, and it was killed."""
    with running_publisher(folder, node) as publisher:
        publisher.kill()
        yield publisher


def list_taints(node: ClusterNode) -> list[str]:
    """Those with our prefix."""
    keys = [taint["key"] for taint in node.read()["spec"].get("taints", ())]
    return [key for key in keys if key.startswith("vitald.io/")]


def describe_foreign(node: ClusterNode) -> Json:
    """What the node has of FOREIGN."""
    return {
        "metadata": {
            "labels": {f"vitald.io/{k}": v for k, v in node.labels.items() if k == "monitor"},
            "annotations": {
                f"vitald.io/{k}": v for k, v in node.annotations.items() if k == "owner"
            },
        },
        "status": {
            "conditions": [
                {"type": type_, "status": each["status"]}
                for type_, each in node.conditions.items()
                if type_ == "vitald.io/Site"
            ]
        },
    }


class Sweeper:
    """The sweep on a clock that the test turns."""

    def __init__(self, plane: ControlPlane, folder: Path, pods: str = PODS) -> None:
        self._plane, self._folder, self._pods = plane, folder, pods
        self._loop = asyncio.new_event_loop()
        self.now = 1000.0
        self.ready_file = folder / "ready"

    def __enter__(self) -> Sweeper:
        token_file = self._folder / "sweep-token"
        token_file.write_text(create_sweep_token(self._plane))
        access = ClusterAccess(
            server=self._plane.server, ca_file=self._plane.certificate, token_file=token_file
        )
        config = self._folder / "sweep.toml"
        config.write_text(f"[kubernetes]\nenabled = true\n{TAINT}")
        self.client = ClusterClient(access, "")
        self._lease = Lease(
            client=self.client, namespace=NAMESPACE, name=LEASE, identity=str(self._folder)
        )
        self._sweep = Sweep(
            self.client,
            load_config(config)[KubernetesSettings],
            self._lease,
            pods=self._pods,
            ready_file=self.ready_file,
            clock=lambda: self.now,
        )
        return self

    def __exit__(self, *_: object) -> None:
        async def leave() -> None:
            await self._lease.release()
            await self.client.__aexit__(None, None, None)

        self._loop.run_until_complete(leave())
        self._loop.close()

    def observe(self, minutes: int) -> None:
        for _ in range(minutes):
            self.now += INTERVAL_S
            self._loop.run_until_complete(self._sweep.check_nodes())


def create_sweep_token(plane: ControlPlane) -> str:
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{SWEEP}/token"
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600},
    }
    token: str = plane.demand("POST", path, request)["status"]["token"]
    return token


@pytest.fixture
def sweeper(plane: ControlPlane, tmp_path: Path) -> Iterator[Sweeper]:
    with Sweeper(plane, tmp_path) as running:
        yield running


def test_many_labels_fit(plane: ControlPlane, node_on: ClusterNode, sweeper: Sweeper) -> None:
    """As many nodes as one page has, with more labels than Node Feature Discovery sets."""
    names = [f"labels-{number}" for number in range(METADATA_PAGE)]
    labels = {f"feature.node.kubernetes.io/name-{number}": "true" for number in range(500)}
    for name in names:
        plane.create_node(name)
        plane.demand("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}})
    try:
        sweeper.observe(1)
    finally:
        for name in names:
            plane.demand("DELETE", f"/api/v1/nodes/{name}")
    assert sweeper.ready_file.exists()


def test_a_silent_publishers_words_become_unknown_until_it_returns(
    node_on: ClusterNode, sweeper: Sweeper, tmp_path: Path
) -> None:
    with publisher_pod(node_on), killed_publisher(tmp_path, node_on) as publisher:
        before = node_on.conditions
        sweeper.observe(15)
        assert node_on.conditions == before
        sweeper.observe(1)
        after = node_on.conditions
        for type_ in OWN_TYPES:
            condition = after[type_]
            assert (condition["status"], condition["reason"]) == ("Unknown", "HeartbeatStale")
            heartbeat = before[type_]["lastHeartbeatTime"]
            assert condition["lastHeartbeatTime"] == heartbeat
        assert (node_on.labels["status"], node_on.labels["action"]) == ("unknown", "none")
        assert "findings" not in node_on.annotations
        assert list_taints(node_on) == ["vitald.io/unhealthy"]  # it may still be unhealthy
        assert describe_foreign(node_on) == FOREIGN
        version = node_on.read()["metadata"]["resourceVersion"]
        sweeper.observe(40)
        assert node_on.read()["metadata"]["resourceVersion"] == version
        publisher.start()
        node_on.wait_for_status("False")
        assert node_on.read_reason() == "Xid79"
        became_unknown = after["vitald.io/Healthy"]["lastTransitionTime"]
        assert node_on.conditions["vitald.io/Healthy"]["lastTransitionTime"] >= became_unknown
        assert node_on.labels["status"] == "unhealthy"
        assert node_on.findings["open"] == 1
    assert sweeper.ready_file.exists()


@dataclass(frozen=True, slots=True)
class Leaving:
    """A way in which a publisher leaves: what ends it, and the containers of its pod, which are
    none where the pod is gone.
    """

    end: Callable[[Publisher], object]
    containers: Sequence[str] = ("vitald", "publish")


WAYS = {
    "it was killed": Leaving(Publisher.kill),
    "it was stopped and does not come back": Leaving(Publisher.stop),
    "it hangs": Leaving(lambda publisher: publisher.send(signal.SIGSTOP)),
    "its token is no longer valid": Leaving(lambda publisher: publisher.write_token("revoked")),
    "its pod is not wanted on this node": Leaving(Publisher.stop, ()),
    "the component was taken out": Leaving(Publisher.stop, ("vitald",)),
}


@pytest.mark.parametrize("way", WAYS)
def test_whichever_way_it_leaves_no_word_gets_old(
    node_on: ClusterNode, sweeper: Sweeper, tmp_path: Path, way: str
) -> None:
    leaving = WAYS[way]
    pod = publisher_pod(node_on, leaving.containers) if leaving.containers else nullcontext()
    with pod, running_publisher(tmp_path, node_on) as publisher:
        leaving.end(publisher)
        sweeper.observe(15)
        assert node_on.read_status() == "False"
        sweeper.observe(1)
    words = node_on.labels
    statuses = {type_: each["status"] for type_, each in node_on.conditions.items()}
    if "publish" in leaving.containers:
        assert words == {"monitor": "off", "status": "unknown", "action": "none"}
        assert statuses == {"vitald.io/Site": "True", **dict.fromkeys(OWN_TYPES, "Unknown")}
    else:
        assert words == {"monitor": "off"}
        assert statuses == {"vitald.io/Site": "True"}
        assert list_taints(node_on) == []
    assert node_on.annotations == {"owner": "another"}


def test_publishers_on_hosts_are_not_missed_as_pods(
    node_on: ClusterNode, plane: ControlPlane, tmp_path: Path
) -> None:
    with Sweeper(plane, tmp_path, pods="") as sweeper, killed_publisher(tmp_path, node_on):
        sweeper.observe(16)
        assert node_on.read_reason() == "HeartbeatStale"


def test_a_pod_that_was_evicted_is_still_to_run(
    node_on: ClusterNode, sweeper: Sweeper, tmp_path: Path
) -> None:
    with publisher_pod(node_on), killed_publisher(tmp_path, node_on):
        pod = f"/api/v1/namespaces/{NAMESPACE}/pods/daemon-{node_on.name}/status"
        node_on.plane.demand("PATCH", pod, {"status": {"phase": "Failed", "reason": "Evicted"}})
        sweeper.observe(16)
        assert node_on.read_reason() == "HeartbeatStale"


def test_a_node_whose_pod_goes_after_its_publisher_is_retired_too(
    node_on: ClusterNode, sweeper: Sweeper, tmp_path: Path
) -> None:
    with killed_publisher(tmp_path, node_on):
        with publisher_pod(node_on):
            sweeper.observe(16)
        assert node_on.read_reason() == "HeartbeatStale"
        sweeper.observe(16)
    assert node_on.conditions.keys() == {"vitald.io/Site"}
    assert node_on.labels == {"monitor": "off"}


def test_a_heartbeat_is_a_sign_of_life(
    node_on: ClusterNode, sweeper: Sweeper, tmp_path: Path
) -> None:
    """Whatever the time in it is."""
    with publisher_pod(node_on), killed_publisher(tmp_path, node_on):
        for heartbeat in ("2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z"):
            sweeper.observe(10)
            wait_for_next_second()
            condition = {"type": "vitald.io/Healthy", "lastHeartbeatTime": heartbeat}
            path = f"{node_on.path}/status?fieldManager=vitald"
            node_on.plane.demand("PATCH", path, {"status": {"conditions": [condition]}})
        sweeper.observe(10)
        assert node_on.read_status() == "False"


def wait_for_next_second() -> None:
    """The API server's record has whole seconds."""
    second = int(time.time())
    until(lambda: int(time.time()) > second)


def test_only_observed_time_counts(node_on: ClusterNode, sweeper: Sweeper, tmp_path: Path) -> None:
    """An outage of the API server, after which all publishers have been silent for long."""
    with publisher_pod(node_on), killed_publisher(tmp_path, node_on):
        sweeper.observe(10)
        sweeper.now += 3600.0
        sweeper.observe(15)
        assert node_on.read_status() == "False"
        sweeper.observe(1)
        assert node_on.read_status() == "Unknown"


def test_what_the_api_server_refuses_of_one_node_is_tried_again(
    node_on: ClusterNode, sweeper: Sweeper, tmp_path: Path
) -> None:
    """With a right taken away, it is not ready."""
    with publisher_pod(node_on), killed_publisher(tmp_path, node_on):
        sweeper.observe(15)
        sweeper.ready_file.unlink()
        rules = "/apis/rbac.authorization.k8s.io/v1/clusterroles/vitald-sweep"
        role = node_on.plane.demand("GET", rules)
        reading = [rule for rule in role["rules"] if rule["resources"] == ["nodes"]]
        node_on.plane.demand("PATCH", rules, {"rules": reading})
        sweeper.observe(1)
        assert node_on.read_status() == "False"
        assert not sweeper.ready_file.exists()
        node_on.plane.demand("PATCH", rules, {"rules": role["rules"]})
        until(lambda: sweep_may_patch(node_on, sweeper))
        sweeper.observe(1)
        assert node_on.read_status() == "Unknown"
        assert sweeper.ready_file.exists()


def sweep_may_patch(node: ClusterNode, sweeper: Sweeper) -> bool:
    token = create_sweep_token(node.plane)
    return node.plane.call("PATCH", f"{node.path}/status", {"metadata": {}}, token=token)[0] == 200


# --- its rights


def of_condition(**fields: str) -> Json:
    moment = "2026-01-01T00:00:00Z"
    condition = {
        "type": "vitald.io/Healthy",
        "status": "Unknown",
        "reason": "HeartbeatStale",
        "message": "",
        "lastTransitionTime": moment,
        "lastHeartbeatTime": moment,
    }
    return {"status": {"conditions": [{**condition, **fields}]}}


REFUSED: dict[str, Json] = {
    "that a node is healthy": of_condition(status="True"),
    "another reason": of_condition(reason="Xid79"),
    "a foreign condition": of_condition(type="vitald.io/Site"),
    "Ready": of_condition(type="Ready"),
    "a healthy label": {"metadata": {"labels": {"vitald.io/status": "healthy"}}},
    "a repair": {"metadata": {"labels": {"vitald.io/action": "replace_node"}}},
    "a foreign label": {"metadata": {"labels": {"vitald.io/monitor": "none"}}},
    "the end of a foreign label": {"metadata": {"labels": {"vitald.io/monitor": None}}},
    "findings": {"metadata": {"annotations": {"vitald.io/findings": "[]"}}},
    "the end of a foreign annotation": {"metadata": {"annotations": {"vitald.io/owner": None}}},
    "capacity": {"status": {"capacity": {"cpu": "8"}}},
}


@pytest.mark.parametrize("what", REFUSED)
def test_the_policy_lets_it_say_nothing_else(node_on: ClusterNode, what: str) -> None:
    plane, path = node_on.plane, f"{node_on.path}/status?fieldManager=vitald"
    token = create_sweep_token(plane)
    status, answer = plane.call("PATCH", path, REFUSED[what], token=token)
    assert status == 422, answer


@pytest.mark.parametrize(
    "spec",
    [
        {"unschedulable": True},
        {"taints": [{"key": "vitald.io/unhealthy", "value": "inspect", "effect": "NoSchedule"}]},
    ],
)
def test_with_the_right_to_taint_it_only_removes(node_on: ClusterNode, spec: Json) -> None:
    token = create_sweep_token(node_on.plane)
    status, answer = node_on.plane.call("PATCH", node_on.path, {"spec": spec}, token=token)
    assert status == 422, answer


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/namespaces/kube-system/pods"),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets"),
        ("DELETE", "/api/v1/nodes/no-node"),
        ("GET", f"{LEASES}/another"),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"),
        ("POST", "/apis/events.k8s.io/v1/namespaces/default/events"),
    ],
)
def test_it_has_no_other_rights(plane: ControlPlane, method: str, path: str) -> None:
    body: Json | None = {} if method == "POST" else None
    assert plane.call(method, path, body, token=create_sweep_token(plane))[0] == 403


# --- the process


@contextmanager
def running_sweep(plane: ControlPlane, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir(exist_ok=True)
    command = [PYTHON, "-m", "vitald", "publish", "sweep", "--pods", PODS]
    config = write_config(plane, folder, create_sweep_token(plane))
    with subprocess.Popen(
        [*command, "--config", str(config)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "agent"), "POD_NAMESPACE": NAMESPACE},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def write_config(plane: ControlPlane, folder: Path, token: str) -> Path:
    (folder / "token").write_text(token)
    config = folder / "publish.toml"
    config.write_text(
        f'[paths]\nruntime = "{folder}"\n[kubernetes]\nenabled = true\nserver = "{plane.server}"\n'
        f'ca = "{plane.certificate}"\ntoken_file = "{folder}/token"\n'
    )
    return config


def read_holder(plane: ControlPlane) -> str:
    _, lease = plane.call("GET", f"{LEASES}/{LEASE}")
    return str(lease.get("spec", {}).get("holderIdentity", ""))


def test_one_of_two_processes_holds_the_lease_and_gives_it_up(
    plane: ControlPlane, tmp_path: Path
) -> None:
    first_ready, second_ready = (tmp_path / name / "sweep" for name in ("first", "second"))
    with running_sweep(plane, tmp_path / "first") as first:
        until(first_ready.exists, "the first to be ready")
        until(lambda: read_holder(plane), "a leader")
        leader = read_holder(plane)
        with running_sweep(plane, tmp_path / "second") as second:
            until(second_ready.exists, "the second to be ready")
            assert read_holder(plane) == leader
            second.terminate()
            assert second.wait(WAIT_S) == 0
        assert read_holder(plane) == leader
        first.terminate()
        assert first.wait(WAIT_S) == 0
    assert read_holder(plane) == ""


def test_a_leader_that_died_is_followed(plane: ControlPlane, tmp_path: Path) -> None:
    (tmp_path / "follower").mkdir()
    with Sweeper(plane, tmp_path / "follower") as follower:
        with running_sweep(plane, tmp_path / "leader") as leader:
            until(lambda: read_holder(plane), "a leader")
            leader.kill()
        died = read_holder(plane)
        follower.observe(3)
        assert read_holder(plane) == died
        follower.observe(1)
        assert read_holder(plane) == str(tmp_path / "follower")


# --- a person


@dataclass(frozen=True, slots=True)
class Retiring:
    plane: ControlPlane

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [PYTHON, "-m", "vitald", "publish", "kubernetes", "--retire", "--all-nodes"]
        programs = f"{self.plane.programs}:{os.environ['PATH']}"
        return subprocess.run(
            [*command, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT / "agent"), "PATH": programs},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )


def test_a_person_removes_it_with_a_kubeconfig(node_on: ClusterNode, tmp_path: Path) -> None:
    retiring = Retiring(node_on.plane)
    kubeconfig = str(node_on.plane.write_kubeconfig(ADMIN))
    with killed_publisher(tmp_path, node_on):
        before = node_on.read()
        tried = retiring.run("--kubeconfig", kubeconfig, "--dry-run")
        assert tried.returncode == 0, tried.stderr
        assert node_on.read() == before
        (line,) = [each for each in tried.stdout.splitlines() if each.startswith(node_on.name)]
        for name in ("condition vitald.io/Healthy", "label vitald.io/status", "taint vitald.io/"):
            assert name in line
        assert "would remove what vitald wrote from 1 of " in tried.stdout
        done = retiring.run("--kubeconfig", kubeconfig, "--revoke", "vitald-no-such-binding")
        assert done.returncode == 0, done.stderr
    assert node_on.conditions.keys() == {"vitald.io/Site"}
    assert list_taints(node_on) == []
    assert describe_foreign(node_on) == FOREIGN


def test_the_sweeps_own_rights_are_enough_to_remove_it(
    node_on: ClusterNode, tmp_path: Path
) -> None:
    """kubectl exec deployment/vitald-sweep -- vitald publish kubernetes --retire --all-nodes"""
    plane = node_on.plane
    with killed_publisher(tmp_path, node_on):
        config = write_config(plane, tmp_path, create_sweep_token(plane))
        done = Retiring(plane).run("--config", str(config))
        assert done.returncode == 0, done.stderr
    assert node_on.conditions.keys() == {"vitald.io/Site"}
    assert list_taints(node_on) == []


def test_a_kubeconfig_that_is_not_there_is_named(plane: ControlPlane) -> None:
    done = Retiring(plane).run("--kubeconfig", "/no/such/file")
    assert (done.returncode, "/no/such/file" in done.stderr) == (69, True), done.stderr
