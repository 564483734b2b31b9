"""
Counts the devices of this node by kind, and learns how many there should be.

A count is reported after three reads in a row found it: when a driver is reloaded, its devices are
gone for a moment. One that was the same at several healthy boots in a row, or that a person has
confirmed, is the expected one: fewer devices are a fault from then on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from vitald.collectors.raw_readings import RawReadings
from vitald.model.words import ComponentKind
from vitald.small_files import describe_error, list_names, read_text
from vitald.topology.pci_inventory import PciInventory

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedCount:
    """What is remembered of one kind; stored by field names. `rival`: another count that healthy
    boots had since, and `rivals`: how many in a row.
    """

    count: int
    boots: int = 0  # healthy boots in a row that had it
    boot: str = ""  # the last healthy boot that was counted
    rival: int = -1
    rivals: int = 0
    by: str = ""  # who confirmed it
    reason: str = ""
    at: float = 0.0  # when it was confirmed (Unix time)

    def is_confirmed(self, boots_to_confirm: int) -> bool:
        return bool(self.by) or 0 < boots_to_confirm <= self.boots


def learn_count(
    before: LearnedCount | None, count: int, boot: str, boots_to_confirm: int
) -> LearnedCount:
    """What is remembered after one more healthy boot, which had this count.

    A higher count is learned as the first one was. A lower one is too, as long as nothing was
    confirmed; after that it is a fault, until a person confirms it.
    """
    if before is None:
        return LearnedCount(count=count, boots=1, boot=boot)
    if count == before.count:
        return replace(before, boots=before.boots + 1, boot=boot, rival=-1, rivals=0)
    confirmed = before.is_confirmed(boots_to_confirm)
    if count < before.count and confirmed:
        return replace(before, boot=boot, rival=-1, rivals=0)
    rivals = before.rivals + 1 if count == before.rival else 1
    if rivals >= boots_to_confirm or (count > before.count and not confirmed):
        return LearnedCount(count=count, boots=rivals, boot=boot)
    return replace(
        before, boots=before.boots if confirmed else 0, boot=boot, rival=count, rivals=rivals
    )


def parse_learned(stored: object) -> LearnedCount | None:
    """Without fields of another type: another version may have written it. None if there is no
    count.
    """
    if not isinstance(stored, dict) or not isinstance(stored.get("count"), int):
        return None
    template = LearnedCount(count=0)
    return LearnedCount(
        **{
            name: stored[name]
            for name in LearnedCount.__slots__
            if isinstance(stored.get(name), type(getattr(template, name)))
        }
    )
