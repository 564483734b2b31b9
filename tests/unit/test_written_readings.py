"""What is written line by line is what the same readings come to as metrics, at each scrape anew."""

from __future__ import annotations

import math

import pytest

from tests.unit.test_exposition import read_numbers
from tests.unit.test_link_metrics import GPU, OTHER, read
from vitald.metrics.exposition import ExpositionWriter, Format
from vitald.metrics.gpus import GpuMetrics
from vitald.model import Readings

FULL = read(
    uuid="GPU-1",
    serial="S",
    temperature_celsius=40.0,
    memory_temperature_celsius=50,
    lost=False,
    power_watts=1e7,
    nvlink_replays=(1.0, math.nan),
    nvlink_active=(1.0, 0.0),
    nvlink_fec_history=(5.0, 0.0, 1.0),
    nvlink_received_bytes=3.0,
    chassis_serial="C",
    mig_gpu_instances=(3.0,),
    mig_compute_instances=(0.0,),
    mig_uuids="MIG-a",
    mig_profiles="1g.10gb",
    mig_memory_used_bytes=(2.0,),
    mig_memory_total_bytes=(4.0,),
)
# One after another: no GPU, a value that changes, one that is gone, another GPU, another board, none
SCRAPES: list[list[Readings]] = [
    [],
    [FULL],
    [read(uuid="GPU-1", temperature_celsius=41.0)],
    [read(uuid="GPU-1", temperature_celsius=41.0), read(OTHER, uuid="GPU-2", power_watts=3.5)],
    [read(OTHER, uuid="GPU-2", power_watts=3.5)],
    [read(GPU, uuid='GPU"3\n', power_watts=3.5)],
    [],
    [FULL],
]


@pytest.mark.parametrize("written_as", Format)
@pytest.mark.parametrize("each_link", [False, True])
def test_both_ways_are_one_page(each_link: bool, written_as: Format) -> None:
    made, written = GpuMetrics(each_link=each_link), GpuMetrics(each_link=each_link)
    writer, writer_of_objects = ExpositionWriter(), ExpositionWriter()
    pages = []
    for readings in SCRAPES:
        page = writer.write_families(written.write_metrics(readings), written_as)
        objects = made.collect_metrics(readings)
        assert read_numbers(page) == read_numbers(
            writer_of_objects.write_families(objects, written_as)
        )
        pages.append(page)
    assert (pages[0], pages[1]) == (pages[-2], pages[-1])
    assert len({*pages}) == len(pages) - 2
