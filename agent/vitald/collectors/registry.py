"""
The sources of this node, built from its configuration.

Owns     which there are, what they share (the PCI inventory, the places of Neuron devices, how
         lines are read), and who is woken by what the kernel announces.
Refuses  running them: the daemon supervises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Union

from vitald.catalog import Catalog
from vitald.collectors.host.collector import Host
from vitald.collectors.host.filesystems import FileSystems
from vitald.collectors.host.fstab import Fstab
from vitald.collectors.inventory.collector import Expected
from vitald.collectors.kernel_log import pstore
from vitald.collectors.kernel_log.backfill import Earlier
from vitald.collectors.kernel_log.drills import Announcements
from vitald.collectors.kernel_log.file import LogFile
from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.collectors.kernel_log.journal import Journal
from vitald.collectors.kernel_log.kmsg import KMSG, Kmsg
from vitald.collectors.kernel_log.listed_devices import Listed
from vitald.collectors.network.collector import Network
from vitald.collectors.neuron.collector import Neuron
from vitald.collectors.neuron.locations import NeuronLocations
from vitald.collectors.nvml.collector import Nvml
from vitald.collectors.pci.collector import Pci
from vitald.collectors.pci.inventory import PciInventory, machine_type
from vitald.collectors.polling import Polled, Subject
from vitald.collectors.uevents import Uevents
from vitald.config import Config
from vitald.config import Host as HostSettings
from vitald.config import Network as NetworkSettings
from vitald.config import Neuron as NeuronSettings
from vitald.config import Pci as PciSettings
from vitald.model import Event, Position, Source
from vitald.worker_thread import Lane

_Settings = Union[NeuronSettings, NetworkSettings, PciSettings, HostSettings]
_EXPECT_EVERY_S, _EXPECT_LOOK_S = 60.0, 10.0
# Kinds of the catalogue's entries that a subject's readings are held against, where they are not
# named as it is.
_KINDS = {
    "network": ("network", "efa", "ib", "net"),
    "host": ("host", "edac", "thermal", "fs", "nvme", "clock", "unit"),
}
# What `expected` counts of what a subject looks at.
_COUNTED = {"neuron": ("neuron",), "network": ("efa", "nics"), "host": ("nvme",)}
# Who looks at once when the kernel announces something of a subsystem.
_WOKEN = {
    "pci": ("pci", "nvml", "neuron", "network", "expect"),
    "neuron_device": ("neuron",),
    "infiniband": ("network", "expect"),
    "net": ("network",),
    "nvme": ("host", "expect"),
}


class Sources:
    """What this node is looked at with. `well` says whether what is here now may be taken for what
    should be here.
    """

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        boot_id: str,
        reader: Lane,
        well: Callable[[], bool],
        *,
        kmsg: int | None = None,
    ) -> None:
        """`kmsg`: /dev/kmsg, where somebody opened it for us."""
        paths, log = config.paths, config.kernel_log
        self.inventory = PciInventory(paths.sysfs)
        self.places = NeuronLocations()
        self._fstab = Fstab(paths.fstab)
        self._fstab.read()  # once before lines are read; from then on the host source does it
        mounts = (str(paths.state), *config.host.mounts)
        needed = FileSystems(paths.sysfs, paths.procfs, mounts, self._fstab)
        self._listed = Listed(paths.sysfs, needed.list_mounted)
        self._listed.look()
        self._host = Host(
            paths.sysfs, paths.procfs, paths.state, config.host, self._fstab, self._listed.look
        )
        self.interpreter = Interpreter(
            catalog,
            Announcements(),
            self.inventory,
            userspace=log.userspace,
            places=self.places,
            needed=needed.list_disks,
            drive=self._host.drives.describe_drive,
            listed=self._listed,
        )
        self.kernel_log: Source = (
            Kmsg(str(log.path), self.interpreter, boot_id, kmsg if log.path == KMSG else None)
            if log.source == "kmsg"
            else LogFile(str(log.path), self.interpreter, boot_id)
        )
        self.earlier = self._earlier(config, boot_id, reader)
        self.nvml = self._nvml(config, catalog, boot_id)
        self.expected = Expected(
            paths.sysfs,
            paths.procfs,
            PciInventory(paths.sysfs),  # one of its own: it looks at other times
            catalog.instances,
            boot_id,
            config.expect,
            config.nvml.expected_gpus,
            well,
            nvml=config.nvml.enabled,
        )
        self.polled = [
            Polled(
                subject,
                catalog,
                boot_id,
                every_s=every_s,
                look_s=look_s,
                kinds=_KINDS.get(subject.name, ()),
                enough=partial(self.expected.enough_of, *_COUNTED.get(subject.name, ())),
            )
            for subject, every_s, look_s in self._subjects(config)
        ]
        self.uevents = self._uevents()

    @property
    def present(self) -> list[Nvml | Polled]:
        """The sources of what is now, beside the kernel log, which also tells of what was."""
        return [*([self.nvml] if self.nvml is not None else []), *self.polled]

    @property
    def all(self) -> list[Source]:
        return [self.kernel_log, *self.present]

    def configure(self, catalog: Catalog, *, userspace: str) -> None:
        """Take what a reload may change."""
        self.interpreter.configure(catalog, userspace=userspace)
        for source in self.present:
            source.configure(catalog)

    def recall(self, position: Callable[[str], Position | None], placed: Iterable[Event]) -> None:
        """Before the kernel log is read: it speaks of Neuron devices by an index, and said at boot
        where each sits (`placed`).
        """
        for polled in self.polled:
            polled.recall(position(polled.name))
        for event in placed:
            self.places.record_event(event.fields)

    def _nvml(self, config: Config, catalog: Catalog, boot_id: str) -> Nvml | None:
        if not config.nvml.enabled:
            return None
        expected = catalog.instance(machine_type(config.paths.sysfs)).gpus
        return Nvml(
            config.nvml,
            catalog,
            self.inventory,
            boot_id,
            Lane("nvml"),
            expected=expected,
            vbios=config.expect.vbios,
        )

    def _subjects(self, config: Config) -> list[tuple[Subject, float, float]]:
        """What is looked at in rounds: how often, and how long a look may take."""
        sysfs = config.paths.sysfs
        subjects: list[tuple[Subject, _Settings]] = [
            (
                Neuron(
                    sysfs, self.inventory, self.places, partial(self.expected.enough_of, "neuron")
                ),
                config.neuron,
            ),
            (Network(sysfs, config.network, config.expect.link_rate), config.network),
            (
                Pci(
                    sysfs,
                    self.inventory,
                    config.pci,
                    lambda: self.uevents.error,
                    nvml=config.nvml.enabled,
                ),
                config.pci,
            ),
            (self._host, config.host),
        ]
        enabled = [
            (subject, settings.every_s, settings.deadline_s)
            for subject, settings in subjects
            if settings.enabled
        ]
        return [*enabled, (self.expected, _EXPECT_EVERY_S, _EXPECT_LOOK_S)]

    def _uevents(self) -> Uevents:
        wake = {one.name: one.look_now for one in self.present}
        listeners = {
            subsystem: [wake[name] for name in names if name in wake]
            for subsystem, names in _WOKEN.items()
        }
        return Uevents({**listeners, "block": [self._listed.look]})

    def _earlier(self, config: Config, boot_id: str, reader: Lane) -> Earlier | None:
        """Only the ring forgets; a file is its own history."""
        if config.kernel_log.source != "kmsg":
            return None
        where = config.kernel_log.journal
        journal = None if where == "off" else Journal(None if where == "system" else Path(where))
        folders = (config.paths.sysfs / "fs/pstore", pstore.FOLDERS[1])
        return Earlier(
            str(config.kernel_log.path), self.interpreter, boot_id, reader, journal, folders
        )
