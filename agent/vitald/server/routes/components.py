"""Components over the socket: the answer of `/v1/components`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitald.collectors.discovery import find_switched
from vitald.core.components import (
    ComponentCoverage,
    ComponentState,
    compute_coverage,
    list_components,
    list_observations,
)
from vitald.core.node_state import NodeState, Observation
from vitald.server import serialize
from vitald.topology.pci_inventory import PciDevice, PciInventory

if TYPE_CHECKING:
    from vitald.server import schema

_SWITCHED = find_switched()


def describe_components(node_state: NodeState, inventory: PciInventory) -> schema.Components:
    """The answer of /v1/components."""
    observations = list_observations(node_state, inventory)
    listed = list_components(node_state, inventory, node_state.verdict(), observations)
    return {
        "components": [
            {
                **format_component(each),
                "identity": _find_identity(node_state, each),
                "observations": [_format_observation(seen) for seen in each.observations],
            }
            for each in listed
        ],
        "coverage": [_format_coverage(share) for share in compute_coverage(observations)],
        "sources": [serialize.format_source(source) for source in node_state.sources.values()],
        "off": [name for name in _SWITCHED if name not in node_state.sources],
    }


def format_component(shown: ComponentState) -> schema.ApiComponent:
    component = shown.component
    return {
        "name": component.name,
        "kind": component.kind.value,
        "id": component.id,
        "device": serialize.format_device(shown.names),
        "status": shown.status.value,
        "action": shown.action.value,
        "findings": shown.findings,
        "sources": [observation.source for observation in shown.observations],
        "unknownReasons": [
            f"{observation.source}: {observation.unknown_reason}"
            for observation in shown.observations
            if observation.unknown_reason
        ],
        "attributes": _format_attributes(shown.device),
    }


def _find_identity(node_state: NodeState, shown: ComponentState) -> str | None:
    """The key of its record, else its identity in a source, if that is more than the slot."""
    component = shown.component
    names = [
        node_state.get_identity(component),
        *(seen.readings.identity for seen in shown.observations if seen.readings is not None),
    ]
    return next((name for name in names if name not in ("", component.name, component.id)), None)


def _format_attributes(device: PciDevice | None) -> schema.PciAttributes:
    if device is None:
        return {}
    return {
        "pci": device.address,
        "vendor": f"{device.vendor:04x}",
        "device": f"{device.device:04x}",
        "driver": device.driver,
    }


def _format_observation(observation: Observation) -> schema.ApiObservation:
    read = observation.readings
    return {
        "name": observation.source,
        "lastRead": serialize.format_moment(read.time) if read is not None else None,
        "unknownReason": observation.unknown_reason,
        "observable": observation.count_observable(),
        "attempted": len(observation.list_attempted()),
        "simulated": read is not None and read.simulated,
        "readings": {name: serialize.plain(value) for name, value in sorted(read.values.items())}
        if read is not None
        else {},
        "notObservable": dict(sorted(read.missing.items())) if read is not None else {},
    }


def _format_coverage(share: ComponentCoverage) -> schema.ApiCoverage:
    return {
        "source": share.source,
        "kind": share.kind.value,
        "components": share.components,
        "observable": share.observable,
        "attempted": share.attempted,
        "gaps": [
            {
                "reason": gap.reason,
                "readings": list(gap.readings),
                "components": [component.name for component in gap.components],
            }
            for gap in share.gaps
        ],
    }
