"""
What the worker asks NVML about one GPU, by tier, and how the answers are called here.

Runs in the worker process only, and imports little but pynvml: what it costs is memory on every
node.

A call gives readings by name, in base units: celsius, watts, joules, hertz, seconds, bytes; a list
has one value a link. Field ids are chosen by the driver's version, not the binding's (ids 251-253
moved to 269-271 with driver 580.82).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Union

import pynvml

from vitald.collectors.nvml import tiers

Reading = Union[
    float, str, "list[float]"
]  # in a list, NaN stands for what could not be read of one link
Ask = Callable[
    ..., Any
]  # ask("nvmlDeviceGetName", handle): the call by its C name, marked as in flight

NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND, INVALID_ARGUMENT = 3, 6, 13, 2
LOST, TIMEOUT, UNKNOWN = 15, 10, 999
EXCLUDED = -2  # besides NVML's own codes: the driver was told to leave this GPU alone
MISSING = tiers.MISSING
LATER = {21: "no data yet", 27: "not ready"}  # the next look will tell
# What is a fault of the GPU by itself, whichever call says it.
FAULTS = {
    8: "insufficient_power",
    11: "irq_issue",
    14: "corrupted_inforom",
    15: "lost",
    16: "reset_required",
}

NO_LIMIT = -3  # besides NVML's own codes: a limit of 0 is none
NO_VALUE = -4  # the same: the call succeeds, and what it gives is none
# NVML_VALUE_NOT_AVAILABLE is -1, and registers of what is not there read as ones; as a float, 64 of
# them are rounded up.
NOT_AVAILABLE = frozenset({2**32 - 1, 2**64 - 1, 2**64})
UNSAID = {**LATER, NO_LIMIT: "the driver gives no limit", NO_VALUE: "the driver gives no value"}
REASONS = {**MISSING, **UNSAID}

# What these give is shown and not judged, so that they fail is no finding.
UNJUDGED = frozenset({"limit_times", "nvlink_quality", "nvlink_corrections"})
OFTEN = 3  # a call that failed for no known reason so many times in succession is a fault

_RENUMBERED = (580, 82)
_RECOVERY, _RESET, _DRAIN_RESET, _MEMORY_TEMPERATURE, _POWER_TIME, _THERMAL_TIME = (
    230,
    226,
    227,
    82,
    74,
    75,
)
_SW_THERMAL, _HW_THERMAL, _POWER_BRAKE = 269, 270, 271
_LINKS, _DL_REPLAY, _DL_RECOVERY, _DL_CRC = 91, 161, 162, 163
_RECOVERY_FAILED, _RECOVERED, _EFFECTIVE, _MALFORMED, _OVERRUN, _SYMBOLS = (
    214,
    213,
    219,
    206,
    207,
    221,
)
_NVLINK5_MORE = {
    208: "nvlink_receive_errors",
    209: "nvlink_remote_errors",
    210: "nvlink_general_errors",
    211: "nvlink_integrity_errors",
    212: "nvlink_transmit_discards",
    215: "nvlink_recovery_attempts",
}
# The layer below: errors of each lane, and blocks that were sent (again). Numbers of before R595
# mean nothing there.
_RAW_ERRORS = (595,)
_NVLINK5_RAW = {
    289: "nvlink_raw_errors_lane0",
    290: "nvlink_raw_errors_lane1",
    294: "nvlink_blocks",
    295: "nvlink_retried_blocks",
}
# Effective and symbol bit error rate are packed: nvml.h, NVML_NVLINK_ERROR_COUNTER_BER_GET. The raw
# ones (291 to 293) are left out: no header says how they are written.
_BER = {220: "nvlink_effective_ber", 222: "nvlink_symbol_ber"}
_FEC_BINS = range(235, 251)
_SPEED = 164
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
# Bits of nvml.h up to 13.3 and, from 0x200 on, of nvidia-ml-py 13.615. What none of them names is
# in clock_event_reasons.
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
# A call or a struct of this version is not there; a former one may be.
_OTHER_VERSION = {FUNCTION_NOT_FOUND, 25, NOT_SUPPORTED, INVALID_ARGUMENT}
_HOTTEST = 200.0  # °C
_VOLATILE, _AGGREGATE, _CORRECTED, _UNCORRECTED = 0, 1, 0, 1
_DRAM, _SRAM = 2, 7
_SWITCH = 2
_MOST_LINKS = 36
# By NVML's code for it; from 7 on (NVLink 5) other counters count.
_LINK_VERSIONS = {1: 1.0, 2: 2.0, 3: 2.2, 4: 3.0, 5: 3.1, 6: 4.0, 7: 5.0, 8: 6.0}
_FIRST_NVLINK5 = 7
_NO_SUCH_LINK = {INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND}


class Gpu:
    """One GPU as the worker holds it."""

    def __init__(self, address: str, handle: Any, driver: tuple[int, ...]) -> None:
        self.address = address
        self.handle = handle
        self.driver = driver
        self.links: int | None = (
            None  # the most that it had since we attached; None where it does not say
        )
        self.nvlink5 = False
        self.refused: dict[str, int] = {}  # readings that the call in progress cannot give: code
        # What a part of the call in progress failed with, 0 where none did; what the others gave
        # counts
        self.failed = 0
        # Calls that this GPU or driver does not have, until the next inventory: code, and those of
        # its readings.
        self.skipped: dict[str, tuple[int, dict[str, int]]] = {}
        self.answered = False  # since we attached
        self.unheard = True  # its events are to be listened to, and are not yet
        self.troubles: dict[
            str, tuple[int, int]
        ] = {}  # calls that failed: code, and how many times in succession


Call = Callable[[Ask, Gpu], "dict[str, Reading]"]


def _fields(ask: Ask, gpu: Gpu, ids: dict[Any, str], scale: float = 1.0) -> dict[str, Reading]:
    """Many values in one call; what a GPU does not have is left out. Raises where it is lost or
    wants its reset.
    """
    got: dict[str, Reading] = {}
    for (_, name), value in zip(
        ids.items(), ask("nvmlDeviceGetFieldValues", gpu.handle, list(ids))
    ):
        if value.nvmlReturn in (LOST, 16):
            raise pynvml.NVMLError(value.nvmlReturn)
        number = _number(value) if value.nvmlReturn == 0 else 0.0
        if value.nvmlReturn or number in NOT_AVAILABLE:
            # A driver that does not know the field by its number: INVALID_ARGUMENT.
            gpu.refused[name] = (
                NOT_SUPPORTED
                if value.nvmlReturn == INVALID_ARGUMENT
                else value.nvmlReturn or NO_VALUE
            )
        else:
            got[name] = number * scale if scale != 1.0 else number
    return got


def _each(gpu: Gpu, asked: Mapping[str, Callable[[], Reading]]) -> dict[str, Reading]:
    """Values that are asked for one by one: one that cannot be read does not take the
    others away.
    """
    got: dict[str, Reading] = {}
    for name, call in asked.items():
        try:
            got[name] = call()
        except pynvml.NVMLError as error:
            if error.value in (LOST, 16):
                raise
            gpu.refused[name] = error.value
            if (
                error.value not in (*MISSING, *UNSAID, INVALID_ARGUMENT)
                and gpu.failed not in FAULTS
            ):
                gpu.failed = error.value
    if not got:  # each of them failed: so did the call
        raise pynvml.NVMLError(gpu.failed or next(iter(gpu.refused.values()), NOT_SUPPORTED))
    return got


def _number(value: Any) -> float:
    """The member of the union that the value's type names. Reading a signed one as unsigned gives
    absurd numbers.
    """
    union = value.value
    members = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
    return float(getattr(union, members.get(value.valueType, "ullVal")))


# --- fast: every few seconds


def recovery_action(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    """The driver's own advice; where it has none yet (before R565), the two flags that it grew out
    of.
    """
    got = _fields(ask, gpu, {_RECOVERY: "recovery", _RESET: "reset", _DRAIN_RESET: "drain_reset"})
    reset, drain = got.pop("reset", None), got.pop("drain_reset", None)
    if "recovery" not in got:
        code = gpu.refused["recovery"]
        if code not in MISSING:  # this driver has it: the flags of old say less
            raise pynvml.NVMLError(code)
        if reset is None and drain is None:
            raise pynvml.NVMLError(NOT_SUPPORTED)
        del gpu.refused["recovery"]
        got["recovery"] = 1.0 if reset else 4.0 if drain else 0.0
    return got


def temperature(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    try:
        celsius = ask("nvmlDeviceGetTemperature", gpu.handle, 0)
    except pynvml.NVMLError as error:  # deprecated by NVML 13; its successor is there from R565 on
        if error.value not in MISSING:
            raise
        try:
            celsius = ask("nvmlDeviceGetTemperatureV", gpu.handle, 0)
        except pynvml.NVMLError as newer:
            raise (error if newer.value in MISSING else newer) from newer
    return {"temperature_celsius": _possible(celsius)}


def _possible(celsius: float) -> float:
    """A dead sensor reads as 255, and what is below 0 as a very large number: no board is so hot
    and answers.
    """
    if not celsius < _HOTTEST:
        raise pynvml.NVMLError(NO_VALUE)
    return celsius


def margin(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    return {"margin_celsius": ask("nvmlDeviceGetMarginTemperature", gpu.handle)}


def memory_temperature(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    got = _some(gpu, _fields(ask, gpu, {_MEMORY_TEMPERATURE: "memory_temperature_celsius"}))
    return {
        name: _possible(celsius)
        for name, celsius in got.items()
        if isinstance(celsius, (int, float))
    }


def clock_events(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
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


def throttle_times(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    ids = {_POWER_TIME: "power_capped_seconds", _THERMAL_TIME: "thermal_slowdown_seconds"}
    if gpu.driver >= _RENUMBERED:
        ids |= {
            _SW_THERMAL: "sw_thermal_seconds",
            _HW_THERMAL: "hw_thermal_seconds",
            _POWER_BRAKE: "power_brake_seconds",
        }
    else:
        gpu.refused |= dict.fromkeys(
            ("sw_thermal_seconds", "hw_thermal_seconds", "power_brake_seconds"), FUNCTION_NOT_FOUND
        )
    got = _some(gpu, _fields(ask, gpu, ids, 1e-9))
    parts = [
        value
        for name in ("sw_thermal_seconds", "hw_thermal_seconds", "power_brake_seconds")
        if (value := got.get(name)) is not None
    ]
    total = (
        sum(part for part in parts if isinstance(part, float))
        if parts
        else got.get("thermal_slowdown_seconds")
    )
    return got if total is None else {**got, "throttled_seconds": total}


def power(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    return {"power_watts": ask("nvmlDeviceGetPowerUsage", gpu.handle) / 1000}


def load(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    rates = ask("nvmlDeviceGetUtilizationRates", gpu.handle)
    if rates.gpu in NOT_AVAILABLE or rates.memory in NOT_AVAILABLE:
        raise pynvml.NVMLError(NO_VALUE)
    return {"utilization_ratio": rates.gpu / 100, "memory_utilization_ratio": rates.memory / 100}


# --- slow: every minute or so


def performance_state(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    return {"performance_state": ask("nvmlDeviceGetPerformanceState", gpu.handle)}


def clocks(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    domains = {"sm_clock_hertz": 1, "memory_clock_hertz": 2}
    return _each(gpu, {name: partial(_clock, ask, gpu, domain) for name, domain in domains.items()})


def _clock(ask: Ask, gpu: Gpu, domain: int) -> float:
    return float(ask("nvmlDeviceGetClockInfo", gpu.handle, domain)) * 1e6


def energy(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    return {"energy_joules": ask("nvmlDeviceGetTotalEnergyConsumption", gpu.handle) / 1000}


def memory(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    """Before R510 what the driver keeps for itself counted as used."""
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


def limit_times(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    """How long other limits than power and heat held the clocks down."""
    return _some(gpu, _fields(ask, gpu, _LIMIT_TIMES, 1e-9))


def ecc(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    counters = {
        "ecc_corrected": (_CORRECTED, _VOLATILE),
        "ecc_uncorrected": (_UNCORRECTED, _VOLATILE),
        "ecc_corrected_lifetime": (_CORRECTED, _AGGREGATE),
        "ecc_uncorrected_lifetime": (_UNCORRECTED, _AGGREGATE),
    }
    return _each(
        gpu,
        {
            name: partial(ask, "nvmlDeviceGetTotalEccErrors", gpu.handle, *which)
            for name, which in counters.items()
        },
    )


def ecc_dram(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    return _ecc_in(ask, gpu, "dram", _DRAM)


def ecc_sram(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    return _ecc_in(ask, gpu, "sram", _SRAM)


def _ecc_in(ask: Ask, gpu: Gpu, memory: str, place: int) -> dict[str, Reading]:
    kinds = {f"ecc_corrected_{memory}": _CORRECTED, f"ecc_uncorrected_{memory}": _UNCORRECTED}
    counter = "nvmlDeviceGetMemoryErrorCounter"
    return _each(
        gpu,
        {
            name: partial(ask, counter, gpu.handle, kind, _VOLATILE, place)
            for name, kind in kinds.items()
        },
    )


def sram_status(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    """Needs root. Without, the threshold is not observed, which is not the same as not exceeded."""
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
    got = _each(gpu, {name: partial(_said, value) for name, value in members.items()})
    if "sram_threshold_exceeded" in got:
        got["sram_threshold_exceeded"] = float(bool(got["sram_threshold_exceeded"]))
    return got


def _said(value: int) -> Reading:
    if value in NOT_AVAILABLE:
        raise pynvml.NVMLError(NO_VALUE)
    return value


def remapped_rows(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    corrected, uncorrected, pending, failed = ask("nvmlDeviceGetRemappedRows", gpu.handle)
    return {
        "remapped_rows_corrected": corrected,
        "remapped_rows_uncorrected": uncorrected,
        "row_remap_pending": float(bool(pending)),
        "row_remap_failed": float(bool(failed)),
    }


def spare_rows(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    banks = ask("nvmlDeviceGetRowRemapperHistogram", gpu.handle)
    spare = ("max", "high", "partial", "low", "none")
    return _each(
        gpu, {f"remap_banks_{name}": partial(_said, getattr(banks, name)) for name in spare}
    )


def retired_pages(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    single = len(ask("nvmlDeviceGetRetiredPages_v2", gpu.handle, 0))
    double = len(ask("nvmlDeviceGetRetiredPages_v2", gpu.handle, 1))
    return {
        "retired_pages_single": single,
        "retired_pages_double": double,
        "retired_pages": single + double,
    }


def retirement_pending(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    return {
        "page_retirement_pending": float(
            bool(ask("nvmlDeviceGetRetiredPagesPendingStatus", gpu.handle))
        )
    }


def repair(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    channel, tpc = ask("nvmlDeviceGetRepairStatus", gpu.handle)
    return {"channel_repair_pending": float(bool(channel)), "tpc_repair_pending": float(bool(tpc))}


def unrepairable(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    """The binding passes {version, flag}; newer headers declare the flag alone, and the driver then
    writes it to the first word.
    """
    version = 0x1000008
    words = (ctypes.c_uint * 2)(version, 0)
    ask("nvmlDeviceGetUnrepairableMemoryFlag_v1", gpu.handle, words, raw=True)
    return {
        "memory_unrepairable": float(bool(_said(words[0] if words[0] != version else words[1])))
    }


def pcie_link(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    calls = {
        "pcie_generation": "nvmlDeviceGetCurrPcieLinkGeneration",
        "pcie_width": "nvmlDeviceGetCurrPcieLinkWidth",
        "pcie_generation_max": "nvmlDeviceGetMaxPcieLinkGeneration",
        "pcie_width_max": "nvmlDeviceGetMaxPcieLinkWidth",
    }
    return _each(gpu, {name: partial(_above_0, ask, gpu, call) for name, call in calls.items()})


def _above_0(ask: Ask, gpu: Gpu, call: str) -> Reading:
    """A GPU that answers has a link: 0 is no value of it."""
    if not (value := ask(call, gpu.handle)):
        raise pynvml.NVMLError(NO_VALUE)
    return float(value)


def pcie_errors(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    return _some(gpu, _fields(ask, gpu, _PCIE))


def mig(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    """Mode and number of instances. The index space has holes."""
    current, pending = ask("nvmlDeviceGetMigMode", gpu.handle)
    instances = 0
    if current:
        for index in range(ask("nvmlDeviceGetMaxMigDeviceCount", gpu.handle)):
            try:
                ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu.handle, index)
                instances += 1
            except pynvml.NVMLError as error:
                if error.value != NOT_FOUND:
                    raise
    return {
        "mig_mode": current,
        "mig_mode_pending": pending,
        "mig_mode_change_pending": float(current != pending),
        "mig_instances": instances,
    }


def nvlinks(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    """Each link by itself. One that the GPU had and does not know any more is not active; one that
    cannot be read is NaN.
    """
    got = _fields(ask, gpu, {_LINKS: "nvlinks"})
    count = _some(gpu, got)["nvlinks"]
    assert isinstance(count, float)
    gpu.links = max(gpu.links or 0, min(int(count), _MOST_LINKS))
    if not gpu.links:
        return got
    states = [_link_state(ask, gpu, link) for link in range(gpu.links)]
    for link in [link for link, state in enumerate(states) if state == 1.0][int(count) :]:
        states[link] = 0.0  # more than there are, whichever they are
    if all(math.isnan(state) for state in states):
        gpu.refused["nvlinks_active"] = gpu.refused["nvlink_active"]
        return got
    return {
        **got,
        "nvlink_active": states,
        "nvlinks_active": float(sum(state == 1.0 for state in states)),
    }


def _link_state(ask: Ask, gpu: Gpu, link: int) -> float:
    try:
        return float(bool(ask("nvmlDeviceGetNvLinkState", gpu.handle, link)))
    except pynvml.NVMLError as error:
        if error.value in (LOST, 16):
            raise
        if error.value in _NO_SUCH_LINK:
            return 0.0
        gpu.refused["nvlink_active"] = gpu.failed = error.value
        return math.nan


def nvlink_errors(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    """By generation: totals that succeed with 0 on Hopper are never asked for."""
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
    every = {
        (field, link): f"{name}/{link}" for field, name in names.items() for link in range(links)
    }
    got = _fields(ask, gpu, every)
    if not got and not gpu.nvlink5:
        counters = {0: "nvlink_replays", 1: "nvlink_recoveries", 2: "nvlink_crc_errors"}
        return {
            name: [
                float(ask("nvmlDeviceGetNvLinkErrorCounter", gpu.handle, link, counter))
                for link in range(links)
            ]
            for counter, name in counters.items()
        }
    return _some(gpu, _by_link(got, names.values(), links))


def _by_link(got: Mapping[str, Reading], names: Iterable[str], links: int) -> dict[str, Reading]:
    """Readings by link from those named `name/link`: NaN where a link does not say it, nothing
    where none does.
    """
    whole: dict[str, Reading] = {}
    for name in names:
        values = [got.get(f"{name}/{link}") for link in range(links)]
        if any(isinstance(value, float) for value in values):
            whole[name] = [value if isinstance(value, float) else math.nan for value in values]
    return whole


def c2c_links(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    """The links between the GPU and a Grace processor."""
    count = _some(gpu, _fields(ask, gpu, {_C2C_COUNT: "c2c_links"}))["c2c_links"]
    assert isinstance(count, float)
    links = min(int(count), _MAX_C2C_LINKS)
    if not links:
        return {"c2c_links": 0.0}
    names = {_C2C_STATUS: "c2c_active", **_C2C_ERRORS}
    got = _fields(
        ask,
        gpu,
        {(field, link): f"{name}/{link}" for field, name in names.items() for link in range(links)},
    )
    return {"c2c_links": count, **_by_link(got, names.values(), links)}


def fabric(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    """State and health in the NVSwitch fabric. `fabric_status` counts only once the state is 3,
    completed.
    """
    info, error = pynvml.c_nvmlGpuFabricInfo_v3_t(), None
    try:
        ask("nvmlDeviceGetGpuFabricInfoV", gpu.handle, ctypes.byref(info))
    except pynvml.NVMLError as refused:
        if refused.value != 25:
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
        # Two bits each, and no common polarity: 1 is bad for the first four, good for the others.
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


def processes(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    running = ask("nvmlDeviceGetComputeRunningProcesses", gpu.handle)
    return {"processes": len(running), "process_pids": [float(process.pid) for process in running]}


# --- inventory: rarely


def limits(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    """A limit of 0 is none: drivers answer it where the call is deprecated."""
    numbers = {
        "shutdown_celsius": 0,
        "slowdown_celsius": 1,
        "memory_max_celsius": 2,
        "gpu_max_celsius": 3,
    }
    return _each(gpu, {name: partial(_limit, ask, gpu, number) for name, number in numbers.items()})


def _limit(ask: Ask, gpu: Gpu, number: int) -> Reading:
    try:
        limit = ask("nvmlDeviceGetTemperatureThreshold", gpu.handle, number)
    except pynvml.NVMLError as error:  # it does not know the number of this limit
        raise pynvml.NVMLError(
            NOT_SUPPORTED if error.value == INVALID_ARGUMENT else error.value
        ) from error
    if limit <= 0:
        raise pynvml.NVMLError(NO_LIMIT)
    return float(limit)


def t_limits(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    return _some(gpu, _fields(ask, gpu, _T_LIMITS))


def power_limit(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    return {"power_limit_watts": ask("nvmlDeviceGetEnforcedPowerLimit", gpu.handle) / 1000}


def persistence(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    return {"persistence_mode": ask("nvmlDeviceGetPersistenceMode", gpu.handle)}


def ecc_mode(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    current, pending = ask("nvmlDeviceGetEccMode", gpu.handle)
    return {
        "ecc_mode": current,
        "ecc_mode_pending": pending,
        "ecc_mode_change_pending": float(current != pending),
    }


def identity(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    """Who it is. Some of it cannot be read any more once the GPU is lost, so it is remembered."""
    calls = {
        "uuid": "nvmlDeviceGetUUID",
        "name": "nvmlDeviceGetName",
        "serial": "nvmlDeviceGetSerial",
        "part_number": "nvmlDeviceGetBoardPartNumber",
        "vbios": "nvmlDeviceGetVbiosVersion",
        "inforom": "nvmlDeviceGetInforomImageVersion",
        "module_id": "nvmlDeviceGetModuleId",
        "minor": "nvmlDeviceGetMinorNumber",
        "board_id": "nvmlDeviceGetBoardId",
    }
    return _each(gpu, {name: partial(ask, call, gpu.handle) for name, call in calls.items()})


def nvlink_quality(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    """What NVLink 5 corrects before anybody notices, by link."""
    links = _nvlink5(gpu)
    names = {**_BER, **(_NVLINK5_RAW if gpu.driver >= _RAW_ERRORS else {})}
    if gpu.driver < _RAW_ERRORS:
        gpu.refused |= dict.fromkeys(_NVLINK5_RAW.values(), FUNCTION_NOT_FOUND)
    every = {
        (field, link): f"{name}/{link}" for field, name in names.items() for link in range(links)
    }
    got = _some(gpu, _by_link(_fields(ask, gpu, every), names.values(), links))
    for name in _BER.values():
        if isinstance(packed := got.get(name), list):
            got[name] = [_error_rate(one) for one in packed]
    return got


def _nvlink5(gpu: Gpu) -> int:
    if not gpu.links or not gpu.nvlink5:
        raise pynvml.NVMLError(NOT_SUPPORTED)
    return gpu.links


def _error_rate(packed: float) -> float:
    """Mantissa in bits 8 to 11, the negative exponent of ten in those below. The least, and usual
    on a sound link, is 15e-255.
    """
    return (
        packed if math.isnan(packed) else float(f"{int(packed) >> 8 & 0xF}e-{int(packed) & 0xFF}")
    )


def nvlink_corrections(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    """The history of forward error correction: symbol errors that were corrected, by bin. Of all
    links together, and for each link the highest bin that counted.
    """
    links = _nvlink5(gpu)
    got = _fields(
        ask, gpu, {(field, link): f"{field}/{link}" for field in _FEC_BINS for link in range(links)}
    )
    table = [[got.get(f"{field}/{link}") for field in _FEC_BINS] for link in range(links)]
    read = [[count for count in bins if isinstance(count, float)] for bins in table]
    whole = [bins for bins in read if len(bins) == len(_FEC_BINS)]
    if not whole:
        raise pynvml.NVMLError(gpu.refused.get(f"{_FEC_BINS[0]}/0", NOT_SUPPORTED))
    highest = [
        float(max((at for at, count in enumerate(bins) if count), default=0)) for bins in read
    ]
    return {
        "nvlink_fec_history": [sum(counts) for counts in zip(*whole)],
        "nvlink_fec_highest_bin": [
            one if len(bins) == len(_FEC_BINS) else math.nan for one, bins in zip(highest, read)
        ],
    }


def platform(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    """Where the GPU stands in a rack: chassis, slot and tray. Only boards of such racks say it."""
    info: Any = pynvml.c_nvmlPlatformInfo_v2_t()
    try:
        ask("nvmlDeviceGetPlatformInfo", gpu.handle, ctypes.byref(info))
    except pynvml.NVMLError as error:
        if error.value not in (25, INVALID_ARGUMENT):
            raise
        info = (
            pynvml.c_nvmlPlatformInfo_v1_t()
        )  # what a former driver knows: rack GUID, slots and node in the same places
        ask("nvmlDeviceGetPlatformInfo", gpu.handle, ctypes.byref(info))
    raw, where = (
        bytes(info),
        pynvml.c_nvmlPlatformInfo_v2_t,
    )  # the binding decodes each member as UTF-8, which a number need not be
    start = where.chassisSerialNumber.offset
    serial = _printable(raw[start : start + where.chassisSerialNumber.size])
    got: dict[str, Reading] = {"chassis_serial": serial} if serial else {}
    for name, member in (
        ("chassis_slot", where.slotNumber),
        ("tray_index", where.trayIndex),
        ("host_id", where.hostId),
    ):
        got[name] = float(raw[member.offset])
    return got


def _printable(raw: bytes) -> str:
    """A serial number as it is, another identity in hexadecimal digits."""
    text = raw.rstrip(b"\0")
    return (
        text.decode("ascii").strip()
        if text.isascii() and text.decode("ascii").isprintable()
        else text.hex()
    )


def nvlink_layout(ask: Ask, gpu: Gpu) -> dict[str, Reading]:
    """Of which generation the links are, and whether an NVSwitch is behind them."""
    if gpu.links is None:
        nvlinks(ask, gpu)
    if not gpu.links:
        raise pynvml.NVMLError(NOT_SUPPORTED)
    got: dict[str, Reading] = {}
    code = _first(ask, gpu, "nvmlDeviceGetNvLinkVersion")
    if code:
        gpu.nvlink5 = code >= _FIRST_NVLINK5
        got["nvlink_version"] = _LINK_VERSIONS.get(int(code), code)
    else:  # no link says it: NVLink 5 has a counter that others do not have
        gpu.nvlink5 = bool(_fields(ask, gpu, {(_RECOVERY_FAILED, 0): "failed"}))
    speeds = _fields(
        ask,
        gpu,
        {(_SPEED, link): f"nvlink_bytes_per_second/{link}" for link in range(gpu.links)},
        1e6,
    )
    return {
        **got,
        **_by_link(speeds, ["nvlink_bytes_per_second"], gpu.links),
        "nvlink_switched": float(
            _first(ask, gpu, "nvmlDeviceGetNvLinkRemoteDeviceType", _SWITCH) == _SWITCH
        ),
    }


def _first(ask: Ask, gpu: Gpu, call: str, wanted: float = 0) -> float:
    """What the first link says that answers: anything but 0, or what is wanted. 0 where none does:
    a link that is down may not.
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


def _some(gpu: Gpu, got: dict[str, Reading]) -> dict[str, Reading]:
    """Raises where there is nothing: with the one code that all of them failed with, if that says
    more than "not supported".
    """
    if not got:
        codes = set(gpu.refused.values()) - {FUNCTION_NOT_FOUND}
        raise pynvml.NVMLError(codes.pop() if len(codes) == 1 else NOT_SUPPORTED)
    return got


def _tier(calls: Mapping[str, tuple[str, ...]]) -> tuple[Call, ...]:
    return tuple(globals()[name] for name in calls)


FAST, SLOW, INVENTORY = _tier(tiers.FAST), _tier(tiers.SLOW), _tier(tiers.INVENTORY)
