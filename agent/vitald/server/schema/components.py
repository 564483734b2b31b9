"""Components, their readings, and what cannot be observed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypedDict

from vitald.server.schema.answers import ApiSource
from vitald.server.schema.devices import ApiDevice
from vitald.server.schema.values import (
    Action,
    ComponentKind,
    ComponentName,
    Keywords,
    Moment,
    Reading,
    Status,
    _Count,
    _PciId,
)


class PciAttributes(TypedDict, total=False):
    """The PCI attributes of a component."""

    pci: Annotated[str, Keywords(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")]
    """Address, as sysfs writes it."""
    vendor: _PciId
    """PCI vendor id."""
    device: _PciId
    """PCI device id."""
    driver: str | None
    """Driver bound to it."""


class ApiComponent(TypedDict):
    """One thing that is watched, or that has an open finding."""

    name: ComponentName
    kind: ComponentKind
    id: str
    """The part of the name after the slash; empty for the node itself."""
    device: ApiDevice
    """The names of the device in it; empty for the node, and where none is known."""
    status: Status
    """Of this component alone; the node's is that of the verdict."""
    action: Action
    findings: _Count
    """Open findings of the component itself."""
    sources: list[str]
    """The sources that read it; empty if only the kernel log would report its faults."""
    unknownReasons: list[str]
    """Why its state is unknown, by source: not read within the deadline, or no reading shows its
    health."""
    attributes: PciAttributes
    """Its PCI attributes; empty if it is not on PCI."""


class WatchedComponent(ApiComponent):
    """A component that is watched: its identity, its status, and the sources that read it."""

    identity: str | None
    """UUID or serial number, which it keeps when it moves to another slot. Null if unknown."""
    observations: list[ApiObservation]
    """What each of its sources observes."""


class ApiObservation(TypedDict):
    """A component as one source observes it."""

    name: Annotated[str, Keywords(examples=("nvml", "neuron"))]
    """The source."""
    lastRead: Moment | None
    """When it last read this component; null if it never did."""
    unknownReason: str
    """Why the component's state is unknown to this source; empty if it is known."""
    observable: _Count
    """Number of readings that it observes now."""
    attempted: _Count
    """Number of readings that it tries to read."""
    simulated: bool
    """The source is simulated."""
    readings: Mapping[str, Reading]
    """The last readings: values by name, in base units. A list has one value for each part, such as
    a core or a link."""
    notObservable: Mapping[str, str]
    """The readings that cannot be observed, and why."""


class ApiCoverage(TypedDict):
    """How many of the readings that a source tries to read of its components of one kind it
    observes now. A component that is not observed now has no observable reading."""

    source: str
    """Its name."""
    kind: ComponentKind
    components: _Count
    """Number of components of this kind that it reads. 0: it can read none here, and the gaps have
    the reason."""
    observable: _Count
    """Number of readings that it observes, over all these components."""
    attempted: _Count
    """Number of readings that it tries to read, over all these components."""
    gaps: list[ApiGap]
    """What it cannot observe, each reason once for the same components; the widest first."""


class ApiGap(TypedDict):
    """Readings that cannot be observed."""

    reason: str
    """Why."""
    readings: Annotated[list[str], Keywords(min_items=1)]
    """Their names."""
    components: Annotated[list[ComponentName], Keywords(min_items=1)]
    """Of which components."""


class Components(TypedDict):
    """What is watched, and what of it cannot be observed here."""

    components: Annotated[list[WatchedComponent], Keywords(min_items=1)]
    """The node first, then by kind."""
    coverage: list[ApiCoverage]
    """By source and kind of component."""
    sources: Annotated[list[ApiSource], Keywords(min_items=1)]
    """The state of the sources."""
    off: list[str]
    """Sources that the configuration switched off: `enabled = false` in the section of that
    name."""
