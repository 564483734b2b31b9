"""
Profiling through GPM: how busy the parts of a GPU were between two polls. Hopper and later.

Each reading comes from two samples of the GPU's counters, which NVML allocates. In MIG mode, each
GPU instance has samples of its own. DCGM reads profiling of these GPUs through the same calls, with
samples of its own; profilers (Nsight, CUPTI) use another part of the GPU
(github.com/NVIDIA/DCGM/issues/62).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import pynvml

from vitald.collectors.nvml.codes import (
    INVALID_ARGUMENT,
    LOST,
    NO_DATA_YET,
    NO_VALUE,
    NOT_SUPPORTED,
    RESET_REQUIRED,
)
from vitald.collectors.nvml.query import Ask, PolledGpu, ProfilingSamples, Reading, declare_call

WHOLE_GPU = -1
# Samples less than 100 ms apart give wrong values (github.com/NVIDIA/DCGM/issues/310). GPUs with an
# event are read between rounds.
_MIN_INTERVAL_S = 1.0
_MIB = 1024.0 * 1024.0


class _Metric(NamedTuple):
    """A metric of nvmlGpmMetricId_t. `limit`: the highest value that is possible."""

    reading: str
    scale: float
    limit: float


def _percent(reading: str) -> _Metric:
    return _Metric(reading, 0.01, 1.0)


def _mib_per_second(reading: str) -> _Metric:
    return _Metric(reading, _MIB, math.inf)


_INSTANCE_METRICS: Mapping[int, _Metric] = {
    1: _percent("graphics_active_ratio"),
    2: _percent("sm_active_ratio"),
    3: _percent("sm_occupancy_ratio"),
    5: _percent("tensor_active_ratio"),
    10: _percent("dram_active_ratio"),
}
_GPU_METRICS: Mapping[int, _Metric] = {
    **_INSTANCE_METRICS,
    7: _percent("hmma_active_ratio"),
    11: _percent("fp64_active_ratio"),
    12: _percent("fp32_active_ratio"),
    13: _percent("fp16_active_ratio"),
    20: _mib_per_second("pcie_transmitted_bytes_per_second"),
    21: _mib_per_second("pcie_received_bytes_per_second"),
    60: _mib_per_second("nvlink_received_bytes_per_second"),
    61: _mib_per_second("nvlink_transmitted_bytes_per_second"),
}


@declare_call(
    "profiling",
    *(metric.reading for metric in _GPU_METRICS.values()),
    "mig_profiled_gpu_instances",
    *(f"mig_{metric.reading}" for metric in _INSTANCE_METRICS.values()),
    is_judged=False,
)
def read_profiling(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """Of the GPU, or of each GPU instance in MIG mode. The first poll has nothing to compare with.
    Raises NVMLError.
    """
    if not gpu.samples and not ask("nvmlGpmQueryDeviceSupport", gpu.handle).isSupportedDevice:
        raise pynvml.NVMLError(NOT_SUPPORTED)
    wanted = [WHOLE_GPU] if gpu.gpu_instances is None else gpu.gpu_instances
    for gone in gpu.samples.keys() - set(wanted):
        _free_samples(ask, gpu, gone)
    if gpu.gpu_instances is None:
        activity = _read_activity(ask, gpu, WHOLE_GPU, _GPU_METRICS)
        return {**activity, **_list_by_instance({})}
    return _list_by_instance(_read_instances(ask, gpu, wanted))


def _read_instances(ask: Ask, gpu: PolledGpu, instances: list[int]) -> dict[int, dict[str, float]]:
    found = {}
    for instance in instances:
        try:
            found[instance] = _read_activity(ask, gpu, instance, _INSTANCE_METRICS)
        except pynvml.NVMLError as error:
            # INVALID_ARGUMENT: it was deleted since its last poll.
            if error.value not in (NO_DATA_YET, INVALID_ARGUMENT):
                raise
    if instances and not found:
        raise pynvml.NVMLError(NO_DATA_YET)
    return found


def _list_by_instance(found: Mapping[int, Mapping[str, float]]) -> dict[str, Reading]:
    by_instance: dict[str, Reading] = {
        f"mig_{metric.reading}": [
            activity.get(metric.reading, math.nan) for activity in found.values()
        ]
        for metric in _INSTANCE_METRICS.values()
    }
    return {"mig_profiled_gpu_instances": [float(id_) for id_ in found], **by_instance}


def _read_activity(
    ask: Ask, gpu: PolledGpu, instance: int, metrics: Mapping[int, _Metric]
) -> dict[str, float]:
    """What the GPU or the GPU instance did since its last sample. Raises NVMLError."""
    if instance not in gpu.samples:
        gpu.samples[instance] = _allocate_samples(ask)
    samples, now = gpu.samples[instance], time.monotonic()
    taken_at = samples.taken_at
    if taken_at is None or now - taken_at >= _MIN_INTERVAL_S:
        try:
            _take_sample(ask, gpu, instance, samples)
            if taken_at is not None:
                samples.activity = _compare_samples(ask, gpu, samples, metrics)
        except pynvml.NVMLError:
            _free_samples(ask, gpu, instance)
            raise
        samples.former, samples.following = samples.following, samples.former
        samples.taken_at = now
    if not samples.activity:
        raise pynvml.NVMLError(NO_DATA_YET)
    return samples.activity


def _take_sample(ask: Ask, gpu: PolledGpu, instance: int, samples: ProfilingSamples) -> None:
    if instance == WHOLE_GPU:
        ask("nvmlGpmSampleGet", gpu.handle, samples.following)
    else:
        ask("nvmlGpmMigSampleGet", gpu.handle, instance, samples.following)


def _compare_samples(
    ask: Ask, gpu: PolledGpu, samples: ProfilingSamples, metrics: Mapping[int, _Metric]
) -> dict[str, float]:
    """The metrics that the GPU has. Raises NVMLError if it has none."""
    query = pynvml.c_nvmlGpmMetricsGet_t()
    query.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    query.numMetrics = len(metrics)
    query.sample1, query.sample2 = samples.former, samples.following
    for index, id_ in enumerate(metrics):
        query.metrics[index].metricId = id_
    ask("nvmlGpmMetricsGet", query)
    found = {}
    for index, metric in enumerate(metrics.values()):
        answer = query.metrics[index]
        value, code = answer.value * metric.scale, answer.nvmlReturn
        if code in (LOST, RESET_REQUIRED):
            raise pynvml.NVMLError(code)
        if code or not 0.0 <= value <= metric.limit:  # not a number is neither
            gpu.refused[metric.reading] = code or NO_VALUE
        else:
            found[metric.reading] = value
    if not found:
        raise pynvml.NVMLError(next(iter(gpu.refused.values()), NOT_SUPPORTED))
    return found


def _allocate_samples(ask: Ask) -> ProfilingSamples:
    former = ask("nvmlGpmSampleAlloc")
    try:
        return ProfilingSamples(former, ask("nvmlGpmSampleAlloc"))
    except pynvml.NVMLError:
        with suppress(pynvml.NVMLError):
            ask("nvmlGpmSampleFree", former)
        raise


def _free_samples(ask: Ask, gpu: PolledGpu, instance: int) -> None:
    samples = gpu.samples.pop(instance)
    for sample in (samples.former, samples.following):
        with suppress(pynvml.NVMLError):
            ask("nvmlGpmSampleFree", sample)
