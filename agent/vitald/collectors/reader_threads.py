"""
Runs reads that may hang in threads, without waiting for those that do.

One thread goes through all devices in turn. If a read does not return soon, another thread goes on
with the rest, and the first one is abandoned with its device until the read returns, if ever. The
caller enforces deadlines: it sees for how long each read has been under way.

At most one read is under way for each device, so there are never more threads than devices, plus
one. They are daemon threads: one that hangs in the kernel does not delay the end of the process.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from vitald.model import SourceFailed
from vitald.worker_thread import NoThread, start_thread

T = TypeVar("T")

_SOON_S = 0.2  # a read that takes longer does not delay the others


@dataclass(frozen=True, slots=True)
class Broken:
    """A read that raised an exception: a fault of this program, or of the file."""

    error: Exception


class ReaderThreads(Generic[T]):
    """Runs one read for each device, and remembers those that have not returned."""

    def __init__(self, name: str, soon_s: float = _SOON_S) -> None:
        self._name = name
        self._soon_s = soon_s
        self._began: dict[str, float] = {}  # by device: since when its read has been under way
        self._done: dict[str, T | Broken] = {}
        self._lock = threading.Lock()

    @property
    def under_way(self) -> Mapping[str, float]:
        """Devices whose read has not returned, and since when (monotonic clock)."""
        with self._lock:
            return dict(self._began)

    @property
    def is_pending(self) -> bool:
        """Whether there are results to collect, now or later."""
        with self._lock:
            return bool(self._began or self._done)

    def collect_results(self) -> dict[str, T | Broken]:
        """The results since the last call."""
        with self._lock:
            done, self._done = self._done, {}
        return done

    async def run_reads(self, jobs: Mapping[str, Callable[[], T]]) -> dict[str, T | Broken]:
        """Start a read for each device that has none under way. Returns the results, of these and
        of earlier reads, as soon as no other is expected soon. Raises SourceFailed if no thread can
        be started.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            waiting = deque((key, job) for key, job in jobs.items() if key not in self._began)
        while waiting:
            idle = asyncio.Event()
            thread = threading.Thread(
                target=self._run_reads, args=(waiting, loop, idle), name=self._name, daemon=True
            )
            try:
                start_thread(thread)
            except NoThread as error:
                raise SourceFailed(str(error)) from None
            left = len(waiting) + 1
            while not idle.is_set() and left != len(waiting):  # as long as reads return
                left = len(waiting)
                try:
                    await asyncio.wait_for(idle.wait(), self._soon_s)
                except asyncio.TimeoutError:
                    continue
        return self.collect_results()

    def _run_reads(
        self,
        waiting: deque[tuple[str, Callable[[], T]]],
        loop: asyncio.AbstractEventLoop,
        idle: asyncio.Event,
    ) -> None:
        while True:
            with self._lock:
                if not waiting:
                    break
                key, job = waiting.popleft()
                self._began[key] = time.monotonic()
            try:
                result: T | Broken = job()
            except Exception as error:  # reported by the caller, with the device
                result = Broken(error)
            with self._lock:
                del self._began[key]
                self._done[key] = result
        try:
            loop.call_soon_threadsafe(idle.set)
        except RuntimeError:
            return  # the event loop has ended
