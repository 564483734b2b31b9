"""
Components: names, status and observations of each, and what cannot be observed here (the coverage
table).

Owns     which status a component has, and what counts as observable. A component that is not
         observed is not healthy, and a reading that cannot be read is not zero.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from vitald.collectors.nvml.gpu_node import NAME as NVML
from vitald.core.node_state import NodeState, Observation
from vitald.judge.verdict import compute_status
from vitald.model.component import NODE, Component, DeviceNames
from vitald.model.finding import Finding, Verdict
from vitald.model.words import Action, ComponentKind, Status, WorkPhase
from vitald.topology.pci_inventory import PciDevice, PciInventory

Observations = Mapping[Component, Sequence[Observation]]

_KINDS = {kind: number for number, kind in enumerate(ComponentKind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentState:
    """A component now. `device`: its PCI function, if it has one. `findings`: the number of open
    ones.
    """

    component: Component
    names: DeviceNames
    device: PciDevice | None
    status: Status
    action: Action
    findings: int
    observations: Sequence[Observation]


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
    attempted: int
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
    verdict: Verdict,
    observations: Observations,
    work: WorkPhase = WorkPhase.RUNNING,
) -> list[ComponentState]:
    """Each component that PCI shows, that a source reads, or that has an open finding, with its own
    status; the node has that of `verdict`.
    """
    on_pci = {Component(device.kind, device.address): device for device in inventory.list_watched()}
    own: dict[Component, list[Finding]] = {
        component: [] for component in (NODE, *on_pci, *filter(_is_component, observations))
    }
    for found in node_state.findings:
        for component in found.components:
            own.setdefault(component, []).append(found)
    return [
        ComponentState(
            component=component,
            names=node_state.devices.find_names(component),
            device=on_pci.get(component),
            status=(
                verdict.status
                if component == NODE
                else judge_component(findings, observations.get(component, ()), work)
            ),
            action=(
                verdict.action
                if component == NODE
                else Action.find_strongest(found.action for found in findings)
            ),
            findings=len(findings),
            observations=observations.get(component, ()),
        )
        for component, findings in sorted(own.items(), key=lambda item: _make_sort_key(item[0]))
    ]


def judge_component(
    findings: Sequence[Finding],
    observations: Iterable[Observation],
    work: WorkPhase = WorkPhase.RUNNING,
) -> Status:
    """By its open findings. A component that is not observed is unknown, unless it is known to be
    unhealthy.
    """
    judged = compute_status(findings, work)
    is_unobserved = any(observation.unknown_reason for observation in observations)
    return Status.UNKNOWN if is_unobserved and judged is not Status.UNHEALTHY else judged


def compute_coverage(observations: Observations) -> list[ComponentCoverage]:
    """For each source and kind of component, the readings that it tries to read, and the observed
    ones.

    A component that is not observed now has no observable reading. For one that was never read, as
    many are expected as for its siblings.
    """
    together: dict[tuple[str, ComponentKind], list[tuple[Component, Observation]]] = {}
    for component, its in observations.items():
        for observation in its:
            together.setdefault((observation.source, component.kind), []).append(
                (component, observation)
            )
    shares = []
    for (source, kind), own in sorted(
        together.items(), key=lambda item: (item[0][0], _KINDS[item[0][1]])
    ):
        expected = [len(observation.list_attempted()) for _, observation in own]
        shares.append(
            ComponentCoverage(
                source=source,
                kind=kind,
                components=sum(_is_component(component) for component, _ in own),
                observable=sum(observation.count_observable() for _, observation in own),
                attempted=sum(number or max(expected) for number in expected),
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


def _make_sort_key(component: Component) -> tuple[int, list[tuple[bool, int, str]]]:
    """By kind, then in natural order: nvme2 before nvme10. Addresses are hexadecimal and equally
    long: by their characters.
    """
    words = [component.id] if ":" in component.id else re.split(r"(\d+)", component.id)
    return _KINDS[component.kind], [
        (False, int(word), "") if word.isdecimal() else (True, 0, word) for word in words
    ]
