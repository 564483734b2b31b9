"""The PCI bus of a simulated node, as sysfs shows it: GPUs, NVSwitches and the ports above them."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

NVIDIA = 0x10DE

_GPU_BUSES = (0x19, 0x3B, 0x4C, 0x5D, 0x9B, 0xAB, 0xBB, 0xCB)
_SWITCH_BUS, _SWITCH_DEVICE = 0x85, 0x22A3
_BRIDGE_VENDOR, _BRIDGE_DEVICE = 0x1000, 0xC030
_GPU_CLASS, _SWITCH_CLASS, _BRIDGE_CLASS = 0x030200, 0x068000, 0x060400
_HEADER_BYTES = 64  # the part of the configuration space that every user may read


def list_gpu_addresses(count: int) -> list[str]:
    """PCI addresses such as `0000:19:00.0`; a further domain for every eight GPUs."""
    buses = len(_GPU_BUSES)
    return [f"{gpu // buses:04x}:{_GPU_BUSES[gpu % buses]:02x}:00.0" for gpu in range(count)]


def list_switch_addresses(count: int) -> list[str]:
    """PCI addresses of the NVSwitches, on successive buses."""
    return [f"0000:{_SWITCH_BUS + switch:02x}:00.0" for switch in range(count)]


class PciTree:
    """`devices/`, `bus/pci/devices`, `bus/pci/drivers` and `bus/pci/slots` below `sysfs`."""

    def __init__(self, sysfs: Path) -> None:
        """Starts without devices: what is in the folder is removed."""
        self._sysfs = sysfs
        self._bus = sysfs / "bus" / "pci"
        shutil.rmtree(sysfs, ignore_errors=True)

    def add_gpu(self, address: str, device: int) -> None:
        """A GPU below a port of its own, unless it is there. `device`: the PCI device id."""
        domain, bus = _split_address(address)
        port = self._add_port(f"{domain}:{bus - 1:02x}", 1)
        self._add_device(port / address, NVIDIA, device, _GPU_CLASS, "nvidia")

    def add_switch(self, address: str) -> None:
        """An NVSwitch; all of them are below one root complex."""
        domain, bus = _split_address(address)
        port = self._add_port(f"{domain}:{_SWITCH_BUS - 1:02x}", bus - _SWITCH_BUS + 1)
        self._add_device(port / address, NVIDIA, _SWITCH_DEVICE, _SWITCH_CLASS, "nvidia-nvswitch")

    def add_slot(self, number: int, address: str) -> None:
        """The physical slot that the device at `address` is in."""
        slot = self._bus / "slots" / str(number)
        slot.mkdir(parents=True)
        (slot / "address").write_text(f"{address.rpartition('.')[0]}\n")

    def remove_device(self, address: str) -> None:
        """The device is gone; the port above it stays."""
        link = self._bus / "devices" / address
        if link.is_symlink():
            folder = link.resolve()
            link.unlink()
            shutil.rmtree(folder)

    def _add_port(self, root: str, number: int) -> Path:
        path = self._sysfs / "devices" / f"pci{root}" / f"{root}:{number:02x}.0"
        self._add_device(path, _BRIDGE_VENDOR, _BRIDGE_DEVICE, _BRIDGE_CLASS, "pcieport")
        return path

    def _add_device(
        self, path: Path, vendor: int, device: int, pci_class: int, driver: str
    ) -> None:
        if path.exists():
            return
        path.mkdir(parents=True)
        (path / "vendor").write_text(f"0x{vendor:04x}\n")
        (path / "device").write_text(f"0x{device:04x}\n")
        (path / "class").write_text(f"0x{pci_class:06x}\n")
        header = struct.pack("<HH", vendor, device).ljust(_HEADER_BYTES, b"\0")
        (path / "config").write_bytes(header)
        drivers, devices = self._bus / "drivers" / driver, self._bus / "devices"
        drivers.mkdir(parents=True, exist_ok=True)
        devices.mkdir(parents=True, exist_ok=True)
        (path / "driver").symlink_to(os.path.relpath(drivers, path))
        (devices / path.name).symlink_to(os.path.relpath(path, devices))


def _split_address(address: str) -> tuple[str, int]:
    """Domain and bus."""
    domain, bus, _ = address.split(":")
    return domain, int(bus, 16)
