"""
Opens a pending validation in the transaction of what requires it: between a repair and its
validation no answer may say that the node is fit.

Owns     when validation is required: by the settings, and where a diagnostic can run.
Refuses  running diagnostics and the end of a validation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vitald.core.daemon_events import DaemonEvents
from vitald.judge.engine import Judge
from vitald.judge.validation import Cause, find_cause, make_pending_fields, may_name_another
from vitald.model import NODE, Device, Event, Transition
from vitald.model.codes import VALIDATION_PENDING


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPolicy:
    """`level`: that must pass, 0 for none; `after`: values of Trigger. `find_obstacle` says why no
    diagnostic can run here; "" if one can.
    """

    level: int = 0
    after: Sequence[str] = ()
    find_obstacle: Callable[[], str] = lambda: ""

    @property
    def is_required(self) -> bool:
        return self.level > 0 and not self.find_obstacle()


class ValidationGate:
    """Makes the event that requires a validation."""

    def __init__(self, daemon_events: DaemonEvents) -> None:
        self.policy = ValidationPolicy()
        # What happened before the first start of vitald on this node requires nothing.
        self.is_open = False
        self._daemon_events = daemon_events

    def note_device(self, event: Event, judge: Judge) -> Device | None:
        """The device in the slot of an event that may name another one; call it before the event
        is judged.
        """
        return judge.get_device(event.component) if may_name_another(event) else None

    def make_events(
        self, event: Event, changes: Sequence[Transition], former: Device | None, judge: Judge
    ) -> tuple[Event, ...]:
        """The event that requires a validation because of this one; none if nothing does."""
        policy = self.policy
        if not self.is_open or policy.level == 0:
            return ()
        cause = find_cause(event, changes, former, judge.catalog, policy.level)
        if cause is None or cause.trigger.value not in policy.after or not policy.is_required:
            return ()
        return (self._make_event(cause, judge),)

    def _make_event(self, cause: Cause, judge: Judge) -> Event:
        pending = judge.find_open(NODE, VALIDATION_PENDING)
        fields = make_pending_fields(cause, pending, self.policy.level)
        raw = f"level {self.policy.level} must pass: {fields['because']}"
        event = self._daemon_events.make_event(VALIDATION_PENDING, fields, NODE, raw)
        return replace(event, kind=VALIDATION_PENDING.partition("/")[0])
