"""The task of an entry of the configuration, `[[notify]]`."""

from __future__ import annotations

from vitald.publish.config import PublisherConfig
from vitald.publish.notify.flags import SummaryReader
from vitald.publish.notify.node import identify_node
from vitald.publish.notify.receivers import build_receiver
from vitald.publish.notify.runner import NotifyRunner
from vitald.publish.sink import Runner, SinkRunner
from vitald.publish.state_store import StateStore
from vitald.publish.transitions import TransitionReader
from vitald.publish_sections import NotifySettings


def build_runner(settings: NotifySettings, config: PublisherConfig, store: StateStore) -> Runner:
    """Of any type."""
    node = identify_node(config.paths)
    state_reader = None
    if settings.drills != config.publish.drills:
        state_reader = SummaryReader(config.socket_path, drills=settings.drills)
    if settings.type == "alertmanager":
        from vitald.publish.notify.alertmanager import AlertmanagerSink

        return SinkRunner(AlertmanagerSink(settings, node.host, state_reader))
    return NotifyRunner(
        settings,
        build_receiver(settings),
        node,
        store,
        TransitionReader(config.socket_path),
        state_reader,
    )
