"""
File systems that the node requires: free space and inodes, and whether the kernel made one
read-only.

A file system is a disk here, named as in kernel log lines (`vda1`, `dm-0`, `md127`). One that was
mounted writable and was made read-only after an error has `rw` in its mount and `ro` in its
superblock; since Linux 6.15 ext4 reports `emergency_ro` or `shutdown` instead.

Read are the file systems of the configured paths, and the local disks in fstab, of which only the
state counts: users may fill them. Mounts are those of process 1, as `ProtectSystem=strict` makes
all mounts of a service read-only.

Source: proc_pid_mountinfo(5); Linux fs/proc_namespace.c, fs/ext4/super.c.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vitald.collectors.collector import PolledDevice
from vitald.collectors.raw_readings import RawReadings
from vitald.model.component import Component
from vitald.model.words import ComponentKind
from vitald.small_files import describe_error, list_names, read_attribute, read_text
from vitald.topology.fstab import Fstab, unescape_text

_GAVE_UP = frozenset({"emergency_ro", "shutdown"})
_SPACE = ("free_ratio", "free_inodes_ratio", "free_bytes")
_OTHERS = "[host] mounts does not name it: those who use it may fill it"
# An image, a disk over the network, memory, a disc: what storage.toml (fs/not_is_built_in) says of
# them holds here too.
_NOT_BUILT_IN = re.compile(r"(?:loop|rbd|nbd|drbd|zram|ram|sr|fd)\d{1,5}(?:p\d{1,3})?")
_UNKNOWN_MOUNT = "no mount is known that holds it"
_UNTRACEABLE = frozenset(
    {"zfs", "bcachefs", "overlay"}
)  # what they lie on is not to be read from the mount
_NAMESPACE = re.compile(r"(nvme\d{1,4})(?:c\d{1,4})?n\d{1,4}(?:p\d{1,4})?")
_MAX_DEPTH = 8  # a partition on a volume on an array on a partition
_KNOWN_S = 5.0  # how long the disks of the mounts are cached


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo. `number` is the device as `major:minor`."""

    point: str
    number: str
    type: str
    source: str
    options: frozenset[str]  # of this mount
    superblock: frozenset[str]  # of the file system, common to all its mounts

    @property
    def read_only(self) -> bool:
        """Mounted read-only on purpose."""
        return "ro" in self.options and "ro" in self.superblock

    @property
    def gave_up(self) -> bool:
        return ("rw" in self.options and "ro" in self.superblock) or not self.superblock.isdisjoint(
            _GAVE_UP
        )

    def contains_path(self, path: str) -> bool:
        return path == self.point or path.startswith(self.point.rstrip("/") + "/")


