"""
The interface of every source of events, and the readings that it hands over.

A source is an endless asynchronous iterator of batches. An empty batch means that nothing new was
read, and keeps the source fresh; a source that has caught up must yield one within `deadline_s`. A
source that cannot continue raises SourceFailed; the daemon then shows it as failed, waits, and
restarts it from the last stored position.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, Union

from vitald.model.component import Component, DeviceNames
from vitald.model.diagnostic import Run
from vitald.model.event import Event

KERNEL_LOG = "kernel_log"
Sample = Union[float, str, "tuple[float, ...]"]  # one value, or one for each part, such as a link


class SourceState(Enum):
    STARTING = "starting"
    OK = "ok"
    FAILED = "failed"
    RELEASED = "released"  # it released its devices on request
    ABSENT = "not present"  # this node has nothing that it could read


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceHealth:
    """When a source last read its devices. Past its deadline, their health is unknown."""

    name: str
    state: SourceState
    deadline: float  # maximum age of the last read in seconds
    last_seen: float | None = None
    polled_at: float = 0.0  # the same time on the monotonic clock
    detail: str = ""
    simulated: bool = False  # what it reads is not real

    def is_fresh(self, monotonic: float) -> bool:
        return (
            self.state in (SourceState.OK, SourceState.ABSENT)
            and monotonic - self.polled_at <= self.deadline
        )


class SourceFailed(Exception):
    """The source cannot read. The text says what, and why, for `vitald status`."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a source has read. `cursor` is the source's own: a sequence number, a file offset."""

    source: str
    boot_id: str
    cursor: str


@dataclass(frozen=True, slots=True)
class Batch:
    """The result of one read. `caught_up`: nothing more could be read at that time.

    `state`: anything but OK if not everything could be read; `detail` then says why. `again`: some
    of the events may have been reported before, from another file.
    """

    source: str
    events: tuple[Event, ...] = ()
    position: Position | None = None
    caught_up: bool = False
    state: SourceState = SourceState.OK
    detail: str = ""
    again: bool = False
    readings: tuple[Readings, ...] = ()  # the current readings of its components
    # The devices that it knows, those that are missing included; None: as before
    devices: tuple[DeviceNames, ...] | None = None
    simulated: bool = False  # what it reads is not real
    durable: bool = False  # its position must not be lost, though no event comes with it
    runs: tuple[Run, ...] = ()  # of diagnostics, which the events come from
    # Reported before and still observed: a finding must be open
    holding: tuple[Event, ...] = ()
    # Codes of states that are observed not to hold: no finding may be open
    calm: frozenset[tuple[Component, str]] = frozenset()


class Source(Protocol):
    name: str
    deadline_s: float

    def read_batches(self, after: Position | None) -> AsyncIterator[Batch]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Readings of one component: values by name, in base units, and the reasons of missing ones.

    `identity` is its UUID or serial number, which survives a move. `fresh` names the values that
    this poll read; the others are from earlier ones.
    """

    component: Component
    identity: str
    time: float
    polled_at: float  # the same moment on the monotonic clock
    values: Mapping[str, Sample]
    fresh: frozenset[str]
    missing: Mapping[str, str] = field(default_factory=dict)
    simulated: bool = False
    unknown_reason: str = ""  # reason why its health is unknown although it was read
    # Index, address, interface, mount
    labels: Mapping[str, str] = field(default_factory=dict)
