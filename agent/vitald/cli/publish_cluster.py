"""
What `vitald publish` does for a whole cluster: `vitald publish sweep`, and `--retire --all-nodes`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from vitald.cli import UsageError
from vitald.cli.progress import WorkProgress
from vitald.config.paths import Paths
from vitald.config.values import Config
from vitald.publish.kubernetes.cluster_client import ClusterClient
from vitald.publish.kubernetes.retire import Removal, retire_cluster
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.publish.kubernetes.sweep import Lease, Sweep
from vitald.publish.sinks import find_access

LEASE = "vitald-sweep"  # as the Roles of the manifests and of the chart name it


def retire_all_nodes(
    settings: KubernetesSettings, *, kubeconfig: Path | None, binding: str, dry_run: bool
) -> None:
    """Raises ApiUnreachable, ApiRefused, NoCredentials, SinkFailed."""

    async def retire() -> list[Removal]:
        async with _open_client(settings, kubeconfig) as client:
            if binding and dry_run:
                print(f"would delete the ClusterRoleBinding {binding}, if there is one")
            elif binding and await client.delete_binding(binding):
                print(f"deleted the ClusterRoleBinding {binding}")
            with WorkProgress(lambda: "reads nodes" if dry_run else "removes what vitald wrote"):
                return await retire_cluster(client, settings.prefix, dry_run=dry_run)

    removals = asyncio.run(retire())
    changed = [removal for removal in removals if removal.removed]
    for removal in removals if dry_run else ():
        for verb, names in (("remove", removal.removed), ("keep", removal.kept)):
            if names:
                print(f"{removal.node}: would {verb} {', '.join(names)}")
    verb = "would remove" if dry_run else "removed"
    print(f"{verb} what vitald wrote from {len(changed)} of {len(removals)} nodes")


@asynccontextmanager
async def _open_client(
    settings: KubernetesSettings, kubeconfig: Path | None
) -> AsyncIterator[ClusterClient]:
    if kubeconfig is None:
        async with ClusterClient(find_access(settings), "") as client:
            yield client
        return
    from vitald.publish.kubernetes.cluster_client import open_proxy

    async with open_proxy(kubeconfig) as access, ClusterClient(access, "") as client:
        yield client


def sweep(config: Config, *, pods: str, namespace: str) -> None:
    """Until SIGTERM or SIGINT. Raises NoCredentials."""
    namespace = namespace or os.environ.get("POD_NAMESPACE", "")
    if not namespace:
        raise UsageError("sweep needs --namespace, or the variable POD_NAMESPACE")

    async def run() -> None:
        async with ClusterClient(find_access(config[KubernetesSettings]), "") as client:
            lease = Lease(
                client=client,
                namespace=namespace,
                name=LEASE,
                identity=f"{socket.gethostname()}_{uuid.uuid4()}",
            )
            ready_file = config[Paths].runtime / "sweep"
            work = asyncio.ensure_future(
                Sweep(
                    client, config[KubernetesSettings], lease, pods=pods, ready_file=ready_file
                ).run()
            )
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, work.cancel)
            await asyncio.wait([work])
            if not work.cancelled():
                work.result()  # raises what it died of

    asyncio.run(run())
