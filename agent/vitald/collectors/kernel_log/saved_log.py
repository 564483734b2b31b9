"""
A saved kernel log, whatever has wrapped it: the records that are in it, and what of it could not be
read.

Owns     what stands around a kernel line in a file: journalctl -o json and export, dmesg --json,
         Docker's json-file, the Container Runtime Interface's prefix, pdsh, `grep -n`, `cat -n`,
         colours, indented lines that go on with a record.
Refuses  compression (unpack.py), what a line means (recognise.py).

What begins every line alike is a prefix only where most lines of the file's beginning have it: a
single program that quotes a kernel line after its own name is no host.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from stat import S_ISFIFO, S_ISREG

from vitald.collectors.kernel_log.clock import LogClock, sort_by_place
from vitald.collectors.kernel_log.dates import anchor_in, date_in
from vitald.collectors.kernel_log.drills import DrillRecord, DrillRegistry, is_drill_line
from vitald.collectors.kernel_log.interpret import Interpreter, make_boot_event
from vitald.collectors.kernel_log.lines import (
    MAX_CONTINUATIONS,
    ContinuationDetector,
    Line,
    join_lines,
    strip_prefix,
)
from vitald.collectors.kernel_log.parsed_line import ParsedLine
from vitald.collectors.kernel_log.recognise import begins_with_name
from vitald.collectors.kernel_log.record import escape
from vitald.collectors.kernel_log.unpack import Unpacked
from vitald.model import Event
from vitald.text import count_noun

LONGEST = 1 << 16  # of a longer line only the beginning is looked at
_OBJECT = 1 << 20  # a longer JSON object is nobody's record
_FIELD = 1 << 24  # of a journal export
_TRIES = 64  # lines that one JSON object may go on over
_SAMPLE = 1 << 16
_BUFFER = 1 << 18
_MOST_LINES = 4 / 5
_SHOWN, _HOSTS = 5, 64
# What a host is called before it knows its name
_NAMELESS = (
    "localhost",
    "localhost.localdomain",
    "(none)",
    "-",
)
_DATED_EVERY = 256  # of ordinary lines without the kernel's stamp; so many are read for their date
_MARKER = 12  # characters: a shorter text is in too many lines

_COLOURS = re.compile(rb"\x1b(?:\[[0-9;:?]*[A-Za-z]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\))")
_CRI = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+\-]\d\d:\d\d)) std(?:out|err) [FP] "
)
_CENTURIES = (b"20", b"19")  # what a date of the Container Runtime Interface begins with
_PREFIXES = {
    "number": re.compile(
        rb"(?:[\w.+~/@-]{1,255}[:-])? {0,12}\d{1,12}(?: {0,8}[:-]\t?|\t)"
    ),  # grep -n, cat -n
    "host": re.compile(rb"(?P<host>[A-Za-z0-9][\w.-]{0,253})(?:: ?|\t)(?=\s*\S)"),
    "indent": re.compile(rb"[ \t]+(?=\S)"),
}
_NAMES_A_HOST = re.compile(rb"[\w.-]*\d")
_JSON = re.compile(rb"\s*(?:\x1e|data: )?(?:\{\s*\"|\[\s*\{)")
_BETWEEN = re.compile(r"(?:[\s,\[\]}\x1e]|data: (?=\{)|\{\s*\"dmesg\"\s*:\s*(?=\[))*")
_EXPORT = re.compile(
    rb"\s*[A-Z_][A-Z0-9_]{1,63}=[^\n]*\n(?:.*\n)?__(?:REALTIME|MONOTONIC)_TIMESTAMP=", re.S
)
# Dmesg --file --json of util-linux 2.38 puts all that follows into each message
_MORE_RECORDS = re.compile(r"\n<\d{1,3}>\[")
_FIELD_NAME = re.compile(rb"[A-Z_][A-Z0-9_]{0,63}")
_DRILL_S = 86400.0


# Not frozen: there is one for every line, and freezing costs half of its making
@dataclass(slots=True)
class Record:
    """One record of the log. `line` is None where another program wrote it."""

    number: int
    raw: bytes
    line: Line | None
    time: float | None = None  # that the form keeps beside the line
    host: str = ""  # that stands before the line, or beside it
    boot_id: str = ""  # that the form keeps beside the line
    # Indented lines that follow: of the same record, if it is the kernel's
    more: tuple[bytes, ...] = ()
    doubt: str = ""  # why it may be no record of its own


@dataclass(slots=True)
class LogCoverage:
    """What was read, and what could not be."""

    lines: int = 0
    kernel: int = 0  # lines that have the shape of a kernel log's, or were recognised
    unread: int = 0  # lines with a text that fault lines have, which were not recognised
    shown: list[tuple[int, str]] = field(default_factory=list)  # the first of those
    hosts: dict[str, None] = field(default_factory=dict)
    latest: Stamp | None = None  # of the line that was written last, where that is a kernel log's
    trouble: str = ""

    @property
    def problem(self) -> str:
        """Why nothing that was found does not mean that nothing is wrong; empty where it does."""
        if not self.lines:
            return self.trouble or "the log is empty"
        if self.trouble:
            return self.trouble
        if not self.kernel:
            return f"none of {count_noun(self.lines, 'line')} has the shape of a kernel log"
        if self.unread:
            return f"{count_noun(self.unread, 'line')} could not be read, but may tell of a fault"
        return ""


class MarkedDrills(DrillRegistry):
    """The drills of a saved log: nobody announces them any more, but `vitald inject` signs what it
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
class Stamp:
    """Where a line stands in the log, and when it was written, as exactly as the log tells."""

    number: int
    time: float | None  # seconds since the epoch
    usec: int | None  # on the kernel's own clock


