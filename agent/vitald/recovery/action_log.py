"""
The action log, owned by root: what was done to this node, when, and for which causes. Rate limits
are computed from this file only.

An entry counts until a day has provably passed. Within one boot, the clock that counts from the
boot gives the age; it cannot be set. For an entry of an earlier boot the age is the lesser of two:
by the wall clock, which may have been set or have started at 0, and the uptime, since the entry is
older than this boot. So whatever the clocks do, two actions are never taken for a day apart unless
they are. The price: on a node that is rebooted by others more than once a day, an entry counts
until the node has been up for a day.

Owns     the entries, their format, and which of them still count.
Refuses  files and clocks: both are arguments.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from vitald.model.words import Repair
from vitald.recovery.recovery_request import (
    Cause,
    InvalidRequest,
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
_AHEAD_S = 60.0  # a clock that is being slewed may be ahead of itself by so much
_KEEP_S = 30 * DAY_S
_MAX_ENTRIES, _MAX_CAUSES = 1000, 64


class InvalidActionLog(Exception):
    """The past actions are not known; the text says why. No action may be taken then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootClock:
    """A moment. `wall`: Unix time; `uptime`: seconds since the boot, suspend included; `boot_id`:
    which boot.
    """

    wall: float
    uptime: float
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRecord:
    """One action. Written before it is carried out, and removed only if its program could not be
    started.
    """

    id: str  # of the request
    kind: Repair
    causes: tuple[Cause, ...]
    time: float  # Unix time
    uptime: float  # seconds since the boot
    boot_id: str

    def measure_age(self, now: BootClock) -> float:
        """Seconds that have certainly passed since."""
        if self.boot_id == now.boot_id:
            return now.uptime - self.uptime
        return min(now.wall - self.time, now.uptime)

    def is_recent(self, now: BootClock) -> bool:
        """Whether it may be less than a day old."""
        return self.measure_age(now) < DAY_S

    def is_in_future(self, now: BootClock) -> bool:
        """Whether its time is later than now."""
        if self.time > now.wall + _AHEAD_S:
            return True
        return self.boot_id == now.boot_id and self.uptime > now.uptime


@dataclass(frozen=True, slots=True)
class ActionLog:
    """All actions that are kept, the oldest first."""

    entries: tuple[ActionRecord, ...] = ()

    def list_recent(self, kind: Repair, now: BootClock) -> tuple[ActionRecord, ...]:
        """The actions of this kind that count for rate limits."""
        return tuple(entry for entry in self.entries if entry.kind is kind and entry.is_recent(now))

    def find_future_entry(self, now: BootClock) -> ActionRecord | None:
        return next((entry for entry in self.entries if entry.is_in_future(now)), None)

    def with_entry(self, entry: ActionRecord, now: BootClock) -> ActionLog:
        """Old entries make room, but never one that still counts. Raises InvalidActionLog if it is
        full of those.
        """
        kept = [old for old in self.entries if old.is_recent(now) or now.wall - old.time < _KEEP_S]
        if len(kept) >= _MAX_ENTRIES:
            counting = [old for old in kept if old.is_recent(now)]
            kept = counting if len(counting) < _MAX_ENTRIES else kept
        if len(kept) >= _MAX_ENTRIES:
            raise InvalidActionLog(f"{len(kept)} entries of the last day: no room for another")
        return replace(self, entries=(*kept, entry))


def render_action_log(action_log: ActionLog) -> bytes:
    actions = [
        {
            "id": entry.id,
            "action": entry.kind.value,
            "causes": [list(cause) for cause in entry.causes],
            "time": entry.time,
            "uptime": entry.uptime,
            "bootId": entry.boot_id,
        }
        for entry in action_log.entries
    ]
    return json.dumps({"version": VERSION, "actions": actions}, indent=1).encode() + b"\n"


def parse_action_log(data: bytes) -> ActionLog:
    """Read what `render_action_log` writes.

    Raises InvalidActionLog for anything else: a partially valid file is rejected.
    """
    if len(data) > MAX_BYTES:
        raise InvalidActionLog(f"longer than {MAX_BYTES} bytes")
    try:
        keys = frozenset({"version", "actions"})
        document = read_object(parse_strict_json(data), "the action log", keys)
        if get_whole_number(document, "version") != VERSION:
            raise InvalidActionLog(f"version {document['version']}, not {VERSION}")
        actions = get_items(document, "actions", 0, _MAX_ENTRIES)
        return ActionLog(tuple(_read_entry(action) for action in actions))
    except InvalidRequest as error:
        raise InvalidActionLog(str(error)) from None


_ENTRY_KEYS = frozenset({"id", "action", "causes", "time", "uptime", "bootId"})


def _read_entry(value: object) -> ActionRecord:
    members = read_object(value, "an action", _ENTRY_KEYS)
    try:
        kind = Repair(members["action"])
    except ValueError:
        raise InvalidActionLog("action: none of reboot, replace") from None
    causes = get_items(members, "causes", 1, _MAX_CAUSES)
    return ActionRecord(
        id=get_text(members, "id", 64, min_length=1),
        kind=kind,
        causes=tuple(_read_cause(cause) for cause in causes),
        time=get_number(members, "time"),
        uptime=get_number(members, "uptime"),
        boot_id=get_text(members, "bootId", 64, min_length=1),
    )


def _read_cause(value: object) -> Cause:
    if not isinstance(value, list) or len(value) != 2:
        raise InvalidActionLog("causes: expected pairs of component and code")
    component, code = (
        get_text({"causes": member}, "causes", 512, min_length=1) for member in value
    )
    return component, code
