"""What a record of a saved kernel log reports, and the section of the file that it stands in."""

from __future__ import annotations

from dataclasses import dataclass

from vitald.collectors.kernel_log.saved_coverage import Stamp
from vitald.model import Event


@dataclass(frozen=True, slots=True)
class Section:
    """Of a file into which several logs were written. `boots_back`: 0 for the lines of the last
    boot, 1 for those of the one before it; None if unknown.
    """

    boots_back: int | None


@dataclass(frozen=True, slots=True)
class SavedEvent:
    """What a record reports, to each interpreter, or a boot that the log shows. `place`: see
    clock.py.
    """

    place: float
    events: tuple[Event | None, ...]
    stamp: Stamp | None = None  # None for a boot
    raw: bytes = b""
    context: bool = False  # not a fault: it only explains others
    dated: bool = False  # by the wall clock alone: it belongs to the boot before it in time
    section: Section | None = None  # of a line that has neither a date nor a stamp
