"""
A saved kernel log in any form: the events that its records report, and the boots in it.

It is read in three steps: the bytes are unpacked (unpack.py) and divided into records
(saved_records.py), whose messages are recognised here.
"""

from __future__ import annotations

import errno
import io
import math
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from stat import S_ISFIFO, S_ISREG
from typing import BinaryIO

from vitald.collectors.kernel_log.dates import parse_anchor, parse_date
from vitald.collectors.kernel_log.drills import DrillRecord, DrillRegistry, is_drill_line
from vitald.collectors.kernel_log.interpret import Interpreter, make_boot_event
from vitald.collectors.kernel_log.lines import Line, Loss, LossDetector, join_lines
from vitald.collectors.kernel_log.recognise import begins_with_name
from vitald.collectors.kernel_log.record import ParsedLine
from vitald.model.component import Component
from vitald.model.event import Event
from vitald.model.words import ComponentKind
from vitald.scan.saved_clock import LogClock, sort_by_place
from vitald.scan.saved_coverage import LogCoverage, Stamp
from vitald.scan.saved_records import RecordReader, SavedRecord
from vitald.scan.saved_sections import (
    SavedEvent,
    Section,
    parse_heading,
    place_sections,
)
from vitald.scan.unpack import Unpacked

_BUFFER_BYTES = 1 << 18
_MAX_SHOWN, _MAX_SHOWN_BYTES = 5, 1024  # unrecognised lines
_MAX_HOSTS, _MAX_DEVICES = 64, 4096
# Of lines that the PCI core prints about a driver's device
_KINDS_BY_DRIVER = {"nvidia": ComponentKind.GPU, "nvidia-nvswitch": ComponentKind.NVSWITCH}
# Host names before the real one is set
_NAMELESS = ("localhost", "localhost.localdomain", "(none)", "-")
_DATED_EVERY = 256  # lines: of the unrecognised ones without a time stamp, one is read for its date
_MIN_MARKER = 12  # characters: a shorter text is in too many lines
_DRILL_S = 86400.0


class MarkedDrills(DrillRegistry):
    """The drills of a saved log. They are no longer announced, but `vitald drill` signs what it
    writes.
    """

    def claim_drill(self, text: str, identity: str, now: float) -> DrillRecord | None:
        if not is_drill_line(text):
            return None
        return DrillRecord(
            id=identity,
            text=text,
            announced_at=now,
            simulated_until=now + _DRILL_S,
            event_identity=identity,
        )


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """`written`: time of the last write in seconds since the epoch; None if unknown."""

    stream: io.BufferedReader
    unpacked: Unpacked
    written: float | None
    file: BinaryIO | None = None  # None where its size is unknown

    def measure_share(self) -> float | None:
        """How much of the file was read so far, 0 to 1; None if its size is unknown."""
        size = os.fstat(self.file.fileno()).st_size if self.file is not None else 0
        if self.file is None or not size:
            return None
        return min(1.0, os.lseek(self.file.fileno(), 0, os.SEEK_CUR) / size)


@contextmanager
def open_log(path: str) -> Iterator[OpenedLog]:
    """A file, or `-` for standard input. Raises OSError, CannotUnpack."""
    if path == "-":
        with Unpacked(sys.stdin.buffer) as unpacked:
            yield OpenedLog(io.BufferedReader(unpacked, _BUFFER_BYTES), unpacked, None)
        return
    with Path(path).open("rb") as file:
        stat = os.fstat(file.fileno())
        if not (S_ISREG(stat.st_mode) or S_ISFIFO(stat.st_mode)):
            raise OSError(
                errno.EINVAL,
                "not a file: save what is to be judged, or pipe it: dmesg | vitald scan -",
                path,
            )
        is_regular = S_ISREG(stat.st_mode)
        written = stat.st_mtime if is_regular else None
        with Unpacked(file) as unpacked:
            yield OpenedLog(
                io.BufferedReader(unpacked, _BUFFER_BYTES),
                unpacked,
                written,
                file if is_regular else None,
            )


