"""
Runs that are owed for a day: a state of the node, with a finding for each check and level.

`diagnostic/overdue` only reports it, `diagnostic/held` makes the node unfit for work until the run
has ended: which of the two is a setting.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from vitald.collectors.event_factory import EventFactory
from vitald.diagnostics.dispatcher import RunDispatcher
from vitald.diagnostics.events import name_component
from vitald.diagnostics.node import NodeView
from vitald.diagnostics.owed import OwedRuns, is_overdue
from vitald.model import Component, Event, Fields
from vitald.model.diagnostic import ActiveRun

OVERDUE, HELD = "diagnostic/overdue", "diagnostic/held"


@dataclass(frozen=True, slots=True)
class Observation:
    """What a batch reports: what is overdue for the first time, what still is, and what is not."""

    events: tuple[Event, ...] = ()
    holding: tuple[Event, ...] = ()
    calm: frozenset[tuple[Component, str]] = frozenset()


class OverdueRuns:
    """Compares the runs without a verdict with the open findings."""

    def __init__(
        self, owed: OwedRuns, dispatcher: RunDispatcher, node: NodeView, facts: EventFactory
    ) -> None:
        self._owed = owed
        self._dispatcher = dispatcher
        self._node = node
        self._facts = facts
        self._reported: set[tuple[Component, str]] = set()

    def observe(self) -> Observation:
        """Runs of some GPUs and those beside other work test less than a check does: they are left
        out.
        """
        now, code = time.time(), HELD if self._owed.holds_node else OVERDUE
        overdue = {
            (name_component(run.request), code): run
            for run in self._dispatcher.requested
            if is_overdue(run.requested_at, now) and not (run.request.gpus or run.request.busy)
        }
        standing = {
            (finding.component, finding.code)
            for finding in self._node.list_findings()
            if finding.code in (OVERDUE, HELD) and not finding.is_simulated
        }
        new = overdue.keys() - standing - self._reported
        self._reported = {*overdue}
        observed = {key: self._make_event(*key, run) for key, run in overdue.items()}
        return Observation(
            events=tuple(event for key, event in observed.items() if key in new),
            holding=tuple(event for key, event in observed.items() if key not in new),
            calm=frozenset(standing - overdue.keys()),
        )

    def _make_event(self, where: Component, code: str, run: ActiveRun) -> Event:
        since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run.requested_at))
        waits = f": waits for {run.waits_for}" if run.waits_for else ""
        why = run.request.reason or run.request.by
        text = f"{run.request.label} is owed since {since} ({why}){waits}"
        fields: Fields = {"level": run.request.level, "check": run.request.check}
        return self._facts.make_event(code, where, fields, text)
