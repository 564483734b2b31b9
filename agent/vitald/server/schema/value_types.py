"""Values of the API that have a format or a fixed set of words, and their JSON Schema keywords."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias, TypedDict, Union

from vitald.catalog import rules
from vitald.model import words


@dataclass(frozen=True, slots=True)
class Keywords:
    """JSON Schema keywords of a value, beyond its type; in snake case."""

    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_items: int | None = None
    max_items: int | None = None
    min_properties: int | None = None
    unique_items: bool | None = None
    title: str | None = None
    pattern: str | None = None
    format: str | None = None
    enum: tuple[str, ...] | None = None
    default: str | float | bool | tuple[()] | None = None
    examples: tuple[str, ...] | None = None


_Count: TypeAlias = Annotated[int, Keywords(minimum=0)]
_Positive: TypeAlias = Annotated[int, Keywords(minimum=1)]
_Value: TypeAlias = Union[str, float, bool, list[int], None]

Reading: TypeAlias = Union[float, str, list[Union[float, str, None]]]

_Level: TypeAlias = Annotated[str, Keywords(pattern="^[0-9]+$")]
_CheckName: TypeAlias = Annotated[
    str, Keywords(examples=("dcgm", "dcgm_health", "efa_loopback", "nccom", "nccl"))
]
_RunId: TypeAlias = Annotated[
    str,
    Keywords(pattern="^[A-Za-z0-9][A-Za-z0-9._:+-]{0,79}$", examples=("20261120T134808-3-dcgm-2",)),
]
_RequestedRunId: TypeAlias = Annotated[str, Keywords(pattern="^[A-Za-z0-9][A-Za-z0-9._:+-]{0,79}$")]
_PciId: TypeAlias = Annotated[str, Keywords(pattern="^[0-9a-f]{4}$")]

_Reason: TypeAlias = Annotated[str, Keywords(pattern=r"\S", min_length=1, max_length=500)]
"""One to 500 characters, not only blanks."""

_FaultClassed = TypedDict("_FaultClassed", {"class": "FaultClass"})  # a word of Python's

Moment: TypeAlias = Annotated[
    str,
    Keywords(
        format="date-time",
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$",
    ),
]
"""RFC 3339, UTC, milliseconds."""

Status: TypeAlias = Annotated[str, words.Status]
"""`unhealthy`: a finding requires a reset or more, now. `unknown`: a component that must be watched
cannot be read, or was released. `degraded`: any other finding is open."""

Action: TypeAlias = Annotated[str, words.Action]
"""What must be done, in order of strength. `inspect`: an inspection by a person or a
diagnostic."""

When: TypeAlias = Annotated[str, words.When]
"""Whether it is due at once, once the running work has ended, or at the next maintenance: that
changes no fitness and no flag."""

FaultClass: TypeAlias = Annotated[str, rules.FaultClass]
"""Whose fault it is."""

ComponentKind: TypeAlias = Annotated[str, words.ComponentKind]
"""What kind of thing."""

ComponentName: TypeAlias = Annotated[
    str,
    Keywords(
        pattern=f"^({'|'.join(kind.value for kind in words.ComponentKind)})(/.+)?$",
        examples=("node", "gpu/0000:65:00.0"),
    ),
]
"""The kind and, after a slash, the address: a PCI address or a device name."""

Code: TypeAlias = Annotated[
    str, Keywords(pattern="^[^/]+/.+$", examples=("xid/79", "sxid/20034", "fs/shutdown"))
]
"""Kind and code of a fault, as in `vitald explain`."""

Fields: TypeAlias = Mapping[str, _Value]
"""What the line itself states, by name; the names depend on the kind."""

DeviceKind: TypeAlias = Annotated[str, Keywords(enum=("gpus", "neuron", "efa", "nics", "nvme"))]
"""A kind of device that is counted."""

Outcome: TypeAlias = Annotated[str, words.Outcome]
"""Of a whole run. Only `pass` means that the hardware is healthy, and only `fail` that it is
faulty. `config`: settings or the environment are wrong. `inconclusive`: nothing failed, and not all
was tested. `error`: it did not run, or not to its end. `not_applicable`: the node cannot be tested
in its present mode."""

Remedy: TypeAlias = Annotated[str, words.Remedy]
"""What a result requires, from the weakest to the strongest."""
