"""The tasks of the receivers that the configuration names."""

from __future__ import annotations

from vitald.config.paths import Paths
from vitald.config.values import Config
from vitald.publish.notify.findings import FindingReader
from vitald.publish.notify.notification import NodeIdentity, identify_node
from vitald.publish.notify.receiver import QuietTime, Receiver
from vitald.publish.notify.runner import NotifyRunner
from vitald.publish.notify.settings import NotifySettings
from vitald.publish.sink import Runner, SinkRunner
from vitald.publish.state_store import StateStore
from vitald.publish.transitions import TransitionReader
from vitald.server.settings import find_socket


def build_runners(config: Config, store: StateStore) -> list[Runner]:
    """One for each."""
    node = identify_node(config[Paths])
    return [
        _build_runner(f"notify-{name}", settings, node, config, store)
        for name, settings in config.get_group(NotifySettings).items()
    ]


def _build_runner(
    name: str,
    settings: NotifySettings,
    node: NodeIdentity,
    config: Config,
    store: StateStore,
) -> Runner:
    if settings.type == "alertmanager":
        from vitald.publish.notify.alertmanager import AlertmanagerSink

        quiet = QuietTime(name, settings.quiet_s, store)
        return SinkRunner(AlertmanagerSink(name, settings, node.host, quiet), store)
    return NotifyRunner(
        name,
        settings,
        build_receiver(name, settings),
        node,
        store,
        TransitionReader(find_socket(config)),
        FindingReader(find_socket(config)),
    )


def build_receiver(name: str, settings: NotifySettings) -> Receiver:
    """Of the types webhook and exec; alertmanager is a sink of the present state."""
    if settings.type == "exec":
        from vitald.publish.notify.exec import ExecReceiver

        return ExecReceiver(name, settings.command)
    from vitald.publish.notify.webhook import WebhookReceiver

    return WebhookReceiver(settings)
