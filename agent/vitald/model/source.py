"""
The shape that every source has.

A source is an endless asynchronous iterator of batches. An empty batch says "looked, nothing new"
and is what keeps the source fresh; one that has caught up must come at least once within
`deadline_s`. A source that cannot go on raises SourceFailed; the daemon then shows it as failed,
waits, and starts it again from the last stored position.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from vitald.model.component import Component
from vitald.model.diagnostic import Run
from vitald.model.event import Event
from vitald.model.reading import Readings

KERNEL_LOG = "kernel_log"


class SourceState(Enum):
    STARTING = "starting"
    OK = "ok"
    FAILED = "failed"
    RELEASED = "released"  # it stepped aside because somebody asked it to
    ABSENT = "not present"  # this node has nothing that it could look at


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceHealth:
    """When a source last truly looked. Past its deadline, what it watches is unknown, not
    healthy.
    """

    name: str
    state: SourceState
    deadline: float  # seconds a look may be old
    last_seen: float | None = None
    looked: float = 0.0  # the same moment on the monotonic clock, which nobody can step
    detail: str = ""
    simulated: bool = False  # what it reads is not real

    def is_fresh(self, monotonic: float) -> bool:
        return (
            self.state in (SourceState.OK, SourceState.ABSENT)
            and monotonic - self.looked <= self.deadline
        )


class SourceFailed(Exception):
    """The source cannot look. The text says at what, and why, for `vitald status`."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a source has read. `cursor` is the source's own: a sequence number, a file offset."""

    source: str
    boot_id: str
    cursor: str


@dataclass(frozen=True, slots=True)
class Batch:
    """What one look gave. `caught_up`: nothing more was there to be read at that moment.

    `state`: anything but OK where it could not look, or not at all of what it watches; `detail`
    then says why. `again`: some of the events may have been handed in before, from another place.
    """

    source: str
    events: tuple[Event, ...] = ()
    position: Position | None = None
    caught_up: bool = False
    state: SourceState = SourceState.OK
    detail: str = ""
    again: bool = False
    readings: tuple[Readings, ...] = ()  # everything that is known now of the components it reads
    simulated: bool = False  # what it reads is not real
    runs: tuple[Run, ...] = ()  # of diagnostics, which the events come from
    holding: tuple[
        Event, ...
    ] = ()  # what was told before and is observed still: the judge must know of it
    calm: frozenset[tuple[Component, str]] = (
        frozenset()
    )  # codes of states that are not observed: nothing of ours may say that they are


class Source(Protocol):
    name: str
    deadline_s: float

    def batches(self, after: Position | None) -> AsyncIterator[Batch]: ...
