"""
Source that follows a plain file, which may grow, be rotated or be truncated: the kernel log of
machines without /dev/kmsg, and of tests.

The lines may have any of the forms of `lines.py`. A record may continue in indented lines: a line
that reports nothing by itself is held until the next line arrives, or until one poll brings none. A
position is inode, offset and a checksum of the bytes before it, so that a file which was truncated
and has grown again is recognised.

A file keeps the lines of weeks and of earlier boots. Of those that it held already at the start,
the date before a line decides when it was written; without one, the kernel's own stamp does, if the
boot's first line stands before it. What is older than this boot is history. A line that shows
neither is undated.
"""

from __future__ import annotations

import glob
import json
import os
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.lowlevel

from vitald.collectors.kernel_log.dates import parse_date
from vitald.collectors.kernel_log.interpret import NAME, Interpreter, make_lost_event
from vitald.collectors.kernel_log.lines import (
    MAX_CONTINUATIONS,
    ContinuationDetector,
    Line,
    Loss,
    LossDetector,
    join_lines,
    strip_prefix,
)
from vitald.collectors.kernel_log.record import BANNER, is_banner
from vitald.model.event import Event
from vitald.model.source import Batch, Position, SourceFailed

_POLL_S, _HEARTBEAT_S = 0.25, 1.0
_CHUNK_BYTES = 1 << 17
_MAX_EVENTS = 48  # read before other tasks get their turn
_MAX_LINE_BYTES = 1 << 16  # a longer line is no kernel record
_TAIL_BYTES = 64
_COMPRESSED_SUFFIXES = {".gz", ".xz", ".zst", ".bz2"}


@dataclass(slots=True)
class _FilePosition:
    inode: int
    offset: int = 0
    tail: int = 0  # crc32 of the bytes before the offset, `_TAIL_BYTES` at most
    inside: bool = False  # an over-long line, whose rest is skipped

    def format_cursor(self) -> str:
        return json.dumps([self.inode, self.offset, self.tail, self.inside])


@dataclass(slots=True)
class _HeldRecord:
    """A record that reports nothing yet and may continue in the next lines."""

    line: Line
    raw: bytes
    offset: int
    doubt: str
    # State before this line, which may be read again
    detector: ContinuationDetector
    continuations: list[bytes] = field(default_factory=list)


