"""GPUs, and their release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypedDict

from vitald.server.schema.answers import ApiSource
from vitald.server.schema.value_types import (
    ComponentName,
    Keywords,
    Moment,
    Reading,
    Status,
    _Count,
    _Positive,
    _Reason,
)


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
