"""
/dev/kmsg: every record once, in order, as soon as the kernel wakes us.

Source: Linux Documentation/ABI/testing/dev-kmsg. One read gives one record; EPIPE says that the
ring overtook us; a jump of `seq` says by how much. Sequence numbers begin at 0 with every boot, so
(boot id, seq) is a record's identity.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from vitald.collectors.kernel_log.interpret import NAME, Interpreter, lost_event
from vitald.collectors.kernel_log.log_position import LogPosition
from vitald.collectors.kernel_log.record import split
from vitald.model import Batch, Event, Position, SourceFailed, Value

KMSG = Path("/dev/kmsg")
_NUMBER = os.makedev(1, 11)  # of that device, whatever its file is called
_BUFFER = 16384  # a smaller buffer than the record would lose it (EINVAL)
_DRAIN = 128  # records read before other tasks get their turn
_EVENTS = 48  # or as many that report something, which cost more
_HEARTBEAT_S = 10.0


@dataclass(slots=True)
class _Cursor:
    """The last record read; None before the first, when what came earlier is not ours to miss."""

    place: LogPosition | None


class Kmsg:
    """The kernel log, read from /dev/kmsg."""

    name = NAME
    deadline_s = 3 * _HEARTBEAT_S

    def __init__(
        self, path: str, interpreter: Interpreter, boot_id: str, opened: int | None = None
    ) -> None:
        """`opened`: the same file, where we may not open it ourselves (`from_stdin`)."""
        self.path = path
        self.opened = opened
        self.interpreter = interpreter
        self.boot_id = boot_id

    async def read_batches(self, after: Position | None) -> AsyncIterator[Batch]:
        """From the record after `after`, or from the oldest that the ring still holds."""
        cursor = _Cursor(
            LogPosition.of(after) if after is not None and after.boot_id == self.boot_id else None
        )
        try:
            fd = self._open()
        except OSError as error:
            raise SourceFailed(f"{self.path}: {error.strerror}{_hint(error)}") from error
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()

        def readable() -> None:
            # Once: while the pipeline makes us wait, a readable file would spin the loop
            loop.remove_reader(fd)
            ready.set()

        try:
            live = False
            while True:
                ready.clear()
                events, drained = self._drain(fd, cursor, live=live)
                position = (
                    Position(NAME, self.boot_id, str(cursor.place))
                    if cursor.place is not None
                    else None
                )
                yield Batch(NAME, tuple(events), position, caught_up=drained)
                if drained:
                    live = True
                    loop.add_reader(fd, readable)
                    heartbeat = loop.call_later(_HEARTBEAT_S, ready.set)
                    try:
                        await ready.wait()
                    finally:
                        heartbeat.cancel()
                else:
                    await asyncio.sleep(0)
        finally:
            loop.remove_reader(fd)
            os.close(fd)

    def _open(self) -> int:
        """At the oldest record of the ring. Raises OSError."""
        if self.opened is None:
            return os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        # Where it stands is shared with whoever read it before us
        os.lseek(self.opened, 0, os.SEEK_SET)
        return os.dup(self.opened)

    # One loop without calls of its own: it runs for every record of a flood.
    def _drain(  # noqa: C901
        self, fd: int, cursor: _Cursor, *, live: bool
    ) -> tuple[list[Event], bool]:
        """Up to `_DRAIN` records. The second value says that the ring is empty. This is the hot
        loop.
        """
        events: list[Event] = []
        recognise, event, counters = (
            self.interpreter.recognise,
            self.interpreter.event,
            self.interpreter.counters,
        )
        read, place = os.read, cursor.place
        last = place.seq if place is not None else None
        gaps: list[tuple[int, int]] = []  # first and last number that is missing
        done, userspace, torn = 0, 0, 0
        usec, text = b"", b""
        try:
            while done < _DRAIN and len(events) < _EVENTS:
                try:
                    data = read(fd, _BUFFER)
                except BlockingIOError:
                    return events, True
                except BrokenPipeError:
                    counters.overruns += 1
                    continue
                except OSError as error:
                    # EINVAL: the record did not fit and is gone; the next seq tells
                    if error.errno == 22:
                        continue
                    raise SourceFailed(f"{self.path}: {error.strerror}") from error
                done += 1
                found = split(data)
                if found is None:
                    if not data:
                        raise SourceFailed(f"{self.path}: end of file")
                    counters.torn += 1
                    torn += 1
                    if torn >= _DRAIN:
                        raise SourceFailed(
                            f"{self.path}: what it gives are no records of the kernel log"
                        )
                    continue
                prio, number, usec, text = found.groups()
                seq = int(number)
                if last is not None:
                    if seq <= last:
                        usec = b""
                        continue
                    if seq != last + 1:
                        gaps.append((last + 1, seq - 1))
                last = seq
                if len(prio) > 1 or prio > b"7":
                    userspace += 1
                if (sighting := recognise(text)) is not None:
                    identity = f"kmsg:{self.boot_id}:{seq}"
                    at = time.time() if live else wall_time(int(usec))
                    record = event(
                        sighting,
                        text,
                        int(prio) >> 3,
                        identity=identity,
                        time=at,
                        boot_id=self.boot_id,
                        usec=int(usec),
                        approximate=not live,
                        live=live,
                    )
                    events.append(record)
            return events, False
        finally:
            if last is not None and usec:
                cursor.place = LogPosition(
                    last, int(usec), zlib.crc32(text), time.time() if live else wall_time(int(usec))
                )
            if gaps:
                events.insert(0, self._lost(gaps, place, cursor.place))
            counters.read += done
            counters.userspace += userspace

    def _lost(
        self, gaps: list[tuple[int, int]], before: LogPosition | None, after: LogPosition | None
    ) -> Event:
        """One event for what one drain found missing, however often the ring overtook us in it."""
        count = sum(last - first + 1 for first, last in gaps)
        self.interpreter.counters.lost += count
        fields: dict[str, Value] = {"first_seq": gaps[0][0], "last_seq": gaps[-1][1]}
        if len(gaps) > 1:
            fields["ranges"] = [number for gap in gaps for number in gap]
        return lost_event(
            identity=f"kmsg:{self.boot_id}:lost:{gaps[0][0]}-{gaps[-1][1]}",
            time=time.time(),
            boot_id=self.boot_id,
            count=count,
            span=(
                before.time or None if before is not None else None,
                after.time if after is not None else None,
            ),
            fields=fields,
        )


def from_stdin() -> int | None:
    """/dev/kmsg, where it is our standard input: who started us may open it, and we need not be
    able to. What we start does not get it.
    """
    try:
        found = os.fstat(0)
    except OSError:
        return None
    if not stat.S_ISCHR(found.st_mode) or found.st_rdev != _NUMBER:
        return None
    fd, null = os.dup(0), os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    os.set_blocking(fd, False)
    return fd


def wall_time(usec: int) -> float:
    """When a record found at start-up was written, about: the kernel's clock drifts and stands
    still in suspend.
    """
    return min(time.time(), time.time() - (time.clock_gettime(time.CLOCK_MONOTONIC) - usec / 1e6))


def _hint(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return (
            " (reading it needs CAP_SYSLOG where kernel.dmesg_restrict=1; the service has it as its"
            " standard input)"
        )
    if isinstance(error, FileNotFoundError):
        return ' (in a container pass the device in, or set [kernel_log] source = "file")'
    return ""
