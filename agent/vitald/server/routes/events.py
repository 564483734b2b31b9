"""
Routes of events: those of the past, and the stream of changes; and of transitions: how findings
changed, in the ledger's order.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import structlog
from aiohttp import web

from vitald.core.node_state import StreamEnd, Subscription
from vitald.http_server.connection_limit import ConnectionLimit
from vitald.ledger.queries import (
    FindingChange,
    PastQuery,
    RowList,
    StoredEvent,
    read_changes,
    read_events,
)
from vitald.model.event import Event
from vitald.model.finding import FindingState, Incident, Transition
from vitald.model.reasons import find_reason
from vitald.server import endpoints, serialize
from vitald.server.request import PUBLISHES, RequestRefused, make_route
from vitald.server.routes.context import RouteContext

if TYPE_CHECKING:
    from vitald.server import schema


log: structlog.stdlib.BoundLogger = structlog.get_logger("api")

_WATCHERS, _WATCHERS_RESERVED = 32, 8
_HEARTBEAT_S, _WRITE_S = 15.0, 5.0


class EventRoutes:
    """Handlers of events. A stream is exempt from the time
    limits of `connection_limit`."""

    def __init__(self, context: RouteContext, connection_limit: ConnectionLimit) -> None:
        self._context = context
        self._connection_limit = connection_limit

    def list_routes(self) -> list[web.RouteDef]:
        return [
            make_route(endpoints.EVENTS, self.list_events),
            make_route(endpoints.WATCH, self.watch_changes),
        ]

    async def list_events(self, request: web.Request) -> schema.Events:
        query = request.query
        wanted = self._context.read_past_query(query)
        try:
            stored = await self._context.read_ledger(
                lambda: read_events(self._context.pipeline.ledger.path, wanted)
            )
        except RequestRefused:
            if self._context.node_state.ledger.ok:
                raise  # only slow: a partial answer would look complete
            stored = self._select_recent(wanted)
        if not stored:
            await self._context.check_kind(wanted.kind, wanted.code)
        damaged = serialize.count_damaged(stored)
        more = len(stored) + damaged == wanted.limit and not wanted.newest
        return {
            "events": [serialize.format_event(row) for row in stored],
            "damaged": damaged,
            "next": stored.last if more else None,
        }

    def _select_recent(self, wanted: PastQuery) -> RowList[StoredEvent]:
        """The most recent events, numbered as they came, when the ledger cannot be read."""
        kept = [
            row
            for row in self._context.node_state.recent
            if row.id > wanted.after
            and wanted.code in (None, row.event.code)
            and wanted.kind in (None, row.event.kind)
            and wanted.component in (None, row.event.component.name)
            and (wanted.since is None or row.event.time >= wanted.since)
        ]
        listed = RowList(kept[-wanted.limit :] if wanted.newest else kept[: wanted.limit])
        listed.last = listed[-1].id if listed else 0
        return listed

    async def watch_changes(self, request: web.Request) -> web.StreamResponse:
        """One JSON object a line: the verdict first, then every event, transition and changed
        verdict, and a heartbeat.
        """
        node_state = self._context.node_state
        is_reserved = request["peer"].may_change or request[PUBLISHES]
        reserved = 0 if is_reserved else _WATCHERS_RESERVED
        if node_state.watchers >= _WATCHERS - reserved:
            raise RequestRefused(
                503,
                "too many watchers",
                f"{_WATCHERS} at once, {_WATCHERS_RESERVED} of them kept for root; try again later",
            )
        self._connection_limit.restart_timer(request.transport, streaming=True)
        response = web.StreamResponse(
            headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"}
        )
        subscription = node_state.add_subscription()
        try:
            await response.prepare(request)
            await self._write_changes(response, subscription)
        except (ConnectionError, asyncio.TimeoutError):
            log.debug("watcher_gone")
            if request.transport is not None:
                request.transport.abort()
        finally:
            node_state.remove_subscription(subscription)
        return response

    async def _write_changes(
        self, response: web.StreamResponse, subscription: Subscription
    ) -> None:
        """Until the subscription lags behind, or the daemon is stopped."""
        shown = await self._write_verdict(response, None)
        while not subscription.lagged:
            try:
                change = await asyncio.wait_for(subscription.queue.get(), _HEARTBEAT_S)
            except asyncio.TimeoutError:
                await _write_line(
                    response, {"type": "heartbeat", "time": serialize.format_moment(time.time())}
                )
                shown = await self._write_verdict(response, shown)
                continue
            if change is StreamEnd.STOPPING:
                await _write_line(response, {"type": "stopping"})
                return
            if change is not None:
                await _write_line(response, self._describe_change(change))
            if change is None or subscription.queue.empty():
                shown = await self._write_verdict(response, shown)
        await _write_line(
            response,
            {"type": "lagged", "hint": "read /v1/events for what was missed, then watch again"},
        )

    def _describe_change(self, change: Event | Transition | Incident) -> schema.WatchLine:
        node_state, context = self._context.node_state, self._context
        if isinstance(change, Event):
            return {"type": "event", "event": serialize.format_event(StoredEvent(0, change))}
        if isinstance(change, Incident):
            own = [finding for finding in node_state.findings if finding.incident == change.id]
            return {"type": "incident", "incident": context.format_incident(change, own)}
        names = node_state.devices.find_names_of(change.finding)
        return serialize.format_transition(change, context.catalog, names)

    async def _write_verdict(
        self, response: web.StreamResponse, shown: schema.ApiVerdict | None
    ) -> schema.ApiVerdict:
        """Write the verdict if it differs from the one shown last. Returns the present one."""
        verdict = serialize.format_verdict(self._context.node_state.verdict())
        if verdict != shown:
            await _write_line(response, {"type": "verdict", **verdict})
        return verdict


async def _write_line(response: web.StreamResponse, value: schema.WatchLine) -> None:
    await asyncio.wait_for(response.write(json.dumps(value).encode() + b"\n"), _WRITE_S)


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
