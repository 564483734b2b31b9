"""The route of the GPUs: who each one is, how it is, and what is known of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from vitald.collectors.nvml.node import NAME as NVML
from vitald.collectors.nvml.readings import RACK_LOCATION
from vitald.collectors.pci.inventory import PciInventory
from vitald.core.node_state import NodeState
from vitald.judge.verdict import compute_status
from vitald.model import Component, ComponentKind
from vitald.server import serialize
from vitald.server.routes.components import sights, status

if TYPE_CHECKING:
    from vitald.server import schema

_WHO = (
    "name",
    "uuid",
    "serial",
    "part_number",
    "vbios",
    "inforom",
    "module_id",
    "minor",
    "board_id",
    "driver_version",
    *RACK_LOCATION,
)


def list_gpus(board: NodeState, inventory: PciInventory) -> list[schema.Gpu]:
    """Each GPU that PCI shows or that was read: who it is, how it is, and what is known of it."""
    by_component = {one.component: one for one in board.readings.get(NVML, ())}
    components = {
        Component(device.kind, device.address)
        for device in inventory.list_watched()
        if device.kind is ComponentKind.GPU
    }
    components |= set(by_component) | {
        finding.component
        for finding in board.findings
        if finding.component.kind is ComponentKind.GPU
    }
    seen = sights(board, inventory, components)
    gpus: list[schema.Gpu] = []
    for component in sorted(components, key=lambda one: one.id):
        own = [finding for finding in board.findings if finding.component == component]
        read = by_component.get(component)
        values = read.values if read is not None else {}
        by = seen.get(component, ())
        gpus.append(
            {
                "component": component.name,
                "pci": component.id,
                "status": status(any(sight.unseen for sight in by), compute_status(own)).value,
                "findings": [finding.id for finding in own],
                "looked": serialize.format_moment(read.time) if read is not None else None,
                "fresh": read is not None
                and not any(sight.unseen for sight in by if sight.source == NVML),
                "simulated": read.simulated
                if read is not None
                else any(finding.is_simulated for finding in own),
                "identity": cast(
                    "schema.GpuIdentity",
                    {name: serialize.plain(values[name]) for name in _WHO if name in values},
                ),
                "slot": inventory.slots.get(component.id.rpartition(".")[0]),
                "readings": {
                    name: serialize.plain(value)
                    for name, value in sorted(values.items())
                    if name not in _WHO
                },
                "notObservable": dict(sorted(read.missing.items())) if read is not None else {},
            }
        )
    return gpus
