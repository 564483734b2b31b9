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
    InvalidRequest,
    Kind,
    get_items,
    get_number,
    get_text,
    get_whole_number,
    parse_strict_json,
    read_object,
)

VERSION = 1
FILE = "actions.json"
MAX_BYTES = 1024 * 1024
DAY_S = 86400.0
_AHEAD_S = 60.0  # a clock that is being slewed may be so much ahead of itself
_KEEP_S = 30 * DAY_S
_MAX_ENTRIES, _MAX_CAUSES = 1000, 64


class InvalidActionLog(Exception):
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

    def measure_age(self, now: BootClock) -> float:
        """Seconds that have passed since for certain."""
        if self.boot_id == now.boot_id:
            return now.uptime - self.uptime
        return min(now.wall - self.time, now.uptime)

    def is_recent(self, now: BootClock) -> bool:
        """Whether it may be less than a day ago."""
        return self.measure_age(now) < DAY_S

    def is_in_future(self, now: BootClock) -> bool:
        """Whether it says that it was done after this moment."""
        return self.time > now.wall + _AHEAD_S or (
            self.boot_id == now.boot_id and self.uptime > now.uptime
        )


@dataclass(frozen=True, slots=True)
class ActionLog:
    entries: tuple[ActionRecord, ...] = ()

    def list_recent(self, kind: Kind, now: BootClock) -> tuple[ActionRecord, ...]:
        return tuple(one for one in self.entries if one.kind is kind and one.is_recent(now))

    def find_future_entry(self, now: BootClock) -> ActionRecord | None:
        return next((one for one in self.entries if one.is_in_future(now)), None)

    def with_entry(self, entry: ActionRecord, now: BootClock) -> ActionLog:
        """Old entries make room, but never one that still counts. Raises BookBroken where it is
        full of those.
        """
        kept = [one for one in self.entries if one.is_recent(now) or now.wall - one.time < _KEEP_S]
        if len(kept) >= _MAX_ENTRIES:
            counting = [one for one in kept if one.is_recent(now)]
            kept = counting if len(counting) < _MAX_ENTRIES else kept
        if len(kept) >= _MAX_ENTRIES:
            raise InvalidActionLog(f"{len(kept)} entries of the last day: no room for another")
        return replace(self, entries=(*kept, entry))


def render_action_log(book: ActionLog) -> bytes:
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


def parse_action_log(data: bytes) -> ActionLog:
    """Read what `render_action_log` writes.

    Raises InvalidActionLog for anything else: a partially valid file is rejected.
    """
    if len(data) > MAX_BYTES:
        raise InvalidActionLog(f"longer than {MAX_BYTES} bytes")
    try:
        told = read_object(parse_strict_json(data), "the book", frozenset({"version", "actions"}))
        if get_whole_number(told, "version") != VERSION:
            raise InvalidActionLog(f"version {told['version']}, not {VERSION}")
        return ActionLog(
            tuple(_read_entry(one) for one in get_items(told, "actions", 0, _MAX_ENTRIES))
        )
    except InvalidRequest as error:
        raise InvalidActionLog(str(error)) from None


_ENTRY_KEYS = frozenset({"id", "action", "causes", "time", "uptime", "bootId"})


def _read_entry(value: object) -> ActionRecord:
    told = read_object(value, "an action", _ENTRY_KEYS)
    try:
        kind = Kind(told["action"])
    except ValueError:
        raise InvalidActionLog("action: none of reboot, replace") from None
    causes = get_items(told, "causes", 1, _MAX_CAUSES)
    return ActionRecord(
        id=get_text(told, "id", 64, least=1),
        kind=kind,
        causes=tuple(_read_cause(one) for one in causes),
        time=get_number(told, "time"),
        uptime=get_number(told, "uptime"),
        boot_id=get_text(told, "bootId", 64, least=1),
    )


def _read_cause(value: object) -> Cause:
    if not isinstance(value, list) or len(value) != 2:
        raise InvalidActionLog("causes: expected pairs of component and code")
    component, code = (get_text({"causes": one}, "causes", 512, least=1) for one in value)
    return component, code
