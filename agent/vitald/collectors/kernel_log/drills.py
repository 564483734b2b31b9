"""
Drills that announced themselves: which record to take, although it comes from user space, and for
how long.

`vitald inject` tells the daemon the exact text before writing it. One announcement takes one
record, within seconds.
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
    """Whether `vitald inject` wrote it."""
    return _DRILL_LINE.match(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillRecord:
    """A drill. `event_identity` is the identity of the event that its record became."""

    id: str
    text: str
    announced_at: float
    simulated_until: float
    event_identity: str | None = None


class DrillRegistry:
    """The drills under way. Bounded: the oldest are forgotten."""

    def __init__(self) -> None:
        self._by_id: dict[str, DrillRecord] = {}

    def announce_drill(self, text: str, now: float, hold_s: float) -> DrillRecord:
        made = DrillRecord(
            id=secrets.token_hex(6), text=text, announced_at=now, simulated_until=now + hold_s
        )
        self._by_id[made.id] = made
        while len(self._by_id) > _MAX_DRILLS:
            del self._by_id[next(iter(self._by_id))]
        return made

    def get_drill(self, id_: str) -> DrillRecord | None:
        return self._by_id.get(id_)

    def claim_drill(self, text: str, identity: str, now: float) -> DrillRecord | None:
        """The announcement of exactly this text, for one record; that record may be read again."""
        for made in self._by_id.values():
            in_time = 0 <= now - made.announced_at <= WINDOW_S
            if made.text == text and (
                made.event_identity == identity or (made.event_identity is None and in_time)
            ):
                self._by_id[made.id] = seen = replace(made, event_identity=identity)
                return seen
        return None
