"""
How long after a stored change the next one may be stored, for reports of a process that is not
trusted to write the ledger at will.

The interval doubles with each change, up to ten minutes, and is the first again after an hour
without one: what changes all the time is eight changes in the first half hour and six an hour then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from vitald.backoff import Backoff

FIRST_S = 10.0
LONGEST_S = 600.0
_FORGOTTEN_AFTER_S = 3600.0


@dataclass(slots=True)
class ChangeInterval:
    """The changes of one thing. Times are monotonic."""

    first_s: float = FIRST_S
    _changes: int = 0
    _last: float = field(default=-math.inf)

    @property
    def earliest(self) -> float:
        """When a change that is new may be stored, such as a fault: by the first interval."""
        return self._last + self.first_s

    @property
    def due(self) -> float:
        """When any other change may be stored."""
        if not self._changes:
            return -math.inf
        longest_s = max(self.first_s, LONGEST_S)
        return self._last + Backoff(self.first_s, longest_s).delay_s(self._changes - 1)

    def note_change(self, now: float) -> None:
        """Call it for each change that is stored."""
        is_forgotten = now - self._last >= _FORGOTTEN_AFTER_S
        self._changes = 1 if is_forgotten else self._changes + 1
        self._last = now
