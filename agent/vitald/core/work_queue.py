"""The pipeline's queue of work items, which holds sources back while it is full."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from vitald.core.daemon_events import OWN_SOURCE, DaemonEvents
from vitald.core.work_items import BatchItem, WorkItem
from vitald.model import Batch

# Events waiting to be evaluated; beyond it the readers wait, and the kernel's ring is the buffer.
_MAX_EVENTS = 4_000
_BACKLOG = 64  # events waiting at a start: more than a client waits for


class WorkQueue:
    """Items in the order in which they were handed in.

    `report_backlog` is called while many events wait.
    """

    def __init__(self, daemon_events: DaemonEvents, report_backlog: Callable[[], None]) -> None:
        self.items: deque[WorkItem] = deque()
        self.filled_at = 0.0  # when the first of these was added to none; on the monotonic clock
        self._daemon_events = daemon_events
        self._report_backlog = report_backlog
        self._event_count = 0  # queued, or taken and not released yet
        self._added = asyncio.Event()
        self._room = asyncio.Event()

    def add_item(self, item: WorkItem) -> None:
        """Queue an item; never waits."""
        if not self.items:
            self.filled_at = time.monotonic()
        # What was queued before a step of the clock is dated by the old clock.
        stepped = self._daemon_events.detect_clock_step()
        steps = (BatchItem(Batch(OWN_SOURCE, (event,))) for event in stepped)
        for queued in (*steps, item):
            self.items.append(queued)
            self._event_count += queued.event_count
        if self._event_count > _BACKLOG:
            self._report_backlog()
        self._added.set()

    async def wait_for_room(self) -> None:
        """Wait while too many events are queued."""
        while self._event_count >= _MAX_EVENTS:
            self._room.clear()
            await self._room.wait()

    async def wait_for_item(self, timeout_s: float) -> None:
        """Wait until an item is added; at most so many seconds."""
        self._added.clear()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._added.wait(), timeout_s)

    def release_items(self, items: Sequence[WorkItem]) -> None:
        """Make room for what takes the place of these items, which were taken and evaluated."""
        self._event_count -= sum(item.event_count for item in items)
        if self._event_count < _MAX_EVENTS:
            self._room.set()

    def take_batches(self) -> list[Batch]:
        """Empty the queue, and return the batches that were in it."""
        batches = [item.batch for item in self.items if item.batch is not None]
        self.items.clear()
        self._event_count = 0
        return batches
