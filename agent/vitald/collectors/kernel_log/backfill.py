"""
What happened while the ring was not read, from the journal and the crash logs: read once, at the
start of the daemon.

    earlier boots since the last position      from the journal; then a crash log in pstore
    this boot before the ring's oldest record  from the journal
    what neither has                           a counted gap, with the time that it spans

A record that is in the ring and in the journal is one event: the journal is read up to the record
with which the ring begins, found by time stamp and text.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from vitald.collectors.kernel_log.interpret import NAME, Interpreter, make_lost_event
from vitald.collectors.kernel_log.journal import Journal
from vitald.collectors.kernel_log.journal_backfill import BootProgress, JournalBackfill
from vitald.collectors.kernel_log.kmsg import RingState, estimate_wall_time, read_ring_state
from vitald.collectors.kernel_log.lines import ContinuationDetector, strip_prefix
from vitald.collectors.kernel_log.pstore import CrashLog, read_crash_logs
from vitald.collectors.kernel_log.record import KernelRecord, LogPosition
from vitald.model.event import Event, Value
from vitald.model.source import Batch, Position
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("kernel_log")

_TIMEOUT_S = 30.0
CRASH_LOGS = "crash_logs"  # the position that names the crash logs that have been read
_MAX_CHUNKS = 512  # remembered; firmware has room for some tens
_NO_CRASH = ("Shutdown", "Restart", "Halt", "Poweroff")
_CRASH_LINE = re.compile(rb"<(?P<prio>\d{1,3})>\[ *(?P<seconds>\d{1,10})\.(?P<micros>\d{6})\]")


class Backfill:
    """Reads what was logged before the ring's oldest record."""

    def __init__(
        self,
        path: str,
        interpreter: Interpreter,
        boot_id: str,
        thread: WorkerThread,
        journal: Journal | None,
        folders: tuple[Path, ...],
    ) -> None:
        """`path`: of the ring. `folders`: of the crash logs."""
        self._path = path
        self._interpreter = interpreter
        self._boot_id = boot_id
        self._thread = thread
        self._journal = JournalBackfill(journal, interpreter, boot_id)
        self._crash_logs = CrashLogBackfill(folders, interpreter, boot_id, thread)

    def close(self) -> None:
        """Ends the thread that reads the journal."""
        self._journal.close()

    async def read_former_boots(
        self, after: Position | None, crashes: Position | None = None, *, orderly: bool
    ) -> AsyncIterator[Batch]:
        """What happened since `after` in boots before this one. Nothing if `after` is in this boot
        or the log was never read.

        `crashes`: which crash logs have been read. `orderly`: the daemon was stopped, not killed,
        so little can have been missed.
        """
        position = LogPosition.from_position(after)
        if after is None or position is None or after.boot_id == self._boot_id:
            # All crash logs are older than the daemon, or than its memory of which it has read
            if crashes is None:
                async for batch in self._crash_logs.read_batches(None, crashes):
                    yield batch
            return
        if await self._is_same_ring(position):
            async for batch in self._crash_logs.read_batches(None, crashes):
                yield batch
            yield Batch(NAME, position=Position(NAME, self._boot_id, str(position)))
            return
        last = after
        async for batch in self._read_boots(after, position, orderly=orderly):
            last = batch.position or last
            yield batch
        async for batch in self._crash_logs.read_batches(last, crashes):
            yield batch

    async def read_this_boot(self, after: Position | None) -> AsyncIterator[Batch]:
        """What the ring has lost of this boot since `after`; since the boot, if `after` is in
        another one.
        """
        begin = LogPosition(-1)
        if after is not None and after.boot_id == self._boot_id:
            begin = LogPosition.from_position(after) or begin
        ring = await self._read_ring_state(begin)
        if ring is None or ring.oldest.seq <= begin.seq + 1:
            return
        progress = BootProgress(self._boot_id, begin, ring)
        async for batch in self._journal.read_boot(progress):
            yield batch
        before_ring = ring.oldest.seq - 1
        missing = before_ring - progress.position.seq
        lost: tuple[Event, ...] = ()
        # At the very first start, earlier records do not count as lost
        if missing > 0 and after is not None:
            lost = (self._build_gap_event(begin, progress.read, ring.oldest, missing),)
        reached = replace(progress.position, seq=before_ring)
        if missing > 0:
            reached = LogPosition(before_ring, time=estimate_wall_time(ring.oldest.usec))
        yield Batch(NAME, lost, Position(NAME, self._boot_id, str(reached)), again=True)

    async def _read_boots(
        self, after: Position, position: LogPosition, *, orderly: bool
    ) -> AsyncIterator[Batch]:
        """The boots that have ended, one after the other, from the journal."""
        reached = position.time
        boots = await self._journal.list_boots_since(after.boot_id, position)
        if after.boot_id not in boots:
            progress = BootProgress(after.boot_id, position, orderly=orderly)
            lost = self._journal.build_unwatched_event(progress, reached)
            yield Batch(NAME, (lost,), again=True)
        for boot in boots:
            begin = position if boot == after.boot_id else LogPosition(-1)
            progress = BootProgress(boot, begin, orderly=orderly)
            async for batch in self._journal.read_boot(progress):
                yield batch
            reached = progress.position.time or reached
            if not (progress.is_whole and progress.was_found):
                lost = self._journal.build_unwatched_event(progress, reached)
                yield Batch(NAME, (lost,), again=True)

    async def _is_same_ring(self, position: LogPosition) -> bool:
        """True in a container with a boot id of its own on a host that was not rebooted: the ring
        continues from `position`.
        """
        ring = await self._read_ring_state(position)
        return ring is not None and (ring.has_position or ring.may_continue(position))

    async def _read_ring_state(self, position: LogPosition) -> RingState | None:
        try:
            return await self._thread.call(
                partial(read_ring_state, self._path, position), _TIMEOUT_S
            )
        except (OSError, ThreadStuck) as error:
            log.debug("ring_not_looked_at", error=str(error))  # the source itself reports it
            return None

    def _build_gap_event(
        self, begin: LogPosition, recovered: int, oldest: KernelRecord, missing: int
    ) -> Event:
        """Records of this boot that neither the ring nor the journal has."""
        first, last = begin.seq + 1, oldest.seq - 1
        until = estimate_wall_time(oldest.usec)
        fields: dict[str, Value] = {"first_seq": first, "last_seq": last, "recovered": recovered}
        self._interpreter.counters.lost += missing
        return make_lost_event(
            identity=f"kmsg:{self._boot_id}:lost:{first}-{last}",
            time=until,
            boot_id=self._boot_id,
            count=missing,
            span=(begin.time or None, until),
            fields=fields | self._journal.describe_trouble(),
        )


