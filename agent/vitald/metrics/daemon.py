"""
Metrics of the daemon: its sources, the kernel log's reader, the ledger, clients and version; and of
`vitald publish`, from its last report: none while no publisher ever reported.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from vitald import __version__
from vitald.collectors.kernel_log.interpret import Counters
from vitald.core.node_state import ConfigurationFile, LedgerHealth, NodeState
from vitald.core.publisher_reports import Publishers
from vitald.http_server.connection_limit import ConnectionLimit
from vitald.metrics.families import make_counter, make_gauge


def collect_sources(node_state: NodeState) -> Iterator[Metric]:
    up = GaugeMetricFamily(
        "vitald_source_up", "1 while a source is read within its deadline.", labels=["source"]
    )
    last_seen = GaugeMetricFamily(
        "vitald_source_last_seen_timestamp_seconds",
        "When a source was last read.",
        labels=["source"],
    )
    for source in node_state.sources.values():
        up.add_metric([source.name], source.is_fresh(time.monotonic()))
        if source.last_seen is not None:
            last_seen.add_metric([source.name], source.last_seen)
    yield up
    yield last_seen


def collect_kernel_log(counters: Counters, since: float) -> Iterator[Metric]:
    """What was read of the kernel log, counted since a time in seconds since the epoch."""
    yield make_counter(
        "vitald_kernel_records_read",
        "Records of the kernel log that were read.",
        counters.read,
        since,
    )
    yield make_counter(
        "vitald_kernel_records_lost",
        "Records overwritten before they were read, by sequence number.",
        counters.lost,
        since,
    )
    yield make_counter(
        "vitald_kernel_records_torn",
        "Records that did not follow the grammar.",
        counters.torn,
        since,
    )
    yield make_counter(
        "vitald_kernel_records_userspace",
        "Records written by processes and not by the kernel.",
        counters.userspace,
        since,
    )
    yield make_counter(
        "vitald_kernel_records_untrusted",
        "Faults reported by processes, or of devices that are not here, and therefore not judged.",
        counters.untrusted,
        since,
    )
    yield make_counter(
        "vitald_kernel_overruns",
        "Times that the kernel's ring overtook the reader.",
        counters.overruns,
        since,
    )


def collect_ledger(ledger: LedgerHealth, since: float) -> Iterator[Metric]:
    """The state of the ledger, and what was counted since a time in seconds since the epoch."""
    yield make_gauge("vitald_ledger_ok", "1 while the ledger can be written.", ledger.ok)
    yield make_gauge("vitald_ledger_size_bytes", "Size of the ledger on disk.", ledger.size_bytes)
    yield make_gauge(
        "vitald_ledger_unsaved_events",
        "Events held in memory until the ledger can be written.",
        ledger.unsaved,
    )
    yield make_counter(
        "vitald_ledger_dropped_events",
        "Events that were too many to hold while the ledger could not be written.",
        ledger.dropped,
        since,
    )
    yield make_counter("vitald_ledger_commits", "Transactions committed.", ledger.commits, since)
    yield make_counter(
        "vitald_ledger_commit_seconds",
        "Time spent in commits, waiting for the disk included.",
        ledger.commit_seconds,
        since,
    )
    yield make_gauge(
        "vitald_ledger_last_commit_seconds",
        "Duration of the last commit.",
        ledger.last_commit_seconds,
    )


def collect_clients(limit: ConnectionLimit, since: float) -> Iterator[Metric]:
    """The clients of the socket, counted since a time in seconds since the epoch."""
    yield make_gauge("vitald_api_clients", "Clients connected to the socket.", limit.clients)
    yield make_counter(
        "vitald_api_clients_refused",
        "Clients refused because too many were connected.",
        limit.refused,
        since,
    )
    yield make_counter(
        "vitald_api_clients_timed_out",
        "Clients closed because they were too slow.",
        limit.timed_out,
        since,
    )


def collect_configuration(found: ConfigurationFile) -> Iterator[Metric]:
    yield make_gauge(
        "vitald_config_refused",
        "1 while the configuration file is invalid: the daemon would not start with it.",
        bool(found.errors),
    )
    pending = GaugeMetricFamily(
        "vitald_config_pending_keys",
        "Keys of the configuration file that have changed and are not in force, by what they need.",
        labels=["needs"],
    )
    pending.add_metric(["reload"], len(found.reload))
    pending.add_metric(["restart"], len(found.restart))
    yield pending
    yield make_gauge(
        "vitald_config_last_load_timestamp_seconds",
        "When the daemon last took its settings from the file, at its start or by a reload.",
        found.loaded_at,
    )
    yield make_gauge(
        "vitald_config_hash",
        "Hash of the settings that it then took, whatever their order and comments; 0 for none.",
        found.settings_hash,
    )


def make_build_info(profile: str) -> Metric:
    """The version of the daemon and the profile of its catalogue."""
    info = InfoMetricFamily("vitald_build", "Version of the daemon and profile of its catalogue.")
    info.add_metric([], {"version": __version__, "profile": profile})
    return info


def collect_metrics(publishers: Publishers) -> Iterator[Metric]:
    """A silent publisher's sinks are not up; its other figures stay as it reported them last."""
    report = publishers.get_report()
    last_report = GaugeMetricFamily(
        "vitald_publish_last_report_timestamp_seconds", "When vitald publish last reported."
    )
    up = GaugeMetricFamily(
        "vitald_publish_up",
        "1 while all is written to a sink; 0, too, while vitald publish is silent.",
        labels=["sink"],
    )
    last_success = GaugeMetricFamily(
        "vitald_publish_last_success_timestamp_seconds",
        "When a sink was last up to date.",
        labels=["sink"],
    )
    writes = CounterMetricFamily(
        "vitald_publish_writes",
        "Writes to a sink since vitald publish started.",
        labels=["sink", "result"],
    )
    queue = GaugeMetricFamily(
        "vitald_publish_queue", "How much a sink has not written yet.", labels=["sink"]
    )
    refused = GaugeMetricFamily(
        "vitald_publish_refused",
        "1 for each part of the state that a sink's receiver refuses; the rest is written.",
        labels=["sink", "content"],
    )
    if report is not None:
        last_report.add_metric([], report.time)
    for sink in report.sinks if report is not None else ():
        up.add_metric([sink.name], sink.up)
        if sink.last_success is not None:
            last_success.add_metric([sink.name], sink.last_success)
        writes.add_metric([sink.name, "written"], sink.writes)
        writes.add_metric([sink.name, "failed"], sink.failures)
        queue.add_metric([sink.name], sink.waiting)
        for part in sink.refused:
            refused.add_metric([sink.name, part], 1)
    yield from (last_report, up, last_success, writes, queue, refused)
