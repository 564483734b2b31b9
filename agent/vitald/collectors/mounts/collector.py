"""
The mount points that `[expect] mounts` names: whether something is mounted there, and whether it
answers statvfs.

What is mounted follows from the mount table of process 1. Only what the daemon's own table has,
too, can be asked: a sandbox or a container hides the rest (`ProtectHome=`, say). A call that does
not return is abandoned with its thread, and reported by the poller.

Source: proc_pid_mountinfo(5), statvfs(3); Linux fs/statfs.c (an automount point is mounted first).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vitald.collectors.collector import Found, PolledDevice
from vitald.collectors.definition import CollectorContext, CollectorDefinition
from vitald.collectors.inventory.settings import ExpectSettings
from vitald.collectors.mount_table import Mount, read_mounts
from vitald.collectors.mounts.readings import READINGS
from vitald.collectors.mounts.settings import SECTION
from vitald.collectors.small_files import RawReadings, describe_error
from vitald.model import Component, ComponentKind, Readings

NAME = "mounts"
_NOT_ALLOWED = (errno.EACCES, errno.EPERM)  # to this process, which proves nothing
_HIDDEN = "mounted, but hidden from the daemon by its sandbox or container"


class RequiredMounts:
    """A collector for `PollingSource`. Each mount point is one device."""

    name = NAME

    def __init__(self, procfs: Path, points: Sequence[str]) -> None:
        self.memory: dict[str, Any] = {}
        self.statvfs: Callable[[str], os.statvfs_result] = os.statvfs
        self._procfs = procfs
        self._points = tuple(dict.fromkeys(points))

    def find_devices(self) -> Found:
        """Raises OSError if the mount tables cannot be read."""
        if not self._points:
            return Found(absent="[expect] mounts names none")
        mounted = {mount.point: mount for mount in read_mounts(self._procfs, "1", "self")}
        if not mounted:
            return Found(trouble="the mount table cannot be read")
        own = {mount.point for mount in read_mounts(self._procfs, "self")}
        return Found(
            [self._create_device(point, mounted.get(point), own) for point in self._points]
        )

    def _create_device(self, point: str, mount: Mount | None, own: Collection[str]) -> PolledDevice:
        read = partial(self._read_mount, point, mount, is_hidden=point not in own)
        return PolledDevice(Component(ComponentKind.DISK, point), read)

    def combine_readings(
        self,
        read: Mapping[Component, Readings],  # noqa: ARG002
        found: Found,  # noqa: ARG002
    ) -> Iterable[Readings]:
        """Nothing: each mount point is judged by its own readings."""
        return ()

    def _read_mount(self, point: str, mount: Mount | None, *, is_hidden: bool) -> RawReadings:
        """Blocks for as long as the file system does."""
        if mount is None:
            return RawReadings(values={"mounted": 0.0}, display_name=f"mount point {point}")
        raw = RawReadings(
            values={"mounted": 1.0},
            display_name=f"{point} ({mount.source}, {mount.type})",
            fields={"type": mount.type},
        )
        if is_hidden:
            raw.missing["answers"] = _HIDDEN
            return raw
        began = time.monotonic()
        try:
            self.statvfs(point)
        except OSError as error:
            reason = describe_error(error)
            if error.errno in _NOT_ALLOWED:
                raw.missing["answers"] = reason
            else:
                raw.values |= {"answers": 0.0, "error": reason}
            return raw
        raw.values |= {"answers": 1.0, "answer_seconds": time.monotonic() - began}
        return raw


def _build_mounts(context: CollectorContext) -> RequiredMounts:
    return RequiredMounts(context.paths.procfs, context.settings[ExpectSettings].mounts)


COLLECTOR = CollectorDefinition(
    name=NAME,
    section=SECTION,
    readings=READINGS,
    catalog_kinds=(NAME,),
    build_collector=_build_mounts,
)
