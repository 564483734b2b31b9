"""Metrics of the node: its verdict, components, findings, suspect devices and events."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from vitald.core.node_state import NodeState
from vitald.core.notices import Notices
from vitald.core.waiting import Waiting
from vitald.metrics import verdict as verdicts
from vitald.metrics.label_values import clean_label
from vitald.metrics.single import format_bool, make_counter, make_gauge
from vitald.model import Status, Verdict
from vitald.model.component import find_pci_bus_id
from vitald.server.routes.components import ComponentCoverage

if TYPE_CHECKING:
    from vitald.server import schema


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


def make_save_advised(node_state: NodeState) -> Metric:
    """Whether jobs are advised to save a checkpoint."""
    return make_gauge(
        "vitald_save_advised",
        "1 while jobs on the node are advised to save a checkpoint.",
        node_state.advice.save,
    )


def collect_notices(notices: Notices, codes: Iterable[str]) -> Iterator[Metric]:
    """How many notices are open, for each code of the catalogue."""
    family = GaugeMetricFamily(
        "vitald_notices",
        "Open notices about the work on the node. They change no status.",
        labels=["kind", "code"],
    )
    counts = notices.count_by_code()
    for code in codes:
        kind, _, name = code.partition("/")
        family.add_metric([kind, name], counts.get(code, 0))
    yield family


def collect_waiting(waiting: Waiting | None) -> Iterator[Metric]:
    """No sample where it is not known or not watched."""
    family = GaugeMetricFamily(
        "vitald_node_waiting_seconds",
        "For how long all GPUs that work have only waited: busy, at low and even power, while "
        "nothing moves; 0 if they do not.",
    )
    seconds = waiting.get_seconds(time.monotonic()) if waiting is not None else None
    if seconds is not None:
        family.add_metric([], seconds)
    yield family


def collect_components(components: Iterable[schema.ApiComponent]) -> Iterator[Metric]:
    """The status of each component, and their number by kind and status."""
    of_component = GaugeMetricFamily(
        "vitald_component_status",
        "Status of each component: 1 for the current status.",
        labels=["component", "pci_bus_id", "component_kind", "status", "kind"],
    )
    counts: Counter[tuple[str, str]] = Counter()
    for component in components:
        name, kind, status = component["name"], component["kind"], component["status"]
        labels = [clean_label(name), find_pci_bus_id(name), kind, status, kind]
        of_component.add_metric(labels, 1)
        counts[kind, status] += 1
    yield of_component
    number = GaugeMetricFamily(
        "vitald_components",
        "Components that are watched, by kind and status.",
        labels=["component_kind", "status", "kind"],
    )
    for kind in sorted({kind for kind, _ in counts}):
        for status in (status.value for status in Status):
            number.add_metric([kind, status, kind], counts[kind, status])
    yield number


def collect_coverage(coverage: Sequence[ComponentCoverage]) -> Iterator[Metric]:
    """The observed share of the readings: it falls when a driver no longer shows one, and when a
    source is not read.
    """
    ratio = GaugeMetricFamily(
        "vitald_coverage_ratio",
        "Ratio of the readings that a source observes now to those that it reads.",
        labels=["source", "component_kind", "kind"],
    )
    gaps = GaugeMetricFamily(
        "vitald_not_observable",
        "Components of which a reading cannot be observed.",
        labels=["source", "component_kind", "reading", "kind"],
    )
    for share in coverage:
        kind = share.kind.value
        if share.asked:
            ratio.add_metric([share.source, kind, kind], share.observable / share.asked)
        for reading, count in sorted(share.count_missing().items()):
            gaps.add_metric([share.source, kind, clean_label(reading), kind], count)
    yield ratio
    yield gaps


def group_findings(node_state: NodeState) -> list[verdicts.FindingGroup]:
    """The open findings by their labels, but accepted ones: they have no effect."""
    return verdicts.group_findings(
        (verdicts.get_labels(finding), finding.since)
        for finding in node_state.findings
        if finding.accepted is None
    )


def collect_findings(node_state: NodeState) -> Iterator[Metric]:
    yield from verdicts.collect_findings(group_findings(node_state))
    incidents = node_state.incidents.values()
    yield make_gauge(
        "vitald_incidents",
        "Open incidents: each a root cause with its consequences, however many findings it has.",
        sum(1 for incident in incidents if incident.closed_at is None),
    )
    yield count_escalated(node_state)
    accepted = sum(1 for finding in node_state.findings if finding.accepted is not None)
    yield make_gauge(
        "vitald_findings_accepted",
        "Open findings that an operator accepted for a time: no effect on fitness and flags. "
        "`vitald_findings` leaves them out.",
        accepted,
    )
    yield count_transitions(node_state)


def count_escalated(node_state: NodeState) -> Metric:
    return make_gauge(
        "vitald_findings_escalated",
        "Open findings that require more than their rule, because they recurred.",
        sum(1 for finding in node_state.findings if finding.escalation is not None),
    )


def count_transitions(node_state: NodeState) -> Metric:
    return make_counter(
        "vitald_transitions",
        "Findings opened, changed or cleared.",
        node_state.transitions,
        node_state.started_at,
    )


def collect_suspects(node_state: NodeState) -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "vitald_device_lemon_score",
        "Lemon score of a device, from its record of the last weeks. Advice, not a fault.",
        labels=["component", "device"],
    )
    for name, (score, _) in node_state.score_suspects(time.time()).items():
        component = clean_label(name)
        family.add_metric([component, component], score)
    yield family


def collect_events(node_state: NodeState) -> Iterator[Metric]:
    family = CounterMetricFamily(
        "vitald_events",
        "Events seen since the daemon started.",
        labels=["kind", "code", "trust", "simulated"],
    )
    for labels, counted in node_state.events.counts.items():
        kind, code = clean_label(labels.kind), clean_label(labels.code)
        family.add_metric(
            [kind, code, labels.trust, format_bool(labels.is_simulated)],
            counted.count,
            created=counted.since,
        )
    yield family
    last = GaugeMetricFamily(
        "vitald_event_last_timestamp_seconds",
        "When the last event of a code was; lines that are not evaluated are none.",
        labels=["kind", "code", "simulated"],
    )
    for key, at in node_state.events.last_times.items():
        last.add_metric(
            [clean_label(key.kind), clean_label(key.code), format_bool(key.is_simulated)], at
        )
    yield last
