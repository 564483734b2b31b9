"""
A saved kernel log: the events that its records report, and the boots in it.

Its lines are judged in the order of the file, which must be that of their times: a log that goes
back by days, has lines of several hosts, or consists of several logs is not judged.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from vitald.collectors.kernel_log.dates import parse_date
from vitald.collectors.kernel_log.drills import DrillRecord, DrillRegistry, is_drill_line
from vitald.collectors.kernel_log.interpret import Interpreter, make_boot_event
from vitald.collectors.kernel_log.lines import Line, Loss, LossDetector, join_lines
from vitald.collectors.kernel_log.recognise import begins_with_name
from vitald.collectors.kernel_log.record import ParsedLine
from vitald.model.component import Component
from vitald.model.event import Event
from vitald.model.words import ComponentKind
from vitald.scan.opened_log import OpenedLog
from vitald.scan.saved_clock import LogClock
from vitald.scan.saved_coverage import LogCoverage, Stamp
from vitald.scan.saved_records import SavedRecord, read_records

_MAX_SHOWN, _MAX_SHOWN_BYTES = 5, 1024  # unrecognised lines
_MAX_HOSTS, _MAX_DEVICES = 8, 4096
_MAX_HELD = 1 << 14  # events, until a later line may say what their device is
# Of lines that the PCI core prints about a driver's device
_KINDS_BY_DRIVER = {"nvidia": ComponentKind.GPU, "nvidia-nvswitch": ComponentKind.NVSWITCH}
# Host names before the real one is set
_NAMELESS = ("localhost", "localhost.localdomain", "(none)", "-")
_DATED_EVERY = 256  # lines: of the unrecognised ones without a time stamp, one is read for its date
_MIN_MARKER = 12  # characters: a shorter text is in too many lines
_DRILL_S = 86400.0
# Of a file into which several logs were written: nvidia-bug-report.sh, tail
_HEADING = re.compile(
    rb"\*\*\* /|==> \S+ <==|(?:\S+/)?journalctl (?:.{0,64} )?(?:-[a-zA-Z]*b|--boot)"
)


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
class SavedEvent:
    """What a record reports, to each interpreter, or a boot that the log shows."""

    events: tuple[Event | None, ...]
    stamp: Stamp | None = None  # None for a boot
    raw: bytes = b""
    context: bool = False  # not a fault: it only explains others


class SavedLog:
    """What is recognised in a stream. `coverage` is complete when `read_events` has ended."""

    def __init__(self, opened: OpenedLog, *interpreters: Interpreter) -> None:
        """`interpreters`: one for each catalogue by which the log is read."""
        self.coverage = LogCoverage()
        self._interpreters = interpreters
        # Time stamps without a year are before it
        self._written = time.time() if opened.written is None else opened.written
        self._clock = LogClock()
        self._markers = _compile_markers(interpreters)
        self._kinds: dict[str, ComponentKind] = {}  # of devices that lines name, by address
        self._records = read_records(opened, self.coverage)

    @property
    def until(self) -> float:
        """The place of the latest line, once all have been read."""
        return max(self._clock.place, 0.0)

    def identify_devices(self, read: Iterable[SavedEvent]) -> Iterator[SavedEvent]:
        """What `read_events` gave, with the kinds of devices that a line before or after says."""
        held: deque[SavedEvent] = deque()
        for saved in read:
            held.append(saved)
            if len(held) > _MAX_HELD:
                yield self._identify_device(held.popleft())
        yield from map(self._identify_device, held)

    def read_events(self) -> Iterator[SavedEvent]:
        """Every record that is recognised, context included, and the boots, in their order."""
        coverage, clock, losses = self.coverage, self._clock, LossDetector()
        last: SavedRecord | None = None  # of the kernel, and not placed yet
        for number, record in enumerate(self._records):
            line = record.line
            if line is None:
                continue
            coverage.kernel += line.has_kernel_prefix
            if host := record.host or line.host:
                self._note_host(host, record.number)
            if not line.has_kernel_prefix:
                self._read_marker(line.message, record.number)
            if (loss := losses.find_loss(line)) is not None:
                self._note_loss(record, loss)
            sightings = self._recognise(line.message)
            if sightings is None and record.more:
                line = join_lines(line, record.more)
                sightings = self._recognise(line.message)
            if sightings is not None:
                last = None
                yield from self._build_saved_events(record, line, sightings)
                continue
            self._count_missed(record, line)
            last = record if line.has_kernel_prefix else last
            if record.boot_id or number % _DATED_EVERY == 0 or not clock.skip_line(line):
                self._locate_line(record, line, is_kernel=line.has_kernel_prefix)
                yield from self._build_boots()
        if last is not None and last.line is not None:
            self._locate_line(last, last.line, is_kernel=True)

    def _learn_device(self, event: Event) -> None:
        """What a device is, which a line about its PCI function does not say."""
        kind, address = event.component.kind, event.component.id
        if kind is ComponentKind.PCI:
            kind = _KINDS_BY_DRIVER.get(str(event.fields.get("driver")), kind)
        if ":" in address and kind is not ComponentKind.PCI and len(self._kinds) < _MAX_DEVICES:
            self._kinds[address] = kind

    def _identify_device(self, saved: SavedEvent) -> SavedEvent:
        return replace(
            saved, events=tuple(event and self._name_kind(event) for event in saved.events)
        )

    def _name_kind(self, event: Event) -> Event:
        kind = self._kinds.get(event.component.id)
        if kind is None or event.component.kind is not ComponentKind.PCI:
            return event
        return replace(event, component=Component(kind, event.component.id))

    # --- records with a meaning

    def _recognise(self, text: bytes) -> tuple[ParsedLine | None, ...] | None:
        found = tuple(interpreter.parse_record(text) for interpreter in self._interpreters)
        return found if any(sighting is not None for sighting in found) else None

    def _build_saved_events(
        self, record: SavedRecord, line: Line, sightings: tuple[ParsedLine | None, ...]
    ) -> Iterator[SavedEvent]:
        """The event of a recognised record, after the boots that its date shows."""
        self.coverage.kernel += not line.has_kernel_prefix
        boot, place = self._locate_line(record, line, is_kernel=True)
        yield from self._build_boots()
        events = tuple(
            self._build_event(interpreter, sighting, record, line, boot, place)
            for interpreter, sighting in zip(self._interpreters, sightings)
        )
        for event in events:
            if event is not None and event.is_trusted and not event.is_hearsay:
                self._learn_device(event)
        is_context = all(sighting is None or sighting.context for sighting in sightings)
        yield SavedEvent(events, self.coverage.latest, record.raw, is_context)

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

    def _build_boots(self) -> Iterator[SavedEvent]:
        for boot in self._clock.new_boots:
            yield SavedEvent(
                tuple(make_boot_event(boot.name, boot.place) for _ in self._interpreters)
            )
        self._clock.new_boots.clear()

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
        self, record: SavedRecord, line: Line, *, is_kernel: bool
    ) -> tuple[str, float]:
        """Boot and place of the latest line."""
        date = record.time if record.time is not None else self._parse_line_date(record, line)
        if is_kernel:
            self.coverage.latest = Stamp(record.number, date, line.usec)
        boot, place = self._clock.place_line(line, date, record.boot_id)
        if self._clock.goes_back:
            self._note_mixture(
                f"line {record.number} is older than lines above it: put the files together with"
                " the oldest first (zcat -f kern.log.2.gz kern.log.1 kern.log | vitald scan -)"
            )
        return boot, place

    def _parse_line_date(self, record: SavedRecord, line: Line) -> float | None:
        """Seconds since the epoch, from before the line's message."""
        prefix = record.raw[: record.raw.find(line.message[:64])] if line.message else record.raw
        return parse_date(prefix, self._written)

    def _note_host(self, host: str, number: int) -> None:
        hosts = self.coverage.hosts
        if host in hosts or host in _NAMELESS or len(hosts) == _MAX_HOSTS:
            return
        hosts[host] = None
        if len(hosts) > 1:
            self._note_mixture(
                f"line {number} is of another host ({host}) than those above it: scan the lines of"
                " each host by themselves (grep -F HOST FILE | vitald scan -)"
            )

    def _read_marker(self, message: bytes, number: int) -> None:
        self._clock.read_marker(message)
        if _HEADING.match(message) is not None:
            self._note_mixture(
                f"line {number} begins another log: scan each by itself, or on the node"
                " journalctl -k -o short-iso | vitald scan -"
            )

    def _note_mixture(self, why: str) -> None:
        self.coverage.mixture = self.coverage.mixture or why


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
