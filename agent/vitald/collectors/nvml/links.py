"""
Compares the NVLinks and the fabric of a GPU with its own past and with its siblings: GPUs of the
same model on this node.

A GPU in MIG mode is left out, as the fabric manager may switch its links off; findings about its
links are resolved.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median_low

from vitald.model.source import Sample

Values = Mapping[str, Sample]

_COMPLETED = 3.0


def compare_links(
    ever: set[int], known: Values, siblings: Sequence[Values], *, switched: bool
) -> dict[str, Sample]:
    """How many links are expected, and for each whether it is expected to be active and is not.
    `ever`: this GPU's links that were ever active, to which the active ones are added; `known`: its
    readings; `switched`: there are NVSwitches on PCI, so links are expected even if no GPU ever had
    one; so they are of NVL cards, if there are several.
    """
    states = _read_states(known)
    if known.get("mig_mode"):
        return {"nvlink_down": (0.0,) * max(1, len(states)), "nvlinks_absent": 0.0}
    ever |= {link for link, state in enumerate(states) if state == 1.0}
    compared = [gpu for gpu in siblings if "nvlinks" in gpu and not gpu.get("mig_mode")]
    to_switch = any(gpu.get("nvlink_switched") == 1.0 for gpu in (known, *siblings))
    expected = ever | _find_usual(list(map(_read_states, compared)), alike=to_switch)
    absent: dict[str, Sample] = {
        "nvlinks_absent": float(
            (switched or (bool(siblings) and _is_bridged(known)))
            and not expected
            and not any(states)
        )
    }
    if not expected and not states:
        return absent
    width = max([len(states), *(link + 1 for link in expected)])
    # A link that could not be read (NaN) may be active; one that the driver no longer knows is
    # not.
    active = [*states, *([0.0] * (width - len(states)))]
    down = tuple(float(link in expected and state == 0.0) for link, state in enumerate(active))
    found: dict[str, Sample] = {
        **absent,
        "nvlink_down": down,
        "nvlinks_expected": float(len(expected)),
    }
    if not states:
        found["nvlinks_active"] = 0.0
    # A link that is down may not report its remote device; the siblings are wired alike.
    return {**found, "nvlink_to_switch": float(to_switch)}


def _is_bridged(known: Values) -> bool:
    """Whether it is a card that is made to be joined to others by bridges: H100 NVL, H200 NVL."""
    return str(known.get("name", "")).endswith(" NVL")


def compare_errors(known: Values, siblings: Sequence[Values]) -> dict[str, Sample]:
    """By how much each link's counters are above those of most links of this GPU, and of all GPUs
    of its model. GPUs are read one after another: what happens to all is seen on one of them first.
    """
    found: dict[str, Sample] = {}
    for name in ("nvlink_recoveries", "nvlink_replays"):
        own = known.get(name)
        if not isinstance(own, tuple):
            continue
        counts = _read_counts(known, name)
        everywhere = [*counts, *(count for gpu in siblings for count in _read_counts(gpu, name))]
        usual = max(median_low(counts), median_low(everywhere)) if counts else 0.0
        found[f"{name}_apart"] = tuple(
            count if math.isnan(count) else max(0.0, count - usual) for count in own
        )
    return found


def _read_counts(known: Values, name: str) -> list[float]:
    links = known.get(name)
    return [count for count in links if not math.isnan(count)] if isinstance(links, tuple) else []


def _read_states(known: Values) -> tuple[float, ...]:
    """For each link: 1 active, 0 inactive, NaN unknown. Empty if the GPU has none."""
    states = known.get("nvlink_active")
    if isinstance(states, tuple):
        return states
    count = known.get("nvlinks")
    return (math.nan,) * int(count) if isinstance(count, (int, float)) else ()


def _find_usual(siblings: Sequence[tuple[float, ...]], *, alike: bool) -> set[int]:
    """The links that are active on most GPUs of the node, counting this GPU as one on which they
    are not. `alike`: GPUs on switches are all wired alike, so half of the siblings is enough.
    """
    active = Counter(
        link for states in siblings for link, state in enumerate(states) if state == 1.0
    )
    total = len(siblings) + (0 if alike else 1)
    return {link for link, count in active.items() if count * 2 > total}


def compare_fabric(
    known: Values, siblings: Sequence[Values], *, outside: bool = False
) -> dict[str, Sample]:
    """Whether this GPU is in another NVLink domain than most GPUs of the node. If there is no
    majority, each of them differs.

    `outside`: according to NVML, the GPU is in no fabric.
    """
    if known.get("mig_mode"):
        return {"fabric_differs": 0.0}
    if outside:
        states = [gpu["fabric_state"] for gpu in siblings if "fabric_state" in gpu]
        differs = states.count(_COMPLETED) * 2 > len(siblings) + 1
        return {"fabric_differs": float(differs)} if states else {}
    own = _read_domain(known)
    if own is None:
        return {}
    domains = [domain for gpu in siblings if (domain := _read_domain(gpu)) is not None]
    if not domains:
        return {}
    counted = Counter([own, *domains])
    return {"fabric_differs": float(counted[own] * 2 <= counted.total() and len(counted) > 1)}


def _read_domain(known: Values) -> tuple[Sample, Sample] | None:
    """Cluster UUID and clique; None until the GPU has joined the fabric."""
    if (
        known.get("fabric_state") != _COMPLETED
        or known.get("fabric_status")
        or known.get("mig_mode")
    ):
        return None
    if "fabric_cluster" not in known or "fabric_clique" not in known:
        return None
    return known["fabric_cluster"], known["fabric_clique"]
