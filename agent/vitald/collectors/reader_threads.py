"""
Reads that may hang, without anybody waiting for them.

Owns     the threads. One goes through all devices in turn; where a read does not come back soon,
         another goes on with the rest, and the first is left with its device until it returns, if
         ever.
Refuses  deadlines: who asks sees for how long each read has been under way.

There is at most one read under way for each device, so there are never more threads than devices,
and one more. They are daemon threads: one that hangs in the kernel does not hold up the process's
end.
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

_SOON_S = 0.2  # a read that takes longer no longer holds up the others


@dataclass(frozen=True, slots=True)
class Broken:
    """A read that raised something: a fault of ours, or of the file."""

    error: Exception


class ReaderThreads(Generic[T]):
    """Runs one read for each device, and remembers those that have not come back."""

    def __init__(self, name: str, soon_s: float = _SOON_S) -> None:
        self._name = name
        self._soon_s = soon_s
        self._began: dict[str, float] = {}  # by device: since when its read has been under way
        self._done: dict[str, T | Broken] = {}
        self._lock = threading.Lock()

    @property
    def under_way(self) -> Mapping[str, float]:
        """Devices whose read has not come back, and since when (monotonic clock)."""
        with self._lock:
            return dict(self._began)

    @property
    def is_pending(self) -> bool:
        """Whether something is still to be collected, now or later."""
        with self._lock:
            return bool(self._began or self._done)

    def collect_results(self) -> dict[str, T | Broken]:
        """What came back since this was last asked."""
        with self._lock:
            done, self._done = self._done, {}
        return done

    async def run_reads(self, jobs: Mapping[str, Callable[[], T]]) -> dict[str, T | Broken]:
        """Start a read for each device that has none under way. Returns what came back, of these or
        of earlier ones, as soon as nothing else is to be expected soon. Raises SourceFailed where
        there is no thread for them.
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
            while not idle.is_set() and left != len(waiting):  # go on waiting while it gets on
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
            except Exception as error:  # told with the device, by who asked
                result = Broken(error)
            with self._lock:
                del self._began[key]
                self._done[key] = result
        try:
            loop.call_soon_threadsafe(idle.set)
        except RuntimeError:
            return  # the loop has ended meanwhile
