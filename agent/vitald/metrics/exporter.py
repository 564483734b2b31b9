"""
The Prometheus endpoint. Everything is read from the node's state at the moment of the scrape, so a
gauge falls when its finding clears. Names: `vitald_`, base units, `_total` for counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.collectors.nvml.node import NAME as NVML
from vitald.collectors.pci.inventory import PciInventory
from vitald.core.node_state import NodeState
from vitald.metrics import daemon, devices, diagnostics, gpus, node, publishers
from vitald.metrics.diagnostics import RunTally
from vitald.metrics.slurm import UnknownJobs
from vitald.metrics.verdict import make_status
from vitald.server.connection_limit import ConnectionLimit
from vitald.server.recovery_requester import RecoveryRequester
from vitald.server.routes import components
from vitald.server.routes.diagnostics import DiagnosticsView

_MAX_CLIENTS = 16


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
        unknown_jobs: UnknownJobs,
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

    def collect(self) -> Iterator[Metric]:
        state = self.node_state
        yield from self._collect_verdict()
        yield from node.collect_findings(state)
        yield from node.collect_suspects(state)
        yield from node.collect_events(state)
        yield from gpus.collect_metrics(state.list_readings(NVML))
        yield from devices.collect_metrics(state)
        yield from diagnostics.collect_metrics(self.diagnostics, self.tally)
        yield from self.recovery.collect_metrics()
        yield from self.unknown_jobs.collect_metrics()
        yield from publishers.collect_metrics(state.publishers)
        yield from daemon.collect_sources(state)
        yield from daemon.collect_kernel_log(self.interpreter.counters)
        yield from daemon.collect_ledger(state.ledger)
        yield from daemon.collect_configuration(state.configuration)
        yield from daemon.collect_clients(self.connection_limit)
        yield daemon.make_build_info(self.profile())

    def _collect_verdict(self) -> Iterator[Metric]:
        verdict = self.node_state.verdict()
        observations = components.list_observations(self.node_state, self.inventory)
        yield from node.collect_flags(verdict)
        yield make_status(verdict.status)
        yield from node.collect_components(
            components.list_components(self.node_state, self.inventory, verdict, observations)
        )
        yield from node.collect_coverage(components.compute_coverage(observations))


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
    # The clients of a port cannot be distinguished, unlike those of the socket.
    return ConnectionLimit(_MAX_CLIENTS, newest_first=True)
