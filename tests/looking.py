"""Drives a polled source by hand: one look at a time, in a loop of its own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from typing import Any, Protocol, cast

from tests.waiting import WAIT_S
from vitald import catalog
from vitald.collectors import polling as polled_module
from vitald.collectors.collector import Collector
from vitald.collectors.polling import PollingSource
from vitald.model.event import Event
from vitald.model.source import Batch, Position, Readings

CATALOG = catalog.load_catalog("nvidia", {})
polled_module._OFTEN_S = 0.1  # what hangs is looked after every second, which is long for a test


def polled(subject: Collector, *kinds: str, boot_id: str = "boot-1") -> PollingSource:
    """One that waits for each read, however busy the machine is."""
    source = PollingSource(subject, CATALOG, boot_id, every_s=60.0, timeout_s=3600.0, kinds=kinds)
    source._poller.readers._soon_s = WAIT_S
    return source


class _Source(Protocol):
    def read_batches(self, after: Position | None) -> AsyncIterator[Batch]: ...


def batches_of(source: _Source, after: Position | None = None) -> AsyncGenerator[Batch, None]:
    """Those of a source whose `batches` is a generator: its user closes it."""
    return cast("AsyncGenerator[Batch, None]", source.read_batches(after))


class Looking:
    """`look()` is one round, and what it gave. Keeps all events, and the position that was stored
    last.
    """

    def __init__(self, source: PollingSource, after: Position | None = None) -> None:
        self.source = source
        self.events: list[Event] = []
        self.position = after
        self.last = Batch(source.name)
        self._loop = asyncio.new_event_loop()
        self._batches = batches_of(source, after)

    def __enter__(self) -> Looking:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._batches.aclose())
        self._loop.close()

    def expect_hang(self, look_s: float = 2.0, soon_s: float = 0.5) -> None:
        """From now on what hangs is left behind after `soon_s`, and reported after `look_s`."""
        self.source._poller._timeout_s = look_s
        self.source._poller.readers._soon_s = soon_s

    def look(self, times: int = 1) -> list[Event]:
        """The events of so many rounds."""
        new: list[Event] = []
        for _ in range(times):
            self.source._due = time.monotonic()
            self.source.poll_now()
            self.last = self._loop.run_until_complete(self._next())
            new += self.last.events
            self.position = self.last.position or self.position
        self.events += new
        return new

    def until(self, seen: Callable[[Batch], bool]) -> Batch:
        """Go on without asking for looks until a batch shows it."""

        async def wait() -> Batch:
            while True:
                batch = await self._next()
                self.last = batch
                self.events += batch.events
                self.position = batch.position or self.position
                if seen(batch):
                    return batch

        return self._loop.run_until_complete(asyncio.wait_for(wait(), WAIT_S))

    async def _next(self) -> Batch:
        return await self._batches.__anext__()

    def readings(self, name: str) -> Readings:
        """Those of a component, such as `nic/0000:a0:19.0`."""
        return next(one for one in self.last.readings if one.component.name == name)

    @property
    def memory(self) -> dict[str, Any]:
        assert self.position is not None
        stored: dict[str, Any] = json.loads(self.position.cursor)
        return stored


def told(events: Iterable[Event]) -> set[tuple[str, str]]:
    """Code and component of what begins: not who is who, and not what is over."""
    return {
        (event.code, event.component.name)
        for event in events
        if event.kind != "device" and event.fields.get("recovered") is not True
    }
