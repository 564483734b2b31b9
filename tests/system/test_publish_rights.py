"""
The rights of `vitald publish` in a cluster: the shipped manifests are applied to a real API server,
the publisher writes with the token of its pod, and what is not its own is refused.
"""

from __future__ import annotations

import os
import re
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.control_plane.manifests import (
    ACCOUNT,
    KUBERNETES,
    NAMESPACE,
    apply_manifests,
    choose,
    choose_component,
    copy_manifests,
    drop,
)
from tests.control_plane.plane import MERGE, ControlPlane
from tests.control_plane.publisher import probe_readiness
from tests.harness import PYTHON, ROOT, Node
from tests.system.lines import xid
from tests.waiting import until
from vitald.publish.kubernetes.node_object import MANAGER

pytestmark = [pytest.mark.control_plane, pytest.mark.xdist_group("control_plane")]

Json = dict[str, Any]
OWN, OTHER = "rights-own", "rights-other"
REFUSED_BY_POLICY, REFUSED_BY_RBAC = 422, 403
HEALTHY = {
    "type": "vitald.io/Healthy",
    "status": "True",
    "reason": "Healthy",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
    "lastHeartbeatTime": "2026-01-01T00:00:00Z",
}
OWN_LABELS = ("vitald.io/status", "vitald.io/action")
NOTE = "an event of a test"
FOREIGN_TAINT = {"key": "example.com/maintenance", "effect": "NoSchedule"}
OWN_TAINT = {"key": "vitald.io/unhealthy", "value": "inspect", "effect": "NoSchedule"}


@dataclass(frozen=True, slots=True)
class Deployed:
    """The manifests in a cluster, with a pod on OWN."""

    plane: ControlPlane
    token: str
    user: str = ""  # to impersonate
    may_taint: bool = False

    def call(self, method: str, path: str, body: object = None, **how: Any) -> tuple[int, Json]:
        headers = {"Impersonate-User": self.user} if self.user else None
        return self.plane.call(method, path, body, token=self.token, headers=headers, **how)

    def patch_status(self, body: Json, node: str = OWN) -> int:
        path = f"/api/v1/nodes/{node}/status?fieldManager={MANAGER}"
        return self.call("PATCH", path, body)[0]

    def patch_node(self, body: Json, node: str = OWN) -> int:
        path = f"/api/v1/nodes/{node}?fieldManager={MANAGER}"
        return self.call("PATCH", path, body, content_type=MERGE)[0]

    def create_event(self, node: str = OWN) -> tuple[int, Json]:
        return self.create_event_about("default", {"kind": "Node", "name": node})

    def create_event_about(self, namespace: str, regarding: Json) -> tuple[int, Json]:
        return self.call(
            "POST",
            f"/apis/events.k8s.io/v1/namespaces/{namespace}/events",
            {
                "apiVersion": "events.k8s.io/v1",
                "kind": "Event",
                "metadata": {"name": f"rights.{uuid.uuid4().hex[:16]}", "namespace": namespace},
                "eventTime": "2026-01-01T00:00:00.000000Z",
                "reportingController": "vitald",
                "reportingInstance": OWN,
                "action": "Opened",
                "reason": "Xid79",
                "type": "Warning",
                "note": NOTE,
                "regarding": {"apiVersion": "v1", **regarding},
            },
        )


