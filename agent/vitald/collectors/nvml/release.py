"""
Stepping aside: who asked for the GPUs, which, and until when.

A client of NVML stands in the way of a GPU reset, a driver reload and a MIG change, so on request
nothing of ours holds the driver for a while. It comes back by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from vitald.text import join_first

_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One request. `gpus` are PCI addresses; none of them means all. Its time begins when they have
    been let go of.
    """

    gpus: tuple[str, ...]
    seconds: float
    by: str
    reason: str
    until: float = 0.0  # on the monotonic clock
    ended_by: str = ""  # who took them back before the time was over

    @property
    def words(self) -> str:
        return ", ".join(f"gpu/{gpu}" for gpu in self.gpus) or "all GPUs"

    @property
    def clock(self) -> str:
        """When it is over, by this node's clock."""
        return time.strftime(
            "%H:%M:%S", time.localtime(time.time() + self.until - time.monotonic())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseReport:
    """What a release came to: who else has the devices open (process id, name), how many processes
    could not be looked at (-1: none could), and which of our own did not end.
    """

    holders: tuple[tuple[int, str], ...] = ()
    hidden: int = 0
    stuck: tuple[int, ...] = ()


@dataclass(slots=True)
class Releases:
    """Those that run. The API asks for them; the source acts on them: `admit_requests`, and when it has let
    go, `answer_requests`.
    """

    wake: Callable[[], None] = lambda: None
    words: str = ""  # for `vitald status`; it does not count down, as what changes is told again
    _asked: list[tuple[Release, asyncio.Future[ReleaseReport]]] = field(default_factory=list)
    _admitted: list[asyncio.Future[ReleaseReport]] = field(default_factory=list)
    _running: list[Release] = field(default_factory=list)
    _begun: list[Release] = field(default_factory=list)
    _ended: list[Release] = field(default_factory=list)

    async def begin_release(
        self, seconds: float, gpus: Sequence[str], by: str, reason: str
    ) -> ReleaseReport:
        """Returns once nothing of ours holds the devices, or it is known that something does."""
        answer: asyncio.Future[ReleaseReport] = asyncio.get_running_loop().create_future()
        asked = Release(gpus=tuple(gpus), seconds=seconds, by=by, reason=reason), answer
        self._asked.append(asked)
        self.wake()
        try:
            return await answer
        finally:
            if asked in self._asked:
                self._asked.remove(asked)

    def end_releases(self, by: str) -> int:
        """Take everything back now. How many releases that ends."""
        ended = [replace(one, ended_by=by) for one in self._running]
        self._running = []
        self._ended += ended
        self._put_in_words()
        self.wake()
        return len(ended)

    # --- for the source

    @property
    def is_requested(self) -> bool:
        """Whether somebody waits for us to let go."""
        return bool(self._asked)

    @property
    def covers_all(self) -> bool:
        """Whether all GPUs are released."""
        return any(not one.gpus for one in self._list_running())

    @property
    def gpus(self) -> set[str]:
        """The single GPUs that are released."""
        return {gpu for one in self._list_running() for gpu in one.gpus}

    @property
    def left_s(self) -> float:
        """Until the first of them is over."""
        return min((one.until - time.monotonic() for one in self._list_running()), default=0.0)

    def admit_requests(self) -> None:
        """No worker runs: nothing of ours holds anything. The time of those who asked begins."""
        for release, answer in self._asked:
            running = replace(release, until=time.monotonic() + release.seconds)
            self._running.append(running)
            self._begun.append(running)
            self._admitted.append(answer)
        self._asked = []
        self._put_in_words()

    def answer_requests(self, report: ReleaseReport) -> None:
        """To all who were admitted."""
        for answer in self._admitted:
            if not answer.done():
                answer.set_result(report)
        self._admitted = []

    def take_begun(self) -> list[Release]:
        begun, self._begun = self._begun, []
        return begun

    def take_ended(self) -> list[Release]:
        self._list_running()
        ended, self._ended = self._ended, []
        return ended

    def _list_running(self) -> list[Release]:
        over = [one for one in self._running if one.until <= time.monotonic()]
        if over:
            self._ended += over
            self._running = [one for one in self._running if one not in over]
            self._put_in_words()
        return self._running

    def _put_in_words(self) -> None:
        told = [
            f"{one.words} released until {one.clock}, asked by {one.by}: {one.reason}"
            for one in self._running
        ]
        self.words = join_first(told, _TOLD, "; ", "; and ", "more releases")