class CrashLogBackfill:
    """Reads the crash logs in pstore that have not been read before: the last lines of a kernel.

    A crash log stays there for many boots, and some firmware (ERST) dates it by the boot in which
    it is read. Therefore the logs that have been read are remembered by digest, in a position of
    their own that is stored with their events: each is evaluated in one boot only.
    """

    def __init__(
        self,
        folders: tuple[Path, ...],
        interpreter: Interpreter,
        boot_id: str,
        thread: WorkerThread,
    ) -> None:
        self._folders = folders
        self._interpreter = interpreter
        self._boot_id = boot_id
        self._thread = thread

    async def read_batches(
        self, last: Position | None, read_before: Position | None
    ) -> AsyncIterator[Batch]:
        """One batch, so that the logs are remembered together with all of their events; none if
        there are no crash logs.

        `last`: the last record before the crash; None if no boot has ended, so that all logs are
        old. `read_before`: which crash logs have been read.
        """
        try:
            logs, problems = await self._thread.call(
                partial(read_crash_logs, self._folders), _TIMEOUT_S
            )
        except ThreadStuck as error:
            log.warning("pstore_not_read", error=str(error))
            return
        for problem in problems:
            log.warning("pstore", said=problem)
        known = read_before.cursor.split() if read_before is not None else []
        events: tuple[Event, ...] = ()
        if last is not None:
            events = tuple(self._build_new_events(logs, last, frozenset(known)))
        newest_first = [digest for crash in reversed(logs) for digest in reversed(crash.chunks)]
        digests = list(dict.fromkeys([*newest_first, *known]))[:_MAX_CHUNKS]
        if digests:
            reached = Position(CRASH_LOGS, self._boot_id, " ".join(digests))
            yield Batch(NAME, events, reached, again=True)

    def _build_new_events(
        self, logs: list[CrashLog], last: Position, known: frozenset[str]
    ) -> Iterator[Event]:
        """Events of these crash logs, oldest first. The log of a panic repeats that of the oops
        before it: such a line is one record.
        """
        position = LogPosition.parse(last.cursor)
        reported: set[tuple[int | None, bytes]] = set()
        for crash in logs:
            if crash.time <= position.time or crash.reason in _NO_CRASH:
                continue
            newest = max(
                (usec for usec in map(_read_usec, crash.lines) if usec is not None), default=0
            )
            # A crash of a boot that left no other record, early in it: all its lines are new
            after_usec = -1 if newest < (position.usec or 0) else position.usec or 0
            known_lines = frozenset(reported)
            yield from self._build_events(crash, last.boot_id, after_usec, known, known_lines)
            reported |= {(_read_usec(text), text) for text in crash.lines}

    def _build_events(
        self,
        crash: CrashLog,
        boot_id: str,
        after_usec: int,
        known_chunks: frozenset[str],
        known_lines: frozenset[tuple[int | None, bytes]],
    ) -> Iterator[Event]:
        sequel = ContinuationDetector()
        # If some of its chunks are known, a line's number may differ from that of the first read
        is_partial = not known_chunks.isdisjoint(crash.chunks)
        for number, (text, chunk) in enumerate(zip(crash.lines, crash.chunks)):
            usec, line = _read_usec(text), strip_prefix(text)
            if usec is None or line is None:
                continue
            doubt = sequel.find_doubt(line)
            if usec <= after_usec or chunk in known_chunks or (usec, text) in known_lines:
                continue
            sighting = self._interpreter.parse_record(line.message)
            if sighting is None:
                continue
            yield self._interpreter.make_event(
                sighting,
                line.message,
                line.facility,
                identity=f"pstore:{chunk if is_partial else crash.name}:{number}",
                time=crash.time,
                boot_id=boot_id,
                usec=usec,
                approximate=True,
                doubt=doubt,
            )


def _read_usec(line: bytes) -> int | None:
    """The time stamp of a rendered line: microseconds on the kernel's clock."""
    stamp = _CRASH_LINE.match(line)
    return int(stamp["seconds"]) * 1_000_000 + int(stamp["micros"]) if stamp is not None else None
