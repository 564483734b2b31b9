"""
What a notification is delivered to; and for how long after a start a receiver gets nothing, so that
a rollout pages nobody.
"""

from __future__ import annotations

import time
from typing import Protocol

from vitald.publish.notify.notification import Notification
from vitald.publish.state_store import StateStore

_AGAIN_S = 3600.0  # a start so soon after another has no quiet time of its own: it may be a crash


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


class QuietTime:
    """That of one receiver. Moments in seconds since the epoch."""

    def __init__(self, name: str, length_s: float, store: StateStore) -> None:
        self.began = self.ends = 0.0
        self._name = f"started {name}"
        self._length_s = length_s
        self._store = store

    async def find_left(self) -> float:
        """Seconds until the first message may be sent."""
        now = time.time()
        if not self.began:
            former = self._store.read_moment(self._name)
            self.began = former if 0.0 <= now - former < _AGAIN_S else now
            self.ends = self.began + self._length_s
            await self._store.write_moment(self._name, self.began)
        left = self.ends - now
        return left if 0.0 < left <= self._length_s else 0.0  # else the clock was set
