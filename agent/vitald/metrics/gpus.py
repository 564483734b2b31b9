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
    """The families for all GPUs. A value that is not observed has no sample: never a zero for what
    nobody knows.
    """
    who = [
        LabelledReadings(one, _list_labels(one))
        for one in readings
        if one.component.kind is ComponentKind.GPU
    ]
    info = GaugeMetricFamily(
        "vitald_gpu_info",
        "Who each GPU is.",
        labels=[*LABELS, "serial", "vbios", "driver", "simulated"],
    )
    for one in who:
        more = [
            str(one.readings.values.get(name, "")) for name in ("serial", "vbios", "driver_version")
        ]
        info.add_metric([*one.labels, *more, "true" if one.readings.simulated else "false"], 1)
    yield info
    place = GaugeMetricFamily(
        "vitald_gpu_place_info", "Where in a rack each GPU is.", labels=[*LABELS, *RACK_LOCATION]
    )
    for one in who:
        values = one.readings.values
        if any(name in values for name in RACK_LOCATION):
            place.add_metric(
                [
                    *one.labels,
                    *(str(serialize.plain(values.get(name, ""))) for name in RACK_LOCATION),
                ],
                1,
            )
    yield place
    yield from build_metrics(_FAMILIES, LABELS, who)


def _list_labels(one: Readings) -> list[str]:
    minor = one.values.get("minor")
    number = str(int(minor)) if isinstance(minor, (int, float)) else ""
    model = str(one.values.get("name", "")) + (" (simulated)" if one.simulated else "")
    return [number, str(one.values.get("uuid", "")), one.component.id, model]
