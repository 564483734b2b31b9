"""
The Prometheus endpoint. Everything is read off the board at the moment of the scrape, so a gauge
falls when its finding clears. Names: `vitald_`, base units, `_total` for counters.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from vitald import __version__
from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.collectors.nvml.node import NAME as NVML
from vitald.collectors.pci.inventory import PciInventory
from vitald.core.node_state import NodeState
from vitald.metrics import devices, diagnostics, gpus
from vitald.metrics.diagnostics import RunTally
from vitald.model import Status
from vitald.server.connection_limit import ConnectionLimit
from vitald.server.recovery_requester import RecoveryRequester
from vitald.server.routes import components
from vitald.server.routes.diagnostics import DiagnosticsView

_CLIENTS = 16


class NodeStateCollector(Collector):
    """Makes the metric families out of the board, anew at each scrape."""

    def __init__(
        self,
        node_state: NodeState,
        interpreter: Interpreter,
        inventory: PciInventory,
        connection_limit: ConnectionLimit,
        *,
        profile: Callable[[], str],
        diagnostics: DiagnosticsView,
        tally: RunTally,
        recovery: RecoveryRequester,
    ) -> None:
        self.node_state = node_state
        self.interpreter = interpreter
        self.inventory = inventory
        self.connection_limit = connection_limit
        self.profile = profile
        self.diagnostics = diagnostics
        self.recovery = recovery
        self.tally = tally

    def collect(self) -> Iterator[Metric]:
        yield from self._verdict()
        yield from self._findings()
        yield from self._suspects()
        yield from self._events()
        yield from gpus.collect_metrics(self.node_state.list_readings(NVML))
        yield from devices.collect_metrics(self.node_state)
        yield from diagnostics.collect_metrics(self.diagnostics, self.tally)
        yield from self.recovery.collect_metrics()
        yield from self._sources()
        yield from self._ledger()
        yield _gauge(
            "vitald_api_clients", "Clients connected to the socket.", self.connection_limit.clients
        )
        yield _counter(
            "vitald_api_clients_refused",
            "Clients refused because too many were connected.",
            self.connection_limit.refused,
        )
        yield _counter(
            "vitald_api_clients_timed_out",
            "Clients closed because they were too slow.",
            self.connection_limit.timed_out,
        )
        info = InfoMetricFamily(
            "vitald_build", "Version of the daemon and profile of its catalogue."
        )
        info.add_metric([], {"version": __version__, "profile": self.profile()})
        yield info

    def _verdict(self) -> Iterator[Metric]:
        verdict = self.node_state.verdict()
        seen = components.list_observations(self.node_state, self.inventory)
        yield _gauge(
            "vitald_reboot_required",
            "1 if an open finding asks for a reboot of the node.",
            verdict.reboot_required,
        )
        yield _gauge(
            "vitald_reboot_confirmed",
            "1 if one that a second source confirmed asks for a reboot of the node.",
            verdict.reboot_confirmed,
        )
        yield _gauge(
            "vitald_replacement_required",
            "1 if an open finding asks for replacement of the node.",
            verdict.replacement_required,
        )
        yield _gauge(
            "vitald_replacement_confirmed",
            "1 if one that a second source confirmed asks for replacement of the node.",
            verdict.replacement_confirmed,
        )
        yield _gauge(
            "vitald_simulated",
            "1 if an open finding is a drill's, or what is read is not real.",
            verdict.simulated,
        )
        status = GaugeMetricFamily(
            "vitald_status", "The node's status: 1 for the one that holds.", labels=["status"]
        )
        for one in Status:
            status.add_metric([one.value], one is verdict.status)
        yield status
        of_component = GaugeMetricFamily(
            "vitald_component_status",
            "Status of each component: 1 for the one that holds.",
            labels=["component", "kind", "status"],
        )
        counts: Counter[tuple[str, str]] = Counter()
        for component in components.list_components(self.node_state, self.inventory, verdict, seen):
            of_component.add_metric(
                [str(component["name"]), str(component["kind"]), str(component["status"])], 1
            )
            counts[str(component["kind"]), str(component["status"])] += 1
        yield of_component
        number = GaugeMetricFamily(
            "vitald_components",
            "Components that are watched, by kind and status.",
            labels=["kind", "status"],
        )
        for kind in sorted({kind for kind, _ in counts}):
            for one in Status:
                number.add_metric([kind, one.value], counts[kind, one.value])
        yield number
        yield from self._coverage(components.compute_coverage(seen))

    def _coverage(self, told: Sequence[components.ComponentCoverage]) -> Iterator[Metric]:
        """How much of what is asked is answered. It falls when a driver no longer shows something,
        and when nobody looks.
        """
        ratio = GaugeMetricFamily(
            "vitald_coverage_ratio",
            "Share of the readings a source asks for that it observes now.",
            labels=["source", "kind"],
        )
        gaps = GaugeMetricFamily(
            "vitald_not_observable",
            "Components of which a reading cannot be observed.",
            labels=["source", "kind", "reading"],
        )
        for one in told:
            if one.asked:
                ratio.add_metric([one.source, one.kind.value], one.observable / one.asked)
            missing: Counter[str] = Counter()
            for gap in one.gaps:
                missing.update(dict.fromkeys(gap.readings, len(gap.components)))
            for reading, count in sorted(missing.items()):
                gaps.add_metric([one.source, one.kind.value, reading], count)
        yield ratio
        yield gaps

    def _findings(self) -> Iterator[Metric]:
        labels = ["component", "kind", "code", "action", "simulated"]
        counts = Counter(
            (
                found.component.name,
                found.kind,
                found.code.partition("/")[2],
                found.action.value,
                _word(found.is_simulated),
            )
            for found in self.node_state.findings
        )
        family = GaugeMetricFamily("vitald_findings", "Open findings.", labels=labels)
        for key, count in counts.items():
            family.add_metric(key, count)
        yield family
        open_ones = [one for one in self.node_state.incidents.values() if one.closed_at is None]
        yield _gauge(
            "vitald_incidents",
            "Open incidents: each one physical story, however many findings it has.",
            len(open_ones),
        )
        escalated = sum(1 for found in self.node_state.findings if found.escalation is not None)
        yield _gauge(
            "vitald_findings_escalated",
            "Open findings that ask for more than their rule, as they came back.",
            escalated,
        )
        accepted = sum(1 for found in self.node_state.findings if found.accepted is not None)
        yield _gauge(
            "vitald_findings_accepted",
            "Open findings that a person accepted for a time: no effect on fitness and flags.",
            accepted,
        )
        yield _counter(
            "vitald_transitions",
            "Findings opened, changed or cleared.",
            self.node_state.transitions,
        )

    def _suspects(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "vitald_device_lemon_score",
            "How suspect a device's record of the last weeks makes it. Advice, not a fault.",
            labels=["device"],
        )
        for device, (score, _) in self.node_state.score_suspects(time.time()).items():
            family.add_metric([device], score)
        yield family

    def _events(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "vitald_events",
            "Events seen since the daemon started.",
            labels=["kind", "code", "trust", "simulated"],
        )
        for (kind, code, trust, simulated), count in self.node_state.events.items():
            family.add_metric([kind, code, trust, _word(simulated)], count)
        yield family

    def _sources(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "vitald_source_up", "1 while a source is read within its deadline.", labels=["source"]
        )
        seen = GaugeMetricFamily(
            "vitald_source_last_seen_timestamp_seconds",
            "When a source last truly looked.",
            labels=["source"],
        )
        for source in self.node_state.sources.values():
            up.add_metric([source.name], source.is_fresh(time.monotonic()))
            if source.last_seen is not None:
                seen.add_metric([source.name], source.last_seen)
        yield up
        yield seen
        counters = self.interpreter.counters
        yield _counter(
            "vitald_kernel_records_read", "Records of the kernel log that were read.", counters.read
        )
        yield _counter(
            "vitald_kernel_records_lost",
            "Records overwritten before they were read, by sequence number.",
            counters.lost,
        )
        yield _counter(
            "vitald_kernel_records_torn", "Records that did not follow the grammar.", counters.torn
        )
        yield _counter(
            "vitald_kernel_records_userspace",
            "Records written by processes and not by the kernel.",
            counters.userspace,
        )
        yield _counter(
            "vitald_kernel_records_untrusted",
            "Faults reported by processes, or of devices that are not here, and therefore not"
            " judged.",
            counters.untrusted,
        )
        yield _counter(
            "vitald_kernel_overruns",
            "Times that the kernel's ring overtook the reader.",
            counters.overruns,
        )

    def _ledger(self) -> Iterator[Metric]:
        ledger = self.node_state.ledger
        yield _gauge("vitald_ledger_ok", "1 while the ledger can be written.", ledger.ok)
        yield _gauge("vitald_ledger_size_bytes", "Size of the ledger on disk.", ledger.size_bytes)
        yield _gauge(
            "vitald_ledger_unsaved_events",
            "Events held in memory until the ledger can be written.",
            ledger.unsaved,
        )
        yield _counter(
            "vitald_ledger_dropped_events",
            "Events that were too many to hold while the ledger could not be written.",
            ledger.dropped,
        )
        yield _counter("vitald_ledger_commits", "Transactions committed.", ledger.commits)
        yield _counter(
            "vitald_ledger_commit_seconds",
            "Time spent in commits, waiting for the disk included.",
            ledger.commit_seconds,
        )
        yield _gauge(
            "vitald_ledger_last_commit_seconds",
            "Duration of the last commit.",
            ledger.last_commit_seconds,
        )


def build_registry(collector: NodeStateCollector) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(collector)
    ProcessCollector(registry=made)
    return made


def build_application(
    metrics: CollectorRegistry, connection_limit: ConnectionLimit
) -> web.Application:
    """`/metrics`, and nothing else."""

    async def scrape(request: web.Request) -> web.Response:
        connection_limit.restart_timer(request.transport)
        return web.Response(
            body=generate_latest(metrics), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    app = web.Application(client_max_size=1024)
    app.router.add_get("/metrics", scrape)
    return app


def make_connection_limit() -> ConnectionLimit:
    return ConnectionLimit(_CLIENTS, newest_first=True)  # nobody knows who asks on a port


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)


def _word(value: bool) -> str:
    return "true" if value else "false"
