"""What the node's scheduler says before anything is done to it: Slurm's words, a real kubectl
before a small API server, a site's own program.
"""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from tests.control_plane.build import find_built_programs
from vitald.config.paths import Paths
from vitald.config.values import Config
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.recovery import cluster
from vitald.recovery.cluster import NoScheduler, Program
from vitald.recovery.decision import SchedulerState
from vitald.recovery.kubernetes import Kubernetes
from vitald.recovery.scheduler import ActionContext, describe_missing_network
from vitald.recovery.settings import Method, RecoverySettings
from vitald.recovery.slurm_cluster import SlurmCluster
from vitald.slurm.scontrol import SlurmNode
from vitald.slurm.settings import SlurmSettings

CONTEXT = ActionContext(
    action="reboot",
    request_id="r" * 8,
    verdict={"reasons": ["gpu/0000:65:00.0: fell \x1b[2J off"]},
    boot_id="boot-b",
)
OURS = "vitald: gpu/0000:65:00.0: GPU has fallen off the bus (xid/79): reboot the node"


def config(**changes: Any) -> Config:
    return Config(RecoverySettings(**{"node": "node-1", **changes}))


def test_a_unit_without_a_network_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As RestrictAddressFamilies= refuses it. Who asks no scheduler needs none."""
    none, slurms, kubernetes, own = (
        Method("none"),
        Method("slurm"),
        Method("kubernetes"),
        Method("", ("/usr/local/sbin/drain",)),
    )
    assert describe_missing_network(slurms, kubernetes) == ""

    def refused(family: int, kind: int) -> None:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    monkeypatch.setattr("vitald.recovery.scheduler.socket.socket", refused)
    assert describe_missing_network(none, own) == ""
    for methods in ((slurms, none), (none, kubernetes)):
        assert "RestrictAddressFamilies=AF_INET AF_INET6" in describe_missing_network(*methods)


# --- Slurm


@pytest.mark.parametrize(
    ("states", "reason", "node"),
    [
        ("IDLE", "", SchedulerState()),
        ("IDLE DRAIN", OURS, SchedulerState(drained=True)),
        (
            "DOWN DRAIN NOT_RESPONDING",
            OURS,
            SchedulerState(drained=True),
        ),  # Slurm has ended its jobs
        (
            "MIXED DRAIN",
            OURS,
            SchedulerState(drained=True, busy="in Slurm the node is DRAIN+MIXED"),
        ),
        ("ALLOCATED", "", SchedulerState(busy="in Slurm the node is ALLOCATED")),
        (
            "IDLE COMPLETING DRAIN",
            OURS,
            SchedulerState(drained=True, busy="in Slurm the node is COMPLETING+DRAIN+IDLE"),
        ),
        ("UNKNOWN", "", SchedulerState(busy="in Slurm the node is UNKNOWN")),
        (
            "IDLE DRAIN",
            "ticket 4711",
            SchedulerState(
                held="the node is held in Slurm: it is DRAIN+IDLE already, for: ticket 4711"
            ),
        ),
        (
            "IDLE MAINTENANCE",
            "",
            SchedulerState(
                held="the node is held in Slurm: it is IDLE+MAINTENANCE, for: no reason given"
            ),
        ),
        (
            "IDLE DRAIN REBOOT_ISSUED",
            OURS,
            SchedulerState(
                held=f"the node is held in Slurm: it is DRAIN+IDLE+REBOOT_ISSUED, for: {OURS}"
            ),
        ),
    ],
)
def test_what_slurm_says_of_the_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, states: str, reason: str, node: SchedulerState
) -> None:
    node_of_slurm = SlurmNode(frozenset(states.split()), reason)
    monkeypatch.setattr(
        "vitald.slurm.scontrol.read_node_state", lambda name, seconds: node_of_slurm
    )
    (tmp_path / "record").write_text(f"{OURS}\n")
    settings = config().replace(SlurmSettings(record=tmp_path / "record"))
    assert SlurmCluster(settings).read_state(CONTEXT) == node


def test_a_slurm_that_does_not_answer_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "scontrol did not answer within 10.0 s"
    monkeypatch.setattr("vitald.slurm.scontrol.read_node_state", lambda name, seconds: problem)
    assert SlurmCluster(config()).read_state(CONTEXT).trouble == problem
    assert SlurmCluster(config()).drain_node(CONTEXT).trouble
    assert SlurmCluster(config()).mark_for_replacement(CONTEXT)


# --- nobody is asked


def test_a_scheduler_that_is_not_asked_is_noticed(tmp_path: Path) -> None:
    """Work could begin between the last look and the reboot."""
    nobody = NoScheduler(Config(Paths(procfs=tmp_path)))
    (tmp_path / "self").mkdir()
    for pid, name in (("1", "systemd"), ("2", "slurmd-not")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "comm").write_text(f"{name}\n")
    assert nobody.read_state(CONTEXT) == nobody.drain_node(CONTEXT) == SchedulerState(drained=True)
    for name in ("slurmd", "kubelet"):
        (tmp_path / "2/comm").write_text(f"{name}\n")
        assert (
            f'{name} runs here, and [recovery] drain is "none"'
            in nobody.read_state(CONTEXT).trouble
        )


def test_a_step_of_slurm_is_work_whoever_is_asked(tmp_path: Path) -> None:
    for pid, line in (
        ("1", b"slurmstepd: [4711.0]\0"),
        ("2", b"slurmstepd\0infinity\0"),
        ("3", b"slurmstepd: [4711.batch]\0"),
        ("4", b""),
    ):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "comm").write_text("slurmstepd\n")
        (tmp_path / pid / "cmdline").write_bytes(line)
    assert cluster.list_job_steps(tmp_path) == ("job 4711 of Slurm",)


# --- a program


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("exit 0", SchedulerState(drained=True)),
        ("echo 3 jobs; exit 75", SchedulerState(drained=True, busy="{path} says: 3 jobs")),
        ("exit 75", SchedulerState(drained=True, busy="{path} says: something still runs here")),
        ("echo no; exit 1", SchedulerState(trouble="{path} failed: exit 1: no")),
    ],
)
def test_a_sites_own_program(tmp_path: Path, text: str, node: SchedulerState) -> None:
    path = tmp_path / "drain"
    path.write_text(
        '#!/bin/sh\n[ "$VITALD_ACTION $VITALD_NODE $VITALD_REQUEST" = "reboot node-1 rrrrrrrr" ]'
        f" || exit 9\n{text}\n"
    )
    path.chmod(0o755)
    program = Program((str(path),), config())
    assert program.read_state(CONTEXT) == SchedulerState(), "nobody knows before it is run"
    assert program.drain_node(CONTEXT) == replace(
        node, busy=node.busy.format(path=path), trouble=node.trouble.format(path=path)
    )
    assert CONTEXT.reason == "gpu/0000:65:00.0: fell ?[2J off"


# --- Kubernetes


class Api:
    """As much of an API server as a node and its pods need."""

    def __init__(self) -> None:
        self.node: dict[str, object] = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "node-1"},
            "spec": {},
        }
        self.pods: list[dict[str, object]] = []
        self.asked: list[str] = []
        self.broken = False

    def answer(self, method: str, path: str, body: bytes) -> object:
        self.asked.append(f"{method} {path}")
        place, _, query = path.partition("?")
        if place == "/api":
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        if place == "/apis":
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": []}
        if place == "/api/v1":
            verbs = ["get", "list", "patch"]
            resources = [
                {
                    "name": "nodes",
                    "singularName": "node",
                    "namespaced": False,
                    "kind": "Node",
                    "verbs": verbs,
                },
                {
                    "name": "pods",
                    "singularName": "pod",
                    "namespaced": True,
                    "kind": "Pod",
                    "verbs": verbs,
                },
            ]
            return {"kind": "APIResourceList", "groupVersion": "v1", "resources": resources}
        if place == "/api/v1/nodes/node-1":
            if method == "PATCH":
                _merge(self.node, json.loads(body))
            return self.node
        if place == "/api/v1/pods":
            assert "fieldSelector=spec.nodeName%3Dnode-1" in query, query
            return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self.pods}
        return None

    def add(self, name: str, phase: str = "Running", owner: str | None = "Job") -> None:
        owners = [{"kind": owner, "name": "o", "apiVersion": "v1", "uid": "u"}] if owner else []
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "ns", "ownerReferences": owners},
        }
        self.pods.append({**pod, "spec": {}, "status": {"phase": phase}})


def _merge(into: dict[str, object], patch: dict[str, object]) -> None:
    for key, value in patch.items():
        known = into.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            _merge(known, value)
        else:
            into[key] = value


@contextmanager
def served(api: Api) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found = None if api.broken else api.answer(self.command, self.path, body)
            said = json.dumps(
                found
                or {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "status": "Failure",
                    "message": "forbidden by a test",
                }
            ).encode()
            self.send_response(200 if found else 403)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_PATCH = _answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Api, Kubernetes]]:
    built = find_built_programs()
    require(built, "kubectl (.venv/bin/python -m tests.control_plane.build, ten minutes)")
    monkeypatch.setattr("vitald.recovery.programs.RECOVERY_PATH", str(built))
    made = Api()
    with served(made) as port:
        path = tmp_path / "kubeconfig"
        cluster_ = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": ""}}
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [cluster_],
                    "contexts": [context],
                    "current-context": "c",
                }
            )
        )
        yield made, Kubernetes(config(kubeconfig=path, drain=Method(word="kubernetes")))


def test_whose_the_node_and_its_pods_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what kubectl prints."""
    shown, pods = tmp_path / "node", tmp_path / "pods"
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        f'#!/bin/sh\ncase "$*" in *" get node "*) cat {shown} ;; *) cat {pods} ;; esac\n'
    )
    kubectl.chmod(0o755)
    monkeypatch.setattr("vitald.recovery.programs.RECOVERY_PATH", f"{tmp_path}:/usr/bin:/bin")
    kubernetes = Kubernetes(config(drain=Method(word="kubernetes")))

    def read(boot: str, listed: str = "") -> SchedulerState:
        metadata = {"annotations": {"vitald.io/drained": boot}} if boot else {}
        shown.write_text(json.dumps({"spec": {"unschedulable": True}, "metadata": metadata}))
        pods.write_text(listed)
        return kubernetes.read_state(CONTEXT)

    assert read(CONTEXT.boot_id) == SchedulerState(drained=True)
    assert read("").held and read("boot-a").held
    over = "ns a Succeeded Job\nns b Failed Job\nns c Running DaemonSet\nns d Running Node\n"
    assert not read(CONTEXT.boot_id, over).busy
    assert "ns/e" in read(CONTEXT.boot_id, f"{over}ns e Pending <none>\n").busy
    assert read(CONTEXT.boot_id, "what is this").trouble


