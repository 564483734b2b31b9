"""
Counts of events for the metrics, since the daemon started.

Codes come from log text, so every table here has a bound: beyond it they count as `other`. Keys
are plain tuples, as each event looks up three of them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from vitald.model import Component, ComponentKind, Event

OTHER = "other"
_MAX_SERIES = 2000
_MAX_XIDS = 1000
_XID = "xid"
Key = TypeVar("Key")


class EventLabels(NamedTuple):
    """What events are counted by."""

    kind: str
    code: str
    trust: str
    is_simulated: bool


class EventCode(NamedTuple):
    """What the time of the last event is kept by."""

    kind: str
    code: str
    is_simulated: bool


class GpuXid(NamedTuple):
    """What the Xids of GPUs are counted by."""

    component: Component
    code: str
    is_simulated: bool


@dataclass(slots=True)
class Count:
    """A counter. `since`: when it began, in seconds since the epoch."""

    since: float
    number: int = 0


class EventTally:
    """Counts each event once, and keeps the time of the last one of each code."""

    def __init__(self) -> None:
        self.counts: dict[EventLabels, Count] = {}
        self.xids: dict[GpuXid, Count] = {}
        # Times of events in seconds since the epoch. Lines that are not evaluated do not count.
        self.last_times: dict[EventCode, float] = {}

    def count_event(self, event: Event) -> None:
        now = time.time()
        code = event.code.partition("/")[2]
        labels = EventLabels(event.kind, code, event.trust.value, event.is_simulated)
        if labels not in self.counts and len(self.counts) >= _MAX_SERIES:
            labels = EventLabels(event.kind, OTHER, event.trust.value, event.is_simulated)
        _increment(self.counts, labels, now)
        if not event.is_trusted:
            return
        last = EventCode(labels.kind, labels.code, labels.is_simulated)
        self.last_times[last] = max(event.time, self.last_times.get(last, event.time))
        if event.kind == _XID and event.component.kind is ComponentKind.GPU:
            self._count_xid(GpuXid(event.component, code, event.is_simulated), now)

    def _count_xid(self, xid: GpuXid, now: float) -> None:
        if xid not in self.xids and len(self.xids) >= _MAX_XIDS:
            xid = GpuXid(xid.component, OTHER, xid.is_simulated)
            if xid not in self.xids and len(self.xids) >= 2 * _MAX_XIDS:
                return  # no node has so many GPUs; `counts` has the event
        _increment(self.xids, xid, now)


def _increment(counts: dict[Key, Count], key: Key, now: float) -> None:
    if key not in counts:
        counts[key] = Count(now)
    counts[key].number += 1
