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
    here: Annotated[int | None, Keywords(minimum=0)]
    """How many there are; null while looks do not agree, and where nobody can count them."""
    notObservable: str
    """Why `here` is null; empty where it is not, and before the first look."""
    expected: Annotated[int | None, Keywords(minimum=0)]
    """How many there should be; null where nobody knows."""
    confirmed: bool
    """To have fewer is a fault. Else the number is only being learned, and to have fewer is a
    notice."""
    because: str
    """Who says so; empty where nobody does."""


class ExpectedVersion(TypedDict):
    """What runs, and what may."""

    name: Annotated[str, Keywords(enum=("gpu_driver", "neuron_driver", "efa_driver", "kernel"))]
    """What it is."""
    here: str | None
    """The version that is loaded; null where none is, or it does not say."""
    expected: list[str]
    """Those that the configuration allows; empty for any."""


class ApiExpected(TypedDict):
    """What this node should have, and what is here."""

    instanceType: str
    """What the firmware calls the machine; on EC2 the instance type. Empty where it does not
    say."""
    counts: list[ExpectedCount]
    """Of each kind of device."""
    versions: list[ExpectedVersion]
    """Of the drivers and the kernel."""
    healthyBoots: _Count
    """At so many healthy boots in a row a count must be the same to be confirmed; 0 where nothing
    is learned."""
    thisBootCounted: bool
    """This boot has been counted as a healthy one, or somebody confirmed what is here."""


class Confirmed(ApiExpected):
    """What was confirmed, and what is expected now."""

    confirmed: Annotated[Mapping[DeviceKind, _Count], Keywords(min_properties=1)]
    """How many of each kind are expected from now on. Not what the configuration says, nor GPUs
    where NVML is asked."""


class ConfirmRequest(TypedDict):
    reason: _Reason
