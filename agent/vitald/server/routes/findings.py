"""Routes of findings and incidents, and what operators do with a finding."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from aiohttp import web

from vitald.checking import read_flag
from vitald.http_server.peer import Peer
from vitald.judge.verdict import compute_verdict, sort_by_strength
from vitald.ledger.queries import FindingHistory, read_finding_history, read_findings
from vitald.ledger.schema import AuditRecord
from vitald.model.component import NODE
from vitald.model.finding import Finding, Verdict
from vitald.server import endpoints, serialize
from vitald.server.request import (
    RequestRefused,
    make_route,
    read_body,
    read_limit,
    read_reason,
    read_seconds,
    read_value,
    require_change_right,
)
from vitald.server.routes.context import RouteContext

if TYPE_CHECKING:
    from vitald.server import schema


_MAX_ACCEPTED_S = 90 * 86400.0
_MAX_EVENTS = 4  # of a finding, from memory


class FindingRoutes:
    """Handlers of findings and incidents."""

    def __init__(self, context: RouteContext) -> None:
        self._context = context

    def list_routes(self) -> list[web.RouteDef]:
        return [
            make_route(endpoints.FINDINGS, self.list_findings),
            make_route(endpoints.CLEAR, self.clear_finding),
            make_route(endpoints.ACCEPT, self.accept_finding),
            make_route(endpoints.REMEDY, self.begin_remedy),
            make_route(endpoints.WHY, self.explain_finding),
            make_route(endpoints.INCIDENTS, self.list_incidents),
        ]

    async def list_findings(self, request: web.Request) -> schema.Findings:
        query = request.query
        state, component, code, most = (
            query.get("state", "open"),
            query.get("component"),
            query.get("code"),
            read_limit(query),
        )
        if component is not None:
            component = self._context.find_component(component)
        if state == "open":
            ordered = sort_by_strength(self._context.node_state.findings)
            found = [
                finding
                for finding in ordered
                if component in (None, *(each.name for each in finding.components))
                and code in (None, finding.code)
            ]
        elif state == "cleared":
            found = await self._context.read_ledger(
                lambda: read_findings(self._context.pipeline.ledger.path, most + 1, component, code)
            )
        else:
            raise RequestRefused(400, f"state: must be one of open, cleared, not {state[:80]!r}")
        if not found:
            await self._context.check_kind(None, code)
        return {
            "findings": [self._context.format_finding(finding) for finding in found[:most]],
            "more": len(found) > most,
            "damaged": serialize.count_damaged(found),
        }

    async def list_incidents(self, request: web.Request) -> schema.Incidents:
        """The open ones, the strongest first, and then those that ended or began without a finding
        a moment ago.
        """
        most = read_limit(request.query)
        opened = self._context.list_open_incidents()
        closed = sorted(
            (
                incident
                for incident in self._context.node_state.incidents.values()
                if incident.closed_at is not None
            ),
            key=lambda incident: -incident.last,
        )
        listed = [*opened, *((incident, []) for incident in closed)]
        return {
            "incidents": [
                self._context.format_incident(incident, own) for incident, own in listed[:most]
            ],
            "more": len(listed) > most,
        }

    async def explain_finding(self, request: web.Request) -> schema.Why:
        """How a finding came about, from the log lines to the flags."""
        number = _read_id(request)
        current = self._find_open(number)
        past = await self._read_past(number, current)
        current = current or past.finding
        node_state = self._context.node_state
        incident = node_state.incidents.get(current.incident) or past.incident
        formatted = None
        if incident is not None:
            own = [finding for finding in node_state.findings if finding.incident == incident.id]
            formatted = self._context.format_incident(incident, own)
        return serialize.format_history(
            replace(past, finding=current),
            formatted,
            self._context.catalog,
            serialize.format_flags(self._judge_alone(current)),
            node_state.devices.find_names_of(current),
        )

    def _find_open(self, number: int) -> Finding | None:
        node_state = self._context.node_state
        opened = (finding for finding in node_state.findings if finding.id == number)
        return next(opened, None)

    async def _read_past(self, number: int, current: Finding | None) -> FindingHistory:
        """What the ledger has of a finding; what is in memory, if the ledger cannot be written."""
        past = None
        try:
            past = await self._context.read_ledger(
                lambda: read_finding_history(self._context.pipeline.ledger.path, number)
            )
        except RequestRefused:
            if current is None:
                raise
        if past is not None:
            return past
        if current is None:
            raise RequestRefused(
                404,
                f"no finding {number}",
                "vitald findings shows the open ones, vitald findings --cleared the others",
            )
        seen = [
            stored
            for stored in self._context.node_state.recent
            if (stored.event.component, stored.event.code) == (current.component, current.code)
        ]
        return FindingHistory(current, (), tuple(seen[:_MAX_EVENTS]), None)

    def _judge_alone(self, finding: Finding) -> Verdict:
        """The verdict if this finding were the only one."""
        counted = [finding] if finding.is_open else []
        return compute_verdict(counted, [], 0.0, device_reset=self._context.node_state.device_reset)

    async def clear_finding(self, request: web.Request) -> schema.OneFinding:
        peer = require_change_right(request)
        number, body = _read_id(request), await read_body(request, "reason", "replaced")
        replaced = read_value(body, "replaced", read_flag, False)
        meant = self._find_open(number)
        if replaced and meant is not None and (meant.is_simulated or meant.component == NODE):
            raise RequestRefused(
                400,
                "replaced: a drill and the node itself have no device that could be",
                "clear it without, or with a new node",
            )
        audit = _make_audit(peer, "clear", number, body)
        closed = await self._context.pipeline.actions.clear_finding(
            number, peer.name, audit, replaced=replaced
        )
        return self._answer_action(closed, audit)

    async def accept_finding(self, request: web.Request) -> schema.OneFinding:
        """A person lives with a finding for a time: it stays open, and changes neither fitness nor
        flags meanwhile.
        """
        peer = require_change_right(request)
        number, body = _read_id(request), await read_body(request, "reason", "seconds")
        seconds = read_seconds(body, "seconds", None, least=0.0, most=_MAX_ACCEPTED_S)
        audit = _make_audit(peer, "accept", number, body)
        return self._answer_action(
            await self._context.pipeline.actions.accept_finding(number, peer.name, audit, seconds),
            audit,
        )

    async def begin_remedy(self, request: web.Request) -> schema.OneFinding:
        """An operator begins the required action of a finding. It stays open until evidence
        shows that the remedy worked.
        """
        peer = require_change_right(request)
        number, body = _read_id(request), await read_body(request, "reason")
        audit = _make_audit(peer, "remedy", number, body)
        return self._answer_action(
            await self._context.pipeline.actions.begin_remedy(number, peer.name, audit), audit
        )

    def _answer_action(self, found: Finding | None, audit: AuditRecord) -> schema.OneFinding:
        if found is None:
            raise RequestRefused(
                404, f"no open finding {audit.target}", "vitald findings shows the open ones"
            )
        return {"finding": self._context.format_finding(found)}


def _read_id(request: web.Request) -> int:
    id_ = request.match_info["id"]
    if not re.fullmatch(r"[0-9]{1,15}", id_):
        raise RequestRefused(
            400, f"id: {id_[:80]!r} is not a finding's number", "vitald findings shows them"
        )
    return int(id_)


def _make_audit(peer: Peer, verb: str, number: int, body: serialize.Json) -> AuditRecord:
    """Who did it, to which finding, and why."""
    return AuditRecord(
        time=time.time(),
        uid=peer.uid,
        pid=peer.pid,
        verb=verb,
        target=str(number),
        reason=read_reason(body),
    )
