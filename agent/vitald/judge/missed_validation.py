"""
The validation that ended without a pass, as the events show it: until a diagnostic passes, or
validation is required again.
"""

from __future__ import annotations

from vitald.judge.validation import read_trigger
from vitald.model import NODE, Event
from vitald.model.codes import DIAGNOSTIC_PASSED, VALIDATION_PENDING
from vitald.model.validation import MissedValidation, ValidationEnd

VALIDATION_CODES = (VALIDATION_PENDING, DIAGNOSTIC_PASSED)
_MISSED = (ValidationEnd.IMPOSSIBLE.value, ValidationEnd.NO_VERDICT.value)


def follow_validation(missed: MissedValidation | None, event: Event) -> MissedValidation | None:
    """What is missed after an event of `VALIDATION_CODES`; any other changes nothing."""
    if event.component != NODE or event.is_simulated:
        return missed
    if event.code == VALIDATION_PENDING:
        return _read_end(event)
    if missed is not None and event.code == DIAGNOSTIC_PASSED and _proves(event, missed):
        return None
    return missed


def _proves(event: Event, missed: MissedValidation) -> bool:
    level, began = event.fields.get("level"), event.fields.get("began")
    is_level = isinstance(level, int) and level >= missed.level
    return is_level and isinstance(began, (int, float)) and began >= missed.since


def _read_end(event: Event) -> MissedValidation | None:
    """The validation that the event ends without a pass; None if it does not."""
    fields, after = event.fields, read_trigger(event.fields)
    over, level, since = fields.get("over"), fields.get("level"), fields.get("since")
    if over not in _MISSED or after is None or not isinstance(level, int):
        return None
    return MissedValidation(
        level=level,
        after=after,
        because=str(fields.get("because", "")),
        reason=str(fields.get("reason", "")),
        since=float(since) if isinstance(since, (int, float)) else event.time,
        ended=event.time,
        is_impossible=over == ValidationEnd.IMPOSSIBLE.value,
        obstacle=str(fields.get("obstacle", "")),
        returned=fields.get("returned") is True,
    )
