"""
Drills: which records from user space are announced faults, and for how long.

`vitald drill` announces the exact text to the daemon before writing it. One announcement
counts for one record, within `WINDOW_S`.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace

WINDOW_S = 10.0  # from the announcement to the record
_MAX_DRILLS = 64
_DRILL_LINE = re.compile(
    r"NVRM: Xid \([^)]{1,64}\): \d{1,4}, pid=\d{1,10}, name=vitald-drill, |.{1,80}SXid \(.{1,80}"
    r" vitald drill \d{1,10}\s*\Z"
)


def is_drill_line(text: str) -> bool:
    """Whether `vitald drill` wrote the line."""
    return _DRILL_LINE.match(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillRecord:
    """An announced drill; times in seconds since the epoch. `event_identity`: the event that its
    record became, None until it is read.
    """

    id: str
    text: str
    announced_at: float
    simulated_until: float
    event_identity: str | None = None


class DrillRegistry:
    """The announced drills; beyond `_MAX_DRILLS` the oldest are dropped."""

    def __init__(self) -> None:
        self._by_id: dict[str, DrillRecord] = {}

    def announce_drill(self, text: str, now: float, hold_s: float) -> DrillRecord:
        """`now` in seconds since the epoch."""
        drill = DrillRecord(
            id=secrets.token_hex(6), text=text, announced_at=now, simulated_until=now + hold_s
        )
        self._by_id[drill.id] = drill
        while len(self._by_id) > _MAX_DRILLS:
            del self._by_id[next(iter(self._by_id))]
        return drill

    def get_drill(self, id_: str) -> DrillRecord | None:
        return self._by_id.get(id_)

    def claim_drill(self, text: str, identity: str, now: float) -> DrillRecord | None:
        """The drill announced with exactly this text. It counts for one record, which may be read
        again.
        """
        for drill in self._by_id.values():
            in_time = 0 <= now - drill.announced_at <= WINDOW_S
            is_same = drill.event_identity == identity
            if drill.text == text and (is_same or (drill.event_identity is None and in_time)):
                claimed = replace(drill, event_identity=identity)
                self._by_id[drill.id] = claimed
                return claimed
        return None