class FileSystems:
    """The file systems of some paths, and the local disks that fstab mounts.

    Symbolic links in paths are not followed: that could block on a dead file server.
    """

    def __init__(self, sysfs: Path, procfs: Path, paths: Sequence[str], fstab: Fstab) -> None:
        self._sysfs, self._procfs, self._fstab = sysfs, procfs, fstab
        self._paths = tuple(dict.fromkeys(str(Path(path).absolute()) for path in paths))
        self.statvfs: Callable[[str], os.statvfs_result] = os.statvfs
        self._disks, self._disks_at = frozenset[str](), -_KNOWN_S
        self._drives: frozenset[str] | None = None
        self._drives_at = -_KNOWN_S
        # Drives beneath each disk, as last found
        self._beneath: dict[str, frozenset[str]] = {}

    def list_devices(self) -> Iterator[PolledDevice]:
        mounts = self._read_mounts()
        held: dict[Component, tuple[Mount | None, list[str]]] = {}
        for path in self._paths:
            mount = max(
                (mount for mount in mounts if mount.contains_path(path)),
                key=lambda mount: len(mount.point),
                default=None,
            )
            held.setdefault(
                Component(ComponentKind.DISK, self._get_disk_name(mount, path)), (mount, [])
            )[1].append(path)
        for component, (mount, paths) in held.items():
            yield PolledDevice(component, partial(self._read_filesystem, mount, paths))
        points = self._fstab.points
        for mount in mounts:
            component = Component(ComponentKind.DISK, self._get_disk_name(mount, mount.point))
            if (
                mount.point in points
                and component not in held
                and self._is_built_in(mount, component.id)
            ):
                held[component] = (mount, [])
                yield PolledDevice(component, partial(self._read_filesystem, mount, []))

    def list_disks(self) -> frozenset[str]:
        """The names of the disks that hold them, as in kernel log lines. They are cached for some
        seconds, as such lines come in bursts.

        Raises OSError if the mounts cannot be read.
        """
        if time.monotonic() - self._disks_at >= _KNOWN_S:
            self._disks = frozenset(device.component.id for device in self.list_devices())
            self._disks_at = time.monotonic()
        return self._disks

    def list_mounted(self) -> frozenset[str]:
        """The disks that anything is mounted from, as named in the mount table, which still lists a
        disk that is gone. Raises OSError.
        """
        return frozenset(
            Path(mount.source).name
            for mount in self._read_mounts()
            if mount.source.startswith("/dev/")
        )

    def list_drives(self) -> frozenset[str] | None:
        """The NVMe controllers beneath them (`nvme0`); None if unknown. Cached as `list_disks` is,
        and raises OSError as it does.
        """
        if time.monotonic() - self._drives_at >= _KNOWN_S:
            self._drives, self._drives_at = self._trace_drives(), time.monotonic()
        return self._drives

    def _trace_drives(self) -> frozenset[str] | None:
        mounts = self._read_mounts()
        held = [
            max(
                (mount for mount in mounts if mount.contains_path(path)),
                key=lambda mount: len(mount.point),
                default=None,
            )
            for path in self._paths
        ]
        if any(mount is None or mount.type in _UNTRACEABLE for mount in held):
            return None
        disks = {
            self._get_disk_name(mount, mount.point): mount for mount in held if mount is not None
        }
        return frozenset(
            drive for disk, mount in disks.items() for drive in self._find_carriers(disk, mount)
        )

    def _find_carriers(self, disk: str, mount: Mount) -> frozenset[str]:
        """The drives beneath a disk, also when the kernel has removed them."""
        disks = {disk, *(self._list_btrfs_members(disk) if mount.type == "btrfs" else ())}
        found = frozenset(
            drive for member in disks for drive in self._walk_below(member, _MAX_DEPTH)
        )
        self._beneath[disk] = found or self._beneath.get(disk, found)
        return self._beneath[disk]

    def _list_btrfs_members(self, disk: str) -> list[str]:
        """The disks of a btrfs file system that lies on several."""
        groups = [
            list_names(self._sysfs / "fs/btrfs" / uuid / "devices")
            for uuid in list_names(self._sysfs / "fs/btrfs")
        ]
        return next((group for group in groups if disk in group), [])

    def _walk_below(self, disk: str, depth: int) -> Iterator[str]:
        namespace = _NAMESPACE.fullmatch(disk)
        if namespace is not None:
            yield namespace[1]
        folder = self._sysfs / "class/block" / disk
        whole = folder.resolve().parent.name if (folder / "partition").exists() else disk
        for slave in list_names(folder / "slaves") + list_names(
            self._sysfs / "class/block" / whole / "slaves"
        ):
            if depth:
                yield from self._walk_below(slave, depth - 1)

    def _read_mounts(self) -> list[Mount]:
        """The mounts; of several on one mount point, the last, which hides the others."""
        lines: list[str] = []
        for process in ("1", "self"):
            with suppress(FileNotFoundError, PermissionError):
                lines = read_text(self._procfs / process / "mountinfo").splitlines()
                break
        return list(
            {
                mount.point: mount for line in lines if (mount := _parse_mount(line)) is not None
            }.values()
        )

    def _get_disk_name(self, mount: Mount | None, path: str) -> str:
        """The kernel's name of the device; without a device, type and mount point."""
        if mount is None:
            return path
        try:
            return (self._sysfs / "dev/block" / mount.number).readlink().name
        except OSError:
            return (
                Path(mount.source).name
                if mount.source.startswith("/dev/")
                else f"{mount.type}:{mount.point}"
            )

    def _is_built_in(self, mount: Mount, name: str) -> bool:
        """Whether a built-in disk is mounted there."""
        if not mount.source.startswith("/dev/") or _NOT_BUILT_IN.fullmatch(name):
            return False
        block = self._sysfs / "dev/block" / mount.number
        # Only the whole disk has the attribute, not its partitions.
        for disk in (block, Path(os.path.realpath(block)).parent):
            with suppress(OSError):
                return read_attribute(disk / "removable") != "1"
        return True

    def _read_filesystem(self, mount: Mount | None, paths: Sequence[str]) -> RawReadings:
        """`paths`: the configured ones on it; none for a file system of fstab."""
        where = mount.point if mount is not None else paths[0]
        raw = RawReadings(
            display_name=f"{where} ({mount.source}, {mount.type})" if mount is not None else where,
            fields={"mount": where},
        )
        if mount is None:
            raw.missing["read_only"] = _UNKNOWN_MOUNT
        else:
            raw.values["read_only"] = float(mount.gave_up)
        if mount is not None and mount.read_only:
            raw.missing |= dict.fromkeys(_SPACE, "mounted read-only on purpose: it cannot fill up")
            return raw
        if not paths:
            raw.missing |= dict.fromkeys(_SPACE, _OTHERS)
            return raw
        try:
            found = self.statvfs(where)
        except FileNotFoundError:
            raw.missing["free_bytes"] = "there is no such folder"
            return raw
        except OSError as error:
            raw.missing["free_bytes"] = describe_error(error)
            return raw
        # Without the blocks reserved for root, as df counts
        usable = found.f_blocks - found.f_bfree + found.f_bavail
        if usable > 0:
            raw.values["free_bytes"] = float(found.f_bavail * found.f_frsize)
            raw.values["free_ratio"] = round(found.f_bavail / usable, 4)
        else:
            raw.missing["free_bytes"] = "it has no size"
        if found.f_files > 0:
            raw.values["free_inodes_ratio"] = round(found.f_favail / found.f_files, 4)
        else:
            raw.missing["free_inodes_ratio"] = (
                f"{mount.type if mount is not None else 'it'} makes inodes as it needs them"
            )
        return raw


def _parse_mount(line: str) -> Mount | None:
    """`36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/root rw,errors=continue`; None for
    anything else.
    """
    mount, _, superblock = line.partition(" - ")
    words, own = mount.split(), superblock.split(" ")
    if len(words) < 6 or len(own) < 3:
        return None
    return Mount(
        point=unescape_text(words[4]),
        number=words[2],
        type=own[0],
        source=unescape_text(own[1]),
        options=frozenset(words[5].split(",")),
        superblock=frozenset(own[2].split(",")),
    )
