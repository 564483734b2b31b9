"""The page of a scrape says what prometheus_client would have written, at each scrape anew."""

from __future__ import annotations

import gc
import math
import re
import tracemalloc
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.registry import Collector

from vitald.metrics.exposition import ExpositionWriter, Format

LABELS = ("zone", "code", "component")
# What is not printable is written in another way: test_verdict_tier.py
TEXTS = st.text(st.sampled_from('\\"{},= abc名'))
VALUES = st.one_of(
    st.floats(),
    st.integers(-(2**70), 2**70),
    st.booleans(),
    st.sampled_from([0.0, -0.0, 999_999.0, 1e6, 1e6 + 0.5, -1e6, 1e-7, math.inf]),
)
ROWS = st.lists(st.tuples(st.tuples(TEXTS, TEXTS, TEXTS), VALUES), max_size=5)


class Fixed(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterator[Metric]:
        yield from self.families


def make_families(
    rows: Sequence[tuple[tuple[str, str, str], float]], text: str = "Words."
) -> list[Metric]:
    """One of each type that vitald has, with these samples."""
    gauge = GaugeMetricFamily("vitald_gauge", text, labels=LABELS)
    counter = CounterMetricFamily("vitald_events", text, labels=LABELS)
    info = InfoMetricFamily("vitald_build", text)
    unknown = UnknownMetricFamily("vitald_unknown", text, labels=LABELS)
    for labels, value in rows:
        gauge.add_metric(labels, value)
        counter.add_metric(labels, value)
        info.add_metric([], dict(zip(LABELS, labels)))
        unknown.add_metric(labels, value)
    return [gauge, GaugeMetricFamily("vitald_ok", text, value=True), counter, info, unknown]


def write_by_prometheus_client(families: Sequence[Metric], written_as: Format) -> bytes:
    registry = CollectorRegistry()
    registry.register(Fixed(families))
    write = generate_openmetrics if written_as is Format.OPENMETRICS else generate_latest
    page: bytes = write(registry)
    return page


def read_numbers(page: bytes) -> list[tuple[str, str]]:
    """The lines of a page, each with its number as one of the ways to write it."""
    lines = []
    for line in page.decode().splitlines():
        text, _, number = line.rpartition(" ")
        lines.append((line, "") if line.startswith("#") else (text, repr(float(number))))
    return lines


@pytest.mark.parametrize("written_as", Format)
@given(pages=st.lists(st.tuples(ROWS, TEXTS), min_size=1, max_size=4))
def test_it_is_what_prometheus_client_writes(
    written_as: Format, pages: list[tuple[list[tuple[tuple[str, str, str], float]], str]]
) -> None:
    """One page after another: nothing of an earlier one is in a later one."""
    writer = ExpositionWriter()
    for rows, text in pages:
        families = make_families(rows, text)
        assert read_numbers(writer.write_families(families, written_as)) == read_numbers(
            write_by_prometheus_client(families, written_as)
        )


@given(VALUES)
def test_a_number_is_one_of_openmetrics(value: float) -> None:
    family = GaugeMetricFamily("vitald_gauge", "Words.", value=value)
    page = ExpositionWriter().write_families([family], Format.OPENMETRICS).decode()
    (parsed,) = [sample for one in parse_openmetrics(page) for sample in one.samples]
    assert repr(parsed.value) == repr(float(value))
    number = page.splitlines()[2].rpartition(" ")[2]
    assert re.fullmatch(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?|[-+]Inf|NaN", number)


def test_the_same_values_of_other_labels_are_other_series() -> None:
    writer = ExpositionWriter()
    for labels in (["code", "kind"], ["kind", "code"], ["code"]):
        family = GaugeMetricFamily("vitald_findings", "Open findings.", labels=labels)
        family.add_metric(["79", "xid"][: len(labels)], 1)
        assert writer.write_families([family], Format.TEXT) == write_by_prometheus_client(
            [family], Format.TEXT
        )


def test_only_openmetrics_has_the_time_when_a_counter_began() -> None:
    family = CounterMetricFamily("vitald_events", "Events.", labels=["code"])
    family.add_metric(["79"], 3, created=1000.5)
    writer = ExpositionWriter()
    text = writer.write_families([family], Format.TEXT).decode()
    assert 'vitald_events_total{code="79"} 3.0\n' in text
    assert "_created" not in text
    assert writer.write_families([family], Format.OPENMETRICS) == write_by_prometheus_client(
        [family], Format.OPENMETRICS
    )
    assert (
        'vitald_events_created{code="79"} 1000.5'
        in writer.write_families([family], Format.OPENMETRICS).decode()
    )


def test_half_a_character_breaks_no_page() -> None:
    family = GaugeMetricFamily("vitald_gauge", "Words.", labels=["component"])
    family.add_metric(["\udcff"], 1)
    page = ExpositionWriter().write_families([family], Format.TEXT).decode()
    assert re.search(r'vitald_gauge\{component="\\\\xdcff~[0-9a-f]{8}"\} 1.0\n', page)


def test_series_that_are_gone_are_forgotten() -> None:
    """Labels may come from logs: those of an hour ago cost no memory."""

    def write_page(writer: ExpositionWriter, first: int) -> None:
        family = GaugeMetricFamily("vitald_findings", "Open findings.", labels=["code"])
        for code in range(first, first + 100):
            family.add_metric([str(code).zfill(500)], 1)
        writer.write_families([family], Format.TEXT)

    writer = ExpositionWriter()
    write_page(writer, 0)
    gc.collect()
    tracemalloc.start()
    try:
        for first in range(100, 10_000, 100):
            write_page(writer, first)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000  # 400 series of more than 1,000 bytes; all of them would be 10 MB
