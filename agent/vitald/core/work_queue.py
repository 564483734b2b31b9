"""
The pipeline's queue of work items, which holds sources back while it is full; and the kinds of
items: what is evaluated, and the tasks that wait for it.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from vitald.catalog import Catalog
from vitald.core.evaluator import OWN_SOURCE, DaemonEvents, Evaluator, OperatorAction
from vitald.ledger.store import LedgerEntry
from vitald.model.finding import Finding
from vitald.model.source import Batch

# Events waiting to be evaluated; beyond it the readers wait, and the kernel's ring is the buffer.
_MAX_EVENTS = 4_000
_BACKLOG = 64  # events waiting at a start: more than a client waits for
T = TypeVar("T")
_SLICE = 8  # events evaluated before other tasks get their turn


class WorkQueue:
    """Items in the order in which they were handed in.

    `report_backlog` is called while many events wait.
    """

    def __init__(self, daemon_events: DaemonEvents, report_backlog: Callable[[], None]) -> None:
        self.items: deque[WorkItem] = deque()
        self._daemon_events = daemon_events
        self._report_backlog = report_backlog
        self._event_count = 0  # queued, or taken and not released yet
        self._added = asyncio.Event()
        self._room = asyncio.Event()

    def add_item(self, item: WorkItem) -> None:
        """Queue an item; never waits."""
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


class WorkItem(ABC):
    """One item. `batch` and `event_count` are those of a batch; None and 0 for any other item."""

    __slots__ = ()
    batch: Batch | None = None
    event_count: int = 0

    @abstractmethod
    async def apply(self, evaluator: Evaluator) -> LedgerEntry:
        """Evaluate it; between parts of a long item, other tasks get their turn."""

    def finish(self) -> None:  # noqa: B027
        """Called once the entry is stored and published."""


class BatchItem(WorkItem):
    """A batch of a source."""

    __slots__ = ("batch", "event_count")

    def __init__(self, batch: Batch) -> None:
        self.batch: Batch = batch
        self.event_count = len(batch.events)

    async def apply(self, evaluator: Evaluator) -> LedgerEntry:
        batch = self.batch
        entry = LedgerEntry(position=batch.position, runs=batch.runs, durable=batch.durable)
        for begin in range(0, len(batch.events), _SLICE):
            if begin:
                await asyncio.sleep(0)
            entry = evaluator.evaluate_events(entry, *batch.events[begin : begin + _SLICE])
        return evaluator.reconcile(entry, batch)


class BarrierItem(WorkItem):
    """A task waits until all that was queued before has been stored."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def apply(self, evaluator: Evaluator) -> LedgerEntry:  # noqa: ARG002
        return LedgerEntry()

    def finish(self) -> None:
        _set_result(self.done, None)


class CatalogItem(BarrierItem):
    """The catalogue was reloaded."""

    __slots__ = ("catalog",)

    def __init__(self, catalog: Catalog) -> None:
        super().__init__()
        self.catalog = catalog

    async def apply(self, evaluator: Evaluator) -> LedgerEntry:
        return LedgerEntry(
            transitions=tuple(evaluator.judge.reload_catalog(self.catalog, time.time()))
        )


class ActionItem(WorkItem):
    """An operator acts on a finding; `done` is the finding then, None where it is not open."""

    __slots__ = ("_acted", "_action", "done")

    def __init__(self, action: OperatorAction) -> None:
        self.done: asyncio.Future[Finding | None] = asyncio.get_running_loop().create_future()
        self._action = action
        self._acted: Finding | None = None

    async def apply(self, evaluator: Evaluator) -> LedgerEntry:
        entry, self._acted = evaluator.apply_action(self._action)
        return entry

    def finish(self) -> None:
        _set_result(self.done, self._acted)


def _set_result(future: asyncio.Future[T], result: T) -> None:
    if not future.done():  # the task that waited may have been cancelled
        future.set_result(result)
