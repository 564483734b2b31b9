"""GPUs, and their release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypedDict

from vitald.server.schema.answers import ApiSource
from vitald.server.schema.values import (
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
    """A GPU. What is not known is not there: never a zero for what nobody has read."""

    component: ComponentName
    pci: Annotated[str, Keywords(examples=("0000:65:00.0",))]
    """PCI address."""
    status: Status
    """Of this GPU alone; `unknown` where it has no open finding and is not being read."""
    findings: list[_Positive]
    """Its open findings."""
    looked: Moment | None
    """When the driver was last asked about it; null where it never was."""
    fresh: bool
    """The readings are of now; otherwise they are the last ones."""
    simulated: bool
    """It is not real: read from a simulated library, or its findings are a drill's."""
    identity: GpuIdentity
    slot: str | None
    """Physical slot that PCI names for it."""
    readings: Mapping[str, Reading]
    """What was read, by name, in base units: celsius, watts, joules, hertz, seconds, bytes; a flag
    is 0 or 1; a list has one value an NVLink. Of a lost GPU only its faults."""
    notObservable: Mapping[str, str]
    """What was asked for and cannot be read of it, and why."""


class GpuIdentity(TypedDict, total=False):
    """Who it is, as far as the driver says. Still known of a lost GPU that was read before."""

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
    board_id: int
    """The same for the GPUs on one board."""
    driver_version: str
    """Of the driver."""


class Gpus(TypedDict):
    """The GPUs of the node, and how the source fares that reads them."""

    gpus: list[Gpu]
    """Ordered by PCI address."""
    source: ApiSource | None
    """The source `nvml`; null where NVML is not asked on this node (`[nvml] enabled = false`)."""


class Released(TypedDict):
    """What was let go of, and who has it open all the same."""

    gpus: list[ComponentName]
    """Those that were let go of; empty for all."""
    seconds: Annotated[float, Keywords(minimum=1, maximum=86400)]
    """For how long."""
    until: Moment
    """When they are taken back."""
    holders: list[Holder]
    """Other processes that have the devices open."""
    notLookedAt: Annotated[int, Keywords(minimum=-1)]
    """How many processes vitald was not allowed to look at; -1 where none could be."""
    stuck: list[_Positive]
    """Processes of vitald's own that hang in the driver and cannot be ended: only a reboot frees
    the device."""
    free: bool
    """Nothing of vitald has them open, and no process that it may look at."""


class Holder(TypedDict):
    """A process that has a device open."""

    pid: _Positive
    """Its number."""
    process: str
    """Its name; `?` where it has just ended."""


class ReleaseEnded(TypedDict):
    """That it is over."""

    ended: _Count
    """How many releases that ended."""


class _OptionalReleaseRequest(TypedDict, total=False):
    seconds: Annotated[float, Keywords(minimum=1, maximum=86400, default=600)]
    """When they are taken back without being asked."""
    gpus: Annotated[list[str], Keywords(default=())]
    """Only these, by PCI address as `/v1/gpus` writes it; empty for all. The driver itself is let
    go of only with all of them."""


class ReleaseRequest(_OptionalReleaseRequest):
    reason: _Reason


class EndReleaseRequest(TypedDict):
    pass
