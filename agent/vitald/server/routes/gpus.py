"""The route of the GPUs: the identity of each, its status, and its readings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from vitald.collectors.nvml.gpu_node import NAME as NVML
from vitald.collectors.nvml.readings import RACK_LOCATION
from vitald.collectors.pci.inventory import PciInventory
from vitald.core.node_state import NodeState, Observation
from vitald.judge.verdict import compute_status
from vitald.model import Component, ComponentKind, DeviceNames, Finding, Readings
from vitald.server import serialize
from vitald.server.routes.components import degrade_unobserved, list_observations

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
    observations = list_observations(node_state, inventory, gpus)
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
        "status": degrade_unobserved(bool(unobserved), compute_status(findings)).value,
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