@dataclass(frozen=True, slots=True)
class SavedEvent:
    """What a record reports, to each reader, or a boot that the log tells of. `place`: see
    clock.py.
    """

    place: float
    events: tuple[Event | None, ...]
    stamp: Stamp | None = None  # of a boot there is none
    raw: bytes = b""
    context: bool = False  # no fault: it only explains others
    dated: bool = False  # by the wall clock alone: it is of the boot that stands before it in time


@contextmanager
def opened(path: str) -> Iterator[tuple[io.BufferedReader, Unpacked, float | None]]:
    """A file, or `-` for standard input: what is in it, and when it was last written. Raises
    OSError, CannotUnpack.
    """
    if path == "-":
        with Unpacked(sys.stdin.buffer) as unpacked:
            yield io.BufferedReader(unpacked, _BUFFER), unpacked, None
        return
    with Path(path).open("rb") as file:
        stat = os.fstat(file.fileno())
        if not (S_ISREG(stat.st_mode) or S_ISFIFO(stat.st_mode)):
            raise OSError(
                errno.EINVAL,
                "not a file: save what is to be judged, or pipe it: dmesg | vitald scan -",
                path,
            )
        with Unpacked(file) as unpacked:
            yield (
                io.BufferedReader(unpacked, _BUFFER),
                unpacked,
                stat.st_mtime if S_ISREG(stat.st_mode) else None,
            )


