"""Components, their readings, and what cannot be observed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypedDict

from vitald.server.schema.answers import ApiSource
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
    """What PCI says of a component."""

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
    """What stands behind the slash of the name; empty for the node itself."""
    status: Status
    """Of this component alone; the node's is the verdict on the whole."""
    action: Action
    findings: _Count
    """Open findings of the component itself."""
    sources: list[str]
    """Which sources look at it; empty where only the kernel log would tell of it."""
    unseen: list[str]
    """Why nobody knows how it is, by source: no look within the deadline, or nothing that says
    anything of its health."""
    attributes: PciAttributes
    """What PCI says of it; empty where it is not on PCI."""


class WatchedComponent(ApiComponent):
    """One thing that is watched: who it is, how it is, and who looks at it."""

    identity: str | None
    """What it keeps when it moves to another slot: UUID or serial number. Null where nobody
    knows."""
    sights: list[Sight]
    """What each of its sources sees."""


class Sight(TypedDict):
    """A component as one source sees it."""

    name: Annotated[str, Keywords(examples=("nvml", "neuron"))]
    """The source."""
    looked: Moment | None
    """When it last looked at this component; null where it never did."""
    unseen: str
    """Why that does not say how it is now; empty where it does."""
    observable: _Count
    """How many of the readings it observes now."""
    asked: _Count
    """How many readings it asks for."""
    simulated: bool
    """What it reads is not real."""
    readings: Mapping[str, Reading]
    """The last look: values by name, in base units. A list has one value for each part, such as a
    core or a link."""
    notObservable: Mapping[str, str]
    """What was asked for and cannot be read of it, and why."""


class ApiCoverage(TypedDict):
    """How much of what a source asks of its components of one kind it observes now. What is not
    seen now is not observed."""

    source: str
    """Its name."""
    kind: ComponentKind
    components: _Count
    """How many components of this kind it looks at. 0: it can look at none here, and the gaps say
    why."""
    observable: _Count
    """Readings that it observes, over all of them."""
    asked: _Count
    """Readings that it asks for, over all of them."""
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
    """How the sources fare."""
    off: list[str]
    """Sources that the configuration switched off: `enabled = false` in the section of that
    name."""
