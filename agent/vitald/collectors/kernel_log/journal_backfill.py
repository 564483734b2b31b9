"""Events of the records that the ring no longer holds, from the journal.

The records of one boot are read in batches, in a thread of their own. Each batch has the position
of its last record, so that a daemon that is stopped meanwhile continues from there.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import structlog

from vitald.collectors.kernel_log.interpret import (
    NAME,
    Interpreter,
    make_boot_event,
    make_lost_event,
)
from vitald.collectors.kernel_log.journal import Journal, JournalRecord, JournalUnavailable
from vitald.collectors.kernel_log.kmsg import MARGIN_USEC, RingState, estimate_wall_time
from vitald.collectors.kernel_log.record import LogPosition
from vitald.model.event import Event, Value
from vitald.model.source import Batch, Position
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("kernel_log")

_BATCH = 10_000  # records between two stored positions
_MAX_RECORDS = 1_000_000  # of one boot; half a minute to read
_TIMEOUT_S = 30.0  # for one batch, from a cold disk and a large journal


@dataclass(slots=True)
class BootProgress:
    """How far the records of one boot have been read."""

    boot_id: str
    position: LogPosition  # of the last record that was read; seq -1 is the beginning of the boot
    ring: RingState | None = None  # reading ends where it begins
    was_found: bool = True  # `position` was in the journal, so no record behind it is missing
    is_whole: bool = True  # the boot was read to its end
    orderly: bool = False  # how the daemon ended in that boot
    read: int = 0  # records
    missed_before: int = 0  # records that journald lost before `position`

    def select_new(
        self, records: Iterator[JournalRecord], journal: Journal
    ) -> Iterator[JournalRecord]:
        """The records behind `position` and before the ring. If the record at `position` was
        rotated away, those that are younger.
        """
        is_waiting, younger = self.position.usec is not None, list[JournalRecord]()
        begin_usec = self.position.usec or 0
        for record in records:
            if self.ring is not None and self.ring.covers(record.usec, record.text):
                break
            if self.position.matches_record(record.usec, record.text):
                # It, or an indistinguishable one, which is then counted as lost
                is_waiting, younger = False, []
                self.missed_before = journal.missed
            elif not is_waiting:
                yield record
            elif record.usec > begin_usec:
                younger.append(record)
                if record.usec > begin_usec + MARGIN_USEC:
                    is_waiting = self.was_found = False
                    yield from younger
        if is_waiting:
            self.was_found = False
            yield from younger


@dataclass(frozen=True, slots=True)
class _JournalBatch:
    """`has_more`: there may be further records. `missed`: how many of them journald lost."""

    records: list[JournalRecord]
    has_more: bool
    was_found: bool
    missed: int


class JournalBackfill:
    """Reads the journal. `trouble` is why it could not be read; empty if it could."""

    def __init__(self, journal: Journal | None, interpreter: Interpreter, boot_id: str) -> None:
        self.trouble = ""
        self._journal = journal
        self._interpreter = interpreter
        self._boot_id = boot_id
        # Its own thread: a journal that hangs must not block the ring
        self._thread = WorkerThread("journal")

    def close(self) -> None:
        self._thread.close()

    async def list_boots_since(self, boot_id: str, position: LogPosition) -> list[str]:
        """The boots from the given one to the one before this; if the journal does not have it,
        those that are younger than the position.
        """
        if self._journal is None:
            return []
        try:
            boots = await self._thread.call(self._journal.list_boots, _TIMEOUT_S)
            if boot_id not in boots:
                await self._thread.call(self._journal.check_readable, _TIMEOUT_S)
                boots = await self._thread.call(
                    partial(self._journal.list_boots, position.time), _TIMEOUT_S
                )
        except (JournalUnavailable, ThreadStuck) as error:
            log.warning(
                "journal_not_read",
                error=str(error),
                effect="what happened in earlier boots is not known",
            )
            self.trouble = str(error)
            return []
        boots = [boot for boot in boots if boot != self._boot_id]
        return boots[boots.index(boot_id) :] if boot_id in boots else boots

    async def read_boot(self, progress: BootProgress) -> AsyncIterator[Batch]:
        """The records of one boot; `progress` is kept up to date."""
        self.trouble = ""
        position = progress.position
        if self._journal is None or (position.usec is None and position.seq >= 0):
            progress.was_found = False
            return
        has_more = True
        while has_more:
            if progress.read >= _MAX_RECORDS:
                progress.is_whole = False
                return
            try:
                batch = await self._thread.call(
                    partial(_read_batch, self._journal, progress), _TIMEOUT_S
                )
            except (JournalUnavailable, ThreadStuck) as error:
                log.warning(
                    "journal_not_read",
                    boot=progress.boot_id,
                    error=str(error),
                    effect="what the ring no longer holds is counted as lost",
                )
                self.trouble = str(error)
                progress.is_whole = False
                return
            if not batch.records:
                progress.was_found = progress.was_found and batch.was_found
                return
            has_more = batch.has_more
            events = self._build_batch_events(batch, progress)
            last = batch.records[-1]
            progress.read += len(batch.records)
            progress.position = LogPosition(
                progress.position.seq + len(batch.records),
                last.usec,
                zlib.crc32(last.text),
                last.time,
            )
            reached = Position(NAME, progress.boot_id, str(progress.position))
            yield Batch(NAME, tuple(events), reached, again=True)

    def build_unwatched_event(
        self, progress: BootProgress, time: float, count: int | None = None
    ) -> Event:
        """Records of a former boot, behind `progress.position`, that are lost.

        `time`: of the last record that was read, in seconds since the epoch. `count`: None if
        unknown.
        """
        boot_id, position = progress.boot_id, progress.position
        booted_at = estimate_wall_time(0)
        fields: dict[str, Value] = {"former_boot": boot_id, "orderly": progress.orderly}
        return make_lost_event(
            identity=f"kmsg:{boot_id}:lost:after-{position.seq}",
            time=time or booted_at,
            boot_id=boot_id,
            count=count,
            span=(position.time or None, booted_at),
            fields=fields | self.describe_trouble(),
            code="vitald/not_watched",
        )

    def describe_trouble(self) -> dict[str, Value]:
        """The field that explains in an event why the journal has no more."""
        return {"journal": self.trouble} if self.trouble else {}

    def _build_batch_events(self, batch: _JournalBatch, progress: BootProgress) -> list[Event]:
        """`progress` is that before the batch."""
        events = self._build_events(batch.records)
        if progress.boot_id == self._boot_id:
            return events  # its losses are counted by the ring's sequence numbers
        first_time = batch.records[0].time
        if progress.position.seq < 0:
            events.insert(0, make_boot_event(progress.boot_id, first_time))
        if batch.missed or not batch.was_found:
            time = progress.position.time or first_time
            events.insert(0, self.build_unwatched_event(progress, time, batch.missed or None))
        return events

    def _build_events(self, records: list[JournalRecord]) -> list[Event]:
        numbers: dict[tuple[int, bytes], int] = {}  # of equal records
        events = []
        for record in records:
            sighting = self._interpreter.parse_record(record.text)
            if sighting is None:
                continue
            key = record.usec, record.text
            numbers[key] = number = numbers.get(key, 0) + 1
            check = f"{zlib.crc32(record.text):08x}"
            is_this_boot = record.boot_id == self._boot_id
            event = self._interpreter.make_event(
                sighting,
                record.text,
                record.facility,
                identity=f"journal:{record.boot_id}:{record.usec}:{check}:{number}",
                time=estimate_wall_time(record.usec) if is_this_boot else record.time,
                boot_id=record.boot_id,
                usec=record.usec,
                approximate=True,
            )
            events.append(event)
        return events


def _read_batch(journal: Journal, progress: BootProgress) -> _JournalBatch:
    """The next records. Blocks. Raises JournalUnavailable."""
    if not progress.read:
        journal.check_readable()  # libsystemd opens a journal without permission as an empty one
    reading = replace(progress, was_found=True, missed_before=0)
    begin = progress.position.usec
    after_usec = max(0, begin - MARGIN_USEC) if begin is not None else None
    stored = journal.read_records(progress.boot_id, after_usec, _MAX_RECORDS)
    records = list(islice(reading.select_new(stored, journal), _BATCH))
    missed = journal.missed - reading.missed_before
    return _JournalBatch(records, len(records) == _BATCH, reading.was_found, missed)
