"""
What the programs that use CUDA have in common: which of its errors the hardware causes and which
settings do, and the environment that numbers GPUs as NVML does.

Source: CUDA's error texts (driver_types.h); NCCL's debug lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# Errors of the hardware: they come from the device itself, and wrong settings do not cause them.
HARDWARE = re.compile(
    r"\bXid\b|uncorrectable ECC|hardware stack error|nvlink error|uncorrectable NVLink|unspecified"
    r" launch failure|illegal instruction"
    r"|misaligned address|illegal memory access|GPU is lost|device is lost|fallen off the"
    r" bus|contained error|launch timed out"
    r"|unknown error",
    re.IGNORECASE,
)
# Errors of settings, or of other users of the GPUs: memory in use, an unsuitable driver, no fabric
# manager, a small /dev/shm, MIG, containers.
SETTINGS = re.compile(
    r"out of memory|invalid device ordinal|Invalid number of GPUs|driver version is insufficient|no"
    r" CUDA-capable device"
    r"|system not yet initialized|initialization error|devices? (?:is|are)(?: busy)? or"
    r" unavailable|operation not (?:supported|permitted)"
    r"|peer access is not supported|invalid usage|invalid argument|no kernel image|unsupported"
    r" toolchain|error while loading shared libraries"
    r"|No space left on device|Permission denied|invalid option|nvmlDeviceGetHandleByPciBusId\(\)"
    r" failed",
    re.IGNORECASE,
)


def make_environment(gpus: Sequence[int]) -> dict[str, str]:
    """The variables that make CUDA number GPUs in NVML's order; with `gpus` it sees only these."""
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **visible}
