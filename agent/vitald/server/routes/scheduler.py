"""
What schedulers do with the node, over the socket: `POST /v1/scheduler`, and the serialisation of
the times of a response.

Owns     what may be reported, and the event of each change. A repeat changes nothing and is not
         stored.
Refuses  judging: no finding follows from a report.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from aiohttp import web

from vitald.checking import read_match
from vitald.collectors.event_factory import EventFactory
from vitald.core.change_interval import FIRST_S, ChangeInterval
from vitald.core.node_state import NodeState
from vitald.core.responses import RESPONSE_CODES, Responses
from vitald.ledger import EventQuery, read_events, read_findings
from vitald.model import NODE, Batch, Event, Finding
from vitald.model.codes import DRAINED, IN_SERVICE, VALIDATION_PENDING
from vitald.model.response import Response, ServiceState, compute_steps
from vitald.server import serialize
from vitald.server.request import (
    RequestRefused,
    get_client,
    read_body,
    read_moment,
    read_value,
    require_change_right,
    require_publisher_right,
)

if TYPE_CHECKING:
    from vitald.server import schema

SOURCE = "scheduler_state"
SLURM, KUBERNETES = "slurm", "kubernetes"
_SCHEDULERS = re.compile(f"{SLURM}|{KUBERNETES}")
_STATES = re.compile("|".join(state.value for state in ServiceState))
_CODES = {ServiceState.DRAINED: DRAINED, ServiceState.IN_SERVICE: IN_SERVICE}
_TEXTS = {
    ServiceState.DRAINED: "gives the node no more work",
    ServiceState.IN_SERVICE: "has the node in service again",
}
_MAX_AGE_S = 60.0  # of a report: what happened before that is dated by its arrival
_MAX_EVENTS = 256  # of each code, read at a start


class SchedulerRoutes:
    """The handler. `store` returns once a batch is in the ledger and published."""

    def __init__(
        self,
        node_state: NodeState,
        store: Callable[[Batch], Awaitable[None]],
        *,
        event_every_s: float = FIRST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node_state = node_state
        self._store = store
        self._clock = clock
        # Of the publisher's changes, by state
        self._intervals = {state: ChangeInterval(event_every_s) for state in ServiceState}
        self._facts = EventFactory(SOURCE, node_state.boot_id)

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/scheduler", self.record_state)

    async def record_state(self, request: web.Request) -> web.Response:
        """Records that a scheduler drained the node, or has it in service."""
        client = get_client(request)
        is_publisher, may_change = client.is_publisher, client.peer.may_change
        (require_publisher_right if is_publisher else require_change_right)(request)
        body = await read_body(request, "scheduler", "state", "since")
        scheduler = read_value(
            body,
            "scheduler",
            partial(read_match, pattern=_SCHEDULERS, expected=f"{SLURM} or {KUBERNETES}"),
        )
        if is_publisher and scheduler != KUBERNETES and not may_change:
            raise RequestRefused(
                403,
                "the publisher's user may report for kubernetes only",
                "only root and the daemon's own user may report for slurm",
            )
        expected = " or ".join(state.value for state in ServiceState)
        state = ServiceState(
            read_value(body, "state", partial(read_match, pattern=_STATES, expected=expected))
        )
        since = read_value(body, "since", read_moment)
        is_change = not self._node_state.responses.is_reported(scheduler, state)
        if is_change:
            if not may_change:
                self._hold_next(state)
            await self._store(Batch(SOURCE, (self._make_event(scheduler, state, since),)))
        answer: schema.SchedulerReported = {"ok": True, "changed": is_change}
        return web.json_response(answer)

    def _hold_next(self, state: ServiceState) -> None:
        """Let no other change to this state be stored for a while. Raises RequestRefused where
        this one comes within that time: the publisher repeats it.
        """
        now, interval = self._clock(), self._intervals[state]
        if now < interval.due:
            raise RequestRefused(
                429,
                f"{state.value}: too soon after the last change to be stored",
                f"repeat it in {math.ceil(interval.due - now)} s, with the same `since`",
            )
        interval.note_change(now)

    def _make_event(self, scheduler: str, state: ServiceState, since: float | None) -> Event:
        now = time.time()
        at = now if since is None else min(now, max(since, now - _MAX_AGE_S))
        text = f"{scheduler} {_TEXTS[state]}"
        return self._facts.make_event(
            _CODES[state], NODE, {"scheduler": scheduler}, text, moment=at
        )


def read_response_facts(path: Path) -> tuple[list[Event], Finding | None]:
    """What `Responses` are restored from: events in the ledger's order, and the last validation
    that ended. Raises LedgerError.
    """
    stored = [
        row
        for code in RESPONSE_CODES
        for row in read_events(path, EventQuery(code=code, newest=True, limit=_MAX_EVENTS))
    ]
    validations = read_findings(path, 1, NODE.name, VALIDATION_PENDING)
    events = [row.event for row in sorted(stored, key=lambda row: row.id)]
    return events, validations[0] if validations else None


def read_responses(path: Path) -> Responses:
    """The last responses, from the ledger alone. Raises LedgerError."""
    responses = Responses()
    responses.restore(*read_response_facts(path))
    return responses


def describe_response_to(finding: Finding, responses: Responses) -> schema.ApiResponse | None:
    """What followed the finding's incident, if that is the last one that made the node unfit."""
    response = responses.get_latest(simulated=finding.is_simulated)
    is_of_incident = response is not None and response.incident == finding.incident > 0
    return describe_response(response) if response is not None and is_of_incident else None


def describe_response(response: Response) -> schema.ApiResponse:
    """For /v1/status and the explanation of a finding."""
    steps = {step.value: round(seconds, 3) for step, seconds in compute_steps(response).items()}
    return {
        "finding": response.finding,
        "incident": response.incident,
        "component": response.component.name,
        "code": response.code,
        "simulated": response.simulated,
        "first": serialize.format_moment(response.first),
        "over": response.is_over,
        "steps": cast("schema.ResponseSteps", steps),
    }
