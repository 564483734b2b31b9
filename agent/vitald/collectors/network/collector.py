"""
The network adapters of this node: RDMA devices and the interfaces that sit on PCI, by the PCI
function that they belong to.

Owns     which functions are looked at, and what only shows of all together: that all ports are
         down.
Refuses  how many adapters there should be (`expected` counts them), and virtual interfaces, which
         have no hardware to fail.

One function is one component, however many ports or interfaces it has, since the kernel's lines
name the function. A reading of a function with several ports has a value for each, in their order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from vitald.collectors import small_files
from vitald.collectors.definition import CollectorContext, CollectorDefinition
from vitald.collectors.event_factory import derive_readings
from vitald.collectors.inventory.settings import ExpectSettings
from vitald.collectors.network.adapter import NetworkAdapter
from vitald.collectors.network.port_history import PortHistory
from vitald.collectors.network.readings import READINGS
from vitald.collectors.network.settings import SECTION, NetworkSettings
from vitald.collectors.polling import Found, PolledDevice
from vitald.collectors.small_files import Files, Look
from vitald.model import NODE, Component, ComponentKind, Readings

NAME = "network"
KINDS = ("ib", "efa", "net", NAME)  # of the catalogue's entries about it
_FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_REPRESENTS = re.compile(r"(?:c\d+)?pf\d+(?:vf|sf)\d+")  # the switch's end of a virtual function


class Network:
    """A subject of a polled source."""

    name = NAME

    def __init__(
        self, sysfs: Path, settings: NetworkSettings, rates: Mapping[str, float] | None = None
    ) -> None:
        """`rates`: the link rate in bits per second that the configuration expects, by patterns of
        adapters' names.
        """
        self._root = str(sysfs)
        self._exclude = settings.exclude
        self._replace_after_s = settings.port_down_replace_after_s
        self._rates = rates or {}
        self._files = Files()
        self._history = PortHistory(lasts_s=2 * settings.every_s + settings.deadline_s)
        self._adapters: dict[str, NetworkAdapter] = {}

    @property
    def memory(self) -> dict[str, Any]:
        return self._history.memory

    @memory.setter
    def memory(self, memory: dict[str, Any]) -> None:
        self._history.memory = memory

    # --- what there is (in a thread)

    def find(self) -> Found:
        """Functions that have a device of ours, or had one. Raises OSError."""
        rdma: dict[str, str] = {}
        for name in small_files.names(f"{self._root}/class/infiniband"):
            if address := self._function(f"{self._root}/class/infiniband/{name}"):
                rdma.setdefault(address, name)
        interfaces: dict[str, list[str]] = {}
        for name in small_files.names(f"{self._root}/class/net"):
            if (
                address := self._function(f"{self._root}/class/net/{name}")
            ) and not self._represents(name):
                interfaces.setdefault(address, []).append(name)
        had = {
            address
            for address in self._history.memory.get("rdma", {})
            if Path(f"{self._root}/bus/pci/devices/{address}").exists()
        }
        here = sorted({*rdma, *interfaces, *had})
        self._adapters = {
            address: self._adapters.get(address) or self._adapter(address) for address in here
        }
        lent = self._lent()
        for address, adapter in self._adapters.items():
            adapter.rdma, adapter.interfaces = (
                rdma.get(address, ""),
                tuple(interfaces.get(address, ())),
            )
            adapter.driver = Path(_link(f"{adapter.folder}/driver")).name
            adapter.lent = lent
            adapter.rate = self._expected_rate(adapter)
        devices = [self._device(adapter) for adapter in self._adapters.values()]
        self._history.set_present(
            {address for address, adapter in self._adapters.items() if not self._excluded(adapter)}
        )
        absent = "" if devices else "no RDMA device, and no network interface on PCI"
        return Found(devices, absent=absent, excluded=self._exclude)

    def _function(self, entry: str) -> str:
        """The address of the function that a device belongs to; empty where that is none. A virtio
        device is one's only child.
        """
        try:
            place = os.path.realpath(f"{entry}/device", strict=True).split("/")
        except OSError:
            return ""  # virtual, or it went away
        own = place[-2] if place[-1].startswith("virtio") else place[-1]
        return own if _FUNCTION.fullmatch(own) else ""

    def _represents(self, interface: str) -> bool:
        with suppress(OSError):
            return (
                _REPRESENTS.fullmatch(
                    small_files.attribute(f"{self._root}/class/net/{interface}/phys_port_name")
                )
                is not None
            )
        return False  # most drivers have no name for it

    def _adapter(self, address: str) -> NetworkAdapter:
        folder = f"{self._root}/bus/pci/devices/{address}"
        ids = [
            self._files.text(Look(), name, f"{folder}/{name}") or ""
            for name in ("vendor", "device")
        ]
        return NetworkAdapter(
            address,
            folder,
            self._root,
            self._files,
            self._history,
            model=":".join(ids),
            virtual=bool(_link(f"{folder}/physfn")),
            replace_after_s=self._replace_after_s,
        )

    def _expected_rate(self, adapter: NetworkAdapter) -> float:
        """In bits per second, of the first pattern that matches; 0 where none does."""
        matching = (
            rate
            for pattern, rate in self._rates.items()
            if any(fnmatch(name, pattern) for name in adapter.names)
        )
        return next(matching, 0.0)

    def _lent(self) -> bool:
        """Whether the kernel lets RDMA devices be moved into a container's network namespace, and
        out of sight.
        """
        try:
            return (
                small_files.attribute(f"{self._root}/module/ib_core/parameters/netns_mode") == "N"
            )
        except OSError:
            return False

    def _device(self, adapter: NetworkAdapter) -> PolledDevice:
        component = Component(ComponentKind.NIC, adapter.address)
        if self._excluded(adapter):
            # It is named, so that one that was known before is not taken for missing.
            return PolledDevice(
                component, lambda: Look(missing={"link": "left alone: [network] exclude names it"})
            )
        return PolledDevice(
            component,
            adapter.read_adapter,
            expected=adapter.is_lasting or bool(self._history.find_rdma(adapter.address)[0]),
        )

    def _excluded(self, adapter: NetworkAdapter) -> bool:
        had = self._history.find_rdma(adapter.address)[0]
        return any(
            fnmatch(name, pattern)
            for name in (*adapter.names, *([had] if had else ()))
            for pattern in self._exclude
        )

    # --- what shows together (on the loop)

    def together(
        self,
        read: Mapping[Component, Readings],  # noqa: ARG002
        found: Found,
    ) -> Iterable[Readings]:
        """How many ports should be up, and are."""
        self._history.commit_observations()
        expected, up, down = self._history.count_ports()
        if found.devices and expected:
            values = {
                "ports_expected": float(expected),
                "ports_up": float(up),
                "ports_down": float(down),
            }
            yield derive_readings(NODE, {**values, "ports_all_down": float(down if not up else 0)})


def _link(path: str) -> str:
    """Where a link leads; empty where there is none."""
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def _build(context: CollectorContext) -> Network:
    rates = context.settings[ExpectSettings].link_rate
    return Network(context.paths.sysfs, context.settings[NetworkSettings], rates)


COLLECTOR = CollectorDefinition(
    name=NAME,
    section=SECTION,
    readings=READINGS,
    catalog_kinds=("network", "efa", "ib", "net"),
    counted=("efa", "nics"),
    subsystems=("pci", "infiniband", "net"),
    build_collector=_build,
)
