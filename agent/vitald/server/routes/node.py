"""
Routes of the node: `/healthz`, `/v1/status`, components, GPUs with their identity, status and
readings, rules of the catalogue, and openapi.json.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, cast

from aiohttp import web

from vitald import __version__
from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.collectors.nvml.gpu_node import NAME as NVML
from vitald.collectors.nvml.readings import RACK_LOCATION
from vitald.core import components
from vitald.core.node_state import LedgerHealth, NodeState, Observation
from vitald.diagnostics.view import DiagnosticsView
from vitald.judge.verdict import sort_by_strength
from vitald.model.component import Component, DeviceNames
from vitald.model.finding import Finding
from vitald.model.source import Readings
from vitald.model.words import ComponentKind, WorkPhase
from vitald.recovery.requester import RecoveryRequester
from vitald.server import endpoints, serialize
from vitald.server.endpoint import PAGE
from vitald.server.request import RequestRefused, make_route
from vitald.server.routes.components import describe_components, format_component
from vitald.server.routes.configuration import describe_configuration
from vitald.server.routes.context import RouteContext
from vitald.server.routes.diagnostics import serialize_outline
from vitald.server.routes.publishers import describe_report
from vitald.topology.pci_inventory import PciInventory

if TYPE_CHECKING:
    from vitald.server import schema
_IDENTITY = (
    "name",
    "uuid",
    "serial",
    "part_number",
    "vbios",
    "inforom",
    "module_id",
    "minor",
    "index",
    "board_id",
    "driver_version",
    *RACK_LOCATION,
)


class NodeRoutes:
    """Handlers of the node's state."""

    def __init__(
        self,
        context: RouteContext,
        interpreter: Interpreter,
        diagnostics: DiagnosticsView,
        recovery: RecoveryRequester | None,
    ) -> None:
        self._context = context
        self._interpreter = interpreter
        self._diagnostics = diagnostics
        self._recovery = recovery

    def list_routes(self) -> list[web.RouteDef]:
        return [
            make_route(endpoints.HEALTHZ, self.get_health),
            make_route(endpoints.STATUS, self.get_status),
            make_route(endpoints.COMPONENTS, self.get_components),
            make_route(endpoints.GPUS, self.get_gpus),
            make_route(endpoints.RULE, self.get_rule),
            make_route(endpoints.OPENAPI, self.get_openapi),
        ]

    async def get_health(self, _: web.Request) -> schema.Health:
        """Whether the daemon itself works; the node's health is /v1/status."""
        if self._context.pipeline.is_wedged():
            raise RequestRefused(503, "the judge is stuck", "see the daemon's log")
        return {"ok": True, "version": __version__}

    async def get_status(self, request: web.Request) -> schema.NodeStatus:
        wanted = request.query.get("for", WorkPhase.RUNNING.value)
        if wanted not in [work.value for work in WorkPhase]:
            raise RequestRefused(
                400,
                f"for: must be one of {', '.join(work.value for work in WorkPhase)},"
                f" not {wanted[:80]!r}",
            )
        await self._context.wait_until_answerable()
        return self._describe_node(WorkPhase(wanted))

    def _describe_node(self, work: WorkPhase) -> schema.NodeStatus:
        now = time.time()
        node_state, catalog, inventory = (
            self._context.node_state,
            self._context.catalog,
            self._context.inventory,
        )
        verdict = node_state.verdict(work)
        observations = components.list_observations(node_state, inventory)
        listed = components.list_components(node_state, inventory, verdict, observations, work)
        return {
            **serialize.format_verdict(verdict),
            "components": [format_component(component) for component in listed],
            "sources": [serialize.format_source(source) for source in node_state.sources.values()],
            "findings": [
                self._context.format_finding(finding)
                for finding in sort_by_strength(node_state.findings)[:PAGE]
            ],
            "openFindings": len(node_state.findings),
            "incidents": [
                self._context.format_incident(incident, own)
                for incident, own in self._context.list_open_incidents()[:PAGE]
            ],
            "suspects": self._list_suspects(now),
            "diagnostics": serialize_outline(self._diagnostics),
            "recovery": describe_recovery(self._recovery) if self._recovery is not None else None,
            "publishers": self._describe_publishers(),
            "configuration": describe_configuration(node_state.configuration),
            "ledger": _describe_ledger(node_state.ledger),
            "kernelLog": self._describe_kernel_log(),
            "profile": catalog.profile,
            "host": socket.gethostname(),
            "bootId": node_state.boot_id,
            "version": __version__,
            "pid": os.getpid(),
            "startedAt": serialize.format_moment(node_state.started_at),
            "time": serialize.format_moment(now),
        }

    def _describe_publishers(self) -> schema.ApiPublishers | None:
        publishers = self._context.node_state.publishers
        report = publishers.get_report()
        return describe_report(report, silent=publishers.is_silent) if report is not None else None

    def _describe_kernel_log(self) -> schema.KernelLog:
        counters = self._interpreter.counters
        return {
            "recordsRead": counters.read,
            "recordsLost": counters.lost,
            "untrusted": counters.untrusted,
        }

    def _list_suspects(self, now: float) -> list[schema.Suspect]:
        node_state = self._context.node_state
        names = components.name_identities(node_state, self._context.inventory)
        return serialize.format_suspects(
            node_state.score_suspects(now), self._context.catalog, names
        )[:PAGE]

    async def get_components(self, request: web.Request) -> schema.Components:
        query = request.query
        answer = describe_components(self._context.node_state, self._context.inventory)
        if "component" in query:
            name = self._context.find_component(query["component"])
            answer["components"] = [each for each in answer["components"] if each["name"] == name]
            if not answer["components"]:
                raise RequestRefused(
                    404, f"no component {name[:80]!r} on this node", "vitald components shows them"
                )
        return answer

    async def get_gpus(self, _: web.Request) -> schema.Gpus:
        node_state, source = self._context.node_state, self._context.node_state.sources.get(NVML)
        listed = list_gpus(node_state, self._context.inventory)
        return {
            "gpus": listed,
            "source": serialize.format_source(source) if source is not None else None,
        }

    async def get_rule(self, request: web.Request) -> schema.ApiRule:
        kind, code = request.match_info["kind"], request.match_info["code"]
        return serialize.format_rule(self._context.catalog.find_rule(f"{kind}/{code}"))

    async def get_openapi(self, _: web.Request) -> web.Response:
        return web.Response(
            text=resources.files("vitald.server").joinpath("openapi.json").read_text("utf-8"),
            content_type="application/json",
        )


