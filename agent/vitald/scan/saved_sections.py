"""
What a record of a saved kernel log reports, and the section of the file that it stands in.

nvidia-bug-report.sh writes several logs into one file. Where the lines of a section have neither a
date nor a stamp of the kernel's clock, their place in the file does not say of which boot they are:
`journalctl -b -1` stands behind `journalctl -b -0`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from vitald.collectors.kernel_log.interpret import make_boot_event
from vitald.model.event import UNDATED, Event
from vitald.scan.saved_clock import MAX_HELD_EVENTS, LogClock
from vitald.scan.saved_coverage import LogCoverage, Stamp

_BEFORE_S = 0.5  # between the lines of a boot and the next boot
_HEADING = re.compile(rb"\*\*\* /|==> \S+ <==|_{8,}\s*\Z")
# A number above 0 counts from the first boot; a boot id or `all` is no number either
_OF_BOOT = re.compile(
    rb"\bjournalctl (?:.{0,64} )?(?:-[a-zA-Z]*b|--boot)"
    rb"(?:[ =]?(?:(?P<back>-\d{1,3}|-?0)|(?P<other>\d{1,3}|[0-9a-f]{32}|all)))?(?!\w)"
)


def parse_heading(message: bytes) -> Section | None:
    """The section that begins with a line that is no record; None if it is no heading."""
    if b"journalctl " in message and (found := _OF_BOOT.search(message)) is not None:
        return Section(None if found["other"] else abs(int(found["back"] or 0)))
    return Section(None) if _HEADING.match(message) is not None else None


def place_sections(
    read: Iterable[SavedEvent], coverage: LogCoverage, get_clock: Callable[[], LogClock]
) -> Iterator[SavedEvent]:
    """Moves the undated lines of sections to their boots, once all boots of the log are known. A
    line whose boot stays unknown is weak evidence, if the log has dates elsewhere.

    `coverage` and the clock are looked at when all has been read.
    """
    undated: list[tuple[Section, SavedEvent]] = []
    boots: list[tuple[float, str]] = []  # that the log shows, by their places
    count, first, last = 0, math.inf, 0.0
    for saved in read:
        count += 1
        if saved.section is not None and len(undated) < MAX_HELD_EVENTS:
            undated.append((saved.section, saved))
            continue
        first, last = min(first, saved.place), max(last, saved.place)
        if saved.stamp is None:
            boots += [(saved.place, event.boot_id) for event in saved.events[:1] if event]
        yield saved
    if not undated:
        return
    clock = get_clock()
    boots = sorted(boots) or [(min(first, 0.0), clock.boot_name)]
    first = min(first, boots[0][0])
    # Of more lines than these the order cannot be mended
    is_sortable = len(coverage.hosts) < 2 and count <= MAX_HELD_EVENTS
    older: dict[int, int] = {}  # boots of which nothing else is known, and their interpreters
    for section, saved in undated:
        back = section.boots_back if is_sortable else None
        if back is None:
            yield _move(saved, last, clock.boot_name, is_undated=clock.has_time)
        elif back == 0:
            yield _move(saved, last, boots[-1][1])
        elif back < len(boots):
            yield _move(saved, boots[-back][0] - _BEFORE_S, boots[-back - 1][1])
        else:
            older[back] = len(saved.events)
            yield _move(saved, first - back, f"log-b-{back}")
    for back, readers in older.items():
        name = boots[0][1] if back == len(boots) else f"log-b-{back - 1}"
        boot = make_boot_event(name, first - back + _BEFORE_S)
        yield SavedEvent(boot.time, (boot,) * readers)


def _move(saved: SavedEvent, place: float, boot_id: str, *, is_undated: bool = False) -> SavedEvent:
    more = {UNDATED: True} if is_undated else {}
    events = tuple(
        event and replace(event, time=place, boot_id=boot_id, fields={**event.fields, **more})
        for event in saved.events
    )
    return replace(saved, place=place, events=events, dated=False)


@dataclass(frozen=True, slots=True)
class Section:
    """Of a file into which several logs were written. `boots_back`: 0 for the lines of the last
    boot, 1 for those of the one before it; None if unknown.
    """

    boots_back: int | None


@dataclass(frozen=True, slots=True)
class SavedEvent:
    """What a record reports, to each interpreter, or a boot that the log shows. `place`: see
    saved_clock.py.
    """

    place: float
    events: tuple[Event | None, ...]
    stamp: Stamp | None = None  # None for a boot
    raw: bytes = b""
    context: bool = False  # not a fault: it only explains others
    dated: bool = False  # by the wall clock alone: it belongs to the boot before it in time
    section: Section | None = None  # of a line that has neither a date nor a stamp
