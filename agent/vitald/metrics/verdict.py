"""Metrics of the verdict: the node's status and its open findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from prometheus_client.core import GaugeMetricFamily, Metric

from vitald.checking import parse_pci_address
from vitald.metrics.families import format_bool
from vitald.model.words import Action, Status, When

OTHER = "other"  # as a label's value: what is left out elsewhere
MAX_LISTED = 20  # groups of findings in the verdict tier
_FINDING_LABELS = (
    "component",
    "pci_bus_id",
    "kind",
    "code",
    "action",
    "when",
    "accepted",
    "simulated",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingLabels:
    """What findings are counted by. `code`: with its kind, `xid/79`."""

    component: str
    code: str
    action: Action
    when: When
    is_accepted: bool
    is_simulated: bool

    def list_values(self) -> list[str]:
        """The values of the labels, in their order."""
        kind, _, code = self.code.partition("/")
        return [
            self.component,
            find_pci_bus_id(self.component),
            kind,
            code,
            self.action.value,
            self.when.value,
            format_bool(self.is_accepted),
            format_bool(self.is_simulated),
        ]


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """The findings with the same labels: their number, and since when the first of them is open,
    in seconds since the epoch.
    """

    labels: FindingLabels
    count: int
    since: float


@lru_cache(maxsize=1024)  # at each scrape of each component
def find_pci_bus_id(component: str) -> str:
    """The PCI address in the name of a component; empty for what is not a PCI device."""
    return parse_pci_address(component.partition("/")[2]) or ""


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


def group_findings(opened: Iterable[tuple[FindingLabels, float]]) -> list[FindingGroup]:
    """`opened`: the labels of each finding, and since when it is open."""
    groups: dict[FindingLabels, FindingGroup] = {}
    for labels, since in opened:
        known = groups.get(labels, FindingGroup(labels, 0, since))
        groups[labels] = FindingGroup(labels, known.count + 1, min(known.since, since))
    return list(groups.values())


def collect_findings(groups: Iterable[FindingGroup]) -> Iterator[Metric]:
    """The number of open findings, and since when they are open."""
    number = _make_findings_family()
    opened = GaugeMetricFamily(
        "vitald_finding_opened_timestamp_seconds",
        "When the finding was opened; of several with the same labels, the first one.",
        labels=_FINDING_LABELS,
    )
    for group in groups:
        values = group.labels.list_values()
        number.add_metric(values, group.count)
        opened.add_metric(values, group.since)
    yield number
    yield opened


def count_worst_findings(groups: Iterable[FindingGroup]) -> Metric:
    """The number of open findings: of the worst MAX_LISTED groups each, and of the others the sum,
    those of drills apart.
    """
    ordered = sorted(groups, key=_make_sort_key)
    family = _make_findings_family()
    for group in ordered[:MAX_LISTED]:
        family.add_metric(group.labels.list_values(), group.count)
    rest = Counter[bool]()
    for group in ordered[MAX_LISTED:]:
        rest[group.labels.is_simulated] += group.count
    for is_simulated, count in rest.items():
        family.add_metric([OTHER, "", *[OTHER] * 5, format_bool(is_simulated)], count)
    return family


def _make_findings_family() -> GaugeMetricFamily:
    return GaugeMetricFamily("vitald_findings", "Open findings.", labels=_FINDING_LABELS)


def _make_sort_key(group: FindingGroup) -> tuple[bool, bool, int, int, float, str, str]:
    """The worst first. What does not count now must not hide what does: a drill, what a person
    accepted, what waits for maintenance.
    """
    labels = group.labels
    return (
        labels.is_simulated,
        labels.is_accepted or labels.when is When.MAINTENANCE,
        -labels.action.rank,
        -labels.when.urgency,
        group.since,
        labels.component,
        labels.code,
    )
