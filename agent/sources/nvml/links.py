"""
NVLinks and the fabric of a GPU beside its own past and its siblings: GPUs of the same model on this node.

A GPU in MIG mode is not compared, and nobody with it: fabric manager may switch its links off.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from agent.model import Sample

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

    def compare(self, identity: str, known: Values, siblings: Sequence[Values], *, switched: bool) -> dict[str, Sample]:
        """How many links there should be, and of each whether it should be active and is not. `known`: this GPU's readings; `switched`:
        there are NVSwitches on PCI, so there should be links even where no GPU ever had any."""
        if known.get("mig_mode"):
            return {}
        states = _states(known)
        ever = self._ever.setdefault(identity, set())
        ever |= {link for link, state in enumerate(states) if state == 1.0}
        others = [_states(one) for one in siblings if "nvlinks" in one and not one.get("mig_mode")]
        expected = ever | _usual(others)
        absent: dict[str, Sample] = {"nvlinks_absent": float(switched and not expected and not any(states))}
        if not expected and not states:
            return absent
        width = max([len(states), *(link + 1 for link in expected)])
        # A link that could not be read (NaN) may be active; one that the driver does not know any more is not.
        active = [*states, *([0.0] * (width - len(states)))]
        down = tuple(float(link in expected and state == 0.0) for link, state in enumerate(active))
        found: dict[str, Sample] = {**absent, "nvlink_down": down, "nvlinks_expected": float(len(expected))}
        if not states:
            found["nvlinks_active"] = 0.0
        # A link that is down may not say what is at its other end; the siblings' are wired alike.
        return {**found, "nvlink_to_switch": float(any(one.get("nvlink_switched") == 1.0 for one in (known, *siblings)))}


def _states(known: Values) -> tuple[float, ...]:
    """Of each link: 1 active, 0 not, NaN not known. Empty where the GPU has none."""
    states = known.get("nvlink_active")
    if isinstance(states, tuple):
        return states
    count = known.get("nvlinks")
    return (math.nan,) * int(count) if isinstance(count, (int, float)) else ()


def _usual(others: Sequence[tuple[float, ...]]) -> set[int]:
    """The links that most GPUs of the node have active, with one that has none of them."""
    active = Counter(link for states in others for link, state in enumerate(states) if state == 1.0)
    return {link for link, count in active.items() if count * 2 > len(others) + 1}


def fabric_differs(known: Values, siblings: Sequence[Values]) -> dict[str, Sample]:
    """Whether this GPU is in another NVLink domain than most GPUs of the node. Where no most agree, each of them differs."""
    own = _domain(known)
    if own is None:
        return {}
    domains = [domain for one in siblings if (domain := _domain(one)) is not None]
    if not domains:
        return {}
    counted = Counter([own, *domains])
    return {"fabric_differs": float(counted[own] * 2 <= counted.total() and len(counted) > 1)}


def _domain(known: Values) -> tuple[Sample, Sample] | None:
    """Cluster UUID and clique; None until the GPU has joined the fabric, where the two mean nothing."""
    if known.get("fabric_state") != _COMPLETED or known.get("fabric_status") or known.get("mig_mode"):
        return None
    if "fabric_cluster" not in known or "fabric_clique" not in known:
        return None
    return known["fabric_cluster"], known["fabric_clique"]
