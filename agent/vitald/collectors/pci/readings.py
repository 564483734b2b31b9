"""The readings of PCI functions."""

from __future__ import annotations

from vitald.collectors.reading_definitions import (
    FLAG,
    ReadingTable,
    counters,
    flag,
    gauge,
    get_id,
    get_reading,
    text_reading,
    unexported,
)
from vitald.model.words import ComponentKind

_NODE = ReadingTable(
    component=ComponentKind.NODE,
    prefix="vitald_pci",
    readings=(
        gauge(
            "gpus_missing_on_board",
            "GPUs that a board with NVSwitches lacks at least, by their number on PCI.",
        ),
    ),
)
_PCI = ReadingTable(
    component=ComponentKind.PCI,
    prefix="vitald_pci",
    labels={
        "pci_bus_id": get_id,
        "component_kind": lambda readings: readings.component.kind.value,
        "role": get_reading("part"),
    },
    readings=(
        flag("present", "1 while the function is on the bus."),
        flag("dead", "1 while the function's registers read as ones: it does not answer."),
        flag("unbound", "1 while the function has no driver and should have one."),
        gauge("link_lanes", "Lanes of the link now."),
        gauge("link_lanes_max", "Lanes that both ends of the link can do."),
        gauge("link_transfers_per_second", "Speed of the link now: 16e9 is 16 GT/s."),
        gauge("link_transfers_per_second_max", "Speed that both ends of the link can do."),
        *counters(
            "aer_errors",
            "PCIe errors since boot, by severity.",
            "severity",
            {severity: f"aer_{severity}" for severity in ("correctable", "nonfatal", "fatal")},
        ),
        unexported("missing", "1 while a device that was here before is not.", unit=FLAG),
        unexported("arrivals", "Times that the function came while vitald was running."),
        text_reading("part", "Part that the function plays: gpu, fabric, network, virtual, port."),
        text_reading("driver", "Name of its driver."),
        text_reading("link_judged_by", "nvml where NVML reads the link of a GPU, else sysfs."),
        text_reading("aer_seen", "PCIe errors that were counted, by name."),
    ),
)

READINGS = (_PCI, _NODE)
