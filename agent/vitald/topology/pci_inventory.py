"""
Inventory of the PCI bus: accelerators, switches and adapters, from sysfs.

A snapshot that each poll takes again. Devices that left the bus are remembered, as kernel log lines
about them and the port above them come later. Reading these attributes does not touch the device.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from vitald.model.component import Component
from vitald.model.words import ComponentKind
from vitald.small_files import read_attribute

NVIDIA, AMAZON = 0x10DE, 0x1D0F
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# Inferentia, Trainium 1, Inferentia2, Trainium 2 and 3 (aws-neuron-driver PCI table). Their class
# differs: the ids alone tell.
_NEURON_DEVICES = {0x7064, 0x7065, 0x7066, 0x7067, 0x7164, 0x7264, 0x7364, 0x7564, 0x7565}
_EFA_DEVICES = range(0xEFA0, 0xEFB0)
_NAME = re.compile(r"\w[\w.\-]{0,31}")
# By kind of accelerator: its driver's name on PCI
_PCI_DRIVERS = {ComponentKind.GPU: "nvidia", ComponentKind.NEURON: "neuron-driver"}
# By kind of accelerator: the module of its driver, and all kinds that are that driver's
_NVIDIA_KINDS = (ComponentKind.GPU, ComponentKind.NVSWITCH)
_MODULES = {
    ComponentKind.GPU: ("nvidia", _NVIDIA_KINDS),
    ComponentKind.NVSWITCH: ("nvidia", _NVIDIA_KINDS),
    ComponentKind.NEURON: ("neuron", (ComponentKind.NEURON,)),
}
# Departed devices that are remembered; virtual functions may be created and removed all day.
_MAX_DEPARTED = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    """`pci_class` is the 24-bit class code, e.g. 0x030200 for a 3D controller."""

    address: str
    vendor: int
    device: int
    pci_class: int
    driver: str | None
    port: str | None = None  # the bridge right above it
    virtual: bool = False  # a virtual function of a device that this node has too

    @property
    def model(self) -> tuple[int, int]:
        return self.vendor, self.device

    @property
    def kind(self) -> ComponentKind:
        base = self.pci_class >> 16
        if self.vendor == NVIDIA and base == 0x03:
            return ComponentKind.GPU
        if self.vendor == NVIDIA and self.pci_class >> 8 == 0x0680:
            return ComponentKind.NVSWITCH
        if self.vendor == AMAZON and self.device in _NEURON_DEVICES:
            return ComponentKind.NEURON
        if base == 0x02:
            return ComponentKind.NIC
        return ComponentKind.PCI

    @property
    def is_efa(self) -> bool:
        return self.vendor == AMAZON and self.device in _EFA_DEVICES

    def is_for(self, driver: str) -> bool:
        """Whether the driver has the device, or should: no other one has it, such as vfio-pci for a
        virtual machine, and it is no virtual function, which comes and goes by command.
        """
        return self.driver in (None, driver) and not self.virtual


class PciInventory:
    """The devices by address. Names may come from log lines: one that is no valid name is not
    looked up.
    """

    def __init__(self, sysfs: Path) -> None:
        self._root = sysfs / "bus" / "pci" / "devices"
        self._modules = sysfs / "module"
        self._slots = sysfs / "bus" / "pci" / "slots"
        self._classes = [sysfs / "class" / name for name in ("infiniband", "net")]
        self.devices: dict[str, PciDevice] = {}
        self.departed: dict[str, PciDevice] = {}  # as they were in the last scan that had them
        self.error = ""  # why the last scan failed
        # Physical slots by address without function, if the firmware names them.
        self.slots: dict[str, str] = {}

    def scan_bus(self) -> None:
        """Reads sysfs. A node without a PCI bus has no devices. If the bus cannot be read, `error`
        is set and the last snapshot stays.
        """
        try:
            found = [
                _read_device(entry.path, entry.name)
                for entry in sorted(os.scandir(self._root), key=lambda entry: entry.name)
            ]
        except FileNotFoundError:
            found = []
        except OSError as error:
            self.error = f"{error.filename or self._root}: {error.strerror}"
            return
        self.error = ""
        devices = {device.address: device for device in found if device is not None}
        departed = {
            address: device
            for address, device in (self.departed | self.devices).items()
            if address not in devices
        }
        self.departed = dict(list(departed.items())[-_MAX_DEPARTED:])
        self.devices = devices
        self.slots = dict(_read_slots(self._slots))

    def is_present(self, address: str) -> bool:
        """Whether the device is on the bus at this moment. `address` is normalised, so it cannot
        leave the folder.
        """
        return os.path.exists(f"{self._root}/{address}")  # noqa: PTH110

    def get_folder(self, address: str) -> Path:
        """The function's folder in sysfs."""
        return self._root / address

    def find_slot(self, address: str) -> str:
        """The physical slot of a function, as the firmware names it; empty if it does not."""
        return self.slots.get(address.rpartition(".")[0], "")

    def find_port(self, address: str) -> str | None:
        """The port above a device, also of one that departed: errors of its link are reported
        there.
        """
        device = self.find_device(address)
        return device.port if device is not None else None

    def find_device(self, address: str) -> PciDevice | None:
        """The device at an address, or the one that was there last."""
        return self.devices.get(address) or self.departed.get(address)

    def find_address(self, name: str) -> str | None:
        """The PCI address of an RDMA device or interface. The name may come from a log line."""
        if not _NAME.fullmatch(name):
            return None
        for folder in self._classes:
            address = os.path.realpath(folder / name / "device").rpartition("/")[2]
            if address in self.devices:
                return address
        return None

    def has_or_had(self, address: str) -> bool | None:
        """Whether the node has or had the device; None before the first successful read."""
        if self.find_device(address) is not None or self.is_present(address):
            return True
        return False if (self.devices or self.departed) and not self.error else None

    def has_never_had(self, kind: ComponentKind) -> bool:
        """Whether PCI shows no accelerator that the driver of this kind is for, has shown none
        since the start, and the driver is not loaded: a line about one is not of this node. False
        for other kinds, and before the first successful read.
        """
        if self.error or not self.devices or kind not in _MODULES:
            return False
        driver, kinds = _MODULES[kind]
        shown = chain(self.devices.values(), self.departed.values())
        if any(device.kind in kinds for device in shown):
            return False
        return not (self._modules / driver).exists()

    def get_component(self, address: str, kind: ComponentKind) -> Component:
        """The component at an address: what PCI says it is, else what the line's grammar
        implies.
        """
        device = self.find_device(address)
        if kind is ComponentKind.PCI and device is not None:
            kind = device.kind
        return Component(kind, address)

    def list_siblings(self, component: Component) -> list[str] | None:
        """The addresses of the other present devices of its kind: of its model if that is known,
        else, of adapters, those with an RDMA device. None before the first successful read.
        """
        if self.error or not (self.devices or self.departed):
            return None
        own = self.find_device(component.id)
        return [
            device.address
            for device in self.devices.values()
            if device.kind is component.kind
            and device.address != component.id
            and not device.virtual
            and (self._has_rdma(device) if own is None else device.model == own.model)
        ]

    def _has_rdma(self, device: PciDevice) -> bool:
        """Whether it is no adapter, or one with an RDMA device."""
        folder = self.get_folder(device.address)
        return device.kind is not ComponentKind.NIC or (folder / "infiniband").exists()

    def list_accelerators(self, kind: ComponentKind) -> list[PciDevice]:
        """The GPUs or Neuron devices that their driver has, or should have."""
        driver = _PCI_DRIVERS[kind]
        return [
            device
            for device in self.devices.values()
            if device.kind is kind and device.is_for(driver)
        ]

    def list_watched(self) -> list[PciDevice]:
        """The accelerators, switches and adapters: the devices that can have findings."""
        return [device for device in self.devices.values() if device.kind is not ComponentKind.PCI]


