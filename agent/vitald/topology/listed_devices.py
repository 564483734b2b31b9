"""
Memory controllers, disks, drives and network devices that this node has, or had earlier in this
boot.

They are few, and the kernel lists them: a line that names another device was not written about this
node. Devices that are gone stay listed, because lines about them follow. Reading the names does not
touch the devices: sysfs answers from memory.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from vitald.catalog.rules import DeviceListing
from vitald.small_files import list_names

_FOLDERS = {
    DeviceListing.MEMORY_CONTROLLERS: ("devices/system/edac/mc",),
    DeviceListing.DISKS: ("class/block",),
    DeviceListing.DRIVES: ("class/nvme",),
    DeviceListing.NETWORK_DEVICES: ("class/infiniband", "class/net"),
}
# These exist even if they are empty. Without them the devices are unknown.
_PARENT_FOLDERS = {
    DeviceListing.MEMORY_CONTROLLERS: "devices/system",
    DeviceListing.DISKS: "class/block",
    DeviceListing.DRIVES: "class",
    DeviceListing.NETWORK_DEVICES: "class",
}
# Others may exist unseen: a drive whose probe fails is gone before its name is read, and network
# devices may be in a namespace.
_COMPLETE_LISTINGS = frozenset({DeviceListing.MEMORY_CONTROLLERS, DeviceListing.DISKS})
_NAME = re.compile(r"\w[\w.\-]{0,63}")
_PART = re.compile(r"(?P<disk>.*(?:\dp|[a-z]))\d{1,3}")  # nvme0n1p2, sda2
_PATH = re.compile(r"(nvme\d{1,4})c\d{1,4}(n\d{1,4})")  # nvme0c1n1: one path of nvme0n1
_MAX_NAMES = 4096  # of each kind
_MOUNTS_MAX_AGE_S = 1.0


class ListedDevices:
    """Names of the node's devices, by kind."""

    def __init__(self, sysfs: Path, mounted: Callable[[], Collection[str]] = frozenset) -> None:
        """`mounted`: lists the disks that file systems were mounted from, whether they still exist
        or not. May raise OSError.
        """
        self._sysfs = sysfs
        self._mounted = mounted
        self._mounts: Collection[str] = ()
        self._mounts_at = -_MOUNTS_MAX_AGE_S
        self._seen: dict[DeviceListing, dict[str, None]] = {among: {} for among in DeviceListing}

    def read_names(self) -> None:
        """Add the names that sysfs lists now. A folder that cannot be read is skipped."""
        for among, folders in _FOLDERS.items():
            seen = self._seen[among]
            for folder in folders:
                with suppress(OSError):
                    seen.update(dict.fromkeys(list_names(self._sysfs / folder)))
            while len(seen) > _MAX_NAMES:
                del seen[next(iter(seen))]

    def has_device(self, among: DeviceListing, name: str) -> bool | None:
        """Whether the node has or had the device; None if unknown. `name` is text of a log line."""
        if not _NAME.fullmatch(name):
            return False
        if any(self._is_listed(among, spelling) for spelling in _list_spellings(among, name)):
            return True
        if among is DeviceListing.DISKS and name in self._get_mounted():
            return True
        return False if (self._sysfs / _PARENT_FOLDERS[among]).is_dir() else None

    def is_certainly_absent(self, among: DeviceListing, name: str) -> bool:
        """Whether this node has certainly not had such a device."""
        return among in _COMPLETE_LISTINGS and self.has_device(among, name) is False

    def _is_listed(self, among: DeviceListing, name: str) -> bool:
        if name in self._seen[among]:
            return True
        found = any(os.path.lexists(self._sysfs / folder / name) for folder in _FOLDERS[among])
        if found:
            self._seen[among][name] = None
        return found

    def _get_mounted(self) -> Collection[str]:
        """The mounted disks, cached: such lines may come in bursts."""
        if time.monotonic() - self._mounts_at >= _MOUNTS_MAX_AGE_S:
            with suppress(OSError):
                self._mounts = self._mounted()
            self._mounts_at = time.monotonic()
        return self._mounts


def _list_spellings(among: DeviceListing, name: str) -> list[str]:
    """How sysfs may spell the name. For a partition its disk counts too, because the kernel may
    have read the partition table again since.
    """
    if among is DeviceListing.MEMORY_CONTROLLERS:
        return [name.lower()]
    if among is not DeviceListing.DISKS:
        return [name]
    whole = _PATH.sub(r"\1\2", name)
    part = _PART.fullmatch(whole)
    return [
        name,
        whole,
        *([part["disk"].removesuffix("p"), part["disk"]] if part is not None else []),
    ]
