"""Items of the pipeline's queue: what is evaluated, and the tasks that wait for it."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import TypeVar

from vitald.catalog import Catalog
from vitald.core.evaluator import Evaluator, OperatorAction
from vitald.ledger.store import LedgerEntry
from vitald.model import Batch, Finding

T = TypeVar("T")
_SLICE = 8  # events evaluated before other tasks get their turn


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
