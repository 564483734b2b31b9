"""Readings of the BMC and of transceivers."""

from __future__ import annotations

from vitald.collectors.reading_definitions import (
    FLAG,
    ReadingTable,
    counter,
    flag,
    gauge,
    get_id,
    get_reading,
    text_reading,
)
from vitald.model import ComponentKind

_BMC = ReadingTable(
    component=ComponentKind.NODE,
    prefix="vitald_bmc",
    readings=(
        gauge(
            "temperature_celsius",
            "Temperature of the BMC's sensor of this number.",
            each="sensor",
        ),
        gauge("fan_rpm", "Speed of the fan, in revolutions a minute.", each="sensor"),
        gauge("power_watts", "Power that the sensor measures.", each="sensor"),
        gauge("sensors", "Sensors that the BMC lists."),
        gauge("critical_sensors", "Sensors beyond a critical limit of theirs."),
        gauge("failed_fans", "Fans below a critical limit of theirs."),
        gauge("supplies", "Power supplies that are plugged in."),
        counter("log_processor_errors", "Errors of processors in the BMC's event log."),
        counter("log_memory_errors", "Uncorrectable memory errors in the BMC's event log."),
        counter("log_bus_errors", "Fatal and uncorrectable bus errors in the BMC's event log."),
        counter("log_supply_failures", "Failures of power supplies in the BMC's event log."),
        counter("log_input_losses", "Losses of a power supply's input in the BMC's event log."),
        counter("log_fan_failures", "Fans below a critical limit in the BMC's event log."),
        counter("log_overheating", "Critical temperatures in the BMC's event log."),
        flag("silent", "1 while the BMC does not answer as it should."),
        text_reading("critical_sensors_names", "The sensors beyond a critical limit."),
        text_reading("failed_fans_names", "The fans below a critical limit."),
        text_reading("supply_states", "States that hold of any power supply."),
        text_reading("supply_names", "The power supplies, with what is wrong with them."),
        text_reading("silent_reason", "Why the BMC does not answer."),
        text_reading("log_processor_errors_entry", "The latest entry of this kind."),
        text_reading("log_memory_errors_entry", "The latest entry of this kind."),
        text_reading("log_bus_errors_entry", "The latest entry of this kind."),
        text_reading("log_supply_failures_entry", "The latest entry of this kind."),
        text_reading("log_input_losses_entry", "The latest entry of this kind."),
        text_reading("log_fan_failures_entry", "The latest entry of this kind."),
        text_reading("log_overheating_entry", "The latest entry of this kind."),
    ),
)

_TRANSCEIVER = ReadingTable(
    component=ComponentKind.NIC,
    prefix="vitald_transceiver",
    labels={"transceiver": get_id, "interface": get_reading("interface")},
    readings=(
        gauge("temperature_celsius", "Temperature of the transceiver."),
        gauge("supply_volts", "Supply voltage of the transceiver.", unit="V"),
        gauge("received_power_watts", "Optical power that a lane receives.", each="lane", first=1),
        gauge("transmitted_power_watts", "Optical power that a lane sends.", each="lane", first=1),
        gauge("bias_amperes", "Bias current of a lane's laser.", unit="A", each="lane", first=1),
        gauge("alarms", "Alarms that the transceiver raises."),
        gauge("warnings", "Warnings that the transceiver raises."),
        gauge("link_up", "1 while the interface has a link.", unit=FLAG),
        text_reading("alarm_names", "The alarms that the transceiver raises."),
    ),
)

READINGS = (_BMC, _TRANSCEIVER)
