"""
The labels of all metrics: each name has one meaning, and one name has each meaning.

Names that changed stay beside the new ones, on the same samples, for one release.
"""

from __future__ import annotations

from dataclasses import dataclass

_ALL = ("vitald_",)
_NIC = ("vitald_nic_", "vitald_infiniband_", "vitald_efa_")
_EVENTS = (
    *("vitald_events", "vitald_event_", "vitald_findings", "vitald_finding_"),
    "vitald_notices",
)
_MIG = ("vitald_gpu_mig_",)
_DIAGNOSTIC = ("vitald_diagnostic_",)


@dataclass(frozen=True, slots=True)
class Label:
    """A label's meaning, and the families that may have it, by the beginnings of their names."""

    meaning: str
    families: tuple[str, ...] = _ALL


@dataclass(frozen=True, slots=True)
class FormerLabel:
    """A deprecated label, of the families whose names begin so."""

    name: str
    now: str
    families: tuple[str, ...]
    values: str = ""  # how its values differ


LABELS = {
    "action": Label("What a finding requires.", _EVENTS),
    "adapter_kind": Label("Kind of network adapter: efa, ib, roce or net.", _NIC),
    "bin": Label("Number of a bin of a histogram that NVML keeps."),
    "catalog_profile": Label("Profile of the catalogue.", ("vitald_build_info",)),
    "cause": Label("Why pages were retired."),
    "chassis_serial": Label("Serial number of the rack's chassis."),
    "chassis_slot": Label("Slot in the chassis."),
    "check": Label("Name of a diagnostic.", _DIAGNOSTIC),
    "chip": Label("Address of a chip of hwmon.", ("vitald_hwmon_",)),
    "chip_name": Label("Driver's name of a chip of hwmon.", ("vitald_hwmon_",)),
    "code": Label(
        "Code of a finding, a notice or an event, within its kind: 79.",
        (*_EVENTS, "vitald_gpu_xid_"),
    ),
    "component": Label(
        "Component, as in the API: gpu/0000:65:00.0.",
        (*_EVENTS, "vitald_component_", "vitald_device_lemon_score"),
    ),
    "component_kind": Label(
        "Kind of component, as in the API: gpu, nic, node. `vitald_devices` counts EFA "
        "adapters, which are nic there, as efa."
    ),
    "compute_instance": Label("Number of the compute instance of a MIG device.", _MIG),
    "core": Label("Number of a Neuron core."),
    "device": Label(
        "The kernel's name of a device: mlx5_0, nvme0n1.",
        (*_NIC, "vitald_filesystem_", "vitald_nvme_", "vitald_diagnostic_measure"),
    ),
    "dimm": Label("The kernel's name of a memory module."),
    "direction": Label("receive or transmit."),
    "domain": Label("Clock domain."),
    "driver": Label("Name of a driver.", ("vitald_host_stuck_process_",)),
    "driver_version": Label("Version of the NVIDIA driver."),
    "errors": Label("Errors of which a rate is given."),
    "fan": Label("Number of a fan of the chip."),
    "fault": Label("What is wrong with the NVLink fabric."),
    "fstype": Label("Type of a file system: nfs4, lustre.", ("vitald_mount_",)),
    "gpu": Label("Number of the GPU in /dev/nvidia<gpu>.", ("vitald_gpu_",)),
    "gpu_driver": Label("Version of the NVIDIA driver of the node.", ("vitald_node_info",)),
    "gpu_instance": Label("Number of the GPU instance of a MIG device.", _MIG),
    "gpu_index": Label("Number of the GPU as the tool numbers them.", _DIAGNOSTIC),
    "host_id": Label("Number of the host in its tray."),
    "instance_type": Label("Product name in the firmware, often the cloud's instance type."),
    "interface": Label("The kernel's name of a network interface.", (*_NIC, "vitald_interface_")),
    "kernel": Label("Version of the kernel."),
    "kind": Label("Kind of the code of a finding, a notice or an event: xid, sxid, nvml.", _EVENTS),
    "label": Label("The firmware's name of a memory module.", ("vitald_edac_",)),
    "lane": Label("Number of a lane of a link."),
    "level": Label("Level of a diagnostic; 0 for one without levels.", _DIAGNOSTIC),
    "limit": Label("Which limit."),
    "link": Label("Number of a link of the GPU."),
    "measure": Label("What was measured.", _DIAGNOSTIC),
    "memory": Label("Kind of memory: dram or sram."),
    "mig_uuid": Label("UUID of a MIG device.", _MIG),
    "model": Label("Model of the device; ends in (simulated) if the device is."),
    "mountpoint": Label("Where a file system is mounted."),
    "neuron": Label("Number of the device in /dev/neuron<neuron>.", ("vitald_neuron_",)),
    "neuron_driver": Label("Version of the Neuron driver."),
    "outcome": Label(
        "How a diagnostic or a checkpoint ended.", (*_DIAGNOSTIC, "vitald_job_checkpoints")
    ),
    "package": Label("Number of a processor package."),
    "part": Label("Part of a GPU that waits for a repair: channel or tpc.", ("vitald_gpu_",)),
    "pci_bus_id": Label("PCI address; empty for what is not a PCI device."),
    "pipe": Label("Arithmetic units of the GPU: fp64, fp32, fp16 or hmma."),
    "port": Label("Number of a port of the adapter.", _NIC),
    "profile": Label("Profile of a MIG instance.", _MIG),
    "reading": Label("Name of a reading."),
    "reason": Label("Why clocks are lowered, or packets of jobs dropped."),
    "repair": Label("What is to be done to the node: reboot or replace."),
    "result": Label("Whether a write succeeded: written or failed.", ("vitald_publish_",)),
    "role": Label("Role of a PCI function: gpu, fabric, network, virtual, port.", ("vitald_pci_",)),
    "sensor": Label("Name or number of a sensor."),
    "serial": Label("Serial number of the device."),
    "severity": Label("Severity of PCIe errors: correctable, nonfatal or fatal."),
    "simulated": Label("true for a drill, or what is not real; else false."),
    "sink": Label("Where vitald publish writes.", ("vitald_publish_",)),
    "source": Label("Source of vitald, such as nvml."),
    "spare": Label("How many spare rows are left."),
    "state": Label(
        "State of a device or a unit, in the kernel's or systemd's word; what a job spends time on."
    ),
    "status": Label(
        "healthy, degraded, unhealthy or unknown.",
        ("vitald_status", "vitald_component_status", "vitald_components"),
    ),
    "step": Label("What happened after a fault: detected, drained, ...", ("vitald_incident_",)),
    "test": Label("Name of a test of a diagnostic.", _DIAGNOSTIC),
    "test_status": Label("Result of a test.", _DIAGNOSTIC),
    "tier": Label("Where a checkpoint is written: memory, local or global.", ("vitald_job_",)),
    "tray_index": Label("Number of the tray in the chassis."),
    "trust": Label("Who wrote the line of an event.", ("vitald_events",)),
    "type": Label("Sort of error, or of what an error led to."),
    "unit": Label("Name of a systemd unit."),
    "uuid": Label("The driver's UUID of the device."),
    "vbios": Label("Version of the VBIOS."),
    "software": Label("Software or firmware with a minimum version.", ("vitald_software_",)),
    "software_version": Label("Its version.", ("vitald_software_",)),
    "minimum": Label("Its minimum version.", ("vitald_software_",)),
    "version": Label("Version of vitald.", ("vitald_build_info",)),
    "when": Label("When the action is due: now, after_job, maintenance.", _EVENTS),
}

