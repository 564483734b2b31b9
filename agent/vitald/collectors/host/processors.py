"""
Thermal throttling of processors.

The kernel counts it on Intel processors by core and by package. A package is as hot as its hottest
core, so only packages are read, from one of their CPUs; the counters are in memory.

Source: Linux drivers/thermal/intel/therm_throt.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vitald.collectors.collector import PolledDevice
from vitald.collectors.raw_readings import Files, RawReadings
from vitald.model.component import Component
from vitald.model.words import ComponentKind
from vitald.small_files import list_names, read_text

_CPU = re.compile(r"cpu\d{1,5}")
_NOT_COUNTED = "the kernel counts no throttling here: not an Intel processor, or a virtual machine"


class Processors:
    """The packages, each read from one of its CPUs. The topology is read again when CPUs go online
    or offline.
    """

    def __init__(self, sysfs: Path, files: Files) -> None:
        self._root = sysfs / "devices/system/cpu"
        self._files = files
        self._online = ""
        self._packages: dict[str, Path] = {}

    def list_devices(self) -> Iterator[PolledDevice]:
        try:
            online = read_text(self._root / "online")
        except FileNotFoundError:
            online = ""
        if online != self._online or not online:
            self._online, self._packages = online, self._read_topology()
        for package, folder in self._packages.items():
            yield PolledDevice(
                Component(ComponentKind.CPU, f"package{package}"),
                partial(self._read_throttling, folder),
            )
        if not self._packages:
            yield PolledDevice(
                Component(ComponentKind.CPU),
                lambda: RawReadings(missing={"package_throttles": _NOT_COUNTED}),
            )

    def _read_topology(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for name in list_names(self._root):
            cpu = self._root / name
            if _CPU.fullmatch(name) and (cpu / "thermal_throttle").is_dir():
                try:
                    found.setdefault(
                        read_text(cpu / "topology/physical_package_id"), cpu / "thermal_throttle"
                    )
                except FileNotFoundError:
                    continue  # it went offline meanwhile
        return found

    def _read_throttling(self, folder: Path) -> RawReadings:
        raw = RawReadings()
        self._files.read_number(raw, "package_throttles", folder / "package_throttle_count")
        self._files.read_value(
            raw,
            "package_throttled_seconds",
            folder / "package_throttle_total_time_ms",
            lambda text: int(text) / 1000,
        )
        return raw
