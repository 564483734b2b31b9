"""Real journal files, of entries made to order: systemd-journal-remote writes them from the export
format.
"""

from __future__ import annotations

import importlib.util
import re
import struct
import subprocess
from pathlib import Path
from typing import Any

from tests.conftest import require

REMOTE = Path("/lib/systemd/systemd-journal-remote")
OLD, MIDDLE, NEW = (
    f"{digit * 8}-{digit * 4}-4{digit * 3}-8{digit * 3}-{digit * 12}" for digit in "c3a"
)
STARTED = {
    OLD: 1_700_000_000,
    MIDDLE: 1_700_100_000,
    NEW: 1_700_200_000,
}  # their order is not the ids' order
MISSED = "e9bf28e6e834481bb6f48f548ad13606"
SECOND = 1_000_000
_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})")
_NAMED = re.compile(rb"\s*(?P<name>\S*?)(?:\[(?P<pid>[^\s\[]*)\])?:(?:\s|\Z)")
# Of each name: bytes, a text, a number, or None for a field that is left out.
Fields = dict[str, Any]


def entry(
    usec: int,
    message: bytes | str | None = "text",
    *,
    boot: str = NEW,
    read_at: int | None = None,
    started: float | None = None,
    **fields: bytes | str | int | None,
) -> bytes:
    """One record as journald stores it, in the export format; a field of None is left out.
    `read_at` is journald's own stamp.
    """
    mono = usec + 50 if read_at is None else read_at
    stored: Fields = {
        "_TRANSPORT": "kernel",
        "PRIORITY": 6,
        "SYSLOG_FACILITY": 0,
        "SYSLOG_IDENTIFIER": "kernel",
        "_SOURCE_MONOTONIC_TIMESTAMP": usec,
        "MESSAGE": message,
        **fields,
    }
    lines = [
        b"__REALTIME_TIMESTAMP=%d"
        % ((STARTED[boot] if started is None else started) * SECOND + mono),
        b"__MONOTONIC_TIMESTAMP=%d" % mono,
        b"_BOOT_ID=%s" % boot.replace("-", "").encode(),
    ]
    for name, value in stored.items():
        if value is not None:
            data = value if isinstance(value, bytes) else str(value).encode()
            binary = b"\n" + struct.pack("<Q", len(data)) + data
            lines.append(name.encode() + (binary if b"\n" in data else b"=" + data))
    return b"\n".join(lines) + b"\n\n"


def stored(
    prio: int,
    usec: int,
    text: bytes,
    read_at: int,
    *,
    boot: str = NEW,
    started: float | None = None,
) -> bytes:
    """A record of /dev/kmsg as journald stores it: escapes taken out, and of what a process wrote
    the name apart.
    """
    name, pid, message = ("kernel", None, text) if prio < 8 else _named(text)
    said: Fields = {
        "PRIORITY": prio & 7,
        "SYSLOG_FACILITY": prio >> 3,
        "SYSLOG_IDENTIFIER": name,
        "SYSLOG_PID": pid,
    }
    whole = _ESCAPE.sub(lambda found: bytes((int(found[1], 16),)), message)
    return entry(usec, whole, boot=boot, read_at=read_at, started=started, **said)


def _named(text: bytes) -> tuple[bytes | None, bytes | None, bytes]:
    """Name, pid and the rest: syslog_parse_identifier of systemd's journald-syslog.c."""
    found = _NAMED.match(text)
    return (found["name"], found["pid"], text[found.end() :]) if found else (None, None, text)


def missed(count: int, at: int, **fields: bytes | str | int | None) -> bytes:
    """What journald says of kernel records that it did not get."""
    said: Fields = {
        "_TRANSPORT": "driver",
        "MESSAGE_ID": MISSED,
        "SYSLOG_IDENTIFIER": "systemd-journald",
        "SYSLOG_FACILITY": 3,
    }
    said |= {"_SOURCE_MONOTONIC_TIMESTAMP": None, **fields}
    return entry(at, f"Missed {count} kernel messages", **said)


def needed() -> None:
    """What journals are made and read with must be there."""
    require(REMOTE.exists(), "systemd-journal-remote (apt-get install systemd-journal-remote)")
    require(importlib.util.find_spec("systemd"), "systemd-python (pip install systemd-python)")


def write(folder: Path, *entries: bytes, file: str = "system.journal") -> None:
    """A file of these entries in the folder; more of them where the file is there already."""
    folder.mkdir(exist_ok=True)
    subprocess.run(
        [REMOTE, "-o", folder / file, "-"], input=b"".join(entries), check=True, capture_output=True
    )
