"""When a receiver that failed is tried again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from vitald.backoff import Backoff

_UNREACHABLE = Backoff(1.0, 8.0)  # hence what it says is right within 10 s of its return
_REFUSED = Backoff(1.0, 60.0)
_LEAST_JITTER = 0.1


@dataclass(slots=True)
class Retry:
    """Failures in succession. Another kind of failure begins anew: a server that answers again may
    refuse for a moment.
    """

    unreachable: Backoff = _UNREACHABLE
    refused: Backoff = _REFUSED
    failures: int = field(default=0, init=False)
    _was_unreachable: bool = field(default=False, init=False)

    def note_failure(self, *, is_unreachable: bool, retry_after_s: float | None = None) -> float:
        """Seconds until the next attempt. They are spread widely: when an API server returns, all
        nodes of a cluster see that together.
        """
        if is_unreachable != self._was_unreachable:
            self.failures, self._was_unreachable = 0, is_unreachable
        backoff = self.unreachable if is_unreachable else self.refused
        delay = backoff.delay_s(self.failures) * random.uniform(_LEAST_JITTER, 1.0)  # noqa: S311
        self.failures += 1
        if retry_after_s is None:
            return delay
        return max(delay, retry_after_s * random.uniform(1.0, 1.2))  # noqa: S311

    def note_success(self) -> None:
        self.failures = 0
