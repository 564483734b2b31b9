"""Route of transitions: how findings changed, in the ledger's order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from vitald.ledger.queries import FindingChange, read_changes
from vitald.model import FindingState
from vitald.model.reasons import find_reason
from vitald.server import endpoints, serialize
from vitald.server.request import make_route
from vitald.server.routes.context import RouteContext

if TYPE_CHECKING:
    from vitald.server import schema


class TransitionRoutes:
    """Handler of transitions."""

    def __init__(self, context: RouteContext) -> None:
        self._context = context

    def list_routes(self) -> list[web.RouteDef]:
        return [make_route(endpoints.TRANSITIONS, self.list_transitions)]

    async def list_transitions(self, request: web.Request) -> schema.Transitions:
        query = request.query
        wanted = self._context.read_past_query(query)
        path = self._context.pipeline.ledger.path
        page = await self._context.read_ledger(lambda: read_changes(path, wanted))
        changes = page.changes
        if not changes:
            await self._context.check_kind(wanted.kind, wanted.code)
        damaged = serialize.count_damaged(changes)
        more = len(changes) + damaged == wanted.limit and not wanted.newest
        return {
            "transitions": [self._format_change(change) for change in changes],
            "damaged": damaged,
            "next": changes.last if more else None,
            "newestId": page.newest,
        }

    def _format_change(self, change: FindingChange) -> schema.ApiTransition:
        finding, transition, catalog = change.finding, change.transition, self._context.catalog
        names = self._context.node_state.devices.find_names_of(finding)
        return {
            "id": change.id,
            "time": serialize.format_moment(transition.time),
            "change": _name_change(change),
            "finding": finding.id,
            "component": finding.component.name,
            "device": serialize.format_device(names) if names is not None else None,
            "code": finding.code,
            "reason": find_reason(finding.code, catalog.rules, catalog.site_codes),
            "title": finding.title,
            "state": transition.state.value,
            "action": transition.action.value,
            "cause": transition.cause,
            "simulated": finding.is_simulated,
        }


def _name_change(change: FindingChange) -> schema.ChangeKind:
    state, action = change.transition.state, change.transition.action
    if state is FindingState.CLEARED:
        return "cleared"
    if change.former is None:
        return "opened"
    former_state, former_action = change.former
    if state is FindingState.IN_REMEDY and former_state is not FindingState.IN_REMEDY:
        return "in_remedy"
    return "escalated" if action.rank > former_action.rank else "other"
