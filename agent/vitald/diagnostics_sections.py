"""Sections of the configuration on diagnostics: their keys, defaults and help."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vitald import tomlfile
from vitald.checking import (
    Unexpected,
    read_choice,
    read_flag,
    read_line,
    read_number,
    read_whole,
)
from vitald.model.validation import Trigger
from vitald.settings import read_nonempty_text, read_path, read_period, setting
from vitald.timestamps import parse_day

# How a value is read: from what TOML gives to what the code uses. Each raises ValueError.
_figure = partial(read_number, least=0, most=1e6, expected="a number from 0 to 1000000")


def _level(value: object) -> int:
    if value not in (1, 2, 3, 4) or isinstance(value, bool):
        raise Unexpected("a run level from 1 to 4", value)
    return int(str(value))


def _passes(value: object) -> int:
    if value == 0 and not isinstance(value, bool):
        return 0
    return read_whole(value, 3, 10, "a number of passes from 3 to 10, or 0")


def _day(value: object) -> str:
    expected = "a day such as 2026-11-23"
    if not isinstance(value, str):
        raise Unexpected(expected, value)
    try:
        parse_day(value)
    except ValueError:
        raise Unexpected(expected, value) from None
    return value


_percent = partial(read_number, least=1, most=90, expected="per cent from 1 to 90")
_machine_type = partial(read_line, least=1, most=80)


def _programs(value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    for item in values:
        if (
            not isinstance(item, str)
            or not item.startswith("/")
            or item.endswith("/")
            or "//" in item
        ):
            raise Unexpected("a list of absolute paths of programs", item)
    return tuple(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """Diagnostics: programs that test the hardware."""

    enabled: bool = setting(
        True,
        read_flag,
        "Run them on their schedule, and when a finding requires one. false: on request only.",
    )
    idle_s: float = setting(
        tomlfile.parse_duration("5m"),
        tomlfile.parse_duration,
        "Checks that need idle devices wait until these have been idle for so long.",
    )
    ignore_processes: tuple[str, ...] = setting(
        (),
        _programs,
        "Further programs, by absolute path, whose processes may have devices open and do not count"
        " as work. Root must own their files.",
    )
    keep_s: float = setting(
        tomlfile.parse_duration("30d"),
        tomlfile.parse_duration,
        "How long the output of programs is kept.",
        reload=True,
    )
    machine: str | None = setting(
        None,
        _machine_type,
        "Type of this machine, for the limits that are published for it, such as"
        " Standard_ND96isr_H100_v5. Default: the product name in the firmware.",
    )
    learn_after: int = setting(
        5,
        _passes,
        "Where no limit is configured or published, one is learned from the last 3 to 10 passes of"
        " a check on this node: from so many on. 0: never.",
    )
    learn_since: str | None = setting(
        None,
        _day,
        "Passes before this day (UTC), such as 2026-11-23, do not count: set it when a device other"
        " than a GPU was exchanged, or if it is in order that a node has become slower.",
    )
    learn_percent: float = setting(
        15.0,
        _percent,
        "A learned limit is the best median of such passes so far, less or more so many per cent.",
    )
    suspicion_s: float = setting(
        tomlfile.parse_duration("24h"),
        read_period,
        "At most one run of DCGM's diagnostic in this time because of what jobs report and the GPUs"
        ' show (docs/notices.md), on idle devices. "off": none.',
    )
    deep_log: Path | None = setting(
        None, read_path, "A file for results, in the format of HyperPod's deep health checks."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dcgm:
    """DCGM's diagnostic (dcgmi diag), which loads what it tests from level 2 on."""

    enabled: bool = setting(True, read_flag, "Run it if dcgmi is installed and the node has GPUs.")
    program: str = setting("dcgmi", read_nonempty_text, "Its name, or its path.")
    level_1_s: float = setting(
        tomlfile.parse_duration("1h"),
        read_period,
        'How often to run level 1: seconds, beside any work. Also soon after each boot. Or "off".',
    )
    level_2_s: float = setting(
        tomlfile.parse_duration("24h"),
        read_period,
        'How often to run level 2: minutes, while the GPUs are idle. Or "off".',
    )
    level_3_s: float = setting(
        tomlfile.parse_duration("7d"),
        read_period,
        "How often to run level 3: half an hour at full power, while the GPUs are idle. Work ends"
        ' it. Or "off".',
    )
    most: int = setting(
        3,
        _level,
        "Highest level that is run automatically, by the schedule or for a finding; validation"
        " apart. 4 takes up to two hours at full power, and is never scheduled.",
    )
    deadline_1_s: float = setting(
        tomlfile.parse_duration("5m"),
        tomlfile.parse_duration,
        "A level 1 run that takes longer is ended.",
    )
    deadline_2_s: float = setting(
        tomlfile.parse_duration("30m"), tomlfile.parse_duration, "The same of level 2."
    )
    deadline_3_s: float = setting(
        tomlfile.parse_duration("60m"), tomlfile.parse_duration, "The same of level 3."
    )
    deadline_4_s: float = setting(
        tomlfile.parse_duration("180m"), tomlfile.parse_duration, "The same of level 4."
    )


