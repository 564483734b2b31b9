"""
PCI functions, one by one: is it there, does it answer, is its link as wide and as fast as it could
be, does it count errors, has it its driver.

Owns     which functions are looked at and what part they play, who has come and who has gone since
         vitald started.
Refuses  belief in what was announced: a uevent only brings a look forward, and what is true stands
         in sysfs. And waking a device that sleeps: the registers of one that is powered down are
         left alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from vitald.collectors.definition import CollectorContext, CollectorDefinition
from vitald.collectors.event_factory import derive_readings
from vitald.collectors.nvml.settings import NvmlSettings
from vitald.collectors.pci.inventory import AMAZON, PciDevice, PciInventory
from vitald.collectors.pci.readings import READINGS
from vitald.collectors.pci.settings import SECTION, PciSettings
from vitald.collectors.polling import Found, PolledDevice
from vitald.collectors.small_files import Files, Look, names, why
from vitald.collectors.small_files import table as counters
from vitald.model import NODE, Component, ComponentKind, Readings

# The part that a function plays; an accelerator's and a switch's is its kind. The catalogue's
# watches know these words.
FABRIC = "fabric"  # an adapter that RDMA runs over, and that nothing stands in for
NETWORK = "network"  # any other adapter
VIRTUAL = "virtual"  # a function that comes and goes by command
PORT = "port"  # the bridge right above one of these

_INFINIBAND = 0x0207  # PCI class and subclass
_EFA = range(0xEFA0, 0xEFB0)
_HEAD, _HEADER = 4, 64  # bytes of the configuration space: maker and model; what everybody may read
_NO_LINK = (0, 255)  # lanes, of a function that has no link of its own
_LINK = (
    ("link_lanes", "width", 1.0),
    ("link_transfers_per_second", "speed", 1e9),
)  # sysfs tells gigatransfers
_SEVERITIES = ("correctable", "nonfatal", "fatal")
_TOTAL = ""
_MAX_MODELS = 4096  # devices remembered
_OF_REGISTERS = (*(name for name, _, _ in _LINK), *(f"aer_{severity}" for severity in _SEVERITIES))


@dataclass(frozen=True, slots=True)
class _Functions(Found):
    """Those that are here, with the part that each one plays; without the ports above them."""

    parts: Mapping[Component, str] = field(default_factory=dict)
    bound: frozenset[str] = frozenset()  # that have a driver, or had one when they were last here


class Pci:
    """A subject: accelerators, switches, adapters, and the ports right above them."""

    name = "pci"

    def __init__(
        self,
        sysfs: Path,
        inventory: PciInventory,
        settings: PciSettings,
        deaf: Callable[[], str] = lambda: "",
        *,
        nvml: bool = True,
    ) -> None:
        """The inventory is others' too: it is read anew at each look. Remembered is who has had a
        driver: it may not load after a boot.

        `deaf` says why the kernel's announcements are not heard; empty while they are. `nvml`: NVML
        is asked for the links of GPUs, so they are not judged here.
        """
        self.memory: dict[str, Any] = {}
        self._root = sysfs / "bus/pci/devices"
        self._inventory = inventory
        self._exclude = settings.exclude
        self._deaf = deaf
        self._gpu_link_by = "nvml" if nvml else "sysfs"
        self._files = Files()
        self._found = _Functions()
        self._fabric: set[str] = set()  # addresses of adapters that were seen to carry RDMA
        self._siblings: set[tuple[int, int]] = set()  # maker and model of those that have one now
        self._here: Mapping[Component, str] | None = (
            None  # those that were here at the last look, and their parts
        )
        self._gone: dict[Component, str] = {}
        self._arrivals: dict[Component, int] = {}

    # --- who is there

    def find(self) -> Found:
        self._inventory.scan_bus()
        if self._inventory.error:
            return replace(self._found, trouble=f"PCI cannot be read: {self._inventory.error}")
        watched = [one for one in self._inventory.list_watched() if not self._excluded(one.address)]
        self._siblings = {(one.vendor, one.device) for one in watched if one.driver}
        bound = {_model(one) for one in watched if one.driver}.union(self.memory.get("bound", ()))
        parts = {Component(one.kind, one.address): self._part(one) for one in watched}
        self._fabric = {component.id for component, part in parts.items() if part == FABRIC}
        devices = [
            PolledDevice(
                component := Component(one.kind, one.address),
                partial(self._look, one, parts[component]),
            )
            for one in watched
        ]
        ports = {
            one.port
            for one in watched
            if one.port is not None and not one.virtual and not self._excluded(one.port)
        }
        devices += [
            PolledDevice(Component(ComponentKind.PCI, port), partial(self._look_at_port, port))
            for port in sorted(ports)
        ]
        absent = "" if devices else "no accelerator, switch or network adapter on PCI"
        self._found = _Functions(
            devices, absent, parts=parts, bound=frozenset(sorted(bound)[:_MAX_MODELS])
        )
        return self._found

    def together(
        self,
        read: Mapping[Component, Readings],  # noqa: ARG002
        found: Found,
    ) -> Iterable[Readings]:
        """Who went, and who came. Of those that are here their own look says so."""
        if deaf := self._deaf():
            yield derive_readings(
                NODE,
                {},
                missing={"uevents": f"{deaf}: what comes and goes is seen at the next round"},
            )
        if not isinstance(found, _Functions) or found.trouble:
            return  # nobody knows yet, or nobody can see
        self.memory["bound"] = sorted(found.bound)
        here, before = found.parts, self._here
        self._here = here
        if before is None:
            return
        self._gone = {
            component: part
            for component, part in {**self._gone, **before}.items()
            if component not in here
        }
        for component, part in self._gone.items():
            yield derive_readings(component, {"present": 0.0, "part": part})
        for component in here.keys() - before.keys():
            yield from self._arrival(component, here[component])

    def _arrival(self, component: Component, part: str) -> Iterator[Readings]:
        """A counter's step shows only where its former value was seen too."""
        before = self._arrivals.get(component, 0)
        self._arrivals[component] = before + 1
        for count in (before, before + 1):
            yield derive_readings(component, {"arrivals": float(count), "part": part})

    def _excluded(self, address: str) -> bool:
        return any(fnmatch(address, pattern) for pattern in self._exclude)

    def _part(self, device: PciDevice) -> str:
        """What it is for. An adapter that was seen to carry RDMA still does while its driver is
        away.
        """
        if device.virtual:
            return VIRTUAL
        if device.kind is not ComponentKind.NIC:
            return str(device.kind.value)
        folder = self._root / device.address
        if device.pci_class >> 8 == _INFINIBAND or (
            device.vendor == AMAZON and device.device in _EFA
        ):
            return FABRIC
        stood_in_for = any(
            (folder / "net" / name / "master").exists() for name in names(folder / "net")
        )
        if (names(folder / "infiniband") and not stood_in_for) or device.address in self._fabric:
            return FABRIC
        # A network interface of EC2 is attached and detached by command, by Kubernetes' network
        # plugin all day.
        return VIRTUAL if device.vendor == AMAZON else NETWORK

    # --- one function

    def _look(self, device: PciDevice, part: str) -> Look:
        """Whether it answers decides what else can be said of it."""
        look = Look(words=_words(device), fields={"port": device.port} if device.port else {})
        folder = self._root / device.address
        if not folder.exists():
            return look  # gone since the devices were listed: the next look says so
        look.values |= {"present": 1.0, "part": part}
        if part == ComponentKind.GPU.value:
            look.values["link_judged_by"] = self._gpu_link_by
        self._driver(look, device, part)
        if not self._answers(look, folder):
            return look
        if part != VIRTUAL:
            self._link(look, folder, device.port)
            self._errors(look, folder)
        return look

    def _look_at_port(self, address: str) -> Look:
        look = Look(words=f"PCIe port {address}")
        look.values["part"] = PORT
        if self._answers(look, self._root / address):
            self._errors(look, self._root / address)
        return look

    def _answers(self, look: Look, folder: Path) -> bool:
        """Whether its registers may be read, and read as something. A read would wake a device that
        is powered down.
        """
        power = self._files.text(Look(), "", folder / "power/runtime_status")
        if power in ("suspended", "suspending"):
            look.missing |= dict.fromkeys(
                ("dead", *_OF_REGISTERS), "it is powered down, and reading would wake it"
            )
            return False
        try:
            dead = _dead(folder / "config")
        except OSError as error:
            look.missing["dead"] = why(error)
            look.needs("dead")
            return True
        look.values["dead"] = float(dead)
        if dead:
            look.missing |= dict.fromkeys(
                _OF_REGISTERS, "the device does not answer: its registers read as ones"
            )
        return not dead

    def _driver(self, look: Look, device: PciDevice, part: str) -> None:
        """A function without a driver is as somebody wants it, unless it had one or its like have
        one.
        """
        if device.driver is not None:
            look.values |= {"driver": device.driver, "unbound": 0.0}
        elif part != VIRTUAL and (
            _model(device) in self._found.bound or (device.vendor, device.device) in self._siblings
        ):
            look.values["unbound"] = 1.0
        else:
            look.missing["unbound"] = "it has no driver, and nothing says that it should have one"

    def _link(self, look: Look, folder: Path, port: str | None) -> None:
        """Against what both ends of it can do: a card in a narrower or older slot is as it was
        built.
        """
        for name, attribute, unit in _LINK:
            now = self._files.value(
                look, name, folder / f"current_link_{attribute}", partial(_rate, unit)
            )
            own = self._files.value(
                look, f"{name}_max", folder / f"max_link_{attribute}", partial(_rate, unit)
            )
            if now is None or own is None:
                continue
            above = (
                self._files.value(
                    Look(), "", self._root / port / f"max_link_{attribute}", partial(_rate, unit)
                )
                if port
                else None
            )
            look.values[f"{name}_max"] = min(own, above) if above is not None else own

    def _errors(self, look: Look, folder: Path) -> None:
        """How often each severity was counted since boot. What was counted, by its name in the
        specification, is for people.
        """
        if not (folder / f"aer_dev_{_SEVERITIES[0]}").exists():
            look.missing |= {
                f"aer_{severity}": (
                    "this function reports no PCIe errors, as in most virtual machines"
                )
                for severity in _SEVERITIES
            }
            return
        seen = []
        for severity in _SEVERITIES:
            found = self._files.value(
                look, f"aer_{severity}", folder / f"aer_dev_{severity}", _counted
            )
            if found is not None:
                look.values[f"aer_{severity}"] = found.pop(_TOTAL)
                seen += [f"{severity} {name} {count:g}" for name, count in found.items() if count]
        if seen:
            look.values["aer_seen"] = ", ".join(seen)


