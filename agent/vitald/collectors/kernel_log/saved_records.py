"""The records of a saved kernel log, in any of the forms in which tools write them: lines of text,
JSON objects, and journalctl -o export.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator

from vitald.collectors.kernel_log.lines import MAX_CONTINUATIONS, ContinuationDetector
from vitald.collectors.kernel_log.saved_coverage import LogCoverage
from vitald.collectors.kernel_log.saved_entries import (
    JOURNAL_FIELDS,
    ObjectParser,
    parse_journal_entry,
)
from vitald.collectors.kernel_log.saved_text import SavedRecord, TextParser

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
