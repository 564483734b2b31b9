"""Calls about the MIG instances of a GPU: which there are, and the memory of each."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pynvml

from vitald.collectors.nvml.codes import (
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    LOST,
    NO_VALUE,
    NOT_FOUND,
    NOT_SUPPORTED,
    RESET_REQUIRED,
)
from vitald.collectors.nvml.query import Ask, PolledGpu, Reading, declare_call

_MAX_INSTANCES = 16  # drivers have up to 7
_DELETED = {NOT_FOUND, INVALID_ARGUMENT}  # between two calls


class _Instance(NamedTuple):
    """One MIG device: a compute instance of a GPU instance."""

    gpu_instance: float
    compute_instance: float
    uuid: str
    profile: str
    memory_used: float
    memory_total: float


@declare_call("slow", "mig_mode", "mig_mode_pending", "mig_instances", "mig_mode_change_pending")
def read_mig(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """Mode, and number of instances."""
    gpu.mig_handles = None
    try:
        current, pending = ask("nvmlDeviceGetMigMode", gpu.handle)
    except pynvml.NVMLError as error:
        if error.value in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
            gpu.mig_handles = []
        raise
    gpu.mig_handles = _list_handles(ask, gpu) if current else []
    gpu.gpu_instances = [] if current else None
    return {
        "mig_mode": current,
        "mig_mode_pending": pending,
        "mig_mode_change_pending": float(current != pending),
        "mig_instances": len(gpu.mig_handles),
    }


@declare_call(
    "slow",
    *("mig_gpu_instances", "mig_compute_instances", "mig_uuids", "mig_profiles"),
    *("mig_memory_used_bytes", "mig_memory_total_bytes"),
    is_judged=False,
)
def read_mig_details(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """One value of each reading for every instance; none without MIG."""
    if gpu.mig_handles is None:
        raise pynvml.NVMLError(NO_VALUE)
    found = [_read_instance(ask, gpu, handle) for handle in gpu.mig_handles]
    instances = [instance for instance in found if instance is not None]
    if gpu.gpu_instances is not None:
        gpu.gpu_instances = sorted({int(instance.gpu_instance) for instance in instances})
    return {
        "mig_gpu_instances": [each.gpu_instance for each in instances],
        "mig_compute_instances": [each.compute_instance for each in instances],
        "mig_uuids": " ".join(each.uuid for each in instances),
        "mig_profiles": " ".join(each.profile for each in instances),
        "mig_memory_used_bytes": [each.memory_used for each in instances],
        "mig_memory_total_bytes": [each.memory_total for each in instances],
    }


def _list_handles(ask: Ask, gpu: PolledGpu) -> list[Any]:
    """Of the instances, whose indexes have gaps."""
    found = []
    most = min(ask("nvmlDeviceGetMaxMigDeviceCount", gpu.handle), _MAX_INSTANCES)
    for index in range(most):
        try:
            found.append(ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu.handle, index))
        except pynvml.NVMLError as error:
            if error.value != NOT_FOUND:
                raise
    return found


def _read_instance(ask: Ask, gpu: PolledGpu, handle: Any) -> _Instance | None:
    """None for one that was deleted meanwhile, or whose ids cannot be read."""

    def ask_about(call: str, reading: str) -> Any:
        try:
            return ask(call, handle)
        except pynvml.NVMLError as error:
            if error.value in (LOST, RESET_REQUIRED):
                raise
            if error.value not in _DELETED:
                gpu.refused[reading] = error.value
            return None

    gpu_instance = ask_about("nvmlDeviceGetGpuInstanceId", "mig_gpu_instances")
    compute_instance = ask_about("nvmlDeviceGetComputeInstanceId", "mig_compute_instances")
    if gpu_instance is None or compute_instance is None:
        return None
    memory = ask_about("nvmlDeviceGetMemoryInfo", "mig_memory_used_bytes")
    return _Instance(
        gpu_instance=float(gpu_instance),
        compute_instance=float(compute_instance),
        uuid=_join_words(ask_about("nvmlDeviceGetUUID", "mig_uuids")),
        profile=_find_profile(ask_about("nvmlDeviceGetName", "mig_profiles")),
        memory_used=math.nan if memory is None else float(memory.used),
        memory_total=math.nan if memory is None else float(memory.total),
    )


def _find_profile(name: str | None) -> str:
    """The end of the name of a MIG device: `1g.10gb` of "NVIDIA H100 80GB HBM3 MIG 1g.10gb"."""
    return _join_words(name and name.rpartition(" MIG ")[2])


def _join_words(text: str | None) -> str:
    """Without blanks, which separate the instances; "-" if there is none."""
    return "_".join((text or "-").split()) or "-"