class SavedLog:
    """What is recognised in a stream. `coverage` is complete when `read_events` has ended."""

    def __init__(self, opened: OpenedLog, *interpreters: Interpreter) -> None:
        """`interpreters`: one for each catalogue by which the log is read."""
        self.coverage = LogCoverage()
        self._unpacked = opened.unpacked
        self._interpreters = interpreters
        # Time stamps without a year are before it
        self._latest = time.time() if opened.written is None else opened.written
        self._clocks: dict[str, LogClock] = {}
        self._clock = LogClock()  # of the line before
        # The boot, and the time at which the kernel's clock was zero in it
        self._booted: tuple[str, float] | None = None
        self._top: tuple[float, SavedRecord | None] = (-math.inf, None)  # the latest by its place
        self._markers = _compile_markers(interpreters)
        self._section: Section | None = None
        self._kinds: dict[str, ComponentKind] = {}  # of devices that lines name, by address
        self._records = RecordReader(opened.stream, self.coverage, self._latest, self._markers)

    @property
    def until(self) -> float:
        """The place of the latest line, once all have been read."""
        return max(self._top[0], 0.0)

    def order_events(self, read: Iterable[SavedEvent]) -> Iterator[SavedEvent]:
        """What `read_events` gave, in the order in which a daemon would have seen it.

        Boots are omitted in a log of several hosts: it is unknown whose findings they end.
        """
        boot = ""
        for saved in sort_by_place(place_sections(read, self.coverage, lambda: self._clock)):
            if saved.stamp is None:
                if len(self.coverage.hosts) < 2:
                    boot = next(event.boot_id for event in saved.events if event is not None)
                    yield saved
                continue
            events = tuple(event and self._identify_device(event) for event in saved.events)
            if boot and saved.dated:
                events = tuple(event and replace(event, boot_id=boot) for event in events)
            yield replace(saved, events=events)

    def read_events(self) -> Iterator[SavedEvent]:
        """Every record that is recognised, context included, and the boots, in the order in which
        they are read.
        """
        recognise, coverage = self._recognise, self.coverage
        losses: defaultdict[str, LossDetector] = defaultdict(LossDetector)
        for number, record in enumerate(self._records.read_records(self._is_recognised)):
            line = record.line
            if line is None:
                continue
            coverage.kernel += line.has_kernel_prefix
            host = record.host or line.host
            if host and host not in coverage.hosts:
                self._add_host(host)
            clock = self._select_clock(host)
            if not line.has_kernel_prefix:
                clock.read_marker(line.message)
                self._section = parse_heading(line.message) or self._section
            # Each host numbers its own records; the number of hosts is bounded
            if (loss := losses[host if host in coverage.hosts else ""].find_loss(line)) is not None:
                self._note_loss(record, loss)
            sightings = recognise(line.message)
            if sightings is None and record.more:
                line = join_lines(line, record.more)
                sightings = recognise(line.message)
            if sightings is not None:
                yield from self._build_saved_events(record, line, clock, sightings)
                continue
            self._count_missed(record, line)
            place = (
                clock.place_undated(line) if not record.boot_id and number % _DATED_EVERY else None
            )
            if place is None or b"system clock to" in line.message:
                yield from self._read_date(record, line, clock)
            elif line.has_kernel_prefix and place >= self._top[0]:
                self._top = place, record
        self._set_latest()
        coverage.trouble = coverage.trouble or self._unpacked.trouble

    def _learn_device(self, event: Event) -> None:
        """What a device is, which a line about its PCI function does not say."""
        kind, address = event.component.kind, event.component.id
        if kind is ComponentKind.PCI:
            kind = _KINDS_BY_DRIVER.get(str(event.fields.get("driver")), kind)
        if ":" in address and kind is not ComponentKind.PCI and len(self._kinds) < _MAX_DEVICES:
            self._kinds[address] = kind

    def _identify_device(self, event: Event) -> Event:
        kind = self._kinds.get(event.component.id)
        if kind is None or event.component.kind is not ComponentKind.PCI:
            return event
        return replace(event, component=Component(kind, event.component.id))

    # --- records with a meaning

    def _recognise(self, text: bytes) -> tuple[ParsedLine | None, ...] | None:
        if len(self._interpreters) == 1:
            sighting = self._interpreters[0].parse_record(text)
            return (sighting,) if sighting is not None else None
        found = tuple(interpreter.parse_record(text) for interpreter in self._interpreters)
        return found if any(sighting is not None for sighting in found) else None

    def _is_recognised(self, text: bytes) -> bool:
        """For a sample of the log, which is read again."""
        is_known = self._recognise(text) is not None
        for interpreter in self._interpreters:
            interpreter.forget_records()
        return is_known

    def _build_saved_events(
        self,
        record: SavedRecord,
        line: Line,
        clock: LogClock,
        sightings: tuple[ParsedLine | None, ...],
    ) -> Iterator[SavedEvent]:
        """The event of a recognised record, after the boots that its date shows."""
        self.coverage.kernel += not line.has_kernel_prefix
        boot, place, date = self._locate_line(record, line, clock, recognised=True)
        yield from self._build_boots(clock)
        events = tuple(
            self._build_event(interpreter, sighting, record, line, boot, place)
            for interpreter, sighting in zip(self._interpreters, sightings)
        )
        for event in events:
            if event is not None and event.is_trusted and not event.is_hearsay:
                self._learn_device(event)
        yield SavedEvent(
            place,
            events,
            Stamp(record.number, date, line.usec),
            record.raw,
            context=all(sighting is None or sighting.context for sighting in sightings),
            dated=line.usec is None and not record.boot_id,
            section=self._section if line.usec is None and date is None else None,
        )

    def _build_event(
        self,
        interpreter: Interpreter,
        sighting: ParsedLine | None,
        record: SavedRecord,
        line: Line,
        boot: str,
        place: float,
    ) -> Event | None:
        if sighting is None:
            return None
        return interpreter.make_event(
            sighting,
            line.message,
            line.facility,
            identity=f"line:{record.number}",
            time=place,
            boot_id=boot,
            usec=line.usec,
            doubt=record.doubt,
        )

    def _build_boots(self, clock: LogClock) -> Iterator[SavedEvent]:
        for boot in clock.new_boots:
            events = tuple(make_boot_event(boot.name, boot.place) for _ in self._interpreters)
            yield SavedEvent(boot.place, events)
        clock.new_boots.clear()

    def _note_loss(self, record: SavedRecord, loss: Loss) -> None:
        coverage = self.coverage
        coverage.losses += 1
        coverage.lost += loss.count or 0
        coverage.first_loss = coverage.first_loss or record.number

    def _count_missed(self, record: SavedRecord, line: Line) -> None:
        """Counts an unrecognised line that contains a text of fault lines."""
        found = self._markers.search(line.message)
        if found is None or line.facility:
            return
        # A text of a program within a record; but with a carriage return in the message these are
        # several lines
        inside = found.start() > 0 and b"\r" not in line.message
        if line.has_kernel_prefix and (inside or begins_with_name(line.message)):
            return
        self.coverage.unread += 1
        if len(self.coverage.shown) < _MAX_SHOWN:
            raw = record.raw[:_MAX_SHOWN_BYTES].rstrip(b"\r\n")
            self.coverage.shown.append((record.number, raw.decode("utf-8", "replace")))

    # --- times and hosts

    def _locate_line(
        self, record: SavedRecord, line: Line, clock: LogClock, *, recognised: bool = False
    ) -> tuple[str, float, float | None]:
        """Boot, place, and date in seconds since the epoch."""
        date = self._parse_line_date(record, line)
        boot, place = clock.place_line(line, date, record.boot_id)
        if date is None and self._booted is not None and self._booted[0] == boot:
            date = self._compute_date(line)
        if place >= self._top[0] and (line.has_kernel_prefix or recognised):
            self._top = place, record
        return boot, place, date

    def _read_date(self, record: SavedRecord, line: Line, clock: LogClock) -> Iterator[SavedEvent]:
        """The boots that the date of an unrecognised line shows."""
        boot, _, _ = self._locate_line(record, line, clock)
        if (anchor := parse_anchor(line.message)) is not None and line.usec is not None:
            self._booted = boot, anchor - line.usec / 1e6
        yield from self._build_boots(clock)

    def _set_latest(self) -> None:
        """The log is as old as its latest line."""
        _, record = self._top
        if record is None or record.line is None:
            return
        line = record.line
        date = self._parse_line_date(record, line)
        if line.usec is None and date is not None:
            clock = self._select_clock(record.host or line.host)
            _, place = clock.place_line(line, date, record.boot_id)
            self._top = max(place, self._top[0]), record
        elif date is None:
            date = self._compute_date(line)
        self.coverage.latest = Stamp(record.number, date, line.usec)

    def _parse_line_date(self, record: SavedRecord, line: Line) -> float | None:
        """Seconds since the epoch, from beside the line or before its message."""
        if record.time is not None:
            return record.time
        prefix = record.raw[: record.raw.find(line.message[:64])] if line.message else record.raw
        return parse_date(prefix, self._latest)

    def _compute_date(self, line: Line) -> float | None:
        """From the kernel's clock, if the kernel logged the wall clock."""
        if self._booted is None or line.usec is None:
            return None
        return self._booted[1] + line.usec / 1e6

    def _add_host(self, host: str) -> None:
        if host not in _NAMELESS and len(self.coverage.hosts) < _MAX_HOSTS:
            self.coverage.hosts[host] = None

    def _select_clock(self, host: str) -> LogClock:
        """Each host has its own. Early in a boot it may not know its name yet."""
        if not host or host in _NAMELESS:
            return self._clock
        clock = self._clocks.get(host)
        if clock is None:
            clock = LogClock(host) if self._clocks else self._clock
            if len(self._clocks) < _MAX_HOSTS:
                self._clocks[host] = clock
        self._clock = clock
        return clock


def _compile_markers(interpreters: Iterable[Interpreter]) -> re.Pattern[bytes]:
    """Texts that only fault lines contain."""
    rules = [
        rule
        for interpreter in interpreters
        for rule in interpreter.catalog.rules.values()
        if rule.action.makes_unfit
    ]
    texts = {text for rule in rules for text in rule.contains if len(text) >= _MIN_MARKER}
    markers = (b"NVRM: Xid", b"SXid (", *(text.encode() for text in sorted(texts)))
    return re.compile(b"|".join(map(re.escape, markers)))
