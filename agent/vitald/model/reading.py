"""
Readings of a component.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

from vitald.model.component import Component

Sample = Union[float, str, "tuple[float, ...]"]  # one value, or one for each part, such as a link


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Readings of one component: values by name, in base units, and the reasons of missing ones.

    `identity` is its UUID or serial number, which survives a move. `fresh` names the values that
    this poll read; the others are from earlier ones.
    """

    component: Component
    identity: str
    time: float
    polled_at: float  # the same moment on the monotonic clock
    values: Mapping[str, Sample]
    fresh: frozenset[str]
    missing: Mapping[str, str] = field(default_factory=dict)
    simulated: bool = False
    unknown_reason: str = ""  # reason why its health is unknown although it was read
    # Index, address, interface, mount
    labels: Mapping[str, str] = field(default_factory=dict)
