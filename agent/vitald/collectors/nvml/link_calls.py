"""Calls about a GPU's links: PCIe, NVLink, chip-to-chip links and the NVSwitch fabric."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pynvml

from vitald.collectors.nvml.codes import (
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    LOST,
    MISSING,
    NARROW,
    NO_VALUE,
    NOT_FOUND,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UNKNOWN,
    VERSION_MISMATCH,
)
from vitald.collectors.nvml.query import (
    Ask,
    PolledGpu,
    Reading,
    declare_call,
    group_by_link,
    read_each,
    read_fields,
    require_any,
)

_LINKS, _DL_REPLAY, _DL_RECOVERY, _DL_CRC = 91, 161, 162, 163
_RECOVERY_FAILED, _RECOVERED, _EFFECTIVE, _MALFORMED = 214, 213, 219, 206
_OVERRUN, _SYMBOLS, _SPEED = 207, 221, 164
_NVLINK5_MORE = {
    208: "nvlink_receive_errors",
    209: "nvlink_remote_errors",
    210: "nvlink_general_errors",
    211: "nvlink_integrity_errors",
    212: "nvlink_transmit_discards",
    215: "nvlink_recovery_attempts",
}
# Physical layer: errors of each lane, blocks, and blocks that were sent again. Before R595 these
# field ids have another meaning.
_RAW_ERRORS = (595,)
_NVLINK5_RAW = {
    289: "nvlink_raw_errors_lane0",
    290: "nvlink_raw_errors_lane1",
    294: "nvlink_blocks",
    295: "nvlink_retried_blocks",
}
# Effective and symbol bit error rate are packed: nvml.h, NVML_NVLINK_ERROR_COUNTER_BER_GET. The raw
# ones (291 to 293) are not read: no header documents their format.
_BER = {220: "nvlink_effective_ber", 222: "nvlink_symbol_ber"}
_FEC_BINS = range(235, 251)
_C2C_COUNT, _C2C_STATUS = 170, 171
_C2C_ERRORS = {231: "c2c_error_interrupts", 232: "c2c_replays", 233: "c2c_replays_back_to_back"}
_MAX_C2C_LINKS = 16
_PCIE = {
    94: "pcie_replays",
    173: "pcie_correctable_errors",
    179: "pcie_nonfatal_errors",
    180: "pcie_fatal_errors",
    169: "pcie_recoveries",
}
_PCIE_BYTES = {197: "pcie_transmitted_bytes", 198: "pcie_received_bytes"}
_NARROW_LIMIT = 2**32
# KiB; the driver sums over all links for this scope (nvml.h, "NVLink throughput counters").
_ALL_LINKS = 0xFFFFFFFF
_NVLINK_BYTES = {
    (138, _ALL_LINKS): "nvlink_transmitted_bytes",
    (139, _ALL_LINKS): "nvlink_received_bytes",
}
# nvml.h, NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES and _RCV_BYTES: of one link
_NVLINK5_BYTES = {202: "nvlink_transmitted_bytes", 204: "nvlink_received_bytes"}
_SWITCH = 2
_MAX_LINKS = 36
# By NVML's code of the version; from 7 on (NVLink 5) there are other counters.
_LINK_VERSIONS = {1: 1.0, 2: 2.0, 3: 2.2, 4: 3.0, 5: 3.1, 6: 4.0, 7: 5.0, 8: 6.0}
_FIRST_NVLINK5 = 7
_NO_SUCH_LINK = {INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND}


@declare_call("slow", "pcie_generation", "pcie_width", "pcie_generation_max", "pcie_width_max")
def read_pcie_link(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    calls = {
        "pcie_generation": "nvmlDeviceGetCurrPcieLinkGeneration",
        "pcie_width": "nvmlDeviceGetCurrPcieLinkWidth",
        "pcie_generation_max": "nvmlDeviceGetMaxPcieLinkGeneration",
        "pcie_width_max": "nvmlDeviceGetMaxPcieLinkWidth",
    }
    return read_each(
        gpu, {name: partial(_read_positive, ask, gpu, call) for name, call in calls.items()}
    )


def _read_positive(ask: Ask, gpu: PolledGpu, call: str) -> Reading:
    """Raises NVMLError for 0: a GPU that answers has a PCIe link."""
    if not (value := ask(call, gpu.handle)):
        raise pynvml.NVMLError(NO_VALUE)
    return float(value)


@declare_call("slow", *_PCIE.values())
def read_pcie_errors(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    return require_any(gpu, read_fields(ask, gpu, _PCIE))


@declare_call("slow", *_PCIE_BYTES.values(), is_judged=False)
def read_pcie_bytes(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """Bytes over PCIe, as the GPU sends and receives them.

    nvml.h: "Value can be wrapped". A counter of 32 bits wraps several times a second under load, so
    that no rate follows from it. It counts as wider once it has passed their limit.
    """
    got = require_any(gpu, read_fields(ask, gpu, _PCIE_BYTES))
    gpu.wide_pcie_counters |= any(
        isinstance(count, float) and count >= _NARROW_LIMIT for count in got.values()
    )
    if not gpu.wide_pcie_counters:
        raise pynvml.NVMLError(NARROW)
    return got


@declare_call("slow", "nvlinks", "nvlink_active", "nvlinks_active")
def read_nvlinks(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """The state of each link: 1 active, 0 inactive or no longer known to the driver, NaN if it
    cannot be read.
    """
    got = read_fields(ask, gpu, {_LINKS: "nvlinks"})
    count = require_any(gpu, got)["nvlinks"]
    assert isinstance(count, float)
    gpu.links = max(gpu.links or 0, min(int(count), _MAX_LINKS))
    if not gpu.links:
        return got
    states = [_read_link_state(ask, gpu, link) for link in range(gpu.links)]
    for link in [link for link, state in enumerate(states) if state == 1.0][int(count) :]:
        states[link] = 0.0  # more links answer than the driver counts
    if all(math.isnan(state) for state in states):
        gpu.refused["nvlinks_active"] = gpu.refused["nvlink_active"]
        return got
    return {
        **got,
        "nvlink_active": states,
        "nvlinks_active": float(sum(state == 1.0 for state in states)),
    }


def _read_link_state(ask: Ask, gpu: PolledGpu, link: int) -> float:
    try:
        return float(bool(ask("nvmlDeviceGetNvLinkState", gpu.handle, link)))
    except pynvml.NVMLError as error:
        if error.value in (LOST, RESET_REQUIRED):
            raise
        if error.value in _NO_SUCH_LINK:
            return 0.0
        gpu.refused["nvlink_active"] = gpu.failed = error.value
        return math.nan


@declare_call(
    "slow",
    *("nvlink_replays", "nvlink_recoveries", "nvlink_crc_errors", "nvlink_recovery_failures"),
    *("nvlink_effective_errors", "nvlink_malformed_packets", "nvlink_buffer_overruns"),
    *("nvlink_symbol_errors", "nvlink_receive_errors", "nvlink_remote_errors"),
    *("nvlink_general_errors", "nvlink_integrity_errors", "nvlink_transmit_discards"),
    *("nvlink_recovery_attempts",),
)
def read_nvlink_errors(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """The counters depend on the generation. Totals are not read: on Hopper they are always 0."""
    links = gpu.links
    if not links:
        raise pynvml.NVMLError(NOT_SUPPORTED)
    if gpu.nvlink5:
        names = {
            _RECOVERY_FAILED: "nvlink_recovery_failures",
            _RECOVERED: "nvlink_recoveries",
            _EFFECTIVE: "nvlink_effective_errors",
            _MALFORMED: "nvlink_malformed_packets",
            _OVERRUN: "nvlink_buffer_overruns",
            _SYMBOLS: "nvlink_symbol_errors",
            **_NVLINK5_MORE,
        }
    else:
        names = {
            _DL_REPLAY: "nvlink_replays",
            _DL_RECOVERY: "nvlink_recoveries",
            _DL_CRC: "nvlink_crc_errors",
        }
    got = read_fields(ask, gpu, _list_fields(names, links))
    if not got and not gpu.nvlink5:
        counters = {0: "nvlink_replays", 1: "nvlink_recoveries", 2: "nvlink_crc_errors"}
        return {
            name: [
                float(ask("nvmlDeviceGetNvLinkErrorCounter", gpu.handle, link, counter))
                for link in range(links)
            ]
            for counter, name in counters.items()
        }
    return require_any(gpu, group_by_link(got, names.values(), links))


@declare_call("slow", *_NVLINK_BYTES.values(), is_judged=False)
def read_nvlink_bytes(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """Payload over all NVLinks of the GPU. NVLink 5 may have counters of each link instead, which
    are summed. A link that cannot be read keeps its last count: the sum must not fall.
    """
    if not gpu.links:
        raise pynvml.NVMLError(NOT_SUPPORTED)
    got = read_fields(ask, gpu, _NVLINK_BYTES, 1024.0)
    if got or not gpu.nvlink5:
        return require_any(gpu, got)
    by_link = require_any(gpu, read_fields(ask, gpu, _list_fields(_NVLINK5_BYTES, gpu.links)))
    gpu.link_bytes |= {place: count for place, count in by_link.items() if isinstance(count, float)}
    totals: dict[str, float] = {}
    for place, count in gpu.link_bytes.items():
        name = place.partition("/")[0]
        totals[name] = totals.get(name, 0.0) + count
        gpu.refused.pop(name, None)  # only the driver's own sum was
    return {**totals}


@declare_call("slow", "c2c_links", "c2c_active", *_C2C_ERRORS.values())
def read_c2c_links(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """The links between the GPU and a Grace processor."""
    count = require_any(gpu, read_fields(ask, gpu, {_C2C_COUNT: "c2c_links"}))["c2c_links"]
    assert isinstance(count, float)
    links = min(int(count), _MAX_C2C_LINKS)
    if not links:
        return {"c2c_links": 0.0}
    names = {_C2C_STATUS: "c2c_active", **_C2C_ERRORS}
    got = read_fields(ask, gpu, _list_fields(names, links))
    return {"c2c_links": count, **group_by_link(got, names.values(), links)}


@declare_call(
    "slow",
    *("fabric_state", "fabric_status", "fabric_clique", "fabric_cluster", "fabric_health_mask"),
    *("fabric_degraded_bandwidth", "fabric_route_recovery", "fabric_route_unhealthy"),
    *("fabric_access_timeout", "fabric_incorrect_configuration", "fabric_manager_lost"),
    *("fabric_health_summary",),
)
def read_fabric(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """State and health in the NVSwitch fabric. `fabric_status` is valid in state 3 (completed)."""
    info, error = pynvml.c_nvmlGpuFabricInfo_v3_t(), None
    try:
        ask("nvmlDeviceGetGpuFabricInfoV", gpu.handle, ctypes.byref(info))
    except pynvml.NVMLError as refused:
        if refused.value != VERSION_MISMATCH:
            raise
        info, error = pynvml.c_nvmlGpuFabricInfo_v2_t(), refused  # before R580
        ask("nvmlDeviceGetGpuFabricInfoV", gpu.handle, ctypes.byref(info))
    if info.state == 0:
        raise pynvml.NVMLError(NOT_SUPPORTED)
    mask = info.healthMask
    got: dict[str, Reading] = {
        "fabric_state": info.state,
        "fabric_status": info.status,
        "fabric_clique": info.cliqueId,
        "fabric_cluster": bytes(info.clusterUuid).hex(),
        "fabric_health_mask": mask,
        # Two bits each: 1 is bad for the first four, good for the others.
        "fabric_degraded_bandwidth": float(mask & 3 == 1),
        "fabric_route_recovery": float(mask >> 2 & 3 == 1),
        "fabric_route_unhealthy": float(mask >> 4 & 3 == 1),
        "fabric_access_timeout": float(mask >> 6 & 3 == 1),
        "fabric_incorrect_configuration": float(mask >> 8 & 15) if mask >> 8 & 15 > 1 else 0.0,
        "fabric_manager_lost": float(mask >> 14 & 3 == 2),
    }
    if error is None and info.healthSummary:
        got["fabric_health_summary"] = info.healthSummary
    return got


@declare_call("inventory", "nvlink_version", "nvlink_switched", "nvlink_bytes_per_second")
def read_nvlink_layout(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """The links' generation and speed, and whether they lead to an NVSwitch."""
    if gpu.links is None:
        read_nvlinks(ask, gpu)
    if not gpu.links:
        raise pynvml.NVMLError(NOT_SUPPORTED)
    got: dict[str, Reading] = {}
    code = _find_answer(ask, gpu, "nvmlDeviceGetNvLinkVersion")
    if code:
        gpu.nvlink5 = code >= _FIRST_NVLINK5
        got["nvlink_version"] = _LINK_VERSIONS.get(int(code), code)
    else:  # no link has a version: only NVLink 5 has this counter
        gpu.nvlink5 = bool(read_fields(ask, gpu, {(_RECOVERY_FAILED, 0): "failed"}))
    speeds = read_fields(
        ask,
        gpu,
        {(_SPEED, link): f"nvlink_bytes_per_second/{link}" for link in range(gpu.links)},
        1e6,
    )
    return {
        **got,
        **group_by_link(speeds, ["nvlink_bytes_per_second"], gpu.links),
        "nvlink_switched": float(
            _find_answer(ask, gpu, "nvmlDeviceGetNvLinkRemoteDeviceType", _SWITCH) == _SWITCH
        ),
    }


