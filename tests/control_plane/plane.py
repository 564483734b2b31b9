"""
One control plane on loopback: etcd, kube-apiserver, and on request the scheduler and controllers.

    with ControlPlane(folder) as plane:
        plane.create_node("node1")
        token = plane.create_pod_token("node1", "vitald", "vitald-publish")
        status, node = plane.call("GET", "/api/v1/nodes/node1", token=token)

There is no kubelet: a node is an object, and a pod with `spec.nodeName` is enough for a token that
is bound to that pod and names its node.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.control_plane.audit import POLICY
from tests.control_plane.build import find_programs
from tests.harness import free_port
from tests.waiting import WAIT_S, until

Json = dict[str, Any]
ADMIN = "admin-token"
_STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
# What `vitald publish` needs of the API server, for all nodes.
PUBLISHERS_RULES = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
)
# The controllers that make pods of the shipped objects.
POD_CONTROLLERS = (
    *("daemonset-controller", "deployment-controller", "replicaset-controller"),
    *("serviceaccount-controller", "resourcequota-controller"),
)

# What hardened clusters and GKE refuse: pods with host paths in a namespace without a label that
# allows them, and pods of the system's priorities in one without a quota for them.
_ADMISSION = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "AdmissionConfiguration",
    "plugins": [
        {
            "name": "PodSecurity",
            "configuration": {
                "apiVersion": "pod-security.admission.config.k8s.io/v1",
                "kind": "PodSecurityConfiguration",
                "defaults": {"enforce": "baseline", "enforce-version": "latest"},
            },
        },
        {
            "name": "ResourceQuota",
            "configuration": {
                "apiVersion": "apiserver.config.k8s.io/v1",
                "kind": "ResourceQuotaConfiguration",
                "limitedResources": [
                    {
                        "resource": "pods",
                        "matchScopes": [
                            {
                                "scopeName": "PriorityClass",
                                "operator": "In",
                                "values": ["system-node-critical", "system-cluster-critical"],
                            }
                        ],
                    }
                ],
            },
        },
    ],
}


def kubelet_token(node: str) -> str:
    """The token of the node's kubelet; the node must be among `nodes` of the control plane."""
    return f"{node}-token"


