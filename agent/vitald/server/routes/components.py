"""
Components: identity, status and observations of each, and what cannot be observed here (the
coverage table).

Owns     which status a component has, and what counts as observable. A component that is not
         observed is not healthy, and a reading that cannot be read is not zero.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from vitald.collectors.discovery import find_switched
from vitald.collectors.nvml.gpu_node import NAME as NVML
from vitald.core.node_state import NodeState, Observation
from vitald.judge.verdict import WorkPhase, compute_status
from vitald.model import NODE, Action, Component, ComponentKind, Finding, Status, Verdict
from vitald.server import serialize
from vitald.topology.pci_inventory import PciDevice, PciInventory

if TYPE_CHECKING:
    from vitald.server import schema

Observations = Mapping[Component, Sequence[Observation]]

_KINDS = {kind: number for number, kind in enumerate(ComponentKind)}
_SWITCHED = find_switched()


@dataclass(frozen=True, slots=True)
class Gap:
    """Readings that cannot be observed of some components, all for one reason."""

    reason: str
    readings: tuple[str, ...]
    components: tuple[Component, ...]


@dataclass(frozen=True, slots=True)
class ComponentCoverage:
    """How many of the readings that a source tries to read of its components of one kind it
    observes now. No components: none of this kind can be read here, and the gaps have the reason.
    """

    source: str
    kind: ComponentKind
    components: int
    observable: int
    asked: int
    observations: Sequence[tuple[Component, Observation]]

    @property
    def gaps(self) -> tuple[Gap, ...]:
        return _group_gaps(self.observations)

    def count_missing(self) -> Mapping[str, int]:
        """How many components each reading cannot be observed of."""
        return Counter(
            chain.from_iterable(
                observation.readings.missing
                for _, observation in self.observations
                if observation.readings is not None
            )
        )


def list_observations(
    node_state: NodeState, inventory: PciInventory, more: Iterable[Component] = ()
) -> Observations:
    """The observations of each component. NVML has to read each GPU that PCI shows, and `more`,
    whether it could until now or not.
    """
    gpus = [
        Component(device.kind, device.address)
        for device in inventory.list_watched()
        if device.kind is ComponentKind.GPU
    ]
    return node_state.list_observations({NVML: [*gpus, *more]})


def name_identities(node_state: NodeState, inventory: PciInventory) -> dict[str, str]:
    """The component that each device is in now, by the key of the device's record."""
    watched = (Component(device.kind, device.address) for device in inventory.list_watched())
    return {node_state.get_identity(component): component.name for component in watched}


def list_components(
    node_state: NodeState,
    inventory: PciInventory,
    whole: Verdict,
    seen: Observations,
    work: WorkPhase = WorkPhase.RUNNING,
) -> list[schema.ApiComponent]:
    """Each component that PCI shows, that a source reads, or that has an open finding, with its own
    verdict; the node has that of `whole`.
    """
    on_pci = {Component(device.kind, device.address): device for device in inventory.list_watched()}
    own: dict[Component, list[Finding]] = {
        component: [] for component in (NODE, *on_pci, *filter(_is_component, seen))
    }
    for found in node_state.findings:
        for component in found.components:
            own.setdefault(component, []).append(found)
    shown: list[schema.ApiComponent] = []
    for component, findings in sorted(own.items(), key=lambda item: _make_sort_key(item[0])):
        unseen = [
            f"{observation.source}: {observation.unknown_reason}"
            for observation in seen.get(component, ())
            if observation.unknown_reason
        ]
        shown.append(
            {
                "name": component.name,
                "kind": component.kind.value,
                "id": component.id,
                "device": serialize.format_device(node_state.devices.find_names(component)),
                "status": (
                    whole.status
                    if component == NODE
                    else degrade_unobserved(bool(unseen), compute_status(findings, work))
                ).value,
                "action": (
                    whole.action
                    if component == NODE
                    else Action.find_strongest(found.action for found in findings)
                ).value,
                "findings": len(findings),
                "sources": [observation.source for observation in seen.get(component, ())],
                "unknownReasons": unseen,
                "attributes": _format_attributes(on_pci.get(component)),
            }
        )
    return shown


