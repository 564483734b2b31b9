"""Metrics of `vitald publish`, from its last report: none while no publisher ever reported."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from vitald.core.publishers import Publishers


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
