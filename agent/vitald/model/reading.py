"""
What was read of a component.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

from vitald.model.component import Component

Sample = Union[float, str, "tuple[float, ...]"]  # a value, or one for each part, such as a link


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What was read of one component: values by the name of the reading, in base units; what cannot
    be observed, and why.

    `identity` is what survives a move (UUID). `fresh` are the values that this look read; the
    others are from earlier ones.
    """

    component: Component
    identity: str
    time: float
    looked: float  # the same moment on the monotonic clock
    values: Mapping[str, Sample]
    fresh: frozenset[str]
    missing: Mapping[str, str] = field(default_factory=dict)
    simulated: bool = False
    blind: str = ""  # looked at, but nothing can be said of its health, and why
    who: Mapping[str, str] = field(
        default_factory=dict
    )  # what finds it: index, address, interface, mount
