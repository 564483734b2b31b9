"""
The Neuron devices of this node: found in sysfs, mapped to PCI, and read one by one; and the
driver's module.

Three numbers must agree: PCI functions with a Neuron id, `neuronN` entries, and what this type of
machine should have (which the inventory checks). A function without an entry is a card that the
driver could not initialise. Functions without any driver mean that the driver is not loaded, which
says nothing about the cards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vitald import small_files
from vitald.collectors.collector import Found, PolledDevice
from vitald.collectors.definition import CollectorContext, CollectorDefinition
from vitald.collectors.event_factory import derive_readings
from vitald.collectors.neuron import layout
from vitald.collectors.neuron.device import KnownDevice, NeuronDevice
from vitald.collectors.neuron.readings import READINGS
from vitald.collectors.neuron.settings import SECTION
from vitald.collectors.raw_readings import Files, RawReadings
from vitald.config.paths import Paths
from vitald.model.component import NODE, Component
from vitald.model.source import Readings, Sample
from vitald.model.words import ComponentKind
from vitald.topology.neuron_locations import NeuronLocations
from vitald.topology.pci_inventory import PciDevice, PciInventory, read_machine_type

NAME = "neuron"
_CLASS = "class/neuron_device"
_MOVING = "the driver is being loaded or unloaded"
_UNLOADED = "the Neuron driver is not loaded"
_MODULE = "module/neuron"
# Drivers before 2.26.5 can crash the kernel when their files are read meanwhile
_MOVING_STATES = ("coming", "going")


class Neuron:
    """The collector. It is polled."""

    name = NAME

    def __init__(
        self,
        sysfs: Path,
        inventory: PciInventory,
        places: NeuronLocations,
        has_enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """`has_enough`: the configured number of devices is present."""
        self._sysfs = sysfs
        self._inventory = inventory
        self._places = places
        self._has_enough = has_enough
        self._driver = NeuronDriver(sysfs)
        self._absent: set[str] = set()
        self._files = Files()
        self._known: dict[int, KnownDevice] = {}
        self._found = Found()
        # Heartbeat: value, since when, and whether it was ever seen to change
        self._beats: dict[Component, tuple[float, float, bool]] = {}

    @property
    def memory(self) -> dict[str, Any]:
        """The address of each index, as the driver logged it, and the addresses that were reported
        empty.
        """
        return {"places": self._places.memory, "absent": sorted(self._absent)}

    @memory.setter
    def memory(self, memory: dict[str, Any]) -> None:
        self._places.restore_memory(memory.get("places", {}))
        self._absent = set(memory.get("absent", ()))

    # --- finding and reading (in a thread)

    def find_devices(self) -> Found:
        """Entries of the driver, and functions on PCI that have none. Raises OSError."""
        self._inventory.scan_bus()
        functions = {
            device.address: device
            for device in self._inventory.devices.values()
            if device.kind is ComponentKind.NEURON
        }
        if self._driver.update_moving():  # nothing is read meanwhile
            return replace(self._found, trouble=_MOVING)
        indexes = self._list_indexes()
        if self._driver.detect_change():
            self._known = {}
            self._files.refused.clear()
        self._known = {index: self._known.get(index, KnownDevice()) for index in indexes}
        ours = {
            device.address for device in self._inventory.list_accelerators(ComponentKind.NEURON)
        }
        machine = read_machine_type(self._sysfs)
        self._places.assign_devices(indexes, ours, machine)
        devices = [self._make_device(index) for index in indexes]
        devices += map(self._make_uninitialised, self._list_uninitialised(indexes, ours))
        devices += self._make_absent(indexes, ours, machine)
        absent = "" if devices else _describe_absence(functions, ours)
        devices += [
            self._make_foreign(address, str(functions[address].driver))
            for address in sorted(functions.keys() - ours)
        ]
        trouble = self._inventory.error
        if not trouble and ours and not indexes and not self._driver.load_id:
            trouble = _UNLOADED  # which devices are missing is unknown without the driver
        self._found = Found(devices, absent=absent, trouble=trouble)
        return self._found

    def _list_indexes(self) -> list[int]:
        numbers = (name.removeprefix(NAME) for name in small_files.list_names(self._sysfs / _CLASS))
        return sorted(int(number) for number in numbers if number.isdigit())

    def _list_uninitialised(self, indexes: Collection[int], ours: Collection[str]) -> list[str]:
        """Addresses of cards that the driver does not show, if that is known of each card."""
        placed = {self._places.find_address(index) for index in indexes}
        if len(indexes) >= len(ours) or not all(placed):
            return []
        return sorted(address for address in ours if address not in placed)

    def _make_device(self, index: int) -> PolledDevice:
        component = self._places.get_component(index)
        address = self._places.find_address(index)
        device = NeuronDevice(
            index=index,
            folder=f"{self._sysfs}/{_CLASS}/{NAME}{index}",
            function=self._inventory.get_folder(address) if address else None,
            files=self._files,
            version=layout.parse_version(self._driver.version),
            known=self._known[index],
        )
        return PolledDevice(component, partial(self._read_device, device), expected=True)

    def _read_device(self, device: NeuronDevice) -> RawReadings:
        if self._driver.is_moving:
            return RawReadings(unreadable_reason=_MOVING, serial=device.known.serial)
        raw = device.read_device()
        raw.epoch = self._driver.epoch
        raw.values["absent"] = 0.0
        if raw.values.get("lost") != 1.0:
            raw.values["initialised"] = 1.0
        return raw

    def _make_uninitialised(self, address: str) -> PolledDevice:
        """A card on PCI that the driver does not show."""
        component = Component(ComponentKind.NEURON, address)
        return PolledDevice(component, partial(self._read_uninitialised, address))

    def _read_uninitialised(self, address: str) -> RawReadings:
        index = self._places.find_index(address)
        fields = {"pci": address, **({} if index is None else {"index": str(index)})}
        display_name = _name_card(address, index)
        if not self._driver.version and not self._driver.read_state():
            return RawReadings(
                unreadable_reason=_UNLOADED, fields=fields, display_name=display_name
            )
        return RawReadings(
            {"initialised": 0.0},
            _list_unread("the driver does not show this device"),
            fields=fields,
            display_name=display_name,
        )

    def _make_foreign(self, address: str, driver: str) -> PolledDevice:
        """A card that belongs to another driver, such as a virtual machine's. It is listed, so that
        it is not reported missing.
        """
        raw = RawReadings(
            missing=_list_unread(f"it belongs to another driver: {driver}"),
            fields={"pci": address},
            display_name=_name_card(address, None),
        )
        return PolledDevice(Component(ComponentKind.NEURON, address), lambda: replace(raw))

    def _make_absent(
        self, indexes: Collection[int], ours: Collection[str], machine: str
    ) -> list[PolledDevice]:
        """Addresses where machines of this type have a card and this one has none. Where the
        configured number of devices is present, what was reported absent is over.
        """
        places = {
            address: index
            for index, address in self._places.list_absent(ours, machine).items()
            if index not in indexes
        }
        if self._has_enough():
            over, self._absent = self._absent & set(places), set()
            return [self._make_absent_at(address, places[address], 0.0) for address in sorted(over)]
        self._absent = set(places)
        return [self._make_absent_at(address, index, 1.0) for address, index in places.items()]

    def _make_absent_at(self, address: str, index: int, absent: float) -> PolledDevice:
        fields = {"index": str(index), "pci": address}
        display_name = _name_card(address, index)
        return PolledDevice(
            Component(ComponentKind.NEURON, address),
            lambda: RawReadings({"absent": absent}, fields=fields, display_name=display_name),
        )

    # --- combined readings (on the loop)

    def combine_readings(
        self, read: Mapping[Component, Readings], found: Found
    ) -> Iterable[Readings]:
        """The node's counts, and heartbeats that stand still."""
        if found.devices:
            yield derive_readings(NODE, self._count_devices(read))
        for component, readings in read.items():
            still_s = self._measure_stillness(component, readings)
            if still_s is not None:
                values = {"heartbeat_still_seconds": still_s}
                yield derive_readings(component, values, readings.identity)

    def _count_devices(self, read: Mapping[Component, Readings]) -> dict[str, Sample]:
        entries = len(self._known)
        functions = len(self._inventory.list_accelerators(ComponentKind.NEURON))
        version = self._driver.version
        values: dict[str, Sample] = {"devices": float(entries), "functions": float(functions)}
        values["driver_loaded"] = float(bool(version) or entries > 0)
        if version:
            values["driver_version"] = version
        observable = [
            readings.values["ecc_observable"]
            for readings in read.values()
            if "ecc_observable" in readings.values and not readings.unknown_reason
        ]
        if observable:
            values["devices_without_ecc"] = float(observable.count(0.0))
        if any(self._places.find_address(index) is None for index in self._known):
            values["unplaced_missing"] = float(max(0, functions - entries))
        return values

    def _measure_stillness(self, component: Component, readings: Readings) -> float | None:
        """For how many seconds the heartbeat has not changed. Known only of one that was seen to
        change: how fast it should is not documented.
        """
        name = layout.HEARTBEAT.reading
        beat = readings.values.get(name)
        if not isinstance(beat, float) or readings.unknown_reason or name not in readings.fresh:
            return None
        value, since, moved = self._beats.get(component, (beat, readings.polled_at, False))
        if beat != value:
            since, moved = readings.polled_at, True
        self._beats[component] = (beat, since, moved)
        return time.monotonic() - since if moved else None


