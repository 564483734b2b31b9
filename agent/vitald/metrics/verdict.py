"""Metrics of the verdict: the node's status and its open findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily

from vitald.metrics.single import format_bool
from vitald.model import Action, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingLabels:
    """What findings are counted by. `code`: with its kind, `xid/79`."""

    component: str
    code: str
    action: Action
    is_simulated: bool


def make_status(current: Status) -> GaugeMetricFamily:
    """The node's status, one sample for each possible one."""
    family = GaugeMetricFamily(
        "vitald_status",
        "The node's status: 1 for the current status, 0 for the others.",
        labels=["status"],
    )
    for status in Status:
        family.add_metric([status.value], status is current)
    return family


def make_findings(counts: Mapping[FindingLabels, int]) -> GaugeMetricFamily:
    """The number of open findings."""
    family = GaugeMetricFamily(
        "vitald_findings",
        "Open findings.",
        labels=["component", "kind", "code", "action", "simulated"],
    )
    for labels, count in counts.items():
        kind, _, code = labels.code.partition("/")
        family.add_metric(
            [labels.component, kind, code, labels.action.value, format_bool(labels.is_simulated)],
            count,
        )
    return family
