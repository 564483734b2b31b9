"""
The sources of this node, built from the collectors' definitions.

They share the PCI inventory, the addresses of Neuron devices and the interpreter of log lines, and
are polled when the kernel announces a device. The daemon runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from vitald.catalog import Catalog
from vitald.collectors.collector import Collector
from vitald.collectors.definition import CollectorContext, CollectorDefinition, PresentSource
from vitald.collectors.discovery import find_collectors
from vitald.collectors.host.collector import Host
from vitald.collectors.host.filesystems import FileSystems
from vitald.collectors.host.nvme import NvmeDrives
from vitald.collectors.host.settings import HostSettings
from vitald.collectors.inventory.collector import ExpectedInventory
from vitald.collectors.inventory.settings import ExpectSettings
from vitald.collectors.kernel_log import pstore
from vitald.collectors.kernel_log.backfill import Backfill
from vitald.collectors.kernel_log.drills import DrillRegistry
from vitald.collectors.kernel_log.followed_file import LogFile
from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.collectors.kernel_log.journal import Journal
from vitald.collectors.kernel_log.kmsg import KMSG, Kmsg
from vitald.collectors.kernel_log.settings import KernelLogSettings
from vitald.collectors.network.collector import Network
from vitald.collectors.nvml.collector import Nvml
from vitald.collectors.nvml.settings import NvmlSettings
from vitald.collectors.polling import PollingSource
from vitald.collectors.uevents import Uevents
from vitald.config.paths import Paths
from vitald.config.values import Config
from vitald.model.event import Event
from vitald.model.source import Position, Source
from vitald.topology.fstab import Fstab
from vitald.topology.listed_devices import ListedDevices
from vitald.topology.neuron_locations import NeuronLocations
from vitald.topology.pci_inventory import PciInventory
from vitald.worker_thread import WorkerThread

C = TypeVar("C")


class Sources:
    """The sources of this node."""

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        boot_id: str,
        reader: WorkerThread,
        well: Callable[[], bool],
        *,
        kmsg: int | None = None,
    ) -> None:
        """`well` says whether what is present may be taken for what should be present. `kmsg`: a
        file descriptor of /dev/kmsg that systemd passed.
        """
        paths = config[Paths]
        self._config = config
        self.inventory = PciInventory(paths.sysfs)
        self.places = NeuronLocations()
        fstab = Fstab(paths.fstab)
        fstab.read_table()  # once before lines are read; from then on the host source does it
        mounts = (str(paths.state), *config[HostSettings].mounts)
        needed = FileSystems(paths.sysfs, paths.procfs, mounts, fstab)
        self._listed = ListedDevices(paths.sysfs, needed.list_mounted)
        self._listed.read_names()
        context = CollectorContext(
            config=config,
            catalog=catalog,
            boot_id=boot_id,
            inventory=self.inventory,
            places=self.places,
            fstab=fstab,
            has_enough=self._has_enough,
            is_healthy=well,
            find_block_devices=self._listed.read_names,
            get_uevent_error=lambda: self.uevents.error,
        )
        collectors = _build_collectors(context)
        self.expected = _find_instance(collectors.values(), ExpectedInventory)
        self._network = _find_instance(collectors.values(), Network)
        self.present: list[PresentSource] = _build_sources(context, collectors)
        log = config[KernelLogSettings]
        drives = _find_instance(collectors.values(), Host).drives
        self.interpreter = self._build_interpreter(catalog, log.userspace, needed, drives)
        self.kernel_log = self._build_kernel_log(log, boot_id, kmsg)
        self.backfill = self._build_backfill(paths, log, boot_id, reader)
        self.uevents = Uevents(self._list_listeners())

    @property
    def nvml(self) -> Nvml | None:
        return next((source for source in self.present if isinstance(source, Nvml)), None)

    @property
    def polled(self) -> list[PollingSource]:
        return [source for source in self.present if isinstance(source, PollingSource)]

    @property
    def all(self) -> list[Source]:
        return [self.kernel_log, *self.present]

    def configure(self, catalog: Catalog, config: Config) -> None:
        """Use a configuration that was reloaded."""
        self.interpreter.configure(catalog, userspace=config[KernelLogSettings].userspace)
        before, self._config = self._config, config
        gpus, expected = config[NvmlSettings].expected_gpus, config[ExpectSettings]
        changed = (gpus, expected) != (before[NvmlSettings].expected_gpus, before[ExpectSettings])
        self.expected.configure(expected, gpus)
        self._network.rates = expected.link_rate
        if self.nvml is not None:
            self.nvml.configure_expected(gpus, expected)
        for source in self.present:
            source.configure(catalog)
            if changed:
                source.poll_now()

    def restore_memory(
        self, position: Callable[[str], Position | None], placed: Iterable[Event]
    ) -> None:
        """Restore what was stored, before the kernel log is read: its lines name Neuron devices by
        an index, whose place the events `placed` of this boot hold.
        """
        for polled in self.polled:
            polled.restore_memory(position(polled.name))
        for event in placed:
            self.places.record_event(event.fields)

    def _has_enough(self, *kinds: str) -> bool:
        return self.expected.has_all_expected(*kinds)

    def _list_listeners(self) -> dict[str, list[Callable[[], None]]]:
        """What to call when the kernel announces a device, by its subsystem."""
        wake = {source.name: source.poll_now for source in self.present}
        listeners: dict[str, list[Callable[[], None]]] = {"block": [self._listed.read_names]}
        for definition in find_collectors():
            for subsystem in definition.subsystems if definition.name in wake else ():
                listeners.setdefault(subsystem, []).append(wake[definition.name])
        return listeners

    def _build_interpreter(
        self, catalog: Catalog, userspace: str, needed: FileSystems, drives: NvmeDrives
    ) -> Interpreter:
        return Interpreter(
            catalog,
            DrillRegistry(),
            self.inventory,
            userspace=userspace,
            places=self.places,
            needed=needed.list_disks,
            drive=drives.describe_drive,
            listed=self._listed,
        )

    def _build_kernel_log(self, log: KernelLogSettings, boot_id: str, kmsg: int | None) -> Source:
        path = str(log.path)
        if log.source != "kmsg":
            return LogFile(path, self.interpreter, boot_id)
        return Kmsg(path, self.interpreter, boot_id, kmsg if log.path == KMSG else None)

    def _build_backfill(
        self, paths: Paths, log: KernelLogSettings, boot_id: str, reader: WorkerThread
    ) -> Backfill | None:
        """None for a file, which loses nothing while the daemon is stopped."""
        if log.source != "kmsg":
            return None
        folders = (paths.sysfs / "fs/pstore", pstore.FOLDERS[1])
        return Backfill(
            str(log.path), self.interpreter, boot_id, reader, _open_journal(log.journal), folders
        )


def _open_journal(folder: str) -> Journal | None:
    """The journal that the configuration names; None if it is not to be read."""
    if folder == "off":
        return None
    return Journal(None if folder == "system" else Path(folder))


def _find_instance(collectors: Iterable[Collector], class_: type[C]) -> C:
    return next(collector for collector in collectors if isinstance(collector, class_))


def _build_collectors(context: CollectorContext) -> dict[str, Collector]:
    """The collectors that are polled, by name."""
    return {
        definition.name: definition.build_collector(context)
        for definition in find_collectors()
        if definition.build_collector is not None
    }


def _build_sources(
    context: CollectorContext, collectors: dict[str, Collector]
) -> list[PresentSource]:
    """The sources that are enabled, in the order of their sections."""
    sources: list[PresentSource] = []
    for definition in find_collectors():
        if not getattr(context.config[definition.section.settings], "enabled", True):
            continue
        if definition.build_source is not None:
            sources.append(definition.build_source(context))
        else:
            sources.append(_build_polling_source(context, definition, collectors[definition.name]))
    return sources


def _build_polling_source(
    context: CollectorContext, definition: CollectorDefinition, collector: Collector
) -> PollingSource:
    settings = context.config[definition.section.settings]
    return PollingSource(
        collector,
        context.catalog,
        context.boot_id,
        every_s=definition.every_s or settings.every_s,
        timeout_s=definition.deadline_s or settings.deadline_s,
        kinds=definition.catalog_kinds,
        has_enough=partial(context.has_enough, *definition.counted),
        settle_s=context.config[ExpectSettings].settle_s,
    )
