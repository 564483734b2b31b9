"""Route of the summary: the node's state as publishers write it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aiohttp import web

from vitald.judge.repairs import find_due_repair, find_due_repairs
from vitald.judge.verdict import compute_verdict, group_by_incident, sort_by_strength
from vitald.model.finding import Finding, Verdict
from vitald.model.reasons import FixedReason, find_reason
from vitald.model.words import ComponentKind, Repair, Status
from vitald.server import endpoints, serialize
from vitald.server.endpoint import PAGE
from vitald.server.request import RequestRefused, make_route, read_flag_parameter
from vitald.server.routes.context import RouteContext

if TYPE_CHECKING:
    from vitald.server import schema

_ACCELERATORS = (ComponentKind.GPU, ComponentKind.NEURON)
_SIMULATED_LINE = "a source reads a simulated library: the readings are not this node's"
# An upgrade must not be published as an unknown state: for so long after a start, nothing is said.
_START_S = 10.0


class SummaryRoutes:
    """Handler of the summary."""

    def __init__(self, context: RouteContext) -> None:
        self._context = context
        self._started_at = time.monotonic()

    def list_routes(self) -> list[web.RouteDef]:
        return [make_route(endpoints.SUMMARY, self.get_summary)]

    async def get_summary(self, request: web.Request) -> schema.NodeSummary:
        drills = read_flag_parameter(request.query, "drills")
        await self._context.wait_until_answerable()
        age_s = time.monotonic() - self._started_at
        if age_s < _START_S and not self._context.node_state.first_scan.is_set():
            raise RequestRefused(
                503, "the sources are being read for the first time", "try again in a second"
            )
        return self._summarize_node(drills=drills)

    def _summarize_node(self, *, drills: bool) -> schema.NodeSummary:
        node_state = self._context.node_state
        findings = [each for each in node_state.findings if drills or not each.is_simulated]
        verdict = compute_verdict(
            findings,
            list(node_state.sources.values()),
            time.monotonic(),
            node_state.incidents,
            device_reset=node_state.device_reset,
            describe=node_state.devices.describe_component,
        )
        status, reason = self._explain_status(verdict, findings)
        reasons = list(verdict.reasons[:PAGE])
        if node_state.simulated and not drills:
            status, reason = Status.UNKNOWN, FixedReason.SIMULATED_READINGS.value
            reasons = [_SIMULATED_LINE, *reasons[: PAGE - 1]]
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
            "reasons": reasons,
            "rebootRequired": verdict.reboot_required,
            "replacementRequired": verdict.replacement_required,
            "rebootDue": self._find_word(due.get(Repair.REBOOT)),
            "replacementDue": self._find_word(due.get(Repair.REPLACE)),
            "changedAt": serialize.format_moment(node_state.changed_at),
            "findings": [
                self._summarize_finding(finding, due=repair is not None)
                for repair, finding in marked[:PAGE]
            ],
            "openFindings": len(findings),
            "ignoredDrills": len(node_state.findings) - len(findings),
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
        not_read = FixedReason.SOURCE_NOT_READ.value
        if verdict.status is Status.HEALTHY:
            return verdict.status, FixedReason.HEALTHY.value
        if verdict.status is Status.DEGRADED:
            return verdict.status, FixedReason.DEGRADED.value
        if verdict.status is Status.UNKNOWN:
            listed = sort_by_strength(findings)
            unknown = next((finding for finding in listed if finding.unknown), None)
            return verdict.status, self._find_word(unknown) or not_read
        unfit = next(
            head
            for head, own in group_by_incident(findings, self._context.node_state.incidents)
            if any(finding.makes_unfit(between_jobs=False) for finding in own)
        )
        return verdict.status, self._find_word(unfit) or not_read

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
            "accepted": finding.accepted is not None,
            "simulated": finding.is_simulated,
            "due": due,
            "device": self._context.node_state.get_identity(finding.component),
        }
