"""
The metrics of GPUs: names, units and words of what NVML reads, those of MIG instances, and Xids.

The links of a GPU become one value where they are not exported one by one. A link that cannot be
read keeps its last count in a sum: without it the sum would fall, which Prometheus takes for a
restart from zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from vitald.collectors.nvml.gpu_node import NAME as NVML
from vitald.collectors.nvml.readings import RACK_LOCATION, READINGS
from vitald.collectors.reading_definitions import LinkMerge, ReadingTable
from vitald.core.node_state import NodeState
from vitald.metrics.exposition import WrittenFamily
from vitald.metrics.families import (
    Family,
    LabelledReadings,
    ReadingsWriter,
    derive_families,
    format_bool,
)
from vitald.model.component import Component
from vitald.model.source import Readings, Sample
from vitald.model.words import ComponentKind

LABELS = ("gpu", "uuid", "pci_bus_id", "model")

_FAMILIES = tuple(family for table in READINGS for family in derive_families(table))
_MERGES: Mapping[LinkMerge, Callable[[Iterable[float]], float]] = {
    LinkMerge.SUM: sum,
    LinkMerge.LOWEST: min,
    LinkMerge.HIGHEST: max,
}
_MERGE_HELP = {
    LinkMerge.SUM: "Sum of all links.",
    LinkMerge.LOWEST: "The lowest of all links.",
    LinkMerge.HIGHEST: "The highest of all links.",
}
_INSTANCE_LABELS = ("gpu_instance", "compute_instance")
_INSTANCE_ACTIVITY = {
    "mig_graphics_active_ratio": "share of time in which a kernel ran",
    "mig_sm_active_ratio": "share of its SMs that were busy",
    "mig_sm_occupancy_ratio": "active warps, as a share of the most possible",
    "mig_tensor_active_ratio": "share of time in which its tensor cores worked",
    "mig_dram_active_ratio": "share of the memory bandwidth that was used",
}
_INSTANCE_MEMORY = {
    "mig_memory_used_bytes": "Memory in use of a MIG instance; compute instances share that of"
    " their GPU instance.",
    "mig_memory_total_bytes": "Memory of a MIG instance.",
}


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
        yield from collect_instances(LABELS, gpus)
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
            location = (_format_sample(values.get(name, "")) for name in RACK_LOCATION)
            place.add_metric([*gpu.labels, *location], 1)
    return place


def _format_sample(value: Sample) -> str:
    """As a label's value: whole numbers as such."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def list_labels(readings: Readings) -> list[str]:
    """The values of the labels that all metrics of a GPU have."""
    minor = readings.values.get("minor")
    number = str(int(minor)) if isinstance(minor, (int, float)) else ""
    model = str(readings.values.get("name", "")) + (" (simulated)" if readings.simulated else "")
    return [number, str(readings.values.get("uuid", "")), readings.component.id, model]


def merge_families(families: Iterable[Family]) -> tuple[Family, ...]:
    """The families without the label of the link; those that another one gives are left out."""
    return tuple(
        _merge_family(family, family.first.links) if family.first.links else family
        for family in families
        if family.first.links is not LinkMerge.OMIT
    )


def _merge_family(family: Family, how: LinkMerge) -> Family:
    text = f"{family.first.help} {_MERGE_HELP[how]}"
    return replace(family, first=replace(family.first, each="", help=text))


class LinkValues:
    """Merges the values of links, and remembers the last count of each."""

    def __init__(self, tables: Iterable[ReadingTable]) -> None:
        self._merges = {
            reading.name: reading.links
            for table in tables
            for reading in table.readings
            if reading.links in _MERGES
        }
        # By GPU and reading. The readings' own where complete: no second copy in memory
        self._counts: dict[tuple[str, str], tuple[float, ...]] = {}

    def merge_values(self, gpus: Sequence[Readings]) -> list[Readings]:
        """The readings of all GPUs, with one value for all links. Counts of GPUs that are not
        among them are forgotten.
        """
        present = {gpu.identity for gpu in gpus}
        self._counts = {key: counts for key, counts in self._counts.items() if key[0] in present}
        return [replace(gpu, values={**gpu.values, **self._merge_gpu(gpu)}) for gpu in gpus]

    def _merge_gpu(self, gpu: Readings) -> dict[str, float]:
        merged = {}
        for name, how in self._merges.items():
            values = gpu.values.get(name)
            if not isinstance(values, tuple) or how is None:
                continue
            if how is LinkMerge.SUM:
                values = self._complete_counts((gpu.identity, name), values)
            if known := _list_known(values):
                merged[name] = _MERGES[how](known)
        return merged

    def _complete_counts(
        self, key: tuple[str, str], counts: tuple[float, ...]
    ) -> tuple[float, ...]:
        before = self._counts.get(key, ())
        if len(counts) < len(before) or _list_known(counts) is not counts:
            counts = tuple(
                former if math.isnan(count) else count
                for count, former in zip_longest(counts, before, fillvalue=math.nan)
            )
        self._counts[key] = counts
        return counts