def _find_answer(ask: Ask, gpu: PolledGpu, call: str, wanted: float = 0) -> float:
    """The first link's answer that is not 0, or that is `wanted`. 0 if there is none: a link that
    is down may not answer.
    """
    for link in range(gpu.links or 0):
        try:
            answer = float(ask(call, gpu.handle, link))
        except pynvml.NVMLError as error:
            if error.value not in MISSING and error.value not in (INVALID_ARGUMENT, UNKNOWN):
                raise
            continue
        if answer and (not wanted or answer == wanted):
            return answer
    return 0.0


@declare_call(
    "inventory",
    *_BER.values(),
    *_NVLINK5_RAW.values(),
    is_judged=False,
)
def read_nvlink_quality(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """Error rates and counters of the physical layer of NVLink 5, by link."""
    links = _require_nvlink5(gpu)
    names = {**_BER, **(_NVLINK5_RAW if gpu.driver >= _RAW_ERRORS else {})}
    if gpu.driver < _RAW_ERRORS:
        gpu.refused |= dict.fromkeys(_NVLINK5_RAW.values(), FUNCTION_NOT_FOUND)
    fields = read_fields(ask, gpu, _list_fields(names, links))
    got = require_any(gpu, group_by_link(fields, names.values(), links))
    for name in _BER.values():
        if isinstance(packed := got.get(name), list):
            got[name] = [_decode_error_rate(rate) for rate in packed]
    return got


def _require_nvlink5(gpu: PolledGpu) -> int:
    if not gpu.links or not gpu.nvlink5:
        raise pynvml.NVMLError(NOT_SUPPORTED)
    return gpu.links


def _decode_error_rate(packed: float) -> float:
    """Mantissa in bits 8 to 11, negative decimal exponent in bits 0 to 7. The minimum, usual on a
    healthy link, is 15e-255.
    """
    if math.isnan(packed):
        return packed
    return float(f"{int(packed) >> 8 & 0xF}e-{int(packed) & 0xFF}")


@declare_call("inventory", "nvlink_fec_history", "nvlink_fec_highest_bin", is_judged=False)
def read_nvlink_corrections(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """History of forward error correction: corrected symbol errors by bin, summed over all links,
    and for each link the highest bin with a count.
    """
    links = _require_nvlink5(gpu)
    got = read_fields(
        ask, gpu, {(field, link): f"{field}/{link}" for field in _FEC_BINS for link in range(links)}
    )
    table = [[got.get(f"{field}/{link}") for field in _FEC_BINS] for link in range(links)]
    histories = [[count for count in bins if isinstance(count, float)] for bins in table]
    complete = [bins for bins in histories if len(bins) == len(_FEC_BINS)]
    if not complete:
        raise pynvml.NVMLError(gpu.refused.get(f"{_FEC_BINS[0]}/0", NOT_SUPPORTED))
    return {
        "nvlink_fec_history": [sum(counts) for counts in zip(*complete)],
        "nvlink_fec_highest_bin": [_find_highest_bin(bins) for bins in histories],
    }


def _find_highest_bin(history: Sequence[float]) -> float:
    """NaN if the history is incomplete."""
    if len(history) != len(_FEC_BINS):
        return math.nan
    return float(max((bin_ for bin_, count in enumerate(history) if count), default=0))


def _list_fields(names: Mapping[int, str], links: int) -> dict[Any, str]:
    """These fields of each link, named `name/link`."""
    return {
        (field, link): f"{name}/{link}" for field, name in names.items() for link in range(links)
    }
