"""One value for all NVLinks of a GPU: what it is, and that a sum does not fall."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import pytest
from prometheus_client.core import Metric

from tests.exported import read_exported
from vitald.collectors.nvml.readings import READINGS
from vitald.collectors.reading_definitions import ReadingKind
from vitald.metrics.gpus import GpuMetrics
from vitald.model.component import Component
from vitald.model.source import Readings, Sample
from vitald.model.words import ComponentKind

NAN = math.nan
GPU, OTHER = "0000:10:00.0", "0000:20:00.0"
REPLAYS = "vitald_gpu_nvlink_replays_total"


def read(address: str = GPU, **values: Sample) -> Readings:
    now = time.time()
    return Readings(
        component=Component(ComponentKind.GPU, address),
        identity=f"GPU-{address}",
        time=now,
        polled_at=now,
        values={"minor": 0.0, "name": "H100", **values},
        fresh=frozenset(values),
    )


def find(metrics: Iterable[Metric], name: str) -> dict[str, float]:
    """The samples of a family, by the value of their label `link`, or "" without."""
    return {
        sample.labels.get("link", ""): sample.value
        for metric in metrics
        for sample in metric.samples
        if sample.name == name
    }


def count(metrics: GpuMetrics, *replays: float) -> float | None:
    found = find(read_exported(metrics.collect_metrics([read(nvlink_replays=replays)])), REPLAYS)
    assert not found.keys() - {""}
    return found.get("")


def test_counts_are_summed() -> None:
    metrics = GpuMetrics()
    assert count(metrics, 10.0, 200.0, 4.0) == 214.0
    assert count(metrics, 11.0, 202.0, 8.0) == 221.0


def test_each_link_if_asked_for() -> None:
    metrics = list(
        read_exported(
            GpuMetrics(each_link=True).collect_metrics(
                [read(nvlink_replays=(1.0, NAN, 4.0), nvlink_active=(1.0, NAN, 0.0))]
            )
        )
    )
    assert find(metrics, REPLAYS) == {"0": 1.0, "2": 4.0}
    assert find(metrics, "vitald_gpu_nvlink_up") == {"0": 1.0, "2": 0.0}


def test_a_link_that_cannot_be_read_for_a_time() -> None:
    """The sum does not fall: the link keeps its last count."""
    metrics = GpuMetrics()
    assert count(metrics, 10.0, 200.0) == 210.0
    assert count(metrics, 11.0, NAN) == 211.0
    assert count(metrics, 12.0) == 212.0  # the driver no longer lists the link
    assert count(metrics, 12.0, 203.0) == 215.0


def test_after_a_reset_the_links_begin_again() -> None:
    metrics = GpuMetrics()
    assert count(metrics, 10.0, 200.0) == 210.0
    assert count(metrics, 3.0, 1.0) == 4.0


def test_no_count_is_no_sample() -> None:
    metrics = GpuMetrics()
    assert count(metrics, NAN, NAN) is None
    assert not find(read_exported(metrics.collect_metrics([read()])), REPLAYS)
    assert count(metrics, NAN, 3.0) == 3.0
    assert count(metrics, NAN, NAN) == 3.0


def test_gpus_are_counted_apart_and_forgotten_when_gone() -> None:
    def read_both(more: float) -> list[Readings]:
        return [
            read(nvlink_replays=(1.0, 2.0 + more)),
            read(OTHER, nvlink_replays=(10.0 + more, 20.0 + more)),
        ]

    metrics = GpuMetrics()
    values = [
        sample.value
        for metric in read_exported(metrics.collect_metrics(read_both(5.0)))
        for sample in metric.samples
        if sample.name == REPLAYS
    ]
    assert values == [8.0, 40.0]
    list(read_exported(metrics.collect_metrics(read_both(5.0)[1:])))
    assert count(metrics, 1.0, NAN) == 1.0


def test_the_worst_link_is_the_value_of_all() -> None:
    metrics = list(
        read_exported(
            GpuMetrics().collect_metrics(
                [
                    read(
                        nvlink_active=(1.0, 0.0),
                        nvlink_bytes_per_second=(26e9, NAN, 13e9),
                        nvlink_effective_ber=(15e-255, 3e-9),
                        nvlink_fec_highest_bin=(0.0, 7.0, 2.0),
                        c2c_active=(1.0, 0.0),
                    )
                ]
            )
        )
    )
    names = {
        "vitald_gpu_nvlink_speed_bytes_per_second": 13e9,
        "vitald_gpu_nvlink_bit_error_ratio": 3e-9,
        "vitald_gpu_nvlink_fec_highest_bin": 7.0,
        "vitald_gpu_c2c_link_up": 0.0,
    }
    assert {name: find(metrics, name).get("") for name in names} == names
    # vitald_gpu_nvlinks_active says how many are up.
    assert "vitald_gpu_nvlink_up" not in {metric.name for metric in metrics}


@pytest.mark.parametrize("each_link", [False, True])
def test_no_other_reading_changes(each_link: bool) -> None:
    readings = read(nvlink_fec_history=(5.0, 0.0, 1.0), temperature_celsius=40.0)
    metrics = list(read_exported(GpuMetrics(each_link=each_link).collect_metrics([readings])))
    bins = [
        sample.labels["bin"]
        for metric in metrics
        for sample in metric.samples
        if sample.name == "vitald_gpu_nvlink_fec_corrected_total"
    ]
    assert bins == ["0", "1", "2"]
    assert readings.values["nvlink_fec_history"] == (5.0, 0.0, 1.0)


def test_every_exported_reading_by_link_says_how_links_become_one() -> None:
    by_link = [
        reading
        for table in READINGS
        for reading in table.readings
        if reading.metric and reading.each == "link"
    ]
    assert by_link
    assert not [reading.name for reading in by_link if reading.links is None]
    summed = {r.name for r in by_link if r.links is not None and r.links.value == "sum"}
    assert summed == {r.name for r in by_link if r.kind is ReadingKind.COUNTER}