def _list_known(values: tuple[float, ...]) -> tuple[float, ...]:
    """Those that are numbers; the same object if all are."""
    if not math.isnan(sum(values)):
        return values
    return tuple(value for value in values if not math.isnan(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Instance:
    """`labels`: ids of GPU and compute instance. `memory`: by reading, NaN if unknown."""

    labels: tuple[str, str]
    profile: str
    uuid: str
    memory: dict[str, float]


def collect_instances(labels: Sequence[str], gpus: Sequence[LabelledReadings]) -> Iterator[Metric]:
    """`labels`: the names of the GPUs' own labels."""
    instances = [(gpu.labels, each) for gpu in gpus for each in _list_instances(gpu.readings)]
    info = GaugeMetricFamily(
        "vitald_gpu_mig_instance_info",
        "Identity of each MIG instance.",
        labels=[*labels, *_INSTANCE_LABELS, "mig_profile", "mig_uuid"],
    )
    for own, each in instances:
        info.add_metric([*own, *each.labels, each.profile, each.uuid], 1)
    yield info
    for reading, text in _INSTANCE_MEMORY.items():
        family = GaugeMetricFamily(
            f"vitald_gpu_{reading}", text, labels=[*labels, *_INSTANCE_LABELS]
        )
        for own, each in instances:
            if not math.isnan(each.memory[reading]):
                family.add_metric([*own, *each.labels], each.memory[reading])
        yield family
    yield from _collect_activity(labels, gpus)


def _collect_activity(labels: Sequence[str], gpus: Sequence[LabelledReadings]) -> Iterator[Metric]:
    for reading, text in _INSTANCE_ACTIVITY.items():
        family = GaugeMetricFamily(
            f"vitald_gpu_{reading}",
            f"Profiling of a GPU instance (MIG): {text}.",
            labels=[*labels, "gpu_instance"],
        )
        for gpu in gpus:
            values = gpu.readings.values
            ids = _read_numbers(values.get("mig_profiled_gpu_instances"))
            for gpu_instance, value in zip(ids, _read_numbers(values.get(reading))):
                if not math.isnan(value):
                    family.add_metric([*gpu.labels, f"{gpu_instance:g}"], value)
        yield family


def _list_instances(readings: Readings) -> Iterator[_Instance]:
    values = readings.values
    columns = zip(
        _read_numbers(values.get("mig_gpu_instances")),
        _read_numbers(values.get("mig_compute_instances")),
        str(values.get("mig_profiles", "")).split(),
        str(values.get("mig_uuids", "")).split(),
        *(_read_numbers(values.get(name)) for name in _INSTANCE_MEMORY),
    )
    for gpu_instance, compute_instance, profile, uuid, *memory in columns:
        yield _Instance(
            labels=(f"{gpu_instance:g}", f"{compute_instance:g}"),
            profile=profile,
            uuid=uuid,
            memory=dict(zip(_INSTANCE_MEMORY, memory)),
        )


def _read_numbers(value: Sample | None) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else ()


class XidCollector:
    """Keeps the labels of GPUs that NVML can no longer read: an Xid is often the reason."""

    def __init__(self, node_state: NodeState) -> None:
        self._node_state = node_state
        self._labels: dict[Component, Sequence[str]] = {}

    def count_xids(self) -> Metric:
        family = CounterMetricFamily(
            "vitald_gpu_xid_events",
            "Xids of the GPU since the daemon started.",
            labels=[*LABELS, "code", "simulated"],
        )
        xids = self._node_state.events.xids
        if xids:
            self._update_labels({xid.component for xid in xids})
        for xid, counted in xids.items():
            unknown = ("", "", xid.component.id, "")
            labels = self._labels.get(xid.component, unknown)
            family.add_metric(
                [*labels, xid.code, format_bool(xid.is_simulated)],
                counted.number,
                created=counted.since,
            )
        return family

    def _update_labels(self, wanted: set[Component]) -> None:
        """`wanted` are the GPUs that had an Xid; a reading without a UUID is not one to keep."""
        for readings in self._node_state.readings.get(NVML, ()):
            known = self._labels.get(readings.component)
            if readings.component in wanted and (known is None or readings.values.get("uuid")):
                self._labels[readings.component] = list_labels(readings)
