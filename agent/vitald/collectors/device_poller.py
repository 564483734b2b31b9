"""
Runs the reads of one collector, each with a deadline.

A read may hang. Its thread is abandoned, and its device is `unknown` until a read meets its
deadline. Results that arrive after the deadline are discarded: the values are of some time before,
and some drivers give 0 for what did not answer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar, Union

import structlog

from vitald.collectors.collector import Collector, Found
from vitald.collectors.raw_readings import RawReadings
from vitald.model.source import SourceFailed
from vitald.small_files import describe_error
from vitald.worker_thread import NoThread, start_thread

log: structlog.stdlib.BoundLogger = structlog.get_logger("polling")

T = TypeVar("T")

_SOON_S = 0.2  # a read that takes longer does not delay the others
FIND = ""  # the key of the read that finds the devices; a device's is its component's name
NOT_BACK = "a read has not returned"


@dataclass(frozen=True, slots=True)
class Broken:
    """A read that raised an exception: a fault of this program, or of the file."""

    error: Exception


class ReaderThreads(Generic[T]):
    """Runs one read for each device, and remembers those that have not returned.

    One thread goes through all devices in turn. If a read does not return soon, another thread goes
    on with the rest, and the first one is abandoned with its device until the read returns, if
    ever. The caller enforces deadlines: it sees for how long each read has been under way.

    At most one read is under way for each device, so there are never more threads than devices,
    plus one. They are daemon threads: one that hangs in the kernel does not delay the end of the
    process.
    """

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


Results = dict[str, Union[RawReadings, Found, Broken]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HungReads:
    """Reads past their deadline, by key.

    `hanging`: all that are still under way. `begun`: those of them that were not reported yet, with
    their beginning (monotonic). `ended`: reported ones whose device answers again, or is gone.
    """

    hanging: Collection[str]
    begun: Mapping[str, float]
    ended: Collection[str]
    gone: Collection[str]


class DevicePoller:
    """The devices of one collector, and the reads that are under way."""

    def __init__(self, collector: Collector, timeout_s: float) -> None:
        self.found = Found()
        self.is_listed = False  # the devices have been listed once
        self.failures: dict[str, str] = {}  # why a read failed, by key
        self.hung: set[str] = set()  # reads that were reported to hang
        self.wake = asyncio.Event()  # a poll is due before the next round
        self.readers: ReaderThreads[RawReadings | Found] = ReaderThreads(collector.name)
        self._collector = collector
        self._timeout_s = timeout_s
        self._late: set[str] = set()  # reads under way that are past their deadline
        self._answered: set[str] = set()  # reads that met their deadline since `update_hung`

    def restore_hung(self, hung: Iterable[str]) -> None:
        """Restore the reads that were reported to hang."""
        self.hung, self.failures = set(hung), {}

    # --- reads

    async def poll_devices(self) -> Results:
        """List the devices, and read each that has no read under way. Returns what came back."""
        results = await self.readers.run_reads({FIND: self._collector.find_devices})
        self._take_list(results)
        return await self.read_new_devices(results | await self.readers.run_reads(self._reads()))

    async def read_new_devices(self, results: Results) -> Results:
        """These results; if a list of devices is among them, read those that are new as well."""
        while self._take_list(results):
            reads = {key: read for key, read in self._reads().items() if key not in results}
            results |= await self.readers.run_reads(reads)
        return results

    def _reads(self) -> dict[str, Callable[[], RawReadings | Found]]:
        return {device.component.name: device.read for device in self.found.devices}

    def _take_list(self, results: Results) -> bool:
        """Use a list of devices, even a late one: there is none better."""
        found = results.pop(FIND, None)
        if found is None:
            return False
        self._meets_deadline(FIND)
        if isinstance(found, Broken):
            self.record_failure(FIND, found)
            return False
        assert isinstance(found, Found)
        self.found, self.is_listed = found, True
        self.failures.pop(FIND, None)
        return True

    # --- results

    def accept_results(self, results: Results, present: Collection[str]) -> Results:
        """Those that met their deadline, of devices that are present."""
        self.failures = {
            key: reason for key, reason in self.failures.items() if key in present or key == FIND
        }
        return {
            key: result
            for key, result in results.items()
            if self._meets_deadline(key) and key in present
        }

    def _meets_deadline(self, key: str) -> bool:
        """Whether a result arrived before its deadline. If not, it is read again at once."""
        if key not in self._late:
            self._answered.add(key)
            return True
        self._late.discard(key)
        self.wake.set()
        return False

    def clear_failure(self, key: str) -> None:
        """The device was read."""
        self.failures.pop(key, None)

    def record_failure(self, key: str, broken: Broken) -> str:
        """Keep, and return, the reason why a read failed."""
        error = broken.error
        name = key or "devices"
        if isinstance(error, OSError):
            reason = f"{error.filename or name}: {describe_error(error)}"
        else:
            log.error("look_failed", source=self._collector.name, device=name, exc_info=error)
            reason = f"{type(error).__name__}: {error}"
        self.failures[key] = reason
        return reason

    # --- deadlines

    def find_overdue(self, now: float) -> set[str]:
        """Reads that have just become late, at `now` on the monotonic clock."""
        return self._select_overdue(self.readers.under_way, now)

    def _select_overdue(self, under_way: Mapping[str, float], now: float) -> set[str]:
        return {
            key
            for key, since in under_way.items()
            if now - since > self._timeout_s and key not in self._late
        }

    def update_hung(self, present: Collection[str], now: float) -> HungReads:
        """What hangs now, and what no longer does."""
        under_way = self.readers.under_way
        overdue = self._select_overdue(under_way, now)
        self._late |= overdue
        begun = {key: under_way[key] for key in sorted(overdue - self.hung)}
        self.hung |= overdue
        hanging = sorted(self.hung & under_way.keys())
        gone: set[str] = set()
        if self.is_listed and FIND not in self.failures:
            gone = self.hung - set(present) - under_way.keys() - {FIND}
        ended = sorted(self.hung & self._answered | gone)
        self.hung -= set(ended)
        self._answered.clear()
        return HungReads(hanging=hanging, begun=begun, ended=ended, gone=gone)

    def find_hung(self) -> dict[str, float]:
        """Reads that were reported to hang and still do, sorted, with their beginning."""
        return {key: at for key, at in sorted(self.readers.under_way.items()) if key in self.hung}

    @property
    def is_complete(self) -> bool:
        """Whether the last list of devices is current and names all of them."""
        listed = FIND not in self.failures and FIND not in self.readers.under_way
        return listed and not self.found.trouble

    def describe_failures(self) -> list[str]:
        """Why devices could not be listed or read, for operators."""
        hung = [f"the listing of devices: {NOT_BACK}"] if FIND in self.hung else []
        return hung + [
            f"{key or 'devices'}: {reason}" for key, reason in sorted(self.failures.items())
        ]
