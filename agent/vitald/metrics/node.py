"""
Metrics of the node: its verdict, components, findings, suspect devices and events; and what kind of
node it is, for comparing faults over a fleet: instance type, kernel, drivers, rack. Of that, what
was read last stays: sources fail just when faults are compared.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from vitald.collectors.inventory.collector import NAME as INVENTORY
from vitald.collectors.nvml.gpu_node import NAME as NVML
from vitald.core.components import ComponentCoverage, ComponentState
from vitald.core.node_state import NodeState
from vitald.metrics import verdict as verdicts
from vitald.metrics.families import format_bool, make_counter, make_gauge
from vitald.model.component import DeviceNames
from vitald.model.finding import Finding, Verdict
from vitald.model.words import Status

# Label -> where it is read: sources, in this order, and the reading's name there
_INFO_LABELS = {
    "kernel": ((INVENTORY, "kernel"),),
    "gpu_driver": ((NVML, "driver_version"), (INVENTORY, "gpu_driver")),
    "neuron_driver": ((INVENTORY, "neuron_driver"),),
    "chassis_serial": ((NVML, "chassis_serial"),),
}


def collect_flags(verdict: Verdict) -> Iterator[Metric]:
    """What the node needs, and whether it is a drill."""
    yield make_gauge(
        "vitald_reboot_required",
        "1 if an open finding requires a reboot of the node.",
        verdict.reboot_required,
    )
    yield make_gauge(
        "vitald_reboot_confirmed",
        "1 if a finding that a second source confirmed requires a reboot of the node.",
        verdict.reboot_confirmed,
    )
    yield make_gauge(
        "vitald_replacement_required",
        "1 if an open finding requires replacement of the node.",
        verdict.replacement_required,
    )
    yield make_gauge(
        "vitald_replacement_confirmed",
        "1 if a finding that a second source confirmed requires replacement of the node.",
        verdict.replacement_confirmed,
    )
    yield make_gauge(
        "vitald_simulated",
        "1 if an open finding belongs to a drill, or a source is simulated.",
        verdict.simulated,
    )


def collect_components(components: Iterable[ComponentState]) -> Iterator[Metric]:
    """The status of each component and the names of its device, and their number by kind and
    status.
    """
    of_component = GaugeMetricFamily(
        "vitald_component_status",
        "Status of each component: 1 for the current status.",
        labels=["component", "pci_bus_id", "component_kind", "status"],
    )
    info = GaugeMetricFamily(
        "vitald_device_info",
        "The names of the device in each component: always 1, to be joined by component.",
        labels=["component", "component_kind", "index", "serial", "uuid", "slot", "pci_bus_id"],
    )
    counts: Counter[tuple[str, str]] = Counter()
    for shown in components:
        name, kind = shown.component.name, shown.component.kind.value
        status, names = shown.status.value, shown.names
        of_component.add_metric([name, verdicts.find_pci_bus_id(name), kind, status], 1)
        if names != DeviceNames(component=shown.component):
            index = names.index if names.index.isdecimal() else ""
            more = names.serial, names.uuid, names.slot, names.address
            info.add_metric([name, kind, index, *more], 1)
        counts[kind, status] += 1
    yield of_component
    yield info
    number = GaugeMetricFamily(
        "vitald_components",
        "Components that are watched, by kind and status.",
        labels=["component_kind", "status"],
    )
    for kind in sorted({kind for kind, _ in counts}):
        for status in (status.value for status in Status):
            number.add_metric([kind, status], counts[kind, status])
    yield number


def collect_coverage(coverage: Sequence[ComponentCoverage]) -> Iterator[Metric]:
    """The observed share of the readings: it falls when a driver no longer shows one, and when a
    source is not read.
    """
    ratio = GaugeMetricFamily(
        "vitald_coverage_ratio",
        "Ratio of the readings that a source observes now to those that it reads.",
        labels=["source", "component_kind"],
    )
    gaps = GaugeMetricFamily(
        "vitald_not_observable",
        "Components of which a reading cannot be observed.",
        labels=["source", "component_kind", "reading"],
    )
    for share in coverage:
        if share.attempted:
            ratio.add_metric([share.source, share.kind.value], share.observable / share.attempted)
        for reading, count in sorted(share.count_missing().items()):
            gaps.add_metric([share.source, share.kind.value, reading], count)
    yield ratio
    yield gaps


def group_findings(node_state: NodeState) -> list[verdicts.FindingGroup]:
    """The open findings by their labels."""
    return verdicts.group_findings((_get_labels(each), each.since) for each in node_state.findings)


def _get_labels(finding: Finding) -> verdicts.FindingLabels:
    required = finding.requirement
    return verdicts.FindingLabels(
        component=finding.component.name,
        code=finding.code,
        action=required.action,
        when=required.when,
        is_accepted=finding.accepted is not None,
        is_simulated=finding.is_simulated,
    )


def collect_findings(node_state: NodeState) -> Iterator[Metric]:
    yield from verdicts.collect_findings(group_findings(node_state))
    incidents = node_state.incidents.values()
    yield make_gauge(
        "vitald_incidents",
        "Open incidents: each a root cause with its consequences, however many findings it has.",
        sum(1 for incident in incidents if incident.closed_at is None),
    )
    accepted = sum(1 for finding in node_state.findings if finding.accepted is not None)
    yield make_gauge(
        "vitald_findings_accepted",
        "Open findings that an operator accepted for a time: no effect on fitness and flags.",
        accepted,
    )


def measure_steps(node_state: NodeState) -> Metric:
    """A step that was not reached has no sample."""
    family = GaugeMetricFamily(
        "vitald_incident_step_seconds",
        "Seconds from the last fault that made the node unfit, by its source's own time, to each"
        " step after it.",
        labels=["step", "simulated"],
    )
    for is_simulated, step, seconds in node_state.incident_steps.list_seconds():
        family.add_metric([step.value, format_bool(is_simulated)], seconds)
    return family


def count_escalated(node_state: NodeState) -> Metric:
    return make_gauge(
        "vitald_findings_escalated",
        "Open findings that require more than their rule, because they recurred; without those"
        " that were accepted.",
        sum(
            1
            for finding in node_state.findings
            if finding.escalation is not None and finding.accepted is None
        ),
    )


def count_transitions(node_state: NodeState) -> Metric:
    return make_counter(
        "vitald_transitions",
        "Findings opened, changed or cleared.",
        node_state.transitions,
        node_state.started_at,
    )


def score_suspects(node_state: NodeState, name_identities: Callable[[], dict[str, str]]) -> Metric:
    """`name_identities`: the component that each device is in, by the key of its record."""
    family = GaugeMetricFamily(
        "vitald_device_lemon_score",
        "Lemon score of a device, from its record of the last weeks. Advice, not a fault.",
        labels=["component", "identity"],
    )
    scores = node_state.score_suspects(time.time())
    names = name_identities() if scores else {}
    for identity, (score, _) in scores.items():
        family.add_metric([names.get(identity, identity), identity], score)
    return family


def collect_events(node_state: NodeState) -> Iterator[Metric]:
    family = CounterMetricFamily(
        "vitald_events",
        "Events seen since the daemon started.",
        labels=["kind", "code", "trust", "simulated"],
    )
    for labels, counted in node_state.events.counts.items():
        family.add_metric(
            [labels.kind, labels.code, labels.trust, format_bool(labels.is_simulated)],
            counted.number,
            created=counted.since,
        )
    yield family
    last = GaugeMetricFamily(
        "vitald_event_last_timestamp_seconds",
        "When the last event of a code was; lines that are not evaluated are none.",
        labels=["kind", "code", "simulated"],
    )
    for (kind, code, is_simulated), at in node_state.events.last_times.items():
        last.add_metric([kind, code, format_bool(is_simulated)], at)
    yield last


class NodeIdentity:
    """`instance_type`: the product name in the firmware; empty if there is none."""

    def __init__(self, node_state: NodeState, instance_type: str) -> None:
        self._node_state = node_state
        self._values = {"instance_type": instance_type, **dict.fromkeys(_INFO_LABELS, "")}

    def make_info(self) -> Metric:
        for label, places in _INFO_LABELS.items():
            found = (self._find_value(source, reading) for source, reading in places)
            self._values[label] = next(filter(None, found), self._values[label])
        info = InfoMetricFamily(
            "vitald_node",
            "Type, kernel, drivers and rack of the node; empty where there is none.",
        )
        info.add_metric([], self._values)
        return info

    def _find_value(self, source: str, reading: str) -> str:
        """The value that most components have; of several, the first."""
        values = Counter(
            text
            for readings in self._node_state.readings.get(source, ())
            if (text := str(readings.values.get(reading, "")))
        )
        return max(values, key=lambda text: values[text], default="")