def _validation_level(value: object) -> int:
    return read_whole(value, least=0, most=4, expected="a run level from 1 to 4, or 0 for none")


def _triggers(value: object) -> tuple[str, ...]:
    known = tuple(trigger.value for trigger in Trigger)
    values = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(read_choice(item, known=known) for item in values))


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSettings:
    """Validation before return: the diagnostic that a node must pass after a repair before it is
    used again. Off where DCGM's diagnostic cannot run.
    """

    level: int = setting(
        2,
        _validation_level,
        "Level that must pass. It runs as soon as the devices are idle; if it fails, the next"
        " level decides. 0: none.",
        reload=True,
    )
    after: tuple[str, ...] = setting(
        tuple(trigger.value for trigger in Trigger),
        _triggers,
        "After what: reboot; reset of a GPU; replacement of a GPU or NVSwitch; cleared: a fault of"
        " GPUs, NVSwitches or PCIe that made the node unfit is over.",
        reload=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmHealth:
    """DCGM's background watches (dcgmi health), where the host engine runs."""

    enabled: bool = setting(
        True, read_flag, "Read them if dcgmi is installed and the host engine runs."
    )
    every_s: float = setting(tomlfile.parse_duration("15s"), read_period, 'How often, or "off".')
    deadline_s: float = setting(
        tomlfile.parse_duration("60s"),
        tomlfile.parse_duration,
        "A read that takes longer is reported as a fault.",
    )
    settle_s: float = setting(
        tomlfile.parse_duration("60s"),
        tomlfile.parse_duration,
        "Answers count so long after the watches were set: DCGM compares values over a minute.",
    )


# Settings that several bandwidth checks have. Each call makes a field of its own.
_idle_period = partial(
    setting, 0.0, read_period, 'How often, while the node is idle. "off": on request only.'
)
_all_reduce_deadline = partial(
    setting,
    tomlfile.parse_duration("10m"),
    tomlfile.parse_duration,
    "A run that takes longer is ended.",
)
_bus_bandwidth_limit = partial(
    setting,
    0.0,
    _figure,
    "Bus bandwidth below this is a finding, in GB/s. 0: as published for the machine, or as"
    " learned.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """What the checks of RDMA adapters have in common."""

    every_s: float = _idle_period()
    deadline_s: float = setting(
        tomlfile.parse_duration("2m"), tomlfile.parse_duration, "For each adapter."
    )
    least_gbps: float = setting(
        0.0, _figure, "Bandwidth below this is a finding, in Gbit/s. 0: as learned."
    )
    most_latency_us: float = setting(
        0.0, _figure, "Latency above this is a finding, in microseconds. 0: as learned."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EfaLoopback(AdapterSettings):
    """Each EFA adapter sends to itself, where fi_pingpong is installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nccom:
    """An all-reduce over the Neuron cores of this node, where nccom-test is installed."""

    every_s: float = _idle_period()
    deadline_s: float = _all_reduce_deadline()
    least_gbytes: float = _bus_bandwidth_limit()


@dataclass(frozen=True, slots=True, kw_only=True)
class Nccl:
    """An all-reduce over the GPUs of this node, where all_reduce_perf (nccl-tests) is installed."""

    every_s: float = _idle_period()
    deadline_s: float = _all_reduce_deadline()
    program: str = setting("all_reduce_perf", read_nonempty_text, "Its name, or its path.")
    least_gbytes: float = _bus_bandwidth_limit()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """Copies between host memory and each GPU, where nvbandwidth is installed."""

    every_s: float = _idle_period()
    deadline_s: float = setting(
        tomlfile.parse_duration("5m"),
        tomlfile.parse_duration,
        "A run that takes longer is ended.",
    )
    program: str = setting("nvbandwidth", read_nonempty_text, "Its name, or its path.")
    least_gbytes: float = setting(
        0.0,
        _figure,
        "Bandwidth of a GPU in either direction below this is a finding, in GB/s. 0: as published"
        " for the machine, or as learned.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """Matrix multiplications on each GPU, whose results are compared, where cuBLAS is installed."""

    every_s: float = _idle_period()
    together_s: float = setting(
        tomlfile.parse_duration("30s"),
        tomlfile.parse_duration,
        "How long all GPUs multiply at once, at full power, after each has done so alone.",
    )
    deadline_s: float = setting(
        tomlfile.parse_duration("10m"),
        tomlfile.parse_duration,
        "A run that takes so much longer than that is ended.",
    )
    library: Path | None = setting(
        None,
        read_path,
        "Path of libcublas.so.11, .12 or .13. Default: where CUDA's packages and pip put it.",
    )
    least_tflops: float = setting(
        0.0,
        _figure,
        "Throughput of a GPU below this is a finding, in TFLOP/s. 0: as learned.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclNetwork(Nccl):
    """The same over this node's network adapters, where it has RDMA devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IbWrite(AdapterSettings):
    """RDMA writes of each adapter to itself and to the next one, where perftest is installed."""

    deadline_s: float = setting(
        tomlfile.parse_duration("30s"), tomlfile.parse_duration, "For each measurement."
    )
