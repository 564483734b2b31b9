"""What is written line by line is what the same readings come to as metrics, at each scrape anew."""

from __future__ import annotations

import math
from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

from tests.exported import read_exported
from tests.unit.test_link_metrics import GPU, OTHER, read
from vitald.collectors.nvml.readings import READINGS
from vitald.metrics.families import LabelledReadings, ReadingsWriter, build_metrics, derive_families
from vitald.metrics.gpus import LABELS, list_labels
from vitald.model.source import Readings

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


def list_samples(families: Iterable[Metric]) -> list[tuple[str, list[Sample]]]:
    return [(family.name, family.samples) for family in families]


def test_both_ways_are_the_same_samples() -> None:
    families = [family for table in READINGS for family in derive_families(table)]
    writer = ReadingsWriter(families, LABELS)
    pages = []
    for readings in SCRAPES:
        gpus = [LabelledReadings(one, list_labels(one)) for one in readings]
        written = list_samples(read_exported(writer.write_families(gpus)))
        assert written == list_samples(read_exported(build_metrics(families, LABELS, gpus)))
        pages.append(written)
    assert (pages[0], pages[1]) == (pages[-2], pages[-1])
    assert len({str(page) for page in pages}) == len(pages) - 2
