"""Requests a diagnostic on suspicion, and queues its run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vitald.catalog.suspicion import SuspicionRule
from vitald.collectors.event_factory import EventFactory
from vitald.core.suspicion import Request
from vitald.diagnostics import suspicion
from vitald.diagnostics.history import RunHistory
from vitald.diagnostics.node import NodeView
from vitald.diagnostics.queue import RunQueue
from vitald.diagnostics.schedule import SCHEDULE
from vitald.diagnostics.suspicion import SUSPICION
from vitald.model import NODE, Event, Fields
from vitald.model.codes import DIAGNOSTIC_REQUESTED
from vitald.model.diagnostic import RunRequest


class SuspicionPlanner:
    """`every_s`: at most one request in this time, 0: none. `most`: the highest level that runs by
    itself. `find_obstacle`: why no diagnostic can; "" if one can.
    """

    def __init__(
        self,
        every_s: float,
        most: int,
        find_obstacle: Callable[[], str],
        node: NodeView,
        history: RunHistory,
        queue: RunQueue,
        facts: EventFactory,
    ) -> None:
        self.rules: Mapping[str, SuspicionRule] = {}  # of the catalogue
        self._every_s = every_s
        self._most = most
        self._find_obstacle = find_obstacle
        self._node = node
        self._history = history
        self._queue = queue
        self._facts = facts

    def find_run(self, now: float) -> RunRequest | None:
        """The run that is to be queued or active now. One that nothing requires any more is removed
        from the queue, and a scheduled one that waits becomes this one.
        """
        request = self._find_open(now)
        ask = None
        if request is not None and not self._find_obstacle():
            ask = suspicion.find_run(request, self._history.list_runs(), now)
        for queued in [*self._queue.queued]:
            is_same = ask is not None and (queued.ask.check, queued.ask.level) == (
                ask.check,
                ask.level,
            )
            if queued.ask.by == SUSPICION and not is_same:
                self._queue.dequeue(queued, "the suspicion is over")
            elif ask is not None and is_same and queued.ask.by == SCHEDULE:
                self._queue.take_over(queued, ask)
        return ask

    def make_events(self, now: float) -> list[Event]:
        """The request, where one is due."""
        last = self._node.suspicion.last_request
        is_allowed = suspicion.may_request(
            last, now, self._every_s, self._most, self._find_obstacle()
        )
        if not is_allowed or self._find_open(now) is not None:
            return []
        cause = self._node.suspicion.find_cause(now, self.rules)
        if cause is None:
            return []
        level = min(cause.level, self._most)
        fields: Fields = {
            "code": cause.code,
            "level": level,
            "because": cause.because,
            "uids": list(cause.users),
        }
        raw = suspicion.describe_request(cause, level)
        return [self._facts.make_event(DIAGNOSTIC_REQUESTED, NODE, fields, raw, moment=now)]

    def _find_open(self, now: float) -> Request | None:
        """The request that waits for its run."""
        request = self._node.suspicion.last_request
        if request is None or self._every_s <= 0 or request.level > self._most:
            return None
        return request if suspicion.is_open(request, self._history.list_runs(), now) else None
