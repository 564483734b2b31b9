"""
Reads the sensors of one hwmon chip: values, the chip's own limits, and its alarms.

A value that no such sensor can have is not observable. An alarm is what the chip itself reports;
where boards leave alarms of unused inputs set, it counts only together with the value.

Source: Linux Documentation/hwmon/sysfs-interface.rst; for the labels of power supplies and voltage
regulators, Documentation/hwmon/pmbus.rst.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from vitald.collectors.small_files import Files, RawReadings

# Channels of a chip: temp1_input is file `input` of channel temp1
_FILE = re.compile(r"(temp|fan|power|in|curr)(\d{1,3})_([a-z_]{1,24})")
# Labels of a power supply or regulator on PMBus: its input and outputs
_SUPPLY_LABEL = re.compile(r"[vip]in|[vip]out\d{1,2}")
_ELECTRICAL = ("in", "curr", "power")
_MAX_CHANNELS = 256  # of one kind
_MAX_LABEL = 64  # characters
# Degrees Celsius, watts and revolutions a minute that a sensor can have; chips without a sensor
# give values far from these.
_TEMPERATURES = (-60.0, 250.0)
_LIMITS = (1.0, 250.0)
_MAX_RPM = 100_000.0
_MAX_WATTS = 100_000.0


def has_channels(names: Iterable[str]) -> bool:
    """Whether a chip with these files has a sensor that is read."""
    return any(map(_FILE.fullmatch, names))


class ChipFiles:
    """The files of one chip, by channel."""

    def __init__(self, folder: Path, names: Iterable[str], files: Files) -> None:
        self._folder = str(folder)
        self._files = files
        self._names: dict[tuple[str, int], set[str]] = {}
        for name in names:
            if found := _FILE.fullmatch(name):
                self._names.setdefault((found[1], int(found[2])), set()).add(found[3])

    def list_channels(self, kind: str, *files: str) -> list[int]:
        """Numbers of the channels of a kind; only those with one of `files`, where given."""
        numbers = [
            number
            for (known, number), names in self._names.items()
            if known == kind and (not files or names.intersection(files))
        ]
        return sorted(numbers)[:_MAX_CHANNELS]

    def list_alarms(self, kind: str, number: int) -> list[str]:
        """The alarms of a channel that are set. A power cap is set on purpose: it is none."""
        names = self._names.get((kind, number), set())
        return sorted(
            name
            for name in names
            if name.endswith("alarm") and name != "cap_alarm" and self.is_set(kind, number, name)
        )

    def has_file(self, kind: str, number: int, name: str) -> bool:
        return name in self._names.get((kind, number), ())

    def read_number(
        self,
        raw: RawReadings | None,
        channel: tuple[str, int, str],
        unit: float,
        limits: tuple[float, float],
    ) -> float | None:
        """A value in `limits` after multiplication by `unit`; else None, and why in `raw`."""
        kind, number, file = channel
        note, name = RawReadings(), f"{kind}{number}"
        path = f"{self._folder}/{name}_{file}"
        value = self._files.read_value(note, name, path, lambda text: int(text) * unit)
        if value is not None and not limits[0] <= value <= limits[1]:
            note.missing[name] = f"reads {value:g}, which no such sensor can have"
            value = None
        if raw is not None:
            raw.missing |= note.missing
        return value

    def is_set(self, kind: str, number: int, name: str) -> bool:
        """Whether a flag is 1; a chip that does not have it raises no alarm."""
        if not self.has_file(kind, number, name):
            return False
        path = f"{self._folder}/{kind}{number}_{name}"
        return self._files.read_number(RawReadings(), "", path) == 1.0

    def read_label(self, kind: str, number: int) -> str:
        """What the chip calls a sensor, such as "Package id 0", else the name of its channel."""
        name = f"{kind}{number}"
        label = ""
        if self.has_file(kind, number, "label"):
            path = f"{self._folder}/{name}_label"
            label = self._files.read_text(RawReadings(), "", path) or ""
        return label[:_MAX_LABEL].replace(",", " ") or name


class ChipReader:
    """Reads one chip into `raw`. `turned`: fans that were seen turning."""

    def __init__(self, files: ChipFiles, raw: RawReadings, turned: Collection[int]) -> None:
        self._files = files
        self._raw = raw
        self._turned = turned

    def read_sensors(self) -> None:
        self._read_temperatures()
        self._read_fans()
        self._read_power()
        self._read_supply_alarms()

    def _read_temperatures(self) -> None:
        files, raw = self._files, self._raw
        values: dict[int, float] = {}
        limits: dict[str, dict[int, float]] = {"crit": {}, "max": {}}
        critical, high = [], []
        for number in files.list_channels("temp", "input"):
            value = files.read_number(raw, ("temp", number, "input"), 1e-3, _TEMPERATURES)
            if value is None:
                continue
            if files.is_set("temp", number, "fault"):
                raw.missing[f"temp{number}"] = "the chip reports a fault of this sensor"
                continue
            values[number] = value
            for limit, known in limits.items():
                if not files.has_file("temp", number, limit):
                    continue
                found = files.read_number(None, ("temp", number, limit), 1e-3, _LIMITS)
                if found is not None:
                    known[number] = found
            if self._is_critical(number, value, limits["crit"].get(number, math.inf)):
                critical.append(files.read_label("temp", number))
            elif self._is_high(number, value, limits["max"].get(number, math.inf)):
                high.append(files.read_label("temp", number))
        if values:
            raw.values["temperature_celsius"] = _order_by_number(values)
            self._add_names("critical_sensors", "critical_names", critical)
            self._add_names("high_sensors", "high_names", high)
        for limit, reading in (
            ("crit", "temperature_critical_celsius"),
            ("max", "temperature_max_celsius"),
        ):
            if limits[limit]:
                raw.values[reading] = _order_by_number(limits[limit])

    def _is_critical(self, number: int, value: float, limit: float) -> bool:
        alarms = ("crit_alarm", "emergency_alarm")
        return value >= limit or any(self._files.is_set("temp", number, name) for name in alarms)

    def _is_high(self, number: int, value: float, limit: float) -> bool:
        """Above the upper limit, and the chip calls it an alarm: processors with such a limit
        reach it under load.
        """
        if value < limit:
            return False
        return any(self._files.is_set("temp", number, name) for name in ("alarm", "max_alarm"))

    def _read_fans(self) -> None:
        files, raw = self._files, self._raw
        values: dict[int, float] = {}
        stopped = []
        for number in files.list_channels("fan", "input"):
            value = files.read_number(raw, ("fan", number, "input"), 1.0, (0.0, _MAX_RPM))
            if value is None:
                continue
            if files.is_set("fan", number, "fault"):
                raw.missing[f"fan{number}"] = "the chip reports a fault of this fan"
                # Also reported where no fan is connected: it counts for one that has turned.
                if number in self._turned:
                    stopped.append(files.read_label("fan", number))
                continue
            values[number] = value
            # A fan may stand still on purpose: the chip's alarm says that it should not.
            if value == 0.0 and files.list_alarms("fan", number):
                stopped.append(files.read_label("fan", number))
        if values:
            raw.values["fan_rpm"] = _order_by_number(values)
        if values or stopped:
            self._add_names("stopped_fans", "stopped_names", stopped)

    def _read_power(self) -> None:
        values: dict[int, float] = {}
        for number in self._files.list_channels("power", "input", "average"):
            file = "input" if self._files.has_file("power", number, "input") else "average"
            value = self._files.read_number(
                self._raw, ("power", number, file), 1e-6, (0.0, _MAX_WATTS)
            )
            if value is not None:
                values[number] = value
        if values:
            self._raw.values["power_watts"] = _order_by_number(values)

    def _read_supply_alarms(self) -> None:
        """Alarms of a power supply or regulator. Other chips have no limits set for many of their
        voltages, and raise alarms that mean nothing.
        """
        labels = {
            (kind, number): self._files.read_label(kind, number)
            for kind in _ELECTRICAL
            for number in self._files.list_channels(kind)
        }
        if not any(map(_SUPPLY_LABEL.fullmatch, labels.values())):
            return
        fans = {("fan", number): f"fan{number}" for number in self._files.list_channels("fan")}
        alarms = []
        for (kind, number), label in {**labels, **fans}.items():
            alarms += [f"{label} {name}" for name in self._files.list_alarms(kind, number)]
            if self._files.is_set(kind, number, "fault"):
                alarms.append(f"{label} fault")
        self._add_names("supply_alarms", "supply_alarm_names", alarms)

    def _add_names(self, count: str, names: str, found: list[str]) -> None:
        self._raw.values[count] = float(len(found))
        self._raw.values[names] = ", ".join(found)


def _order_by_number(values: Mapping[int, float]) -> tuple[float, ...]:
    """By the number of the sensor, from 1 on; NaN for one that is not there or was not read."""
    return tuple(values.get(number, math.nan) for number in range(1, max(values) + 1))
