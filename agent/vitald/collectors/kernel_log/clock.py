"""
When the lines of a saved log were written, on one clock that goes through all of it, and of which
boot each line is.

Owns     what stands in which order: lines, boots, rotated files that were put together the wrong
         way round.
Refuses  reading a date (dates.py) or a stamp (lines.py).

Inside a boot the kernel's own stamp tells the time, because the wall clock may be stepped; dates
put boots in their order. A line that has neither stands where the line before it stands: nobody
knows how much time has passed.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from vitald.collectors.kernel_log.lines import Line

BANNER = b"Linux version "  # the first line of every boot
# Journalctl, between two of them
_NEXT_BOOT = re.compile(rb"-- (?:Boot [0-9a-f]{32}|Reboot) --\s*\Z")
_JITTER_USEC = 2_000_000  # stamps of two processors differ by less
# Of the kernel's clock from the wall clock, and by how much it grows
_DRIFT_S, _DRIFT_RATE = (
    60.0,
    2e-4,
)
_STEPPED_S = 3600.0  # the wall clock is seldom set by more within a boot, but for its beginning:
_EARLY_S, _ZONES_S = 1800.0, 15 * 3600.0  # firmware may keep local time,
_NO_CLOCK = 1_262_304_000.0  # or no time at all, and then says something before 2010
_REMEMBERED = 1024  # boots
_HELD = 1 << 14  # what is out of order by more lines than these stays so


@dataclass(slots=True)
class Boot:
    """`place` is where the kernel's own clock was zero, `zero` the same moment in seconds since the
    epoch, if known.
    """

    name: str
    place: float
    zero: float | None = None


class Clock:
    """The lines of one host, told in the order in which they are read."""

    def __init__(self, host: str = "") -> None:
        # Boots that are certain and that nobody has taken from here yet
        self.begun: list[Boot] = []
        # One word: it stands in the names of processes
        self._name = f"{host}-log" if host else "log"
        self._count = 1
        self._boot = Boot(f"{self._name}-1", 0.0)
        self._by_id: dict[str, Boot] = {}
        self._known: dict[str, Boot] = {}  # those that have a date
        self._place: float | None = None  # of the line before
        self._anew = False  # journalctl has said that another boot begins
        self._usec = 0
        self._offset: float | None = None  # from a date to a place

    def passed(self, line: Line) -> float | None:
        """The place of a line that reports nothing; None where its date must be read to know it."""
        usec = line.usec
        if not line.shaped and line.message.startswith(b"-- ") and _NEXT_BOOT.match(line.message):
            self._anew = self._place is not None
        elif self._anew:
            return None
        if usec is None:
            return None if line.message.startswith(BANNER) else self._place
        if usec < self._usec - _JITTER_USEC or self._place is None:
            return None
        self._usec = usec
        self._place = self._boot.place + usec / 1e6
        return self._place

    def tell(self, line: Line, date: float | None, boot_id: str = "") -> tuple[str, float]:
        """The boot of a line, and its place. `boot_id`: where the form keeps it."""
        seconds = line.usec / 1e6 if line.usec is not None else None
        if boot_id:
            self._boot = self._of_id(boot_id, date, seconds)
        elif self._anew and line.shaped:
            self._anew = False
            self._boot = self._another(
                date - (seconds or 0.0) if date is not None else None, certain=False
            )
            self.begun.append(self._boot)
        elif seconds is None:
            self._by_date(line, date)
        else:
            self._by_stamp(seconds, date)
        if seconds is not None:
            self._usec, self._place = int(seconds * 1e6), self._boot.place + seconds
        elif date is not None:
            self._place = self._at(date)
        elif self._place is None:
            self._place = 0.0
        return self._boot.name, self._place

    def _by_stamp(self, seconds: float, date: float | None) -> None:
        boot, zero = self._boot, date - seconds if date is not None else None
        if self._place is None:
            boot.place = self._at(zero) if zero is not None else 0.0
        elif seconds * 1e6 < self._usec - _JITTER_USEC:
            self._boot = boot = self._again(zero, seconds) or self._another(
                zero, certain=zero is not None
            )
        elif (
            zero is not None
            and boot.zero is not None
            and abs(zero - boot.zero) > _STEPPED_S + _DRIFT_RATE * seconds
        ):
            if boot.zero < _NO_CLOCK or (
                self._usec < _EARLY_S * 1e6 and abs(zero - boot.zero) < _ZONES_S
            ):
                boot.zero, self._offset = zero, boot.place - zero  # the clock was set
            else:
                # Another boot, by its date; nothing shows that it is the same node restarted.
                self._boot = boot = self._again(zero, seconds) or self._another(zero, certain=False)
        if zero is not None and boot.zero is None:
            if self._offset is None:
                self._offset = boot.place - zero
            self._remember(boot, zero, certain=True)

    def _by_date(self, line: Line, date: float | None) -> None:
        """Of other lines than the first of a boot only their order says which boot they are of."""
        if date is not None and line.message.startswith(BANNER):
            self._boot = self._new(self._at(date))
            self._remember(self._boot, date, certain=True)

    def _of_id(self, boot_id: str, date: float | None, seconds: float | None) -> Boot:
        known = self._by_id.get(boot_id)
        if known is not None:
            return known
        zero = date - (seconds or 0.0) if date is not None else None
        boot = self._another(zero, certain=False)
        boot.name = boot_id
        while len(self._by_id) >= _REMEMBERED:
            del self._by_id[next(iter(self._by_id))]
        self._by_id[boot_id] = boot
        self.begun.append(boot)
        return boot

    def _again(self, zero: float | None, seconds: float) -> Boot | None:
        """A boot that lines were read of before."""
        if zero is None:
            return None
        near = [boot for boot in self._known.values() if boot.zero is not None]
        found = min(near, key=lambda one: abs(zero - (one.zero or 0.0)), default=None)
        if found is None or abs(zero - (found.zero or 0.0)) > _DRIFT_S + _DRIFT_RATE * seconds:
            return None
        return found

    def _another(self, zero: float | None, *, certain: bool) -> Boot:
        if zero is not None and (self._offset is not None or self._place is None):
            boot = self._new(self._at(zero))
        else:
            boot = self._new(self._place + 1.0 if self._place is not None else 0.0)
            if zero is not None:
                self._offset = boot.place - zero
        if zero is not None:
            self._remember(boot, zero, certain=certain)
        return boot

    def _new(self, place: float) -> Boot:
        if self._place is not None:
            self._count += 1
        return Boot(f"{self._name}-{self._count}", place)

    def _remember(self, boot: Boot, zero: float, *, certain: bool) -> None:
        boot.zero = zero
        while len(self._known) >= _REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[boot.name] = boot
        if certain:
            self.begun.append(boot)

    def _at(self, date: float) -> float:
        """Where a date stands; the first line's is told as it is."""
        if self._offset is None:
            self._offset = self._place - date if self._place is not None else 0.0
        return date + self._offset


class Placed(Protocol):
    @property
    def place(self) -> float: ...


T = TypeVar("T", bound=Placed)


def in_time_order(told: Iterable[T]) -> Iterator[T]:
    """The same by their places. What stands far from where it belongs comes when it is read: memory
    is bounded.
    """
    held: list[tuple[float, int, T]] = []
    for number, one in enumerate(told):
        heapq.heappush(held, (one.place, number, one))
        if len(held) > _HELD:
            yield heapq.heappop(held)[2]
    while held:
        yield heapq.heappop(held)[2]
