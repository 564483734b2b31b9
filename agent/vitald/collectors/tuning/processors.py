"""
CPU frequency governor and package power limits.

Source: Linux Documentation/admin-guide/pm/cpufreq.rst; Documentation/power/powercap/powercap.rst
and Documentation/ABI/testing/sysfs-class-powercap.
"""

from __future__ import annotations

import re
from pathlib import Path

from vitald.collectors.small_files import Files, RawReadings, list_names, read_attribute

_POLICY = re.compile(r"policy\d{1,5}")
_PACKAGE = re.compile(r"intel-rapl:\d{1,3}")  # AMD's driver uses the same name
_CONSTRAINTS = range(3)
_NO_GOVERNOR = "the kernel does not set the processors' frequency: usual in virtual machines"
_NO_LIMIT = "no processor package shows a power limit and its maximum"


def read_governor(raw: RawReadings, sysfs: Path) -> None:
    """The governors of all processors, as a comma-separated text. Raises OSError."""
    folder = sysfs / "devices/system/cpu/cpufreq"
    governors = {
        read_attribute(folder / name / "scaling_governor")
        for name in filter(_POLICY.fullmatch, list_names(folder))
    }
    if governors:
        raw.values["cpu_governor"] = ",".join(sorted(governors))
    else:
        raw.missing["cpu_governor"] = _NO_GOVERNOR


def read_power_limit(raw: RawReadings, sysfs: Path, files: Files) -> None:
    """The lowest long-term limit of a package by the most that it allows. Raises OSError."""
    folder = sysfs / "class/powercap"
    ratios = []
    for name in filter(_PACKAGE.fullmatch, list_names(folder)):
        zone = folder / name
        if (files.read_text(RawReadings(), "", zone / "name") or "").startswith("package"):
            ratios += _read_ratio(zone, files)
    if ratios:
        raw.values["cpu_power_limit_ratio"] = min(ratios)
    else:
        raw.missing["cpu_power_limit_ratio"] = _NO_LIMIT


def _read_ratio(zone: Path, files: Files) -> list[float]:
    """Empty if the zone has no long-term limit, or gives no maximum."""
    for number in _CONSTRAINTS:
        constraint = f"{zone}/constraint_{number}"
        if files.read_text(RawReadings(), "", f"{constraint}_name") != "long_term":
            continue
        limit = files.read_number(RawReadings(), "", f"{constraint}_power_limit_uw")
        most = files.read_number(RawReadings(), "", f"{constraint}_max_power_uw")
        return [limit / most] if limit and most else []
    return []
