"""
Root's own book: what was done to this node, when, and for what. Nobody else's word counts for how
often.

A day is over for an entry when this node can prove it. Within one boot the clock that counts from
the boot says how long ago it was, and nobody can set that. Of an earlier boot both must say so: the
wall clock, which may have been set or have begun at nought, and the time since this boot, which is
no longer than the time since anything before it. So whatever the clocks do, two entries that count
as a day apart are a day apart. The price: on a node that others reboot more than once a day, an
entry lasts until it has been up for a day.

Owns     the entries and their form, and which of them still count.
Refuses  files and clocks: both come in as arguments.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from vitald.recovery.request import (
    Cause,
    Kind,
    RequestBroken,
    items,
    number,
    strict_json,
    table,
    text,
    whole,
)

VERSION = 1
FILE = "actions.json"
MOST_BYTES = 1024 * 1024
DAY_S = 86400.0
_AHEAD_S = 60.0  # a clock that is being slewed may be so much ahead of itself
_KEEP_S = 30 * DAY_S
_ENTRIES, _CAUSES = 1000, 64


class BookBroken(Exception):
    """What was done is not known; the text says why. Nothing may be done then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootClock:
    """This moment: the wall clock, seconds since the boot (those in suspend included), and which
    boot that is.
    """

    wall: float
    uptime: float
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRecord:
    """One thing that was done. Written before it is done, and never taken back."""

    id: str  # of the request
    kind: Kind
    causes: tuple[Cause, ...]
    time: float
    uptime: float
    boot_id: str

    def ago(self, now: BootClock) -> float:
        """Seconds that have passed since for certain."""
        if self.boot_id == now.boot_id:
            return now.uptime - self.uptime
        return min(now.wall - self.time, now.uptime)

    def counts(self, now: BootClock) -> bool:
        """Whether it may be less than a day ago."""
        return self.ago(now) < DAY_S

    def ahead(self, now: BootClock) -> bool:
        """Whether it says that it was done after this moment."""
        return self.time > now.wall + _AHEAD_S or (
            self.boot_id == now.boot_id and self.uptime > now.uptime
        )


@dataclass(frozen=True, slots=True)
class Book:
    entries: tuple[ActionRecord, ...] = ()

    def recent(self, kind: Kind, now: BootClock) -> tuple[ActionRecord, ...]:
        return tuple(one for one in self.entries if one.kind is kind and one.counts(now))

    def ahead(self, now: BootClock) -> ActionRecord | None:
        return next((one for one in self.entries if one.ahead(now)), None)

    def with_entry(self, entry: ActionRecord, now: BootClock) -> Book:
        """Old entries make room, but never one that still counts. Raises BookBroken where it is
        full of those.
        """
        kept = [one for one in self.entries if one.counts(now) or now.wall - one.time < _KEEP_S]
        if len(kept) >= _ENTRIES:
            counting = [one for one in kept if one.counts(now)]
            kept = counting if len(counting) < _ENTRIES else kept
        if len(kept) >= _ENTRIES:
            raise BookBroken(f"{len(kept)} entries of the last day: no room for another")
        return replace(self, entries=(*kept, entry))


def render(book: Book) -> bytes:
    told = [
        {
            "id": one.id,
            "action": one.kind.value,
            "causes": [list(cause) for cause in one.causes],
            "time": one.time,
            "uptime": one.uptime,
            "bootId": one.boot_id,
        }
        for one in book.entries
    ]
    return json.dumps({"version": VERSION, "actions": told}, indent=1).encode() + b"\n"


def parse(data: bytes) -> Book:
    """Exactly what `render` writes. Raises BookBroken for anything else: half a book is no book."""
    if len(data) > MOST_BYTES:
        raise BookBroken(f"longer than {MOST_BYTES} bytes")
    try:
        told = table(strict_json(data), "the book", frozenset({"version", "actions"}))
        if whole(told, "version") != VERSION:
            raise BookBroken(f"version {told['version']}, not {VERSION}")
        return Book(tuple(_entry(one) for one in items(told, "actions", 0, _ENTRIES)))
    except RequestBroken as error:
        raise BookBroken(str(error)) from None


_ENTRY = frozenset({"id", "action", "causes", "time", "uptime", "bootId"})


def _entry(value: object) -> ActionRecord:
    told = table(value, "an action", _ENTRY)
    try:
        kind = Kind(told["action"])
    except ValueError:
        raise BookBroken("action: none of reboot, replace") from None
    causes = items(told, "causes", 1, _CAUSES)
    return ActionRecord(
        id=text(told, "id", 64, least=1),
        kind=kind,
        causes=tuple(_cause(one) for one in causes),
        time=number(told, "time"),
        uptime=number(told, "uptime"),
        boot_id=text(told, "bootId", 64, least=1),
    )


def _cause(value: object) -> Cause:
    if not isinstance(value, list) or len(value) != 2:
        raise BookBroken("causes: expected pairs of component and code")
    component, code = (text({"causes": one}, "causes", 512, least=1) for one in value)
    return component, code
