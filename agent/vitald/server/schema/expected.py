"""Expected counts and versions of devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypedDict

from vitald.server.schema.values import DeviceKind, Keywords, _Count, _Reason


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
