"""
Kernel records in the journal: those of former boots, and those that the ring no longer holds.

journald stores the kernel's time stamp of a record in `_SOURCE_MONOTONIC_TIMESTAMP` and removes the
escapes from its text; from the line of a process it moves the leading `name[pid]:` into fields, the
name still escaped. Both are reverted here, so that a record has the same bytes as in /dev/kmsg,
except for blanks around that name. Source: systemd src/journal/journald-kmsg.c (dev_kmsg_record),
journald-syslog.c (syslog_parse_identifier). All functions block.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from vitald.collectors.kernel_log.record import escape, escape_byte

_SYSTEM = (Path("/var/log/journal"), Path("/run/log/journal"))
_MISSED = "e9bf28e6e834481bb6f48f548ad13606"  # SD_MESSAGE_JOURNAL_MISSED in sd-messages.h
_MISSED_COUNT = re.compile(rb"Missed (\d{1,18}) kernel messages")
_NUMBER = re.compile(rb"\d{1,18}")  # fits 63 bits
_UNPRINTABLE = re.compile(rb"[^ -~]")
_INFO = b"6"
_PERMISSION = "it takes root or the group systemd-journal"
_MAX_BROKEN = 100  # damaged entries one after another
_HOP = 1000  # entries, at 0.7 µs each; reading one takes 15 µs

# Fields as they are stored. The default converters raise OverflowError on an invalid time stamp,
# and take a third of the time.
_FIELDS = (
    "MESSAGE",
    "PRIORITY",
    "SYSLOG_FACILITY",
    "SYSLOG_IDENTIFIER",
    "SYSLOG_PID",
    "_TRANSPORT",
    "_BOOT_ID",
)
_STAMPS = (
    "__MONOTONIC_TIMESTAMP",
    "__REALTIME_TIMESTAMP",
    "_SOURCE_MONOTONIC_TIMESTAMP",
    "_SOURCE_REALTIME_TIMESTAMP",
    "COREDUMP_TIMESTAMP",
)
_CONVERTERS: dict[str, Callable[[Any], Any]] = dict.fromkeys(_FIELDS + _STAMPS, lambda value: value)

# journald uses CLOCK_MONOTONIC, which differs from the kernel's clock by the corrections of NTP,
# 500 ppm at most
_MARGIN_USEC, _DRIFT = 60_000_000, 2000


class JournalUnavailable(Exception):
    """The journal cannot be read; the message has the reason and the next step."""


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One kernel record from the journal, its text escaped as in /dev/kmsg."""

    boot_id: str  # with dashes, as /proc/sys/kernel/random/boot_id
    usec: int  # the kernel's local clock, as in /dev/kmsg
    # When journald read it, in seconds since the epoch: seconds late for what was logged before
    # journald ran
    time: float
    facility: int  # 0 is the kernel's own
    level: int
    text: bytes
    cursor: str