class SavedLog:
    """What is recognised in a stream, in order. `coverage` is whole when the iterator has ended."""

    def __init__(
        self, opened: tuple[io.BufferedReader, Unpacked, float | None], *readers: Interpreter
    ) -> None:
        """`readers`: one for each catalogue that the log is read by."""
        self.coverage = LogCoverage()
        self._stream, self._unpacked, latest = opened
        self._readers = readers
        # Stamps that leave the year out are before it
        self._latest = time.time() if latest is None else latest
        self._clocks: dict[str, LogClock] = {}
        self._clock = LogClock()  # of the line before
        # Which boot, and what the wall clock was at the kernel's zero
        self._booted: tuple[str, float] | None = None
        self._top: tuple[float, Record | None] = (-math.inf, None)
        rules = [
            rule
            for reader in readers
            for rule in reader.catalog.rules.values()
            if rule.action.makes_unfit
        ]
        texts = {text for rule in rules for text in rule.contains if len(text) >= _MARKER}
        self._markers = (b"NVRM: Xid", b"SXid (", *(text.encode() for text in sorted(texts)))
        self._marked = re.compile(b"|".join(map(re.escape, self._markers)))
        self._peel: re.Pattern[bytes] | None = None

    @property
    def until(self) -> float:
        """The place of the latest line, once all have been read."""
        return max(self._top[0], 0.0)

    def lived(self, told: Iterable[SavedEvent]) -> Iterator[SavedEvent]:
        """What `told` gave, as a daemon that lived through the log had met it.

        Of several hosts nobody can say whose findings a boot ends.
        """
        boot = ""
        for one in sort_by_place(told):
            if one.stamp is None:
                if len(self.coverage.hosts) < 2:
                    boot = next(event.boot_id for event in one.events if event is not None)
                    yield one
            elif boot and one.dated:
                yield replace(
                    one,
                    events=tuple(event and replace(event, boot_id=boot) for event in one.events),
                )
            else:
                yield one

    def told(self) -> Iterator[SavedEvent]:
        """Every record that is recognised, context included, and the boots, in the order in which
        they are read.
        """
        recognise, coverage = self._recognise, self.coverage
        for number, record in enumerate(self._records()):
            line = record.line
            if line is None:
                continue
            coverage.kernel += line.has_kernel_prefix
            host = record.host or line.host
            if host and host not in coverage.hosts:
                self._enter_boot(host)
            clock = self._clock_of(host)
            sightings = recognise(line.message)
            if sightings is None and record.more:
                line = join_lines(line, record.more)
                sightings = recognise(line.message)
            if sightings is None:
                self._count_missed(record, line)
                place = (
                    clock.place_undated(line)
                    if not record.boot_id and number % _DATED_EVERY
                    else None
                )
                anchored = b"system clock to" in line.message
                if place is None or anchored:
                    yield from self._read_once(record, line, clock)
                elif line.has_kernel_prefix and place >= self._top[0]:
                    self._top = place, record
                continue
            coverage.kernel += not line.has_kernel_prefix
            boot, place, time = self._report_line(record, line, clock, recognised=True)
            yield from self._boots(clock)
            yield SavedEvent(
                place,
                self._events(record, line, sightings, boot, place),
                Stamp(record.number, time, line.usec),
                record.raw,
                _is_context(sightings),
                dated=line.usec is None and not record.boot_id,
            )
        self._end()
        coverage.trouble = coverage.trouble or self._unpacked.trouble

    def _events(
        self,
        record: Record,
        line: Line,
        sightings: tuple[ParsedLine | None, ...],
        boot: str,
        place: float,
    ) -> tuple[Event | None, ...]:
        return tuple(
            (
                reader.make_event(
                    sighting,
                    line.message,
                    line.facility,
                    identity=f"line:{record.number}",
                    time=place,
                    boot_id=boot,
                    usec=line.usec,
                    doubt=record.doubt,
                )
                if sighting is not None
                else None
            )
            for reader, sighting in zip(self._readers, sightings)
        )

    def _read_once(self, record: Record, line: Line, clock: LogClock) -> Iterator[SavedEvent]:
        """A line that reports nothing, of which the date may say more than its stamp."""
        boot, _, _ = self._report_line(record, line, clock)
        if (anchor := anchor_in(line.message)) is not None and line.usec is not None:
            self._booted = boot, anchor - line.usec / 1e6
        yield from self._boots(clock)

    def _report_line(
        self, record: Record, line: Line, clock: LogClock, *, recognised: bool = False
    ) -> tuple[str, float, float | None]:
        date = self._date_line(record, line)
        boot, place = clock.place_line(line, date, record.boot_id)
        if (
            date is None
            and line.usec is not None
            and self._booted is not None
            and self._booted[0] == boot
        ):
            date = self._booted[1] + line.usec / 1e6
        if place >= self._top[0] and (line.has_kernel_prefix or recognised):
            self._top = place, record
        return boot, place, date

    def _boots(self, clock: LogClock) -> Iterator[SavedEvent]:
        for boot in clock.new_boots:
            yield SavedEvent(
                boot.place, tuple(make_boot_event(boot.name, boot.place) for _ in self._readers)
            )
        clock.new_boots.clear()

    def _end(self) -> None:
        """The log is as old as its latest line."""
        _, record = self._top
        if record is None or record.line is None:
            return
        line = record.line
        time = self._date_line(record, line)
        if line.usec is None and time is not None:
            _, place = self._clock_of(record.host or line.host).place_line(
                line, time, record.boot_id
            )
            self._top = max(place, self._top[0]), record
        elif time is None and self._booted is not None and line.usec is not None:
            time = self._booted[1] + line.usec / 1e6
        self.coverage.latest = Stamp(record.number, time, line.usec)

    def _enter_boot(self, host: str) -> None:
        if host not in _NAMELESS and len(self.coverage.hosts) < _HOSTS:
            self.coverage.hosts[host] = None

    def _clock_of(self, host: str) -> LogClock:
        """Each host has its own. Early in a boot it may not know its name yet."""
        if not host or host in _NAMELESS:
            return self._clock
        clock = self._clocks.get(host)
        if clock is None:
            clock = LogClock(host) if self._clocks else self._clock
            if len(self._clocks) < _HOSTS:
                self._clocks[host] = clock
        self._clock = clock
        return clock

    def _recognise(self, text: bytes) -> tuple[ParsedLine | None, ...] | None:
        if len(self._readers) == 1:
            only = self._readers[0].parse_record(text)
            return (only,) if only is not None else None
        found = tuple(reader.parse_record(text) for reader in self._readers)
        return found if any(one is not None for one in found) else None

    def _count_missed(self, record: Record, line: Line) -> None:
        found = self._marked.search(line.message)
        if found is None or line.facility:
            return
        # A program's words inside a record. But none has a carriage return in it: then these are
        # lines, and not one.
        inside = found.start() > 0 and b"\r" not in line.message
        if line.has_kernel_prefix and (inside or begins_with_name(line.message)):
            return
        self.coverage.unread += 1
        if len(self.coverage.shown) < _SHOWN:
            self.coverage.shown.append(
                (record.number, record.raw[:1024].rstrip(b"\r\n").decode("utf-8", "replace"))
            )

    def _date_line(self, record: Record, line: Line) -> float | None:
        if record.time is not None:
            return record.time
        prefix = record.raw[: record.raw.find(line.message[:64])] if line.message else record.raw
        return date_in(prefix, self._latest)

    # --- records

    def _records(self) -> Iterator[Record]:
        head = self._stream.peek(_SAMPLE)[:_SAMPLE]
        if _EXPORT.match(head):
            return self._exported()
        if _JSON.match(head):
            return self._read_objects()
        self._peel = self._prefix(head)
        return self._joined(self._read_texts())

    def _lines(self) -> Iterator[bytes]:
        """Lines, however long: of one that is longer than any kernel record only the beginning is
        looked at.
        """
        readline = self._stream.readline
        while line := readline(LONGEST):
            self.coverage.lines += 1
            yield line
            while not line.endswith(b"\n") and (line := readline(LONGEST)):
                pass

    def _read_texts(self) -> Iterator[Record]:
        """Lines of text, one after the other; the common kind by the shortest way."""
        coverage = self.coverage
        plain = self._peel is None
        for raw in self._lines():
            if plain and b"\x1b" not in raw and not raw.startswith(_CENTURIES):
                yield Record(coverage.lines, raw, strip_prefix(raw))
            else:
                yield self._text(raw, coverage.lines)

    def _text(self, raw: bytes, number: int, stamp: float | None = None) -> Record:
        """One line of text: colours off, then what a container runtime or most lines of this file
        begin with.
        """
        text = raw.rstrip(b"\r\n")
        if b"\x1b" in text:
            text = _COLOURS.sub(b"", text)
        shown, host = text, ""
        if text.startswith(_CENTURIES) and (cri := _CRI.match(text)) is not None:
            text, stamp = text[cri.end() :], date_in(cri[1], self._latest)
        elif self._peel is not None and (prefix := self._peel.match(text)) is not None:
            text = text[prefix.end() :]
            named = prefix.groupdict().get("host")
            host = named.decode("utf-8", "replace") if named is not None else ""
        return Record(number, shown, strip_prefix(text), stamp, host)

    def _prefix(self, head: bytes) -> re.Pattern[bytes] | None:
        """What most lines of the beginning have before their own stamp or message, if that
        is so.
        """
        sample = [_COLOURS.sub(b"", line) for line in head.split(b"\n")[:200]]
        sample = [line for line in sample if line.strip()]
        if not sample or sum(map(self._is_kernels, sample)) > len(sample) * (1 - _MOST_LINES):
            return None
        for name, prefix in _PREFIXES.items():
            found = [match for line in sample if (match := prefix.match(line)) is not None]
            if len(found) < len(sample) * _MOST_LINES:
                continue
            for match in found:
                named = name != "host" or _NAMES_A_HOST.match(match["host"]) is not None
                if self._is_kernels(match.string[match.end() :], bare=named):
                    return prefix
        return None

    def _is_kernels(self, text: bytes, *, bare: bool = True) -> bool:
        line = strip_prefix(text)
        if line is None:
            return False
        return line.has_kernel_prefix or (bare and self._recognise(line.message) is not None)

    @staticmethod
    def _joined(records: Iterator[Record]) -> Iterator[Record]:
        """Indented lines without a stamp belong to the record before, which the kernel wrote with a
        newline in it.
        """
        held: Record | None = None
        sequel = ContinuationDetector()
        for record in records:
            line = record.line
            if line is not None:
                record.doubt = sequel.find_doubt(line)
            if held is not None and line is not None and line.is_continuation:
                if len(held.more) < MAX_CONTINUATIONS:
                    held.more += (line.message,)
                continue
            if held is not None:
                yield held
            held = record
        if held is not None:
            yield held

    # --- JSON

    def _read_objects(self) -> Iterator[Record]:
        """Objects one after the other, each on a line of its own or over several; what is none is
        read as text.
        """
        decode = json.JSONDecoder().raw_decode
        buffer, began, tries = "", 1, 0
        for raw in self._split_pieces():
            here = self.coverage.lines + (not raw.endswith(b"\n"))
            began = began if buffer else here
            buffer += raw.decode("utf-8", "surrogateescape")
            at = 0
            while True:
                space = _BETWEEN.match(buffer, at)
                at = space.end() if space is not None else at
                if at >= len(buffer):
                    buffer, tries = "", 0
                    break
                if buffer[at] == "{":
                    try:
                        value, at = decode(buffer, at)
                    except (ValueError, RecursionError):
                        if tries < _TRIES and len(buffer) - at < _OBJECT:
                            buffer = buffer[at:]
                            tries += buffer.endswith("\n")
                            break
                    else:
                        yield self._parse_object(value, began)
                        began, tries = here, 0
                        continue
                line, _, buffer = buffer[at:].partition("\n")
                at, tries = 0, 0
                yield self._text(line.encode("utf-8", "surrogateescape"), began)
                began = here
        for line in buffer.splitlines()[:_TRIES]:
            yield self._text(line.encode("utf-8", "surrogateescape"), began)

    def _split_pieces(self) -> Iterator[bytes]:
        while piece := self._stream.readline(LONGEST):
            self.coverage.lines += piece.endswith(b"\n")
            yield piece
        self.coverage.lines = max(self.coverage.lines, 1)

    def _parse_object(self, value: object, number: int) -> Record:
        entry = value if isinstance(value, dict) else {}
        shown = json.dumps(entry).encode()
        if "MESSAGE" in entry:
            fields = {name: _decode_bytes(text) for name, text in entry.items() if name in _JOURNAL}
            return _parse_journal(fields, shown, number)
        if isinstance(text := entry.get("msg"), str) and "pri" in entry and "time" in entry:
            text = _MORE_RECORDS.split(text, 1)[0]
            facility, usec = _facility(entry), _usec(str(entry["time"]))
            return Record(
                number, shown, Line(escape(_utf8(text)), facility, usec, has_kernel_prefix=True)
            )
        if isinstance(text := entry.get("log"), str):
            stamp = date_in(_utf8(str(entry.get("time", ""))), self._latest)
            record = self._text(_utf8(text), number, stamp)
            return Record(number, shown, record.line, record.time)
        return Record(number, shown, Line(shown) if self._marked.search(shown) else None)

    # --- journalctl -o export

    def _exported(self) -> Iterator[Record]:
        entry: dict[str, bytes | None] = {}
        number = 1
        for raw in self._lines():
            text = raw.rstrip(b"\n")
            name, equals, value = text.partition(b"=")
            if not text:
                if entry:
                    yield _parse_journal(entry, entry.get("MESSAGE") or b"", number)
                entry, number = {}, self.coverage.lines + 1
            elif equals and _FIELD_NAME.fullmatch(name):
                if (key := name.decode()) in _JOURNAL:
                    entry[key] = value
            elif _FIELD_NAME.fullmatch(text):
                size = int.from_bytes(self._stream.read(8), "little")
                if size > _FIELD:
                    self.coverage.trouble = (
                        f"line {self.coverage.lines}: a field of {size} bytes: what follows was not"
                        " read"
                    )
                    return
                data = self._stream.read(size)
                self._stream.read(1)
                self.coverage.lines += data.count(b"\n")
                if (key := text.decode()) in _JOURNAL:
                    entry[key] = data[:LONGEST]
            else:
                yield self._text(raw, self.coverage.lines)
        if entry:
            yield _parse_journal(entry, entry.get("MESSAGE") or b"", number)