def _describe_absence(functions: Mapping[str, PciDevice], ours: Collection[str]) -> str:
    """Why there is no device to read."""
    if not functions:
        return "no Neuron device on PCI"
    return "" if ours else "the Neuron devices on PCI belong to another driver"


def _name_card(address: str, index: int | None) -> str:
    """The display name of a card that the driver does not show."""
    return f"Neuron device{'' if index is None else f' neuron{index}'}, PCI {address}"


def _list_unread(reason: str) -> dict[str, str]:
    return {attribute.reading: reason for attribute in layout.ESSENTIAL}


def _build_neuron(context: CollectorContext) -> Neuron:
    has_enough = partial(context.has_enough, NAME)
    return Neuron(context.config[Paths].sysfs, context.inventory, context.places, has_enough)


COLLECTOR = CollectorDefinition(
    name=NAME,
    section=SECTION,
    readings=READINGS,
    catalog_kinds=("neuron",),
    counted=("neuron",),
    subsystems=("pci", "neuron_device"),
    build_collector=_build_neuron,
)


class NeuronDriver:
    """The kernel module, as last read. `version` is empty if it is unknown.

    `load_id` is another one each time that the driver is loaded; empty while it is not.
    """

    def __init__(self, sysfs: Path) -> None:
        self._folder = sysfs / _MODULE
        self.version = ""
        self.load_id = ""
        self.is_moving = False  # it is being loaded or unloaded

    @property
    def epoch(self) -> str:
        """Changes when another driver, or the same one again, was loaded."""
        return f"{self.version} {self.load_id}".strip()

    def read_state(self) -> str:
        """The module's state: live, coming, going; empty if it is not loaded."""
        try:
            return small_files.read_text(self._folder / "initstate")
        except OSError:
            return ""

    def update_moving(self) -> bool:
        """Whether it is being loaded or unloaded now."""
        self.is_moving = self.read_state() in _MOVING_STATES
        return self.is_moving

    def detect_change(self) -> bool:
        """Whether the driver was loaded, again or in another version, since the last call."""
        before = (self.version, self.load_id)
        try:
            # Sysfs recreates the folder, with another inode number.
            self.load_id = f"{self._folder.stat().st_ino}"
        except OSError:
            self.load_id = ""
        try:
            self.version = small_files.read_text(self._folder / "version")
        except OSError:
            self.version = ""
        return before != (self.version, self.load_id)
