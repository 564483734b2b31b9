"""
Which memory controllers, disks, drives and network devices this node has, and had earlier in this
boot.

They are few, and the kernel lists them: a line that names none of them was not written about this
node, whatever it begins with. What has gone stays known, because lines about it come after it.
Names are looked up without touching the device: sysfs answers from memory.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from vitald.catalog.rules import DeviceListing
from vitald.collectors.small_files import names

_FOLDERS = {
    DeviceListing.MEMORY_CONTROLLERS: ("devices/system/edac/mc",),
    DeviceListing.DISKS: ("class/block",),
    DeviceListing.DRIVES: ("class/nvme",),
    DeviceListing.NETWORK_DEVICES: ("class/infiniband", "class/net"),
}
# The folders are there although nothing is in them: then nothing can be said where they are not.
_PARENT_FOLDERS = {
    DeviceListing.MEMORY_CONTROLLERS: "devices/system",
    DeviceListing.DISKS: "class/block",
    DeviceListing.DRIVES: "class",
    DeviceListing.NETWORK_DEVICES: "class",
}
# A drive whose probe fails is gone before anybody has seen its name, and network devices hide in
# namespaces: what is not seen may be real.
_COMPLETE_LISTINGS = frozenset({DeviceListing.MEMORY_CONTROLLERS, DeviceListing.DISKS})
_NAME = re.compile(r"\w[\w.\-]{0,63}")
_PART = re.compile(r"(?P<disk>.*(?:\dp|[a-z]))\d{1,3}")  # nvme0n1p2, sda2
_PATH = re.compile(r"(nvme\d{1,4})c\d{1,4}(n\d{1,4})")  # one of several ways to nvme0n1
_MAX_NAMES = 4096  # names remembered of each kind
_MOUNTS_MAX_AGE_S = 1.0  # for so long the mounts are taken to be the same


class ListedDevices:
    """The names, by what they are of."""

    def __init__(self, sysfs: Path, mounted: Callable[[], Collection[str]] = frozenset) -> None:
        """`mounted`: the disks that file systems were mounted from, whether they are still there or
        not. May raise OSError.
        """
        self._sysfs = sysfs
        self._mounted = mounted
        self._mounts: Collection[str] = ()
        self._mounts_at = -_MOUNTS_MAX_AGE_S
        self._seen: dict[DeviceListing, dict[str, None]] = {among: {} for among in DeviceListing}

    def read_names(self) -> None:
        """Note what is there now. What cannot be read is left as it was."""
        for among, folders in _FOLDERS.items():
            seen = self._seen[among]
            for folder in folders:
                with suppress(OSError):
                    seen.update(dict.fromkeys(names(self._sysfs / folder)))
            while len(seen) > _MAX_NAMES:
                del seen[next(iter(seen))]

    def has_device(self, among: DeviceListing, name: str) -> bool | None:
        """Whether it is there, or was when somebody looked; None where nobody can tell. The name
        comes from a line.
        """
        if not _NAME.fullmatch(name):
            return False
        if any(self._is_listed(among, one) for one in _list_spellings(among, name)):
            return True
        if among is DeviceListing.DISKS and name in self._get_mounted():
            return True
        return False if (self._sysfs / _PARENT_FOLDERS[among]).is_dir() else None

    def is_certainly_absent(self, among: DeviceListing, name: str) -> bool:
        """Whether this node certainly has had no such device."""
        return among in _COMPLETE_LISTINGS and self.has_device(among, name) is False

    def _is_listed(self, among: DeviceListing, name: str) -> bool:
        if name in self._seen[among]:
            return True
        found = any(os.path.lexists(self._sysfs / folder / name) for folder in _FOLDERS[among])
        if found:
            self._seen[among][name] = None
        return found

    def _get_mounted(self) -> Collection[str]:
        """Such lines may come in storms."""
        if time.monotonic() - self._mounts_at >= _MOUNTS_MAX_AGE_S:
            with suppress(OSError):
                self._mounts = self._mounted()
            self._mounts_at = time.monotonic()
        return self._mounts


def _list_spellings(among: DeviceListing, name: str) -> list[str]:
    """How sysfs may write it: a partition's disk will do, should its table have been read anew."""
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