@pytest.fixture(scope="module")
def nodes(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Two nodes that others have written to."""
    for name in (OWN, OTHER):
        control_plane.create_node(name)
        control_plane.demand(
            "PATCH",
            f"/api/v1/nodes/{name}/status",
            {
                "metadata": {
                    "labels": {"example.com/zone": "a", "vitald.io/site": "b"},
                    "annotations": {"example.com/note": "b"},
                },
                "status": {
                    "capacity": {"cpu": "8"},
                    "conditions": [{**HEALTHY, "type": "Ready"}],
                },
            },
        )
    yield control_plane
    for name in (OWN, OTHER):
        control_plane.demand("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture(scope="module")
def deployed(
    nodes: ControlPlane,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Deployed]:
    """The manifests with the component, and the rights that the parameter names."""
    manifests = copy_manifests(tmp_path_factory.mktemp(request.param))
    choose_component(manifests)
    rights = manifests / "publish/kustomization.yaml"
    if request.param == "impersonation":
        drop(rights, "rbac.yaml")
        choose(rights, "impersonate.yaml")
    elif request.param == "taint":
        choose(rights, "taint.yaml")
    with apply_manifests(nodes, manifests):
        token = nodes.create_pod_token(OWN, NAMESPACE, ACCOUNT)
        if request.param == "impersonation":
            yield Deployed(nodes, token, f"system:node:{OWN}")
        else:
            may_taint = request.param == "taint"
            yield wait_for_policy(Deployed(nodes, token, may_taint=may_taint))


def under(*rights: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("deployed", rights, indirect=True, scope="module")


limited, tainting, impersonating = under("policy"), under("taint"), under("impersonation")


def wait_for_policy(deployed: Deployed) -> Deployed:
    """The API server takes a new policy up after a moment, and a new role after another."""

    def is_refused() -> bool:
        changed = of_metadata(labels={"example.com/try": uuid.uuid4().hex})
        event, _ = deployed.create_event(OTHER)
        return deployed.patch_status(changed) == event == REFUSED_BY_POLICY

    until(is_refused)
    removal = of_metadata(labels={"example.com/try": None})
    deployed.plane.demand("PATCH", f"/api/v1/nodes/{OWN}", removal)
    return deployed


# --- the admission policy


def of_status(**fields: Any) -> Json:
    return {"status": fields}


def of_metadata(**fields: Any) -> Json:
    return {"metadata": fields}


def of_own_condition(**fields: str) -> Json:
    return of_status(conditions=[{**HEALTHY, **fields}])


FOREIGN = {
    "a foreign label": of_metadata(labels={"node-role.kubernetes.io/control-plane": ""}),
    "another value of a foreign label": of_metadata(labels={"example.com/zone": "b"}),
    "a foreign label away": of_metadata(labels={"example.com/zone": None}),
    "a foreign annotation": of_metadata(annotations={"example.com/other": "x"}),
    "another value of a foreign annotation": of_metadata(annotations={"example.com/note": "x"}),
    "a foreign annotation away": of_metadata(annotations={"example.com/note": None}),
    "a label whose prefix only begins so": of_metadata(labels={"vitald.iox/status": "healthy"}),
    "an order to recovery": of_metadata(labels={"vitald.io/recovery": "replace"}),
    "another label with the prefix": of_metadata(labels={"vitald.io/monitor": "off"}),
    "another annotation with the prefix": of_metadata(annotations={"vitald.io/drained": "x"}),
    "another condition with the prefix": of_status(
        conditions=[{**HEALTHY, "type": "vitald.io/Other"}]
    ),
    "an administrator's label with the prefix away": of_metadata(labels={"vitald.io/site": None}),
    "a word that it does not know": of_metadata(labels={"vitald.io/status": "x"}),
    "the word of another label": of_metadata(labels={"vitald.io/action": "healthy"}),
    "a label of a profile that is not chosen": of_metadata(
        labels={"sagemaker.amazonaws.com/node-health-status": "Schedulable"}
    ),
    "a long annotation": of_metadata(annotations={"vitald.io/findings": "x" * 8193}),
    "a long message": of_own_condition(message="x" * 1025),
    "a long message in few letters": of_own_condition(message="ä" * 513),
    "a long reason": of_own_condition(reason="x" * 64),
    "a sentence for a reason": of_own_condition(reason="all is well"),
    "no status": of_own_condition(status="Maybe"),
    "a heartbeat of the year 2099": of_own_condition(lastHeartbeatTime="2099-01-01T00:00:00Z"),
    "a transition of the year 2099": of_own_condition(lastTransitionTime="2099-01-01T00:00:00Z"),
    "a finalizer": of_metadata(finalizers=["example.com/keep"]),
    "an owner": of_metadata(
        ownerReferences=[{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b"}]
    ),
    "Ready": of_status(conditions=[{**HEALTHY, "type": "Ready", "status": "False"}]),
    "Ready away": of_status(conditions=[{"type": "Ready", "$patch": "delete"}]),
    "a foreign condition": of_status(conditions=[{**HEALTHY, "type": "KernelDeadlock"}]),
    "the capacity": of_status(capacity={"cpu": "80"}),
    "a further resource": of_status(capacity={"nvidia.com/gpu": "8"}),
    "a new field of the status": of_status(volumesInUse=["a"]),
    "the capacity away": of_status(capacity=None),
}


@pytest.mark.parametrize("what", FOREIGN)
@limited
def test_the_policy_refuses_what_is_not_its_own(deployed: Deployed, what: str) -> None:
    before = deployed.plane.read_node(OWN)
    assert deployed.patch_status(FOREIGN[what]) == REFUSED_BY_POLICY
    after = deployed.plane.read_node(OWN)
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


@limited
def test_the_policy_lets_it_write_and_remove_its_own(deployed: Deployed) -> None:
    own = {
        **of_metadata(
            labels={"vitald.io/status": "healthy", "vitald.io/action": "reset_device"},
            annotations={"vitald.io/findings": "x" * 8192},
        ),
        **of_status(
            conditions=[
                {**HEALTHY, "reason": "x" * 63, "message": "ä" * 512},
                {**HEALTHY, "type": "vitald.io/RebootRequired", "status": "Unknown"},
            ]
        ),
    }
    assert deployed.patch_status(own) == 200
    removal = {
        **of_metadata(
            labels={"vitald.io/status": None, "vitald.io/action": None},
            annotations={"vitald.io/findings": None},
        ),
        **of_status(
            conditions=[
                {"type": type_, "$patch": "delete"}
                for type_ in (HEALTHY["type"], "vitald.io/RebootRequired")
            ]
        ),
    }
    assert deployed.patch_status(removal) == 200
    assert list_own_names(deployed.plane.read_node(OWN)) == ["vitald.io/site"]


@limited
def test_the_policy_lets_it_remove_what_it_alone_wrote(deployed: Deployed) -> None:
    """With another prefix or other conditions, before the configuration was changed."""
    former = {
        **of_metadata(labels={"old.example/status": "x"}, annotations={"old.example/found": "x"}),
        **of_status(conditions=[{**HEALTHY, "type": "KernelReady"}]),
    }
    path = f"/api/v1/nodes/{OWN}/status"
    deployed.plane.demand("PATCH", f"{path}?fieldManager=vitald", former)
    changed = of_status(conditions=[{**HEALTHY, "type": "KernelReady", "status": "False"}])
    assert deployed.patch_status(changed) == REFUSED_BY_POLICY
    assert deployed.patch_status(of_metadata(labels={"old.example/status": "y"})) == (
        REFUSED_BY_POLICY
    )
    # Another agent takes the condition over.
    deployed.plane.demand("PATCH", f"{path}?fieldManager=agent", changed)
    condition = of_status(conditions=[{"type": "KernelReady", "$patch": "delete"}])
    assert deployed.patch_status(condition) == REFUSED_BY_POLICY
    deployed.plane.demand("PATCH", path, condition)
    deployed.plane.demand("PATCH", f"{path}?fieldManager=vitald", former)
    for removal in (
        condition,
        of_metadata(labels={"old.example/status": None}),
        of_metadata(annotations={"old.example/found": None}),
    ):
        assert deployed.patch_status(removal) == 200, removal


def without_managers(node: Json) -> Json:
    return {**node, "metadata": {**node["metadata"], "managedFields": None}}


def list_own_names(node: Json) -> list[str]:
    """Those with the prefix, of any kind."""
    return re.findall("vitald[.]io/[A-Za-z]+", str(without_managers(node)))


@limited
def test_the_policy_refuses_other_nodes(deployed: Deployed) -> None:
    assert deployed.patch_status(of_status(conditions=[HEALTHY]), OTHER) == REFUSED_BY_POLICY
    for namespace, regarding in (
        ("default", {"kind": "Node", "name": OTHER}),
        ("default", {"kind": "Pod", "name": OWN, "namespace": "default"}),
        ("kube-system", {"kind": "Pod", "name": OWN, "namespace": "kube-system"}),
        ("kube-system", {"kind": "Node", "name": OWN}),
    ):
        status, answer = deployed.create_event_about(namespace, regarding)
        assert status == REFUSED_BY_POLICY
        assert "vitald creates Events of the node that its pod runs on" in answer["message"]
    status, event = deployed.create_event(OWN)
    assert status == 201, event


@limited
def test_a_token_without_a_node_may_change_nothing(deployed: Deployed) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    unbound = deployed.plane.demand("POST", path, request)["status"]["token"]
    anywhere = Deployed(deployed.plane, unbound)
    assert anywhere.patch_status(of_status(conditions=[HEALTHY])) == REFUSED_BY_POLICY
    assert anywhere.create_event()[0] == REFUSED_BY_POLICY


@limited
def test_it_has_no_other_rights(deployed: Deployed) -> None:
    for method, path in (
        ("DELETE", f"/api/v1/nodes/{OWN}"),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/pods"),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps"),
        ("GET", "/apis/events.k8s.io/v1/events"),
        ("PUT", f"/api/v1/nodes/{OWN}/status"),
        ("POST", "/api/v1/namespaces/default/events"),
    ):
        body = {} if method in ("PUT", "POST") else None
        assert deployed.call(method, path, body)[0] == REFUSED_BY_RBAC, (method, path)
    assert deployed.patch_node(of_metadata(labels={"vitald.io/status": "x"})) == REFUSED_BY_RBAC
    assert deployed.patch_node({"spec": {"taints": [OWN_TAINT]}}) == REFUSED_BY_RBAC


# --- taints


TAINTS_REFUSED: dict[str, Json] = {
    "a foreign taint away": {"taints": [OWN_TAINT]},
    "another foreign taint": {"taints": [FOREIGN_TAINT, {"key": "a/b", "effect": "NoSchedule"}]},
    "another effect of a foreign taint": {
        "taints": [{**FOREIGN_TAINT, "effect": "PreferNoSchedule"}]
    },
    "pods off the node": {"taints": [FOREIGN_TAINT, {**OWN_TAINT, "effect": "NoExecute"}]},
    "a value that is no action": {"taints": [FOREIGN_TAINT, {**OWN_TAINT, "value": "x"}]},
    "the node cordoned": {"unschedulable": True},
    "the provider": {"providerID": "x"},
}


@pytest.fixture
def foreign_taint(nodes: ControlPlane) -> Iterator[None]:
    nodes.demand("PATCH", f"/api/v1/nodes/{OWN}", {"spec": {"taints": [FOREIGN_TAINT]}})
    yield
    spec = {"taints": None}
    nodes.demand("PATCH", f"/api/v1/nodes/{OWN}", {"spec": spec}, content_type=MERGE)


@tainting
@pytest.mark.usefixtures("foreign_taint")
def test_with_the_right_to_taint_it_changes_only_its_own_taint(deployed: Deployed) -> None:
    assert deployed.patch_node({"spec": {"taints": [FOREIGN_TAINT, OWN_TAINT]}}) == 200
    assert deployed.patch_node({"spec": {"taints": [FOREIGN_TAINT]}}) == 200
    other = {"spec": {"taints": [OWN_TAINT]}}
    assert deployed.patch_node(other, OTHER) == REFUSED_BY_POLICY
    foreign_label = of_metadata(labels={"example.com/zone": "b"})
    assert deployed.patch_node(foreign_label) == REFUSED_BY_POLICY


@pytest.mark.parametrize("what", TAINTS_REFUSED)
@tainting
@pytest.mark.usefixtures("foreign_taint")
def test_with_the_right_to_taint_the_rest_is_refused(deployed: Deployed, what: str) -> None:
    assert deployed.patch_node({"spec": TAINTS_REFUSED[what]}) == REFUSED_BY_POLICY


# --- impersonation


@impersonating
def test_impersonation_is_for_its_own_node_only(deployed: Deployed) -> None:
    own = of_status(conditions=[HEALTHY])
    assert deployed.patch_status(own) == 200
    assert deployed.create_event()[0] == 201
    assert deployed.patch_status(own, OTHER) == REFUSED_BY_RBAC
    plane, token = deployed.plane, deployed.token
    assert Deployed(plane, token).patch_status(own) == REFUSED_BY_RBAC
    for user in (f"system:node:{OTHER}", "admin", "system:kube-scheduler"):
        forged = Deployed(plane, token, user)
        assert forged.patch_status(own, OTHER) == REFUSED_BY_RBAC, user
        assert forged.call("GET", f"/api/v1/nodes/{OTHER}")[0] == REFUSED_BY_RBAC, user


@impersonating
def test_impersonation_is_for_its_own_requests_only(deployed: Deployed) -> None:
    """Of those that a kubelet may make."""
    for method, path in (
        ("GET", "/api/v1/nodes"),
        ("GET", "/api/v1/pods"),
        ("PUT", f"/api/v1/nodes/{OWN}/status"),
        ("PATCH", f"/api/v1/nodes/{OWN}"),
        ("DELETE", f"/api/v1/nodes/{OWN}"),
        ("POST", "/api/v1/namespaces/default/events"),
        ("GET", f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{OWN}"),
    ):
        body = None if method in ("GET", "DELETE") else {}
        assert deployed.call(method, path, body)[0] == REFUSED_BY_RBAC, (method, path)


@impersonating
def test_impersonation_does_not_limit_what_is_written_to_its_own_node(deployed: Deployed) -> None:
    """As packaging/container/README.md says of it."""
    ready = {**HEALTHY, "type": "Ready"}
    for status in ("False", "True"):
        assert deployed.patch_status(of_status(conditions=[{**ready, "status": status}])) == 200
    assert deployed.patch_status(of_metadata(labels={"example.com/zone": "a"})) == 200
    assert deployed.create_event(OTHER)[0] == 201
    pod = {"kind": "Pod", "name": "any", "namespace": "kube-system"}
    status, answer = deployed.create_event_about("kube-system", pod)
    assert status == 201, answer


# --- the publisher itself


@under("policy", "taint", "impersonation")
def test_the_publisher_writes_all_that_it_is_told_to(deployed: Deployed, tmp_path: Path) -> None:
    """With the shipped configuration, as far as it does not name places in a pod."""
    with Node(tmp_path / "daemon") as daemon:
        config = write_config(tmp_path, deployed, daemon)
        with subprocess.Popen(
            [PYTHON, "-m", "vitald", "publish", "--config", str(config)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "agent"), "NODE_NAME": OWN},
        ) as process:
            try:
                until(lambda: says(deployed, "True", "healthy"))
                until(lambda: list_down(daemon) == [], lambda: str(list_down(daemon)))
                daemon.write(xid(79))
                until(lambda: says(deployed, "False", "unhealthy"))
                until(lambda: "Xid79" in list_event_reasons(deployed.plane))
                if deployed.may_taint:
                    until(lambda: OWN_TAINT["key"] in list_taints(deployed.plane))
            finally:
                process.terminate()
    node = deployed.plane.read_node(OWN)
    assert "Xid" in node["metadata"]["annotations"]["vitald.io/findings"].title()
    assert list_own_names(deployed.plane.read_node(OTHER)) == ["vitald.io/site"]


@limited
def test_what_a_policy_refuses_does_not_stop_the_rest(deployed: Deployed, tmp_path: Path) -> None:
    """A profile that the shipped policy does not list, and labels that another does not allow."""
    with Node(tmp_path / "daemon") as daemon, forbid_labels(deployed):
        config = write_config(tmp_path, deployed, daemon, 'conditions = ["own", "eks"]\n')
        ready = tmp_path / "ready"
        with subprocess.Popen(
            [*(PYTHON, "-m", "vitald", "publish", "--config", config), "--ready-file", ready],
            env={**os.environ, "PYTHONPATH": str(ROOT / "agent"), "NODE_NAME": OWN},
        ) as process:
            try:
                until(lambda: list_refused(daemon) == ["labels", "eks"])
                assert read_healthy(deployed) == "True"
                daemon.write(xid(79))
                until(lambda: read_healthy(deployed) == "False")
                until(lambda: not probe_readiness(ready))
                status, metrics = daemon.cli("status").stdout, daemon.metrics()
            finally:
                process.terminate()
        node = deployed.plane.read_node(OWN)
        assert "vitald.io/status" not in node["metadata"]["labels"]
        assert "Xid" in node["metadata"]["annotations"]["vitald.io/findings"].title()
        assert not {each["type"] for each in node["status"]["conditions"]} & {"KernelReady"}
        assert "publishing to kubernetes: PARTLY, without labels, eks: " in status
        assert "denied request: no labels here: change what refuses it" in status
        assert 'vitald_publish_refused{content="eks",sink="kubernetes"} 1.0' in metrics


@contextmanager
def forbid_labels(deployed: Deployed) -> Iterator[None]:
    """A policy of the site's own, which takes effect after a moment."""
    plane, name = deployed.plane, "no-labels"
    kinds = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"]}
    expression = f"!object.metadata.labels.exists(k, k in {[*OWN_LABELS]})"
    policy = {
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [{**rule, "resources": ["nodes/status"]}]},
            "validations": [{"expression": expression, "message": "no labels here"}],
        },
    }
    binding = {
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    label = of_metadata(labels={"vitald.io/status": "healthy"})
    plane.demand("PATCH", f"/api/v1/nodes/{OWN}", of_metadata(labels=dict.fromkeys(OWN_LABELS)))
    plane.demand("POST", f"{kinds}ies", policy)
    try:
        plane.demand("POST", f"{kinds}ybindings", binding)
        until(lambda: deployed.patch_status(label) == REFUSED_BY_POLICY)
        plane.demand("PATCH", f"/api/v1/nodes/{OWN}", of_metadata(labels=dict.fromkeys(OWN_LABELS)))
        yield
    finally:
        plane.call("DELETE", f"{kinds}ybindings/{name}")
        plane.call("DELETE", f"{kinds}ies/{name}")


def list_down(daemon: Node) -> list[Json]:
    """The sinks that have not succeeded."""
    publishers = daemon.get("/v1/status")["publishers"]
    return [sink for sink in publishers["sinks"] if not sink["up"]] if publishers else [{}]


def list_refused(daemon: Node) -> list[str]:
    """The parts of the node's state that are not written."""
    publishers = daemon.get("/v1/status")["publishers"]
    sinks = publishers["sinks"] if publishers else ()
    return [part for sink in sinks if sink["name"] == "kubernetes" for part in sink["refused"]]


def read_healthy(deployed: Deployed) -> str:
    found = deployed.plane.read_node(OWN)["status"].get("conditions", ())
    return next((one["status"] for one in found if one["type"] == HEALTHY["type"]), "")


def list_taints(plane: ControlPlane) -> list[str]:
    return [taint["key"] for taint in plane.read_node(OWN)["spec"].get("taints", ())]


def list_event_reasons(plane: ControlPlane) -> set[str]:
    """Of those that the publisher of OWN created."""
    events = plane.demand("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    return {
        each["reason"]
        for each in events
        if each["regarding"].get("name") == OWN and each.get("note") != NOTE
    }


def write_config(folder: Path, deployed: Deployed, daemon: Node, more: str = "") -> Path:
    token = folder / "token"
    token.write_text(deployed.token)
    text = (KUBERNETES / "publish/publish.toml").read_text("utf-8")
    for shipped, here in (
        ('"/run/vitald"', f'"{daemon.runtime}"'),
        ('"/var/lib/vitald-publish"', f'"{folder}/state"'),
    ):
        assert shipped in text
        text = text.replace(shipped, here)
    plane = deployed.plane
    text += f'server = "{plane.server}"\nca = "{plane.certificate}"\ntoken_file = "{token}"\n'
    text += f"impersonate = {str(bool(deployed.user)).lower()}\n"
    text += f'taint = "{"NoSchedule" if deployed.may_taint else "off"}"\n{more}'
    path = folder / "publish.toml"
    path.write_text(text)
    return path


def says(deployed: Deployed, healthy: str, status: str) -> bool:
    node = deployed.plane.read_node(OWN)
    found = {each["type"]: each["status"] for each in node["status"].get("conditions", ())}
    return (
        found.get("vitald.io/Healthy") == healthy
        and {"vitald.io/RebootRequired", "vitald.io/ReplacementRequired"} <= found.keys()
        and node["metadata"]["labels"].get("vitald.io/status") == status
        and "vitald.io/findings" in node["metadata"].get("annotations", {})
    )
