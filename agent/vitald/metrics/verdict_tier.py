"""
The verdict tier: the few families that alerts need, for fleets that cannot keep all metrics of each
node. At most 70 series of a node, whatever is wrong with it.

`FAMILIES` is the budget. A family is made by the same function as in the full page. Where it has
more series than its share, the worst come first; the rest is summed or left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from vitald.core.incident_steps import Step
from vitald.metrics.exposition import WrittenFamily
from vitald.metrics.verdict import MAX_LISTED, OTHER
from vitald.model.words import ComponentKind, Status

MAX_SERIES = 70
_ALERTED_CHECKS = ("effect", "brake")  # an alert reads them, whatever else does not pass
_ACCELERATORS = (ComponentKind.GPU.value, ComponentKind.NEURON.value)


@dataclass(frozen=True, slots=True)
class TierFamily:
    """How many series a family may have, of those that `keep` is true for. If `rest` is set, the
    last of them stands for those that are left out, with the worst of their values and `other` as
    that label.
    """

    limit: int
    note: str = ""  # what is left out
    keep: Callable[[Sample], bool] = lambda _: True
    order: Callable[[Sample], float] | None = None  # the worst have the lowest key
    rest: str = ""


def _lowest_first(sample: Sample) -> float:
    return sample.value


def _highest_first(sample: Sample) -> float:
    return -sample.value


def _is_accelerator(sample: Sample) -> bool:
    return sample.labels["component_kind"] in _ACCELERATORS


def _alerted_first(sample: Sample) -> float:
    return sample.labels["check"] not in _ALERTED_CHECKS


def _real_first(sample: Sample) -> float:
    return sample.labels["simulated"] == "true"


# By the names of the families, without `_total` and `_info`
FAMILIES = {
    "vitald_status": TierFamily(len(Status)),
    "vitald_reboot_required": TierFamily(1),
    "vitald_reboot_confirmed": TierFamily(1),
    "vitald_replacement_required": TierFamily(1),
    "vitald_replacement_confirmed": TierFamily(1),
    "vitald_simulated": TierFamily(1),
    "vitald_findings": TierFamily(
        MAX_LISTED + 2,
        f"The {MAX_LISTED} worst, the strongest action first; accepted ones, those that wait for"
        " maintenance and drills come last. The others are summed, those of drills apart; their"
        " other labels are `other`.",
    ),
    "vitald_incident_step_seconds": TierFamily(
        len(Step), "Those of the last real incident before those of a drill.", order=_real_first
    ),
    "vitald_findings_escalated": TierFamily(1),
    "vitald_transitions": TierFamily(1),
    "vitald_device_lemon_score": TierFamily(1, "The highest.", order=_highest_first),
    "vitald_components": TierFamily(
        len(_ACCELERATORS) * len(Status), "Of GPUs and Neuron devices.", keep=_is_accelerator
    ),
    "vitald_source_up": TierFamily(
        4,
        "Of more than four, three, those that are down first, and `other`: 0 if any of the rest is"
        " down.",
        order=_lowest_first,
        rest="source",
    ),
    "vitald_diagnostic_next_timestamp_seconds": TierFamily(
        1, "The one that is due first.", order=_lowest_first
    ),
    "vitald_diagnostic_owed_since_timestamp_seconds": TierFamily(
        1, "The one that is owed for longest.", order=_lowest_first
    ),
    "vitald_publish_last_report_timestamp_seconds": TierFamily(1),
    "vitald_publish_up": TierFamily(
        2,
        "Of more than two, one, a sink that fails first, and `other`: 0 if any of the rest fails.",
        order=_lowest_first,
        rest="sink",
    ),
    "vitald_recovery_requested": TierFamily(2),
    "vitald_recovery_refused": TierFamily(
        len(_ALERTED_CHECKS), "Of two checks, `effect` and `brake` first.", order=_alerted_first
    ),
    "vitald_slurm_unknown_jobs": TierFamily(2),
    "vitald_kernel_records_lost": TierFamily(1),
    "vitald_ledger_ok": TierFamily(1),
    "vitald_config_refused": TierFamily(1),
    "vitald_config_pending_keys": TierFamily(2),
    "vitald_config_hash": TierFamily(1),
    "vitald_node": TierFamily(1),
    "vitald_build": TierFamily(1),
}


def select_families(families: Iterable[Metric]) -> Iterator[Metric]:
    """Those of the tier, with the samples that they may have: at most MAX_SERIES altogether."""
    for family in families:
        share = FAMILIES.get(family.name)
        if share is not None:
            created = f"{family.name}_created"
            samples = [
                sample for sample in family.samples if sample.name != created and share.keep(sample)
            ]
            family.samples = _select_worst(samples, share)
            yield family


def drop_families(
    families: Iterable[Metric | WrittenFamily],
) -> Iterator[Metric | WrittenFamily]:
    """Those that are not of the tier."""
    return (family for family in families if family.name not in FAMILIES)


def _select_worst(samples: list[Sample], share: TierFamily) -> list[Sample]:
    if share.order is not None:
        samples = sorted(samples, key=share.order)
    if not share.rest:
        return samples[: share.limit]
    named = [sample for sample in samples if sample.labels[share.rest] != OTHER]
    if len(named) == len(samples) <= share.limit:
        return samples
    kept = named[: share.limit - 1]
    worst = next(sample for sample in samples if sample not in kept)
    return [*kept, worst._replace(labels={**worst.labels, share.rest: OTHER})]