FORMER_LABELS = (
    FormerLabel(
        "kind",
        "component_kind",
        (
            *("vitald_component_status", "vitald_components", "vitald_coverage_ratio"),
            *("vitald_not_observable", "vitald_pci_"),
        ),
    ),
    FormerLabel("kind", "component_kind", ("vitald_devices",), "gpus, neuron, efa, nics, nvme"),
    FormerLabel("kind", "adapter_kind", _NIC),
    FormerLabel("device", "component", ("vitald_device_lemon_score",)),
    FormerLabel("part", "role", ("vitald_pci_",)),
    FormerLabel("driver", "driver_version", ("vitald_gpu_info",)),
    FormerLabel("profile", "catalog_profile", ("vitald_build_info",)),
    FormerLabel("action", "repair", ("vitald_recovery_requested",)),
    FormerLabel("name", "chip_name", ("vitald_hwmon_",)),
    FormerLabel("name", "measure", ("vitald_diagnostic_measure",)),
    FormerLabel("gpu", "gpu_index", ("vitald_diagnostic_test_status",)),
    FormerLabel("status", "test_status", ("vitald_diagnostic_test_status",)),
)


def find_former_label(family: str, name: str) -> FormerLabel | None:
    """The entry of a label that is deprecated in this family."""
    return next(
        (
            former
            for former in FORMER_LABELS
            if former.name == name and family.startswith(former.families)
        ),
        None,
    )


def find_families(name: str) -> tuple[str, ...]:
    """The beginnings of the names of the families that have a label with its own meaning."""
    return LABELS[name].families if name in LABELS else ()
