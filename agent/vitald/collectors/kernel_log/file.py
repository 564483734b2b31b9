"""
A plain file that grows, is rotated, or is truncated: the kernel log of machines without /dev/kmsg,
and of tests.

The lines may have any of the forms of `lines.py`. A record may go on in indented lines: what
reports nothing by itself is kept until the line after it is there, or none has come for one look. A
position is inode, offset and a checksum of the bytes before it, so that a file which was truncated
and has grown again is not taken for the old one.
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

from vitald.collectors.kernel_log.interpret import NAME, Interpreter, lost_event
from vitald.collectors.kernel_log.lines import MORE, Line, Sequel, joined, strip
from vitald.model import Batch, Event, Position, SourceFailed

_POLL_S, _HEARTBEAT_S = 0.25, 1.0
_CHUNK = 1 << 17
_EVENTS = 48  # that are read before other tasks get their turn
_LONGEST = 1 << 16  # a longer line is nobody's kernel record
_TAIL = 64
_PACKED = {".gz", ".xz", ".zst", ".bz2"}


@dataclass(slots=True)
class _FilePosition:
    inode: int
    offset: int = 0
    tail: int = 0  # crc32 of the bytes before the offset, `_TAIL` at most
    inside: bool = False  # of an over-long line, whose rest is no line either

    def cursor(self) -> str:
        return json.dumps([self.inode, self.offset, self.tail, self.inside])


@dataclass(slots=True)
class _Held:
    """A record that reports nothing yet and may go on."""

    line: Line
    raw: bytes
    offset: int
    doubt: str
    before: Sequel  # as it was before this line, which may be read again
    more: list[bytes] = field(default_factory=list)


class LogFile:
    """The kernel log, followed in a file. Reads from its beginning the first time, then from where
    it stopped.
    """

    name = NAME
    deadline_s = 5.0

    def __init__(self, path: str, interpreter: Interpreter, boot_id: str) -> None:
        self.path = Path(path)
        self.interpreter = interpreter
        self.boot_id = boot_id
        self._live = False  # what was there when we came has been read
        self._sequel = Sequel()

    async def read_batches(self, after: Position | None) -> AsyncIterator[Batch]:
        """From the byte after `after`, wherever its file is by now; else from the beginning of the
        file at the path.
        """
        place = _stored(after)
        fd = self._open(self.path)
        try:
            if place is not None and os.fstat(fd).st_ino != place.inode:
                rotated = self._rotated(place)
                if rotated is None:
                    yield Batch(NAME, (self._lost(place),))
                    place = None
                else:
                    fd = _swap(fd, self._open(rotated))
            here = place if place is not None else _FilePosition(os.fstat(fd).st_ino)
            said, seen = -1.0, -1
            while True:
                if not _same(fd, here):  # truncated, and perhaps grown again
                    here = _FilePosition(here.inode)
                before = here.offset
                events, until, more = self._read(fd, here, seen)
                if here.offset != before or time.monotonic() - said >= _HEARTBEAT_S:
                    said = time.monotonic()
                    yield Batch(
                        NAME,
                        tuple(events),
                        Position(NAME, self.boot_id, here.cursor()),
                        caught_up=not more,
                    )
                seen = -1 if more else until
                self._live = self._live or not more
                if more:
                    await anyio.lowlevel.checkpoint()
                elif until > here.offset:
                    await anyio.sleep(_POLL_S)  # whether the last record goes on
                elif (newer := self._newer(fd, here)) is not None:
                    fd = _swap(fd, self._open(newer))
                    here, seen = _FilePosition(os.fstat(fd).st_ino), -1
                else:
                    await anyio.sleep(_POLL_S)
        finally:
            os.close(fd)

    def _open(self, path: Path) -> int:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise SourceFailed(f"{path}: {error.strerror}") from error

    def _siblings(self) -> list[tuple[int, int, Path]]:
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

    def _rotated(self, place: _FilePosition) -> Path | None:
        """Where the file that `place` is in has been moved to."""
        for _, inode, path in self._siblings():
            if inode == place.inode:
                fd = self._open(path)
                try:
                    if _same(fd, place):
                        return path
                finally:
                    os.close(fd)
        return None

    def _newer(self, fd: int, here: _FilePosition) -> Path | None:
        """The file to go on with, where another stands at the path: the next in time, so that a
        second rotation skips none.
        """
        try:
            if self.path.stat().st_ino == here.inode:
                return None
        except FileNotFoundError:
            return None  # until there is a new one, the old one is still followed
        except OSError as error:
            raise SourceFailed(f"{self.path}: {error.strerror}") from error
        written = os.fstat(fd).st_mtime_ns
        later = (
            path
            for mtime, inode, path in self._siblings()
            if mtime > written and inode != here.inode and path.suffix not in _PACKED
        )
        return next(later, self.path)

    def _lost(self, place: _FilePosition) -> Event:
        return lost_event(
            identity=f"file:{place.inode:x}:{place.offset}:lost",
            time=time.time(),
            boot_id=self.boot_id,
            count=None,
            fields={"file": self.path.name, "offset": place.offset},
        )

    def _read(self, fd: int, here: _FilePosition, seen: int) -> tuple[list[Event], int, bool]:
        """The events of the whole records of one chunk, where its whole lines end, and whether
        there is more.

        `seen`: where they ended at the look before; a record that ends there does not go on.
        """
        try:
            data = os.pread(fd, _CHUNK, here.offset)
        except OSError as error:
            raise SourceFailed(f"{self.path}: {error.strerror}") from error
        end, full = data.rfind(b"\n") + 1, len(data) == _CHUNK
        if not end and len(data) <= _LONGEST and not here.inside:
            return [], here.offset, False
        events: list[Event | None] = []
        began = offset = here.offset
        found = 0
        held: _Held | None = None
        for raw in _lines(data, end or len(data)):
            if found >= _EVENTS:
                full = True
                break
            line = None
            if here.inside or len(raw) > _LONGEST:
                self.interpreter.counters.torn += not here.inside
                here.inside = not raw.endswith(b"\n")
            else:
                self.interpreter.counters.read += 1
                line = strip(raw)
            if held is not None and line is not None and line.goes_on:
                held.more.append(line.message)
            else:
                events.append(self._joined(held, here.inode))
                held = None
                if line is not None:
                    self.interpreter.counters.userspace += bool(line.facility)
                    before = self._sequel.copy()
                    doubt = self._sequel.doubt(line)
                    events.append(event := self._event(line, raw, here.inode, offset, doubt))
                    found += event is not None
                    held = (
                        _Held(line, raw, offset, doubt, before)
                        if event is None and not line.facility
                        else None
                    )
            offset += len(raw)
        until = offset
        if held is not None and until != seen and (held.offset > began or not full):
            self.interpreter.counters.read -= 1 + len(held.more)  # they are read again
            offset, self._sequel = held.offset, held.before
        else:
            events.append(self._joined(held, here.inode))
        here.offset, here.tail = offset, _checksum(fd, offset)
        return [event for event in events if event is not None], until, full

    def _joined(self, held: _Held | None, inode: int) -> Event | None:
        if held is None or not held.more:
            return None
        return self._event(
            joined(held.line, held.more[:MORE]), held.raw, inode, held.offset, held.doubt
        )

    def _event(self, line: Line, raw: bytes, inode: int, offset: int, doubt: str) -> Event | None:
        sighting = self.interpreter.recognise(line.message)
        if sighting is None:
            return None
        identity = f"file:{inode:x}:{offset}:{zlib.crc32(raw):08x}"
        return self.interpreter.event(
            sighting,
            line.message,
            line.facility,
            identity=identity,
            time=time.time(),
            boot_id=self.boot_id,
            usec=None,
            live=self._live,
            doubt=doubt,
        )


def _swap(old: int, new: int) -> int:
    os.close(old)
    return new


def _lines(data: bytes, until: int) -> Iterator[bytes]:
    """Lines with their ends. Not splitlines(): a carriage return inside a line ends nothing."""
    begin = 0
    while begin < until:
        end = data.find(b"\n", begin) + 1 or until
        yield data[begin:end]
        begin = end


def _stored(position: Position | None) -> _FilePosition | None:
    """A position that is not a file's (the source was kmsg before) counts as none."""
    if position is None:
        return None
    try:
        inode, offset, tail, inside = json.loads(position.cursor)
        return _FilePosition(int(inode), int(offset), int(tail), bool(inside))
    except (TypeError, ValueError):
        return None


def _checksum(fd: int, offset: int) -> int:
    return zlib.crc32(os.pread(fd, min(_TAIL, offset), max(0, offset - _TAIL)))


def _same(fd: int, place: _FilePosition) -> bool:
    """Whether the bytes before the place are still those that were read."""
    stat = os.fstat(fd)
    return (
        stat.st_ino == place.inode
        and stat.st_size >= place.offset
        and _checksum(fd, place.offset) == place.tail
    )