class LogFile:
    """Source of kernel log events that follows a file: from its beginning the first time, then from
    the stored position.
    """

    name = NAME
    deadline_s = 5.0

    def __init__(self, path: str, interpreter: Interpreter, boot_id: str) -> None:
        self.path = Path(path)
        self.interpreter = interpreter
        self.boot_id = boot_id
        self._live = False  # the lines found at the start have been read
        self._dating = LineDating(boot_id, "")
        self._detector = ContinuationDetector()
        self._losses = LossDetector()

    async def read_batches(self, after: Position | None) -> AsyncIterator[Batch]:
        """Batches from the byte after `after`, also if that file was rotated since; else from the
        beginning of the file at the path. Raises SourceFailed.
        """
        stored = _parse_position(after)
        self._dating = LineDating(self.boot_id, after.boot_id if after is not None else "")
        fd = self._open_file(self.path)
        try:
            if stored is not None and os.fstat(fd).st_ino != stored.inode:
                rotated = self._find_rotated(stored)
                if rotated is None:
                    yield Batch(NAME, (self._make_lost_event(stored),))
                    stored = None
                else:
                    fd = _replace_fd(fd, self._open_file(rotated))
            position = stored if stored is not None else _FilePosition(os.fstat(fd).st_ino)
            await self._dating.find_banner(fd, position.offset)
            last_batch_at, last_end = -1.0, -1
            while True:
                if not _is_unchanged(fd, position):  # truncated, and perhaps grown again
                    position = _FilePosition(position.inode)
                before = position.offset
                events, end, more = self._read_chunk(fd, position, last_end)
                if position.offset != before or time.monotonic() - last_batch_at >= _HEARTBEAT_S:
                    last_batch_at = time.monotonic()
                    yield Batch(
                        NAME,
                        tuple(events),
                        Position(NAME, self.boot_id, position.format_cursor()),
                        caught_up=not more,
                    )
                last_end = -1 if more else end
                self._live = self._live or not (more or self._find_newer(fd, position))
                if more:
                    await anyio.lowlevel.checkpoint()
                elif end > position.offset:
                    await anyio.sleep(_POLL_S)  # the last record may continue
                elif (newer := self._find_newer(fd, position)) is not None:
                    fd = _replace_fd(fd, self._open_file(newer))
                    position, last_end = _FilePosition(os.fstat(fd).st_ino), -1
                    if not self._live:
                        await self._dating.find_banner(fd, 0)
                else:
                    await anyio.sleep(_POLL_S)
        finally:
            os.close(fd)

    def _open_file(self, path: Path) -> int:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise SourceFailed(f"{path}: {error.strerror}") from error

    def _list_rotation(self) -> list[tuple[int, int, Path]]:
        """The rotated files beside the path and the file at it, as (time of the last write, inode,
        path), oldest first.
        """
        found = []
        for path in self.path.parent.glob(f"{glob.escape(self.path.name)}*"):
            try:
                stat = path.stat()
            except OSError:
                continue  # rotated away meanwhile
            found.append((stat.st_mtime_ns, stat.st_ino, path))
        return sorted(found)

    def _find_rotated(self, position: _FilePosition) -> Path | None:
        """Path to which the file of `position` was moved."""
        for _, inode, path in self._list_rotation():
            if inode == position.inode:
                fd = self._open_file(path)
                try:
                    if _is_unchanged(fd, position):
                        return path
                finally:
                    os.close(fd)
        return None

    def _find_newer(self, fd: int, position: _FilePosition) -> Path | None:
        """The file to follow next, if another file is at the path: the next in time, so that a
        second rotation skips none.
        """
        try:
            if self.path.stat().st_ino == position.inode:
                return None
        except FileNotFoundError:
            return None  # the old one is followed until there is a new one
        except OSError as error:
            raise SourceFailed(f"{self.path}: {error.strerror}") from error
        written = os.fstat(fd).st_mtime_ns
        later = (
            path
            for mtime, inode, path in self._list_rotation()
            if mtime > written
            and inode != position.inode
            and path.suffix not in _COMPRESSED_SUFFIXES
        )
        return next(later, self.path)

    def _make_lost_event(self, position: _FilePosition) -> Event:
        return make_lost_event(
            identity=f"file:{position.inode:x}:{position.offset}:lost",
            time=time.time(),
            boot_id=self.boot_id,
            count=None,
            fields={"file": self.path.name, "offset": position.offset},
        )

    def _read_chunk(
        self, fd: int, position: _FilePosition, last_end: int
    ) -> tuple[list[Event], int, bool]:
        """Read the whole records of one chunk and advance `position` behind them.

        Returns their events, the offset at which the whole lines end, and whether more can be read
        at once. `last_end`: where the lines ended at the poll before; a record that ends there does
        not continue.
        """
        data = self._read_bytes(fd, position.offset)
        whole, more = data.rfind(b"\n") + 1, len(data) == _CHUNK_BYTES
        if not whole and len(data) <= _MAX_LINE_BYTES and not position.inside:
            return [], position.offset, False
        events: list[Event] = []
        start = end = position.offset
        held: _HeldRecord | None = None
        for raw in _split_lines(data, whole or len(data)):
            if len(events) >= _MAX_EVENTS:
                more = True
                break
            line = self._parse_line(raw, position)
            if held is not None and line is not None and line.is_continuation:
                held.continuations.append(line.message)
            else:
                if held is not None and held.continuations:
                    self._add_joined_event(held, position.inode, events)
                held = (
                    self._add_line(line, raw, position.inode, end, events)
                    if line is not None
                    else None
                )
            end += len(raw)
        offset = end
        if held is not None and end != last_end and (held.offset > start or not more):
            # They are read again
            self.interpreter.counters.read -= 1 + len(held.continuations)
            offset, self._detector = held.offset, held.detector
        elif held is not None and held.continuations:
            self._add_joined_event(held, position.inode, events)
        position.offset, position.tail = offset, _checksum_tail(fd, offset)
        return events, end, more

    def _read_bytes(self, fd: int, offset: int) -> bytes:
        try:
            return os.pread(fd, _CHUNK_BYTES, offset)
        except OSError as error:
            raise SourceFailed(f"{self.path}: {error.strerror}") from error

    def _parse_line(self, raw: bytes, position: _FilePosition) -> Line | None:
        """The kernel's message in a line; None for lines of other programs and over-long ones."""
        if position.inside or len(raw) > _MAX_LINE_BYTES:
            self.interpreter.counters.torn += not position.inside
            position.inside = not raw.endswith(b"\n")
            return None
        self.interpreter.counters.read += 1
        return strip_prefix(raw)

    def _add_line(
        self, line: Line, raw: bytes, inode: int, offset: int, events: list[Event]
    ) -> _HeldRecord | None:
        """Append the event of a line that reports one; returns a record that may continue."""
        self.interpreter.counters.userspace += bool(line.facility)
        loss = self._losses.find_loss(line)
        if loss is not None:
            events += self._make_loss_event(loss, line, raw, inode, offset)
        detector = self._detector.copy()
        doubt = self._detector.find_doubt(line)
        event = self._make_event(line, raw, inode, offset, doubt)
        if event is not None:
            events.append(event)
        elif loss is None and not line.facility:  # what is held is read again
            return _HeldRecord(line, raw, offset, doubt, detector)
        return None

    def _add_joined_event(self, held: _HeldRecord, inode: int, events: list[Event]) -> None:
        """Append the event of a record with its continuation lines, if it reports one."""
        line = join_lines(held.line, held.continuations[:MAX_CONTINUATIONS])
        event = self._make_event(line, held.raw, inode, held.offset, held.doubt)
        if event is not None:
            events.append(event)

    def _make_loss_event(
        self, loss: Loss, line: Line, raw: bytes, inode: int, offset: int
    ) -> list[Event]:
        """The event of lost records; none if they were lost before this boot."""
        written = self._dating.date_line(line, raw, offset, live=self._live)
        if written.history:
            return []
        self.interpreter.counters.lost += loss.count or 0
        lost = make_lost_event(
            identity=f"file:{inode:x}:{offset}:loss",
            time=written.time,
            boot_id=written.boot_id,
            count=loss.count,
            fields={"file": self.path.name, "offset": offset},
        )
        return [lost]

    def _make_event(
        self, line: Line, raw: bytes, inode: int, offset: int, doubt: str
    ) -> Event | None:
        parsed = self.interpreter.parse_record(line.message)
        if parsed is None:
            return None
        written = self._dating.date_line(line, raw, offset, live=self._live)
        return self.interpreter.make_event(
            parsed,
            line.message,
            line.facility,
            identity=f"file:{inode:x}:{offset}:{zlib.crc32(raw):08x}",
            time=written.time,
            boot_id=written.boot_id,
            usec=None,
            live=self._live,
            doubt=doubt,
            history=written.history,
            undated=written.is_undated,
        )


