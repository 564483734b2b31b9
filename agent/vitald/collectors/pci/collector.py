"""
PCI functions: presence, response, link width and speed, error counters, and driver.

A uevent only brings a poll forward; facts come from sysfs. The registers of a function that is
powered down are not read, as that would wake it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from vitald.collectors.collector import Found, PolledDevice
from vitald.collectors.definition import CollectorContext, CollectorDefinition
from vitald.collectors.device_registry import is_component_name
from vitald.collectors.event_factory import derive_readings
from vitald.collectors.nvml.settings import NvmlSettings
from vitald.collectors.pci.inventory import AMAZON, PciDevice, PciInventory, count_lacking
from vitald.collectors.pci.readings import READINGS
from vitald.collectors.pci.settings import SECTION, PciSettings
from vitald.collectors.pci.slots import Occupant, find_absent, restore_slots, store_slots
from vitald.collectors.small_files import Files, RawReadings, describe_error, list_names
from vitald.collectors.small_files import parse_counters as counters
from vitald.model import NODE, Component, ComponentKind, Readings, Sample

# The role of a function, in the reading `part`; that of an accelerator or a switch is its kind. The
# catalogue's thresholds compare these values.
FABRIC = "fabric"  # an adapter that RDMA runs over and that is in no bond
NETWORK = "network"  # any other adapter
VIRTUAL = "virtual"  # a function that is created and removed by command
PORT = "port"  # the bridge right above one of these

_INFINIBAND = 0x0207  # PCI class and subclass
_EFA_IDS = range(0xEFA0, 0xEFB0)
# Bytes of the configuration space: vendor and device id; the part that is readable without root.
_ID_BYTES, _HEADER_BYTES = 4, 64
_NO_LINK_LANES = (0, 255)  # lanes of a function that has no link of its own
# Reading, attribute in sysfs and unit: sysfs has gigatransfers per second.
_LINK_READINGS = (("link_lanes", "width", 1.0), ("link_transfers_per_second", "speed", 1e9))
_SEVERITIES = ("correctable", "nonfatal", "fatal")
_TOTAL = ""
_MAX_MODELS = 4096  # devices remembered
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
    occupants: Mapping[str, Occupant] = field(default_factory=dict)  # with a lasting role


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
        as it may fail to load after a boot; what was in the slots, and what of it is missing since
        the boot. `has_enough`: whether the expected number of a kind is present.

        `get_uevent_error` returns why the kernel's announcements are not received; empty if they
        are. `nvml`: NVML reads the links of GPUs, so they are not judged here.
        """
        self.memory: dict[str, Any] = {}
        self._root = sysfs / "bus/pci/devices"
        self._inventory = inventory
        self._exclude = settings.exclude
        self._get_uevent_error = get_uevent_error
        self._boot_id = boot_id
        self._has_enough = has_enough
        self._gpu_link_judge = "nvml" if nvml else "sysfs"
        self._files = Files()
        self._found = _Functions()
        self._fabric: set[str] = set()  # addresses of adapters that had an RDMA device
        # Vendor and device ids of the functions that have a driver now.
        self._bound_ids: set[tuple[int, int]] = set()
        # The functions of the last poll and their roles; None before the first.
        self._present: Mapping[Component, str] | None = None
        self._has_board = False  # one with NVSwitches was seen
        self._departed: dict[Component, str] = {}
        self._missing: dict[Component, str] = {}  # since the boot, with their roles
        self._arrivals: dict[Component, int] = {}

    # --- the functions

    def find_devices(self) -> Found:
        self._inventory.scan_bus()
        if self._inventory.error:
            return replace(self._found, trouble=f"PCI cannot be read: {self._inventory.error}")
        watched = [
            device
            for device in self._inventory.list_watched()
            if not self._is_excluded(device.address)
        ]
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
                component.name: Occupant(part, f"{device.vendor:04x}:{device.device:04x}")
                for device, (component, part) in zip(watched, parts.items())
                if part in _LASTING
            },
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
        listed = found if isinstance(found, _Functions) and not found.trouble else None
        if listed is None:  # not listed yet, or the bus cannot be read
            if missing:
                yield derive_readings(NODE, {}, missing=missing)
            return
        self.memory["bound"] = sorted(listed.bound)
        present, before = listed.parts, self._present
        self._present = present
        yield from self._compare_slots(listed, is_first=before is None)
        if before is None:
            before = present
        self._departed = {
            component: part
            for component, part in {**self._departed, **before}.items()
            if component not in present
        }
        for component, part in self._departed.items():
            yield derive_readings(component, {"present": 0.0, "part": part})
        for component in present.keys() - before.keys():
            yield from self._count_arrival(component, present[component])
        board = self._compare_with_board(listed)
        if board or missing:
            yield derive_readings(NODE, board, missing=missing)

    def _compare_with_board(self, found: _Functions) -> dict[str, float]:
        """How many GPUs a board with NVSwitches lacks, besides those that are reported. Empty where
        there was no such board.
        """
        occupants = found.occupants.values()
        self._has_board |= any(known.part == ComponentKind.NVSWITCH.value for known in occupants)
        if not self._has_board:
            return {}
        gpus = ComponentKind.GPU.value
        models = Counter(known.model for known in occupants if known.part == gpus)
        most = max(models.values(), default=0)
        reported = (*self._departed.values(), *self._missing.values())
        lacking = 0 if self._has_enough("gpus") else count_lacking(most) - reported.count(gpus)
        return {"gpus_missing_on_board": max(0.0, float(lacking))}

    def _compare_slots(self, found: _Functions, *, is_first: bool) -> Iterator[Readings]:
        """What is missing since the boot, and what of it is back. What departed before the daemon
        was restarted in this boot has departed.
        """
        remembered = restore_slots(self.memory.get("slots"))
        absent = {
            Component.parse_name(name): known.part
            for name, known in find_absent(remembered, found.occupants).items()
            if not self._is_given_up(Component.parse_name(name), known)
        }
        if is_first:
            self._missing = {
                Component.parse_name(name): remembered[name].part
                for name in self._list_missing()
                if name in remembered
            }
            if self.memory.get("boot", self._boot_id) == self._boot_id:
                self._departed = {
                    component: part
                    for component, part in absent.items()
                    if component not in self._missing
                }
        missing = {
            component: part
            for component, part in absent.items()
            if component not in self._departed and (is_first or component in self._missing)
        }
        for component, part in {**self._missing, **missing}.items():
            values: dict[str, Sample] = {"missing": float(component in missing), "part": part}
            yield derive_readings(component, values)
        self._missing = missing
        kept = {component.name: remembered[component.name] for component in absent}
        self.memory |= {
            "boot": self._boot_id,
            "slots": store_slots({**kept, **found.occupants}),
            "missing": sorted(component.name for component in missing),
        }

    def _list_missing(self) -> list[str]:
        stored = self.memory.get("missing")
        return [name for name in stored if is_component_name(name)] if stored else []

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
        if device.vendor == AMAZON and device.device in _EFA_IDS:
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
        context.paths.sysfs,
        context.inventory,
        context.settings[PciSettings],
        context.get_uevent_error,
        nvml=context.settings[NvmlSettings].enabled,
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
