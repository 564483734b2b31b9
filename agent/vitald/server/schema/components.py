"""
Components, their readings, and what cannot be observed; the names of a device; expected counts and
versions of devices; GPUs, and their release.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypedDict

from vitald.server.schema.answers import ApiSource
from vitald.server.schema.value_types import (
    Action,
    ComponentKind,
    ComponentName,
    DeviceKind,
    Keywords,
    Moment,
    Reading,
    Status,
    _Count,
    _PciId,
    _Positive,
    _Reason,
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


class ApiDevice(TypedDict, total=False):
    """The names by which people and tools know the device in a slot. An unknown one is left out.
    Each is accepted wherever a component is required, slot and module with that word: `slot 7`."""

    index: Annotated[int, Keywords(minimum=0)]
    """The number that nvidia-smi (`-i`) or neuron-ls gives it; another boot may change it."""
    serial: str
    """Serial number of the board, as it is printed on it; of an adapter its node GUID."""
    uuid: str
    """UUID of the GPU."""
    slot: str
    """Physical slot, as the firmware names it."""
    module: str
    """Position on an SXM board."""
    pci: Annotated[str, Keywords(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")]
    """PCI address, as sysfs writes it."""
    names: list[str]
    """Names of its RDMA device and interfaces."""
    text: str
    """What finds the board, for people: beside the component's name, which has the PCI address."""


class ExpectedCount(TypedDict):
    """How many devices of a kind there are, and should be."""

    kind: DeviceKind
    title: str
    """The same in words."""
    found: Annotated[int | None, Keywords(minimum=0)]
    """How many there are; null while repeated counts differ, and if they cannot be counted."""
    notObservable: str
    """Why `found` is null; empty if it is not, and before the first count."""
    expected: Annotated[int | None, Keywords(minimum=0)]
    """How many there should be; null if unknown."""
    confirmed: bool
    """To have fewer is a fault. Else the number is only being learned, and to have fewer is a
    notice."""
    source: str
    """Where the expected number comes from; empty if there is none."""


class ExpectedVersion(TypedDict):
    """A version in use, and those that are allowed."""

    name: Annotated[str, Keywords(enum=("gpu_driver", "neuron_driver", "efa_driver", "kernel"))]
    """What it is."""
    found: str | None
    """The version that is loaded; null if none is, or it reports none."""
    expected: list[str]
    """Those that the configuration allows; empty for any."""


class ApiExpected(TypedDict):
    """What this node should have, and what is here."""

    instanceType: str
    """The machine type reported by the firmware; on EC2 the instance type. Empty if it reports
    none."""
    counts: list[ExpectedCount]
    """Of each kind of device."""
    versions: list[ExpectedVersion]
    """Of the drivers and the kernel."""
    healthyBoots: _Count
    """At so many healthy boots in a row a count must be the same to be confirmed; 0 where nothing
    is learned."""
    thisBootCounted: bool
    """This boot was counted as a healthy one, or an operator confirmed what is here."""


class Confirmed(ApiExpected):
    """What was confirmed, and what is expected now."""

    confirmed: Annotated[Mapping[DeviceKind, _Count], Keywords(min_properties=1)]
    """How many of each kind are expected from now on. Without the kinds set in the configuration,
    and without GPUs if NVML is used."""


class ConfirmRequest(TypedDict):
    reason: _Reason


class Gpu(TypedDict):
    """A GPU. An unknown value is left out: it is never reported as zero."""

    component: ComponentName
    pci: Annotated[str, Keywords(examples=("0000:65:00.0",))]
    """PCI address."""
    status: Status
    """Of this GPU alone; `unknown` where it has no open finding and is not being read."""
    findings: list[_Positive]
    """Its open findings."""
    lastRead: Moment | None
    """When it was last read from the driver; null if it never was."""
    fresh: bool
    """The readings are current; otherwise they are the last ones."""
    simulated: bool
    """It was read from a simulated library, or its findings belong to a drill."""
    identity: GpuIdentity
    slot: str | None
    """Its physical slot, as named by PCI."""
    readings: Mapping[str, Reading]
    """What was read, by name, in base units: celsius, watts, joules, hertz, seconds, bytes; a flag
    is 0 or 1; a list has one value an NVLink. Of a lost GPU only its faults."""
    notObservable: Mapping[str, str]
    """The readings that cannot be observed, and why."""


class GpuIdentity(TypedDict, total=False):
    """Its identity, as far as the driver reports it. Kept for a lost GPU that was read before."""

    name: str
    """Model."""
    uuid: str
    """Of the board."""
    serial: str
    """Of the board."""
    part_number: str
    """Of the board."""
    vbios: str
    """Version of its VBIOS."""
    inforom: str
    """Version of its InfoROM."""
    module_id: int
    """Module on the baseboard."""
    minor: int
    """Number of its device file, `/dev/nvidia4`."""
    index: int
    """Number that nvidia-smi gives it."""
    board_id: int
    """The same for the GPUs on one board."""
    driver_version: str
    """Of the driver."""


class Gpus(TypedDict):
    """The GPUs of the node, and the state of the source that reads them."""

    gpus: list[Gpu]
    """Ordered by PCI address."""
    source: ApiSource | None
    """The source `nvml`; null if NVML is not used on this node (`[nvml] enabled = false`)."""


class Released(TypedDict):
    """What was released, and the processes that still have it open."""

    gpus: list[ComponentName]
    """Those that were released; empty for all."""
    seconds: Annotated[float, Keywords(minimum=1, maximum=86400)]
    """For how long."""
    until: Moment
    """When they are taken back."""
    deviceUsers: list[Holder]
    """Other processes that have the devices open."""
    notInspected: Annotated[int, Keywords(minimum=-1)]
    """Number of processes that vitald was not allowed to inspect; -1 if it could inspect none."""
    stuck: list[_Positive]
    """Processes of vitald's own that hang in the driver and cannot be ended: only a reboot frees
    the device."""
    free: bool
    """Neither vitald nor any process that it may inspect has them open."""


class Holder(TypedDict):
    """A process that has a device open."""

    pid: _Positive
    """Its number."""
    process: str
    """Its name; `?` where it has just ended."""


class ReleaseEnded(TypedDict):
    """The releases are over."""

    ended: _Count
    """Number of releases that this ended."""


class _OptionalReleaseRequest(TypedDict, total=False):
    seconds: Annotated[float, Keywords(minimum=1, maximum=86400, default=600)]
    """After how long they are taken back without a request."""
    gpus: Annotated[list[str], Keywords(default=())]
    """Only these, by any of their names (PCI address, index, serial number, UUID); empty for all.
    The driver itself is released only with all of them."""


class ReleaseRequest(_OptionalReleaseRequest):
    reason: _Reason


class EndReleaseRequest(TypedDict, total=False):
    reason: _Reason
    """Only the releases that were requested with this reason; all without it."""
