"""The readings of NVIDIA GPUs from NVML that are no metric: judged, or shown by the API."""

from __future__ import annotations

from vitald.collectors.reading_definitions import CODE, FLAG, text_reading, unexported

# The GPU's location in a rack, from NVML's platform information.
RACK_LOCATION = ("chassis_serial", "chassis_slot", "tray_index", "host_id")

_IDENTITY = ("uuid", "name", "serial", "part_number", "vbios", "inforom", "board_id")
_NUMBERS = ("module_id", "minor")

UNEXPORTED = (
    unexported("missing", "1 while a device that was here before is not.", unit=FLAG),
    *(
        unexported(name, f"1 while {help_}.", unit=FLAG)
        for name, help_ in (
            ("reset_required", "the driver requires a reset"),
            ("corrupted_inforom", "the InfoROM is corrupted"),
            ("irq_issue", "interrupts of the GPU do not arrive"),
            ("insufficient_power", "the GPU has not enough power"),
            ("not_initialised", "the driver has not initialised the GPU"),
            ("no_permission", "the daemon may not access the GPU"),
            ("excluded", "the driver is configured to exclude the GPU"),
        )
    ),
    unexported("failing_calls", "Calls of the last poll that failed."),
    unexported("no_call_succeeds", "1 while every call fails.", unit=FLAG),
    unexported("lookup_failed", "1 while NVML cannot look up the GPU.", unit=FLAG),
    unexported("lookup_code", "NVML's error of that look-up.", unit=CODE),
    unexported("driver_branch", "First number of the driver's version."),
    text_reading("driver_version", "Version of the driver."),
    text_reading("vbios_expected", "VBIOS versions that the GPU may have."),
    unexported("clock_event_reasons", "NVML's clock event reasons, as bits.", unit=CODE),
    unexported("kernel_ran", "1 if a kernel ran in the driver's last sample.", unit=FLAG),
    unexported("throttled_seconds", "Time with clocks lowered by heat or power."),
    unexported("ecc_corrected_dram", "Corrected ECC errors of DRAM since the driver was loaded."),
    unexported("ecc_corrected_sram", "Corrected ECC errors of SRAM since the driver was loaded."),
    unexported("sram_corrected_lifetime", "Corrected SRAM errors over the board's lifetime."),
    *(
        unexported(f"sram_uncorrected_{check}{suffix}", help_)
        for check in ("parity", "secded")
        for suffix, help_ in (
            ("", "Uncorrectable SRAM errors since the driver was loaded."),
            ("_lifetime", "Uncorrectable SRAM errors over the board's lifetime."),
            ("_missed", "Such errors that were counted while the daemon was not running."),
        )
    ),
    unexported(
        "ecc_uncorrected_missed",
        "Uncorrectable ECC errors that were counted while the daemon was not running.",
    ),
    unexported("retired_pages", "Memory pages that were retired, of both causes."),
    unexported("pcie_recoveries", "Recoveries of the PCIe link."),
    *(
        unexported(f"{mode}_mode{suffix}", help_, unit=FLAG)
        for mode in ("mig", "ecc")
        for suffix, help_ in (
            ("_pending", "The mode after the next reset."),
            ("_change_pending", "1 while the mode changes with the next reset."),
        )
    ),
    *(
        unexported(name, help_, unit=unit, each="instance")
        for name, unit, help_ in (
            ("mig_gpu_instances", CODE, "Id of the GPU instance of each MIG instance."),
            ("mig_compute_instances", CODE, "Id of its compute instance."),
            ("mig_memory_used_bytes", "", "Memory in use of its GPU instance."),
            ("mig_memory_total_bytes", "", "Memory of its GPU instance."),
        )
    ),
    unexported(
        "mig_profiled_gpu_instances",
        "Id of each GPU instance that was profiled.",
        unit=CODE,
        each="GPU instance",
    ),
    *(
        unexported(f"mig_{name}", "Profiling: the same of each GPU instance.", each="instance")
        for name in (
            *("graphics_active_ratio", "sm_active_ratio", "sm_occupancy_ratio"),
            *("tensor_active_ratio", "dram_active_ratio"),
        )
    ),
    text_reading("mig_uuids", "UUIDs of the MIG instances, separated by blanks."),
    text_reading("mig_profiles", "Profiles of the MIG instances, such as 1g.10gb."),
    unexported("nvlinks", "NVLinks that the GPU has."),
    unexported(
        "nvlink_down",
        "1 for an NVLink that should be active and is not.",
        unit=FLAG,
        each="link",
    ),
    unexported("nvlink_to_switch", "1 where the NVLinks lead to switches.", unit=FLAG),
    unexported("nvlinks_absent", "1 where no NVLink is active and some should be.", unit=FLAG),
    unexported("nvlink_switched", "1 for a link that leads to a switch.", unit=FLAG, each="link"),
    unexported("c2c_links", "NVLink-C2C links that the GPU has."),
    unexported("c2c_links_expected", "NVLink-C2C links of most GPUs of this model."),
    unexported("fabric_status", "NVML's status of the NVLink fabric.", unit=CODE),
    text_reading("fabric_cluster", "UUID of the NVLink domain."),
    unexported("fabric_health_mask", "Health of the NVLink fabric, as bits.", unit=CODE),
    text_reading("process_pids", "Processes on the GPU."),
    unexported(
        "without_process",
        "1 if no process of the node uses the GPU. Not known in a PID namespace of its own.",
        unit=FLAG,
    ),
    *(
        unexported(f"{limit}_celsius", "Temperature limit.")
        for limit in ("shutdown", "slowdown", "memory_max", "gpu_max")
    ),
    *(unexported(name, "The driver's number of it.", unit=CODE) for name in _NUMBERS),
    *(text_reading(name, "Identity of the GPU.") for name in _IDENTITY),
    *(text_reading(name, "Location in a rack.") for name in RACK_LOCATION),
)
