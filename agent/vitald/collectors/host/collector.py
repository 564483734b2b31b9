"""
The host: memory, processors, disks, file systems, processes, clock and services.

Each part reads its own files. What a machine does not have is `missing` with a reason, never a
fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from vitald.collectors.collector import Found, PolledDevice
from vitald.collectors.definition import CollectorContext, CollectorDefinition
from vitald.collectors.host.clock import SystemClock
from vitald.collectors.host.edac import HostMemory
from vitald.collectors.host.filesystems import FileSystems
from vitald.collectors.host.nvme import NvmeDrives
from vitald.collectors.host.processes import StuckProcesses
from vitald.collectors.host.processors import Processors
from vitald.collectors.host.readings import READINGS
from vitald.collectors.host.settings import SECTION, HostSettings
from vitald.collectors.host.units import Units
from vitald.collectors.raw_readings import Files
from vitald.config.paths import Paths
from vitald.model.component import Component
from vitald.model.source import Readings
from vitald.small_files import describe_error
from vitald.topology.fstab import Fstab


class HostPart(Protocol):
    """A part of the host."""

    def list_devices(self) -> Iterator[PolledDevice]:
        """Called in each round. Raises OSError if the devices cannot be listed."""
        ...


class Host:
    """The collector. It is polled. `state` is the folder of the ledger; `also` is called each time
    that devices are listed.
    """

    name = "host"

    def __init__(
        self,
        sysfs: Path,
        procfs: Path,
        state: Path,
        settings: HostSettings,
        fstab: Fstab,
        also: Callable[[], None] | None = None,
    ) -> None:
        self.memory: dict[str, Any] = {}
        files = Files()
        self.filesystems = FileSystems(sysfs, procfs, (str(state), *settings.mounts), fstab)
        self.drives = NvmeDrives(sysfs, files, self.filesystems.list_drives)
        self._fstab = fstab
        self._also = also
        self.processes = StuckProcesses(procfs, files)
        self.clock = SystemClock()
        self.units = Units(settings.units, settings.units_if_enabled)
        memory, processors = HostMemory(sysfs, procfs, files), Processors(sysfs, files)
        self._has_restored = False
        self._parts: tuple[HostPart, ...] = (
            memory,
            processors,
            self.filesystems,
            self.drives,
            self.processes,
            self.clock,
            self.units,
        )

    def find_devices(self) -> Found:
        """The devices of all parts. A part that cannot be listed does not affect the others."""
        self._fstab.read_table()
        if self._also is not None:
            self._also()
        if not self._has_restored:
            stored = self.memory.get("units")
            units = stored if isinstance(stored, list) else []
            self.units.restore_watched([unit for unit in units if isinstance(unit, str)])
            self._has_restored = True
        devices: dict[Component, PolledDevice] = {}
        trouble: list[str] = []
        for part in self._parts:
            try:
                devices.update({device.component: device for device in part.list_devices()})
            except OSError as error:
                trouble.append(f"{error.filename or type(part).__name__}: {describe_error(error)}")
        self.memory["units"] = self.units.watched
        return Found(tuple(devices.values()), trouble="; ".join(trouble))

    def combine_readings(
        self,
        read: Mapping[Component, Readings],  # noqa: ARG002
        found: Found,  # noqa: ARG002
    ) -> Iterable[Readings]:
        """Nothing: each device is judged by its own readings."""
        return ()


def _build_host(context: CollectorContext) -> Host:
    paths, settings = context.config[Paths], context.config[HostSettings]
    return Host(
        paths.sysfs,
        paths.procfs,
        paths.state,
        settings,
        context.fstab,
        context.find_block_devices,
    )


COLLECTOR = CollectorDefinition(
    name=Host.name,
    section=SECTION,
    readings=READINGS,
    catalog_kinds=("host", "edac", "thermal", "fs", "nvme", "clock", "unit"),
    counted=("nvme",),
    subsystems=("nvme",),
    build_collector=_build_host,
)