class ControlPlane:
    """The API server of a cluster with these nodes, which are not created by it."""

    def __init__(self, folder: Path, nodes: Sequence[str] = ("node1", "node2")) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.nodes = folder, nodes
        self.programs = find_programs()
        self.port, self._etcd_port, self._peer_port = free_port(), free_port(), free_port()
        self.server = f"https://127.0.0.1:{self.port}"
        self.certificate = folder / "certificates/apiserver.crt"
        self.audit_log = folder / "audit.log"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    # --- processes

    def __enter__(self) -> ControlPlane:
        try:
            self._start_with_etcd()
        except BaseException:
            self._stop_all()
            raise
        return self

    def _start_with_etcd(self) -> None:
        tokens = [f'{ADMIN},admin,admin,"system:masters"']
        tokens += [
            f'{kubelet_token(node)},system:node:{node},{node},"system:nodes"' for node in self.nodes
        ]
        (self.folder / "tokens.csv").write_text("\n".join(tokens) + "\n")
        (self.folder / "audit-policy.json").write_text(json.dumps(POLICY))
        (self.folder / "admission.json").write_text(json.dumps(_ADMISSION))
        key = self.folder / "service-account.key"
        subprocess.run(
            ["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True
        )
        peer, client = (f"http://127.0.0.1:{port}" for port in (self._peer_port, self._etcd_port))
        self._start(
            "etcd",
            f"--data-dir={self.folder}/etcd",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )
        self.start_api_server()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop_all()

    def _stop_all(self) -> None:
        for name in reversed(list(self._processes)):
            self._stop(name)

    def start_api_server(self, *, wait: bool = True) -> None:
        key = self.folder / "service-account.key"
        self._start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--cert-dir={self.certificate.parent}",
            f"--token-auth-file={self.folder}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--admission-control-config-file={self.folder}/admission.json",
            "--allow-privileged=true",  # as every distribution has it
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--endpoint-reconciler-type=none",
            f"--audit-policy-file={self.folder}/audit-policy.json",
            f"--audit-log-path={self.audit_log}",
        )
        if wait:
            self.wait_until_ready()

    def stop_api_server(self) -> None:
        self._stop("kube-apiserver")

    @contextmanager
    def controllers(self, *names: str) -> Iterator[None]:
        """With the scheduler and these controllers."""
        options = (
            f"--kubeconfig={self.write_kubeconfig(ADMIN)}",
            *("--leader-elect=false", "--secure-port=0"),
        )
        self._start("kube-scheduler", *options)
        self._start("kube-controller-manager", f"--controllers={','.join(names)}", *options)
        try:
            yield
        finally:
            self._stop("kube-controller-manager")
            self._stop("kube-scheduler")

    def wait_until_ready(self) -> None:
        def is_ready() -> bool:
            process = self._processes["kube-apiserver"]
            assert process.poll() is None, self.read_log("kube-apiserver")[-4000:]
            return self._is_ready()

        until(is_ready, "kube-apiserver")

    def read_log(self, program: str) -> str:
        return (self.folder / f"{program}.log").read_text(errors="replace")

    def _is_ready(self) -> bool:
        try:
            return self.call("GET", "/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def _start(self, program: str, *options: str) -> None:
        with (self.folder / f"{program}.log").open("ab") as log:
            self._processes[program] = subprocess.Popen(
                [str(self.programs / program), *options],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
            )

    def _stop(self, program: str) -> None:
        process = self._processes.pop(program)
        process.terminate()
        try:
            process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    # --- requests

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str = ADMIN,
        content_type: str = "",
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Json]:
        """Status and body of an answer. `content_type`: of a patch, by default strategic merge."""
        # The certificate is the server's own and is made as it starts.
        trusted = ssl.create_default_context(
            cafile=str(self.certificate) if self.certificate.exists() else None
        )
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=WAIT_S, context=trusted
        )
        usual = _STRATEGIC if method == "PATCH" else "application/json"
        try:
            connection.request(
                method,
                path,
                body=None if body is None else json.dumps(body),
                headers={
                    "Authorization": f"Bearer {token}",
                    "Content-Type": content_type or usual,
                    "User-Agent": "vitald-tests",
                    **(headers or {}),
                },
            )
            answer = connection.getresponse()
            content = answer.read()
            is_json = "json" in (answer.getheader("Content-Type") or "")
            return answer.status, json.loads(content) if is_json else {"text": content.decode()}
        finally:
            connection.close()

    def demand(self, method: str, path: str, body: object = None, **how: Any) -> Json:
        """The body of an answer that must be a success."""
        status, answer = self.call(method, path, body, **how)
        assert 200 <= status < 300, (method, path, status, answer)
        return answer

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl prints as the administrator. Raises CalledProcessError."""
        return subprocess.run(
            [
                str(self.programs / "kubectl"),
                f"--kubeconfig={self.write_kubeconfig(ADMIN)}",
                *arguments,
            ],
            input=stdin,
            text=True,
            check=True,
            capture_output=True,
        ).stdout

    def write_kubeconfig(self, token: str) -> Path:
        name = hashlib.sha256(token.encode()).hexdigest()[:16]  # a token may be too long for one
        path = self.folder / f"kubeconfig-{name}.json"
        cluster = {"server": self.server, "certificate-authority": str(self.certificate)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "tests", "user": {"token": token}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
            "current-context": "tests",
        }
        path.write_text(json.dumps(document))
        return path

    # --- objects

    def create_node(self, name: str) -> Json:
        """As a kubelet creates it: with a label, since the API server tracks who manages which
        field only of objects that had one when they were created.
        """
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        return self.demand(
            "POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        )

    def create_machine(self, name: str, labels: dict[str, str] | None = None) -> None:
        """A node that the scheduler puts pods on."""
        self.create_node(name)
        metadata = {"labels": {"kubernetes.io/os": "linux", **(labels or {})}}
        body: Json = {"metadata": metadata, "spec": {"taints": []}}
        self.demand("PATCH", f"/api/v1/nodes/{name}", body)
        size = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        status = {"capacity": size, "allocatable": size}
        self.demand("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})

    def read_node(self, name: str) -> Json:
        return self.demand("GET", f"/api/v1/nodes/{name}")

    def create_service_account(self, namespace: str, name: str, rules: Sequence[Json]) -> None:
        """With a cluster role of that name, for these rules."""
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        metadata = {"name": name}
        subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        self.demand("POST", accounts, {"metadata": metadata})
        self.demand("POST", f"{rbac}/clusterroles", {"metadata": metadata, "rules": rules})
        self.demand(
            "POST",
            f"{rbac}/clusterrolebindings",
            {"metadata": metadata, "roleRef": role, "subjects": [subject]},
        )

    def create_pod_token(self, node: str, namespace: str, account: str) -> str:
        """A service account's token that is bound to a pod on this node."""
        pods = f"/api/v1/namespaces/{namespace}/pods"
        name = f"{account}-{node}"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "serviceAccountName": account,
                "containers": [{"name": "vitald", "image": "vitald"}],
            },
        }
        status, made = self.call("POST", pods, pod)
        if status == 409:
            made = self.demand("GET", f"{pods}/{name}")
        else:
            assert status == 201, made
        reference = {
            "kind": "Pod",
            "apiVersion": "v1",
            "name": name,
            "uid": made["metadata"]["uid"],
        }
        answer = self.demand(
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"boundObjectRef": reference, "expirationSeconds": 3600},
            },
        )
        token: str = answer["status"]["token"]
        return token
