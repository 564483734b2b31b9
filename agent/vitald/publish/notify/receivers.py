"""The receiver of an entry of the configuration."""

from __future__ import annotations

from vitald.publish.notify.exec import ExecReceiver
from vitald.publish.notify.receiver import Receiver
from vitald.publish.notify.webhook import WebhookReceiver
from vitald.publish_sections import NotifySettings


def build_receiver(settings: NotifySettings) -> Receiver:
    """Of the types webhook and exec; alertmanager is a sink of the present state."""
    if settings.type == "exec":
        return ExecReceiver(settings.name, settings.command)
    return WebhookReceiver(settings)
