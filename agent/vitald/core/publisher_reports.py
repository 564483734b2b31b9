"""
What the publisher reported last of its sinks: whether the node's state gets where it is read.

Kept in memory only: a publisher reports every 15 s.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

MAX_SINKS = MAX_REFUSED = 16
SILENT_AFTER_S = 60.0  # four reports


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkReport:
    """How one sink fares, as its publisher says. Times in seconds since the epoch; None is never.

    `waiting`: how much is not written yet, since `waiting_since`. `writes` and `failures` count
    since the publisher started.
    """

    name: str
    up: bool
    last_success: float | None
    error: str  # of the last attempt; "" if it succeeded
    refused: tuple[str, ...]  # what of the state; the rest is written
    waiting: int
    waiting_since: float | None
    writes: int
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherReport:
    """One report. `received_at`: on the monotonic clock. `time`: in seconds since the epoch."""

    sinks: tuple[SinkReport, ...]
    received_at: float
    time: float

    def is_silent(self, monotonic: float) -> bool:
        """Whether it is so old that its publisher must have stopped."""
        return monotonic - self.received_at > SILENT_AFTER_S


class Publishers:
    """The last report; None while no publisher has ever reported."""

    def __init__(self) -> None:
        self._last: PublisherReport | None = None

    def store_report(self, sinks: tuple[SinkReport, ...]) -> None:
        """A publisher without sinks takes its leave: nothing is expected of it any more."""
        self._last = (
            PublisherReport(sinks=sinks, received_at=time.monotonic(), time=time.time())
            if sinks
            else None
        )

    def get_report(self) -> PublisherReport | None:
        """The last report. Of a publisher that is silent, no sink is up."""
        last = self._last
        if last is None or not last.is_silent(time.monotonic()):
            return last
        return replace(last, sinks=tuple(replace(sink, up=False) for sink in last.sinks))

    @property
    def is_silent(self) -> bool:
        """Whether a publisher reported, and has stopped to."""
        return self._last is not None and self._last.is_silent(time.monotonic())
