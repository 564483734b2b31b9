"""
NVLinks and the fabric of a GPU beside its own past and its siblings: GPUs of the same model on this
node.

A GPU in MIG mode is not compared, and nobody with it: fabric manager may switch its links off. What
was said of it before ends.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from vitald.model import Sample

Values = Mapping[str, Sample]

_COMPLETED = 3.0


class Links:
    """The NVLinks that were ever active, by the GPU's identity."""

    def __init__(self, memory: Mapping[str, Sequence[int]] | None = None) -> None:
        self._ever = {identity: set(map(int, links)) for identity, links in (memory or {}).items()}

    @property
    def memory(self) -> dict[str, list[int]]:
        return {identity: sorted(links) for identity, links in self._ever.items()}

    def rename(self, former: str, identity: str) -> None:
        """A GPU that went by its address has said its UUID."""
        if former in self._ever:
            self._ever[identity] = self._ever.pop(former)

    def compare(
        self, identity: str, known: Values, siblings: Sequence[Values], *, switched: bool
    ) -> dict[str, Sample]:
        """How many links there should be, and of each whether it should be active and is not.
        `known`: this GPU's readings; `switched`: there are NVSwitches on PCI, so there should be
        links even where no GPU ever had any.
        """
        states = _states(known)
        if known.get("mig_mode"):
            return {"nvlink_down": (0.0,) * max(1, len(states)), "nvlinks_absent": 0.0}
        ever = self._ever.setdefault(identity, set())
        ever |= {link for link, state in enumerate(states) if state == 1.0}
        beside = [one for one in siblings if "nvlinks" in one and not one.get("mig_mode")]
        to_switch = any(one.get("nvlink_switched") == 1.0 for one in (known, *siblings))
        expected = ever | _usual([_states(one) for one in beside], alike=to_switch)
        absent: dict[str, Sample] = {
            "nvlinks_absent": float(switched and not expected and not any(states))
        }
        if not expected and not states:
            return absent
        width = max([len(states), *(link + 1 for link in expected)])
        # A link that could not be read (NaN) may be active; one that the driver does not know any
        # more is not.
        active = [*states, *([0.0] * (width - len(states)))]
        down = tuple(float(link in expected and state == 0.0) for link, state in enumerate(active))
        found: dict[str, Sample] = {
            **absent,
            "nvlink_down": down,
            "nvlinks_expected": float(len(expected)),
        }
        if not states:
            found["nvlinks_active"] = 0.0
        # A link that is down may not say what is at its other end; the siblings' are wired alike.
        return {**found, "nvlink_to_switch": float(to_switch)}


def _states(known: Values) -> tuple[float, ...]:
    """Of each link: 1 active, 0 not, NaN not known. Empty where the GPU has none."""
    states = known.get("nvlink_active")
    if isinstance(states, tuple):
        return states
    count = known.get("nvlinks")
    return (math.nan,) * int(count) if isinstance(count, (int, float)) else ()


def _usual(others: Sequence[tuple[float, ...]], *, alike: bool) -> set[int]:
    """The links that most GPUs of the node have active, with one that has none of them. `alike`:
    GPUs on switches are all wired alike, so half of them are enough.
    """
    active = Counter(link for states in others for link, state in enumerate(states) if state == 1.0)
    return {link for link, count in active.items() if count * 2 > len(others) + (0 if alike else 1)}


def fabric_differs(
    known: Values, siblings: Sequence[Values], *, outside: bool = False
) -> dict[str, Sample]:
    """Whether this GPU is in another NVLink domain than most GPUs of the node. Where no most agree,
    each of them differs.

    `outside`: NVML says that it has nothing to do with a fabric.
    """
    if known.get("mig_mode"):
        return {"fabric_differs": 0.0}
    if outside:
        states = [one["fabric_state"] for one in siblings if "fabric_state" in one]
        return (
            {"fabric_differs": float(states.count(_COMPLETED) * 2 > len(siblings) + 1)}
            if states
            else {}
        )
    own = _domain(known)
    if own is None:
        return {}
    domains = [domain for one in siblings if (domain := _domain(one)) is not None]
    if not domains:
        return {}
    counted = Counter([own, *domains])
    return {"fabric_differs": float(counted[own] * 2 <= counted.total() and len(counted) > 1)}


def _domain(known: Values) -> tuple[Sample, Sample] | None:
    """Cluster UUID and clique; None until the GPU has joined the fabric, where the two mean
    nothing.
    """
    if (
        known.get("fabric_state") != _COMPLETED
        or known.get("fabric_status")
        or known.get("mig_mode")
    ):
        return None
    if "fabric_cluster" not in known or "fabric_clique" not in known:
        return None
    return known["fabric_cluster"], known["fabric_clique"]
