"""Sections of the configuration on diagnostics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

from vitald.checking import (
    Unexpected,
    read_choice,
    read_flag,
    read_key,
    read_member,
    read_number,
    read_texts,
)
from vitald.config.errors import FileReport
from vitald.config.readers import (
    one_of,
    period_within,
    read_command,
    read_path,
    read_period,
    read_program,
)
from vitald.config.section import Section, SectionGroup, TakesEffect, duration, setting
from vitald.config.values import Config

_read_figure = partial(read_number, least=0, most=1e6, expected="a number from 0 to 1000000")
_read_schedule = period_within('at least 60 s, or "off"', least_s=60.0, may_be_off=True)


def _read_level(value: object) -> int:
    if value not in (1, 2, 3, 4) or isinstance(value, bool):
        raise Unexpected("a run level from 1 to 4", value)
    return int(str(value))


def _read_programs(value: object) -> tuple[str, ...]:
    expected = "a list of absolute paths of programs"
    values = read_texts(value, expected)
    for item in values:
        if not item.startswith("/") or item.endswith("/") or "//" in item:
            raise Unexpected(expected, item)
    return tuple(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosticsSettings:
    """Diagnostics: programs that test the hardware."""

    enabled: bool = setting(
        True,
        read_flag,
        "Run them on their schedule, and when a finding requires one. false: on request only.",
    )
    idle_s: float = duration(
        "5m", "Checks that need idle devices wait until these have been idle for so long."
    )
    overdue: str = setting(
        "report",
        one_of("report", "drain"),
        'What follows if a run is owed for a day: "report" opens diagnostic/overdue, "drain" opens'
        " diagnostic/held, which makes the node unfit for work until the run has ended.",
        reload=True,
    )
    ignore_processes: tuple[str, ...] = setting(
        (),
        _read_programs,
        "Further programs, by absolute path, whose processes may have devices open and do not count"
        " as work. Root must own their files.",
    )
    keep_s: float = duration("30d", "How long the output of programs is kept.", reload=True)
    deep_log: Path | None = setting(
        None, read_path, "A file for results, in the format of HyperPod's deep health checks."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmSettings:
    """DCGM's diagnostic (dcgmi diag), which loads what it tests from level 2 on."""

    enabled: bool = setting(True, read_flag, "Run it if dcgmi is installed and the node has GPUs.")
    program: str = setting("dcgmi", read_program, "Its name, or its path.")
    level_1_s: float = duration(
        "1h",
        'How often to run level 1: seconds, beside any work. Also soon after each boot. Or "off".',
        _read_schedule,
    )
    level_2_s: float = duration(
        "24h",
        'How often to run level 2: minutes, while the GPUs are idle. Or "off".',
        _read_schedule,
    )
    max_level: int = setting(
        2,
        _read_level,
        "Highest level that is run automatically. 3 takes up to half an hour and 4 up to two"
        " hours, at full power, on a node without work.",
    )
    deadline_1_s: float = duration(
        "5m",
        "A level 1 run that takes longer is ended. dcgmi has 60 s to stop its tests then, before it"
        " is killed.",
    )
    deadline_2_s: float = duration("30m", "The same of level 2.")
    deadline_3_s: float = duration("60m", "The same of level 3.")
    deadline_4_s: float = duration("180m", "The same of level 4.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmHealthSettings:
    """DCGM's background watches (dcgmi health), where the host engine runs."""

    enabled: bool = setting(
        True, read_flag, "Read them if dcgmi is installed and the host engine runs."
    )
    every_s: float = duration("10m", 'How often, or "off".', read_period)
    deadline_s: float = duration("60s", "A read that takes longer is reported as a fault.")


# Settings that several bandwidth checks have. Each call makes a field of its own.
_idle_period = partial(
    duration, "off", 'How often, while the node is idle. "off": on request only.', read_period
)
_all_reduce_deadline = partial(duration, "10m", "A run that takes longer is ended.")
_bus_bandwidth_limit = partial(
    setting,
    0.0,
    _read_figure,
    "Bus bandwidth below this is a finding, in GB/s. 0: it is only reported.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EfaLoopbackSettings:
    """Each EFA adapter sends to itself, where fi_pingpong is installed."""

    every_s: float = _idle_period()
    deadline_s: float = duration("2m", "For each adapter.")
    min_gbps: float = setting(
        0.0, _read_figure, "Bandwidth below this is a finding, in Gbit/s. 0: it is only reported."
    )
    max_latency_us: float = setting(
        0.0,
        _read_figure,
        "Latency above this is a finding, in microseconds. 0: it is only reported.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NccomSettings:
    """An all-reduce over the Neuron cores of this node, where nccom-test is installed."""

    every_s: float = _idle_period()
    deadline_s: float = _all_reduce_deadline()
    min_gbytes: float = _bus_bandwidth_limit()


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclSettings:
    """An all-reduce over the GPUs of this node, where all_reduce_perf (nccl-tests) is installed."""

    every_s: float = _idle_period()
    deadline_s: float = _all_reduce_deadline()
    program: str = setting("all_reduce_perf", read_program, "Its name, or its path.")
    min_gbytes: float = _bus_bandwidth_limit()


class ExitMeaning(Enum):
    """What a check of the site says of the node by its exit code."""

    PASS = "pass"  # noqa: S105 - the node is fit
    WARNING = "warning"  # it is fit; a person should know
    FAIL = "fail"  # it is not fit
    UNKNOWN = "unknown"  # nothing: the check could not do its work


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCodes:
    """The meaning of each exit code that is listed, of all others, and of a program that was ended
    at its deadline.
    """

    listed: Mapping[int, ExitMeaning]
    other: ExitMeaning = ExitMeaning.FAIL
    deadline: ExitMeaning = ExitMeaning.FAIL


# With 126 and 127 a shell says that it cannot run the command (POSIX, Shell Command Language,
# 2.8.2). LBNL NHC ends with 0 if all its checks passed. Nagios: Monitoring Plugins Development
# Guidelines, Plugin Return Codes.
_NO_COMMAND = {126: ExitMeaning.UNKNOWN, 127: ExitMeaning.UNKNOWN}
_NHC = ExitCodes(listed={0: ExitMeaning.PASS, **_NO_COMMAND})
_CONVENTIONS = {
    "nhc": _NHC,
    "nagios": ExitCodes(
        listed={0: ExitMeaning.PASS, 1: ExitMeaning.WARNING, 2: ExitMeaning.FAIL},
        other=ExitMeaning.UNKNOWN,
    ),
}
_MAX_EXIT_CODE = 255


def _read_exit_codes(value: object) -> ExitCodes:
    if not isinstance(value, dict):
        return _CONVENTIONS[read_choice(value, _CONVENTIONS)]
    listed = dict(_NHC.listed)
    rest: dict[str, ExitMeaning] = {}
    for key, word in value.items():
        meaning = read_key(key, partial(read_member, enum=ExitMeaning), word)
        if key in ("other", "deadline"):
            rest[key] = meaning
        elif key.isascii() and key.isdecimal() and int(key) <= _MAX_EXIT_CODE:
            listed[int(key)] = meaning
        else:
            raise Unexpected("exit codes from 0 to 255, other or deadline", key)
    return ExitCodes(listed=listed, **rest)


_read_command = partial(
    read_command,
    expected='a program and its arguments, such as ["/usr/bin/mountpoint", "-q", "/scratch"]',
    is_searched=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteCheckSettings:
    """A check of the site's own: a program whose exit code says whether the node is fit. It runs as
    the daemon's user. NAME: lower-case letters, digits and _.
    """

    run: tuple[str, ...] = setting(
        (),
        _read_command,
        "The program, by its absolute path or its name, and its arguments. Must be given. There is"
        ' no shell: for one, ["/bin/sh", "-c", "..."].',
    )
    every_s: float = duration(
        "5m", 'How often, at least "1m"; or "off": on request only.', _read_schedule
    )
    deadline_s: float = duration("30s", "A run that takes longer is ended, and fails.")
    idle: bool = setting(
        False,
        read_flag,
        "Run it only while the devices are idle, and end it as soon as work needs them.",
    )
    exit_codes: ExitCodes = setting(
        _NHC,
        _read_exit_codes,
        '"nhc": 0 pass, all others fail. "nagios": 0 pass, 1 warning, 2 fail, all others unknown.'
        ' Or a table such as { 3 = "warning", other = "fail", deadline = "unknown" }.',
    )


def _check_site_checks(config: Config, report: FileReport) -> None:
    for name, check in config.get_group(SiteCheckSettings).items():
        if not check.run:
            what = 'run is missing: run = ["/path/of/program"]'
            report.add_error(f"{CHECKS.name}.{name}", "", what)


DIAGNOSTICS = (
    Section(
        name="diagnostics",
        settings=DiagnosticsSettings,
        examples={
            "deep_log": '#deep_log = "/var/log/aws/clusters/sagemaker-deep-health-check.log"'
        },
    ),
    Section(name="dcgm", settings=DcgmSettings),
    Section(name="dcgm_health", settings=DcgmHealthSettings),
    Section(name="efa_loopback", settings=EfaLoopbackSettings),
    Section(name="nccom", settings=NccomSettings),
    Section(name="nccl", settings=NcclSettings),
)
CHECKS = SectionGroup(
    name="checks",
    settings=SiteCheckSettings,
    pattern=re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII),
    expected="a name of lower-case letters, digits and _, and no section's name",
    example="scratch",
    avoids_sections=True,
    effect=TakesEffect.RELOAD,
    examples={
        "run": 'run = ["/usr/bin/mountpoint", "-q", "/scratch"]',
        "exit_codes": 'exit_codes = "nhc"',
    },
    check=_check_site_checks,
)
