"""
The readings of one device as one poll read them, and how the kernel's small files become readings.

A file that does not exist, that answers with an error or that holds no number is not observable,
which is neither healthy nor unhealthy.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from vitald import small_files
from vitald.model.source import Sample
from vitald.text import clean_line

T = TypeVar("T")


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
            clean_line(self.serial),
            clean_line(self.display_name),
            clean_line(self.unreadable_reason),
        )
        self.values = {
            name: clean_line(value) if isinstance(value, str) else value
            for name, value in self.values.items()
        }
        self.missing = {name: clean_line(reason) for name, reason in self.missing.items()}
        self.fields = {name: clean_line(value) for name, value in self.fields.items()}


class Files:
    """Reads files into raw readings. A file that answers EINVAL once is not read again: some
    drivers log a line each time.
    """

    def __init__(self) -> None:
        self.refused: set[str] = set()

    def read_number(self, raw: RawReadings, name: str, path: Path | str) -> float | None:
        """A counter or a state, decimal or with 0x. None if it is not observable."""
        return self.read_value(raw, name, path, small_files.parse_whole_number)

    def read_text(self, raw: RawReadings, name: str, path: Path | str) -> str | None:
        return self.read_value(raw, name, path, str)

    def read_value(
        self, raw: RawReadings, name: str, path: Path | str, parse: Callable[[str], T]
    ) -> T | None:
        """What `parse` returns for the file; a number, a text or a tuple is added as reading
        `name`. None if it is not observable, with the reason in `raw.missing`.
        """
        if str(path) in self.refused:
            raw.missing[name] = small_files.describe_error(OSError(errno.EINVAL, ""))
            return None
        text = ""
        try:
            text = small_files.read_attribute(path)
            parsed = parse(text)
            if isinstance(parsed, float) and not math.isfinite(parsed):
                raise ValueError(text)
        except OSError as error:
            if error.errno == errno.EINVAL:
                self.refused.add(str(path))
            raw.missing[name] = small_files.describe_error(error)
            return None
        except (ValueError, OverflowError):
            raw.missing[name] = (
                f"reads {text[:40]!r}, which is no value" if text else "the file is empty"
            )
            return None
        if isinstance(parsed, (float, str, tuple)):
            raw.values[name] = parsed
        return parsed
