"""
Temperatures and fans, as Linux hwmon shows them.

A chip is one component; it goes by the name of its driver and of its device, since the numbers of
hwmon's folders differ from boot to boot. A value that no such sensor can have is not observable.
Source: Linux Documentation/hwmon/sysfs-interface.rst.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from vitald.collectors.collector import Found, PolledDevice
from vitald.collectors.definition import CollectorContext, CollectorDefinition
from vitald.collectors.hwmon.readings import READINGS
from vitald.collectors.hwmon.settings import SECTION
from vitald.collectors.raw_readings import Files, RawReadings
from vitald.config.paths import Paths
from vitald.model.component import Component
from vitald.model.source import Readings
from vitald.model.words import ComponentKind
from vitald.small_files import list_names, read_attribute

NAME = "hwmon"
# Drives are read by the host collector.
_READ_ELSEWHERE = ("nvme",)
_NO_DEVICE = "virtual"  # as lm-sensors calls a chip without a device
_FOLDER = re.compile(r"hwmon\d{1,5}")
_INPUT = re.compile(r"(temp|fan)([1-9]\d{0,2})_input")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.:@+-]")
_MAX_CHIPS = 256
_MAX_NAME = 64  # characters of the name of a driver, a device or a sensor
# Degrees Celsius and revolutions a minute that a sensor can have; chips without a sensor give
# values far from these.
_TEMPERATURES = (-60.0, 250.0)
_LIMITS = (1.0, 250.0)
_MAX_RPM = 100_000.0


class Hwmon:
    """The chips that hwmon shows, each with its sensors."""

    name = NAME

    def __init__(self, sysfs: Path) -> None:
        self.memory: dict[str, Any] = {}
        self._root = sysfs / "class/hwmon"
        self._files = Files()

    def find_devices(self) -> Found:
        """Chips with a temperature or a fan. Raises OSError."""
        devices: dict[str, PolledDevice] = {}
        for name in list_names(self._root)[:_MAX_CHIPS]:
            folder = self._root / name
            if not _FOLDER.fullmatch(name):
                continue
            with suppress(OSError):  # it went away meanwhile
                chip = _clean_name(read_attribute(folder / "name"))
                if chip in _READ_ELSEWHERE or not any(map(_INPUT.fullmatch, list_names(folder))):
                    continue
                id_ = f"{chip}-{_find_device(folder) or _NO_DEVICE}"
                id_ = f"{id_}-{name}" if id_ in devices else id_
                component = Component(ComponentKind.NODE, id_)
                devices[id_] = PolledDevice(component, partial(self._read_chip, folder, chip, id_))
        return Found(tuple(devices.values()), absent="" if devices else "hwmon shows no sensor")

    def combine_readings(
        self,
        read: Mapping[Component, Readings],  # noqa: ARG002
        found: Found,  # noqa: ARG002
    ) -> Iterable[Readings]:
        """Nothing: chips are judged one by one."""
        return ()

    def _read_chip(self, folder: Path, chip: str, id_: str) -> RawReadings:
        raw = RawReadings(display_name=f"sensors {id_}", fields={"chip": chip})
        numbers: dict[str, list[int]] = {"temp": [], "fan": []}
        for file in list_names(folder):
            if found := _INPUT.fullmatch(file):
                numbers[found[1]].append(int(found[2]))
        self._read_temperatures(raw, folder, sorted(numbers["temp"]))
        self._read_fans(raw, folder, sorted(numbers["fan"]))
        return raw

    def _read_temperatures(self, raw: RawReadings, folder: Path, numbers: list[int]) -> None:
        values: dict[int, float] = {}
        limits: dict[str, dict[int, float]] = {"crit": {}, "max": {}}
        critical = []
        for number in numbers:
            sensor = folder / f"temp{number}"
            if (value := self._read_number(raw, f"{sensor}_input", 1e-3, _TEMPERATURES)) is None:
                continue
            if self._is_set(f"{sensor}_fault"):
                raw.missing[f"temp{number}"] = "the chip reports a fault of this sensor"
                continue
            values[number] = value
            for limit, known in limits.items():
                if (found := self._read_number(None, f"{sensor}_{limit}", 1e-3, _LIMITS)) is None:
                    continue
                known[number] = found
            if value >= limits["crit"].get(number, math.inf) or self._is_set(
                f"{sensor}_crit_alarm"
            ):
                critical.append(self._read_label(sensor))
        if values:
            raw.values["temperature_celsius"] = _order_by_number(values)
            raw.values["critical_sensors"] = float(len(critical))
            raw.values["critical_names"] = ", ".join(critical)
        for limit, reading in (
            ("crit", "temperature_critical_celsius"),
            ("max", "temperature_max_celsius"),
        ):
            if limits[limit]:
                raw.values[reading] = _order_by_number(limits[limit])

    def _read_fans(self, raw: RawReadings, folder: Path, numbers: list[int]) -> None:
        values: dict[int, float] = {}
        stopped = []
        for number in numbers:
            fan = folder / f"fan{number}"
            value = self._read_number(raw, f"{fan}_input", 1.0, (0.0, _MAX_RPM))
            if value is None:
                continue
            if self._is_set(f"{fan}_fault"):
                raw.missing[f"fan{number}"] = "the chip reports a fault of this fan's sensor"
                continue
            values[number] = value
            # A fan may stand still on purpose: the chip's alarm says that it should not.
            if value == 0.0 and (self._is_set(f"{fan}_alarm") or self._is_set(f"{fan}_min_alarm")):
                stopped.append(self._read_label(fan))
        if values:
            raw.values["fan_rpm"] = _order_by_number(values)
            raw.values["stopped_fans"] = float(len(stopped))
            raw.values["stopped_names"] = ", ".join(stopped)

    def _read_number(
        self, raw: RawReadings | None, path: str, unit: float, limits: tuple[float, float]
    ) -> float | None:
        """A value in `limits` after multiplication by `unit`; else None, and why in `raw`."""
        note = RawReadings()
        name = path.rpartition("/")[2].removesuffix("_input")
        value = self._files.read_value(note, name, path, lambda text: int(text) * unit)
        if value is not None and not limits[0] <= value <= limits[1]:
            note.missing[name] = f"reads {value:g}, which no such sensor can have"
            value = None
        if raw is not None:
            raw.missing |= note.missing
        return value

    def _is_set(self, path: str) -> bool:
        """Whether a flag is 1; a chip that does not have it raises no alarm."""
        return self._files.read_number(RawReadings(), "", path) == 1.0

    def _read_label(self, sensor: Path) -> str:
        """What the chip calls a sensor, such as "Package id 0", else the name of its file."""
        label = self._files.read_text(RawReadings(), "", f"{sensor}_label") or ""
        return label[:_MAX_NAME].replace(",", " ") or sensor.name


def _clean_name(text: str) -> str:
    return _NOT_IN_A_NAME.sub("_", text)[:_MAX_NAME] or "unnamed"


def _find_device(folder: Path) -> str:
    """The name of the chip's device, such as coretemp.0 or a PCI address; empty for none."""
    device = folder / "device"
    if not device.exists():
        return ""
    return _clean_name(os.path.realpath(device).rpartition("/")[2])


def _order_by_number(values: Mapping[int, float]) -> tuple[float, ...]:
    """By the number of the sensor, from 1 on; NaN for one that is not there or was not read."""
    return tuple(values.get(number, math.nan) for number in range(1, max(values) + 1))


def _build_hwmon(context: CollectorContext) -> Hwmon:
    return Hwmon(context.config[Paths].sysfs)


COLLECTOR = CollectorDefinition(
    name=NAME,
    section=SECTION,
    catalog_kinds=(NAME,),
    readings=READINGS,
    subsystems=(NAME,),
    build_collector=_build_hwmon,
)
