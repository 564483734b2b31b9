"""
Reads the kernel's small files in sysfs and procfs; nothing is written.

A file that does not exist, that answers with an error or that holds no number is not observable,
which is neither healthy nor unhealthy. A read blocks for as long as the device behind it does.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from vitald.model import Sample
from vitald.text import replace_unprintable

T = TypeVar("T")

KERNEL_THREAD = 0x00200000  # PF_KTHREAD of linux/sched.h, in the flags of /proc/PID/stat
_PAGE = 4096  # an attribute of sysfs is no longer, and comes whole
_MAX_CHARACTERS = 512  # characters of a text that a device gives
_MAX_BYTES = 65536  # bytes; some files of procfs are longer
_WHOLE = re.compile(r"[0-9]+|0x[0-9a-f]+")
_REASONS = {
    errno.ENOENT: "there is no such file",
    errno.EINVAL: "the driver answers EINVAL: left alone from now on",
}


def read_text(path: Path | str) -> str:
    """The text of a file of procfs, without surrounding white space. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, _MAX_BYTES):
            parts.append(part)
            if sum(map(len, parts)) >= _MAX_BYTES:
                break
    finally:
        os.close(fd)
    return b"".join(parts).decode("utf-8", "replace").strip()


def read_attribute(path: Path | str) -> str:
    """The same for an attribute of sysfs, which one call of read returns. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _PAGE).decode("utf-8", "replace").strip()
    finally:
        os.close(fd)


def list_names(folder: Path | str) -> list[str]:
    """The entries of a folder, sorted; empty if it does not exist. Raises OSError if it cannot be
    read.
    """
    try:
        return sorted(entry.name for entry in os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


@dataclass(slots=True)
class RawReadings:
    """Readings of one device as one poll read them, before they are compared with anything.

    `serial` survives a move to another slot. `display_name` names the part for operators.
    `unreadable_reason` says why its health is unknown although it was read. When `epoch` changes,
    its counters may have been reset, as another driver was loaded.
    """

    values: dict[str, Sample] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # reading -> why it cannot be observed
    serial: str = ""
    display_name: str = ""
    unreadable_reason: str = ""
    epoch: str = ""
    # Labels that identify it, carried by each of its events
    fields: dict[str, str] = field(default_factory=dict)

    def require(self, name: str) -> None:
        """Make the device's health unknown if this reading was tried and could not be observed."""
        if name in self.missing and name not in self.values:
            self.unreadable_reason = self.unreadable_reason or f"{name}: {self.missing[name]}"

    def make_presentable(self) -> None:
        """Sanitise all texts: devices choose them, and they appear on terminals, in labels and in
        the ledger.
        """
        self.serial, self.display_name, self.unreadable_reason = (
            presentable(self.serial),
            presentable(self.display_name),
            presentable(self.unreadable_reason),
        )
        self.values = {
            name: presentable(value) if isinstance(value, str) else value
            for name, value in self.values.items()
        }
        self.missing = {name: presentable(reason) for name, reason in self.missing.items()}
        self.fields = {name: presentable(value) for name, value in self.fields.items()}


class Files:
    """Reads files into raw readings. A file that answers EINVAL once is not read again: some
    drivers log a line each time.
    """

    def __init__(self) -> None:
        self.refused: set[str] = set()

    def read_number(self, raw: RawReadings, name: str, path: Path | str) -> float | None:
        """A counter or a state, decimal or with 0x. None if it is not observable."""
        return self.read_value(raw, name, path, parse_whole_number)

    def read_text(self, raw: RawReadings, name: str, path: Path | str) -> str | None:
        return self.read_value(raw, name, path, str)

    def read_value(
        self, raw: RawReadings, name: str, path: Path | str, parse: Callable[[str], T]
    ) -> T | None:
        """What `parse` returns for the file; a number, a text or a tuple is added as reading
        `name`. None if it is not observable, with the reason in `raw.missing`.
        """
        if str(path) in self.refused:
            raw.missing[name] = _REASONS[errno.EINVAL]
            return None
        text = ""
        try:
            text = read_attribute(path)
            parsed = parse(text)
            if isinstance(parsed, float) and not math.isfinite(parsed):
                raise ValueError(text)
        except OSError as error:
            if error.errno == errno.EINVAL:
                self.refused.add(str(path))
            raw.missing[name] = describe_error(error)
            return None
        except (ValueError, OverflowError):
            raw.missing[name] = (
                f"reads {text[:40]!r}, which is no value" if text else "the file is empty"
            )
            return None
        if isinstance(parsed, (float, str, tuple)):
            raw.values[name] = parsed
        return parsed


def presentable(text: str) -> str:
    """One printable line of limited length."""
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[:_MAX_CHARACTERS]}..."
    return replace_unprintable(text)


def describe_error(error: OSError) -> str:
    """Why a file cannot be read, for operators."""
    return (
        _REASONS.get(error.errno or 0)
        or f"{error.strerror} ({errno.errorcode.get(error.errno or 0, error.errno)})"
    )


def parse_whole_number(text: str) -> float:
    """`12` or `0x1f`. Raises ValueError for anything else, as counters and numbers of the kernel
    are never negative, and OverflowError above 1e308.
    """
    if not _WHOLE.fullmatch(text):
        raise ValueError(text)
    return float(int(text, 0 if text.startswith("0x") else 10))


def parse_counters(text: str) -> Mapping[str, float]:
    """Lines of `name number`, as AER counters have. Raises ValueError for anything else."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, number = line.split()
        found[name] = parse_whole_number(number)
    return found
