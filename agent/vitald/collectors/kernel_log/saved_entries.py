"""Entries of a saved kernel log that are not lines of text: journald's fields, and the JSON objects
of journalctl -o json, dmesg --json and Docker's json-file.
"""

from __future__ import annotations

import json
import re

from vitald.collectors.kernel_log.dates import parse_date
from vitald.collectors.kernel_log.lines import Line, find_reader_line, strip_prefix
from vitald.collectors.kernel_log.record import escape
from vitald.collectors.kernel_log.saved_text import SavedRecord, TextParser

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
