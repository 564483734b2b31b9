"""What is read of the host."""

from __future__ import annotations

from vitald.collectors.reading_definitions import (
    FLAG,
    ReadingTable,
    counter,
    flag,
    gauge,
    gauges,
    get_id,
    get_reading,
    get_serial,
    state,
    text_reading,
    unexported,
)
from vitald.model.words import ComponentKind

_DIMM = ReadingTable(
    component=ComponentKind.DIMM,
    prefix="vitald_edac",
    labels={"dimm": get_id, "label": get_reading("label")},
    readings=(
        counter("correctable_errors", "Memory errors that were corrected.", "corrected_errors"),
        counter(
            "uncorrectable_errors",
            "Memory errors that could not be corrected.",
            "uncorrected_errors",
        ),
    ),
)
_CPU = ReadingTable(
    component=ComponentKind.CPU,
    prefix="vitald_cpu",
    labels={"package": get_id},
    readings=(
        counter("package_throttles", "Times that the package was slowed down by its heat."),
        counter("package_throttled_seconds", "Time that the package was slowed down by its heat."),
    ),
)
_FILESYSTEM = ReadingTable(
    component=ComponentKind.DISK,
    prefix="vitald_filesystem",
    labels={"device": get_id, "mountpoint": get_reading("mount")},
    readings=(
        flag(
            "readonly",
            "1 where the kernel made a file system read-only that was mounted writable.",
            "read_only",
        ),
        gauge("avail_bytes", "Space left for all users.", "free_bytes"),
        gauge("avail_ratio", "The same as a share of what all users can have.", "free_ratio"),
        gauge("files_free_ratio", "Share of inodes that is left.", "free_inodes_ratio"),
    ),
)
_NVME = ReadingTable(
    component=ComponentKind.DISK,
    prefix="vitald_nvme",
    labels={"device": get_id, "serial": get_serial},
    readings=(
        state("state", "1 for the state that the kernel says the controller is in."),
        gauge("temperature_celsius", "Temperature of the drive."),
        flag(
            "temperature_alarm", "1 while the drive says that it is too warm.", "temperature_alarm"
        ),
        unexported("missing", "1 while a device that was here before is not.", unit=FLAG),
        unexported("volume", "1 for a volume of a storage service.", unit=FLAG),
        unexported("needed", "1 for a drive that the node needs.", unit=FLAG),
    ),
)
_HOST = ReadingTable(
    component=ComponentKind.NODE,
    prefix="vitald_host",
    readings=(
        gauge("memory_available_bytes", "Memory that is left."),
        gauge("memory_corrupted_bytes", "Memory that the kernel took out of use for its errors."),
        gauge("load1", "Load of the last minute.", "load"),
        gauge("tasks", "Tasks, threads included."),
        *gauges(
            "tasks_most",
            "Most tasks that there may be.",
            "limit",
            {"threads": "threads_most", "pids": "pids_most"},
        ),
        gauge("tasks_used_ratio", "Tasks as a share of the lower limit."),
        *gauges(
            "stuck_process_seconds",
            "How long a process has been stuck in the kernel, by the driver it is stuck in.",
            "driver",
            {
                driver: f"stuck_in_{driver}_seconds"
                for driver in ("nvidia", "neuron", "efa", "mlx5", "nvme", "nfs", "lustre", "other")
            },
        ),
        flag(
            "clock_unsynchronised",
            "1 if the system clock is not synchronised.",
            "unsynchronised",
        ),
        gauge("clock_error_seconds", "Most that the clock may be wrong, by the kernel's estimate."),
        gauge("clock_offset_seconds", "How far the clock is from its reference."),
        gauge("nvme_drives", "NVMe drives that belong to the machine."),
    ),
)
_UNIT = ReadingTable(
    component=ComponentKind.NODE,
    prefix="vitald_unit",
    labels={"unit": get_id},
    readings=(
        state("active_state", "1 for the state that systemd says the unit is in."),
        counter("restarts", "Times that systemd restarted the unit."),
        unexported(
            "required",
            "1 where the unit must run, by configuration or as it is enabled.",
            unit=FLAG,
        ),
        text_reading("load_state", "systemd's LoadState."),
        text_reading("sub_state", "systemd's SubState."),
        text_reading("result", "systemd's Result."),
    ),
)

READINGS = (
    _DIMM,
    _CPU,
    _FILESYSTEM,
    _NVME,
    _HOST,
    _UNIT,
)
