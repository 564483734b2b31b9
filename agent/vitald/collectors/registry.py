"""
The sources of this node, built from the collectors' definitions.

Owns     which there are, what they share (the PCI inventory, the places of Neuron devices, how
         lines are read), and who is woken by what the kernel announces.
Refuses  running them: the daemon supervises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from vitald.catalog import Catalog
from vitald.collectors.definition import CollectorContext, CollectorDefinition, PresentSource
from vitald.collectors.discovery import find_collectors
from vitald.collectors.host.collector import Host
from vitald.collectors.host.filesystems import FileSystems
from vitald.collectors.host.fstab import Fstab
from vitald.collectors.host.settings import HostSettings
from vitald.collectors.inventory.collector import Expected
from vitald.collectors.kernel_log import pstore
from vitald.collectors.kernel_log.backfill import Backfill
from vitald.collectors.kernel_log.drills import DrillRegistry
from vitald.collectors.kernel_log.file import LogFile
from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.collectors.kernel_log.journal import Journal
from vitald.collectors.kernel_log.kmsg import KMSG, Kmsg
from vitald.collectors.kernel_log.listed_devices import ListedDevices
from vitald.collectors.kernel_log.settings import KernelLogSettings
from vitald.collectors.neuron.locations import NeuronLocations
from vitald.collectors.nvml.collector import Nvml
from vitald.collectors.pci.inventory import PciInventory
from vitald.collectors.polling import Collector, PollingSource
from vitald.collectors.uevents import Uevents
from vitald.model import Event, Position, Source
from vitald.paths import Paths
from vitald.settings import SectionValues
from vitald.worker_thread import WorkerThread

S = TypeVar("S")


class Sources:
    """What this node is looked at with. `well` says whether what is here now may be taken for what
    should be here.
    """

    def __init__(
        self,
        paths: Paths,
        settings: SectionValues,
        catalog: Catalog,
        boot_id: str,
        reader: WorkerThread,
        well: Callable[[], bool],
        *,
        kmsg: int | None = None,
    ) -> None:
        """`kmsg`: a file descriptor of /dev/kmsg that was opened for us."""
        log = settings[KernelLogSettings]
        self.inventory = PciInventory(paths.sysfs)
        self.places = NeuronLocations()
        fstab = Fstab(paths.fstab)
        fstab.read()  # once before lines are read; from then on the host source does it
        mounts = (str(paths.state), *settings[HostSettings].mounts)
        needed = FileSystems(paths.sysfs, paths.procfs, mounts, fstab)
        self._listed = ListedDevices(paths.sysfs, needed.list_mounted)
        self._listed.read_names()
        context = CollectorContext(
            paths=paths,
            settings=settings,
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
        subjects = {
            definition.name: definition.build_collector(context)
            for definition in find_collectors()
            if definition.build_collector is not None
        }
        self.expected = _find_instance(subjects.values(), Expected)
        self.present: list[PresentSource] = _build_sources(context, subjects)
        self.interpreter = Interpreter(
            catalog,
            DrillRegistry(),
            self.inventory,
            userspace=log.userspace,
            places=self.places,
            needed=needed.list_disks,
            drive=_find_instance(subjects.values(), Host).drives.describe_drive,
            listed=self._listed,
        )
        self.kernel_log: Source = (
            Kmsg(str(log.path), self.interpreter, boot_id, kmsg if log.path == KMSG else None)
            if log.source == "kmsg"
            else LogFile(str(log.path), self.interpreter, boot_id)
        )
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

    def configure(self, catalog: Catalog, *, userspace: str) -> None:
        """Take what a reload may change."""
        self.interpreter.configure(catalog, userspace=userspace)
        for source in self.present:
            source.configure(catalog)

    def recall(self, position: Callable[[str], Position | None], placed: Iterable[Event]) -> None:
        """Restore what was stored, before the kernel log is read: its lines name Neuron devices by
        an index, whose place the events `placed` of this boot hold.
        """
        for polled in self.polled:
            polled.recall(position(polled.name))
        for event in placed:
            self.places.record_event(event.fields)

    def _has_enough(self, *kinds: str) -> bool:
        return self.expected.enough_of(*kinds)

    def _list_listeners(self) -> dict[str, list[Callable[[], None]]]:
        """Whom to wake, by subsystem of the kernel."""
        wake = {source.name: source.look_now for source in self.present}
        listeners: dict[str, list[Callable[[], None]]] = {"block": [self._listed.read_names]}
        for definition in find_collectors():
            for subsystem in definition.subsystems if definition.name in wake else ():
                listeners.setdefault(subsystem, []).append(wake[definition.name])
        return listeners

    def _build_backfill(
        self, paths: Paths, log: KernelLogSettings, boot_id: str, reader: WorkerThread
    ) -> Backfill | None:
        """Only the ring forgets; a file is its own history."""
        if log.source != "kmsg":
            return None
        where = log.journal
        journal = None if where == "off" else Journal(None if where == "system" else Path(where))
        folders = (paths.sysfs / "fs/pstore", pstore.FOLDERS[1])
        return Backfill(str(log.path), self.interpreter, boot_id, reader, journal, folders)


def _find_instance(subjects: Iterable[Collector], class_: type[S]) -> S:
    return next(subject for subject in subjects if isinstance(subject, class_))


def _build_sources(
    context: CollectorContext, subjects: dict[str, Collector]
) -> list[PresentSource]:
    """Those that are not switched off, in the order of their sections."""
    sources: list[PresentSource] = []
    for definition in find_collectors():
        if not getattr(context.settings[definition.section.settings], "enabled", True):
            continue
        if definition.build_source is not None:
            sources.append(definition.build_source(context))
        else:
            sources.append(_poll(context, definition, subjects[definition.name]))
    return sources


def _poll(
    context: CollectorContext, definition: CollectorDefinition, subject: Collector
) -> PollingSource:
    settings = context.settings[definition.section.settings]
    return PollingSource(
        subject,
        context.catalog,
        context.boot_id,
        every_s=definition.every_s or settings.every_s,
        look_s=definition.deadline_s or settings.deadline_s,
        kinds=definition.catalog_kinds,
        enough=partial(context.has_enough, *definition.counted),
    )
