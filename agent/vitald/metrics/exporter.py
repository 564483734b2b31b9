"""
What Prometheus scrapes. Everything is read from the node's state at the moment of the scrape, so a
gauge falls when its finding clears. Names: `vitald_`, base units, `_total` for counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.collectors.nvml.gpu_node import NAME as NVML
from vitald.core import components
from vitald.core.node_state import NodeState
from vitald.diagnostics.view import DiagnosticsView
from vitald.http_server.connection_limit import ConnectionLimit
from vitald.metrics import daemon, diagnostics, families, node, recovery
from vitald.metrics.diagnostics import RunTally
from vitald.metrics.exposition import WrittenFamily
from vitald.metrics.gpus import GpuMetrics, XidCollector
from vitald.metrics.node import NodeIdentity
from vitald.metrics.slurm import UnknownJobs
from vitald.metrics.verdict import count_worst_findings, make_status
from vitald.metrics.verdict_tier import drop_families, select_families
from vitald.model.finding import Verdict
from vitald.recovery.requester import RecoveryRequester
from vitald.topology.pci_inventory import PciInventory


class NodeStateCollector:
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
        unknown_jobs: UnknownJobs,
        instance_type: str,
        each_link: bool,
    ) -> None:
        self.node_state = node_state
        self.interpreter = interpreter
        self.inventory = inventory
        self.connection_limit = connection_limit
        self.profile = profile
        self.diagnostics = diagnostics
        self.recovery = recovery
        self.unknown_jobs = unknown_jobs
        self.tally = tally
        self.identity = NodeIdentity(node_state, instance_type)
        self.xids = XidCollector(node_state)
        self.gpus = GpuMetrics(each_link=each_link)

    def collect_all(self) -> Iterator[Metric | WrittenFamily]:
        """Every family but those of the process."""
        state = self.node_state
        verdict = state.verdict()
        yield from self._collect_common(verdict)
        yield from self._collect_components(verdict)
        yield from node.collect_findings(state)
        yield from node.collect_events(state)
        yield self.xids.count_xids()
        yield from self.gpus.collect_metrics(state.list_readings(NVML))
        yield from families.collect_metrics(state)
        yield from diagnostics.collect_results(self.diagnostics, self.tally)
        yield from daemon.collect_clients(self.connection_limit, state.started_at)

    def collect_verdict(self) -> Iterator[Metric]:
        """The verdict tier."""
        return select_families(self._collect_tier())

    def collect_rest(self) -> Iterator[Metric | WrittenFamily]:
        """Every family that the verdict tier has not, but those of the process."""
        return drop_families(self.collect_all())

    def _collect_tier(self) -> Iterator[Metric]:
        verdict = self.node_state.verdict()
        yield from self._collect_common(verdict)
        yield from self._collect_components(verdict)
        yield count_worst_findings(node.group_findings(self.node_state))

    def _collect_common(self, verdict: Verdict) -> Iterator[Metric]:
        """The families that both tiers have, as far as they are made in the same way."""
        state = self.node_state
        yield from node.collect_flags(verdict)
        yield make_status(verdict.status)
        yield node.measure_steps(state)
        yield node.count_escalated(state)
        yield node.count_transitions(state)
        yield node.score_suspects(state, lambda: components.name_identities(state, self.inventory))
        yield from diagnostics.collect_current(self.diagnostics)
        yield from recovery.collect_metrics(self.recovery)
        yield from self.unknown_jobs.collect_metrics()
        yield from daemon.collect_metrics(state.publishers)
        yield from daemon.collect_sources(state)
        yield from daemon.collect_kernel_log(self.interpreter.counters, state.started_at)
        yield from daemon.collect_ledger(state.ledger, state.started_at)
        yield from daemon.collect_configuration(state.configuration)
        yield self.identity.make_info()
        yield daemon.make_build_info(self.profile())

    def _collect_components(self, verdict: Verdict) -> Iterator[Metric]:
        observations = components.list_observations(self.node_state, self.inventory)
        yield from node.collect_components(
            components.list_components(self.node_state, self.inventory, verdict, observations)
        )
        yield from node.collect_coverage(components.compute_coverage(observations))
