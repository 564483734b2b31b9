"""
What a scheduler did with the node, over the socket: `POST /v1/scheduler`.

Owns     what may be reported.
Refuses  keeping it: that is the node's state. A report is no change of the node, so neither the
         ledger nor the log gets it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aiohttp import web

from vitald.core.node_state import NodeState
from vitald.server import endpoints
from vitald.server.request import RequestRefused, make_route, read_body, require_change_right

if TYPE_CHECKING:
    from vitald.server import schema


class SchedulerRoutes:
    """The handler."""

    def __init__(self, node_state: NodeState) -> None:
        self._node_state = node_state

    def list_routes(self) -> list[web.RouteDef]:
        return [make_route(endpoints.REPORT_SCHEDULER, self.note_state)]

    async def note_state(self, request: web.Request) -> schema.SchedulerReported:
        """Notes when the node was drained, and when it was in service again."""
        require_change_right(request)
        state = (await read_body(request, "state")).get("state")
        steps = self._node_state.incident_steps
        if state == "drained":
            steps.note_drained(time.time())
        elif state == "in_service":
            steps.note_in_service(time.time())
        else:
            raise RequestRefused(
                400, f"state: must be one of drained, in_service, not {str(state)[:80]!r}"
            )
        return {"ok": True}
