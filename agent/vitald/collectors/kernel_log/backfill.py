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

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from vitald.collectors.kernel_log.crash_backfill import CrashLogBackfill
from vitald.collectors.kernel_log.interpret import NAME, Interpreter, make_lost_event
from vitald.collectors.kernel_log.journal import Journal
from vitald.collectors.kernel_log.journal_backfill import BootProgress, JournalBackfill
from vitald.collectors.kernel_log.kmsg import estimate_wall_time
from vitald.collectors.kernel_log.log_position import LogPosition
from vitald.collectors.kernel_log.record import KernelRecord
from vitald.collectors.kernel_log.ring_state import RingState, read_ring_state
from vitald.model import Batch, Event, Position, Value
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("kernel_log")

_TIMEOUT_S = 30.0


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
