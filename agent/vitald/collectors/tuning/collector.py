"""
How the node is set up, where that costs its jobs performance or waits for a reboot.

Its one device is the node. Nothing here is a fault of hardware: what differs from advice is shown,
and may wait for maintenance.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from vitald.collectors.collector import Found, PolledDevice
from vitald.collectors.definition import CollectorContext, CollectorDefinition
from vitald.collectors.pci.inventory import PciDevice, PciInventory
from vitald.collectors.root_file import RELATIVE_PATH, RootFile, RootFileError, read_root_file
from vitald.collectors.small_files import Files, RawReadings, describe_error, list_names, read_text
from vitald.collectors.tuning.memory_modules import read_modules
from vitald.collectors.tuning.memory_speed import read_speeds
from vitald.collectors.tuning.pci_paths import read_acs, read_iommu
from vitald.collectors.tuning.processors import read_governor, read_power_limit
from vitald.collectors.tuning.readings import READINGS
from vitald.collectors.tuning.settings import SECTION
from vitald.collectors.tuning.software import read_gpudirect, read_kernels, read_pending_reboot
from vitald.model import NODE, Component, ComponentKind, Readings

NAME = "tuning"
_NOT_READ = "only root can read it: enable vitald-sensors.timer"
_NO_PATH = "no NVIDIA GPU beside an InfiniBand or RoCE adapter"


class Tuning:
    """The node, with how it is set up. `root`: the folder that has /boot, /run and /var."""

    name = NAME

    def __init__(
        self,
        sysfs: Path,
        procfs: Path,
        inventory: PciInventory,
        root: Path,
        machine: str = "",
    ) -> None:
        """`inventory` is scanned at each poll. `machine`: the processor's architecture, as uname
        has it; by default, this machine's.
        """
        self.memory: dict[str, Any] = {}
        self._sysfs = sysfs
        self._procfs = procfs
        self._inventory = inventory
        self._root = root
        self._machine = machine or os.uname().machine
        self._files = Files()

    def find_devices(self) -> Found:
        return Found([PolledDevice(NODE, self._read_node)])

    def combine_readings(
        self,
        read: Mapping[Component, Readings],  # noqa: ARG002
        found: Found,  # noqa: ARG002
    ) -> Iterable[Readings]:
        """Nothing: the node is the only device."""
        return ()

    def _read_node(self) -> RawReadings:
        raw = RawReadings()
        root = self._root
        from_root = self._read_root_file(raw)
        parts: dict[str, Callable[[], None]] = {
            "cpu_governor": lambda: read_governor(raw, self._sysfs),
            "cpu_power_limit_ratio": lambda: read_power_limit(raw, self._sysfs, self._files),
            "memory_modules": lambda: read_modules(raw, self._sysfs, self._files),
            "newer_kernel": lambda: read_kernels(raw, self._procfs, root / "boot"),
            "reboot_pending": lambda: read_pending_reboot(raw, root / "run", root / "var/lib/dpkg"),
            "has_accelerator": lambda: self._read_paths(raw, from_root),
        }
        for name, read in parts.items():
            try:
                read()
            except OSError as error:  # the other parts are read all the same
                raw.missing[name] = f"{error.filename or name}: {describe_error(error)}"
        return raw

    def _read_root_file(self, raw: RawReadings) -> RootFile | None:
        """What root read, however old: it changes with a reboot, or less."""
        try:
            from_root = read_root_file(self._root / RELATIVE_PATH)
        except RootFileError as error:
            raw.missing["memory_modules_listed"] = str(error)
            return None
        if from_root is None:
            raw.missing["memory_modules_listed"] = _NOT_READ
            return None
        read_speeds(raw, from_root.memory_modules)
        return from_root

    def _read_paths(self, raw: RawReadings, from_root: RootFile | None) -> None:
        self._inventory.scan_bus()
        if self._inventory.error:
            unread = ("has_accelerator", "iommu_mode", "acs_redirecting_ports", "gpudirect_rdma")
            raw.missing |= dict.fromkeys(unread, self._inventory.error)
            return
        devices = self._inventory.devices
        accelerators = [device for device in devices.values() if _is_accelerator(device)]
        adapters = self._list_adapters()
        raw.values["has_accelerator"] = float(bool(accelerators))
        addresses = [device.address for device in accelerators]
        read_iommu(raw, self._sysfs, [*addresses, *adapters])
        registers = from_root.acs if from_root is not None else {}
        read_acs(raw, self._sysfs, addresses, adapters, registers)
        self._add_iommu_judged(raw)
        has_gpu = any(device.kind is ComponentKind.GPU for device in accelerators)
        # EFA adapters read GPU memory by their own module.
        if has_gpu and any(devices[address].driver != "efa" for address in adapters):
            read_gpudirect(raw, self._sysfs, self._procfs)
        else:
            raw.missing["gpudirect_rdma"] = _NO_PATH

    def _list_adapters(self) -> list[str]:
        """PCI addresses of the RDMA adapters."""
        root = self._sysfs / "class/infiniband"
        found = {os.path.realpath(root / name / "device") for name in list_names(root)}
        addresses = {path.rpartition("/")[2] for path in found}
        return sorted(addresses.intersection(self._inventory.devices))

    def _add_iommu_judged(self, raw: RawReadings) -> None:
        """Translation costs bandwidth on x86. In a virtual machine, it is the host's matter; on
        Grace, GPU and processor share the translation.
        """
        if self._machine != "x86_64":
            raw.values["iommu_judged"] = 0.0
            return
        try:
            cpuinfo = read_text(self._procfs / "cpuinfo")
        except OSError as error:
            raw.missing["iommu_judged"] = describe_error(error)
            return
        raw.values["iommu_judged"] = float("hypervisor" not in cpuinfo.split())


def _is_accelerator(device: PciDevice) -> bool:
    """A GPU with NVIDIA's driver, or a Neuron device: not one that is passed to a guest."""
    if device.kind is ComponentKind.GPU:
        return device.driver == "nvidia"
    return device.kind is ComponentKind.NEURON


def _build_tuning(context: CollectorContext) -> Tuning:
    paths = context.paths
    # An inventory of its own, as it is scanned at other times than the others
    return Tuning(paths.sysfs, paths.procfs, PciInventory(paths.sysfs), paths.root)


COLLECTOR = CollectorDefinition(
    name=NAME,
    section=SECTION,
    catalog_kinds=(NAME,),
    readings=READINGS,
    build_collector=_build_tuning,
)
