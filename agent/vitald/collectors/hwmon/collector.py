"""
Temperatures, fans and power supplies, as Linux hwmon shows them.

A chip is one component; it goes by the name of its driver and of its device, since the numbers of
hwmon's folders differ from boot to boot.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from vitald.collectors.collector import Found, PolledDevice
from vitald.collectors.definition import CollectorContext, CollectorDefinition
from vitald.collectors.hwmon.chip import ChipFiles, ChipReader, has_channels
from vitald.collectors.hwmon.readings import READINGS
from vitald.collectors.hwmon.settings import SECTION
from vitald.collectors.small_files import Files, RawReadings, list_names, read_attribute
from vitald.model import Component, ComponentKind, Readings

NAME = "hwmon"
# Drives are read by the host collector.
_READ_ELSEWHERE = ("nvme",)
_NO_DEVICE = "virtual"  # as lm-sensors calls a chip without a device
_FOLDER = re.compile(r"hwmon\d{1,5}")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.:@+-]")
_MAX_CHIPS = 256
_MAX_NAME = 64  # characters of the name of a driver or a device


class Hwmon:
    """The chips that hwmon shows, each with its sensors."""

    name = NAME

    def __init__(self, sysfs: Path) -> None:
        self.memory: dict[str, Any] = {}
        self._root = sysfs / "class/hwmon"
        self._files = Files()

    def find_devices(self) -> Found:
        """Chips with a sensor that is read. Raises OSError."""
        devices: dict[str, PolledDevice] = {}
        for name in list_names(self._root)[:_MAX_CHIPS]:
            folder = self._root / name
            if not _FOLDER.fullmatch(name):
                continue
            with suppress(OSError):  # it went away meanwhile
                chip = _clean_name(read_attribute(folder / "name"))
                if chip in _READ_ELSEWHERE or not has_channels(list_names(folder)):
                    continue
                id_ = f"{chip}-{_find_device(folder) or _NO_DEVICE}"
                id_ = f"{id_}-{name}" if id_ in devices else id_
                component = Component(ComponentKind.NODE, id_)
                devices[id_] = PolledDevice(component, partial(self._read_chip, folder, chip, id_))
        return Found(tuple(devices.values()), absent="" if devices else "hwmon shows no sensor")

    def combine_readings(
        self,
        read: Mapping[Component, Readings],
        found: Found,  # noqa: ARG002
    ) -> Iterable[Readings]:
        """No further readings: remembers which fans have turned."""
        turned = {component.id: self._list_turned(component.id) for component in read}
        for component, readings in read.items():
            speeds = readings.values.get("fan_rpm")
            if isinstance(speeds, tuple):
                turning = {number for number, speed in enumerate(speeds, 1) if speed > 0}
                turned[component.id] |= turning
        self.memory = {"turned": {id_: sorted(fans) for id_, fans in turned.items() if fans}}
        return ()

    def _list_turned(self, id_: str) -> set[int]:
        """Fans of a chip that have turned at an earlier poll, or before a restart."""
        chips = self.memory.get("turned")
        fans = chips.get(id_) if isinstance(chips, dict) else None
        return {fan for fan in fans if isinstance(fan, int)} if isinstance(fans, list) else set()

    def _read_chip(self, folder: Path, chip: str, id_: str) -> RawReadings:
        raw = RawReadings(display_name=f"sensors {id_}", fields={"chip": chip})
        files = ChipFiles(folder, list_names(folder), self._files)
        ChipReader(files, raw, self._list_turned(id_)).read_sensors()
        return raw


def _clean_name(text: str) -> str:
    return _NOT_IN_A_NAME.sub("_", text)[:_MAX_NAME] or "unnamed"


def _find_device(folder: Path) -> str:
    """The name of the chip's device, such as coretemp.0 or a PCI address; empty for none."""
    device = folder / "device"
    if not device.exists():
        return ""
    return _clean_name(os.path.realpath(device).rpartition("/")[2])


def _build_hwmon(context: CollectorContext) -> Hwmon:
    return Hwmon(context.paths.sysfs)


COLLECTOR = CollectorDefinition(
    name=NAME,
    section=SECTION,
    catalog_kinds=(NAME,),
    readings=READINGS,
    subsystems=(NAME,),
    build_collector=_build_hwmon,
)