def _replace_fd(old: int, new: int) -> int:
    os.close(old)
    return new


def _split_lines(data: bytes, until: int) -> Iterator[bytes]:
    """Lines of `data[:until]` with their newlines. Unlike splitlines(), a carriage return inside a
    line does not end it.
    """
    begin = 0
    while begin < until:
        end = data.find(b"\n", begin) + 1 or until
        yield data[begin:end]
        begin = end


def _parse_position(position: Position | None) -> _FilePosition | None:
    """None also for a position of another kind (the source was kmsg before)."""
    if position is None:
        return None
    try:
        inode, offset, tail, inside = json.loads(position.cursor)
        return _FilePosition(int(inode), int(offset), int(tail), bool(inside))
    except (TypeError, ValueError):
        return None


def _checksum_tail(fd: int, offset: int) -> int:
    return zlib.crc32(os.pread(fd, min(_TAIL_BYTES, offset), max(0, offset - _TAIL_BYTES)))


def _is_unchanged(fd: int, position: _FilePosition) -> bool:
    """Whether the bytes before the position are still those that were read."""
    stat = os.fstat(fd)
    return (
        stat.st_ino == position.inode
        and stat.st_size >= position.offset
        and _checksum_tail(fd, position.offset) == position.tail
    )


_SEARCH_BYTES = 1 << 20
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
            start = max(begin, end - _SEARCH_BYTES)
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
