"""What the ledger has of the validation that ended without a pass."""

from __future__ import annotations

from pathlib import Path

from vitald.judge.missed_validation import follow_validation
from vitald.ledger import EventQuery, read_events
from vitald.model import NODE
from vitald.model.codes import DIAGNOSTIC_PASSED, VALIDATION_PENDING
from vitald.model.validation import MissedValidation

_MAX_PASSES = 1000


def read_missed_validation(path: Path) -> MissedValidation | None:
    """The validation that is missed by the ledger's events. Raises LedgerError."""
    query = EventQuery(code=VALIDATION_PENDING, component=NODE.name, newest=True, limit=1)
    missed = None
    for last in read_events(path, query):
        missed = follow_validation(None, last.event)
        if missed is None:
            return None
        query = EventQuery(
            after=last.id, code=DIAGNOSTIC_PASSED, component=NODE.name, limit=_MAX_PASSES
        )
        for each in read_events(path, query):
            missed = follow_validation(missed, each.event)
    return missed
