"""
A plain file that grows, is rotated, or is truncated: the kernel log of machines without /dev/kmsg, and of tests.

The lines may have any of the forms of `lines.py`. A position is inode, offset and a checksum of the bytes before it,
so that a file which was truncated and has grown again is not taken for the old one.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.lowlevel

from agent.model import Event
from agent.sources.kernel_log.interpret import NAME, Interpreter, lost_event
from agent.sources.kernel_log.lines import strip
from agent.sources.source import Batch, Position, SourceFailed

_POLL_S, _HEARTBEAT_S = 0.1, 1.0
_CHUNK = 1 << 18
_LONGEST = 1 << 16  # a longer line is nobody's kernel record
_TAIL = 64


@dataclass(slots=True)
class _Place:
    inode: int
    offset: int
    tail: int  # crc32 of the bytes before the offset, `_TAIL` at most

    def cursor(self) -> str:
        return json.dumps([self.inode, self.offset, self.tail])


class LogFile:
    """The kernel log, followed in a file. Reads from its beginning the first time, then from where it stopped."""

    name = NAME
    deadline_s = 5.0

    def __init__(self, path: str, interpreter: Interpreter, boot_id: str) -> None:
        self.path = Path(path)
        self.interpreter = interpreter
        self.boot_id = boot_id

    async def batches(self, after: Position | None) -> AsyncIterator[Batch]:
        place = _stored(after)
        fd, lost = self._open(place)
        try:
            here = place if place is not None and lost is None and _same(fd, place) else _Place(os.fstat(fd).st_ino, 0, 0)
            if lost is not None:
                yield Batch(NAME, (lost,))
            said = -1.0
            while True:
                before = here.offset
                events, more = self._read(fd, here)
                if here.offset != before or time.monotonic() - said >= _HEARTBEAT_S:
                    said = time.monotonic()
                    yield Batch(NAME, tuple(events), Position(NAME, self.boot_id, here.cursor()), caught_up=not more)
                if more:
                    await anyio.lowlevel.checkpoint()
                    continue
                if self._replaced(here):
                    fd, old = self._open(None)[0], fd
                    os.close(old)
                    here = _Place(os.fstat(fd).st_ino, 0, 0)
                elif os.fstat(fd).st_size < here.offset or not _same(fd, here):
                    here = _Place(here.inode, 0, 0)
                else:
                    await anyio.sleep(_POLL_S)
        finally:
            os.close(fd)

    def _open(self, place: _Place | None) -> tuple[int, Event | None]:
        """The file to read on in: the one that `place` is in, also under a rotated name, else the one at the path."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            if place is None or os.fstat(fd).st_ino == place.inode:
                return fd, None
            for sibling in self.path.parent.glob(f"{self.path.name}*"):
                if sibling.stat().st_ino == place.inode and (rotated := os.open(sibling, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)):
                    if _same(rotated, place):
                        os.close(fd)
                        return rotated, None
                    os.close(rotated)
        except OSError as error:
            raise SourceFailed(f"{self.path}: {error.strerror}") from error
        return fd, lost_event(
            identity=f"file:{place.inode:x}:{place.offset}:lost",
            time=time.time(),
            boot_id=self.boot_id,
            count=None,
            fields={"file": self.path.name, "offset": place.offset},
        )

    def _replaced(self, here: _Place) -> bool:
        """Whether another file stands at the path. While none does, the old one is still followed."""
        try:
            return self.path.stat().st_ino != here.inode
        except FileNotFoundError:
            return False
        except OSError as error:
            raise SourceFailed(f"{self.path}: {error.strerror}") from error

    def _read(self, fd: int, here: _Place) -> tuple[list[Event], bool]:
        """The complete lines of one chunk; the second value says that there is more."""
        try:
            data = os.pread(fd, _CHUNK, here.offset)
        except OSError as error:
            raise SourceFailed(f"{self.path}: {error.strerror}") from error
        end = data.rfind(b"\n") + 1
        if not end:
            if len(data) <= _LONGEST:
                return [], False
            self.interpreter.counters.torn += 1
            end = len(data)
        events = []
        offset = here.offset
        for line in _lines(data[:end]):
            event = self._event(line, here.inode, offset)
            if event is not None:
                events.append(event)
            offset += len(line)
        here.offset = offset
        here.tail = _checksum(fd, offset)
        return events, len(data) == _CHUNK

    def _event(self, raw: bytes, inode: int, offset: int) -> Event | None:
        self.interpreter.counters.read += 1
        line = strip(raw)
        if line is None:
            return None
        self.interpreter.counters.userspace += bool(line.facility)
        sighting = self.interpreter.recognise(line.message)
        if sighting is None:
            return None
        identity = f"file:{inode:x}:{offset}:{zlib.crc32(raw):08x}"
        return self.interpreter.event(
            sighting, line.message, line.facility, identity=identity, time=time.time(), boot_id=self.boot_id, usec=None
        )


def _lines(data: bytes) -> list[bytes]:
    """Lines with their ends. Not splitlines(): a carriage return inside a line ends nothing."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _stored(position: Position | None) -> _Place | None:
    """A position that is not a file's (the source was kmsg before) counts as none."""
    if position is None:
        return None
    try:
        inode, offset, tail = json.loads(position.cursor)
    except (TypeError, ValueError):
        return None
    return _Place(int(inode), int(offset), int(tail))


def _checksum(fd: int, offset: int) -> int:
    return zlib.crc32(os.pread(fd, min(_TAIL, offset), max(0, offset - _TAIL)))


def _same(fd: int, place: _Place) -> bool:
    """Whether the bytes before the place are still those that were read."""
    stat = os.fstat(fd)
    return stat.st_ino == place.inode and stat.st_size >= place.offset and _checksum(fd, place.offset) == place.tail
