"""
Clock of a saved log: the boot of each line, and its place on one time line through all boots.

Owns     the boundaries of boots, and that a log goes forward in time.
Refuses  reading a date (dates.py) or a stamp (lines.py); putting lines in another order.

A place is a time in seconds, on one scale for the whole log; no line has one before that of the
line above it. Within a boot the kernel's own stamp gives the place, because the wall clock may be
stepped; dates put boots in order. A line that has neither gets the place of the line before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vitald.collectors.kernel_log.lines import Line
from vitald.collectors.kernel_log.record import BANNER

# Written by journalctl between two boots
_NEXT_BOOT = re.compile(rb"-- (?:Boot [0-9a-f]{32}|Reboot) --\s*\Z")
_JITTER_USEC = 2_000_000  # stamps of two processors differ by less
# The wall clock is set back by less: firmware may keep local time
_MAX_BACK_S = 15 * 3600.0
_STEP_S = 60.0  # dates of neighbouring lines differ by less, whichever is first
_NO_CLOCK = 1_262_304_000.0  # a date before 2010 is that of a node without a clock


@dataclass(frozen=True, slots=True)
class Boot:
    """A boot of the log. `place` is where the kernel's clock was zero."""

    name: str
    place: float


class LogClock:
    """Assigns the lines, in the order in which they are read, to boots and places."""

    def __init__(self) -> None:
        # Boots that are certain; the caller removes those it has handled
        self.new_boots: list[Boot] = []
        self.goes_back = False  # a line is much older than one above it
        self._count = 1
        self._boot: Boot | None = None
        self._boot_id = ""
        self._boot_announced = False  # by journalctl
        self._usec: int | None = None  # the latest stamp of the boot
        self._place: float | None = None  # of the line before
        self._latest_date = 0.0
        self._is_back = False  # the line is older than one above it
        self._offset: float | None = None  # of a place from its date

    @property
    def place(self) -> float:
        """The place of the line before."""
        return self._place or 0.0

    def read_marker(self, message: bytes) -> None:
        """A line that is no record; between two boots journalctl writes one."""
        if message.startswith(b"-- ") and _NEXT_BOOT.match(message):
            self._boot_announced = self._boot is not None

    def skip_line(self, line: Line) -> bool:
        """Whether the boot of a line that reports nothing is known without its date."""
        if self._boot_announced or self._boot is None:
            return False
        if line.usec is None:
            return not line.message.startswith(BANNER)
        if self._usec is None or line.usec < self._usec - _JITTER_USEC:
            return False
        self._usec = line.usec
        return True

    def place_line(self, line: Line, date: float | None, boot_id: str = "") -> tuple[str, float]:
        """The boot of a line, and its place. `date` is in seconds since the epoch; `boot_id` is
        given where the form keeps it.
        """
        seconds = line.usec / 1e6 if line.usec is not None else None
        self._compare_date(date)
        boot = self._boot
        if boot is None or self._begins_boot(line, date, boot_id):
            boot = self._begin_boot(date, seconds, boot_id)
        if seconds is not None:
            self._usec, place = line.usec, boot.place + seconds
        else:
            place = self._convert_date(date) if date is not None else self.place
        self._place = place if self._place is None else max(place, self._place)
        return boot.name, self._place

    def _compare_date(self, date: float | None) -> None:
        self._is_back = False
        if date is not None and date > _NO_CLOCK:
            self._is_back = date < self._latest_date - _STEP_S
            self.goes_back = self.goes_back or date < self._latest_date - _MAX_BACK_S
            self._latest_date = max(date, self._latest_date)

    def _begins_boot(self, line: Line, date: float | None, boot_id: str) -> bool:
        """A line without a stamp begins a boot only if it is the banner, and has a date."""
        if boot_id:
            return boot_id != self._boot_id
        if self._boot_announced and line.has_kernel_prefix:
            return True
        if line.usec is not None:
            return self._usec is not None and line.usec < self._usec - _JITTER_USEC
        return date is not None and line.message.startswith(BANNER)

    def _begin_boot(self, date: float | None, seconds: float | None, boot_id: str) -> Boot:
        is_first = self._boot is None
        # Stamps alone may be those of another node; what goes back in time, even by less than a
        # clock that is wrong, may be an older file or a log that is read backwards
        is_known = bool(boot_id) or self._boot_announced or date is not None
        is_certain = is_known and not self._is_back
        self._boot_id, self._boot_announced, self._usec = boot_id, False, None
        self._count += not is_first
        if date is not None:
            place = self._convert_date(date - (seconds or 0.0))
        else:
            place = 0.0 if is_first else self.place + 1.0
        place = place if is_first else max(place, self.place)
        self._boot = Boot(boot_id or f"log-{self._count}", place)
        if is_certain and not is_first:
            self.new_boots.append(self._boot)
        return self._boot

    def _convert_date(self, date: float) -> float:
        """The place of a date. The first date is its own place."""
        if self._offset is None:
            self._offset = self._place - date if self._place is not None else 0.0
        return date + self._offset
