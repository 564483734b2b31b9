"""When a receiver that failed is tried again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from vitald.backoff import Backoff

_UNREACHABLE = Backoff(1.0, 8.0)  # hence what it says is right within 10 s of its return
_REFUSED = Backoff(1.0, 60.0)
_LEAST_JITTER = 0.1
_MAX_RETRY_AFTER_S = 600.0


class SinkFailed(Exception):
    """Nothing was written. `retry_after_s`: when the receiver wants the next attempt.

    `is_unreachable`: there was no answer. `is_expected`: no fault of the receiver (the node is
    gone), so it is not logged as an error.
    """

    def __init__(
        self,
        detail: str,
        *,
        retry_after_s: float | None = None,
        is_unreachable: bool = False,
        is_expected: bool = False,
    ) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s
        self.is_unreachable = is_unreachable
        self.is_expected = is_expected


@dataclass(slots=True)
class Retry:
    """Failures in succession. Another kind of failure begins anew: a server that answers again may
    refuse for a moment.
    """

    failures: int = field(default=0, init=False)
    _was_unreachable: bool = field(default=False, init=False)

    def note_failure(self, error: SinkFailed) -> float:
        """Seconds until the next attempt. They are spread widely: when an API server returns, all
        nodes of a cluster see that together.
        """
        if error.is_unreachable != self._was_unreachable:
            self.failures, self._was_unreachable = 0, error.is_unreachable
        backoff = _UNREACHABLE if error.is_unreachable else _REFUSED
        delay = backoff.delay_s(self.failures) * random.uniform(_LEAST_JITTER, 1.0)  # noqa: S311
        self.failures += 1
        if error.retry_after_s is None:
            return delay
        asked = min(error.retry_after_s, _MAX_RETRY_AFTER_S)
        return max(delay, asked * random.uniform(1.0, 1.2))  # noqa: S311

    def note_success(self) -> None:
        self.failures = 0