@pytest.mark.control_plane
def test_kubernetes_cordons_waits_and_labels(api: tuple[Api, Kubernetes]) -> None:
    server, kubernetes = api
    server.add("daemon", owner="DaemonSet")
    server.add("static", owner="Node")
    server.add("over", phase="Succeeded")
    assert kubernetes.read_state(CONTEXT) == SchedulerState()
    assert not any(asked.startswith("PATCH") for asked in server.asked), "looking changes nothing"

    server.add("training")
    server.add("naked", owner=None, phase="Pending")
    drained = kubernetes.drain_node(CONTEXT)
    assert drained == SchedulerState(drained=True, busy="pods run here: ns/training, ns/naked")
    assert server.node["spec"] == {"unschedulable": True}
    assert not any(asked.startswith("DELETE") or "eviction" in asked for asked in server.asked)

    server.pods = []
    assert kubernetes.read_state(CONTEXT) == SchedulerState(drained=True)
    assert kubernetes.mark_for_replacement(CONTEXT) == ""
    metadata: Any = server.node["metadata"]
    assert metadata["labels"] == {"vitald.io/recovery": "replace"}
    assert metadata["annotations"]["vitald.io/drained"] == CONTEXT.boot_id


@pytest.mark.parametrize("annotation", ["vitald.io/drained", "vitald/drained"])
@pytest.mark.control_plane
def test_what_somebody_else_has_cordoned_is_left_alone(
    api: tuple[Api, Kubernetes], annotation: str
) -> None:
    server, kubernetes = api
    server.node["spec"] = {"unschedulable": True}
    assert kubernetes.read_state(CONTEXT).held == "the node is cordoned by somebody else"
    server.node["metadata"] = {"name": "node-1", "annotations": {annotation: "boot-a"}}
    assert "in an earlier boot" in kubernetes.read_state(CONTEXT).held


