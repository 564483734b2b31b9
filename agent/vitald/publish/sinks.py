"""Which sinks the configuration names."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from vitald.config.values import Config
from vitald.publish.driver_upgrade import DriverUpgradeMonitor, GpuReleases
from vitald.publish.files.nfd import NfdSink
from vitald.publish.kubernetes.client import KubernetesClient
from vitald.publish.kubernetes.credentials import ClusterAccess, NoCredentials, find_cluster
from vitald.publish.kubernetes.desired import get_hold_key
from vitald.publish.kubernetes.node_events import EventRunner
from vitald.publish.kubernetes.node_watch import NodeWatch, WatchingClient
from vitald.publish.kubernetes.settings import KubernetesSettings, read_node_name
from vitald.publish.kubernetes.sink import KubernetesSink
from vitald.publish.kubernetes.taint import TaintSink
from vitald.publish.notify.settings import NotifySettings
from vitald.publish.settings import PublishSettings
from vitald.publish.sink import Runner, Sink, SinkRunner
from vitald.publish.state_store import StateStore
from vitald.publish.transitions import TransitionReader
from vitald.server.settings import find_socket


class NoSink(Exception):
    """The configuration names no sink."""


@asynccontextmanager
async def open_sinks(config: Config, store: StateStore) -> AsyncIterator[list[Runner]]:
    """A task for each sink that the configuration names. Raises NoSink, NoCredentials."""
    async with AsyncExitStack() as stack:
        runners: list[Runner] = []
        sinks: list[Sink] = []
        files, kubernetes = config[PublishSettings], config[KubernetesSettings]
        if kubernetes.enabled:
            client = await stack.enter_async_context(open_client(kubernetes))
            runners += _build_kubernetes_runners(config, client, store)
        if files.nfd is not None:
            sinks.append(NfdSink(files.nfd, kubernetes.prefix))
        if files.textfile is not None:
            # prometheus_client is needed for nothing else here
            from vitald.publish.files.textfile import TextfileSink

            sinks.append(TextfileSink(files.textfile))
        runners += [SinkRunner(sink, store) for sink in sinks]
        if config.get_group(NotifySettings):
            from vitald.publish.notify.receivers import build_runners

            runners += build_runners(config, store)
        await store.keep_receivers([runner.health.name for runner in runners])
        if not runners:
            raise NoSink(
                "nothing to publish to: set [kubernetes] enabled, [publish] nfd or textfile, or"
                " name a receiver, [notify.NAME]"
            )
        yield runners


def _build_kubernetes_runners(
    config: Config, client: WatchingClient, store: StateStore
) -> list[Runner]:
    settings = config[KubernetesSettings]
    informed: list[SinkRunner | DriverUpgradeMonitor] = [
        SinkRunner(KubernetesSink(client, settings, store), store)
    ]
    if TaintSink.is_needed(settings, store):
        informed.append(SinkRunner(TaintSink(client, settings, store), store))
    if settings.driver_upgrades:
        informed.append(DriverUpgradeMonitor(client, GpuReleases(find_socket(config)), store))

    def report_change(is_urgent: bool) -> None:
        for runner in informed:
            runner.note_change(is_urgent=is_urgent)

    runners: list[Runner] = [*informed, NodeWatch(client, report_change)]
    if settings.events:
        runners.append(_build_event_runner(config, client, store))
    return runners


def _build_event_runner(config: Config, client: KubernetesClient, store: StateStore) -> EventRunner:
    return EventRunner(
        client,
        TransitionReader(find_socket(config)),
        store,
        config[KubernetesSettings].prefix,
        drills=config[PublishSettings].drills,
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
