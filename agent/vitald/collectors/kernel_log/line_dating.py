"""
When the lines of a followed file were written that it held already at the start.

A file keeps the lines of weeks and of earlier boots. The date before a line decides; without one,
the kernel's own stamp does, if the boot's first line stands before it. What is older than this boot
is history. A line that shows neither is undated.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import anyio.lowlevel

from vitald.collectors.kernel_log.clock import BANNER, is_banner
from vitald.collectors.kernel_log.dates import parse_date
from vitald.collectors.kernel_log.lines import Line, strip_prefix

_CHUNK_BYTES = 1 << 20
_MAX_SEARCHED_BYTES = 1 << 28  # lines further back count as undated, if they have no date
_MAX_BANNER_BYTES = 256  # from the beginning of the line to the version number
_CLOCK_ERROR_S = 60.0  # of the date before a line, against the start of the boot
_HISTORY = "it was written before this boot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """When a line was written (seconds since the epoch), and in which boot. `history`: why it is
    none of this boot, and not judged.
    """

    time: float
    boot_id: str
    history: str = ""
    is_undated: bool = False


class LineDating:
    """Dates the lines of one file. `former_boot`: that of the stored position, which may be this
    one; empty if there is none.
    """

    def __init__(self, boot_id: str, former_boot: str) -> None:
        self._boot_id = boot_id
        self._former_boot = former_boot
        self._booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        self._banner_at = -1  # offset of the last first line of a boot

    async def find_banner(self, fd: int, begin: int) -> None:
        """Find the first line of the youngest boot behind the offset `begin` of the file, which
        may be the next one of a rotation. Raises OSError.
        """
        end, was_found = os.fstat(fd).st_size, self._banner_at >= 0
        self._banner_at, begin = -1, max(begin, end - _MAX_SEARCHED_BYTES)
        while end > begin and self._banner_at < 0:
            start = max(begin, end - _CHUNK_BYTES)
            overlapping = max(begin, start - _MAX_BANNER_BYTES)
            data = os.pread(fd, end - overlapping, overlapping)
            cut = 0 if overlapping == begin else data.find(b"\n") + 1  # the rest of a line
            found = _find_banner(data[cut:])
            self._banner_at = overlapping + cut + found if found >= 0 else -1
            end = start
            await anyio.lowlevel.checkpoint()
        if was_found and self._banner_at < 0:
            self._banner_at = 0  # it stands in the file before

    def date_line(self, line: Line, raw: bytes, offset: int, *, live: bool) -> Written:
        """When a line at this offset was written. `live`: it was appended since the start."""
        now = time.time()
        if live:
            return Written(time=now, boot_id=self._boot_id)
        date = parse_date(raw[: max(raw.find(line.message), 0)], now)
        if date is not None and date <= now + _CLOCK_ERROR_S:
            if date < self._booted_at - _CLOCK_ERROR_S:
                return self._make_history(date)
            return Written(time=min(date, now), boot_id=self._boot_id)
        if offset + len(raw) <= self._banner_at:
            return self._make_history(self._booted_at)
        if line.usec is not None:
            written = self._booted_at + line.usec / 1e6
            if written > now + _CLOCK_ERROR_S:
                return self._make_history(self._booted_at)
            if self._banner_at >= 0 or self._former_boot == self._boot_id:
                return Written(time=min(written, now), boot_id=self._boot_id)
        return Written(time=now, boot_id=self._boot_id, is_undated=True)

    def _make_history(self, written: float) -> Written:
        """A line of an earlier boot. Without a stored position it is not known of which."""
        if self._former_boot in ("", self._boot_id):
            return Written(time=written, boot_id=self._boot_id, history=_HISTORY)
        return Written(time=written, boot_id=self._former_boot)


def _find_banner(data: bytes) -> int:
    """Where the last line that is the first one of a boot begins; -1 if there is none. `data`:
    whole lines, but for the last one.
    """
    at = data.rfind(BANNER)
    while at >= 0:
        begin = data.rfind(b"\n", 0, at) + 1
        line = strip_prefix(data[begin : at + _MAX_BANNER_BYTES])
        if line is not None and is_banner(line.message):
            return begin
        at = data.rfind(BANNER, 0, at)
    return -1