_JOURNAL = {
    *("MESSAGE", "_TRANSPORT", "SYSLOG_IDENTIFIER", "SYSLOG_FACILITY", "SYSLOG_PID"),
    *(
        "__REALTIME_TIMESTAMP",
        "_SOURCE_MONOTONIC_TIMESTAMP",
        "__MONOTONIC_TIMESTAMP",
        "_HOSTNAME",
        "_BOOT_ID",
    ),
}
_NUMBER = re.compile(rb"\d{1,18}")


def _parse_journal(entry: dict[str, bytes | None], shown: bytes, number: int) -> Record:
    """An entry of journald. Only `_TRANSPORT` says that the kernel had it: any program may call
    itself `kernel`.
    """
    transport, name = entry.get("_TRANSPORT"), entry.get("SYSLOG_IDENTIFIER")
    message = entry.get("MESSAGE") or b""
    stamp = _count(entry.get("__REALTIME_TIMESTAMP"))
    seconds = stamp / 1e6 if stamp is not None else None
    host, boot_id = (
        (entry.get(one) or b"").decode("utf-8", "replace") for one in ("_HOSTNAME", "_BOOT_ID")
    )
    if transport is None and name is None:
        # Only some fields were asked for
        return Record(number, shown, strip_prefix(message), seconds, host, boot_id)
    if transport not in (None, b"kernel") or (transport is None and name != b"kernel"):
        return Record(number, shown, None, seconds)
    facility = _count(entry.get("SYSLOG_FACILITY"))
    if facility is None:
        facility = 0 if name in (None, b"kernel") else 1
    # Journald took it off a line that a process wrote to /dev/kmsg
    if facility and name is not None:
        pid = entry.get("SYSLOG_PID")
        message = name + (b"[" + pid + b"]" if pid else b"") + b": " + message
    usec = _count(entry.get("_SOURCE_MONOTONIC_TIMESTAMP"))
    if usec is None:
        usec = _count(entry.get("__MONOTONIC_TIMESTAMP"))
    return Record(
        number,
        shown,
        Line(escape(message), facility, usec, has_kernel_prefix=True),
        seconds,
        host,
        boot_id,
    )


