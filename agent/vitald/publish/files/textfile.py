"""
Metrics for the textfile collector of node_exporter, for nodes whose port 9820 cannot be scraped.
Metrics that the daemon exports, too, have its names and labels.

While the daemon is silent, `vitald_up` is 0, the status is unknown, and what is not known has no
sample. When the publisher is gone the file stays: node_exporter exports its age as
`node_textfile_mtime_seconds`.

Source: node_exporter, collector/textfile.go: it reads the files `*.prom` of one folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from vitald.metrics import verdict
from vitald.metrics.families import make_gauge
from vitald.model.words import Status
from vitald.publish.files.replace_file import REWRITE_S, replace_file
from vitald.publish.summary import DaemonSilent, NodeSummary, PublishedState


class TextfileSink:
    """Writes the node's state as metrics."""

    name = "textfile"

    def __init__(self, path: Path) -> None:
        self._path = path

    def get_recheck_s(self, state: PublishedState) -> float:  # noqa: ARG002
        """How long the file stays as it is, in seconds."""
        return REWRITE_S

    async def write_state(self, state: PublishedState) -> bool:
        """Always True. Raises SinkFailed."""
        await replace_file(self._path, format_metrics(state))
        return True


def format_metrics(state: PublishedState) -> str:
    """The state in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(_StateCollector(state))
    return generate_latest(registry).decode()


class _StateCollector(Collector):
    def __init__(self, state: PublishedState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        state = self._state
        is_silent = isinstance(state, DaemonSilent)
        yield make_gauge(
            "vitald_up", "1 while vitald answers, 0 while it is silent.", not is_silent
        )
        yield verdict.make_status(
            Status.UNKNOWN if isinstance(state, DaemonSilent) else state.status
        )
        if not isinstance(state, DaemonSilent):
            yield from _collect_summary(state)


def _collect_summary(summary: NodeSummary) -> Iterator[Metric]:
    yield make_gauge(
        "vitald_reboot_due",
        "1 if a reboot is due: required now, or after the job while the node is idle.",
        bool(summary.reboot_reason),
    )
    yield make_gauge(
        "vitald_replacement_due",
        "1 if a replacement is due: required now, or after the job while the node is idle.",
        bool(summary.replacement_reason),
    )
    yield from verdict.collect_findings(
        verdict.group_findings(
            (
                verdict.FindingLabels(
                    component=finding.component,
                    code=finding.code,
                    action=finding.action,
                    when=finding.when,
                    is_accepted=finding.accepted,
                    is_simulated=finding.simulated,
                ),
                finding.since,
            )
            for finding in summary.findings
        )
    )
    yield make_gauge(
        "vitald_open_findings",
        "Number of open findings; vitald_findings has the strongest of them.",
        summary.open_findings,
    )
