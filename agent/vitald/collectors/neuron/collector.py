"""
The Neuron devices of this node: found by walking, placed on PCI, looked at one by one.

Three numbers must agree: PCI functions with a Neuron id, `neuronN` entries, and what the machine
should have (that is `expected`'s). A function without an entry is a card that the driver could not
bring up; functions and no driver at all is a driver that is not loaded, of which nothing follows
for the cards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vitald.collectors import small_files
from vitald.collectors.definition import CollectorContext, CollectorDefinition
from vitald.collectors.event_factory import derive_readings
from vitald.collectors.neuron import layout
from vitald.collectors.neuron.device import KnownDevice, NeuronDevice
from vitald.collectors.neuron.locations import NeuronLocations
from vitald.collectors.neuron.readings import READINGS
from vitald.collectors.neuron.settings import SECTION
from vitald.collectors.pci.inventory import PciDevice, PciInventory, read_machine_type
from vitald.collectors.polling import Found, PolledDevice
from vitald.collectors.small_files import Files, Look
from vitald.model import NODE, Component, ComponentKind, Readings, Sample

NAME = "neuron"
_CLASS = "class/neuron_device"
_MODULE = "module/neuron"
_MOVING = (
    "coming",
    "going",
)  # drivers before 2.26.5 can crash the kernel when they are read meanwhile
_MOVING_SAID = "the driver is being loaded or unloaded"
_UNLOADED = "the Neuron driver is not loaded"
_DRIVER = "neuron-driver"


class Neuron:
    """A subject of a polled source."""

    name = NAME

    def __init__(
        self,
        sysfs: Path,
        inventory: PciInventory,
        places: NeuronLocations,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """`enough`: the site said how many devices there should be, and so many are here."""
        self._sysfs = sysfs
        self._inventory = inventory
        self._places = places
        self._enough = enough
        self._absent: set[str] = set()
        self._files = Files()
        self._known: dict[int, KnownDevice] = {}
        self._version = ""
        self._loaded = ""  # another one each time that the driver is loaded; empty while it is not
        self._moving = False  # the driver is being loaded or unloaded
        self._found = Found()
        self._beats: dict[
            Component, tuple[float, float, bool]
        ] = {}  # heartbeat: value, since when, whether it was ever seen to move

    @property
    def memory(self) -> dict[str, Any]:
        """Which index sits where, as the driver's log line said, and which addresses were said to
        be empty.
        """
        return {"places": self._places.memory, "absent": sorted(self._absent)}

    @memory.setter
    def memory(self, memory: dict[str, Any]) -> None:
        self._places.restore_memory(memory.get("places", {}))
        self._absent = set(memory.get("absent", ()))

    # --- what there is (in a thread)

    def find(self) -> Found:
        """Entries of the driver, and functions on PCI that have none. Raises OSError."""
        self._inventory.scan_bus()
        functions = {
            device.address: device
            for device in self._inventory.devices.values()
            if device.kind is ComponentKind.NEURON
        }
        self._moving = self._state() in _MOVING
        if self._moving:
            return replace(
                self._found, trouble=_MOVING_SAID
            )  # nothing is asked of a driver that comes or goes
        indexes = sorted(
            int(name.removeprefix(NAME))
            for name in small_files.names(self._sysfs / _CLASS)
            if name.removeprefix(NAME).isdigit()
        )
        self._took_driver()
        self._known = {index: self._known.get(index, KnownDevice()) for index in indexes}
        ours = {
            address for address, device in functions.items() if device.driver in (None, _DRIVER)
        }
        machine = read_machine_type(self._sysfs)
        self._places.assign_devices(indexes, ours, machine)
        devices = [self._entry(index) for index in indexes]
        placed = {self._places.find_address(index) for index in indexes}
        if len(indexes) < len(ours) and all(self._places.find_address(index) for index in indexes):
            devices += [self._function(address) for address in sorted(ours - placed)]
        devices += self._empty(indexes, ours, machine)
        absent = "" if devices else self._nothing(functions, ours)
        devices += [
            self._another(address, str(functions[address].driver))
            for address in sorted(functions.keys() - ours)
        ]
        # Who is missing, nobody can tell while no driver shows any.
        trouble = self._inventory.error or (
            _UNLOADED if ours and not indexes and not self._loaded else ""
        )
        self._found = Found(devices, absent=absent, trouble=trouble)
        return self._found

    def _nothing(self, functions: Mapping[str, PciDevice], ours: set[str]) -> str:
        return (
            "no Neuron device on PCI"
            if not functions
            else "the Neuron devices on PCI belong to another driver"
            if not ours
            else ""
        )

    def _state(self) -> str:
        """Of the module: live, coming, going; empty where it is not loaded."""
        try:
            return small_files.read(self._sysfs / _MODULE / "initstate")
        except OSError:
            return ""

    def _took_driver(self) -> None:
        """Another driver than before, or the same one again: what its devices said is asked anew,
        as are the files that it refused.
        """
        try:
            # Sysfs makes the folder anew, with a number of its own
            loaded = f"{(self._sysfs / _MODULE).stat().st_ino}"
        except OSError:
            loaded = ""
        try:
            version = small_files.read(self._sysfs / _MODULE / "version")
        except OSError:
            version = ""
        if (version, loaded) != (self._version, self._loaded):
            self._version, self._loaded = version, loaded
            self._known = {}
            self._files.refused.clear()

    def _entry(self, index: int) -> PolledDevice:
        component = self._places.get_component(index)
        address = self._places.find_address(index)
        device = NeuronDevice(
            index=index,
            folder=f"{self._sysfs}/{_CLASS}/{NAME}{index}",
            function=self._inventory.get_folder(address) if address else None,
            files=self._files,
            version=layout.parse_version(self._version),
            known=self._known[index],
        )
        return PolledDevice(component, partial(self._look, device), expected=True)

    def _look(self, device: NeuronDevice) -> Look:
        if self._moving:
            return Look(blind=_MOVING_SAID, serial=device.known.serial)
        look = device.read_device()
        look.epoch = f"{self._version} {self._loaded}".strip()
        look.values["absent"] = 0.0
        if look.values.get("lost") != 1.0:
            look.values["initialised"] = 1.0
        return look

    def _function(self, address: str) -> PolledDevice:
        """A card on PCI that the driver does not show."""

        def look() -> Look:
            index = self._places.find_index(address)
            fields = {"pci": address, **({} if index is None else {"index": str(index)})}
            words = f"Neuron device{'' if index is None else f' neuron{index}'}, PCI {address}"
            if not self._version and not self._state():
                return Look(blind=_UNLOADED, fields=fields, words=words)
            return Look(
                {"initialised": 0.0},
                _not_asked("the driver does not show this device"),
                fields=fields,
                words=words,
            )

        return PolledDevice(Component(ComponentKind.NEURON, address), look)

    def _another(self, address: str, driver: str) -> PolledDevice:
        """A card that somebody gave to another driver, such as a virtual machine's. It is named, so
        that it is not taken for missing.
        """
        fields = {"pci": address}
        look = Look(
            missing=_not_asked(f"it belongs to another driver: {driver}"),
            fields=fields,
            words=f"Neuron device, PCI {address}",
        )
        return PolledDevice(Component(ComponentKind.NEURON, address), lambda: replace(look))

    def _empty(
        self, indexes: Collection[int], ours: Collection[str], machine: str
    ) -> list[PolledDevice]:
        """Addresses where machines of this type have a card, and nothing is. Once the site says
        that so many are enough, that is over.
        """
        places = {
            address: index
            for index, address in self._places.list_absent(ours, machine).items()
            if index not in indexes
        }
        if self._enough():
            over, self._absent = self._absent & set(places), set()
            return [self._none_at(address, places[address], 0.0) for address in sorted(over)]
        self._absent = set(places)
        return [self._none_at(address, index, 1.0) for address, index in places.items()]

    def _none_at(self, address: str, index: int, absent: float) -> PolledDevice:
        fields = {"index": str(index), "pci": address}
        words = f"Neuron device neuron{index}, PCI {address}"
        return PolledDevice(
            Component(ComponentKind.NEURON, address),
            lambda: Look({"absent": absent}, fields=fields, words=words),
        )

    # --- what shows together (on the loop)

    def together(self, read: Mapping[Component, Readings], found: Found) -> Iterable[Readings]:
        """The node's counts, and hearts that stand still."""
        entries = len(self._known)
        functions = sum(
            device.kind is ComponentKind.NEURON and device.driver in (None, _DRIVER)
            for device in self._inventory.devices.values()
        )
        if found.devices:
            values: dict[str, Sample] = {"devices": float(entries), "functions": float(functions)}
            values["driver_loaded"] = float(bool(self._version) or entries > 0)
            if self._version:
                values["driver_version"] = self._version
            observable = [
                one.values["ecc_observable"]
                for one in read.values()
                if "ecc_observable" in one.values and not one.blind
            ]
            if observable:
                values["devices_without_ecc"] = float(observable.count(0.0))
            unplaced = any(self._places.find_address(index) is None for index in self._known)
            if unplaced and entries:
                values["unplaced_missing"] = float(max(0, functions - entries))
            yield derive_readings(NODE, values)
        for component, one in read.items():
            still = self._still(component, one)
            if still is not None:
                yield derive_readings(component, {"heartbeat_still_seconds": still}, one.identity)

    def _still(self, component: Component, one: Readings) -> float | None:
        """For how long the heartbeat has not moved. Known only of one that was seen to move: how
        fast it should is not documented.
        """
        beat = one.values.get(layout.HEARTBEAT.reading)
        if not isinstance(beat, float) or one.blind or layout.HEARTBEAT.reading not in one.fresh:
            return None
        value, since, moved = self._beats.get(component, (beat, one.looked, False))
        if beat != value:
            since, moved = one.looked, True
        self._beats[component] = (beat, since, moved)
        return time.monotonic() - since if moved else None


def _not_asked(why: str) -> dict[str, str]:
    return {attribute.reading: why for attribute in layout.ESSENTIAL}


def _build(context: CollectorContext) -> Neuron:
    has_enough = partial(context.has_enough, NAME)
    return Neuron(context.paths.sysfs, context.inventory, context.places, has_enough)


COLLECTOR = CollectorDefinition(
    name=NAME,
    section=SECTION,
    readings=READINGS,
    catalog_kinds=("neuron",),
    counted=("neuron",),
    subsystems=("pci", "neuron_device"),
    build_collector=_build,
)
