"""
The records of a saved kernel log, in any of the forms in which tools write them: lines of text,
JSON objects (journalctl -o json, dmesg --json, Docker's json-file), and journalctl -o export.

Before a line of text a tool may have put something: a container runtime's prefix (CRI), pdsh,
`grep -n`, `cat -n`, colours, indentation. What the lines begin with is a prefix only if most lines
of the file's beginning have it: a single program that quotes a kernel line after its own name is
not a host.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vitald.collectors.kernel_log.dates import parse_date
from vitald.collectors.kernel_log.lines import (
    MAX_CONTINUATIONS,
    ContinuationDetector,
    Line,
    find_reader_line,
    strip_prefix,
)
from vitald.collectors.kernel_log.record import escape
from vitald.scan.saved_coverage import LogCoverage

_MAX_LINE_BYTES = 1 << 16  # the rest of a longer line is not read
_MAX_OBJECT = 1 << 20  # characters; no tool writes a record as a longer JSON object
_MAX_FIELD_BYTES = 1 << 24  # of a journal export
_MAX_OBJECT_LINES = 64
_SAMPLE_BYTES = 1 << 16
_JSON = re.compile(rb"\s*(?:\x1e|data: )?(?:\{\s*\"|\[\s*\{)")
_BETWEEN_OBJECTS = re.compile(r"(?:[\s,\[\]}\x1e]|data: (?=\{)|\{\s*\"dmesg\"\s*:\s*(?=\[))*")
_EXPORT = re.compile(
    rb"\s*[A-Z_][A-Z0-9_]{1,63}=[^\n]*\n(?:.*\n)?__(?:REALTIME|MONOTONIC)_TIMESTAMP=", re.S
)
_FIELD_NAME = re.compile(rb"[A-Z_][A-Z0-9_]{0,63}")
JOURNAL_FIELDS = frozenset(
    (
        "MESSAGE",
        "_TRANSPORT",
        "SYSLOG_IDENTIFIER",
        "SYSLOG_FACILITY",
        "SYSLOG_PID",
        "__REALTIME_TIMESTAMP",
        "_SOURCE_MONOTONIC_TIMESTAMP",
        "__MONOTONIC_TIMESTAMP",
        "_HOSTNAME",
        "_BOOT_ID",
    )
)
_NUMBER = re.compile(rb"\d{1,18}")
_SECONDS = re.compile(r"\s*(\d{1,12})\.(\d{1,6})\d*")
# Dmesg --file --json of util-linux 2.38 puts all that follows into each message
_NEXT_RECORD = re.compile(r"\n<\d{1,3}>\[")
_PREFIX_SHARE = 4 / 5  # of the lines
_SAMPLE_LINES = 200
_COLOURS = re.compile(rb"\x1b(?:\[[0-9;:?]*[A-Za-z]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\))")
_CRI = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+\-]\d\d:\d\d)) std(?:out|err) [FP] "
)
_CENTURIES = (b"20", b"19")  # the date of a CRI prefix begins with them
_PREFIXES = {
    # grep -n, cat -n
    "number": re.compile(rb"(?:[\w.+~/@-]{1,255}[:-])? {0,12}\d{1,12}(?: {0,8}[:-]\t?|\t)"),
    "host": re.compile(rb"(?P<host>[A-Za-z0-9][\w.-]{0,253})(?:: ?|\t)(?=\s*\S)"),
    "indent": re.compile(rb"[ \t]+(?=\S)"),
}
_HOST_NAME = re.compile(rb"[\w.-]*\d")


class RecordReader:
    """Reads the stream once. Counts its lines in `coverage`, and sets `coverage.trouble` if it
    cannot be read to its end.
    """

    def __init__(
        self,
        stream: io.BufferedReader,
        coverage: LogCoverage,
        latest: float,
        markers: re.Pattern[bytes],
    ) -> None:
        """`latest`: when the log was last written, in seconds since the epoch. `markers` match a
        text of fault lines.
        """
        self._stream = stream
        self._coverage = coverage
        self._text = TextParser(latest)
        self._objects = ObjectParser(self._text, markers, latest)

    def read_records(self, is_recognised: Callable[[bytes], bool]) -> Iterator[SavedRecord]:
        """`is_recognised`: whether a message is a known one."""
        head = self._stream.peek(_SAMPLE_BYTES)[:_SAMPLE_BYTES]
        if _EXPORT.match(head):
            return self._read_export()
        if _JSON.match(head):
            return self._read_objects()
        if b"\n" not in head and b"\r" in head:  # some terminals' captures
            head, lines = head.replace(b"\r", b"\n"), self._read_returned_lines()
        else:
            lines = self._read_lines()
        self._text.detect_prefix(head, is_recognised)
        return _join_records(self._text.parse_lines(lines, self._coverage))

    def _read_lines(self) -> Iterator[bytes]:
        """Of a line longer than any kernel record only the beginning."""
        readline = self._stream.readline
        while line := readline(_MAX_LINE_BYTES):
            self._coverage.lines += 1
            yield line
            while not line.endswith(b"\n") and (line := readline(_MAX_LINE_BYTES)):
                pass

    def _read_returned_lines(self) -> Iterator[bytes]:
        """Lines that end with a carriage return alone; of long ones only the beginning."""
        rest = b""
        while piece := self._stream.read(_MAX_LINE_BYTES):
            *lines, rest = (rest + piece).split(b"\r")
            rest = rest[:_MAX_LINE_BYTES]
            for line in lines:
                self._coverage.lines += 1
                yield line + b"\n"
        if rest:
            self._coverage.lines += 1
            yield rest

    # --- JSON

    def _read_objects(self) -> Iterator[SavedRecord]:
        """JSON objects, each on a line of its own or over several lines; anything else is read as
        text.
        """
        decode = json.JSONDecoder().raw_decode
        buffer, began, tries = "", 1, 0
        for raw in self._read_pieces():
            here = self._coverage.lines + (not raw.endswith(b"\n"))
            began = began if buffer else here
            buffer += raw.decode("utf-8", "surrogateescape")
            at = 0
            while True:
                space = _BETWEEN_OBJECTS.match(buffer, at)
                at = space.end() if space is not None else at
                if at >= len(buffer):
                    buffer, tries = "", 0
                    break
                if buffer[at] == "{":
                    try:
                        value, at = decode(buffer, at)
                    except (ValueError, RecursionError):
                        if tries < _MAX_OBJECT_LINES and len(buffer) - at < _MAX_OBJECT:
                            buffer = buffer[at:]
                            tries += buffer.endswith("\n")
                            break
                    else:
                        yield self._objects.parse_object(value, began)
                        began, tries = here, 0
                        continue
                line, _, buffer = buffer[at:].partition("\n")
                at, tries = 0, 0
                yield self._parse_text(line, began)
                began = here
        for line in buffer.splitlines()[:_MAX_OBJECT_LINES]:
            yield self._parse_text(line, began)

    def _read_pieces(self) -> Iterator[bytes]:
        while piece := self._stream.readline(_MAX_LINE_BYTES):
            self._coverage.lines += piece.endswith(b"\n")
            yield piece
        self._coverage.lines = max(self._coverage.lines, 1)

    def _parse_text(self, line: str, number: int) -> SavedRecord:
        return self._text.parse_text(line.encode("utf-8", "surrogateescape"), number)

    # --- journalctl -o export

    def _read_export(self) -> Iterator[SavedRecord]:
        entry: dict[str, bytes | None] = {}
        number = 1
        for raw in self._read_lines():
            text = raw.rstrip(b"\n")
            name, equals, value = text.partition(b"=")
            if not text:
                if entry:
                    yield parse_journal_entry(entry, entry.get("MESSAGE") or b"", number)
                entry, number = {}, self._coverage.lines + 1
            elif equals and _FIELD_NAME.fullmatch(name):
                if (key := name.decode()) in JOURNAL_FIELDS:
                    entry[key] = value
            elif _FIELD_NAME.fullmatch(text):
                data = self._read_binary_field()
                if data is None:
                    return
                if (key := text.decode()) in JOURNAL_FIELDS:
                    entry[key] = data[:_MAX_LINE_BYTES]
            else:
                yield self._text.parse_text(raw, self._coverage.lines)
        if entry:
            yield parse_journal_entry(entry, entry.get("MESSAGE") or b"", number)

    def _read_binary_field(self) -> bytes | None:
        """A value with its length before it; None if it is too long."""
        size = int.from_bytes(self._stream.read(8), "little")
        if size > _MAX_FIELD_BYTES:
            self._coverage.trouble = (
                f"line {self._coverage.lines}: a field of {size} bytes: what follows was not read"
            )
            return None
        data = self._stream.read(size)
        self._stream.read(1)
        self._coverage.lines += data.count(b"\n")
        return data


def _join_records(records: Iterator[SavedRecord]) -> Iterator[SavedRecord]:
    """Joins indented lines without a time stamp to the record before, which the kernel wrote with
    a newline in it.
    """
    held: SavedRecord | None = None
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


class ObjectParser:
    """`markers` match a text of fault lines. `latest`: as for TextParser."""

    def __init__(self, text: TextParser, markers: re.Pattern[bytes], latest: float) -> None:
        self._text = text
        self._markers = markers
        self._latest = latest

    def parse_object(self, value: object, number: int) -> SavedRecord:
        """A decoded JSON value of any of the tools; `number` is that of its first line."""
        entry = value if isinstance(value, dict) else {}
        shown = json.dumps(entry).encode()
        if "MESSAGE" in entry:
            fields = {
                name: _decode_field(text) for name, text in entry.items() if name in JOURNAL_FIELDS
            }
            return parse_journal_entry(fields, shown, number)
        if isinstance(text := entry.get("msg"), str) and "pri" in entry and "time" in entry:
            message = escape(_encode_text(_NEXT_RECORD.split(text, 1)[0]))
            facility, usec = _parse_facility(entry), _parse_seconds(str(entry["time"]))
            return SavedRecord(number, shown, Line(message, facility, usec, has_kernel_prefix=True))
        if isinstance(text := entry.get("log"), str):
            time = parse_date(_encode_text(str(entry.get("time", ""))), self._latest)
            record = self._text.parse_text(_encode_text(text), number, time)
            return SavedRecord(number, shown, record.line, record.time)
        return SavedRecord(number, shown, Line(shown) if self._markers.search(shown) else None)


def parse_journal_entry(entry: dict[str, bytes | None], shown: bytes, number: int) -> SavedRecord:
    """An entry of journald. Only `_TRANSPORT` is proof that the kernel wrote it: any program may
    use the name `kernel`.
    """
    transport, name = entry.get("_TRANSPORT"), entry.get("SYSLOG_IDENTIFIER")
    message = entry.get("MESSAGE") or b""
    wall_usec = _parse_count(entry.get("__REALTIME_TIMESTAMP"))
    time = wall_usec / 1e6 if wall_usec is not None else None
    host, boot_id = (
        (entry.get(field) or b"").decode("utf-8", "replace") for field in ("_HOSTNAME", "_BOOT_ID")
    )
    if transport is None and name is None:
        # The log was saved with some fields only
        return SavedRecord(number, shown, strip_prefix(message), time, host, boot_id)
    if transport not in (None, b"kernel") or (transport is None and name != b"kernel"):
        line = find_reader_line(
            (name or b"").decode("utf-8", "replace"), message.decode("utf-8", "surrogateescape")
        )
        return SavedRecord(number, shown, line, time, host, boot_id)
    facility = _parse_count(entry.get("SYSLOG_FACILITY"))
    if facility is None:
        facility = 0 if name in (None, b"kernel") else 1
    # Journald removed the name from a line that a process wrote to /dev/kmsg
    if facility and name is not None:
        pid = entry.get("SYSLOG_PID")
        message = name + (b"[" + pid + b"]" if pid else b"") + b": " + message
    usec = _parse_count(entry.get("_SOURCE_MONOTONIC_TIMESTAMP"))
    if usec is None:
        usec = _parse_count(entry.get("__MONOTONIC_TIMESTAMP"))
    line = Line(escape(message), facility, usec, has_kernel_prefix=True, is_whole_record=True)
    return SavedRecord(number, shown, line, time, host, boot_id)


def _decode_field(value: object) -> bytes | None:
    """A field in journald's JSON: text, an array of bytes if it is not text, or an array of values
    if the entry has several.
    """
    if isinstance(value, str):
        return _encode_text(value)
    if not isinstance(value, list) or not value:
        return None
    if all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
        return bytes(value)
    return _decode_field(value[0]) if isinstance(value[0], str) else None


def _encode_text(text: str) -> bytes:
    """JSON may hold halves of characters, which no encoding has."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _parse_count(value: bytes | None) -> int | None:
    return int(value) if value is not None and _NUMBER.fullmatch(value) else None


