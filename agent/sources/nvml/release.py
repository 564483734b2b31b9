"""
Stepping aside: who asked for the GPUs, which, and until when.

A client of NVML stands in the way of a GPU reset, a driver reload and a MIG change, so on request nothing of ours holds the
driver for a while. It comes back by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One request. `gpus` are PCI addresses; none of them means all. `until` is on the monotonic clock."""

    gpus: tuple[str, ...]
    until: float
    by: str
    reason: str

    @property
    def words(self) -> str:
        return ", ".join(f"gpu/{gpu}" for gpu in self.gpus) or "all GPUs"

    @property
    def left(self) -> str:
        seconds = max(0.0, self.until - time.monotonic())
        return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a release came to: who else has the devices open (process id, name), how many processes could not be looked at
    (-1: none could), and which of our own did not end."""

    holders: tuple[tuple[int, str], ...] = ()
    hidden: int = 0
    stuck: tuple[int, ...] = ()


@dataclass(slots=True)
class Releases:
    """Those that run. The source acts on them; the API asks for them."""

    wake: Callable[[], None] = lambda: None
    _running: list[Release] = field(default_factory=list)
    _waiting: list[tuple[Release, asyncio.Future[Report]]] = field(default_factory=list)
    _begun: list[Release] = field(default_factory=list)
    _ended: list[Release] = field(default_factory=list)

    async def begin(self, seconds: float, gpus: Sequence[str], by: str, reason: str) -> Report:
        """Returns once nothing of ours holds the devices, or it is known that something does."""
        release = Release(gpus=tuple(gpus), until=time.monotonic() + seconds, by=by, reason=reason)
        answer: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self._waiting.append((release, answer))
        self.wake()
        try:
            return await answer
        finally:
            self._waiting = [one for one in self._waiting if one[1] is not answer]

    def end(self) -> int:
        """Take everything back now. How many releases that ends."""
        self._ended += self._running
        ended, self._running = len(self._running), []
        self.wake()
        return ended

    # --- for the source

    @property
    def asked(self) -> bool:
        """Whether somebody waits for us to let go."""
        return bool(self._waiting)

    @property
    def everything(self) -> bool:
        """Whether all GPUs are to be let go of, or are."""
        return any(not one.gpus for one in [*self._current(), *(release for release, _ in self._waiting)])

    @property
    def gpus(self) -> set[str]:
        """Single GPUs that are to be let go of, or are."""
        return {gpu for one in [*self._current(), *(release for release, _ in self._waiting)] for gpu in one.gpus}

    @property
    def left_s(self) -> float:
        """Until the first of them is over."""
        return min((one.until - time.monotonic() for one in self._current()), default=0.0)

    @property
    def words(self) -> str:
        """For `vitald status`."""
        return "; ".join(f"{one.words} released for another {one.left}, asked by {one.by}: {one.reason}" for one in self._current())

    def done(self, report: Report) -> None:
        """Nothing of ours holds what was asked for: their time begins."""
        for release, answer in self._waiting:
            self._running.append(release)
            self._begun.append(release)
            if not answer.done():
                answer.set_result(report)
        self._waiting = []

    def take_begun(self) -> list[Release]:
        begun, self._begun = self._begun, []
        return begun

    def take_ended(self) -> list[Release]:
        self._current()
        ended, self._ended = self._ended, []
        return ended

    def _current(self) -> list[Release]:
        over = [one for one in self._running if one.until <= time.monotonic()]
        if over:
            self._ended += over
            self._running = [one for one in self._running if one not in over]
        return self._running
