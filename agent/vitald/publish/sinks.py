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
from vitald.publish.kubernetes.desired import get_hold_key
from vitald.publish.kubernetes.events import EventRunner
from vitald.publish.kubernetes.node_watch import NodeWatch, WatchingClient
from vitald.publish.kubernetes.sink import KubernetesSink
from vitald.publish.kubernetes.taint import TaintSink
from vitald.publish.sink import Runner, Sink, SinkRunner
from vitald.publish.state_store import StateStore
from vitald.publish.transitions import TransitionReader
from vitald.publish_sections import KubernetesSettings, read_node_name


class NoSink(Exception):
    """The configuration names no sink."""


@asynccontextmanager
async def open_sinks(config: PublisherConfig, store: StateStore) -> AsyncIterator[list[Runner]]:
    """A task for each sink that the configuration names. Raises NoSink, NoCredentials."""
    async with AsyncExitStack() as stack:
        runners: list[Runner] = []
        sinks: list[Sink] = []
        if config.kubernetes.enabled:
            client = await stack.enter_async_context(open_client(config.kubernetes))
            runners += _build_kubernetes_runners(config, client, store)
        if config.publish.nfd is not None:
            sinks.append(NfdSink(config.publish.nfd, config.kubernetes.prefix))
        if config.publish.textfile is not None:
            # prometheus_client is needed for nothing else here
            from vitald.publish.files.textfile import TextfileSink

            sinks.append(TextfileSink(config.publish.textfile))
        runners += [SinkRunner(sink, store) for sink in sinks]
        if config.notify:
            from vitald.publish.notify.build import build_runners

            runners += build_runners(config, store)
        await store.keep_receivers([runner.health.name for runner in runners])
        if not runners:
            raise NoSink(
                "nothing to publish to: set [kubernetes] enabled, [publish] nfd or textfile, or"
                " name a receiver, [notify.NAME]"
            )
        yield runners


def _build_kubernetes_runners(
    config: PublisherConfig, client: WatchingClient, store: StateStore
) -> list[Runner]:
    settings = config.kubernetes
    informed: list[SinkRunner | DriverUpgradeMonitor] = [
        SinkRunner(KubernetesSink(client, settings, store), store)
    ]
    if TaintSink.is_needed(settings, store):
        informed.append(SinkRunner(TaintSink(client, settings, store), store))
    if settings.driver_upgrades:
        informed.append(DriverUpgradeMonitor(client, GpuReleases(config.socket_path), store))

    def report_change(is_urgent: bool) -> None:
        for runner in informed:
            runner.note_change(is_urgent=is_urgent)

    runners: list[Runner] = [*informed, NodeWatch(client, report_change)]
    if settings.events:
        runners.append(_build_event_runner(config, client, store))
    return runners


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


def open_client(settings: KubernetesSettings) -> WatchingClient:
    """For the node's own API server. Raises NoCredentials."""
    node = find_node_name(settings)
    user = f"system:node:{node}" if settings.impersonate else ""
    return WatchingClient(
        find_access(settings), node, get_hold_key(settings.prefix), impersonate=user
    )


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
