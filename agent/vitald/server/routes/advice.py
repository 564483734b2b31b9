"""
Advice to jobs over the socket: `POST /v1/advice`, for a person who plans a reset or a reboot.

Owns     checking a request, and its line in the log.
Refuses  when save is advised for other reasons, which is `SaveAdvisor`'s.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import structlog
from aiohttp import web

from vitald.checking import read_match
from vitald.core.advice import SaveAdvisor
from vitald.core.node_state import NodeState
from vitald.model.advice import ANNOUNCED_S, MAX_ANNOUNCED_S, MIN_ANNOUNCED_S, Advice
from vitald.server import serialize
from vitald.server.request import (
    read_body,
    read_reason,
    read_seconds,
    read_value,
    require_change_right,
)

if TYPE_CHECKING:
    from vitald.server import schema

log: structlog.stdlib.BoundLogger = structlog.get_logger("api")

_ADVICE = re.compile("save|none")


class AdviceRoutes:
    """The handler."""

    def __init__(self, node_state: NodeState, save_advisor: SaveAdvisor) -> None:
        self._node_state = node_state
        self._save_advisor = save_advisor

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/advice", self.advise)

    async def advise(self, request: web.Request) -> web.Response:
        """Advises jobs to save for a time, or ends that."""
        peer = require_change_right(request)
        body = await read_body(request, "advice", "reason", "seconds")
        read_advice = partial(read_match, pattern=_ADVICE, expected="save or none")
        advice, reason = read_value(body, "advice", read_advice), read_reason(body)
        seconds = read_seconds(
            body, "seconds", ANNOUNCED_S, least=MIN_ANNOUNCED_S, most=MAX_ANNOUNCED_S
        )
        if advice == "save":
            await self._save_advisor.announce_save(seconds, reason, peer.name)
            changed = True
        else:
            changed = await self._save_advisor.withdraw_save(reason, peer.name)
        log.warning("advised", advice=advice, uid=peer.uid, pid=peer.pid, reason=reason)
        answer: schema.Advised = {
            "changed": changed,
            "advice": describe_advice(self._node_state.advice),
        }
        return web.json_response(answer)


def describe_advice(advice: Advice) -> schema.ApiAdvice:
    """The advice to jobs. Unknown values, and those of no advice, are null."""
    return {
        "save": advice.save,
        "why": advice.why,
        "action": advice.action or None,
        "when": advice.when or None,
        "by": serialize.format_moment(advice.by),
        "finding": advice.finding,
    }
