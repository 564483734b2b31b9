"""What a collector provides to the source that polls it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vitald.collectors.raw_readings import RawReadings
from vitald.model.component import Component
from vitald.model.source import Readings


@dataclass(frozen=True, slots=True)
class PolledDevice:
    """A device to read. `expected`: once seen, it should be present. `read` runs in a thread; it
    may block, and may raise OSError.
    """

    component: Component
    read: Callable[[], RawReadings]
    expected: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The devices of this node. `absent`: why there is nothing to read; `trouble`: why not all of
    it can be read.

    `excluded`: patterns of names and addresses that the configuration excludes.
    """

    devices: Sequence[PolledDevice] = ()
    absent: str = ""
    trouble: str = ""
    excluded: Sequence[str] = ()


class Collector(Protocol):
    """Finds devices and reads them. `memory` is what it needs after a restart or a boot: anything
    that JSON can hold.
    """

    name: str
    memory: dict[str, Any]

    def find_devices(self) -> Found:
        """The present devices. Runs in a thread; it may block, and may raise OSError."""
        ...

    def combine_readings(
        self, read: Mapping[Component, Readings], found: Found
    ) -> Iterable[Readings]:
        """Readings that follow from those of all devices, of the node or of a device: counts, what
        is missing, ports that are all down.

        Called in each round, on the event loop.
        """
        ...
