"""
PCI functions: presence, response, link width and speed, error counters, and driver.

A uevent only brings a poll forward; facts come from sysfs. The registers of a function that is
powered down are not read, as that would wake it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from vitald.collectors.collector import Found, PolledDevice
from vitald.collectors.definition import CollectorContext, CollectorDefinition
from vitald.collectors.event_factory import derive_readings
from vitald.collectors.nvml.settings import NvmlSettings
from vitald.collectors.pci.readings import READINGS
from vitald.collectors.pci.settings import SECTION, PciSettings
from vitald.collectors.pci.slots import Occupant, SlotMemory, count_lacking_on_board
from vitald.collectors.raw_readings import Files, RawReadings
from vitald.config.paths import Paths
from vitald.model.component import NODE, Component
from vitald.model.source import Readings
from vitald.model.words import ComponentKind
from vitald.small_files import describe_error, list_names
from vitald.small_files import parse_counters as counters
from vitald.topology.pci_inventory import (
    AMAZON,
    PciDevice,
    PciInventory,
    read_machine_identity,
)

# The role of a function, in the reading `part`; that of an accelerator or a switch is its kind. The
# catalogue's thresholds compare these values.
FABRIC = "fabric"  # an adapter that RDMA runs over and that is in no bond
NETWORK = "network"  # any other adapter
VIRTUAL = "virtual"  # a function that is created and removed by command
PORT = "port"  # the bridge right above one of these

# Roles of functions that a node has for good
_LASTING = (
    ComponentKind.GPU.value,
    ComponentKind.NVSWITCH.value,
    ComponentKind.NEURON.value,
    FABRIC,
    NETWORK,
)
# What their number is called where it is expected
_COUNTS = {ComponentKind.GPU.value: "gpus", ComponentKind.NEURON.value: "neuron", FABRIC: "nics"}
_INFINIBAND = 0x0207  # PCI class and subclass
# Bytes of the configuration space: vendor and device id; the part that is readable without root.
_ID_BYTES, _HEADER_BYTES = 4, 64
_NO_LINK_LANES = (0, 255)  # lanes of a function that has no link of its own
# Reading, attribute in sysfs and unit: sysfs has gigatransfers per second.
_LINK_READINGS = (("link_lanes", "width", 1.0), ("link_transfers_per_second", "speed", 1e9))
_SEVERITIES = ("correctable", "nonfatal", "fatal")
_TOTAL = ""
_MAX_MODELS = 4096  # devices remembered
_REGISTER_READINGS = (
    *(name for name, _, _ in _LINK_READINGS),
    *(f"aer_{severity}" for severity in _SEVERITIES),
)


@dataclass(frozen=True, slots=True)
class _Functions(Found):
    """The present functions and the role of each, without the ports above them."""

    parts: Mapping[Component, str] = field(default_factory=dict)
    # Those that have a driver, or had one when they were last present.
    bound: frozenset[str] = frozenset()
    occupants: Mapping[Component, Occupant] = field(default_factory=dict)  # with a lasting role
    machine: str = ""
    lacking: int | None = None  # GPUs of a board with NVSwitches; None where there is none


class Pci:
    """A collector for `PollingSource`: accelerators, switches, adapters, and the ports right above
    them.
    """

    name = "pci"

    def __init__(
        self,
        sysfs: Path,
        inventory: PciInventory,
        settings: PciSettings,
        get_uevent_error: Callable[[], str] = lambda: "",
        *,
        nvml: bool = True,
        boot_id: str = "",
        has_enough: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """The shared inventory is scanned at each poll. `memory`: the functions that had a driver,
        as it may fail to load after a boot, and what was in the slots. `has_enough`: whether the
        expected number of a kind is present.

        `get_uevent_error` returns why the kernel's announcements are not received; empty if they
        are. `nvml`: NVML reads the links of GPUs, so they are not judged here.
        """
        self.memory: dict[str, Any] = {}
        self._sysfs = sysfs
        self._root = sysfs / "bus/pci/devices"
        self._inventory = inventory
        self._exclude = settings.exclude
        self._get_uevent_error = get_uevent_error
        self._gpu_link_judge = "nvml" if nvml else "sysfs"
        self._has_enough = has_enough
        self._slots = SlotMemory(boot_id, self._is_given_up)
        self._has_board = False  # one with NVSwitches was seen
        self._files = Files()
        self._found = _Functions()
        self._fabric: set[str] = set()  # addresses of adapters that had an RDMA device
        # Vendor and device ids of the functions that have a driver now.
        self._bound_ids: set[tuple[int, int]] = set()
        # The functions of the last poll and their roles; None before the first.
        self._present: Mapping[Component, str] | None = None
        self._departed: dict[Component, str] = {}
        self._arrivals: dict[Component, int] = {}

    # --- the functions

    def find_devices(self) -> Found:
        self._inventory.scan_bus()
        if self._inventory.error:
            return replace(self._found, trouble=f"PCI cannot be read: {self._inventory.error}")
        devices = self._inventory.list_watched()
        watched = [device for device in devices if not self._is_excluded(device.address)]
        bound = [device for device in watched if device.driver]
        self._bound_ids = {(device.vendor, device.device) for device in bound}
        models = {_describe_model(device) for device in bound}.union(self.memory.get("bound", ()))
        parts = {
            Component(device.kind, device.address): self._find_part(device) for device in watched
        }
        self._fabric = {component.id for component, part in parts.items() if part == FABRIC}
        functions = [
            PolledDevice(component, partial(self._read_function, device, part))
            for device, (component, part) in zip(watched, parts.items())
        ]
        ports = [
            PolledDevice(Component(ComponentKind.PCI, port), partial(self._read_port, port))
            for port in self._list_ports(watched)
        ]
        absent = ""
        if not functions and not ports:
            absent = "no accelerator, switch or network adapter on PCI"
        self._found = _Functions(
            [*functions, *ports],
            absent,
            parts=parts,
            bound=frozenset(sorted(models)[:_MAX_MODELS]),
            occupants={
                component: Occupant(part, f"{device.vendor:04x}:{device.device:04x}")
                for device, (component, part) in zip(watched, parts.items())
                if part in _LASTING
            },
            lacking=count_lacking_on_board(devices),
            machine=self._found.machine or read_machine_identity(self._sysfs),
        )
        return self._found

    def _list_ports(self, devices: Iterable[PciDevice]) -> list[str]:
        """Addresses of the ports above the devices, without those above virtual functions only."""
        ports = {
            device.port for device in devices if device.port is not None and not device.virtual
        }
        return sorted(port for port in ports if not self._is_excluded(port))

    def combine_readings(
        self,
        read: Mapping[Component, Readings],  # noqa: ARG002
        found: Found,
    ) -> Iterable[Readings]:
        """The functions that departed or arrived, and those that are missing since the boot. The
        presence of the others is in their own readings.
        """
        missing = {}
        if uevent_error := self._get_uevent_error():
            missing["uevents"] = f"{uevent_error}: what comes and goes is seen at the next round"
        if not isinstance(found, _Functions) or found.trouble:
            # Not listed yet, or the bus cannot be read
            if missing:
                yield derive_readings(NODE, {}, missing=missing)
            return
        yield from self._compare_functions(found)
        board = self._compare_with_board(found)
        if board or missing:
            yield derive_readings(NODE, board, missing=missing)

    def _compare_functions(self, found: _Functions) -> Iterator[Readings]:
        """With those of the last poll, and of the last boot."""
        present, before = found.parts, self._present
        if before is None:
            before = present
            self._slots.restore(self.memory.get("slots"), found.machine, found.occupants)
            self._departed = {
                component: known.part for component, known in self._slots.departed.items()
            }
        self._present = present
        yield from self._slots.compare(found.occupants)
        self.memory |= {
            "bound": sorted(found.bound),
            "slots": self._slots.build_memory(found.machine),
        }
        self._departed = {
            component: part
            for component, part in {**self._departed, **before}.items()
            if component not in present
        }
        for component, part in self._departed.items():
            yield derive_readings(component, {"present": 0.0, "part": part})
        for component in present.keys() - before.keys():
            yield from self._count_arrival(component, present[component])

    def _compare_with_board(self, found: _Functions) -> dict[str, float]:
        """How many GPUs a board with NVSwitches lacks, besides those that are reported. Empty where
        there was no such board.
        """
        self._has_board |= found.lacking is not None
        if not self._has_board:
            return {}
        gone = [*self._departed, *self._slots.missing]
        reported = sum(component.kind is ComponentKind.GPU for component in gone)
        lacking = 0 if self._has_enough("gpus") else max(0, (found.lacking or 0) - reported)
        return {"gpus_missing_on_board": float(lacking)}

    def _is_given_up(self, component: Component, known: Occupant) -> bool:
        """Whether the configuration says that it need not be here."""
        is_efa = known.model.startswith(f"{AMAZON:04x}:efa")
        count = "efa" if is_efa else _COUNTS.get(known.part, "")
        return self._is_excluded(component.id) or self._has_enough(count)

    def _count_arrival(self, component: Component, part: str) -> Iterator[Readings]:
        """The former count and the new one, as a threshold only sees a step between two counts."""
        before = self._arrivals.get(component, 0)
        self._arrivals[component] = before + 1
        for count in (before, before + 1):
            yield derive_readings(component, {"arrivals": float(count), "part": part})

    def _is_excluded(self, address: str) -> bool:
        return any(fnmatch(address, pattern) for pattern in self._exclude)

    def _find_part(self, device: PciDevice) -> str:
        """Its role. An adapter that had an RDMA device keeps its role while its driver is away."""
        if device.virtual:
            return VIRTUAL
        if device.kind is not ComponentKind.NIC:
            return str(device.kind.value)
        if self._is_fabric(device):
            return FABRIC
        # A network interface of EC2 is attached and detached by command, by Kubernetes' network
        # plugin all day.
        return VIRTUAL if device.vendor == AMAZON else NETWORK

    def _is_fabric(self, device: PciDevice) -> bool:
        folder = self._root / device.address
        if device.pci_class >> 8 == _INFINIBAND:
            return True
        if device.is_efa:
            return True
        interfaces = folder / "net"
        bonded = any((interfaces / name / "master").exists() for name in list_names(interfaces))
        if list_names(folder / "infiniband") and not bonded:
            return True
        return device.address in self._fabric

    # --- one function

    def _read_function(self, device: PciDevice, part: str) -> RawReadings:
        """Without registers if it does not respond."""
        raw = RawReadings(display_name=_describe_function(device))
        if device.port:
            raw.fields["port"] = device.port
        if slot := self._inventory.find_slot(device.address):
            raw.fields["slot"] = slot
        folder = self._root / device.address
        if not folder.exists():
            return raw  # removed since the devices were listed; the next poll reports it
        raw.values |= {"present": 1.0, "part": part}
        if part == ComponentKind.GPU.value:
            raw.values["link_judged_by"] = self._gpu_link_judge
        self._add_driver(raw, device, part)
        if self._check_response(raw, folder) and part != VIRTUAL:
            self._add_link(raw, folder, device.port)
            self._add_errors(raw, folder)
        return raw

    def _read_port(self, address: str) -> RawReadings:
        raw = RawReadings(display_name=f"PCIe port {address}")
        raw.values["part"] = PORT
        if self._check_response(raw, self._root / address):
            self._add_errors(raw, self._root / address)
        return raw

    def _check_response(self, raw: RawReadings, folder: Path) -> bool:
        """Whether its registers may be read, and hold values. Reading would wake a device that is
        powered down.
        """
        power = self._files.read_text(RawReadings(), "", folder / "power/runtime_status")
        if power in ("suspended", "suspending"):
            reason = "it is powered down, and reading would wake it"
            raw.missing |= dict.fromkeys(("dead", *_REGISTER_READINGS), reason)
            return False
        try:
            dead = _is_dead(folder / "config")
        except OSError as error:
            raw.missing["dead"] = describe_error(error)
            raw.require("dead")
            return True
        raw.values["dead"] = float(dead)
        if dead:
            reason = "the device does not answer: its registers read as ones"
            raw.missing |= dict.fromkeys(_REGISTER_READINGS, reason)
        return not dead

    def _add_driver(self, raw: RawReadings, device: PciDevice, part: str) -> None:
        """That a function has no driver is intended, unless it had one or a like function has
        one.
        """
        if device.driver is not None:
            raw.values |= {"driver": device.driver, "unbound": 0.0}
        elif part != VIRTUAL and (
            _describe_model(device) in self._found.bound
            or (device.vendor, device.device) in self._bound_ids
        ):
            raw.values["unbound"] = 1.0
        else:
            raw.missing["unbound"] = "it has no driver, and nothing says that it should have one"

    def _add_link(self, raw: RawReadings, folder: Path, port: str | None) -> None:
        """Compared with what both ends of it can do: a card in a narrower or older slot is no
        fault.
        """
        for name, attribute, unit in _LINK_READINGS:
            parse = partial(_parse_rate, unit)
            current = self._files.read_value(raw, name, folder / f"current_link_{attribute}", parse)
            own_max = self._files.read_value(
                raw, f"{name}_max", folder / f"max_link_{attribute}", parse
            )
            if current is None or own_max is None or not port:
                continue
            path = self._root / port / f"max_link_{attribute}"
            port_max = self._files.read_value(RawReadings(), "", path, parse)
            if port_max is not None:
                raw.values[f"{name}_max"] = min(own_max, port_max)

    def _add_errors(self, raw: RawReadings, folder: Path) -> None:
        """The number of errors since boot by severity; those that occurred, by their names in the
        specification, as text for operators.
        """
        if not (folder / f"aer_dev_{_SEVERITIES[0]}").exists():
            reason = "this function reports no PCIe errors, as in most virtual machines"
            raw.missing |= {f"aer_{severity}": reason for severity in _SEVERITIES}
            return
        occurred = []
        for severity in _SEVERITIES:
            path = folder / f"aer_dev_{severity}"
            counts = self._files.read_value(raw, f"aer_{severity}", path, _parse_error_counts)
            if counts is not None:
                raw.values[f"aer_{severity}"] = counts.pop(_TOTAL)
                occurred += [
                    f"{severity} {name} {count:g}" for name, count in counts.items() if count
                ]
        if occurred:
            raw.values["aer_seen"] = ", ".join(occurred)


def _is_dead(config: Path) -> bool:
    """Whether the whole header reads as ones. The ids alone read so of every virtual function.
    Raises OSError.
    """
    fd = os.open(config, os.O_RDONLY | os.O_CLOEXEC)
    try:
        ids = os.pread(fd, _ID_BYTES, 0)
        return ids == b"\xff" * _ID_BYTES and not os.pread(fd, _HEADER_BYTES, 0).strip(b"\xff")
    finally:
        os.close(fd)


def _parse_error_counts(text: str) -> dict[str, float]:
    """Counts by name, and their total. Kernels differ in the names, and in whether the last line is
    a total. Raises ValueError.
    """
    counts = dict(counters(text))
    if not counts:
        raise ValueError(text)
    last = next(reversed(counts))
    total = counts.pop(last) if last.startswith("TOTAL_") else sum(counts.values())
    return {**counts, _TOTAL: total}


def _parse_rate(unit: float, text: str) -> float:
    """Lanes (`16`), or a speed (`16.0 GT/s PCIe`). Raises ValueError for `Unknown`, and for a
    function that has no link of its own.
    """
    number = float(text.partition(" ")[0])
    if number in _NO_LINK_LANES:
        raise ValueError(text)
    return number * unit


def _describe_model(device: PciDevice) -> str:
    """Slot and ids: whether a function had a driver is not carried over to another card in its
    slot.
    """
    return f"{device.address} {device.vendor:04x}:{device.device:04x}"


def _describe_function(device: PciDevice) -> str:
    """Display name: `gpu 0000:18:00.0 (10de:2330, nvidia)`."""
    driver = f", {device.driver}" if device.driver else ""
    ids = f"{device.vendor:04x}:{device.device:04x}"
    return f"{device.kind.value} {device.address} ({ids}{driver})"


def _build_pci(context: CollectorContext) -> Pci:
    return Pci(
        context.config[Paths].sysfs,
        context.inventory,
        context.config[PciSettings],
        context.get_uevent_error,
        nvml=context.config[NvmlSettings].enabled,
        boot_id=context.boot_id,
        has_enough=lambda kind: bool(kind) and context.has_enough(kind),
    )


COLLECTOR = CollectorDefinition(
    name=Pci.name,
    section=SECTION,
    readings=READINGS,
    catalog_kinds=("pci",),
    subsystems=("pci",),
    build_collector=_build_pci,
)