def _dead(config: Path) -> bool:
    """Whether all of it reads as ones. The maker's number alone does so of every virtual function.
    Raises OSError.
    """
    fd = os.open(config, os.O_RDONLY | os.O_CLOEXEC)
    try:
        head = os.pread(fd, _HEAD, 0)
        return head == b"\xff" * _HEAD and not os.pread(fd, _HEADER, 0).strip(b"\xff")
    finally:
        os.close(fd)


def _counted(text: str) -> dict[str, float]:
    """By name, and their total. Kernels differ in the names, and in whether the last line is a
    total. Raises ValueError.
    """
    found = dict(counters(text))
    if not found:
        raise ValueError(text)
    last = next(reversed(found))
    total = found.pop(last) if last.startswith("TOTAL_") else sum(found.values())
    return {**found, _TOTAL: total}


def _rate(unit: float, text: str) -> float:
    """Lanes (`16`), or a speed (`16.0 GT/s PCIe`). Raises ValueError for `Unknown`, and for a
    function that has no link of its own.
    """
    number = float(text.partition(" ")[0])
    if number in _NO_LINK:
        raise ValueError(text)
    return number * unit


def _model(device: PciDevice) -> str:
    """What sits where: another card in the slot is none that had a driver."""
    return f"{device.address} {device.vendor:04x}:{device.device:04x}"


def _words(device: PciDevice) -> str:
    """For people: `gpu 0000:18:00.0 (10de:2330, nvidia)`."""
    return (
        f"{device.kind.value} {device.address}"
        f" ({device.vendor:04x}:{device.device:04x}{f', {device.driver}' if device.driver else ''})"
    )


def _build(context: CollectorContext) -> Pci:
    return Pci(
        context.paths.sysfs,
        context.inventory,
        context.settings[PciSettings],
        context.get_uevent_error,
        nvml=context.settings[NvmlSettings].enabled,
    )


COLLECTOR = CollectorDefinition(
    name=Pci.name,
    section=SECTION,
    readings=READINGS,
    catalog_kinds=("pci",),
    subsystems=("pci",),
    build_collector=_build,
)
