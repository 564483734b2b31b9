"""Route of the summary: the node's state as publishers write it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aiohttp import web

from vitald.catalog.reasons import find_reason
from vitald.judge.repairs import find_due_repair, find_due_repairs
from vitald.judge.verdict import compute_verdict, group_by_incident, sort_by_strength
from vitald.model import ComponentKind, Finding, Repair, Status, Verdict
from vitald.server import serialize
from vitald.server.request import PAGE, read_flag_parameter, read_query
from vitald.server.routes.context import RouteContext

if TYPE_CHECKING:
    from vitald.server import schema

_HEALTHY, _DEGRADED = "Healthy", "Degraded"
_NOT_READ, _SIMULATED = "SourceNotRead", "SimulatedReadings"
_ACCELERATORS = (ComponentKind.GPU, ComponentKind.NEURON)


class SummaryRoutes:
    """Handler of the summary."""

    def __init__(self, context: RouteContext) -> None:
        self._context = context

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/v1/summary", self.get_summary)

    async def get_summary(self, request: web.Request) -> web.Response:
        drills = read_flag_parameter(read_query(request, "drills"), "drills")
        await self._context.wait_until_answerable()
        return web.json_response(self._summarize_node(drills=drills))

    def _summarize_node(self, *, drills: bool) -> schema.NodeSummary:
        node_state = self._context.node_state
        findings = [each for each in node_state.findings if drills or not each.is_simulated]
        verdict = compute_verdict(
            findings,
            list(node_state.sources.values()),
            time.monotonic(),
            node_state.incidents,
            device_reset=node_state.device_reset,
        )
        status, reason = self._explain_status(verdict, findings)
        if node_state.simulated and not drills:
            status, reason = Status.UNKNOWN, _SIMULATED
        device_reset, idle = node_state.device_reset, self._context.is_idle()
        strongest = sort_by_strength(findings)
        due = find_due_repairs(strongest, device_reset=device_reset, idle=idle, drills=drills)
        marked = [
            (find_due_repair(each, device_reset=device_reset, idle=idle, drills=drills), each)
            for each in strongest
        ]
        marked.sort(key=lambda pair: pair[0] is None)
        return {
            "status": status.value,
            "action": verdict.action.value,
            "reason": reason,
            "reasons": list(verdict.reasons[:PAGE]),
            "rebootDue": self._find_word(due.get(Repair.REBOOT)),
            "replacementDue": self._find_word(due.get(Repair.REPLACE)),
            "changedAt": serialize.format_moment(node_state.changed_at),
            "findings": [
                self._summarize_finding(finding, due=repair is not None)
                for repair, finding in marked[:PAGE]
            ],
            "openFindings": len(findings),
            "complete": self._is_complete(findings, drills=drills),
            "accelerators": self._list_accelerators(),
            "bootId": node_state.boot_id,
            "time": serialize.format_moment(time.time()),
        }

    def _is_complete(self, findings: Sequence[Finding], *, drills: bool) -> bool:
        node_state, now = self._context.node_state, time.monotonic()
        return (
            all(source.is_fresh(now) for source in node_state.sources.values())
            and not any(finding.unknown for finding in findings)
            and (drills or not node_state.simulated)
        )

    def _list_accelerators(self) -> list[str]:
        on_pci = {device.kind for device in self._context.inventory.list_watched()}
        return [kind.value for kind in _ACCELERATORS if kind in on_pci]

    def _explain_status(self, verdict: Verdict, findings: Sequence[Finding]) -> tuple[Status, str]:
        if verdict.status is Status.HEALTHY:
            return verdict.status, _HEALTHY
        if verdict.status is Status.DEGRADED:
            return verdict.status, _DEGRADED
        if verdict.status is Status.UNKNOWN:
            unknown = next((finding for finding in findings if finding.unknown), None)
            return verdict.status, self._find_word(unknown) or _NOT_READ
        head = group_by_incident(findings, self._context.node_state.incidents)[0][0]
        return verdict.status, self._find_word(head) or _NOT_READ

    def _find_word(self, finding: Finding | None) -> str | None:
        if finding is None:
            return None
        catalog = self._context.catalog
        return find_reason(finding.code, catalog.rules, catalog.site_codes)

    def _summarize_finding(self, finding: Finding, *, due: bool) -> schema.SummarizedFinding:
        return {
            "id": finding.id,
            "component": finding.component.name,
            "code": finding.code,
            "reason": self._find_word(finding) or "",
            "action": finding.action.value,
            "when": finding.when.value,
            "since": serialize.format_moment(finding.since),
            "confirmed": finding.is_confirmed,
            "simulated": finding.is_simulated,
            "due": due,
            "device": self._context.node_state.get_identity(finding.component),
        }