def read_machine_type(sysfs: Path) -> str:
    """The product name in the firmware, often the cloud's instance type. Empty if there is none."""
    try:
        return (sysfs / "class/dmi/id/product_name").read_text().strip()
    except OSError:
        return ""


def read_machine_identity(sysfs: Path) -> str:
    """The machine type and, where the firmware has it, a tag of its own: on EC2 the instance id. A
    disk, or a copy of it, may come from another machine.
    """
    try:
        tag = (sysfs / "class/dmi/id/board_asset_tag").read_text().strip()
    except OSError:
        tag = ""
    return f"{read_machine_type(sysfs)} {tag}".strip()


def read_machine_id() -> str:
    """An identifier of this machine that never changes. Images may share a host name."""
    try:
        return Path("/etc/machine-id").read_text().strip() or socket.gethostname()
    except OSError:
        return socket.gethostname()


def _read_slots(root: Path) -> Iterator[tuple[str, str]]:
    try:
        for slot in root.iterdir():
            yield (slot / "address").read_text().strip(), slot.name
    except OSError:
        return  # no firmware names, or a slot that has just gone


def _read_device(path: str, address: str) -> PciDevice | None:
    """With text paths and few system calls, as each scan reads hundreds of functions."""
    try:
        vendor, device, pci_class = (
            _read_hex(f"{path}/{name}") for name in ("vendor", "device", "class")
        )
        driver, location = _read_link(f"{path}/driver"), _read_link(path)
    except (FileNotFoundError, ValueError):
        return None  # removed since the bus was listed
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.ENXIO):
            return None  # the same, a moment later
        raise
    # Of ../../../devices/pci0000:80/0000:80:01.0/0000:81:00.0
    above = location.split("/")[-2:][0]
    return PciDevice(
        address=address,
        vendor=vendor,
        device=device,
        pci_class=pci_class,
        driver=driver.rpartition("/")[2] or None,
        port=above if _ADDRESS.fullmatch(above) else None,
        virtual=bool(_read_link(f"{path}/physfn")),
    )


def _read_hex(path: str) -> int:
    try:
        return int(read_attribute(path), 16)
    except OSError as error:
        error.filename = path
        raise


def _read_link(path: str) -> str:
    """The target of a symbolic link; empty if there is no link."""
    try:
        return os.readlink(path)  # noqa: PTH115  # a Path for each costs as much as the rest
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINVAL):
            return ""
        raise
