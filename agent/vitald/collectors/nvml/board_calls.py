"""
Calls about a GPU as a whole: temperature, power, clocks, limits, load, MIG and identity.

Field ids are chosen by the driver's version, not the binding's.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import pynvml

from vitald.collectors.nvml.codes import (
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    MISSING,
    NO_LIMIT,
    NO_VALUE,
    NOT_AVAILABLE,
    NOT_SUPPORTED,
    VERSION_MISMATCH,
)
from vitald.collectors.nvml.query import (
    Ask,
    PolledGpu,
    Reading,
    declare_call,
    read_each,
    read_fields,
    require_any,
)

_RECOVERY, _RESET, _DRAIN_RESET, _MEMORY_TEMPERATURE = 230, 226, 227, 82
_POWER_TIME, _THERMAL_TIME, _SW_THERMAL, _HW_THERMAL, _POWER_BRAKE = 74, 75, 269, 270, 271
_RENUMBERED = (580, 82)  # with this driver, fields 251 to 253 became 269 to 271
_SLOWDOWNS = ("sw_thermal_seconds", "hw_thermal_seconds", "power_brake_seconds")
_T_LIMITS = {
    193: "shutdown_margin_celsius",
    194: "slowdown_margin_celsius",
    195: "memory_max_margin_celsius",
    196: "gpu_max_margin_celsius",
}
_LIMIT_TIMES = {
    76: "sync_boost_seconds",
    77: "board_limit_seconds",
    78: "low_utilization_seconds",
    79: "reliability_seconds",
}
# Bits of nvml.h up to 13.3 and, from 0x200 on, of nvidia-ml-py 13.615. Other bits are only in
# clock_event_reasons.
_REASONS = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "power_capped",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
_MAX_CELSIUS = 200.0


@declare_call(
    "inventory",
    *("uuid", "name", "serial", "part_number", "vbios", "inforom"),
    *("module_id", "minor", "index", "board_id"),
)
def read_identity(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """Identity of the board. Some of it cannot be read once the GPU is lost."""
    calls = {
        "uuid": "nvmlDeviceGetUUID",
        "name": "nvmlDeviceGetName",
        "serial": "nvmlDeviceGetSerial",
        "part_number": "nvmlDeviceGetBoardPartNumber",
        "vbios": "nvmlDeviceGetVbiosVersion",
        "inforom": "nvmlDeviceGetInforomImageVersion",
        "module_id": "nvmlDeviceGetModuleId",
        "minor": "nvmlDeviceGetMinorNumber",
        "index": "nvmlDeviceGetIndex",
        "board_id": "nvmlDeviceGetBoardId",
    }
    return read_each(gpu, {name: partial(ask, call, gpu.handle) for name, call in calls.items()})


@declare_call("inventory", "chassis_serial", "chassis_slot", "tray_index", "host_id")
def read_platform(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """The GPU's location in a rack: chassis, slot and tray. Only rack-scale systems have it."""
    info: Any = pynvml.c_nvmlPlatformInfo_v2_t()
    try:
        ask("nvmlDeviceGetPlatformInfo", gpu.handle, ctypes.byref(info))
    except pynvml.NVMLError as error:
        if error.value not in (VERSION_MISMATCH, INVALID_ARGUMENT):
            raise
        # Earlier drivers: rack GUID, slots and host have the same offsets.
        info = pynvml.c_nvmlPlatformInfo_v1_t()
        ask("nvmlDeviceGetPlatformInfo", gpu.handle, ctypes.byref(info))
    # By offset: the binding decodes each member as UTF-8, which a number need not be.
    raw, layout = bytes(info), pynvml.c_nvmlPlatformInfo_v2_t
    start = layout.chassisSerialNumber.offset
    serial = _decode_serial(raw[start : start + layout.chassisSerialNumber.size])
    got: dict[str, Reading] = {"chassis_serial": serial} if serial else {}
    for name, member in (
        ("chassis_slot", layout.slotNumber),
        ("tray_index", layout.trayIndex),
        ("host_id", layout.hostId),
    ):
        got[name] = float(raw[member.offset])
    return got


def _decode_serial(raw: bytes) -> str:
    """A serial number in ASCII as it is, a binary identity in hexadecimal digits."""
    data = raw.rstrip(b"\0")
    if data.isascii() and (text := data.decode("ascii")).isprintable():
        return text.strip()
    return data.hex()


