"""Metrics of the response to the last fault that made the node unfit."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from vitald.core.responses import Responses
from vitald.metrics.single import format_bool
from vitald.model.response import compute_steps


def collect_metrics(responses: Responses) -> Iterator[Metric]:
    """A step that was not reached has no sample."""
    family = GaugeMetricFamily(
        "vitald_incident_step_seconds",
        "Seconds from the last fault that made the node unfit, by its source's own time, to each "
        "step: detected, unfit, drained, validated, back. No sample for a step that was not "
        "reached.",
        labels=["step", "simulated"],
    )
    for response in responses.latest:
        for step, seconds in compute_steps(response).items():
            family.add_metric([step.value, format_bool(response.simulated)], seconds)
    yield family
