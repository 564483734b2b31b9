"""
What is watched: who each component is, how it is, who looks at it, and what cannot be observed here
(the coverage table).

Owns     which status a component has, and what counts as observable.
Refuses  to take what nobody has looked at for healthy, and what cannot be read for zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitald.collectors.nvml.node import NAME as NVML
from vitald.collectors.pci.inventory import PciDevice, PciInventory
from vitald.config import POLLED
from vitald.core.node_state import NodeState, Observation
from vitald.judge.verdict import WorkPhase, compute_status
from vitald.model import NODE, Action, Component, ComponentKind, Finding, Status, Verdict
from vitald.server import serialize

if TYPE_CHECKING:
    from vitald.server import schema

Sights = Mapping[Component, Sequence[Observation]]

_KINDS = {kind: number for number, kind in enumerate(ComponentKind)}
_SWITCHED = ("nvml", *POLLED)


@dataclass(frozen=True, slots=True)
class Gap:
    """Readings that cannot be observed of some components, all for one reason."""

    reason: str
    readings: tuple[str, ...]
    components: tuple[Component, ...]


@dataclass(frozen=True, slots=True)
class ComponentCoverage:
    """How much of what a source asks of its components of one kind it observes now, counted in
    readings. No components: none of this kind can be looked at here, and the gaps say why.
    """

    source: str
    kind: ComponentKind
    components: int
    observable: int
    asked: int
    gaps: tuple[Gap, ...]


def sights(board: NodeState, inventory: PciInventory, more: Iterable[Component] = ()) -> Sights:
    """Who looks at what. NVML has to look at each GPU that PCI shows, and at `more`, whether it
    could until now or not.
    """
    gpus = [
        Component(device.kind, device.address)
        for device in inventory.watched()
        if device.kind is ComponentKind.GPU
    ]
    return board.list_observations({NVML: [*gpus, *more]})


def listed(
    board: NodeState,
    inventory: PciInventory,
    whole: Verdict,
    seen: Sights,
    work: WorkPhase = WorkPhase.RUNNING,
) -> list[schema.ApiComponent]:
    """Whatever PCI shows, a source reads or has an open finding, each with its own verdict; the
    node has the `whole` one.
    """
    on_pci = {Component(device.kind, device.address): device for device in inventory.watched()}
    own: dict[Component, list[Finding]] = {
        component: [] for component in (NODE, *on_pci, *filter(_one, seen))
    }
    for found in board.findings:
        own.setdefault(found.component, []).append(found)
    shown: list[schema.ApiComponent] = []
    for component, findings in sorted(own.items(), key=lambda one: _order(one[0])):
        unseen = [
            f"{sight.source}: {sight.unseen}" for sight in seen.get(component, ()) if sight.unseen
        ]
        shown.append(
            {
                "name": component.name,
                "kind": component.kind.value,
                "id": component.id,
                "status": (
                    whole.status
                    if component == NODE
                    else status(bool(unseen), compute_status(findings, work))
                ).value,
                "action": (
                    whole.action
                    if component == NODE
                    else Action.find_strongest(found.action for found in findings)
                ).value,
                "findings": len(findings),
                "sources": [sight.source for sight in seen.get(component, ())],
                "unseen": unseen,
                "attributes": _attributes(on_pci.get(component)),
            }
        )
    return shown


def in_full(board: NodeState, inventory: PciInventory) -> schema.Components:
    """The answer of /v1/components."""
    seen = sights(board, inventory)
    shown: list[schema.WatchedComponent] = []
    for one in listed(board, inventory, board.verdict(), seen):
        component = Component.parse_name(one["name"])
        by = seen.get(component, ())
        shown.append(
            {
                **one,
                "identity": _identity(board, component, by),
                "sights": [_sight(sight) for sight in by],
            }
        )
    return {
        "components": shown,
        "coverage": [_coverage(one) for one in coverage(seen)],
        "sources": [serialize.format_source(source) for source in board.sources.values()],
        "off": [name for name in _SWITCHED if name not in board.sources],
    }


def status(unseen: bool, judged: Status) -> Status:
    """What nobody looks at is not healthy; what is known to be ill stays so."""
    return Status.UNKNOWN if unseen and judged is not Status.UNHEALTHY else judged


def coverage(seen: Sights) -> list[ComponentCoverage]:
    """For each source and kind of component, what it asks for and what of that it observes.

    A component that is not seen now has nothing observable; where it never answered, as much is
    asked of it as of its siblings.
    """
    together: dict[tuple[str, ComponentKind], list[tuple[Component, Observation]]] = {}
    for component, by in seen.items():
        for sight in by:
            together.setdefault((sight.source, component.kind), []).append((component, sight))
    told = []
    for (source, kind), own in sorted(
        together.items(), key=lambda one: (one[0][0], _KINDS[one[0][1]])
    ):
        asked = [len(_asked(sight)) for _, sight in own]
        told.append(
            ComponentCoverage(
                source=source,
                kind=kind,
                components=sum(_one(component) for component, _ in own),
                observable=sum(_observable(sight) for _, sight in own),
                asked=sum(number or max(asked) for number in asked),
                gaps=_gaps(own),
            )
        )
    return told


def _one(component: Component) -> bool:
    """Not a whole kind, of which a source says only why none of it can be observed."""
    return bool(component.id) or component == NODE


def _gaps(own: Iterable[tuple[Component, Observation]]) -> tuple[Gap, ...]:
    """Each reason once: what it is true of, and of whom. The widest gaps come first."""
    whose: dict[tuple[str, str], list[Component]] = {}
    for component, sight in own:
        if sight.readings is not None:
            for reading, reason in sight.readings.missing.items():
                whose.setdefault((reason, reading), []).append(component)
    joined: dict[tuple[str, tuple[Component, ...]], list[str]] = {}
    for (reason, reading), components in whose.items():
        joined.setdefault((reason, tuple(sorted(components, key=_order))), []).append(reading)
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


def _asked(sight: Observation) -> set[str]:
    return (
        {*sight.readings.values, *sight.readings.missing} if sight.readings is not None else set()
    )


def _observable(sight: Observation) -> int:
    return (
        len(sight.readings.values.keys() - sight.readings.missing.keys())
        if sight.readings is not None and not sight.unseen
        else 0
    )


def _identity(board: NodeState, component: Component, by: Iterable[Observation]) -> str | None:
    """What its record goes by, else what a source knows it by, where that is more than the slot."""
    names = [
        board.get_identity(component),
        *(sight.readings.identity for sight in by if sight.readings is not None),
    ]
    return next((name for name in names if name not in ("", component.name, component.id)), None)


def _attributes(device: PciDevice | None) -> schema.PciAttributes:
    if device is None:
        return {}
    return {
        "pci": device.address,
        "vendor": f"{device.vendor:04x}",
        "device": f"{device.device:04x}",
        "driver": device.driver,
    }


def _sight(sight: Observation) -> schema.Sight:
    read = sight.readings
    return {
        "name": sight.source,
        "looked": serialize.format_moment(read.time) if read is not None else None,
        "unseen": sight.unseen,
        "observable": _observable(sight),
        "asked": len(_asked(sight)),
        "simulated": read is not None and read.simulated,
        "readings": {name: serialize.plain(value) for name, value in sorted(read.values.items())}
        if read is not None
        else {},
        "notObservable": dict(sorted(read.missing.items())) if read is not None else {},
    }


def _coverage(one: ComponentCoverage) -> schema.ApiCoverage:
    return {
        "source": one.source,
        "kind": one.kind.value,
        "components": one.components,
        "observable": one.observable,
        "asked": one.asked,
        "gaps": [
            {
                "reason": gap.reason,
                "readings": list(gap.readings),
                "components": [component.name for component in gap.components],
            }
            for gap in one.gaps
        ],
    }


def _order(component: Component) -> tuple[int, list[tuple[bool, int, str]]]:
    """By kind, and then as a person counts: nvme2 before nvme10. Addresses are hexadecimal, all
    equally long: by their letters.
    """
    words = [component.id] if ":" in component.id else re.split(r"(\d+)", component.id)
    return _KINDS[component.kind], [
        (False, int(word), "") if word.isdecimal() else (True, 0, word) for word in words
    ]