def _describe_ledger(ledger: LedgerHealth) -> schema.ApiLedger:
    return {
        "ok": ledger.ok,
        "error": ledger.error,
        "unsavedEvents": ledger.unsaved,
        "droppedEvents": ledger.dropped,
        "sizeBytes": ledger.size_bytes,
    }


def describe_recovery(recovery: RecoveryRequester) -> schema.ApiRecovery:
    """What root is requested to do, and its last decision on that."""
    request, decision = recovery.request, recovery.decision
    described: schema.RecoveryRequest | None = None
    if request is not None:
        described = {
            "id": request.id,
            "action": request.kind.value,
            "since": serialize.format_moment(recovery.requested_at or request.time),
            "findings": [finding.id for finding in request.findings],
            "decision": None,
        }
        if decision is not None:
            described["decision"] = {
                "step": decision.step.value,
                "checks": list(decision.checks),
                "why": decision.why,
                "time": decision.time,
            }
    return {"mode": recovery.mode, "brake": recovery.brake, "request": described}


def list_gpus(node_state: NodeState, inventory: PciInventory) -> list[schema.Gpu]:
    """Each GPU that PCI shows, that was read, or that has an open finding, in the order of its
    address.
    """
    readings = {read.component: read for read in node_state.readings.get(NVML, ())}
    on_pci = {Component(device.kind, device.address) for device in inventory.list_watched()}
    findings: dict[Component, list[Finding]] = {}
    for finding in node_state.findings:
        for component in finding.components:
            findings.setdefault(component, []).append(finding)
    gpus = {
        component for component in (*on_pci, *findings) if component.kind is ComponentKind.GPU
    } | set(readings)
    observations = components.list_observations(node_state, inventory, gpus)
    return [
        _format_gpu(
            gpu,
            readings.get(gpu),
            findings.get(gpu, []),
            observations.get(gpu, ()),
            node_state.devices.find_names(gpu),
        )
        for gpu in sorted(gpus, key=lambda gpu: gpu.id)
    ]


def _format_gpu(
    gpu: Component,
    read: Readings | None,
    findings: Sequence[Finding],
    observations: Sequence[Observation],
    names: DeviceNames,
) -> schema.Gpu:
    values = read.values if read is not None else {}
    device = serialize.format_device(names)  # also of one that was not read
    unobserved = [seen.source for seen in observations if seen.unknown_reason]
    if read is not None:
        simulated = read.simulated
    else:
        simulated = any(finding.is_simulated for finding in findings)
    return {
        "component": gpu.name,
        "pci": gpu.id,
        "status": components.judge_component(findings, observations).value,
        "findings": [finding.id for finding in findings],
        "lastRead": serialize.format_moment(read.time) if read is not None else None,
        "fresh": read is not None and NVML not in unobserved,
        "simulated": simulated,
        "identity": cast(
            "schema.GpuIdentity",
            {name: value for name, value in device.items() if name in _IDENTITY}
            | {name: serialize.plain(values[name]) for name in _IDENTITY if name in values},
        ),
        "slot": device.get("slot"),
        "readings": {
            name: serialize.plain(value)
            for name, value in sorted(values.items())
            if name not in _IDENTITY
        },
        "notObservable": dict(sorted(read.missing.items())) if read is not None else {},
    }
