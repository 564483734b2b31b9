"""
What happened while nobody read the ring, as far as the journal and the crash logs still know: read
once, at the start.

    earlier boots since the last known place   from the journal; then what a crash left in pstore
    this boot before the ring's oldest record  from the journal
    what neither has                           a counted gap, with the time that it spans

The same record out of ring and journal is one event: the journal is read up to the very record with
which the ring begins, known by its stamp and text. A stop in between goes on from the last place
that was handed in.

A crash log stays where it is, for many boots, and some firmware dates it by the boot in which it is
read (ERST). So which have been read is a position of its own, by what is in them, stored with their
events: each is judged in one boot only.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import structlog

from vitald.collectors.kernel_log import pstore
from vitald.collectors.kernel_log.interpret import (
    NAME,
    Interpreter,
    make_boot_event,
    make_lost_event,
)
from vitald.collectors.kernel_log.journal import Journal, JournalRecord, JournalUnavailable
from vitald.collectors.kernel_log.kmsg import estimate_wall_time
from vitald.collectors.kernel_log.lines import ContinuationDetector, strip_prefix
from vitald.collectors.kernel_log.log_position import LogPosition
from vitald.collectors.kernel_log.record import KernelRecord, TornRecord
from vitald.model import Batch, Event, Position, Value
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("kernel_log")

_BATCH = 10_000  # records between two stored places
_MOST = 1_000_000  # records of one boot; half a minute's reading
_LANE_S = 30.0  # for one batch; a cold disk and a large journal
_MARGIN_USEC = 2_000_000  # stamps of two processors differ by less
_MARGIN_S = 10.0
_BUFFER = 16384
_TORN = 1000  # records of no grammar; the ring has none
CRASH_LOGS = "crash_logs"  # the position that says which crash logs have been read
_CRASH_CHUNKS = 512  # remembered of them; firmware has room for some tens
_NO_CRASH = ("Shutdown", "Restart", "Halt", "Poweroff")
_LINE = re.compile(rb"<(?P<prio>\d{1,3})>\[ *(?P<seconds>\d{1,10})\.(?P<micros>\d{6})\]")


@dataclass(frozen=True, slots=True)
class Ring:
    """What the ring held at the moment: its oldest record, and whether it still is the one that
    `place` was read from.

    `held` are its first records, by stamp and text: the journal may lack the very first.
    """

    oldest: KernelRecord
    same: bool
    held: frozenset[tuple[int, bytes]] = frozenset()


@dataclass(slots=True)
class _Part:
    """Records of one boot being read from the journal: how far, and which must not be read
    twice.
    """

    boot_id: str
    place: LogPosition  # the last record that was read; seq -1 is the boot's beginning
    ring: Ring | None = None  # where to end
    found: bool = True  # `place` was in the journal, so nothing is missing behind it
    whole: bool = True  # it was read to its end
    orderly: bool = False  # how the daemon ended in that boot
    read: int = 0
    old_news: int = 0  # of what journald says it lost, what it lost before `place`

    def fresh(self, records: Iterator[JournalRecord], journal: Journal) -> Iterator[JournalRecord]:
        """Those behind `place` and before the ring. Where `place` was rotated away, what is
        younger.
        """
        waiting, younger = self.place.usec is not None, list[JournalRecord]()
        for record in records:
            if self.ring is not None and (
                (record.usec, record.text) in self.ring.held
                or record.usec > self.ring.oldest.usec + _MARGIN_USEC
            ):
                break
            if self.place.matches_record(record.usec, record.text):
                # It, or one that nothing tells from it; that one is counted as lost
                waiting, younger = (
                    False,
                    [],
                )
                self.old_news = journal.missed
            elif not waiting:
                yield record
            elif record.usec > (self.place.usec or 0):
                younger.append(record)
                if record.usec > (self.place.usec or 0) + _MARGIN_USEC:
                    waiting = self.found = False
                    yield from younger
        if waiting:
            self.found = False
            yield from younger


class Earlier:
    """Reads what came before the ring. `orderly`: the daemon was stopped, not killed, so little can
    have been missed.
    """

    def __init__(
        self,
        path: str,
        interpreter: Interpreter,
        boot_id: str,
        lane: WorkerThread,
        journal: Journal | None,
        folders: tuple[Path, ...],
    ) -> None:
        self.path = path
        self.interpreter = interpreter
        self.boot_id = boot_id
        self.lane = lane
        self.journal = journal
        # Of its own: a journal that hangs must not hide what the ring has lost
        self.journal_lane = WorkerThread("journal")
        self.folders = folders
        self._trouble = ""  # why the journal could not be read

    def close(self) -> None:
        """What came before has been read."""
        self.journal_lane.close()

    async def former_boots(
        self, after: Position | None, crashes: Position | None = None, *, orderly: bool
    ) -> AsyncIterator[Batch]:
        """What happened since `after` in boots before this one. Nothing where it was read in this
        boot, or never.

        `crashes`: which crash logs have been read.
        """
        place = LogPosition.from_position(after)
        if after is None or place is None or after.boot_id == self.boot_id:
            if crashes is None:  # they are from before us, or from before this was remembered
                async for batch in self._crashes(None, crashes):
                    yield batch
            return
        last, reached = after, place.time
        ring = await self._ring(place)
        if ring is not None and (ring.same or _goes_on(ring, place)):
            # A container with a boot id of its own, on a host that was not booted: the ring goes on
            # where it was.
            async for batch in self._crashes(None, crashes):
                yield batch
            yield Batch(NAME, position=Position(NAME, self.boot_id, str(place)))
            return
        boots = await self._boots_since(after.boot_id, place)
        if after.boot_id not in boots:
            yield Batch(
                NAME,
                (self._unknown(after.boot_id, place, reached, None, orderly=orderly),),
                again=True,
            )
        for boot in boots:
            part = _Part(boot, place if boot == after.boot_id else LogPosition(-1), orderly=orderly)
            async for batch in self._journal(part):
                last = batch.position or last
                yield batch
            reached = part.place.time or reached
            if not (part.whole and part.found):
                yield Batch(
                    NAME,
                    (self._unknown(boot, part.place, reached, None, orderly=orderly),),
                    again=True,
                )
        async for batch in self._crashes(last, crashes):
            yield batch

    async def this_boot(self, after: Position | None) -> AsyncIterator[Batch]:
        """What the ring has lost of this boot since `after`; since the boot, where that was in
        another one.
        """
        place = (
            LogPosition.from_position(after)
            if after is not None and after.boot_id == self.boot_id
            else None
        ) or LogPosition(-1)
        ring = await self._ring(place)
        if ring is None or ring.oldest.seq <= place.seq + 1:
            return
        part = _Part(self.boot_id, place, ring)
        async for batch in self._journal(part):
            yield batch
        missing = ring.oldest.seq - 1 - part.place.seq
        lost: tuple[Event, ...] = ()
        # On the very first start what came before is not ours to miss
        if missing > 0 and after is not None:
            lost = (self._gap(place, part, ring.oldest, missing),)
        reached = (
            replace(part.place, seq=ring.oldest.seq - 1)
            if missing <= 0
            else LogPosition(ring.oldest.seq - 1, time=estimate_wall_time(ring.oldest.usec))
        )
        yield Batch(NAME, lost, Position(NAME, self.boot_id, str(reached)), again=True)

    async def _journal(self, part: _Part) -> AsyncIterator[Batch]:
        """The records of one boot, batch by batch, each with the place up to which it goes."""
        self._trouble = ""
        if self.journal is None or (part.place.usec is None and part.place.seq >= 0):
            part.found = False
            return
        more = True
        while more:
            if part.read >= _MOST:
                part.whole = False
                return
            try:
                records, more, found, missed = await self.journal_lane.call(
                    partial(self._read, self.journal, part), _LANE_S
                )
            except (JournalUnavailable, ThreadStuck) as error:
                log.warning(
                    "journal_not_read",
                    boot=part.boot_id,
                    error=str(error),
                    effect="what the ring no longer holds is counted as lost",
                )
                self._trouble = str(error)
                part.whole = False
                return
            if not records:
                part.found = part.found and found
                return
            last, begin, former = records[-1], part.place, part.boot_id != self.boot_id
            events = self._events(records)
            if former and begin.seq < 0:
                events.insert(0, make_boot_event(part.boot_id, records[0].time))
            if former and (missed or not found):  # of this boot the ring's numbers tell
                at = begin.time or records[0].time
                events.insert(
                    0, self._unknown(part.boot_id, begin, at, missed or None, orderly=part.orderly)
                )
            part.read += len(records)
            part.place = LogPosition(
                begin.seq + len(records), last.usec, zlib.crc32(last.text), last.time
            )
            yield Batch(
                NAME, tuple(events), Position(NAME, part.boot_id, str(part.place)), again=True
            )

    def _read(self, journal: Journal, part: _Part) -> tuple[list[JournalRecord], bool, bool, int]:
        """In the lane: the next records, whether there may be more, whether the place before them
        was found, how many journald missed.
        """
        if not part.read:
            journal.readable()  # libsystemd opens what it may not read without a word
        reading = replace(part, found=True, old_news=0)
        after = max(0, part.place.usec - _MARGIN_USEC) if part.place.usec is not None else None
        records = list(
            islice(reading.fresh(journal.records(part.boot_id, after, _MOST), journal), _BATCH)
        )
        return records, len(records) == _BATCH, reading.found, journal.missed - reading.old_news

    def _events(self, records: list[JournalRecord]) -> list[Event]:
        seen: dict[tuple[int, bytes], int] = {}
        events = []
        for record in records:
            sighting = self.interpreter.parse_record(record.text)
            if sighting is None:
                continue
            seen[record.usec, record.text] = number = seen.get((record.usec, record.text), 0) + 1
            identity = (
                f"journal:{record.boot_id}:{record.usec}:{zlib.crc32(record.text):08x}:{number}"
            )
            time = (
                estimate_wall_time(record.usec) if record.boot_id == self.boot_id else record.time
            )
            events.append(
                self.interpreter.make_event(
                    sighting,
                    record.text,
                    record.facility,
                    identity=identity,
                    time=time,
                    boot_id=record.boot_id,
                    usec=record.usec,
                    approximate=True,
                )
            )
        return events

    async def _crashes(
        self, last: Position | None, crashes: Position | None
    ) -> AsyncIterator[Batch]:
        """What a crash left, of the time after the last record that is known. None: there was no
        crash; what lies there is old.

        One batch, so that what is known as read is stored with all of its events.
        """
        try:
            logs, said = await self.lane.call(partial(pstore.read, self.folders), _LANE_S)
        except ThreadStuck as error:
            log.warning("pstore_not_read", error=str(error))
            return
        for line in said:
            log.warning("pstore", said=line)
        known = crashes.cursor.split() if crashes is not None else []
        events = tuple(self._news(logs, last, frozenset(known))) if last is not None else ()
        newest_first = [digest for crash in reversed(logs) for digest in reversed(crash.chunks)]
        read = list(dict.fromkeys([*newest_first, *known]))[:_CRASH_CHUNKS]
        if read:
            yield Batch(
                NAME, events, Position(CRASH_LOGS, self.boot_id, " ".join(read)), again=True
            )

    def _news(
        self, logs: list[pstore.CrashLog], last: Position, known: frozenset[str]
    ) -> Iterator[Event]:
        """Of these crash logs, oldest first. A panic's holds what the oops before it left, too:
        such a line is one record.
        """
        place = LogPosition.parse(last.cursor)
        told: set[tuple[int | None, bytes]] = set()
        for crash in logs:
            if crash.time <= place.time or crash.reason in _NO_CRASH:
                continue
            # Of a boot that nobody else knows of, in which it came soon: its lines are all new.
            newest = max(
                (usec for usec in map(_stamp_of, crash.lines) if usec is not None), default=0
            )
            after = -1 if newest < (place.usec or 0) else place.usec or 0
            yield from self._crash_events(crash, last.boot_id, after, known, frozenset(told))
            told |= {(_stamp_of(text), text) for text in crash.lines}

    def _crash_events(
        self,
        crash: pstore.CrashLog,
        boot_id: str,
        after_usec: int,
        known: frozenset[str],
        told: frozenset[tuple[int | None, bytes]],
    ) -> Iterator[Event]:
        sequel = ContinuationDetector()
        # Then the lines' numbers may be others than they were
        parted = not known.isdisjoint(crash.chunks)
        for number, (text, chunk) in enumerate(zip(crash.lines, crash.chunks)):
            usec, line = _stamp_of(text), strip_prefix(text)
            if usec is None or line is None:
                continue
            doubt = sequel.find_doubt(line)
            if usec <= after_usec or chunk in known or (usec, text) in told:
                continue
            sighting = self.interpreter.parse_record(line.message)
            if sighting is not None:
                yield self.interpreter.make_event(
                    sighting,
                    line.message,
                    line.facility,
                    identity=f"pstore:{chunk if parted else crash.name}:{number}",
                    time=crash.time,
                    boot_id=boot_id,
                    usec=usec,
                    approximate=True,
                    doubt=doubt,
                )

    async def _boots_since(self, boot_id: str, place: LogPosition) -> list[str]:
        """The boots from the given one on, before this one; where the journal does not know it,
        those that are younger than the place.
        """
        if self.journal is None:
            return []
        try:
            boots = await self.journal_lane.call(self.journal.boots, _LANE_S)
            if boot_id not in boots:
                await self.journal_lane.call(self.journal.readable, _LANE_S)
                boots = await self.journal_lane.call(
                    partial(self.journal.boots, place.time), _LANE_S
                )
        except (JournalUnavailable, ThreadStuck) as error:
            log.warning(
                "journal_not_read",
                error=str(error),
                effect="what happened in earlier boots is not known",
            )
            self._trouble = str(error)
            return []
        boots = [boot for boot in boots if boot != self.boot_id]
        return boots[boots.index(boot_id) :] if boot_id in boots else boots

    async def _ring(self, place: LogPosition) -> Ring | None:
        try:
            return await self.lane.call(partial(look, self.path, place), _LANE_S)
        except (OSError, ThreadStuck) as error:
            log.debug("ring_not_looked_at", error=str(error))  # the source itself will say so
            return None

    def _gap(self, place: LogPosition, part: _Part, oldest: KernelRecord, missing: int) -> Event:
        fields: dict[str, Value] = {
            "first_seq": place.seq + 1,
            "last_seq": oldest.seq - 1,
            "recovered": part.read,
            **self._why(),
        }
        self.interpreter.counters.lost += missing
        return make_lost_event(
            identity=f"kmsg:{self.boot_id}:lost:{place.seq + 1}-{oldest.seq - 1}",
            time=estimate_wall_time(oldest.usec),
            boot_id=self.boot_id,
            count=missing,
            span=(place.time or None, estimate_wall_time(oldest.usec)),
            fields=fields,
        )

    def _why(self) -> dict[str, Value]:
        return {"journal": self._trouble} if self._trouble else {}

    def _unknown(
        self, boot_id: str, place: LogPosition, at: float, count: int | None, *, orderly: bool
    ) -> Event:
        """What nobody kept of a former boot. `at`: when what was last read was written; what comes
        behind it is younger.
        """
        since_boot = estimate_wall_time(0)
        return make_lost_event(
            identity=f"kmsg:{boot_id}:lost:after-{place.seq}",
            time=at or since_boot,
            boot_id=boot_id,
            count=count,
            span=(place.time or None, since_boot),
            fields={"former_boot": boot_id, "orderly": orderly, **self._why()},
            code="vitald/not_watched",
        )


def _goes_on(ring: Ring, place: LogPosition) -> bool:
    """Whether the ring can be the one that `place` was read from, although that has been
    overwritten: the host has been up since.
    """
    later = ring.oldest.seq > place.seq and ring.oldest.usec >= (place.usec or 0)
    return later and place.time > estimate_wall_time(0) + _MARGIN_S


def _stamp_of(line: bytes) -> int | None:
    """Microseconds on the kernel's clock."""
    stamp = _LINE.match(line)
    return int(stamp["seconds"]) * 1_000_000 + int(stamp["micros"]) if stamp is not None else None


def look(path: str, place: LogPosition) -> Ring | None:
    """The ring's oldest record, its first ones, and whether the record at `place` is in it. None
    where it is empty. Raises OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        oldest: KernelRecord | None = None
        held: set[tuple[int, bytes]] = set()
        same, torn = False, 0
        while torn <= _TORN:
            try:
                data = os.read(fd, _BUFFER)
                # The ring has no end: it is some other file, of which the source will say so
                if not data:
                    break
                record = KernelRecord.parse(data)
            except BlockingIOError:
                break
            except BrokenPipeError:
                oldest, held = None, set()  # overtaken: what was the oldest is gone
                continue
            except TornRecord:
                torn += 1
                continue
            oldest = oldest or record
            if record.usec <= oldest.usec + _MARGIN_USEC:
                held.add((record.usec, record.text))
            elif record.seq > place.seq:
                break
            same = same or (
                record.seq == place.seq and place.matches_record(record.usec, record.text)
            )
        return Ring(oldest, same, frozenset(held)) if oldest is not None else None
    finally:
        os.close(fd)
