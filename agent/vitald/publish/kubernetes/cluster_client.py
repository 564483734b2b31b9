"""
Requests about all nodes of a cluster, for the sweep and for the removal of an installation: with
the credentials of a pod, or through `kubectl proxy` with those of a kubeconfig.

    GET    /api/v1/nodes?limit=...                        page by page, whole or metadata only
    GET    /api/v1/namespaces/NAMESPACE/pods?...          the publisher's pods on one node
    DELETE /apis/rbac.authorization.k8s.io/v1/clusterrolebindings/NAME
    GET, POST, PATCH  /apis/coordination.k8s.io/v1/namespaces/NAMESPACE/leases

Source: Kubernetes API concepts, "Retrieving large results sets in chunks" (a token for the next
page expires: 410) and "Server-Side Apply" (managedFields), tried against 1.36.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

from vitald.publish.kubernetes.client import (
    MERGE,
    ApiRefused,
    ApiUnreachable,
    Document,
    KubernetesClient,
    read_list,
    read_object,
)
from vitald.publish.kubernetes.credentials import ClusterAccess, NoCredentials
from vitald.publish.kubernetes.node_object import NodeObject, parse_node

PAGE = 25  # nodes; one with many images takes about 50 KB
# Hence 1,300 tables each (http.py): field managers have one for each label, and Node Feature
# Discovery sets hundreds.
METADATA_PAGE = 50
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
PUBLISHER = "publish"  # the container, in the manifests and in the chart
_BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
_NOT_FOUND = 404
_START_S, _POLL_S = 10.0, 0.05


class ClusterClient(KubernetesClient):
    """A client for one node after the other."""

    async def list_nodes(self, token: str = "") -> tuple[list[NodeObject], str]:
        """One page, and the token of the next, "" after the last. Raises as read_node."""
        return await self._list_page(PAGE, token)

    async def list_metadata(self) -> AsyncIterator[NodeObject]:
        """All nodes, with labels, annotations and field managers only. Raises as read_node."""
        token = ""
        while True:
            nodes, token = await self._list_page(METADATA_PAGE, token, _METADATA)
            for node in nodes:
                yield node
            if not token:
                return

    async def _list_page(
        self, limit: int, token: str, accept: str = "application/json"
    ) -> tuple[list[NodeObject], str]:
        query = {"limit": str(limit), **({"continue": token} if token else {})}
        document = await self._request("GET", f"/api/v1/nodes?{urlencode(query)}", accept=accept)
        items, metadata = read_list(document, "nodes")
        try:
            return [parse_node(item) for item in items], str(metadata.get("continue") or "")
        except ValueError as error:
            raise ApiUnreachable(f"the answer is no list of nodes: {error}") from error

    async def has_publisher(self, namespace: str, labels: str, node: str) -> bool:
        """Whether a pod with these labels is to run a publisher on this node. Raises as
        read_node.
        """
        query = {"labelSelector": labels, "fieldSelector": f"spec.nodeName={node}"}
        path = f"/api/v1/namespaces/{quote(namespace)}/pods?{urlencode(query)}"
        pods, _ = read_list(await self._request("GET", path), "pods")
        return any(_runs_publisher(pod) for pod in pods)

    async def delete_binding(self, name: str) -> bool:
        """Whether there was a ClusterRoleBinding of that name. Raises as read_node."""
        try:
            await self._request("DELETE", f"{_BINDINGS}/{quote(name)}")
        except ApiRefused as error:
            if error.status != _NOT_FOUND:
                raise
            return False
        return True

    # --- Leases

    async def read_lease(self, namespace: str, name: str) -> Document | None:
        """None if there is none. Raises as read_node."""
        try:
            return read_object(await self._request("GET", f"{_leases(namespace)}/{quote(name)}"))
        except ApiRefused as error:
            if error.status != _NOT_FOUND:
                raise
            return None

    async def create_lease(self, namespace: str, lease: Document) -> Document:
        """409 where another was faster. Raises as read_node."""
        path = _leases(namespace)
        return read_object(await self._request("POST", path, lease, "application/json"))

    async def patch_lease(self, namespace: str, name: str, patch: Document) -> Document:
        """A merge patch; 409 where `metadata.resourceVersion` is no longer its own. Raises as
        read_node.
        """
        path = f"{_leases(namespace)}/{quote(name)}"
        return read_object(await self._request("PATCH", path, patch, MERGE))


def _leases(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace)}/leases"


def _runs_publisher(pod: Document) -> bool:
    """Whatever its phase: the controller of the DaemonSet replaces one that failed or was evicted,
    and deletes one that is no longer to run there.
    """
    spec = pod.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    return any(
        isinstance(container, dict) and container.get("name") == PUBLISHER
        for container in (containers if isinstance(containers, list) else ())
    )


@asynccontextmanager
async def open_proxy(kubeconfig: Path) -> AsyncIterator[ClusterAccess]:
    """Through `kubectl proxy`, while the context lasts: kubectl knows all kinds of credentials. The
    proxy listens on a socket that only this user can reach, and its errors go to standard error.
    Raises NoCredentials.
    """
    with tempfile.TemporaryDirectory(prefix="vitald-") as folder:
        path = Path(folder) / "api"
        command = ("kubectl", "proxy", f"--kubeconfig={kubeconfig}", f"--unix-socket={path}")
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
            )
        except OSError as error:
            raise NoCredentials(f"--kubeconfig needs kubectl: {error}") from error
        try:
            await _wait_until_there(path, process)
            yield ClusterAccess(server="http://localhost", socket=path)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _wait_until_there(path: Path, process: asyncio.subprocess.Process) -> None:
    deadline = time.monotonic() + _START_S
    while not path.exists():
        if process.returncode is not None:
            raise NoCredentials(f"kubectl proxy: exit {process.returncode}")
        if time.monotonic() > deadline:
            raise NoCredentials(f"kubectl proxy: not ready within {_START_S:g} s")
        await asyncio.sleep(_POLL_S)
