"""What is read of Neuron devices."""

from __future__ import annotations

from vitald.collectors.reading_definitions import (
    CODE,
    FLAG,
    ReadingTable,
    counter,
    counters,
    flag,
    gauge,
    get_pci_address,
    get_reading,
    get_serial,
    text_reading,
    unexported,
)
from vitald.model.words import ComponentKind

_CORE_ERRORS = (
    "hw_error",
    "hw_hbm_ue_error",
    "hw_nc_ue_error",
    "hw_dma_abort_error",
    "hw_collectives_error",
    "hw_repairable_hbm_ue_error",
)
_NEURON = ReadingTable(
    component=ComponentKind.NEURON,
    prefix="vitald_neuron",
    labels={
        "neuron": get_reading("index"),
        "serial": get_serial,
        "pci_bus_id": get_pci_address,
        "model": get_reading("name"),
    },
    readings=(
        flag("lost", "1 while the device is off the bus."),
        flag("absent", "1 where machines of this type have a device and this one has none."),
        flag("initialised", "0 while the driver does not show a device that is on PCI."),
        flag("resetting", "1 while the device is being reset."),
        gauge(
            "reset_state", "The driver's word: 0 resetting, 1 ready, 2 the reset failed.", unit=CODE
        ),
        flag("unreachable", "1 while the driver's health check cannot reach the device."),
        gauge("unhealthy_parts", "Parts that the firmware calls unhealthy."),
        flag(
            "ecc_observable",
            "0 while the files that count ECC errors are not where they are known to be.",
        ),
        gauge("cores", "Neuron cores."),
        gauge("memory_used_bytes", "Device memory in use."),
        gauge("host_memory_used_bytes", "Host memory in use for the device."),
        gauge(
            "power_utilization_ratio",
            "Average power over the last minute as a ratio of the limit.",
        ),
        gauge(
            "hbm_ecc_unclear",
            "HBM errors of which an old driver cannot say whether they are repairable.",
        ),
        *counters(
            "ecc_errors",
            "ECC errors since the driver was loaded.",
            "type",
            {
                name: f"{name.partition('_')[0]}_ecc_{name.partition('_')[2]}"
                for name in (
                    "sram_corrected",
                    "sram_uncorrected",
                    "hbm_corrected",
                    "hbm_repairable",
                    "hbm_uncorrected",
                )
            },
        ),
        *counters(
            "core_errors",
            "Hardware errors of each core.",
            "type",
            {name: name for name in _CORE_ERRORS},
            each="core",
        ),
        counter("core_timeouts", "Executions of each core that timed out.", "timeout", each="core"),
        counter(
            "core_reset_requests", "Resets that were asked for.", "reset_requests", each="core"
        ),
        counter("core_reset_failures", "Resets that failed.", "reset_failures", each="core"),
        counter("hw_error_events", "Hardware errors that the driver reported."),
        counter("heartbeat", "Beats of the firmware's health check.", "heartbeat"),
        unexported("missing", "1 while a device that was here before is not.", unit=FLAG),
        unexported("dma_aborts", "Aborts of DMA: the highest counter of its cores."),
        unexported("heartbeat_still_seconds", "Time since the heartbeat moved."),
        unexported("index", "The driver's number of the device.", unit=CODE),
        text_reading("name", "Model."),
        text_reading("unhealthy_components", "Parts that the firmware reports as unhealthy."),
    ),
)
_NEURON_DRIVER = ReadingTable(
    component=ComponentKind.NODE,
    prefix="vitald_neuron",
    readings=(
        gauge("devices", "Neuron devices that the driver shows."),
        gauge("functions", "Neuron devices on PCI."),
        flag("driver_loaded", "1 while the Neuron driver is loaded."),
        gauge("devices_without_ecc", "Devices whose ECC counters cannot be observed."),
        unexported(
            "unplaced_missing", "Functions without a device, while it is unknown which they are."
        ),
        text_reading("driver_version", "Version of the driver."),
    ),
)

READINGS = (
    _NEURON,
    _NEURON_DRIVER,
)