def _parse_seconds(text: str) -> int | None:
    """Microseconds."""
    found = _SECONDS.fullmatch(text)
    return int(found[1]) * 1_000_000 + int(found[2].ljust(6, "0")) if found is not None else None


def _parse_facility(entry: dict[str, object]) -> int | None:
    """dmesg --json names it only with -x; otherwise `pri` is the level, or both in one number."""
    name, both = entry.get("fac"), entry.get("pri")
    if isinstance(name, str):
        return 0 if name == "kern" else 1
    return both >> 3 if isinstance(both, int) and both > 7 else None


# Not frozen: one is made for every line, and freezing costs half of the time
@dataclass(slots=True)
class SavedRecord:
    """One record of the log. `line` is None if another program wrote it."""

    number: int
    raw: bytes
    line: Line | None
    time: float | None = None  # stored beside the line; seconds since the epoch
    host: str = ""  # before the line or beside it
    boot_id: str = ""  # stored beside the line
    # Indented lines that follow: of the same record, if it is the kernel's
    more: tuple[bytes, ...] = ()
    doubt: str = ""  # why it may not be a record of its own


class TextParser:
    """`latest`: when the log was last written, in seconds since the epoch; time stamps without a
    year are before it.
    """

    def __init__(self, latest: float) -> None:
        self._latest = latest
        self._prefix: re.Pattern[bytes] | None = None

    def detect_prefix(self, head: bytes, is_recognised: Callable[[bytes], bool]) -> None:
        """Finds out what most lines have before their time stamp or message.

        `head`: the beginning of the log. `is_recognised`: whether a message is a known one.
        """
        sample = [_COLOURS.sub(b"", line) for line in head.split(b"\n")[:_SAMPLE_LINES]]
        self._prefix = _find_prefix([line for line in sample if line.strip()], is_recognised)

    def parse_lines(self, lines: Iterator[bytes], coverage: LogCoverage) -> Iterator[SavedRecord]:
        """`coverage.lines` counts the lines as they are read."""
        has_prefix = self._prefix is not None
        for raw in lines:
            if has_prefix or b"\x1b" in raw or raw.startswith(_CENTURIES):
                yield self.parse_text(raw, coverage.lines)
            else:  # most lines, without a further call
                yield SavedRecord(coverage.lines, raw, strip_prefix(raw))

    def parse_text(self, raw: bytes, number: int, time: float | None = None) -> SavedRecord:
        """A line of text, without its colours and prefix."""
        text = raw.rstrip(b"\r\n")
        if b"\x1b" in text:
            text = _COLOURS.sub(b"", text)
        shown, host = text, ""
        if text.startswith(_CENTURIES) and (cri := _CRI.match(text)) is not None:
            text, time = text[cri.end() :], parse_date(cri[1], self._latest)
        elif self._prefix is not None and (prefix := self._prefix.match(text)) is not None:
            text = text[prefix.end() :]
            name = prefix.groupdict().get("host")
            host = name.decode("utf-8", "replace") if name is not None else ""
        return SavedRecord(number, shown, strip_prefix(text), time, host)


def _find_prefix(
    sample: list[bytes], is_recognised: Callable[[bytes], bool]
) -> re.Pattern[bytes] | None:
    bare = sum(_is_kernel_line(line, is_recognised) for line in sample)
    if not sample or bare > len(sample) * (1 - _PREFIX_SHARE):
        return None
    for name, prefix in _PREFIXES.items():
        found = [match for line in sample if (match := prefix.match(line)) is not None]
        if len(found) < len(sample) * _PREFIX_SHARE:
            continue
        for match in found:
            rest = match.string[match.end() :]
            is_certain = name != "host" or _HOST_NAME.match(match["host"]) is not None
            if _is_kernel_line(rest, is_recognised if is_certain else None):
                return prefix
    return None


def _is_kernel_line(text: bytes, is_recognised: Callable[[bytes], bool] | None) -> bool:
    """By its form, or by its message."""
    line = strip_prefix(text)
    if line is None:
        return False
    return line.has_kernel_prefix or (is_recognised is not None and is_recognised(line.message))
