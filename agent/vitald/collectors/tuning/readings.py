"""Readings of how the node is set up."""

from __future__ import annotations

from vitald.collectors.reading_definitions import (
    FLAG,
    ReadingTable,
    flag,
    gauge,
    state,
    text_reading,
    unexported,
)
from vitald.model import ComponentKind

_TUNING = ReadingTable(
    component=ComponentKind.NODE,
    prefix="vitald_tuning",
    readings=(
        state("cpu_governor", "1 for the governor of the processors' frequency; of several, all."),
        gauge(
            "cpu_power_limit_ratio",
            "Long-term power limit of a processor package by its maximum; of several, the lowest.",
        ),
        state(
            "iommu_mode",
            "1 for what the IOMMU does for accelerators and adapters: off, passthrough, translated"
            " or unmanaged; of several, all.",
        ),
        gauge(
            "acs_redirecting_ports",
            "PCIe switch ports between accelerators and adapters that send their traffic to the"
            " processor.",
        ),
        gauge("memory_modules", "Memory modules that the memory controllers show."),
        flag("memory_unbalanced", "1 where memory controllers have different amounts of memory."),
        gauge("memory_modules_listed", "Memory modules that the firmware lists."),
        gauge(
            "memory_speed_transfers_per_second",
            "Speed at which the slowest memory module runs, as the firmware configured it.",
        ),
        flag("memory_speed_unequal", "1 where memory modules of one type run at unequal speeds."),
        state(
            "gpudirect_rdma",
            "1 for the way that adapters read GPU memory: nvidia_peermem, dma_buf or none.",
        ),
        flag("newer_kernel", "1 where a newer kernel is installed than the running one."),
        flag("reboot_pending", "1 where the package manager asks for a reboot."),
        unexported("has_accelerator", "1 for a node with a GPU or Neuron device.", unit=FLAG),
        unexported(
            "iommu_judged", "1 where the IOMMU's mode matters: x86, no virtual machine.", unit=FLAG
        ),
        text_reading("acs_ports", "The PCIe switch ports that redirect."),
        text_reading("memory_types", "Types of the memory modules."),
        text_reading("memory_by_controller", "Memory of each controller, in MiB."),
        text_reading("memory_speeds", "Speeds of the memory modules, with their number."),
        text_reading("memory_slow_modules", "Slots of the modules slower than others."),
        text_reading("kernel_newest", "The newest kernel of this flavour that is installed."),
        text_reading("reboot_packages", "The packages that ask for a reboot."),
    ),
)

READINGS = (_TUNING,)
