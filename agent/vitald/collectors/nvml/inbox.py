"""What interrupts the collector between two rounds: events of NVML and requests from the daemon."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

# How long an Xid from NVML waits for the kernel log line about it, which has more detail.
CORROBORATION_S = 2.0
_BURST_S = 0.2  # events arrive in bursts
_XID, _XID_UNKNOWN = 0x8, 999

Pids = Mapping[str, Sequence[float]]  # process ids, by name of the GPU's component


class PendingXids:
    """Xids that NVML reported and that the collector has not reported yet."""

    def __init__(self) -> None:
        # By GPU and number: when it is due (monotonic clock), and when it happened (Unix time).
        self._xids: dict[tuple[str, int], tuple[float, float]] = {}

    @property
    def next_due(self) -> float:
        """On the monotonic clock; infinity if none waits."""
        return min((due for due, _ in self._xids.values()), default=math.inf)

    def add_xid(self, gpu: str, number: int) -> None:
        due = time.monotonic() + CORROBORATION_S
        self._xids.setdefault((gpu, number), (due, time.time()))

    def take_due(self) -> list[tuple[str, int, float]]:
        """GPU, number and Unix time of each."""
        now = time.monotonic()
        due = [xid for xid, (when, _) in self._xids.items() if when <= now]
        return [(*xid, self._xids.pop(xid)[1]) for xid in due]


class ProcessRequest:
    """A request for the processes on all GPUs. Those that ask at the same time share it."""

    def __init__(self) -> None:
        self._future: asyncio.Future[Pids] | None = None

    @property
    def is_pending(self) -> bool:
        return self._future is not None

    def add_waiter(self) -> asyncio.Future[Pids]:
        """The future is shared: shield it."""
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
        return self._future

    def send_answer(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        """`answers`: the worker's, by address; a GPU that gave no process ids is left out."""
        future, self._future = self._future, None
        if future is None or future.done():
            return
        pids = (
            (f"gpu/{gpu}", answer.get("values", {}).get("process_pids"))
            for gpu, answer in answers.items()
        )
        future.set_result({name: found for name, found in pids if found is not None})


class Inbox:
    """Wakes the collector. `is_release_requested`: another program needs the GPUs, so no command is
    waited for any longer.
    """

    def __init__(self, is_release_requested: Callable[[], bool]) -> None:
        self.is_release_requested = is_release_requested
        self.xids = PendingXids()
        self.process_request = ProcessRequest()
        self._urgent: set[str] = set()  # GPUs that reported an event: read out of turn
        self._wake = asyncio.Event()

    @property
    def has_urgent_gpus(self) -> bool:
        return bool(self._urgent)

    def take_urgent_gpus(self, gpus: Iterable[str]) -> list[str]:
        """Those of these GPUs that reported an event since the last call."""
        urgent, self._urgent = sorted(self._urgent.intersection(gpus)), set()
        return urgent

    def add_nvml_event(self, event: Mapping[str, Any]) -> None:
        """Any event is a reason to read its GPU now."""
        gpu = str(event["gpu"])
        if event["type"] == _XID and event["data"] != _XID_UNKNOWN:
            self.xids.add_xid(gpu, int(event["data"]))
        self._urgent.add(gpu)
        self.wake_up()

    def wake_up(self) -> None:
        self._wake.set()

    async def sleep(self, seconds: float) -> None:
        """Until the next wake-up, at most so long."""
        self._wake.clear()
        if not self.is_release_requested():
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(0.0, seconds))

    async def sleep_until(self, due: float) -> None:
        """Until the next round, an event, a request, or until an Xid is due. `due` is on the
        monotonic clock.
        """
        if not self._urgent and not self.process_request.is_pending:
            await self.sleep(min(due, self.xids.next_due) - time.monotonic())
        if self._urgent:
            await asyncio.sleep(_BURST_S)

    async def wait_for(self, answer: asyncio.Future[Any], seconds: float) -> None:
        """Until the answer or the next wake-up, at most so long."""
        self._wake.clear()
        wake_up: asyncio.Future[Any] = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait(
                {answer, wake_up}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            wake_up.cancel()