class Journal:
    """The system's journal, or the journal files in a folder. Each call opens a reader and closes
    it.

    `skipped` (entries that are not kernel records) and `missed` (records that journald reports as
    lost) are counts of the latest call of `read_records`.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.skipped = 0
        self.missed = 0

    def check_readable(self) -> None:
        """Raises JournalUnavailable if there are no kernel records: libsystemd reports no error for
        a journal that it cannot open.
        """
        with self._open_reader() as reader:
            reader.add_match(_TRANSPORT="kernel")
            if next(self._read_entries(reader.get_next), None) is None:
                raise JournalUnavailable(self._explain_no_records())

    def list_boots(self, after: float = 0.0) -> list[str]:
        """The boots with an entry later than `after` (seconds since the epoch), oldest first: by
        the last entry of each, at which the wall clock is most likely set.
        """
        found = []
        with self._open_reader() as reader:
            for boot in reader.query_unique("_BOOT_ID"):
                reader.flush_matches()
                reader.add_match(_BOOT_ID=boot)
                reader.seek_tail()
                last = next(self._read_entries(reader.get_previous), None)
                if last is not None:
                    boot_id = UUID(bytes=bytes(last["__MONOTONIC_TIMESTAMP"][1]))
                    found.append((last["__REALTIME_TIMESTAMP"], str(boot_id)))
        return [boot_id for last_usec, boot_id in sorted(found) if last_usec / 1e6 > after]

    def read_records(
        self, boot_id: str, after_usec: int | None, limit: int
    ) -> Iterator[JournalRecord]:
        """At most `limit` records of a boot (a UUID) in journal order, those with `usec >=
        after_usec`. Raises JournalUnavailable.

        Several records may have the same usec: to continue behind one, compare its text too.
        """
        self.skipped = self.missed = lost = 0
        boot = UUID(boot_id)
        with self._open_reader() as reader:
            reader.add_match(_BOOT_ID=boot.hex, _TRANSPORT="kernel")
            reader.add_disjunction()
            reader.add_match(_BOOT_ID=boot.hex, _TRANSPORT="driver", MESSAGE_ID=_MISSED)
            if after_usec is not None:
                # journald's time stamp is never before the kernel's: records that it read late are
                # behind this entry, too
                self._seek_record(reader, after_usec - after_usec // _DRIFT - _MARGIN_USEC)
            for entry in self._read_entries(reader.get_next):
                if limit <= 0:
                    return
                if entry.get("_TRANSPORT") == b"driver":
                    lost += _count_lost(entry)
                    continue
                try:
                    record = _parse_record(entry, str(boot))
                except ValueError:
                    self.skipped += 1
                    continue
                if after_usec is None or record.usec >= after_usec:
                    self.missed += lost  # the gap is between this record and the one before
                    limit -= 1
                    yield record
                lost = 0

    def _seek_record(self, reader: Any, stamp: int) -> None:
        """Seeks to before the first entry with a time stamp of journald of `stamp` microseconds or
        later, in hops from the end.

        seek_monotonic does not work: libsystemd then reads each file that ends before the stamp, as
        rotated ones do, from its beginning (sd-journal.c, find_location_for_match).
        """
        if stamp > 0:
            reader.seek_tail()
            for entry in self._read_entries(lambda: reader.get_previous(_HOP)):
                if entry["__MONOTONIC_TIMESTAMP"][0] < stamp:
                    return
        reader.seek_head()

    @contextmanager
    def _open_reader(self) -> Iterator[Any]:
        try:
            from systemd import journal  # type: ignore[attr-defined,unused-ignore]
        except ImportError as error:
            raise JournalUnavailable(
                "systemd-python is not installed: apt-get install python3-systemd, or pip install"
                " systemd-python"
            ) from error
        where: dict[str, Any] = (
            {"path": str(self.folder)}
            if self.folder
            else {"flags": journal.LOCAL_ONLY | journal.SYSTEM}
        )
        try:
            with journal.Reader(converters=_CONVERTERS, **where) as reader:
                yield reader
        except OSError as error:
            hint = f" ({_PERMISSION})" if isinstance(error, PermissionError) else ""
            raise JournalUnavailable(
                f"{self.folder or 'the journal'}: {error.strerror}{hint}"
            ) from error

    def _read_entries(self, step: Callable[[], dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """From the current position of the reader. Damaged entries are counted and skipped."""
        broken = 0
        while broken < _MAX_BROKEN:
            try:
                entry = step()
            except (OSError, ValueError):  # ValueError: the name of a field is not UTF-8
                broken += 1
                self.skipped += 1
                continue
            if not entry:
                return
            broken = 0
            yield entry
        raise JournalUnavailable(
            f"the journal is damaged: {_MAX_BROKEN} entries in a row cannot be read (see journalctl"
            " --verify)"
        )

    def _explain_no_records(self) -> str:
        """Why no kernel record was found, and the next step."""
        folders = (self.folder,) if self.folder is not None else _SYSTEM
        files: list[str] = []
        closed: list[str] = []
        for folder in folders:
            for root, _, names in os.walk(
                folder, onerror=lambda error: _explain_refusal(error, closed)
            ):
                files += [
                    str(Path(root, name))
                    for name in names
                    if name.endswith((".journal", ".journal~"))
                ]
        closed += [file for file in files if not os.access(file, os.R_OK, effective_ids=True)]
        where = " and ".join(str(folder) for folder in folders)
        if closed:
            return f"{closed[0]}: no permission to read it ({_PERMISSION})"
        if not files:
            return (
                f"no journal in {where}: is systemd-journald running, and Storage= in journald.conf"
                " not none?"
            )
        return (
            f"no kernel record in {where}: is ReadKMsg= off in journald.conf, or the journal of"
            " another machine id?"
        )


def _count_lost(entry: dict[str, Any]) -> int:
    """The kernel records that journald reports as lost; 1 if it does not say how many."""
    message = entry.get("MESSAGE")
    found = _MISSED_COUNT.match(message) if isinstance(message, bytes) else None
    return int(found[1]) if found is not None else 1


def _parse_record(entry: dict[str, Any], boot_id: str) -> JournalRecord:
    """Raises ValueError if a field is missing, present twice, or invalid."""
    name = _get_bytes(entry, "SYSLOG_IDENTIFIER", b"")
    # Old journald omits the facility for the kernel's own records, and only for those
    facility = _parse_number(
        _get_bytes(entry, "SYSLOG_FACILITY", b"0" if name == b"kernel" else b"1"), 127
    )
    text = escape(_get_bytes(entry, "MESSAGE"))
    if facility and "SYSLOG_IDENTIFIER" in entry:
        pid = b"[" + _get_bytes(entry, "SYSLOG_PID") + b"]" if "SYSLOG_PID" in entry else b""
        text = _UNPRINTABLE.sub(escape_byte, name + pid) + (b": " + text if text else b":")
    return JournalRecord(
        boot_id=boot_id,
        usec=_parse_number(
            _get_bytes(
                entry, "_SOURCE_MONOTONIC_TIMESTAMP", b"%d" % entry["__MONOTONIC_TIMESTAMP"][0]
            )
        ),
        time=entry["__REALTIME_TIMESTAMP"] / 1e6,
        facility=facility,
        level=_parse_number(_get_bytes(entry, "PRIORITY", _INFO), 7),
        text=text,
        cursor=entry["__CURSOR"],
    )


def _get_bytes(entry: dict[str, Any], field: str, default: bytes | None = None) -> bytes:
    value = entry.get(field, default)
    if not isinstance(value, bytes):
        raise ValueError(f"{field}: {value!r}")
    return value


def _parse_number(text: bytes, highest: int = 1 << 63) -> int:
    if _NUMBER.fullmatch(text) is None or (value := int(text)) > highest:
        raise ValueError(f"not a number up to {highest}: {text!r}")
    return value


def _explain_refusal(error: OSError, closed: list[str]) -> None:
    if isinstance(error, PermissionError):
        closed.append(str(error.filename))
