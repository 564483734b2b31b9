"""
The kernel's small files: sysfs and procfs, read and never written.

Owns     how a value is read, and how it is said that one cannot be: a file that is not there, that
         answers with an error, or that holds no number is not observable, which is neither well nor
         ill.
Refuses  meaning, threads and deadlines: a read may block for as long as the device behind it does.
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

_PAGE = 4096  # an attribute of sysfs is no longer, and comes whole
_MAX_CHARACTERS = 512  # characters of what a device says of itself
_MAX_BYTES = 65536  # bytes; some files of procfs are longer
_WHOLE = re.compile(r"[0-9]+|0x[0-9a-f]+")
_REASONS = {
    errno.ENOENT: "there is no such file",
    errno.EINVAL: "the driver answers EINVAL: left alone from now on",
}


def read_text(path: Path | str) -> str:
    """The text of a small file, without the white space around it. Raises OSError."""
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
    """The same of an attribute of sysfs, which one read gives. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _PAGE).decode("utf-8", "replace").strip()
    finally:
        os.close(fd)


def list_names(folder: Path | str) -> list[str]:
    """What is in a folder, sorted; nothing where there is no such folder. Raises OSError for one
    that cannot be read.
    """
    try:
        return sorted(entry.name for entry in os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


@dataclass(slots=True)
class RawReadings:
    """Readings of one device as one poll read them, before they are compared with anything.

    `serial` survives a move to another slot. `display_name` tells an operator which part it is.
    `unreadable_reason` says why its health is unknown although it was read. When `epoch` changes,
    its counters may have begun anew, as another driver was loaded.
    """

    values: dict[str, Sample] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # reading -> why it cannot be observed
    serial: str = ""
    display_name: str = ""
    unreadable_reason: str = ""
    epoch: str = ""
    fields: dict[str, str] = field(default_factory=dict)  # who it is, said with each of its events

    def require(self, name: str) -> None:
        """Without this reading nothing can be said of its health: where it was asked for and could
        not be observed, nobody knows.
        """
        if name in self.missing and name not in self.values:
            self.unreadable_reason = self.unreadable_reason or f"{name}: {self.missing[name]}"

    def make_presentable(self) -> None:
        """Devices, and whoever names them, may say what they like: it ends up on terminals, in
        labels and in the ledger.
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
    """Reads files into looks. A file that answers EINVAL once is not asked again: asking makes some
    drivers log a line each time.
    """

    def __init__(self) -> None:
        self.refused: set[str] = set()

    def read_number(self, look: RawReadings, name: str, path: Path | str) -> float | None:
        """A counter or a state, decimal or with 0x."""
        return self.read_value(look, name, path, parse_whole_number)

    def read_text(self, look: RawReadings, name: str, path: Path | str) -> str | None:
        return self.read_value(look, name, path, str)

    def read_value(
        self, look: RawReadings, name: str, path: Path | str, parse: Callable[[str], T]
    ) -> T | None:
        """What `parse` makes of the file, noted as reading `name` where that is a value; None where
        it is not observable.
        """
        if str(path) in self.refused:
            look.missing[name] = _REASONS[errno.EINVAL]
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
            look.missing[name] = describe_error(error)
            return None
        except (ValueError, OverflowError):
            look.missing[name] = (
                f"reads {text[:40]!r}, which is no value" if text else "the file is empty"
            )
            return None
        if isinstance(parsed, (float, str, tuple)):
            look.values[name] = parsed
        return parsed


def presentable(text: str) -> str:
    """On one line, and not for ever."""
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[:_MAX_CHARACTERS]}..."
    return replace_unprintable(text)


def describe_error(error: OSError) -> str:
    """Why a file cannot be read, for people."""
    return (
        _REASONS.get(error.errno or 0)
        or f"{error.strerror} ({errno.errorcode.get(error.errno or 0, error.errno)})"
    )


def parse_whole_number(text: str) -> float:
    """`12` or `0x1f`. Raises ValueError for anything else: what the kernel counts and numbers is
    never below 0. OverflowError past 1e308.
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
