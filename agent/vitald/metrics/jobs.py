"""
Metrics of the jobs that report their progress. Of the node as a whole: a label of the job would
have too many values, and show whose jobs run where.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from vitald.core.job_reports import JobReports
from vitald.metrics.single import make_counter, make_gauge


def collect_metrics(reports: JobReports, since: float) -> Iterator[Metric]:
    """`since`: when the daemon started, in seconds since the epoch."""
    yield make_gauge("vitald_job_socket_up", "1 while jobs can connect.", not reports.error)
    yield make_gauge(
        "vitald_job_ranks",
        "Ranks that are connected to the job socket.",
        sum(job.ranks for job in reports.jobs),
    )
    yield from _collect_steps(reports)
    yield from _collect_time(reports, since)
    yield make_counter(
        "vitald_job_not_finite",
        "Times that the loss or the gradient norm of a job became not finite.",
        reports.not_finite,
        since,
    )
    dropped = CounterMetricFamily(
        "vitald_job_packets_dropped",
        "Packets of jobs that were dropped: over the rate of their connection, or wrong.",
        labels=["reason"],
    )
    dropped.add_metric(["rate"], reports.dropped, created=since)
    dropped.add_metric(["wrong"], reports.wrong, created=since)
    yield dropped
    yield make_counter(
        "vitald_job_connections_refused",
        "Connections of jobs that were refused: too many of a user, in all, or too many jobs.",
        reports.refused,
        since,
    )
    yield make_counter(
        "vitald_job_events_dropped",
        "Transitions of jobs that were not stored, because their user had too many.",
        reports.unstored,
        since,
    )


def _collect_steps(reports: JobReports) -> Iterator[Metric]:
    """Without a sample while no job reports steps."""
    step_seconds = GaugeMetricFamily(
        "vitald_job_step_seconds", "Median duration of a step; the slowest of several jobs."
    )
    seconds = [job.step_seconds for job in reports.jobs if job.step_seconds is not None]
    if seconds:
        step_seconds.add_metric([], max(seconds))
    last_step = GaugeMetricFamily(
        "vitald_job_last_step_timestamp_seconds",
        "When the rank made its last step that has made none for longest.",
    )
    last = [job.last_step for job in reports.jobs if job.last_step is not None]
    if last:
        last_step.add_metric([], min(last))
    yield from (step_seconds, last_step)


def _collect_time(reports: JobReports, since: float) -> Iterator[Metric]:
    spent = CounterMetricFamily(
        "vitald_job_seconds",
        "Time of jobs by what it was spent on; two jobs at once count twice. redone: steps that an "
        "earlier attempt had made.",
        labels=["state"],
    )
    for state, seconds in reports.seconds.items():
        spent.add_metric([state], seconds, created=since)
    checkpoints = CounterMetricFamily(
        "vitald_job_checkpoints", "Checkpoints of jobs.", labels=["tier", "outcome"]
    )
    duration = CounterMetricFamily(
        "vitald_job_checkpoint_seconds",
        "Time that complete checkpoints took, of the slowest rank of this node.",
        labels=["tier"],
    )
    size = CounterMetricFamily(
        "vitald_job_checkpoint_bytes",
        "Size of complete checkpoints, of the ranks of this node.",
        labels=["tier"],
    )
    for tier, count in reports.checkpoints.items():
        checkpoints.add_metric([tier.value, "complete"], count.complete, created=since)
        checkpoints.add_metric([tier.value, "failed"], count.failed, created=since)
        duration.add_metric([tier.value], count.seconds, created=since)
        size.add_metric([tier.value], count.bytes, created=since)
    yield from (spent, checkpoints, duration, size)
