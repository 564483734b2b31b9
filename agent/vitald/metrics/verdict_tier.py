"""
The verdict tier: the few families that alerts need, for fleets that cannot keep all metrics of each
node. At most 70 series of a node, whatever is wrong with it.

`FAMILIES` is the budget. A family is made by the same function as in the full page. Where it has
more series than its share, the worst come first; the rest is summed or left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from vitald.collectors.inventory.collector import NAME as INVENTORY
from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.core.config_health import ConfigHealth
from vitald.core.node_state import NodeState
from vitald.metrics import daemon, devices, diagnostics, node, publishers
from vitald.metrics.node_info import NodeIdentity
from vitald.metrics.verdict import OTHER, count_worst_findings, make_status
from vitald.model import Action, Status
from vitald.model.notice import JOB_COLLECTIVE
from vitald.server.diagnostics_view import DiagnosticsView
from vitald.server.recovery_requester import RecoveryRequester

MAX_SERIES = 70
_FINDINGS = 18
_DEVICE_KINDS = 3
_COUNTER = 2  # its value, and in OpenMetrics when it began


@dataclass(frozen=True, slots=True)
class TierFamily:
    """How many series a family may have. If `rest` is set, the last of them stands for those that
    are left out, with the worst of their values and `other` as that label.
    """

    limit: int
    note: str = ""  # what is left out
    order: Callable[[Sample], float] | None = None  # the worst have the lowest key
    rest: str = ""


def _lowest_first(sample: Sample) -> float:
    return sample.value


def _highest_first(sample: Sample) -> float:
    return -sample.value


_KINDS_NOTE = "Of three kinds of devices, those that lack most first."
# By the names of the families, without `_total` and `_info`
FAMILIES = {
    "vitald_status": TierFamily(len(Status)),
    "vitald_reboot_required": TierFamily(1),
    "vitald_reboot_confirmed": TierFamily(1),
    "vitald_replacement_required": TierFamily(1),
    "vitald_replacement_confirmed": TierFamily(1),
    "vitald_simulated": TierFamily(1),
    "vitald_findings": TierFamily(
        _FINDINGS + len(Action),
        f"The {_FINDINGS} worst: real ones before those of drills, the strongest action first. The "
        "others are summed by action, with component, kind and code `other`.",
    ),
    "vitald_findings_escalated": TierFamily(1),
    "vitald_transitions": TierFamily(_COUNTER),
    "vitald_device_lemon_score": TierFamily(1, "The highest.", _highest_first),
    "vitald_node_waiting_seconds": TierFamily(1),
    "vitald_notices": TierFamily(1, "Of `job/collective` only."),
    "vitald_devices": TierFamily(_DEVICE_KINDS, _KINDS_NOTE),
    "vitald_devices_expected": TierFamily(_DEVICE_KINDS, _KINDS_NOTE),
    "vitald_devices_expected_confirmed": TierFamily(_DEVICE_KINDS, _KINDS_NOTE),
    "vitald_source_up": TierFamily(
        6,
        "Of more than six, five, those that are down first, and `other`: 0 if any of the rest is "
        "down.",
        _lowest_first,
        "source",
    ),
    "vitald_diagnostic_next_timestamp_seconds": TierFamily(
        1, "The one that is due first.", _lowest_first
    ),
    "vitald_diagnostic_pass_age_ratio": TierFamily(1, "The highest.", _highest_first),
    "vitald_publish_last_report_timestamp_seconds": TierFamily(1),
    "vitald_publish_up": TierFamily(
        2,
        "Of more than two, one, a sink that fails first, and `other`: 0 if any of the rest fails.",
        _lowest_first,
        "sink",
    ),
    "vitald_recovery_requested": TierFamily(2),
    "vitald_kernel_records_lost": TierFamily(_COUNTER),
    "vitald_ledger_ok": TierFamily(1),
    "vitald_config_last_reload_successful": TierFamily(1),
    "vitald_config_last_reload_success_timestamp_seconds": TierFamily(1),
    "vitald_config_hash": TierFamily(1),
    "vitald_node": TierFamily(1),
    "vitald_build": TierFamily(1),
}


class VerdictTier:
    """Makes the families of the tier, at each scrape."""

    def __init__(
        self,
        node_state: NodeState,
        interpreter: Interpreter,
        diagnostics: DiagnosticsView,
        recovery: RecoveryRequester,
        config_health: ConfigHealth,
        identity: NodeIdentity,
    ) -> None:
        self._node_state = node_state
        self._interpreter = interpreter
        self._diagnostics = diagnostics
        self._recovery = recovery
        self._config_health = config_health
        self._identity = identity

    def collect_metrics(self, build_info: Metric) -> Iterator[Metric]:
        """At most MAX_SERIES series: a family that has no share in FAMILIES is left out."""
        for family in chain(self._collect_families(), (build_info,)):
            share = FAMILIES.get(family.name)
            if share is not None:
                family.samples = _select_worst(family.samples, share)
                yield family

    def _collect_families(self) -> Iterator[Metric]:
        state = self._node_state
        verdict = state.verdict()
        yield from node.collect_flags(verdict)
        yield make_status(verdict.status)
        yield count_worst_findings(node.group_findings(state), _FINDINGS)
        yield node.count_escalated(state)
        yield node.count_transitions(state)
        yield from node.collect_suspects(state)
        yield from node.collect_waiting(state.waiting)
        yield from node.collect_notices(state.notices, (JOB_COLLECTIVE,))
        yield from _keep_kinds(devices.collect_source(state, INVENTORY))
        yield from daemon.collect_sources(state)
        yield diagnostics.collect_schedule(self._diagnostics)
        yield diagnostics.collect_pass_ages(self._diagnostics)
        yield from publishers.collect_metrics(state.publishers)
        yield from self._recovery.collect_metrics()
        yield from daemon.collect_kernel_log(self._interpreter.counters, state.started_at)
        yield from daemon.collect_ledger(state.ledger, state.started_at)
        yield from daemon.collect_config(self._config_health)
        yield from self._identity.collect_metrics()


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


def _keep_kinds(families: Iterable[Metric]) -> list[Metric]:
    """The counts of the same few kinds of devices: those that lack most first."""
    counts = {family.name: family for family in families}
    values = {
        name: {sample.labels["component_kind"]: sample.value for sample in family.samples}
        for name, family in counts.items()
        if name.startswith("vitald_devices")
    }
    here, expected = values.get("vitald_devices", {}), values.get("vitald_devices_expected", {})
    lacking = {kind: expected.get(kind, 0.0) - here.get(kind, 0.0) for kind in {*here, *expected}}
    kept = sorted(lacking, key=lambda kind: (-lacking[kind], kind))[:_DEVICE_KINDS]
    for name in values:
        counts[name].samples = [
            sample for sample in counts[name].samples if sample.labels["component_kind"] in kept
        ]
    return list(counts.values())
