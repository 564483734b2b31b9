"""For how long after a start a receiver gets nothing, so that a rollout pages nobody."""

from __future__ import annotations

import time

from vitald.publish.state_store import StateStore

_AGAIN_S = 3600.0  # a start so soon after another has no quiet time of its own: it may be a crash


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
