"""The metrics of GPUs: names, units and words of what NVML reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from vitald.collectors.nvml.readings import RACK_LOCATION, READINGS
from vitald.metrics import mig
from vitald.metrics.exposition import WrittenFamily
from vitald.metrics.families import LabelledReadings, derive_families
from vitald.metrics.link_values import LinkValues, merge_families
from vitald.metrics.single import format_bool
from vitald.metrics.written_readings import ReadingsWriter
from vitald.model import ComponentKind, Readings
from vitald.server import serialize

LABELS = ("gpu", "uuid", "pci_bus_id", "model")

_FAMILIES = tuple(family for table in READINGS for family in derive_families(table))


class GpuMetrics:
    """The families for all GPUs. A value that is not observed has no sample: never a zero for an
    unknown value.
    """

    def __init__(self, *, each_link: bool = False) -> None:
        """`each_link`: NVLinks are exported one by one, instead of one value for all."""
        self._links = None if each_link else LinkValues(READINGS)
        families = _FAMILIES if each_link else merge_families(_FAMILIES)
        self._writer = ReadingsWriter(families, LABELS)

    def collect_metrics(self, readings: Sequence[Readings]) -> Iterator[Metric | WrittenFamily]:
        found = [read for read in readings if read.component.kind is ComponentKind.GPU]
        if self._links is not None:
            found = self._links.merge_values(found)
        gpus = [LabelledReadings(read, list_labels(read)) for read in found]
        yield _make_info(gpus)
        yield _make_places(gpus)
        yield from mig.collect_instances(LABELS, gpus)
        yield from self._writer.write_families(gpus)


def _make_info(gpus: Sequence[LabelledReadings]) -> Metric:
    info = GaugeMetricFamily(
        "vitald_gpu_info",
        "Identity of each GPU.",
        labels=[*LABELS, "serial", "vbios", "driver_version", "simulated"],
    )
    for gpu in gpus:
        more = [
            str(gpu.readings.values.get(name, "")) for name in ("serial", "vbios", "driver_version")
        ]
        info.add_metric([*gpu.labels, *more, format_bool(gpu.readings.simulated)], 1)
    return info


def _make_places(gpus: Sequence[LabelledReadings]) -> Metric:
    place = GaugeMetricFamily(
        "vitald_gpu_place_info", "Where in a rack each GPU is.", labels=[*LABELS, *RACK_LOCATION]
    )
    for gpu in gpus:
        values = gpu.readings.values
        if any(name in values for name in RACK_LOCATION):
            location = (str(serialize.plain(values.get(name, ""))) for name in RACK_LOCATION)
            place.add_metric([*gpu.labels, *location], 1)
    return place


def list_labels(readings: Readings) -> list[str]:
    """The values of the labels that all metrics of a GPU have."""
    minor = readings.values.get("minor")
    number = str(int(minor)) if isinstance(minor, (int, float)) else ""
    model = str(readings.values.get("name", "")) + (" (simulated)" if readings.simulated else "")
    return [number, str(readings.values.get("uuid", "")), readings.component.id, model]
