"""
Reader of /dev/kmsg: every record once, in order, as soon as the kernel signals it. It knows what
the ring holds when the daemon starts, and whether the record that was read last is still in it.

Source: Linux Documentation/ABI/testing/dev-kmsg. One read returns one record; EPIPE means that the
ring overwrote unread records, and the jump in `seq` gives their number. Sequence numbers begin at 0
with every boot, so (boot id, seq) identifies a record.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import time
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from vitald.collectors.kernel_log.interpret import NAME, Interpreter, make_lost_event
from vitald.collectors.kernel_log.record import (
    KernelRecord,
    LogPosition,
    ParsedLine,
    TornRecord,
    split_record,
)
from vitald.model.event import Event, Value
from vitald.model.source import Batch, Position, SourceFailed

KMSG = Path("/dev/kmsg")
_KMSG_DEVICE = os.makedev(1, 11)  # device number, whatever the file is called
_BUFFER_BYTES = 16384  # a buffer smaller than the record would lose it (EINVAL)
_MAX_RECORDS = 128  # read before other tasks get their turn
_MAX_EVENTS = 48  # the same for records that become events, which cost more
_HEARTBEAT_S = 10.0
MARGIN_USEC = 2_000_000  # time stamps of two processors differ by less
_MARGIN_S = 10.0
_MAX_TORN = 1000  # invalid records; the ring has none


@dataclass(slots=True)
class _Cursor:
    """Position of the last record read; None before the first, when earlier records do not count as
    lost.
    """

    position: LogPosition | None


class Kmsg:
    """Source of kernel log events that reads /dev/kmsg."""

    name = NAME
    deadline_s = 3 * _HEARTBEAT_S

    def __init__(
        self, path: str, interpreter: Interpreter, boot_id: str, opened: int | None = None
    ) -> None:
        """`opened`: a descriptor of the same file, where the daemon may not open it itself (see
        `take_stdin`).
        """
        self.path = path
        self.opened = opened
        self.interpreter = interpreter
        self.boot_id = boot_id

    async def read_batches(self, after: Position | None) -> AsyncIterator[Batch]:
        """Batches from the record after `after`, or from the oldest that the ring still holds.
        Raises SourceFailed.
        """
        cursor = _Cursor(
            LogPosition.from_position(after)
            if after is not None and after.boot_id == self.boot_id
            else None
        )
        try:
            fd = self._open_device()
        except OSError as error:
            hint = _explain_open_error(error)
            raise SourceFailed(f"{self.path}: {error.strerror}{hint}") from error
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()

        def signal_readable() -> None:
            # Removed at once: a readable file would spin the loop while the pipeline is busy
            loop.remove_reader(fd)
            ready.set()

        try:
            live = False
            while True:
                ready.clear()
                events, drained = self._drain_ring(fd, cursor, live=live)
                position = (
                    Position(NAME, self.boot_id, str(cursor.position))
                    if cursor.position is not None
                    else None
                )
                yield Batch(NAME, tuple(events), position, caught_up=drained)
                if drained:
                    live = True
                    loop.add_reader(fd, signal_readable)
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

    def _open_device(self) -> int:
        """A descriptor at the oldest record of the ring. Raises OSError."""
        if self.opened is None:
            return os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        # The read position is shared with every earlier reader of this descriptor
        os.lseek(self.opened, 0, os.SEEK_SET)
        return os.dup(self.opened)

    def _drain_ring(self, fd: int, cursor: _Cursor, *, live: bool) -> tuple[list[Event], bool]:
        """Read up to `_MAX_RECORDS` records; returns their events, and whether the ring is empty.

        The hot loop of a flood: an ordinary record is only read, split and matched.
        """
        events: list[Event] = []
        parse_record, counters = self.interpreter.parse_record, self.interpreter.counters
        read, before = os.read, cursor.position
        last = before.seq if before is not None else None
        gaps: list[tuple[int, int]] = []  # first and last number that is missing
        done, userspace, torn = 0, 0, 0
        usec, text = b"", b""
        try:
            while done < _MAX_RECORDS and len(events) < _MAX_EVENTS:
                try:
                    data = read(fd, _BUFFER_BYTES)
                except BlockingIOError:
                    return events, True
                except OSError as error:
                    self._handle_read_error(error)
                    continue
                done += 1
                found = split_record(data)
                if found is None:
                    torn += 1
                    self._count_torn(data, torn)
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
                if (parsed := parse_record(text)) is not None:
                    events.append(self._make_event(parsed, text, prio, seq, int(usec), live=live))
            return events, False
        finally:
            if last is not None and usec:
                cursor.position = _make_position(last, int(usec), text, live=live)
            if gaps:
                events.insert(0, self._make_lost_event(gaps, before, cursor.position))
            counters.read += done
            counters.userspace += userspace

    def _handle_read_error(self, error: OSError) -> None:
        """Raises SourceFailed unless reading can go on with the next record."""
        if error.errno == errno.EPIPE:
            self.interpreter.counters.overruns += 1
        elif error.errno != errno.EINVAL:  # EINVAL: a record too long for the buffer, skipped
            raise SourceFailed(f"{self.path}: {error.strerror}") from error

    def _count_torn(self, data: bytes, torn: int) -> None:
        """`torn`: number of bad records in this drain. Raises SourceFailed at the end of the file,
        and if the file gives no records of the kernel log.
        """
        if not data:
            raise SourceFailed(f"{self.path}: end of file")
        self.interpreter.counters.torn += 1
        if torn >= _MAX_RECORDS:
            raise SourceFailed(f"{self.path}: what it gives are no records of the kernel log")

    def _make_event(
        self, parsed: ParsedLine, text: bytes, prio: bytes, seq: int, usec: int, *, live: bool
    ) -> Event:
        return self.interpreter.make_event(
            parsed,
            text,
            int(prio) >> 3,
            identity=f"kmsg:{self.boot_id}:{seq}",
            time=time.time() if live else estimate_wall_time(usec),
            boot_id=self.boot_id,
            usec=usec,
            approximate=not live,
            live=live,
        )

    def _make_lost_event(
        self, gaps: list[tuple[int, int]], before: LogPosition | None, after: LogPosition | None
    ) -> Event:
        """One event for all gaps of one drain."""
        count = sum(last - first + 1 for first, last in gaps)
        self.interpreter.counters.lost += count
        fields: dict[str, Value] = {"first_seq": gaps[0][0], "last_seq": gaps[-1][1]}
        if len(gaps) > 1:
            fields["ranges"] = [number for gap in gaps for number in gap]
        return make_lost_event(
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


def take_stdin() -> int | None:
    """A descriptor of /dev/kmsg if it is the standard input: the service manager can open it where
    the daemon cannot. Standard input becomes /dev/null, so that child processes do not inherit it.
    """
    try:
        found = os.fstat(0)
    except OSError:
        return None
    if not stat.S_ISCHR(found.st_mode) or found.st_rdev != _KMSG_DEVICE:
        return None
    fd, null = os.dup(0), os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    os.set_blocking(fd, False)
    return fd


def estimate_wall_time(usec: int) -> float:
    """Approximate time of writing, in seconds since the epoch, of a record with the kernel stamp
    `usec`. The kernel's clock drifts and stops during suspend.
    """
    return min(time.time(), time.time() - (time.clock_gettime(time.CLOCK_MONOTONIC) - usec / 1e6))


def _make_position(seq: int, usec: int, text: bytes, *, live: bool) -> LogPosition:
    read_at = time.time() if live else estimate_wall_time(usec)
    return LogPosition(seq, usec, zlib.crc32(text), read_at)


def _explain_open_error(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return (
            " (reading it needs CAP_SYSLOG where kernel.dmesg_restrict=1; the service has it as its"
            " standard input)"
        )
    if isinstance(error, FileNotFoundError):
        return ' (in a container pass the device in, or set [kernel_log] source = "file")'
    return ""


@dataclass(frozen=True, slots=True)
class RingState:
    """`has_position`: the record at the stored position is in the ring.

    `first_records` are the oldest ones, by time stamp (microseconds on the kernel's clock) and
    text: the journal may lack the very first.
    """

    oldest: KernelRecord
    has_position: bool
    first_records: frozenset[tuple[int, bytes]] = frozenset()

    def may_continue(self, position: LogPosition) -> bool:
        """Whether the ring can be the one that `position` was read in, although that record has
        been overwritten: the host has been up since.
        """
        is_later = self.oldest.seq > position.seq and self.oldest.usec >= (position.usec or 0)
        return is_later and position.time > estimate_wall_time(0) + _MARGIN_S

    def covers(self, usec: int, text: bytes) -> bool:
        """Whether this record, or one that is as young, is still in the ring."""
        return (usec, text) in self.first_records or usec > self.oldest.usec + MARGIN_USEC


def read_ring_state(path: str, position: LogPosition) -> RingState | None:
    """None if the ring is empty. Blocks. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        oldest: KernelRecord | None = None
        first_records: set[tuple[int, bytes]] = set()
        has_position, torn = False, 0
        while torn <= _MAX_TORN:
            try:
                data = os.read(fd, _BUFFER_BYTES)
                # The ring has no end of file: this is another file, which the source will report
                if not data:
                    break
                record = KernelRecord.parse(data)
            except BlockingIOError:
                break
            except BrokenPipeError:
                oldest, first_records = None, set()  # the oldest record has been overwritten
                continue
            except TornRecord:
                torn += 1
                continue
            oldest = oldest or record
            if record.usec <= oldest.usec + MARGIN_USEC:
                first_records.add((record.usec, record.text))
            elif record.seq > position.seq:
                break
            is_last_read = record.seq == position.seq and position.matches_record(
                record.usec, record.text
            )
            has_position = has_position or is_last_read
    finally:
        os.close(fd)
    return RingState(oldest, has_position, frozenset(first_records)) if oldest is not None else None