@pytest.mark.control_plane
def test_a_node_that_an_earlier_version_drained_is_ours(api: tuple[Api, Kubernetes]) -> None:
    """Its annotation had no prefix; with the next drain it is replaced."""
    server, kubernetes = api
    server.node["spec"] = {"unschedulable": True}
    annotations: dict[str, object] = {"vitald/drained": CONTEXT.boot_id}
    server.node["metadata"] = {"name": "node-1", "annotations": annotations}
    assert kubernetes.read_state(CONTEXT) == SchedulerState(drained=True)
    assert kubernetes.drain_node(CONTEXT) == SchedulerState(drained=True)
    metadata: Any = server.node["metadata"]
    # kubectl sends null, by which a merge patch removes a key
    assert metadata["annotations"] == {
        "vitald/drained": None,
        "vitald.io/drained": CONTEXT.boot_id,
    }


@pytest.mark.control_plane
def test_the_prefix_of_the_annotation_is_configurable(
    api: tuple[Api, Kubernetes], tmp_path: Path
) -> None:
    server, _ = api
    made = config(kubeconfig=tmp_path / "kubeconfig", drain=Method(word="kubernetes"))
    own = made.replace(KubernetesSettings(prefix="health.example.com"))
    assert Kubernetes(own).drain_node(CONTEXT) == SchedulerState(drained=True)
    metadata: Any = server.node["metadata"]
    assert metadata["annotations"]["health.example.com/drained"] == CONTEXT.boot_id


@pytest.mark.control_plane
def test_a_kubernetes_that_refuses_is_trouble(api: tuple[Api, Kubernetes]) -> None:
    server, kubernetes = api
    server.broken = True
    assert "kubectl failed" in kubernetes.read_state(CONTEXT).trouble
    assert "kubectl failed" in kubernetes.drain_node(CONTEXT).trouble
    assert "kubectl failed" in kubernetes.mark_for_replacement(CONTEXT)
