"""Calls about a GPU's memory: use, ECC errors, remapped rows, retired pages and repairs."""

from __future__ import annotations

import ctypes
from functools import partial

import pynvml

from vitald.collectors.nvml.codes import (
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    VERSION_MISMATCH,
)
from vitald.collectors.nvml.query import (
    Ask,
    PolledGpu,
    Reading,
    check_value,
    declare_call,
    read_each,
)

_VOLATILE, _AGGREGATE, _CORRECTED, _UNCORRECTED = 0, 1, 0, 1
_DRAM, _SRAM = 2, 7
# This version of a call or struct does not exist here; an earlier one may.
_OTHER_VERSION = {FUNCTION_NOT_FOUND, VERSION_MISMATCH, NOT_SUPPORTED, INVALID_ARGUMENT}


@declare_call(
    "slow",
    *("memory_used_bytes", "memory_free_bytes"),
    *("memory_reserved_bytes", "memory_total_bytes"),
)
def read_memory(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """Before R510, memory that the driver reserves counts as used."""
    try:
        info = ask("nvmlDeviceGetMemoryInfo", gpu.handle, pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value not in _OTHER_VERSION:
            raise
        info = ask("nvmlDeviceGetMemoryInfo", gpu.handle)
        gpu.refused["memory_reserved_bytes"] = error.value
        reserved: dict[str, Reading] = {}
    else:
        reserved = {"memory_reserved_bytes": info.reserved}
    return {
        "memory_used_bytes": info.used,
        "memory_free_bytes": info.free,
        "memory_total_bytes": info.total,
        **reserved,
    }


@declare_call(
    "slow",
    *("ecc_corrected", "ecc_uncorrected"),
    *("ecc_corrected_lifetime", "ecc_uncorrected_lifetime"),
)
def read_ecc(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    counters = {
        "ecc_corrected": (_CORRECTED, _VOLATILE),
        "ecc_uncorrected": (_UNCORRECTED, _VOLATILE),
        "ecc_corrected_lifetime": (_CORRECTED, _AGGREGATE),
        "ecc_uncorrected_lifetime": (_UNCORRECTED, _AGGREGATE),
    }
    return read_each(
        gpu,
        {
            name: partial(ask, "nvmlDeviceGetTotalEccErrors", gpu.handle, *which)
            for name, which in counters.items()
        },
    )


@declare_call("slow", "ecc_corrected_dram", "ecc_uncorrected_dram")
def read_ecc_dram(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    return _read_location(ask, gpu, "dram", _DRAM)


@declare_call("slow", "ecc_corrected_sram", "ecc_uncorrected_sram")
def read_ecc_sram(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    return _read_location(ask, gpu, "sram", _SRAM)


def _read_location(ask: Ask, gpu: PolledGpu, memory: str, place: int) -> dict[str, Reading]:
    kinds = {f"ecc_corrected_{memory}": _CORRECTED, f"ecc_uncorrected_{memory}": _UNCORRECTED}
    counter = "nvmlDeviceGetMemoryErrorCounter"
    return read_each(
        gpu,
        {
            name: partial(ask, counter, gpu.handle, kind, _VOLATILE, place)
            for name, kind in kinds.items()
        },
    )


@declare_call(
    "slow",
    *("sram_threshold_exceeded", "sram_corrected_lifetime"),
    *("sram_uncorrected_parity_lifetime", "sram_uncorrected_secded_lifetime"),
    *("sram_uncorrected_parity", "sram_uncorrected_secded"),
)
def read_sram_status(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """Requires root; without it, the readings are missing."""
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    ask("nvmlDeviceGetSramEccErrorStatus", gpu.handle, ctypes.byref(status))
    members = {
        "sram_threshold_exceeded": status.bThresholdExceeded,
        "sram_uncorrected_parity_lifetime": status.aggregateUncParity,
        "sram_uncorrected_secded_lifetime": status.aggregateUncSecDed,
        "sram_corrected_lifetime": status.aggregateCor,
        "sram_uncorrected_parity": status.volatileUncParity,
        "sram_uncorrected_secded": status.volatileUncSecDed,
    }
    got = read_each(gpu, {name: partial(check_value, value) for name, value in members.items()})
    if "sram_threshold_exceeded" in got:
        got["sram_threshold_exceeded"] = float(bool(got["sram_threshold_exceeded"]))
    return got


@declare_call(
    "slow",
    *("remapped_rows_corrected", "remapped_rows_uncorrected"),
    *("row_remap_pending", "row_remap_failed"),
)
def read_remapped_rows(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    corrected, uncorrected, pending, failed = ask("nvmlDeviceGetRemappedRows", gpu.handle)
    return {
        "remapped_rows_corrected": corrected,
        "remapped_rows_uncorrected": uncorrected,
        "row_remap_pending": float(bool(pending)),
        "row_remap_failed": float(bool(failed)),
    }


@declare_call(
    "slow",
    *("remap_banks_max", "remap_banks_high", "remap_banks_partial"),
    *("remap_banks_low", "remap_banks_none"),
)
def read_spare_rows(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    banks = ask("nvmlDeviceGetRowRemapperHistogram", gpu.handle)
    spare = ("max", "high", "partial", "low", "none")
    return read_each(
        gpu, {f"remap_banks_{name}": partial(check_value, getattr(banks, name)) for name in spare}
    )


@declare_call("slow", "retired_pages_single", "retired_pages_double", "retired_pages")
def read_retired_pages(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    single = len(ask("nvmlDeviceGetRetiredPages_v2", gpu.handle, 0))
    double = len(ask("nvmlDeviceGetRetiredPages_v2", gpu.handle, 1))
    return {
        "retired_pages_single": single,
        "retired_pages_double": double,
        "retired_pages": single + double,
    }


@declare_call("slow", "page_retirement_pending")
def read_retirement_pending(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    return {
        "page_retirement_pending": float(
            bool(ask("nvmlDeviceGetRetiredPagesPendingStatus", gpu.handle))
        )
    }


@declare_call("slow", "channel_repair_pending", "tpc_repair_pending")
def read_repair(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    channel, tpc = ask("nvmlDeviceGetRepairStatus", gpu.handle)
    return {"channel_repair_pending": float(bool(channel)), "tpc_repair_pending": float(bool(tpc))}


@declare_call("slow", "memory_unrepairable")
def read_unrepairable(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """The binding passes {version, flag}. Newer headers declare the flag alone; the driver then
    writes it to the first word.
    """
    version = 0x1000008
    words = (ctypes.c_uint * 2)(version, 0)
    ask("nvmlDeviceGetUnrepairableMemoryFlag_v1", gpu.handle, words, raw=True)
    return {
        "memory_unrepairable": float(
            bool(check_value(words[0] if words[0] != version else words[1]))
        )
    }


@declare_call("inventory", "ecc_mode", "ecc_mode_pending", "ecc_mode_change_pending")
def read_ecc_mode(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    current, pending = ask("nvmlDeviceGetEccMode", gpu.handle)
    return {
        "ecc_mode": current,
        "ecc_mode_pending": pending,
        "ecc_mode_change_pending": float(current != pending),
    }
