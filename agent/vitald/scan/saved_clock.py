"""
Clock of a saved log: the boot of each line, and its place on one time line through all boots.

Owns     the order of lines, boots and rotated files that were joined in the wrong order.
Refuses  reading a date (dates.py) or a stamp (lines.py).

A place is a time in seconds, on one scale for the whole log. Within a boot the kernel's own stamp
gives the place, because the wall clock may be stepped; dates put boots in order. A line that has
neither gets the place of the line before it.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from vitald.collectors.kernel_log.lines import Line
from vitald.collectors.kernel_log.record import BANNER, is_banner

# Written by journalctl between two boots
_NEXT_BOOT = re.compile(rb"-- (?:Boot [0-9a-f]{32}|Reboot) --\s*\Z")
_JITTER_USEC = 2_000_000  # stamps of two processors differ by less
# Difference of the kernel's clock from the wall clock, and its growth per second
_DRIFT_S, _DRIFT_RATE = 60.0, 2e-4
# The wall clock is rarely set by more within a boot, except early in it: firmware may keep local
# time, or no time at all, which shows as a date before 2010.
_MAX_STEP_S = 3600.0
_EARLY_S, _MAX_ZONE_DIFFERENCE_S = 1800.0, 15 * 3600.0
_NO_CLOCK = 1_262_304_000.0
_MAX_BOOTS = 1024
MAX_HELD_EVENTS = 1 << 14  # events that are out of order by more than this stay so


@dataclass(slots=True)
class Boot:
    """A boot of the log. `place` is where the kernel's clock was zero, `zero` the same moment in
    seconds since the epoch, if known.
    """

    name: str
    place: float
    zero: float | None = None


class LogClock:
    """Assigns the lines of one host, in the order in which they are read, to boots and places."""

    def __init__(self, host: str = "") -> None:
        # Boots that are certain; the caller removes those it has handled
        self.new_boots: list[Boot] = []
        # A single word: it is shown as a process's name
        self._name = f"{host}-log" if host else "log"
        self._count = 1
        self._boot = Boot(f"{self._name}-1", 0.0)
        self._boots_by_id: dict[str, Boot] = {}
        self._dated_boots: dict[str, Boot] = {}
        self._place: float | None = None  # of the line before
        self._boot_announced = False  # by journalctl
        self._usec = 0
        self._offset: float | None = None  # of a place from its date

    @property
    def boot_name(self) -> str:
        """The boot of the line before."""
        return self._boot.name

    @property
    def has_time(self) -> bool:
        """Whether a line before has a date or a stamp."""
        return self._offset is not None or self._usec > 0

    def read_marker(self, message: bytes) -> None:
        """A line that is no record; between two boots journalctl writes one."""
        if message.startswith(b"-- ") and _NEXT_BOOT.match(message):
            self._boot_announced = self._place is not None

    def place_undated(self, line: Line) -> float | None:
        """The place of a line that reports nothing; None if its date is needed to know it."""
        usec = line.usec
        if self._boot_announced:
            return None
        if usec is None:
            return None if line.message.startswith(BANNER) else self._place
        if usec < self._usec - _JITTER_USEC or self._place is None:
            return None
        self._usec = usec
        self._place = self._boot.place + usec / 1e6
        return self._place

    def place_line(self, line: Line, date: float | None, boot_id: str = "") -> tuple[str, float]:
        """The boot of a line, and its place. `date` is in seconds since the epoch; `boot_id` is
        given where the form keeps it.
        """
        seconds = line.usec / 1e6 if line.usec is not None else None
        if boot_id:
            self._boot = self._get_boot_by_id(boot_id, date, seconds)
        elif self._boot_announced and line.has_kernel_prefix:
            self._boot_announced = False
            self._boot = self._begin_boot(
                date - (seconds or 0.0) if date is not None else None, certain=False
            )
            self.new_boots.append(self._boot)
        elif seconds is None:
            self._apply_banner(line, date)
        else:
            self._apply_stamp(seconds, date)
        if seconds is not None:
            self._usec, self._place = int(seconds * 1e6), self._boot.place + seconds
        elif date is not None:
            self._place = self._convert_date(date)
        elif self._place is None:
            self._place = 0.0
        return self._boot.name, self._place

    def _apply_stamp(self, seconds: float, date: float | None) -> None:
        boot, zero = self._boot, date - seconds if date is not None else None
        if self._place is None:
            boot.place = self._convert_date(zero) if zero is not None else 0.0
        elif seconds * 1e6 < self._usec - _JITTER_USEC:
            self._boot = boot = self._find_earlier_boot(zero, seconds) or self._begin_boot(
                zero, certain=zero is not None
            )
        elif (
            zero is not None
            and boot.zero is not None
            and abs(zero - boot.zero) > _MAX_STEP_S + _DRIFT_RATE * seconds
        ):
            if boot.zero < _NO_CLOCK or (
                self._usec < _EARLY_S * 1e6 and abs(zero - boot.zero) < _MAX_ZONE_DIFFERENCE_S
            ):
                boot.zero, self._offset = zero, boot.place - zero  # the clock was set
            else:
                # Another boot, by its date; nothing shows that the same node restarted
                self._boot = boot = self._find_earlier_boot(zero, seconds) or self._begin_boot(
                    zero, certain=False
                )
        if zero is not None and boot.zero is None:
            if self._offset is None:
                self._offset = boot.place - zero
            self._remember_zero(boot, zero, certain=True)

    def _apply_banner(self, line: Line, date: float | None) -> None:
        """A line without a stamp begins a boot only if it is the banner; one without a date, too,
        only in a log that has neither, and only as a record: reports quote /proc/version.
        """
        if date is not None and line.message.startswith(BANNER):
            self._boot = self._make_boot(self._convert_date(date))
            self._remember_zero(self._boot, date, certain=True)
        elif (
            line.has_kernel_prefix
            and is_banner(line.message)
            and self._place is not None
            and not self.has_time
        ):
            self._boot = self._make_boot(self._place + 1.0)
            self._place = self._boot.place
            self.new_boots.append(self._boot)

    def _get_boot_by_id(self, boot_id: str, date: float | None, seconds: float | None) -> Boot:
        known = self._boots_by_id.get(boot_id)
        if known is not None:
            return known
        zero = date - (seconds or 0.0) if date is not None else None
        boot = self._begin_boot(zero, certain=False)
        boot.name = boot_id
        while len(self._boots_by_id) >= _MAX_BOOTS:
            del self._boots_by_id[next(iter(self._boots_by_id))]
        self._boots_by_id[boot_id] = boot
        self.new_boots.append(boot)
        return boot

    def _find_earlier_boot(self, zero: float | None, seconds: float) -> Boot | None:
        """The boot of earlier lines that began at `zero`, within the drift of the clocks."""
        if zero is None:
            return None
        dated = [boot for boot in self._dated_boots.values() if boot.zero is not None]
        nearest = min(dated, key=lambda boot: abs(zero - (boot.zero or 0.0)), default=None)
        if nearest is None:
            return None
        drift = abs(zero - (nearest.zero or 0.0))
        return nearest if drift <= _DRIFT_S + _DRIFT_RATE * seconds else None

    def _begin_boot(self, zero: float | None, *, certain: bool) -> Boot:
        if zero is not None and (self._offset is not None or self._place is None):
            boot = self._make_boot(self._convert_date(zero))
        else:
            boot = self._make_boot(self._place + 1.0 if self._place is not None else 0.0)
            if zero is not None:
                self._offset = boot.place - zero
        if zero is not None:
            self._remember_zero(boot, zero, certain=certain)
        return boot

    def _make_boot(self, place: float) -> Boot:
        if self._place is not None:
            self._count += 1
        return Boot(f"{self._name}-{self._count}", place)

    def _remember_zero(self, boot: Boot, zero: float, *, certain: bool) -> None:
        boot.zero = zero
        while len(self._dated_boots) >= _MAX_BOOTS:
            del self._dated_boots[next(iter(self._dated_boots))]
        self._dated_boots[boot.name] = boot
        if certain:
            self.new_boots.append(boot)

    def _convert_date(self, date: float) -> float:
        """The place of a date. The first date is its own place."""
        if self._offset is None:
            self._offset = self._place - date if self._place is not None else 0.0
        return date + self._offset


class Placed(Protocol):
    """An item with a place."""

    @property
    def place(self) -> float: ...


T = TypeVar("T", bound=Placed)


def sort_by_place(items: Iterable[T]) -> Iterator[T]:
    """The items ordered by place. Memory is bounded: an item that comes more than
    `MAX_HELD_EVENTS` too late keeps its position.
    """
    held: list[tuple[float, int, T]] = []
    for number, item in enumerate(items):
        heapq.heappush(held, (item.place, number, item))
        if len(held) > MAX_HELD_EVENTS:
            yield heapq.heappop(held)[2]
    while held:
        yield heapq.heappop(held)[2]
