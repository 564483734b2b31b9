"""
/dev/kmsg: every record once, in order, as soon as the kernel wakes us.

Source: Linux Documentation/ABI/testing/dev-kmsg. One read gives one record; EPIPE says that the ring overtook us; a
jump of `seq` says by how much. Sequence numbers begin at 0 with every boot, so (boot id, seq) is a record's identity.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from agent.model import Event
from agent.sources.kernel_log.interpret import NAME, Interpreter, lost_event
from agent.sources.kernel_log.record import split
from agent.sources.source import Batch, Position, SourceFailed

_BUFFER = 16384  # a smaller buffer than the record would lose it (EINVAL)
_DRAIN = 512  # records read before other tasks get their turn
_HEARTBEAT_S = 10.0


@dataclass(slots=True)
class _Cursor:
    """`seq` of the last record read; None before the first, when what came earlier is not ours to miss."""

    seq: int | None


class Kmsg:
    """The kernel log, read from /dev/kmsg."""

    name = NAME
    deadline_s = 3 * _HEARTBEAT_S

    def __init__(self, path: str, interpreter: Interpreter, boot_id: str) -> None:
        self.path = path
        self.interpreter = interpreter
        self.boot_id = boot_id

    async def batches(self, after: Position | None) -> AsyncIterator[Batch]:
        """From the record after `after`, or from the oldest that the ring still holds."""
        cursor = _Cursor(int(after.cursor) if after is not None and after.boot_id == self.boot_id else None)
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise SourceFailed(f"{self.path}: {error.strerror}{_hint(error)}") from error
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()

        def readable() -> None:
            loop.remove_reader(fd)  # once: while the pipeline makes us wait, a readable file would spin the loop
            ready.set()

        try:
            live = False
            while True:
                ready.clear()
                events, drained = self._drain(fd, cursor, live=live)
                position = Position(NAME, self.boot_id, str(cursor.seq)) if cursor.seq is not None else None
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

    def _drain(self, fd: int, cursor: _Cursor, *, live: bool) -> tuple[list[Event], bool]:
        """Up to `_DRAIN` records. The second value says that the ring is empty. This is the hot loop."""
        events: list[Event] = []
        recognise, event, counters = self.interpreter.recognise, self.interpreter.event, self.interpreter.counters
        read, last = os.read, cursor.seq
        done, userspace = 0, 0
        try:
            while done < _DRAIN:
                try:
                    data = read(fd, _BUFFER)
                except BlockingIOError:
                    return events, True
                except BrokenPipeError:
                    counters.overruns += 1
                    continue
                except OSError as error:
                    if error.errno == 22:  # EINVAL: the record did not fit and is gone; the next seq tells
                        continue
                    raise SourceFailed(f"{self.path}: {error.strerror}") from error
                done += 1
                found = split(data)
                if found is None:
                    if not data:
                        raise SourceFailed(f"{self.path}: end of file")
                    counters.torn += 1
                    continue
                prio, number, usec, text = found.groups()
                seq = int(number)
                if last is not None:
                    if seq <= last:
                        continue
                    if seq != last + 1:
                        events.append(self._lost(last + 1, seq - 1))
                last = seq
                if len(prio) > 1 or prio > b"7":
                    userspace += 1
                if (sighting := recognise(text)) is not None:
                    identity = f"kmsg:{self.boot_id}:{seq}"
                    at = time.time() if live else wall_time(int(usec))
                    events.append(event(sighting, text, int(prio) >> 3, identity=identity, time=at, boot_id=self.boot_id, usec=int(usec)))
            return events, False
        finally:
            cursor.seq = last
            counters.read += done
            counters.userspace += userspace

    def _lost(self, first: int, last: int) -> Event:
        count = last - first + 1
        self.interpreter.counters.lost += count
        return lost_event(
            identity=f"kmsg:{self.boot_id}:lost:{first}-{last}",
            time=time.time(),
            boot_id=self.boot_id,
            count=count,
            fields={"first_seq": first, "last_seq": last},
        )


def wall_time(usec: int) -> float:
    """When a record found at start-up was written, about: the kernel's clock drifts and stands still in suspend."""
    return min(time.time(), time.time() - (time.clock_gettime(time.CLOCK_MONOTONIC) - usec / 1e6))


def _hint(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return " (reading it needs CAP_SYSLOG where kernel.dmesg_restrict=1)"
    if isinstance(error, FileNotFoundError):
        return ' (in a container pass the device in, or set [kernel_log] source = "file")'
    return ""
