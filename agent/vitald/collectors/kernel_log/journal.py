"""
Kernel records that journald kept: those of former boots, and those that the ring no longer holds.

journald stores a record's own stamp in `_SOURCE_MONOTONIC_TIMESTAMP` and takes the escapes out of
its text; of what a process wrote it makes the leading `name[pid]:` fields of their own, name still
escaped. Both are put back here, so that a record gives the same bytes as from /dev/kmsg, but for
blanks around that name. Source: systemd src/journal/journald-kmsg.c (dev_kmsg_record),
journald-syslog.c (syslog_parse_identifier). Everything here blocks.
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

from vitald.collectors.kernel_log.record import escape, hexed

_SYSTEM = (Path("/var/log/journal"), Path("/run/log/journal"))
_MISSED = "e9bf28e6e834481bb6f48f548ad13606"  # SD_MESSAGE_JOURNAL_MISSED in sd-messages.h
_MISSED_COUNT = re.compile(rb"Missed (\d{1,18}) kernel messages")
_NUMBER = re.compile(rb"\d{1,18}")  # fits 63 bits
_UNPRINTABLE = re.compile(rb"[^ -~]")
_INFO = b"6"
_PERMISSION = "it takes root or the group systemd-journal"
_BROKEN = 100  # damaged entries one after another
_HOP = 1000  # entries, at 0.7 µs each; reading one takes 15 µs

# Everything as it is stored. The default converters raise OverflowError on an absurd stamp, and
# cost a third of the time.
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

# The kernel's clock and CLOCK_MONOTONIC part by what NTP corrects, 500 ppm at most; journald stamps
# with the latter.
_MARGIN_USEC, _DRIFT = 60_000_000, 2000


class JournalUnavailable(Exception):
    """There is no journal to read; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One kernel record out of the journal, its text escaped as /dev/kmsg does."""

    boot_id: str  # with dashes, as /proc/sys/kernel/random/boot_id
    usec: int  # the kernel's local clock, as in /dev/kmsg
    # Seconds since the epoch at which journald read it: seconds late for what was logged before
    # journald ran
    time: float
    facility: int  # 0 is the kernel's own
    level: int
    text: bytes
    cursor: str


class Journal:
    """The system's journal, or the journal files in a folder. A reader is opened by each call and
    closed with it.

    `skipped` (entries that are not a kernel record's) and `missed` (records that journald says it
    lost) count for the latest call of `read_records`.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.skipped = 0
        self.missed = 0

    def check_readable(self) -> None:
        """Raises JournalUnavailable where there are no kernel records to be had: libsystemd opens
        nothing without a word.
        """
        with self._open_reader() as reader:
            reader.add_match(_TRANSPORT="kernel")
            if next(self._read_entries(reader.get_next), None) is None:
                raise JournalUnavailable(self._explain_no_records())

    def list_boots(self, after: float = 0.0) -> list[str]:
        """The boots that left any entry later than `after` (seconds since the epoch), oldest first:
        by the last entry of each, whose wall clock is the likeliest to be set.
        """
        found = []
        with self._open_reader() as reader:
            for boot in reader.query_unique("_BOOT_ID"):
                reader.flush_matches()
                reader.add_match(_BOOT_ID=boot)
                reader.seek_tail()
                if (last := next(self._read_entries(reader.get_previous), None)) is not None:
                    found.append(
                        (
                            last["__REALTIME_TIMESTAMP"],
                            str(UUID(bytes=bytes(last["__MONOTONIC_TIMESTAMP"][1]))),
                        )
                    )
        return [boot_id for last_usec, boot_id in sorted(found) if last_usec / 1e6 > after]

    def read_records(
        self, boot_id: str, after_usec: int | None, most: int
    ) -> Iterator[JournalRecord]:
        """At most `most` records of a boot (a UUID) in journal order, those with `usec >=
        after_usec`. Raises JournalUnavailable.

        Several records may have the same usec: whoever goes on from one must know it by more than
        that.
        """
        self.skipped = self.missed = lost = 0
        boot = UUID(boot_id)
        with self._open_reader() as reader:
            reader.add_match(_BOOT_ID=boot.hex, _TRANSPORT="kernel")
            reader.add_disjunction()
            reader.add_match(_BOOT_ID=boot.hex, _TRANSPORT="driver", MESSAGE_ID=_MISSED)
            if after_usec is not None:
                # journald stamps a record after the kernel did, never before: what it read late is
                # behind this place, too.
                self._seek_record(reader, after_usec - after_usec // _DRIFT - _MARGIN_USEC)
            for entry in self._read_entries(reader.get_next):
                if most <= 0:
                    return
                if entry.get("_TRANSPORT") == b"driver":
                    said = (
                        _MISSED_COUNT.match(text)
                        if isinstance(text := entry.get("MESSAGE"), bytes)
                        else None
                    )
                    lost += int(said[1]) if said else 1
                    continue
                try:
                    record = _parse_record(entry, str(boot))
                except ValueError:
                    self.skipped += 1
                    continue
                if after_usec is None or record.usec >= after_usec:
                    self.missed += lost  # the gap is between this record and the one before
                    most -= 1
                    yield record
                lost = 0

    def _seek_record(self, reader: Any, stamp: int) -> None:
        """To before the first entry that journald stamped `stamp` microseconds or later, in hops
        from the end.

        seek_monotonic does not do: of every file that ends before the stamp, as rotation leaves
        them, libsystemd then gives all from its beginning (sd-journal.c, find_location_for_match).
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
        """From the reader's place on. A damaged entry is counted and passed over."""
        broken = 0
        while broken < _BROKEN:
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
            f"the journal is damaged: {_BROKEN} entries in a row cannot be read (see journalctl"
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


def _parse_record(entry: dict[str, Any], boot_id: str) -> JournalRecord:
    """Raises ValueError where a field is missing, there twice, or absurd."""
    name = _get_bytes(entry, "SYSLOG_IDENTIFIER", b"")
    # Old journald leaves the facility out for the kernel's own records and only for those.
    facility = _parse_number(
        _get_bytes(entry, "SYSLOG_FACILITY", b"0" if name == b"kernel" else b"1"), 127
    )
    text = escape(_get_bytes(entry, "MESSAGE"))
    if facility and "SYSLOG_IDENTIFIER" in entry:
        pid = b"[" + _get_bytes(entry, "SYSLOG_PID") + b"]" if "SYSLOG_PID" in entry else b""
        text = _UNPRINTABLE.sub(hexed, name + pid) + (b": " + text if text else b":")
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
