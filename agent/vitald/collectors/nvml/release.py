"""
Releases of GPUs: which ones, until when, and who requested it.

A client of NVML blocks a GPU reset, a driver reload and a MIG change, so on request the daemon
closes the driver for a limited time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from vitald.text import join_first

_MAX_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One request. `gpus` are PCI addresses; empty means all. Its time begins when the GPUs are
    released.
    """

    gpus: tuple[str, ...]
    seconds: float
    by: str
    reason: str
    until: float = 0.0  # on the monotonic clock
    ended_by: str = ""  # who ended it early

    @property
    def gpu_names(self) -> str:
        return ", ".join(f"gpu/{gpu}" for gpu in self.gpus) or "all GPUs"

    @property
    def end_time(self) -> str:
        """When it ends, in local time."""
        return time.strftime(
            "%H:%M:%S", time.localtime(time.time() + self.until - time.monotonic())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseReport:
    """Result of a release: other processes that have the devices open (process id, name), how many
    processes could not be inspected (-1: none could), and the daemon's own that did not end.
    """

    device_users: tuple[tuple[int, str], ...] = ()
    hidden: int = 0
    stuck: tuple[int, ...] = ()


@dataclass(slots=True)
class Releases:
    """The running releases. The API requests them; the collector calls `admit_requests` when no
    worker runs, and then `answer_requests`.
    """

    wake_up: Callable[[], None] = lambda: None
    # For `vitald status`; without a countdown, as each change would be reported.
    description: str = ""
    _requested: list[tuple[Release, asyncio.Future[ReleaseReport]]] = field(default_factory=list)
    _admitted: list[asyncio.Future[ReleaseReport]] = field(default_factory=list)
    _running: list[Release] = field(default_factory=list)
    _begun: list[Release] = field(default_factory=list)
    _ended: list[Release] = field(default_factory=list)

    async def begin_release(
        self, seconds: float, gpus: Sequence[str], by: str, reason: str
    ) -> ReleaseReport:
        """Returns once the daemon has released the devices, or knows that a process of it has
        not.
        """
        answer: asyncio.Future[ReleaseReport] = asyncio.get_running_loop().create_future()
        request = Release(gpus=tuple(gpus), seconds=seconds, by=by, reason=reason), answer
        self._requested.append(request)
        self.wake_up()
        try:
            return await answer
        finally:
            if request in self._requested:
                self._requested.remove(request)

    def end_releases(self, by: str, reason: str = "") -> int:
        """Ends the releases with this reason now, or all, and returns how many there were."""
        ending = [release for release in self._running if reason in ("", release.reason)]
        self._running = [release for release in self._running if release not in ending]
        ended = [replace(release, ended_by=by) for release in ending]
        self._ended += ended
        self._update_description()
        self.wake_up()
        return len(ended)

    # --- for the collector

    @property
    def is_requested(self) -> bool:
        """True if a request waits for the release."""
        return bool(self._requested)

    @property
    def covers_all(self) -> bool:
        """True if all GPUs are released."""
        return any(not release.gpus for release in self._list_running())

    @property
    def gpus(self) -> set[str]:
        """The single GPUs that are released."""
        return {gpu for release in self._list_running() for gpu in release.gpus}

    @property
    def left_s(self) -> float:
        """Seconds until the first of them ends."""
        ends = [release.until for release in self._list_running()]
        return min(ends) - time.monotonic() if ends else 0.0

    def admit_requests(self) -> None:
        """No worker runs now: the time of the requested releases begins."""
        for release, answer in self._requested:
            running = replace(release, until=time.monotonic() + release.seconds)
            self._running.append(running)
            self._begun.append(running)
            self._admitted.append(answer)
        self._requested = []
        self._update_description()

    def answer_requests(self, report: ReleaseReport) -> None:
        """Answers all requests that were admitted."""
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
        ended = [release for release in self._running if release.until <= time.monotonic()]
        if ended:
            self._ended += ended
            self._running = [release for release in self._running if release not in ended]
            self._update_description()
        return self._running

    def _update_description(self) -> None:
        described = [
            f"{release.gpu_names} released until {release.end_time}, requested by {release.by}:"
            f" {release.reason}"
            for release in self._running
        ]
        self.description = join_first(described, _MAX_NAMED, "; ", "; and ", "more releases")
