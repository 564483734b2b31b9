"""What is known of the GPUs, as the API and the metrics show it: one place for names, units and words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agent.board import Board
from agent.judge.verdict import status_of
from agent.model import Component, ComponentKind, Readings, Sample
from agent.outputs import form
from agent.outputs.form import Json
from agent.sources.nvml.node import NAME as NVML
from agent.sources.pci import PciInventory

LABELS = ("gpu", "uuid", "pci_bus_id", "model")
_WHO = ("name", "uuid", "serial", "part_number", "vbios", "inforom", "module_id", "minor", "board_id", "driver_version")

# Metric, what it says, label beside the GPU's own, and which readings it is made of, by the value of that label.
_GAUGES: tuple[tuple[str, str, str, Mapping[str, str]], ...] = (
    ("lost", "1 while NVML cannot reach the GPU.", "", {"": "lost"}),
    (
        "recovery_action",
        "The driver's own advice (NVML field 230): 0 none, 1 reset, 2 reboot, 3 drain peers, 4 drain and reset.",
        "",
        {"": "recovery"},
    ),
    ("temperature_celsius", "Temperature.", "sensor", {"gpu": "temperature_celsius", "memory": "memory_temperature_celsius"}),
    ("temperature_margin_celsius", "Degrees left until the GPU slows down.", "", {"": "margin_celsius"}),
    ("power_watts", "Power draw.", "", {"": "power_watts"}),
    ("power_limit_watts", "Enforced power limit.", "", {"": "power_limit_watts"}),
    ("utilization_ratio", "Share of time in which a kernel ran.", "", {"": "utilization_ratio"}),
    ("memory_used_bytes", "Memory in use.", "", {"": "memory_used_bytes"}),
    ("memory_total_bytes", "Memory.", "", {"": "memory_total_bytes"}),
    ("clock_hertz", "Clock rate.", "domain", {"sm": "sm_clock_hertz", "memory": "memory_clock_hertz"}),
    ("processes", "Compute processes on the GPU.", "", {"": "processes"}),
    (
        "clock_event",
        "1 while the clocks are held down for this reason.",
        "reason",
        {name: name for name in ("idle", "power_capped", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "power_brake")},
    ),
    (
        "ecc_errors_lifetime",
        "ECC errors over the board's lifetime.",
        "type",
        {"corrected": "ecc_corrected_lifetime", "uncorrected": "ecc_uncorrected_lifetime"},
    ),
    (
        "sram_threshold_exceeded",
        "1 if the driver's threshold for uncorrectable SRAM errors is exceeded.",
        "",
        {"": "sram_threshold_exceeded"},
    ),
    (
        "remapped_rows",
        "Memory rows that were remapped.",
        "type",
        {"corrected": "remapped_rows_corrected", "uncorrected": "remapped_rows_uncorrected"},
    ),
    ("row_remap_pending", "1 while a row remap waits for a reset.", "", {"": "row_remap_pending"}),
    ("row_remap_failed", "1 if a row could not be remapped.", "", {"": "row_remap_failed"}),
    (
        "remap_banks",
        "Memory banks by how many spare rows they have left.",
        "spare",
        {name: f"remap_banks_{name}" for name in ("max", "high", "partial", "low", "none")},
    ),
    (
        "retired_pages",
        "Memory pages that were retired.",
        "cause",
        {"single_bit": "retired_pages_single", "double_bit": "retired_pages_double"},
    ),
    ("pcie_generation", "Generation of the PCIe link now.", "", {"": "pcie_generation"}),
    ("pcie_width", "Lanes of the PCIe link now.", "", {"": "pcie_width"}),
    ("nvlink_up", "1 for an NVLink that is active.", "link", {"": "nvlink_active"}),
    ("fabric_state", "NVLink fabric: 1 not started, 2 in progress, 3 completed.", "", {"": "fabric_state"}),
    ("persistence_mode", "1 if persistence mode is on.", "", {"": "persistence_mode"}),
    ("ecc_mode", "1 if ECC is on.", "", {"": "ecc_mode"}),
    ("mig_instances", "MIG instances.", "", {"": "mig_instances"}),
)
_COUNTERS: tuple[tuple[str, str, str, Mapping[str, str]], ...] = (
    ("energy_joules", "Energy since the driver was loaded.", "", {"": "energy_joules"}),
    (
        "throttled_seconds",
        "Time with lowered clocks.",
        "reason",
        {
            "power": "power_capped_seconds",
            "thermal": "thermal_slowdown_seconds",
            "sw_thermal": "sw_thermal_seconds",
            "hw_thermal": "hw_thermal_seconds",
            "power_brake": "power_brake_seconds",
        },
    ),
    ("ecc_errors", "ECC errors since the driver was loaded.", "type", {"corrected": "ecc_corrected", "uncorrected": "ecc_uncorrected"}),
    ("pcie_replays", "PCIe packets that were sent again.", "", {"": "pcie_replays"}),
    (
        "pcie_errors",
        "PCIe errors at the GPU's end of the link.",
        "severity",
        {"correctable": "pcie_correctable_errors", "nonfatal": "pcie_nonfatal_errors", "fatal": "pcie_fatal_errors"},
    ),
    *(
        (f"nvlink_{name}", f"NVLink: {text}.", "link", {"": f"nvlink_{name}"})
        for name, text in (
            ("crc_errors", "CRC errors"),
            ("replays", "replays"),
            ("recoveries", "recoveries"),
            ("recovery_failures", "recoveries that failed"),
            ("effective_errors", "errors after correction"),
            ("symbol_errors", "symbol errors"),
        )
    ),
)


def listed(board: Board, inventory: PciInventory) -> list[Json]:
    """Each GPU that PCI shows or that was read: who it is, how it is, and what is known of it."""
    by_component = {one.component: one for one in board.readings.get(NVML, ())}
    components = {Component(device.kind, device.address) for device in inventory.watched() if device.kind is ComponentKind.GPU}
    components |= set(by_component) | {finding.component for finding in board.findings if finding.component.kind is ComponentKind.GPU}
    unseen = board.unseen(NVML, components)
    gpus: list[Json] = []
    for component in sorted(components, key=lambda one: one.id):
        own = [finding for finding in board.findings if finding.component == component]
        read = by_component.get(component)
        values = read.values if read is not None else {}
        gpus.append(
            {
                "component": component.name,
                "pci": component.id,
                "status": form.status(component in unseen, status_of(own)).value,
                "findings": [finding.id for finding in own],
                "looked": form.moment(read.time) if read is not None else None,
                "fresh": read is not None and component not in unseen,
                "simulated": read.simulated if read is not None else any(finding.simulated for finding in own),
                "identity": {name: _plain(values[name]) for name in _WHO if name in values},
                "slot": inventory.slots.get(component.id.rpartition(".")[0]),
                "readings": {name: _plain(value) for name, value in sorted(values.items()) if name not in _WHO},
                "notObservable": dict(sorted(read.missing.items())) if read is not None else {},
            }
        )
    return gpus


def metrics(readings: Sequence[Readings]) -> Iterator[Metric]:
    """The families for all GPUs. A value that is not observed has no sample: never a zero for what nobody knows."""
    who = [(one, _labels(one)) for one in readings if one.component.kind is ComponentKind.GPU]
    info = GaugeMetricFamily("vitald_gpu_info", "Who each GPU is.", labels=[*LABELS, "serial", "vbios", "driver", "simulated"])
    for one, labels in who:
        more = [str(one.values.get(name, "")) for name in ("serial", "vbios", "driver_version")]
        info.add_metric([*labels, *more, "true" if one.simulated else "false"], 1)
    yield info
    for families, made in ((_GAUGES, GaugeMetricFamily), (_COUNTERS, CounterMetricFamily)):
        for name, text, label, parts in families:
            family = made(f"vitald_gpu_{name}", text, labels=[*LABELS, *([label] if label else [])])
            for one, labels in who:
                for part, reading in parts.items():
                    value = one.values.get(reading)
                    if isinstance(value, tuple):
                        for link, each in enumerate(value):
                            family.add_metric([*labels, str(link)], each)
                    elif isinstance(value, (int, float)):
                        family.add_metric([*labels, *([part] if label else [])], value)
            yield family


def _labels(one: Readings) -> list[str]:
    minor = one.values.get("minor")
    number = str(int(minor)) if isinstance(minor, (int, float)) else ""
    model = str(one.values.get("name", "")) + (" (simulated)" if one.simulated else "")
    return [number, str(one.values.get("uuid", "")), one.component.id, model]


def _plain(value: Sample) -> object:
    return (
        [_plain(part) for part in value]
        if isinstance(value, tuple)
        else int(value)
        if isinstance(value, float) and value.is_integer()
        else value
    )
