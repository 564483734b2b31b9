"""The readings of NVIDIA GPUs from NVML."""

from __future__ import annotations

from vitald.collectors.reading_definitions import (
    CODE,
    FLAG,
    LinkMerge,
    ReadingTable,
    counter,
    counters,
    flag,
    gauge,
    gauges,
    merge_links,
    text_reading,
    unexported,
)
from vitald.model.words import ComponentKind

# The GPU's location in a rack, from NVML's platform information.
RACK_LOCATION = ("chassis_serial", "chassis_slot", "tray_index", "host_id")

_IDENTITY = ("uuid", "name", "serial", "part_number", "vbios", "inforom", "board_id")
_NUMBERS = ("module_id", "minor", "index")

_GPU = ReadingTable(
    component=ComponentKind.GPU,
    prefix="vitald_gpu",
    readings=(
        flag("lost", "1 while NVML cannot reach the GPU."),
        gauge(
            "recovery_action",
            "The driver's own advice (NVML field 230): 0 none, 1 reset, 2 reboot, 3 drain peers, 4"
            " drain and reset, 5 recover the IMEX domain (driver 580: bus reset), 6 bus reset, 7"
            " system reboot.",
            "recovery",
            unit=CODE,
        ),
        *gauges(
            "temperature_celsius",
            "Temperature.",
            "sensor",
            {"gpu": "temperature_celsius", "memory": "memory_temperature_celsius"},
        ),
        gauge(
            "temperature_margin_celsius", "Degrees left until the GPU slows down.", "margin_celsius"
        ),
        gauge("power_watts", "Power draw."),
        gauge("power_limit_watts", "Enforced power limit."),
        *gauges(
            "temperature_limit_margin_celsius",
            "Margin at which the driver acts on the temperature.",
            "limit",
            {
                name: f"{name}_margin_celsius"
                for name in ("shutdown", "slowdown", "memory_max", "gpu_max")
            },
        ),
        gauge("performance_state", "0 is the fastest.", unit=CODE),
        gauge("utilization_ratio", "Share of time in which a kernel ran."),
        gauge("memory_utilization_ratio", "Share of time in which memory was read or written."),
        gauge("encoder_utilization_ratio", "Share of time in which video was encoded."),
        gauge("decoder_utilization_ratio", "Share of time in which video was decoded."),
        gauge("graphics_active_ratio", "Profiling: share of time in which a kernel ran."),
        gauge("sm_active_ratio", "Profiling: share of the SMs that were busy."),
        gauge("sm_occupancy_ratio", "Profiling: active warps, as a share of the most possible."),
        gauge("tensor_active_ratio", "Profiling: share of time in which the tensor cores worked."),
        gauge("dram_active_ratio", "Profiling: share of the memory bandwidth that was used."),
        *gauges(
            "pipe_active_ratio",
            "Profiling: share of time in which the SMs did such operations; hmma are those of the"
            " tensor cores at 16 bits.",
            "pipe",
            {name: f"{name}_active_ratio" for name in ("fp64", "fp32", "fp16", "hmma")},
        ),
        *gauges(
            "pcie_throughput_bytes_per_second",
            "Profiling: throughput of PCIe, as the GPU sends and receives.",
            "direction",
            {
                "receive": "pcie_received_bytes_per_second",
                "transmit": "pcie_transmitted_bytes_per_second",
            },
        ),
        *gauges(
            "nvlink_throughput_bytes_per_second",
            "Profiling: throughput of all NVLinks, as the GPU sends and receives.",
            "direction",
            {
                "receive": "nvlink_received_bytes_per_second",
                "transmit": "nvlink_transmitted_bytes_per_second",
            },
        ),
        gauge("memory_used_bytes", "Memory in use."),
        gauge("memory_free_bytes", "Memory that is free."),
        gauge("memory_reserved_bytes", "Memory that the driver keeps for itself."),
        gauge("memory_total_bytes", "Memory."),
        *gauges(
            "clock_hertz",
            "Clock rate.",
            "domain",
            {"sm": "sm_clock_hertz", "memory": "memory_clock_hertz"},
        ),
        gauge("processes", "Compute processes on the GPU."),
        *gauges(
            "clock_event",
            "1 while the clocks are held down for this reason.",
            "reason",
            {
                name: name
                for name in (
                    *(
                        "idle",
                        "power_capped",
                        "hw_slowdown",
                        "sync_boost",
                        "sw_thermal_slowdown",
                        "hw_thermal_slowdown",
                        "power_brake",
                    ),
                    *("application_clocks", "display_clocks", "board_limit", "reliability"),
                )
            },
            unit=FLAG,
        ),
        *gauges(
            "ecc_errors_lifetime",
            "ECC errors over the board's lifetime.",
            "type",
            {"corrected": "ecc_corrected_lifetime", "uncorrected": "ecc_uncorrected_lifetime"},
        ),
        flag(
            "sram_threshold_exceeded",
            "1 if the driver's threshold for uncorrectable SRAM errors is exceeded.",
        ),
        *gauges(
            "remapped_rows",
            "Memory rows that were remapped.",
            "type",
            {"corrected": "remapped_rows_corrected", "uncorrected": "remapped_rows_uncorrected"},
        ),
        flag("row_remap_pending", "1 while a row remap waits for a reset."),
        flag("row_remap_failed", "1 if a row could not be remapped."),
        *gauges(
            "remap_banks",
            "Memory banks by how many spare rows they have left.",
            "spare",
            {name: f"remap_banks_{name}" for name in ("max", "high", "partial", "low", "none")},
        ),
        *gauges(
            "retired_pages",
            "Memory pages that were retired.",
            "cause",
            {"single_bit": "retired_pages_single", "double_bit": "retired_pages_double"},
        ),
        flag("page_retirement_pending", "1 while pages wait to be retired."),
        *gauges(
            "repair_pending",
            "1 while a repair waits for a reset.",
            "part",
            {"channel": "channel_repair_pending", "tpc": "tpc_repair_pending"},
            unit=FLAG,
        ),
        flag("memory_unrepairable", "1 if the memory cannot be repaired."),
        gauge("pcie_generation", "Generation of the PCIe link now."),
        gauge("pcie_width", "Lanes of the PCIe link now."),
        gauge("pcie_generation_max", "Generation that the GPU and its slot have."),
        gauge("pcie_width_max", "Lanes that the GPU and its slot have."),
        *merge_links(
            LinkMerge.OMIT, flag("nvlink_up", "1 for an NVLink that is active.", "nvlink_active")
        ),
        gauge("nvlinks_active", "NVLinks that are active."),
        gauge(
            "nvlinks_expected",
            "NVLinks that were ever active, or are on most GPUs of this model here.",
        ),
        gauge("nvlink_version", "NVLink version, such as 4 or 5."),
        *merge_links(
            LinkMerge.LOWEST,
            gauge("nvlink_speed_bytes_per_second", "Speed of the link.", "nvlink_bytes_per_second"),
            flag(
                "c2c_link_up",
                "1 for a link to the processor (NVLink-C2C) that is active.",
                "c2c_active",
            ),
        ),
        *merge_links(
            LinkMerge.HIGHEST,
            *gauges(
                "nvlink_bit_error_ratio",
                "NVLink 5: bit error rate as the driver works it out; 15e-255 is the least.",
                "errors",
                {"effective": "nvlink_effective_ber", "symbol": "nvlink_symbol_ber"},
                unit="ratio",
            ),
            gauge(
                "nvlink_fec_highest_bin",
                "NVLink 5: highest bin of corrected symbol errors that counted.",
            ),
        ),
        gauge(
            "fabric_state", "NVLink fabric: 1 not started, 2 in progress, 3 completed.", unit=CODE
        ),
        gauge(
            "fabric_health",
            "Health of the NVLink fabric (NVML): 1 healthy, 2 unhealthy, 3 limited.",
            "fabric_health_summary",
            unit=CODE,
        ),
        *gauges(
            "fabric_fault",
            "1 (incorrect configuration: NVML's number for it) for what is wrong with the NVLink"
            " fabric of the GPU.",
            "fault",
            {
                name: f"fabric_{name}"
                for name in (
                    *("degraded_bandwidth", "route_recovery", "route_unhealthy", "access_timeout"),
                    *("incorrect_configuration", "manager_lost"),
                )
            },
            unit=FLAG,
        ),
        gauge("fabric_clique", "Clique of the NVLink domain that the GPU belongs to.", unit=CODE),
        flag(
            "fabric_differs",
            "1 where the GPU is in another NVLink domain than most GPUs of this node.",
        ),
        flag("persistence_mode", "1 if persistence mode is on."),
        flag("ecc_mode", "1 if ECC is on."),
        flag("mig_mode", "1 if the GPU is in MIG mode."),
        gauge("mig_instances", "MIG instances."),
        counter("energy_joules", "Energy since the driver was loaded."),
        *counters(
            "throttled_seconds",
            "Time with lowered clocks.",
            "reason",
            {
                "power": "power_capped_seconds",
                "thermal": "thermal_slowdown_seconds",
                "sw_thermal": "sw_thermal_seconds",
                "hw_thermal": "hw_thermal_seconds",
                "power_brake": "power_brake_seconds",
                **{
                    name: f"{name}_seconds"
                    for name in ("sync_boost", "board_limit", "low_utilization", "reliability")
                },
            },
        ),
        *counters(
            "ecc_errors",
            "ECC errors since the driver was loaded.",
            "type",
            {"corrected": "ecc_corrected", "uncorrected": "ecc_uncorrected"},
        ),
        *counters(
            "ecc_errors_by_memory",
            "Uncorrectable ECC errors since the driver was loaded.",
            "memory",
            {"dram": "ecc_uncorrected_dram", "sram": "ecc_uncorrected_sram"},
        ),
        counter("pcie_replays", "PCIe packets that were sent again."),
        *counters(
            "pcie_bytes",
            "Bytes over PCIe, as the GPU sends and receives them; only where the driver counts"
            " beyond 32 bits.",
            "direction",
            {"receive": "pcie_received_bytes", "transmit": "pcie_transmitted_bytes"},
        ),
        *counters(
            "nvlink_bytes",
            "Payload over all NVLinks, as the GPU sends and receives it.",
            "direction",
            {"receive": "nvlink_received_bytes", "transmit": "nvlink_transmitted_bytes"},
        ),
        *counters(
            "pcie_errors",
            "PCIe errors at the GPU's end of the link.",
            "severity",
            {
                "correctable": "pcie_correctable_errors",
                "nonfatal": "pcie_nonfatal_errors",
                "fatal": "pcie_fatal_errors",
            },
        ),
        *merge_links(
            LinkMerge.SUM,
            *(
                counter(f"nvlink_{name}", f"NVLink: {help_}.")
                for name, help_ in (
                    ("crc_errors", "CRC errors"),
                    ("replays", "replays"),
                    ("recoveries", "recoveries"),
                    ("recovery_failures", "recoveries that failed"),
                    ("recovery_attempts", "recoveries, whatever came of them"),
                    ("effective_errors", "errors after correction"),
                    ("symbol_errors", "symbol errors"),
                    ("receive_errors", "packets received with errors"),
                    ("remote_errors", "errors that the remote end reports"),
                    ("general_errors", "other errors"),
                    ("integrity_errors", "times that local errors passed their threshold"),
                    ("transmit_discards", "packets that were discarded and not sent"),
                    ("malformed_packets", "packets received that were malformed"),
                    ("buffer_overruns", "packets received that found no buffer"),
                    ("blocks", "blocks sent"),
                    ("retried_blocks", "blocks sent again"),
                )
            ),
            *counters(
                "nvlink_raw_errors",
                "NVLink 5: errors of a lane before correction.",
                "lane",
                {lane: f"nvlink_raw_errors_lane{lane}" for lane in ("0", "1")},
            ),
        ),
        counter(
            "nvlink_fec_corrected",
            "NVLink 5: corrected symbol errors of all links, by bin of their history.",
            "nvlink_fec_history",
            each="bin",
        ),
        *merge_links(
            LinkMerge.SUM,
            *(
                counter(f"c2c_{name}", f"NVLink-C2C: {help_}.")
                for name, help_ in (
                    ("error_interrupts", "error interrupts"),
                    ("replays", "replays"),
                    ("replays_back_to_back", "replays of what was a replay"),
                )
            ),
        ),
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
        unexported("throttled_seconds", "Time with clocks lowered by heat or power."),
        unexported(
            "ecc_corrected_dram", "Corrected ECC errors of DRAM since the driver was loaded."
        ),
        unexported(
            "ecc_corrected_sram", "Corrected ECC errors of SRAM since the driver was loaded."
        ),
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
        unexported("nvlinks_configured", "NVLinks that should be active, by the configuration."),
        *(
            unexported(
                f"nvlink_{name}_apart",
                f"NVLink: {name} above those of most links of this model here.",
                each="link",
            )
            for name in ("recoveries", "replays")
        ),
        unexported("nvlinks_absent", "1 where no NVLink is active and some should be.", unit=FLAG),
        unexported(
            "nvlink_switched", "1 for a link that leads to a switch.", unit=FLAG, each="link"
        ),
        unexported("c2c_links", "NVLink-C2C links that the GPU has."),
        unexported("c2c_links_expected", "NVLink-C2C links of most GPUs of this model."),
        unexported("fabric_status", "NVML's status of the NVLink fabric.", unit=CODE),
        text_reading("fabric_cluster", "UUID of the NVLink domain."),
        unexported("fabric_health_mask", "Health of the NVLink fabric, as bits.", unit=CODE),
        text_reading("process_pids", "Processes on the GPU."),
        *(
            unexported(f"{limit}_celsius", "Temperature limit.")
            for limit in ("shutdown", "slowdown", "memory_max", "gpu_max")
        ),
        *(unexported(name, "The driver's number of it.", unit=CODE) for name in _NUMBERS),
        *(text_reading(name, "Identity of the GPU.") for name in _IDENTITY),
        *(text_reading(name, "Location in a rack.") for name in RACK_LOCATION),
    ),
)
_DRIVER = ReadingTable(
    component=ComponentKind.NODE,
    prefix="vitald_gpu",
    readings=(
        unexported("unavailable", "NVML's error while it cannot be used, else 0.", unit=CODE),
        unexported("gpus", "GPUs that are here, and those that are missing."),
        unexported("gpus_expected", "GPUs that this node should have; 0 if unknown."),
        unexported(
            "gpus_proven",
            "1 if this node once had as many, or its instance type has; 0 if only the"
            " configuration sets the number.",
            unit=FLAG,
        ),
        unexported(
            "modules_missing",
            "Free numbers between those of the modules of a board.",
        ),
        unexported("vbios_versions", "Most VBIOS versions among GPUs of one model."),
        text_reading("driver", "Version of the driver."),
        text_reading("nvml", "Version of NVML."),
    ),
)

READINGS = (_GPU, _DRIVER)
