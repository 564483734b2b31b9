"""
The sensors of the BMC, as `ipmitool sdr elist` lists them:

    CPU1 Temp        | 01h | ok  |  3.1 | 45 degrees C
    Status           | 63h | ok  | 10.2 | Presence detected, Power Supply AC lost

name, number, status (ok, ns for no reading, or the limit that is passed: lnc, lcr, lnr, unc, ucr,
unr), entity, and a value or the states that hold.

Source: ipmitool lib/ipmi_sdr.c (ipmi_sdr_print_sensor_fc,
ipmi_sdr_get_thresh_status), unit_desc), lib/ipmi_strings.c (entities).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vitald.collectors.small_files import RawReadings

_ROW = re.compile(r"(.*?) *\| ([0-9A-F]{2})h \| (\w{2,3}) *\| +(\d{1,3})\.\d{1,3} \| *(.*)")
_VALUE = re.compile(r"(-?\d{1,9}(?:\.\d{1,6})?) (degrees C|RPM|Watts)")
_READINGS = {"degrees C": "temperature_celsius", "RPM": "fan_rpm", "Watts": "power_watts"}
_CRITICAL = ("lcr", "lnr", "ucr", "unr")
_TOO_LOW = ("lcr", "lnr")
_POWER_SUPPLY = 10  # entity
_PRESENT = "Presence detected"  # an empty slot may list any other state
_MAX_SENSORS = 1024
_MAX_LISTED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensor:
    """One sensor. `value` and `unit` are those of a number, `states` those of others."""

    name: str
    number: int
    status: str
    entity: int
    value: float = math.nan
    unit: str = ""
    states: tuple[str, ...] = ()


def parse_sensors(output: str) -> Iterator[Sensor]:
    """Lines of another form are no sensors, such as messages about records."""
    for line in output.splitlines()[:_MAX_SENSORS]:
        row = _ROW.fullmatch(line.rstrip())
        if row is None:
            continue
        name, number, status, entity, text = row.groups()
        parts = [part.strip() for part in text.split(",")]
        value = _VALUE.fullmatch(parts[0])  # of power supplies, states may follow
        states = tuple(parts[1:] if value else parts)
        yield Sensor(
            name=name.replace(",", " ").strip() or "unnamed",
            number=int(number, 16),
            status=status,
            entity=int(entity),
            value=float(value[1]) if value else math.nan,
            unit=value[2] if value else "",
            states=states,
        )


def read_sensors(raw: RawReadings, output: str) -> None:
    """Readings of all sensors. Those with a number keep the number of their sensor."""
    sensors = list(parse_sensors(output))
    if not sensors:
        raw.missing["critical_sensors"] = "the BMC lists no sensor"
        return
    raw.values["sensors"] = float(len(sensors))
    for unit, reading in _READINGS.items():
        _add_numbers(raw, reading, [sensor for sensor in sensors if sensor.unit == unit])
    fans = [sensor for sensor in sensors if sensor.unit == "RPM"]
    others = [sensor for sensor in sensors if sensor.unit != "RPM"]
    _add_names(raw, "failed_fans", [fan for fan in fans if fan.status in _TOO_LOW])
    _add_names(raw, "critical_sensors", [other for other in others if other.status in _CRITICAL])
    _add_supplies(raw, sensors)


def _add_numbers(raw: RawReadings, reading: str, sensors: Sequence[Sensor]) -> None:
    """By number of the sensor, which the BMC does not change; gaps read NaN."""
    if not sensors:
        return
    numbers = [math.nan] * (max(sensor.number for sensor in sensors) + 1)
    for sensor in sensors:
        numbers[sensor.number] = sensor.value
    raw.values[reading] = tuple(numbers)


def _add_names(raw: RawReadings, reading: str, sensors: Sequence[Sensor]) -> None:
    raw.values[reading] = float(len(sensors))
    listed = [f"{sensor.name} ({sensor.value:g} {sensor.unit})" for sensor in sensors]
    raw.values[f"{reading}_names"] = ", ".join(listed[:_MAX_LISTED])


def _add_supplies(raw: RawReadings, sensors: Sequence[Sensor]) -> None:
    """The states of power supplies that are plugged in."""
    supplies = [
        sensor for sensor in sensors if sensor.entity == _POWER_SUPPLY and _PRESENT in sensor.states
    ]
    if not supplies:
        raw.missing["supply_states"] = "the BMC lists no power supply with its states"
        return
    raw.values["supplies"] = float(len(supplies))
    raw.values["supply_states"] = ",".join(
        sorted({state for supply in supplies for state in supply.states})
    )
    notable = [supply for supply in supplies if set(supply.states) != {_PRESENT}]
    raw.values["supply_names"] = "; ".join(
        f"{supply.name}: {', '.join(state for state in supply.states if state != _PRESENT)}"
        for supply in notable[:_MAX_LISTED]
    )
