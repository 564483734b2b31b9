"""What the ledger has of the events that raise a suspicion."""

from __future__ import annotations

from pathlib import Path

from vitald.core.suspicion import SUSPICION_CODES
from vitald.ledger import EventQuery, read_events
from vitald.model import Event

_MAX_EVENTS = 4096  # of each code


def read_suspicion_events(path: Path) -> list[Event]:
    """The last events of each code, for `Suspicion.restore`, in the ledger's order. Raises
    LedgerError.
    """
    stored = [
        row
        for code in SUSPICION_CODES
        for row in read_events(path, EventQuery(code=code, newest=True, limit=_MAX_EVENTS))
    ]
    return [row.event for row in sorted(stored, key=lambda row: row.id)]
