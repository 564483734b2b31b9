"""A folder that stands for /sys: what the kernel shows of machines that are not at hand.

`Tree` writes files as the kernel's drivers lay them out; names and formats are the drivers'. Whole
machines are put together by the tests that need them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

AMAZON, NVIDIA, MELLANOX = 0x1D0F, 0x10DE, 0x15B3
_CORRECTABLE = [
    "RxErr",
    "BadTLP",
    "BadDLLP",
    "Rollover",
    "Timeout",
    "NonFatalErr",
    "CorrIntErr",
    "HeaderOF",
]
_UNCORRECTABLE = [
    "Undefined",
    "DLP",
    "SDES",
    "TLP",
    "FCP",
    "CmpltTO",
    "CmpltAbrt",
    "UnxCmplt",
    "RxOF",
    "MalfTLP",
    "ECRC",
    "UnsupReq",
    "ACSViol",
    "UncorrIntErr",
    "BlockedTLP",
    "AtomicOpBlocked",
    "TLPBlockedErr",
    "PoisonTLPBlocked",
]


class Tree:
    """A sysfs of our own. Paths are relative to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("bus/pci/devices", "class", "module", "devices"):
            (root / folder).mkdir(parents=True, exist_ok=True)

    def write(self, path: str | Path, content: object) -> Path:
        """A whole file at once, as a reader of the kernel's would find it. Text gets its
        newline.
        """
        file = f"{self.root}/{path}"
        folder, _, name = file.rpartition("/")
        data = content if isinstance(content, bytes) else f"{content}\n".encode()
        spare = f"{folder}/.{name}.new"
        # Not by pathlib: a machine has thousands of these, and every test lays out its own.
        try:
            fd = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
            fd = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
        os.rename(spare, file)  # noqa: PTH104
        return Path(file)

    def link(self, path: str | Path, target: str | Path) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.symlink_to(os.path.relpath(self.root / target, file.parent))

    def remove(self, path: str | Path) -> None:
        file = self.root / path
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        else:
            file.unlink()

    def hang(self, path: str | Path) -> None:
        """From now on a read of this file does not come back: it is a FIFO that nobody
        writes to.
        """
        file = self.root / path
        file.unlink(missing_ok=True)
        os.mkfifo(file)

    def module(self, name: str, version: str = "") -> None:
        self.write(f"module/{name}/initstate", "live")
        if version:
            self.write(f"module/{name}/version", version)

    def machine(self, product: str) -> None:
        """What the firmware says: on EC2 the instance type."""
        self.write("devices/virtual/dmi/id/product_name", product)
        self.write("devices/virtual/dmi/id/sys_vendor", "Amazon EC2")
        self.link("class/dmi/id", "devices/virtual/dmi/id")

    def pci(
        self,
        address: str,
        vendor: int,
        device: int,
        pci_class: int,
        driver: str = "",
        *,
        speed: str = "16.0 GT/s PCIe",
        width: int = 16,
    ) -> str:
        """A PCI function; its folder is returned."""
        folder = f"devices/pci{address[:7]}/{address}"
        plain = {
            "vendor": f"{vendor:#06x}",
            "device": f"{device:#06x}",
            "class": f"{pci_class:#08x}",
            "current_link_speed": speed,
            "max_link_speed": speed,
            "current_link_width": width,
            "max_link_width": width,
            "numa_node": 0,
            "enable": 1,
        }
        for name, value in plain.items():
            self.write(f"{folder}/{name}", value)
        self.write(
            f"{folder}/config",
            (vendor.to_bytes(2, "little") + device.to_bytes(2, "little")).ljust(64, b"\0"),
        )
        for severity, names, total in (
            ("correctable", _CORRECTABLE, "COR"),
            ("nonfatal", _UNCORRECTABLE, "NONFATAL"),
            ("fatal", _UNCORRECTABLE, "FATAL"),
        ):
            self.write(
                f"{folder}/aer_dev_{severity}",
                "\n".join([*(f"{name} 0" for name in names), f"TOTAL_ERR_{total} 0"]),
            )
        self.link(f"bus/pci/devices/{address}", folder)
        if driver:
            (self.root / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
            self.link(f"{folder}/driver", f"bus/pci/drivers/{driver}")
            self.link(f"bus/pci/drivers/{driver}/{address}", folder)
        return folder
