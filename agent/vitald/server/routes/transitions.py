"""Route of transitions: how findings changed, in the ledger's order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aiohttp import web

from vitald.ledger import FindingChange, read_changes
from vitald.model import Action, Device, Finding, FindingState
from vitald.reasons import find_reason
from vitald.server import serialize
from vitald.server.request import RequestRefused, read_flag_parameter, read_limit, read_query
from vitald.server.routes.context import RouteContext

if TYPE_CHECKING:
    from vitald.server import schema

_MAX_RAW = 1024  # characters, hence a page stays within what a reader takes


class TransitionRoutes:
    """Handler of transitions."""

    def __init__(self, context: RouteContext) -> None:
        self._context = context

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/v1/transitions", self.list_transitions)

    async def list_transitions(self, request: web.Request) -> web.Response:
        query = read_query(request, "since", "limit", "newest")
        after, limit = _read_id(query.get("since", "0")), read_limit(query)
        newest = read_flag_parameter(query, "newest")
        path = self._context.pipeline.ledger.path
        page = await self._context.read_ledger(
            lambda: read_changes(path, after, limit, newest=newest)
        )
        changes = page.changes
        damaged = serialize.count_damaged(changes)
        more = len(changes) + damaged == limit and not newest
        answer: schema.Transitions = {
            "transitions": [self._format_change(change) for change in changes],
            "damaged": damaged,
            "next": changes.last if more else None,
            "newestId": page.newest,
        }
        return web.json_response(answer)

    def _format_change(self, change: FindingChange) -> schema.ApiTransition:
        finding, transition, catalog = change.finding, change.transition, self._context.catalog
        device = self._context.node_state.get_device(finding.component)
        uuid, serial = _identify_device(finding, device)
        return {
            "id": change.id,
            "time": serialize.format_moment(transition.time),
            "change": _name_change(change),
            "finding": finding.id,
            "component": finding.component.name,
            "kind": finding.kind,
            "code": finding.code,
            "reason": find_reason(finding.code, catalog.rules, catalog.site_codes),
            "title": finding.title,
            "since": serialize.format_moment(finding.since),
            "state": transition.state,
            "action": transition.action,
            "todo": Action(transition.action).phrase,
            "when": finding.when.value,
            "raw": finding.raw[:_MAX_RAW],
            "source": finding.source,
            "uuid": uuid,
            "serial": serial,
            "confirmed": finding.is_confirmed,
            "cause": transition.cause,
            "simulated": finding.is_simulated,
            "onTrial": finding.on_trial,
        }


def _identify_device(finding: Finding, device: Device) -> tuple[str, str]:
    """UUID and serial number of the device that the finding is about. `device`: what is in its slot
    now; where it was put there later, the former one is not known any more.
    """
    return ("", "") if finding.since < device.placed_at else (device.uuid, device.serial)


def _name_change(change: FindingChange) -> schema.ChangeKind:
    state, action = FindingState(change.transition.state), Action(change.transition.action)
    if state is FindingState.CLEARED:
        return "cleared"
    if change.former is None:
        return "opened"
    former_state, former_action = change.former
    if state is FindingState.IN_REMEDY and former_state is not FindingState.IN_REMEDY:
        return "in_remedy"
    return "escalated" if action.rank > former_action.rank else "other"


def _read_id(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", text):
        raise RequestRefused(400, f"since: {text[:80]!r} is no id of a transition")
    return int(text)
