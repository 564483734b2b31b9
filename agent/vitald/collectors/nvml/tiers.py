"""
The readings that each call of the worker can give, by tier. One that its call does not give is not
observable.

Does not import the binding, as the daemon uses it too. A reading belongs to one call.
"""

from __future__ import annotations

from collections.abc import Mapping

# NVML's codes for readings that are not observable; they mean nothing about health.
NOT_SUPPORTED = "not supported"
MISSING: Mapping[int, str] = {
    3: NOT_SUPPORTED,
    4: "no permission",
    6: "not found",
    13: "driver too old",
    25: "driver too old",
    26: "deprecated",
}

# By call, named like its function (`read_temperature`): its readings.
Calls = Mapping[str, tuple[str, ...]]

FAST: Calls = {
    "recovery_action": ("recovery",),
    "temperature": ("temperature_celsius",),
    "margin": ("margin_celsius",),
    "memory_temperature": ("memory_temperature_celsius",),
    "clock_events": (
        *("clock_event_reasons", "idle", "power_capped", "hw_slowdown", "sync_boost"),
        *("sw_thermal_slowdown", "hw_thermal_slowdown", "power_brake"),
        *("application_clocks", "display_clocks", "board_limit", "reliability"),
    ),
    "throttle_times": (
        *("power_capped_seconds", "thermal_slowdown_seconds", "sw_thermal_seconds"),
        *("hw_thermal_seconds", "power_brake_seconds", "throttled_seconds"),
    ),
    "power": ("power_watts",),
    "load": ("utilization_ratio", "memory_utilization_ratio"),
}
SLOW: Calls = {
    "performance_state": ("performance_state",),
    "clocks": ("sm_clock_hertz", "memory_clock_hertz"),
    "energy": ("energy_joules",),
    "codecs": ("encoder_utilization_ratio", "decoder_utilization_ratio"),
    "memory": (
        *("memory_used_bytes", "memory_free_bytes"),
        *("memory_reserved_bytes", "memory_total_bytes"),
    ),
    "limit_times": (
        *("sync_boost_seconds", "board_limit_seconds"),
        *("low_utilization_seconds", "reliability_seconds"),
    ),
    "ecc": (
        *("ecc_corrected", "ecc_uncorrected"),
        *("ecc_corrected_lifetime", "ecc_uncorrected_lifetime"),
    ),
    "ecc_dram": ("ecc_corrected_dram", "ecc_uncorrected_dram"),
    "ecc_sram": ("ecc_corrected_sram", "ecc_uncorrected_sram"),
    "sram_status": (
        *("sram_threshold_exceeded", "sram_corrected_lifetime"),
        *("sram_uncorrected_parity_lifetime", "sram_uncorrected_secded_lifetime"),
        *("sram_uncorrected_parity", "sram_uncorrected_secded"),
    ),
    "remapped_rows": (
        *("remapped_rows_corrected", "remapped_rows_uncorrected"),
        *("row_remap_pending", "row_remap_failed"),
    ),
    "spare_rows": (
        *("remap_banks_max", "remap_banks_high", "remap_banks_partial"),
        *("remap_banks_low", "remap_banks_none"),
    ),
    "retired_pages": ("retired_pages_single", "retired_pages_double", "retired_pages"),
    "retirement_pending": ("page_retirement_pending",),
    "repair": ("channel_repair_pending", "tpc_repair_pending"),
    "unrepairable": ("memory_unrepairable",),
    "pcie_link": ("pcie_generation", "pcie_width", "pcie_generation_max", "pcie_width_max"),
    "pcie_errors": (
        *("pcie_replays", "pcie_correctable_errors", "pcie_nonfatal_errors"),
        *("pcie_fatal_errors", "pcie_recoveries"),
    ),
    "pcie_bytes": ("pcie_received_bytes", "pcie_transmitted_bytes"),
    "mig": ("mig_mode", "mig_mode_pending", "mig_instances", "mig_mode_change_pending"),
    "mig_details": (
        *("mig_gpu_instances", "mig_compute_instances", "mig_uuids", "mig_profiles"),
        *("mig_memory_used_bytes", "mig_memory_total_bytes"),
    ),
    "nvlinks": ("nvlinks", "nvlink_active", "nvlinks_active"),
    "nvlink_errors": (
        *("nvlink_replays", "nvlink_recoveries", "nvlink_crc_errors", "nvlink_recovery_failures"),
        *("nvlink_effective_errors", "nvlink_malformed_packets", "nvlink_buffer_overruns"),
        *("nvlink_symbol_errors", "nvlink_receive_errors", "nvlink_remote_errors"),
        *("nvlink_general_errors", "nvlink_integrity_errors", "nvlink_transmit_discards"),
        *("nvlink_recovery_attempts",),
    ),
    "nvlink_bytes": ("nvlink_received_bytes", "nvlink_transmitted_bytes"),
    "c2c_links": (
        *(
            "c2c_links",
            "c2c_active",
            "c2c_error_interrupts",
            "c2c_replays",
            "c2c_replays_back_to_back",
        ),
    ),
    "fabric": (
        *("fabric_state", "fabric_status", "fabric_clique", "fabric_cluster", "fabric_health_mask"),
        *("fabric_degraded_bandwidth", "fabric_route_recovery", "fabric_route_unhealthy"),
        *("fabric_access_timeout", "fabric_incorrect_configuration", "fabric_manager_lost"),
        *("fabric_health_summary",),
    ),
    "processes": ("processes", "process_pids"),
}
INVENTORY: Calls = {
    "identity": (
        *("uuid", "name", "serial", "part_number", "vbios", "inforom"),
        *("module_id", "minor", "index", "board_id"),
    ),
    "platform": ("chassis_serial", "chassis_slot", "tray_index", "host_id"),
    "nvlink_layout": ("nvlink_version", "nvlink_switched", "nvlink_bytes_per_second"),
    "nvlink_quality": (
        *("nvlink_effective_ber", "nvlink_symbol_ber"),
        *("nvlink_raw_errors_lane0", "nvlink_raw_errors_lane1"),
        *("nvlink_blocks", "nvlink_retried_blocks"),
    ),
    "nvlink_corrections": ("nvlink_fec_history", "nvlink_fec_highest_bin"),
    "limits": ("shutdown_celsius", "slowdown_celsius", "memory_max_celsius", "gpu_max_celsius"),
    "t_limits": (
        *("shutdown_margin_celsius", "slowdown_margin_celsius"),
        *("memory_max_margin_celsius", "gpu_max_margin_celsius"),
    ),
    "power_limit": ("power_limit_watts",),
    "persistence": ("persistence_mode",),
    "ecc_mode": ("ecc_mode", "ecc_mode_pending", "ecc_mode_change_pending"),
}
# Made in each fast round if profiling is on.
PROFILING: Calls = {
    "profiling": (
        *("graphics_active_ratio", "sm_active_ratio", "sm_occupancy_ratio"),
        *("tensor_active_ratio", "hmma_active_ratio", "dram_active_ratio"),
        *("fp64_active_ratio", "fp32_active_ratio", "fp16_active_ratio"),
        *("pcie_received_bytes_per_second", "pcie_transmitted_bytes_per_second"),
        *("nvlink_received_bytes_per_second", "nvlink_transmitted_bytes_per_second"),
        *("mig_profiled_gpu_instances", "mig_graphics_active_ratio", "mig_sm_active_ratio"),
        *("mig_sm_occupancy_ratio", "mig_tensor_active_ratio", "mig_dram_active_ratio"),
    ),
}
TIERS: Mapping[str, Calls] = {"fast": FAST, "slow": SLOW, "inventory": INVENTORY}
READINGS_BY_CALL: Mapping[str, tuple[str, ...]] = {**FAST, **SLOW, **INVENTORY, **PROFILING}
ALWAYS_READ = frozenset(
    reading for calls in TIERS.values() for given in calls.values() for reading in given
)
TIER_OF: Mapping[str, str] = {
    reading: tier
    for tier, calls in (*TIERS.items(), ("profiling", PROFILING))
    for given in calls.values()
    for reading in given
}
