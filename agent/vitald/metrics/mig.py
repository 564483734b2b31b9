"""Metrics of the MIG instances of GPUs: which there are, and their memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric

from vitald.metrics.families import LabelledReadings
from vitald.model import Readings, Sample

_INSTANCE = ("gpu_instance", "compute_instance")
_ACTIVITY = {
    "mig_graphics_active_ratio": "share of time in which a kernel ran",
    "mig_sm_active_ratio": "share of its SMs that were busy",
    "mig_sm_occupancy_ratio": "active warps, as a share of the most possible",
    "mig_tensor_active_ratio": "share of time in which its tensor cores worked",
    "mig_dram_active_ratio": "share of the memory bandwidth that was used",
}
_MEMORY = {
    "mig_memory_used_bytes": "Memory in use of a MIG instance; compute instances share that of"
    " their GPU instance.",
    "mig_memory_total_bytes": "Memory of a MIG instance.",
}


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
        labels=[*labels, *_INSTANCE, "mig_profile", "mig_uuid"],
    )
    for own, each in instances:
        info.add_metric([*own, *each.labels, each.profile, each.uuid], 1)
    yield info
    for reading, text in _MEMORY.items():
        family = GaugeMetricFamily(f"vitald_gpu_{reading}", text, labels=[*labels, *_INSTANCE])
        for own, each in instances:
            if not math.isnan(each.memory[reading]):
                family.add_metric([*own, *each.labels], each.memory[reading])
        yield family
    yield from _collect_activity(labels, gpus)


def _collect_activity(labels: Sequence[str], gpus: Sequence[LabelledReadings]) -> Iterator[Metric]:
    for reading, text in _ACTIVITY.items():
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
        *(_read_numbers(values.get(name)) for name in _MEMORY),
    )
    for gpu_instance, compute_instance, profile, uuid, *memory in columns:
        yield _Instance(
            labels=(f"{gpu_instance:g}", f"{compute_instance:g}"),
            profile=profile,
            uuid=uuid,
            memory=dict(zip(_MEMORY, memory)),
        )


def _read_numbers(value: Sample | None) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else ()
