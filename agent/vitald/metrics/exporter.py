"""
What Prometheus scrapes. Everything is read from the node's state at the moment of the scrape, so a
gauge falls when its finding clears. Names: `vitald_`, base units, `_total` for counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.collectors.nvml.node import NAME as NVML
from vitald.collectors.pci.inventory import PciInventory
from vitald.core.config_health import ConfigHealth
from vitald.core.node_state import NodeState
from vitald.metrics import daemon, devices, diagnostics, gpus, jobs, node, publishers, responses
from vitald.metrics.diagnostics import RunTally
from vitald.metrics.exposition import WrittenFamily
from vitald.metrics.node_info import NodeIdentity
from vitald.metrics.verdict import make_status
from vitald.metrics.verdict_tier import VerdictTier
from vitald.metrics.xids import XidCollector
from vitald.model.notice import NOTICE_CODES
from vitald.server.connection_limit import ConnectionLimit
from vitald.server.diagnostics_view import DiagnosticsView
from vitald.server.recovery_requester import RecoveryRequester
from vitald.server.routes import components


class NodeStateCollector(Collector):
    """Makes the metric families from the node's state, at each scrape."""

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
        gpu_metrics: gpus.GpuMetrics,
        config_health: ConfigHealth,
        instance_type: str,
    ) -> None:
        self.node_state = node_state
        self.interpreter = interpreter
        self.inventory = inventory
        self.connection_limit = connection_limit
        self.profile = profile
        self.diagnostics = diagnostics
        self.recovery = recovery
        self.tally = tally
        self.gpu_metrics = gpu_metrics
        self.config_health = config_health
        self.identity = NodeIdentity(node_state, instance_type)
        self.xids = XidCollector(node_state)
        self.verdict_tier = VerdictTier(
            node_state, interpreter, diagnostics, recovery, config_health, self.identity
        )

    def collect(self) -> Iterator[Metric]:
        yield from self._collect_judgement()
        yield from self.gpu_metrics.collect_metrics(self.node_state.list_readings(NVML))
        yield from self._collect_others()

    def collect_page(self) -> Iterator[Metric | WrittenFamily]:
        """The same for one page, in half the time."""
        yield from self._collect_judgement()
        yield from self.gpu_metrics.write_metrics(self.node_state.list_readings(NVML))
        yield from self._collect_others()

    def collect_verdict(self) -> Iterator[Metric]:
        """The verdict tier: at most 70 series."""
        return self.verdict_tier.collect_metrics(daemon.make_build_info(self.profile()))

    def _collect_components(self) -> Iterator[Metric]:
        verdict = self.node_state.verdict()
        observations = components.list_observations(self.node_state, self.inventory)
        yield from node.collect_flags(verdict)
        yield make_status(verdict.status)
        yield from node.collect_components(
            components.list_components(self.node_state, self.inventory, verdict, observations)
        )
        yield from node.collect_coverage(components.compute_coverage(observations))

    def _collect_judgement(self) -> Iterator[Metric]:
        state = self.node_state
        yield from self._collect_components()
        yield from node.collect_findings(state)
        yield from responses.collect_metrics(state.responses)
        yield from node.collect_waiting(state.waiting)
        yield from node.collect_notices(state.notices, NOTICE_CODES)
        yield from node.collect_suspects(state)
        yield from node.collect_events(state)
        yield node.make_save_advised(state)

    def _collect_others(self) -> Iterator[Metric]:
        state = self.node_state
        yield from self.xids.collect_metrics()
        yield from devices.collect_metrics(state)
        yield from diagnostics.collect_metrics(self.diagnostics, self.tally)
        yield from self.recovery.collect_metrics()
        yield from publishers.collect_metrics(state.publishers)
        yield from jobs.collect_metrics(state.job_reports, state.started_at)
        yield from daemon.collect_sources(state)
        yield from daemon.collect_kernel_log(self.interpreter.counters, state.started_at)
        yield from daemon.collect_ledger(state.ledger, state.started_at)
        yield from daemon.collect_clients(self.connection_limit, state.started_at)
        yield from daemon.collect_config(self.config_health)
        yield from self.identity.collect_metrics()
        yield daemon.make_build_info(self.profile())
