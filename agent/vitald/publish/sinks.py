"""Which sinks the configuration names."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from vitald.publish.config import PublisherConfig
from vitald.publish.driver_upgrade import DriverUpgradeMonitor
from vitald.publish.files.nfd import NfdSink
from vitald.publish.gpu_release import GpuReleases
from vitald.publish.kubernetes.client import KubernetesClient
from vitald.publish.kubernetes.credentials import ClusterAccess, NoCredentials, find_cluster
from vitald.publish.kubernetes.events import EventRunner
from vitald.publish.kubernetes.sink import KubernetesSink
from vitald.publish.kubernetes.taint import TaintSink
from vitald.publish.service_report import ServiceReport
from vitald.publish.sink import Runner, Sink, SinkRunner
from vitald.publish.state_store import StateStore
from vitald.publish.transitions import TransitionReader
from vitald.publish_sections import KubernetesSettings, read_node_name

_NOTIFY_PREFIX = "notify/"  # of the names of receivers of notifications


class NoSink(Exception):
    """The configuration names no sink."""


@asynccontextmanager
async def open_sinks(config: PublisherConfig, store: StateStore) -> AsyncIterator[list[Runner]]:
    """A task for each sink that the configuration names. Raises NoSink, NoCredentials."""
    async with AsyncExitStack() as stack:
        sinks: list[Sink] = []
        runners: list[Runner] = []
        if config.kubernetes.enabled:
            client = await stack.enter_async_context(open_client(config.kubernetes))
            sinks.append(KubernetesSink(client, config.kubernetes, store))
            if TaintSink.is_needed(config.kubernetes, store):
                report = ServiceReport(config.socket_path, "kubernetes")
                sinks.append(TaintSink(client, config.kubernetes, store, report))
            if config.kubernetes.events:
                runners.append(_build_event_runner(config, client, store))
            if config.kubernetes.driver_upgrades:
                releases = GpuReleases(config.socket_path)
                runners.append(DriverUpgradeMonitor(client, releases, store))
        if config.publish.nfd is not None:
            sinks.append(NfdSink(config.publish.nfd, config.kubernetes.prefix))
        if config.publish.textfile is not None:
            # prometheus_client is needed for nothing else here
            from vitald.publish.files.textfile import TextfileSink

            sinks.append(TextfileSink(config.publish.textfile))
        runners = [*(SinkRunner(sink) for sink in sinks), *runners]
        runners += _build_notify_runners(config, store)
        runners += _build_cloud_runners(config)
        if not runners:
            raise NoSink(
                "nothing to publish to: set [kubernetes] enabled, [publish] nfd or textfile, a"
                " [[notify]], or [cloud] provider"
            )
        names = {runner.health.name for runner in runners}
        await store.forget_receivers(_NOTIFY_PREFIX, names)
        yield runners


def _build_notify_runners(config: PublisherConfig, store: StateStore) -> list[Runner]:
    if not config.notify:
        return []
    from vitald.publish.notify.build import build_runner  # needed for nothing else here

    return [build_runner(settings, config, store) for settings in config.notify]


def _build_cloud_runners(config: PublisherConfig) -> list[Runner]:
    if config.cloud.provider == "off":
        return []
    from vitald.publish.cloud.monitor import CloudMonitor  # needed for nothing else here

    return [CloudMonitor(config.cloud, config.socket_path)]


def _build_event_runner(
    config: PublisherConfig, client: KubernetesClient, store: StateStore
) -> EventRunner:
    return EventRunner(
        client,
        TransitionReader(config.socket_path),
        store,
        config.kubernetes.prefix,
        drills=config.publish.drills,
    )


def open_client(settings: KubernetesSettings) -> KubernetesClient:
    """For the node's own API server. Raises NoCredentials."""
    node = find_node_name(settings)
    user = f"system:node:{node}" if settings.impersonate else ""
    return KubernetesClient(find_access(settings), node, impersonate=user)


def find_node_name(settings: KubernetesSettings) -> str:
    """The Node object's name: as set, as the pod was given it, else the host name. Raises
    NoCredentials for one that no Node can have.
    """
    name = settings.node or os.environ.get("NODE_NAME", "") or socket.gethostname().lower()
    try:
        return read_node_name(name or "?")
    except ValueError:
        raise NoCredentials(
            f"the Node object cannot be called {name!r} (NODE_NAME, or the host name): set"
            " [kubernetes] node"
        ) from None


def find_access(settings: KubernetesSettings) -> ClusterAccess:
    """The API server and the credentials for it. Raises NoCredentials."""
    if not settings.server:
        return find_cluster(os.environ)
    return ClusterAccess(
        server=settings.server.rstrip("/"),
        ca_file=settings.ca,
        token_file=settings.token_file,
        client_certificate=settings.client_certificate,
        client_key=settings.client_key,
        program=settings.exec,
    )
