"""Readings of hwmon's chips. Sensors keep the numbers of their files: temp1_input is sensor 1."""

from __future__ import annotations

from vitald.collectors.reading_definitions import (
    FLAG,
    ReadingTable,
    gauge,
    get_id,
    get_reading,
    text_reading,
    unexported,
)
from vitald.model.words import ComponentKind

_CHIP = ReadingTable(
    component=ComponentKind.NODE,
    prefix="vitald_hwmon",
    labels={"chip": get_id, "chip_name": get_reading("chip")},
    readings=(
        gauge("temperature_celsius", "Temperature of the sensor.", each="sensor", first=1),
        gauge(
            "temperature_critical_celsius",
            "Critical limit of the sensor.",
            each="sensor",
            first=1,
        ),
        gauge("temperature_max_celsius", "Upper limit of the sensor.", each="sensor", first=1),
        gauge("fan_rpm", "Speed of the fan, in revolutions a minute.", each="fan", first=1),
        gauge("critical_sensors", "Sensors at or above their critical limit."),
        gauge("stopped_fans", "Fans that stand still, with an alarm of the chip."),
        text_reading("critical_names", "The sensors at or above their critical limit."),
        text_reading("stopped_names", "The fans that stand still."),
        unexported("missing", "1 while a chip that was here before is not.", unit=FLAG),
    ),
)

READINGS = (_CHIP,)
