"""What a notification is delivered to."""

from __future__ import annotations

from typing import Protocol

from vitald.publish.notify.notification import Notification


class NotificationRefused(Exception):
    """The receiver will never take this one. The text says why, and what to do about it; it names
    no secret.
    """


class Receiver(Protocol):
    """One `[notify.NAME]`."""

    async def deliver(self, notification: Notification) -> None:
        """Returns once the receiver has it. Raises SinkFailed where it may be tried again,
        NotificationRefused where that is of no use.
        """
        ...