def _is_context(sightings: tuple[ParsedLine | None, ...]) -> bool:
    return all(one is None or one.context for one in sightings)


def _decode_bytes(value: object) -> bytes | None:
    """A field in journald's JSON: text, an array of bytes where it is none, an array of values
    where it is there twice.
    """
    if isinstance(value, str):
        return _utf8(value)
    if (
        isinstance(value, list)
        and value
        and all(isinstance(one, int) and 0 <= one < 256 for one in value)
    ):
        return bytes(value)
    return (
        _decode_bytes(value[0])
        if isinstance(value, list) and value and isinstance(value[0], str)
        else None
    )


def _utf8(text: str) -> bytes:
    """JSON may hold halves of characters, which no encoding has."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _count(value: bytes | None) -> int | None:
    return int(value) if value is not None and _NUMBER.fullmatch(value) else None


def _usec(text: str) -> int | None:
    found = re.fullmatch(r"\s*(\d{1,12})\.(\d{1,6})\d*", text)
    return int(found[1]) * 1_000_000 + int(found[2].ljust(6, "0")) if found is not None else None


def _facility(entry: dict[str, object]) -> int | None:
    """dmesg --json names it only with -x; without, `pri` is the level alone, or both in a
    number.
    """
    name, both = entry.get("fac"), entry.get("pri")
    if isinstance(name, str):
        return 0 if name == "kern" else 1
    return both >> 3 if isinstance(both, int) and both > 7 else None
