"""Metrics of the verdict: the node's status and its open findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric

from vitald.metrics.label_values import clean_label
from vitald.metrics.single import format_bool
from vitald.model import Action, Finding, Status, When
from vitald.model.component import find_pci_bus_id

OTHER = "other"  # as a label's value: what is left out elsewhere
_FINDING_LABELS = ("component", "pci_bus_id", "kind", "code", "action", "when", "simulated")


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingLabels:
    """What findings are counted by. `code`: with its kind, `xid/79`."""

    component: str
    code: str
    action: Action
    when: When
    is_simulated: bool

    def list_values(self) -> list[str]:
        """The values of the labels, in their order."""
        kind, _, code = self.code.partition("/")
        return [
            clean_label(self.component),
            find_pci_bus_id(self.component),
            clean_label(kind),
            clean_label(code),
            self.action.value,
            self.when.value,
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


def get_labels(finding: Finding) -> FindingLabels:
    required = finding.requirement
    return FindingLabels(
        component=finding.component.name,
        code=finding.code,
        action=required.action,
        when=required.when,
        is_simulated=finding.is_simulated,
    )


def group_findings(opened: Iterable[tuple[FindingLabels, float]]) -> list[FindingGroup]:
    """`opened`: the labels of each finding, and since when it is open."""
    groups: dict[FindingLabels, FindingGroup] = {}
    for labels, since in opened:
        known = groups.get(labels)
        groups[labels] = (
            FindingGroup(labels, 1, since)
            if known is None
            else FindingGroup(labels, known.count + 1, min(known.since, since))
        )
    return list(groups.values())


def _make_findings_family() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "vitald_findings",
        "Open findings, without those that an operator accepted for a time.",
        labels=_FINDING_LABELS,
    )


def count_worst_findings(groups: Iterable[FindingGroup], limit: int) -> Metric:
    """The worst `limit` groups; the others are one sample for each action, with their most urgent
    date: of the real ones only, if there are any.
    """
    ordered = sorted(groups, key=_make_sort_key)
    family = _make_findings_family()
    for group in ordered[:limit]:
        family.add_metric(group.labels.list_values(), group.count)
    rest: dict[Action, list[FindingGroup]] = {}
    for group in ordered[limit:]:
        rest.setdefault(group.labels.action, []).append(group)
    for action, left_out in rest.items():
        real = [group for group in left_out if not group.labels.is_simulated]
        shown = real or left_out
        when = max((group.labels.when for group in shown), key=lambda when: when.urgency)
        family.add_metric(
            [OTHER, "", OTHER, OTHER, action.value, when.value, format_bool(not real)],
            sum(group.count for group in shown),
        )
    return family


def _make_sort_key(group: FindingGroup) -> tuple[bool, int, int, float, str, str]:
    """The worst first. A drill must not hide what is real."""
    labels = group.labels
    return (
        labels.is_simulated,
        -labels.action.rank,
        -labels.when.urgency,
        group.since,
        labels.component,
        labels.code,
    )


def collect_findings(groups: Iterable[FindingGroup]) -> Iterator[Metric]:
    """The number of open findings, and since when they are open."""
    number = _make_findings_family()
    opened = GaugeMetricFamily(
        "vitald_finding_opened_timestamp_seconds",
        "When the finding was opened; of several with the same labels, the first one. Without "
        "accepted findings.",
        labels=_FINDING_LABELS,
    )
    for group in groups:
        values = group.labels.list_values()
        number.add_metric(values, group.count)
        opened.add_metric(values, group.since)
    yield number
    yield opened
