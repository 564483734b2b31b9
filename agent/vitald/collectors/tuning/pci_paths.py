"""
The way between accelerators and adapters over PCI: what the IOMMU does for them, and whether PCIe
switches above them redirect their traffic to the processor (ACS).

The kernel shows a function's extended configuration space, where ACS is, to root only. For a daemon
that is not root, root's sensor reader gives the registers.

Source: PCI Express Base Specification, ACS; Linux include/uapi/linux/pci_regs.h (PCI_ACS_RR,
PCI_ACS_CR); Documentation/ABI/testing/sysfs-kernel-iommu_groups.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from vitald.collectors.small_files import RawReadings, describe_error, read_attribute
from vitald.model.component import PCI_ADDRESS

_EXTENDED, _CONFIG_SIZE = 0x100, 4096
_ACS, _ACS_CONTROL = 0x000D, 6
_REDIRECTS = 0x0004 | 0x0008  # of peer-to-peer requests, and of their completions
_MAX_CAPABILITIES = (_CONFIG_SIZE - _EXTENDED) // 8
_MODES = {"identity": "passthrough", "DMA": "translated", "DMA-FQ": "translated"}
_MAX_LISTED = 16
_ROOT_ONLY = "the kernel shows it to root only: enable vitald-sensors.timer"


class NotShown(Exception):
    """The kernel does not show the extended configuration space."""


def read_iommu(raw: RawReadings, sysfs: Path, addresses: Iterable[str]) -> None:
    """What the IOMMU does for these functions, as a comma-separated text."""
    modes = set()
    for address in addresses:
        group = sysfs / "bus/pci/devices" / address / "iommu_group"
        try:
            kind = read_attribute(group / "type") if group.exists() else ""
        except OSError as error:
            raw.missing["iommu_mode"] = f"{address}: {describe_error(error)}"
            return
        modes.add(_MODES.get(kind, "unmanaged") if kind else "off")
    if modes:
        raw.values["iommu_mode"] = ",".join(sorted(modes))
    else:
        raw.missing["iommu_mode"] = "no accelerator and no adapter here"


def read_acs(
    raw: RawReadings,
    sysfs: Path,
    accelerators: Iterable[str],
    adapters: Iterable[str],
    from_root: Mapping[str, int],
) -> None:
    """The switch ports between accelerators and adapters that redirect. `from_root`: the control
    registers that root read, by address.
    """
    devices = sysfs / "bus/pci/devices"
    ports = find_switch_ports(
        [_list_addresses(devices / address) for address in accelerators],
        [_list_addresses(devices / address) for address in adapters],
    )
    redirecting = []
    for port in ports:
        try:
            control = _read_control(devices / port / "config", from_root.get(port))
        except NotShown:
            raw.missing["acs_redirecting_ports"] = _ROOT_ONLY
            return
        except OSError as error:
            raw.missing["acs_redirecting_ports"] = f"{port}: {describe_error(error)}"
            return
        if control & _REDIRECTS:
            redirecting.append(port)
    if not ports:
        raw.missing["acs_redirecting_ports"] = "no PCIe switch has an accelerator and an adapter"
        return
    raw.values["acs_redirecting_ports"] = float(len(redirecting))
    raw.values["acs_ports"] = ", ".join(redirecting[:_MAX_LISTED])


def _read_control(path: Path, from_root: int | None) -> int:
    """Raises OSError and NotShown."""
    try:
        return find_acs_control(read_config(path))
    except NotShown:
        if from_root is None:
            raise
        return from_root


def find_switch_ports(
    accelerators: Iterable[Sequence[str]], adapters: Sequence[Sequence[str]]
) -> list[str]:
    """Downstream ports of the switches that an accelerator shares with an adapter.

    Each device is given by the addresses from its root port down to itself. Devices whose common
    part has a root port and a switch's upstream port meet in that switch.
    """
    ports = set()
    for one in accelerators:
        for other in adapters:
            common = _count_common(one, other)
            if common < 2:
                continue
            ports |= {chain[common] for chain in (one, other) if common < len(chain) - 1}
    return sorted(ports)


def _count_common(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = list(zip(one, other))
    return next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))


def find_acs_control(config: bytes) -> int:
    """The ACS control register; 0 if the function has none. Raises NotShown."""
    if len(config) <= _EXTENDED:
        raise NotShown
    place = _EXTENDED
    for _ in range(_MAX_CAPABILITIES):
        header = int.from_bytes(config[place : place + 4], "little")
        if header & 0xFFFF == _ACS:
            return int.from_bytes(config[place + _ACS_CONTROL : place + _ACS_CONTROL + 2], "little")
        place = header >> 20
        if place < _EXTENDED:
            return 0
    return 0


def _list_addresses(device: Path) -> list[str]:
    """The addresses in /sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0."""
    return [part for part in os.path.realpath(device).split("/") if PCI_ADDRESS.fullmatch(part)]


def read_config(path: Path) -> bytes:
    """A function's configuration space, as far as the kernel shows it. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, _CONFIG_SIZE, 0)
    finally:
        os.close(fd)