@declare_call("fast", "recovery")
def read_recovery_action(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """The recovery action that the driver recommends; before R565, from its two predecessors, the
    reset flags.
    """
    got = read_fields(
        ask, gpu, {_RECOVERY: "recovery", _RESET: "reset", _DRAIN_RESET: "drain_reset"}
    )
    reset, drain = got.pop("reset", None), got.pop("drain_reset", None)
    if "recovery" not in got:
        code = gpu.refused["recovery"]
        if code not in MISSING:  # this driver has the field, which is more precise than the flags
            raise pynvml.NVMLError(code)
        if reset is None and drain is None:
            raise pynvml.NVMLError(NOT_SUPPORTED)
        del gpu.refused["recovery"]
        drain_action = 4.0 if drain else 0.0
        got["recovery"] = 1.0 if reset else drain_action
    return got


@declare_call("fast", "temperature_celsius")
def read_temperature(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    try:
        celsius = ask("nvmlDeviceGetTemperature", gpu.handle, 0)
    except pynvml.NVMLError as error:  # deprecated by NVML 13; R565 has its successor
        if error.value not in MISSING:
            raise
        try:
            celsius = ask("nvmlDeviceGetTemperatureV", gpu.handle, 0)
        except pynvml.NVMLError as newer:
            raise (error if newer.value in MISSING else newer) from newer
    return {"temperature_celsius": _check_temperature(celsius)}


def _check_temperature(celsius: float) -> float:
    """Raises NVMLError for an impossible temperature: a dead sensor reads as 255, and a temperature
    below 0 as a very large number.
    """
    if not celsius < _MAX_CELSIUS:
        raise pynvml.NVMLError(NO_VALUE)
    return celsius


@declare_call("fast", "margin_celsius")
def read_margin(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    return {"margin_celsius": ask("nvmlDeviceGetMarginTemperature", gpu.handle)}


@declare_call("fast", "memory_temperature_celsius")
def read_memory_temperature(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    got = require_any(
        gpu, read_fields(ask, gpu, {_MEMORY_TEMPERATURE: "memory_temperature_celsius"})
    )
    return {
        name: _check_temperature(celsius)
        for name, celsius in got.items()
        if isinstance(celsius, (int, float))
    }


@declare_call(
    "fast",
    *("clock_event_reasons", "idle", "power_capped", "hw_slowdown", "sync_boost"),
    *("sw_thermal_slowdown", "hw_thermal_slowdown", "power_brake"),
    *("application_clocks", "display_clocks", "board_limit", "reliability"),
)
def read_clock_events(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    try:
        mask = ask("nvmlDeviceGetCurrentClocksEventReasons", gpu.handle)
    except pynvml.NVMLError as error:
        if error.value != FUNCTION_NOT_FOUND:
            raise
        mask = ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu.handle)  # its name before R535
    return {
        "clock_event_reasons": mask,
        **{name: float(bool(mask & bit)) for bit, name in _REASONS.items()},
    }


@declare_call(
    "fast",
    *("power_capped_seconds", "thermal_slowdown_seconds", "sw_thermal_seconds"),
    *("hw_thermal_seconds", "power_brake_seconds", "throttled_seconds"),
)
def read_throttle_times(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    ids = {_POWER_TIME: "power_capped_seconds", _THERMAL_TIME: "thermal_slowdown_seconds"}
    if gpu.driver >= _RENUMBERED:
        ids |= {
            _SW_THERMAL: "sw_thermal_seconds",
            _HW_THERMAL: "hw_thermal_seconds",
            _POWER_BRAKE: "power_brake_seconds",
        }
    else:
        gpu.refused |= dict.fromkeys(_SLOWDOWNS, FUNCTION_NOT_FOUND)
    got = require_any(gpu, read_fields(ask, gpu, ids, 1e-9))
    parts = [value for name in _SLOWDOWNS if (value := got.get(name)) is not None]
    total = got.get("thermal_slowdown_seconds")
    if parts:
        total = sum(part for part in parts if isinstance(part, float))
    return got if total is None else {**got, "throttled_seconds": total}


@declare_call("fast", "power_watts")
def read_power(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    return {"power_watts": ask("nvmlDeviceGetPowerUsage", gpu.handle) / 1000}


@declare_call("fast", "utilization_ratio", "memory_utilization_ratio")
def read_load(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    rates = ask("nvmlDeviceGetUtilizationRates", gpu.handle)
    if rates.gpu in NOT_AVAILABLE or rates.memory in NOT_AVAILABLE:
        raise pynvml.NVMLError(NO_VALUE)
    return {"utilization_ratio": rates.gpu / 100, "memory_utilization_ratio": rates.memory / 100}


@declare_call("slow", "encoder_utilization_ratio", "decoder_utilization_ratio", is_judged=False)
def read_codecs(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """Utilisation of the video encoders and decoders; not of a GPU in MIG mode."""
    calls = {
        "encoder_utilization_ratio": "nvmlDeviceGetEncoderUtilization",
        "decoder_utilization_ratio": "nvmlDeviceGetDecoderUtilization",
    }
    return read_each(
        gpu, {name: partial(_read_codec, ask, gpu, call) for name, call in calls.items()}
    )


def _read_codec(ask: Ask, gpu: PolledGpu, call: str) -> Reading:
    percent, _ = ask(call, gpu.handle)
    return float(percent) / 100


@declare_call("slow", "performance_state")
def read_performance_state(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    return {"performance_state": ask("nvmlDeviceGetPerformanceState", gpu.handle)}


@declare_call("slow", "sm_clock_hertz", "memory_clock_hertz")
def read_clocks(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    domains = {"sm_clock_hertz": 1, "memory_clock_hertz": 2}
    return read_each(
        gpu, {name: partial(_read_clock, ask, gpu, domain) for name, domain in domains.items()}
    )


def _read_clock(ask: Ask, gpu: PolledGpu, domain: int) -> float:
    return float(ask("nvmlDeviceGetClockInfo", gpu.handle, domain)) * 1e6


@declare_call("slow", "energy_joules")
def read_energy(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    return {"energy_joules": ask("nvmlDeviceGetTotalEnergyConsumption", gpu.handle) / 1000}


@declare_call(
    "slow",
    *("sync_boost_seconds", "board_limit_seconds"),
    *("low_utilization_seconds", "reliability_seconds"),
    is_judged=False,
)
def read_limit_times(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """How long limits other than power and temperature reduced the clocks."""
    return require_any(gpu, read_fields(ask, gpu, _LIMIT_TIMES, 1e-9))


@declare_call("slow", "processes", "process_pids")
def read_processes(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    running = ask("nvmlDeviceGetComputeRunningProcesses", gpu.handle)
    return {"processes": len(running), "process_pids": [float(process.pid) for process in running]}


@declare_call(
    "inventory", "shutdown_celsius", "slowdown_celsius", "memory_max_celsius", "gpu_max_celsius"
)
def read_limits(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    """A limit of 0 is none: drivers return it if the call is deprecated."""
    numbers = {
        "shutdown_celsius": 0,
        "slowdown_celsius": 1,
        "memory_max_celsius": 2,
        "gpu_max_celsius": 3,
    }
    return read_each(
        gpu, {name: partial(_read_limit, ask, gpu, number) for name, number in numbers.items()}
    )


def _read_limit(ask: Ask, gpu: PolledGpu, number: int) -> Reading:
    try:
        limit = ask("nvmlDeviceGetTemperatureThreshold", gpu.handle, number)
    except pynvml.NVMLError as error:
        # INVALID_ARGUMENT: the driver does not know the number of this limit.
        code = NOT_SUPPORTED if error.value == INVALID_ARGUMENT else error.value
        raise pynvml.NVMLError(code) from error
    if limit <= 0:
        raise pynvml.NVMLError(NO_LIMIT)
    return float(limit)


@declare_call(
    "inventory",
    *("shutdown_margin_celsius", "slowdown_margin_celsius"),
    *("memory_max_margin_celsius", "gpu_max_margin_celsius"),
)
def read_t_limits(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    return require_any(gpu, read_fields(ask, gpu, _T_LIMITS))


@declare_call("inventory", "power_limit_watts")
def read_power_limit(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    return {"power_limit_watts": ask("nvmlDeviceGetEnforcedPowerLimit", gpu.handle) / 1000}


@declare_call("inventory", "persistence_mode")
def read_persistence(ask: Ask, gpu: PolledGpu) -> dict[str, Reading]:
    return {"persistence_mode": ask("nvmlDeviceGetPersistenceMode", gpu.handle)}
