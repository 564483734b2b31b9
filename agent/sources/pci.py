"""
What is on PCI: the accelerators, switches and adapters that this node has, from sysfs.

A snapshot taken at start; a device is looked up again when a kernel line names it, because one that has fallen off the
bus is gone from sysfs too. Reading these attributes does not touch the device.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent.model import Component, ComponentKind

_NVIDIA, _AMAZON = 0x10DE, 0x1D0F
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NEURON_DEVICES = range(0x7064, 0x7465)  # Inferentia, Trainium 1 to 3 (aws-neuron-driver PCI table)


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    """`pci_class` is the 24-bit class code, e.g. 0x030200 for a 3D controller."""

    address: str
    vendor: int
    device: int
    pci_class: int
    driver: str | None
    port: str | None = None  # the bridge right above it

    @property
    def kind(self) -> ComponentKind:
        base = self.pci_class >> 16
        if self.vendor == _NVIDIA and base == 0x03:
            return ComponentKind.GPU
        if self.vendor == _NVIDIA and self.pci_class >> 8 == 0x0680:
            return ComponentKind.NVSWITCH
        if self.vendor == _AMAZON and self.device in _NEURON_DEVICES and base in (0x08, 0x12):
            return ComponentKind.NEURON
        if base == 0x02:
            return ComponentKind.NIC
        return ComponentKind.PCI


class PciInventory:
    """The devices by address. A name that is no PCI address is never looked up: it comes from a log line."""

    def __init__(self, sysfs: Path) -> None:
        self._root = sysfs / "bus" / "pci" / "devices"
        self._slots = sysfs / "bus" / "pci" / "slots"
        self.devices: dict[str, PciDevice] = {}
        self.error = ""  # why the bus could not be read when that was last tried; what was seen before stands
        self.slots: dict[str, str] = {}  # physical slots by address without function, where the firmware names them

    def read(self) -> None:
        """Walk sysfs. A node without a PCI bus has no devices; that is no error. A bus that cannot be read is one, and shows nothing."""
        try:
            found = [_device(entry) for entry in sorted(self._root.iterdir())]
        except FileNotFoundError:
            found = []
        except OSError as error:
            self.error = f"{error.filename or self._root}: {error.strerror}"
            return
        self.error = ""
        self.devices = {device.address: device for device in found if device is not None}
        self.slots = dict(_slots(self._slots))

    def present(self, address: str) -> bool:
        """Whether the device is on the bus at this moment. `address` is normalised, so it cannot leave the folder."""
        return (self._root / address).exists()

    def port(self, address: str) -> str | None:
        """The port that a device sits behind, as it was when the bus was last read: errors of its link are reported there."""
        device = self.devices.get(address)
        return device.port if device is not None else None

    def component(self, address: str, kind: ComponentKind) -> Component:
        """The component at an address: what PCI says it is, else what the line's grammar implies."""
        device = self.devices.get(address)
        if kind is ComponentKind.PCI and device is not None:
            kind = device.kind
        return Component(kind, address)

    def watched(self) -> list[PciDevice]:
        """Accelerators, switches and adapters: what a verdict is about."""
        return [device for device in self.devices.values() if device.kind is not ComponentKind.PCI]


def machine_type(sysfs: Path) -> str:
    """What the firmware calls this machine: in a cloud often the instance type. Empty where it says nothing."""
    try:
        return (sysfs / "class/dmi/id/product_name").read_text().strip()
    except OSError:
        return ""


def _slots(root: Path) -> Iterator[tuple[str, str]]:
    try:
        for slot in root.iterdir():
            yield (slot / "address").read_text().strip(), slot.name
    except OSError:
        return  # no firmware names, or a slot that has just gone


def _device(path: Path) -> PciDevice | None:
    try:
        numbers = [int((path / name).read_text(), 16) for name in ("vendor", "device", "class")]
    except (FileNotFoundError, ValueError):
        return None  # went away between the listing and the look
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.ENXIO):
            return None  # the same, a moment later
        raise
    driver = path / "driver"
    return PciDevice(
        address=path.name,
        vendor=numbers[0],
        device=numbers[1],
        pci_class=numbers[2],
        driver=driver.resolve().name if driver.exists() else None,
        port=above if _ADDRESS.fullmatch(above := path.resolve().parent.name) else None,
    )
