"""Metrics with one sample and no labels."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily


def make_gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    """A gauge; `text` is its HELP."""
    return GaugeMetricFamily(name, text, value=value)


def make_counter(name: str, text: str, value: float, since: float) -> CounterMetricFamily:
    """A counter; its samples get the suffix `_total`. `since`: when it began, in seconds since the
    epoch.
    """
    return CounterMetricFamily(name, text, value=value, created=since)


def format_bool(value: bool) -> str:
    """`true` or `false`, as a label's value."""
    return "true" if value else "false"
