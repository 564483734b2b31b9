"""
The records of a saved kernel log: lines of text, as dmesg, journalctl, syslog and /dev/kmsg write
them, or the entries of `journalctl -o json`, one on a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from vitald.collectors.kernel_log.lines import (
    MAX_CONTINUATIONS,
    ContinuationDetector,
    Line,
    find_reader_line,
    strip_prefix,
)
from vitald.collectors.kernel_log.record import escape
from vitald.scan.opened_log import DAMAGED, OpenedLog
from vitald.scan.saved_coverage import LogCoverage, find_conversion

_MAX_LINE_BYTES = 1 << 16  # the rest of a longer line is not read
_HEAD_BYTES = 4096
_NUMBER = re.compile(rb"\d{1,18}")


# Not frozen: one is made for every line, and freezing costs half of the time
@dataclass(slots=True)
class SavedRecord:
    """One record of the log. `line` is None if another program wrote it."""

    number: int
    raw: bytes
    line: Line | None
    time: float | None = None  # stored beside the line; seconds since the epoch
    host: str = ""  # beside the line
    boot_id: str = ""  # stored beside the line
    # Indented lines that follow: of the same record, if it is the kernel's
    more: tuple[bytes, ...] = ()
    doubt: str = ""  # why it may not be a record of its own


def read_records(opened: OpenedLog, coverage: LogCoverage) -> Iterator[SavedRecord]:
    """Reads the stream once. Counts its lines in `coverage`, and sets `coverage.trouble` if it
    cannot be read to its end.
    """
    lines = _read_lines(opened, coverage)
    return _join_records(_parse_line(raw, coverage.lines) for raw in lines)


def _read_lines(opened: OpenedLog, coverage: LogCoverage) -> Iterator[bytes]:
    """Of a line longer than any kernel record only the beginning."""
    readline = opened.stream.readline
    try:
        coverage.conversion = find_conversion(opened.stream.peek(_HEAD_BYTES)[:_HEAD_BYTES])
        while line := readline(_MAX_LINE_BYTES):
            coverage.lines += 1
            yield line
            while not line.endswith(b"\n") and (line := readline(_MAX_LINE_BYTES)):
                pass
        opened.check_end()
    except DAMAGED as error:
        coverage.trouble = f"the file is cut short or damaged ({error}): what follows was not read"


def _parse_line(raw: bytes, number: int) -> SavedRecord:
    entry = _parse_object(raw) if raw.startswith(b"{") else {}
    if "MESSAGE" in entry:
        return _parse_journal_entry(entry, raw, number)
    return SavedRecord(number, raw, strip_prefix(raw))


def _parse_object(raw: bytes) -> dict[str, bytes | None]:
    """The fields of an entry; empty if the line is none."""
    try:
        entry = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return {name: _decode_field(value) for name, value in entry.items()}


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


def _parse_journal_entry(entry: dict[str, bytes | None], shown: bytes, number: int) -> SavedRecord:
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
