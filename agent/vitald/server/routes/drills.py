"""Routes of drills: faults that an operator announces, and which are marked as such."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import structlog
from aiohttp import web

from vitald.checking import read_line
from vitald.collectors.kernel_log.drills import WINDOW_S, DrillRecord
from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.core.node_state import NodeState
from vitald.server import endpoints, serialize
from vitald.server.request import (
    RequestRefused,
    make_route,
    read_body,
    read_seconds,
    read_value,
    require_change_right,
)

if TYPE_CHECKING:
    from vitald.server import schema

log: structlog.stdlib.BoundLogger = structlog.get_logger("api")

_HOLD_S = 600.0


class DrillRoutes:
    """Handlers of drills. `drill_path`: the file that the line is to be written to."""

    def __init__(self, node_state: NodeState, interpreter: Interpreter, drill_path: Path) -> None:
        self._node_state = node_state
        self._interpreter = interpreter
        self._drill_path = drill_path

    def list_routes(self) -> list[web.RouteDef]:
        return [
            make_route(endpoints.ANNOUNCE, self.announce_drill),
            make_route(endpoints.DRILL, self.get_drill),
        ]

    async def announce_drill(self, request: web.Request) -> schema.AnnouncedDrill:
        peer = require_change_right(request)
        body = await read_body(request, "line", "holdSeconds")
        expected = "one printable line of ASCII, at most 900 characters"
        read = partial(read_line, least=1, most=900, expected=expected, ascii_only=True)
        line = read_value(body, "line", read)
        hold = read_seconds(body, "holdSeconds", _HOLD_S)
        if self._interpreter.parse_record(line.encode()) is None:
            raise RequestRefused(
                400,
                "line: no rule recognises it, so a drill with it would show nothing",
                "try it with: vitald scan -",
            )
        made = self._interpreter.drills.announce_drill(line, time.time(), hold)
        log.warning("drill_announced", id=made.id, line=line, uid=peer.uid, pid=peer.pid)
        return {
            **self._describe_drill(made),
            "writeTo": str(self._drill_path),
            "windowSeconds": WINDOW_S,
        }

    async def get_drill(self, request: web.Request) -> schema.Drill:
        made = self._interpreter.drills.get_drill(request.match_info["id"])
        if made is None:
            raise RequestRefused(404, "no such drill")
        return self._describe_drill(made)

    def _describe_drill(self, made: DrillRecord) -> schema.Drill:
        seen = next(
            (
                each
                for each in reversed(self._node_state.recent)
                if each.event.identity == made.event_identity
            ),
            None,
        )
        finding = None
        state: Literal["announced", "seen", "expired"] = "expired"
        if seen is not None:
            state = "seen"
            key = (seen.event.component, seen.event.code, True)
            finding = next(
                (found.id for found in self._node_state.findings if found.key == key), None
            )
        elif time.time() - made.announced_at <= WINDOW_S:
            state = "announced"
        return {
            "id": made.id,
            "line": made.text,
            "state": state,
            "finding": finding,
            "simulatedUntil": serialize.format_moment(made.simulated_until),
        }