def describe_components(node_state: NodeState, inventory: PciInventory) -> schema.Components:
    """The answer of /v1/components."""
    seen = list_observations(node_state, inventory)
    shown: list[schema.WatchedComponent] = []
    for listed in list_components(node_state, inventory, node_state.verdict(), seen):
        component = Component.parse_name(listed["name"])
        by = seen.get(component, ())
        shown.append(
            {
                **listed,
                "identity": _find_identity(node_state, component, by),
                "observations": [_format_observation(observation) for observation in by],
            }
        )
    return {
        "components": shown,
        "coverage": [_format_coverage(share) for share in compute_coverage(seen)],
        "sources": [serialize.format_source(source) for source in node_state.sources.values()],
        "off": [name for name in _SWITCHED if name not in node_state.sources],
    }


def degrade_unobserved(unseen: bool, judged: Status) -> Status:
    """A component that is not observed is unknown, unless it is known to be unhealthy."""
    return Status.UNKNOWN if unseen and judged is not Status.UNHEALTHY else judged


def compute_coverage(seen: Observations) -> list[ComponentCoverage]:
    """For each source and kind of component, the readings that it tries to read, and the observed
    ones.

    A component that is not observed now has no observable reading. For one that was never read, as
    many are expected as for its siblings.
    """
    together: dict[tuple[str, ComponentKind], list[tuple[Component, Observation]]] = {}
    for component, by in seen.items():
        for observation in by:
            together.setdefault((observation.source, component.kind), []).append(
                (component, observation)
            )
    shares = []
    for (source, kind), own in sorted(
        together.items(), key=lambda item: (item[0][0], _KINDS[item[0][1]])
    ):
        expected = [len(_list_expected(observation)) for _, observation in own]
        shares.append(
            ComponentCoverage(
                source=source,
                kind=kind,
                components=sum(_is_component(component) for component, _ in own),
                observable=sum(_count_observable(observation) for _, observation in own),
                asked=sum(number or max(expected) for number in expected),
                observations=own,
            )
        )
    return shares


def _is_component(component: Component) -> bool:
    """False for a whole kind, of which a source only reports why none can be observed."""
    return bool(component.id) or component == NODE


def _group_gaps(own: Iterable[tuple[Component, Observation]]) -> tuple[Gap, ...]:
    """Each reason once, with its readings and components. The widest gaps come first."""
    by_reason: dict[tuple[str, str], list[Component]] = {}
    for component, observation in sorted(own, key=lambda each: _make_sort_key(each[0])):
        if observation.readings is not None:
            for reading, reason in observation.readings.missing.items():
                by_reason.setdefault((reason, reading), []).append(component)
    joined: dict[tuple[str, tuple[Component, ...]], list[str]] = {}
    for (reason, reading), components in by_reason.items():
        joined.setdefault((reason, tuple(components)), []).append(reading)
    gaps = [
        Gap(reason, tuple(sorted(readings)), components)
        for (reason, components), readings in joined.items()
    ]
    return tuple(
        sorted(
            gaps,
            key=lambda gap: (-len(gap.components) * len(gap.readings), gap.reason, gap.readings),
        )
    )


def _list_expected(observation: Observation) -> set[str]:
    return (
        {*observation.readings.values, *observation.readings.missing}
        if observation.readings is not None
        else set()
    )


def _count_observable(observation: Observation) -> int:
    return (
        len(observation.readings.values.keys() - observation.readings.missing.keys())
        if observation.readings is not None and not observation.unknown_reason
        else 0
    )


def _find_identity(
    node_state: NodeState, component: Component, by: Iterable[Observation]
) -> str | None:
    """The key of its record, else its identity in a source, if that is more than the slot."""
    names = [
        node_state.get_identity(component),
        *(observation.readings.identity for observation in by if observation.readings is not None),
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
        "observable": _count_observable(observation),
        "attempted": len(_list_expected(observation)),
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
        "attempted": share.asked,
        "gaps": [
            {
                "reason": gap.reason,
                "readings": list(gap.readings),
                "components": [component.name for component in gap.components],
            }
            for gap in share.gaps
        ],
    }


def _make_sort_key(component: Component) -> tuple[int, list[tuple[bool, int, str]]]:
    """By kind, then in natural order: nvme2 before nvme10. Addresses are hexadecimal and equally
    long: by their characters.
    """
    words = [component.id] if ":" in component.id else re.split(r"(\d+)", component.id)
    return _KINDS[component.kind], [
        (False, int(word), "") if word.isdecimal() else (True, 0, word) for word in words
    ]
