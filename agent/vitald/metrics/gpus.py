"""The metrics of GPUs: names, units and words of what NVML reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from vitald.collectors.nvml.readings import RACK_LOCATION, READINGS
from vitald.metrics.families import LabelledReadings, build_metrics, derive_families
from vitald.model import ComponentKind, Readings
from vitald.server import serialize

LABELS = ("gpu", "uuid", "pci_bus_id", "model")

_FAMILIES = tuple(family for table in READINGS for family in derive_families(table))


def collect_metrics(readings: Sequence[Readings]) -> Iterator[Metric]:
    """The families for all GPUs. A value that is not observed has no sample: never a zero for
    an unknown value.
    """
    gpus = [
        LabelledReadings(read, _list_labels(read))
        for read in readings
        if read.component.kind is ComponentKind.GPU
    ]
    info = GaugeMetricFamily(
        "vitald_gpu_info",
        "Identity of each GPU.",
        labels=[*LABELS, "serial", "vbios", "driver", "simulated"],
    )
    for gpu in gpus:
        more = [
            str(gpu.readings.values.get(name, "")) for name in ("serial", "vbios", "driver_version")
        ]
        info.add_metric([*gpu.labels, *more, "true" if gpu.readings.simulated else "false"], 1)
    yield info
    place = GaugeMetricFamily(
        "vitald_gpu_place_info", "Where in a rack each GPU is.", labels=[*LABELS, *RACK_LOCATION]
    )
    for gpu in gpus:
        values = gpu.readings.values
        if any(name in values for name in RACK_LOCATION):
            place.add_metric(
                [
                    *gpu.labels,
                    *(str(serialize.plain(values.get(name, ""))) for name in RACK_LOCATION),
                ],
                1,
            )
    yield place
    yield from build_metrics(_FAMILIES, LABELS, gpus)


def _list_labels(readings: Readings) -> list[str]:
    minor = readings.values.get("minor")
    number = str(int(minor)) if isinstance(minor, (int, float)) else ""
    model = str(readings.values.get("name", "")) + (" (simulated)" if readings.simulated else "")
    return [number, str(readings.values.get("uuid", "")), readings.component.id, model]
