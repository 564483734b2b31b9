"""
Counts the devices of this node by kind.

A count is reported after three reads in a row found it: when a driver is reloaded, its devices are
gone for a moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from vitald.collectors.pci.inventory import PciInventory
from vitald.collectors.small_files import RawReadings, describe_error, list_names, read_text
from vitald.model import ComponentKind

_READS_TO_SETTLE = 3
# Network volumes are attached and detached while a node works. The models of AWS, Azure and Google.
_VOLUME_MODELS = ("Amazon Elastic Block Store", "MSFT NVMe Accelerator", "nvme_card-pd")


class DeviceCounter:
    """`rdma`: PCI functions of the RDMA adapters that were counted last; None before that."""

    def __init__(self, sysfs: Path, pci: PciInventory) -> None:
        self.rdma: frozenset[str] | None = None
        self._sysfs = sysfs
        self._pci = pci
        # By kind: the last count, and how many reads in a row found it.
        self._counted: dict[str, tuple[int, int]] = {}

    def add_counts(self, raw: RawReadings, remembered_rdma: Iterable[str]) -> None:
        """Scans PCI, and adds the counts that are settled. `remembered_rdma`: functions that had an
        RDMA device before.
        """
        self._pci.scan_bus()
        for kind, count in self._count_devices(raw, remembered_rdma).items():
            before, times = self._counted.get(kind, (count, 0))
            times = times + 1 if count == before else 1
            self._counted[kind] = count, times
            if times < _READS_TO_SETTLE:
                raw.missing[kind] = f"{count} so far ({times} of {_READS_TO_SETTLE} equal readings)"
            else:
                raw.values[kind] = float(count)

    def has_counted(self, kind: str) -> bool:
        return kind in self._counted

    def get_last_count(self, kind: str) -> int:
        """The last count, settled or not; 0 if there is none."""
        return self._counted.get(kind, (0, 0))[0]

    def _count_devices(self, raw: RawReadings, remembered_rdma: Iterable[str]) -> dict[str, int]:
        """The devices present now, of each kind that can be counted."""
        counts: dict[str, int] = {}
        if self._pci.error:
            raw.missing |= dict.fromkeys(("gpus", "neuron", "efa", "nics"), self._pci.error)
        else:
            devices = self._pci.devices.values()
            counts["gpus"] = sum(device.kind is ComponentKind.GPU for device in devices)
            counts["neuron"] = sum(device.kind is ComponentKind.NEURON for device in devices)
            counts["efa"] = sum(device.is_efa for device in devices)
        try:
            if "nics" not in raw.missing:
                counts["nics"] = self._count_adapters(remembered_rdma)
        except OSError as error:
            raw.missing["nics"] = f"{error.filename}: {describe_error(error)}"
        try:
            counts["nvme"] = self._count_drives()
        except OSError as error:
            raw.missing["nvme"] = f"{error.filename}: {describe_error(error)}"
        return counts

    def _count_adapters(self, remembered_rdma: Iterable[str]) -> int:
        """PCI functions that have an RDMA device, or had one: it may have been moved to a
        container's network namespace. Without virtual functions, which are created and removed by
        command.
        """
        root = self._sysfs / "class/infiniband"
        present = {(root / name / "device").resolve().name for name in list_names(root)}
        self.rdma = frozenset(
            address for address in present.union(remembered_rdma) if self._is_adapter(address)
        )
        return len(self.rdma)

    def _is_adapter(self, address: str) -> bool:
        device = self._pci.devices.get(address)
        if device is None or device.driver == "efa":
            return False
        return not (self._sysfs / "bus/pci/devices" / address / "physfn").is_symlink()

    def _count_drives(self) -> int:
        root = self._sysfs / "class/nvme"
        return sum(
            read_text(root / name / "transport") == "pcie"
            and not read_text(root / name / "model").startswith(_VOLUME_MODELS)
            for name in list_names(root)
        )
