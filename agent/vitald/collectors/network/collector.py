"""
The network adapters of this node: RDMA devices and the interfaces that sit on PCI, by PCI function.

One function is one component, however many ports or interfaces it has, as kernel log lines name the
function. A reading of a function with several ports has one value per port, in their order. Virtual
interfaces are left out: they have no hardware to fail.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from vitald import small_files
from vitald.collectors.collector import Found, PolledDevice
from vitald.collectors.definition import CollectorContext, CollectorDefinition
from vitald.collectors.event_factory import derive_readings
from vitald.collectors.inventory.settings import ExpectSettings
from vitald.collectors.network.adapter import NetworkAdapter
from vitald.collectors.network.port_history import PortHistory
from vitald.collectors.network.readings import READINGS
from vitald.collectors.network.settings import SECTION, NetworkSettings
from vitald.collectors.raw_readings import Files, RawReadings
from vitald.config.paths import Paths
from vitald.model.component import NODE, Component
from vitald.model.source import Readings
from vitald.model.words import ComponentKind

NAME = "network"
KINDS = ("ib", "efa", "net", NAME)  # of the catalogue's entries about this collector
_FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# The end of a virtual function in the adapter's embedded switch.
_REPRESENTOR = re.compile(r"(?:c\d+)?pf\d+(?:vf|sf)\d+")


class Network:
    """A collector for `PollingSource`."""

    name = NAME

    def __init__(
        self, sysfs: Path, settings: NetworkSettings, rates: Mapping[str, float] | None = None
    ) -> None:
        """`rates`: the link rate in bits per second that the configuration expects, by patterns of
        adapters' names.
        """
        self._root = str(sysfs)
        self._exclude = settings.exclude
        self.rates = rates or {}
        self._files = Files()
        self._history = PortHistory(lasts_s=2 * settings.every_s + settings.deadline_s)
        self._adapters: dict[str, NetworkAdapter] = {}

    @property
    def memory(self) -> dict[str, Any]:
        return self._history.memory

    @memory.setter
    def memory(self, memory: dict[str, Any]) -> None:
        self._history.memory = memory

    # --- the adapters, in a thread

    def find_devices(self) -> Found:
        """Functions that have an RDMA device or an interface, or had an RDMA device. Raises
        OSError.
        """
        rdma, interfaces = self._map_rdma(), self._map_interfaces()
        had_rdma = {
            address
            for address in self._history.memory.get("rdma", {})
            if Path(f"{self._root}/bus/pci/devices/{address}").exists()
        }
        self._adapters = {
            address: self._adapters.get(address) or self._create_adapter(address)
            for address in sorted({*rdma, *interfaces, *had_rdma})
        }
        lent = self._is_rdma_lent()
        for address, adapter in self._adapters.items():
            adapter.rdma = rdma.get(address, "")
            adapter.interfaces = tuple(interfaces.get(address, ()))
            adapter.driver = Path(_read_link(f"{adapter.folder}/driver")).name
            adapter.lent = lent
            adapter.rate = self._find_expected_rate(adapter)
        devices = [self._create_device(adapter) for adapter in self._adapters.values()]
        self._history.set_present(
            {
                address
                for address, adapter in self._adapters.items()
                if not self._is_excluded(adapter)
            }
        )
        absent = "" if devices else "no RDMA device, and no network interface on PCI"
        return Found(devices, absent=absent, excluded=self._exclude)

    def _map_rdma(self) -> dict[str, str]:
        """RDMA devices by PCI address."""
        rdma: dict[str, str] = {}
        for name in small_files.list_names(f"{self._root}/class/infiniband"):
            if address := _find_function(f"{self._root}/class/infiniband/{name}"):
                rdma.setdefault(address, name)
        return rdma

    def _map_interfaces(self) -> dict[str, list[str]]:
        """Network interfaces by PCI address."""
        interfaces: dict[str, list[str]] = {}
        for name in small_files.list_names(f"{self._root}/class/net"):
            address = _find_function(f"{self._root}/class/net/{name}")
            if address and not self._is_representor(name):
                interfaces.setdefault(address, []).append(name)
        return interfaces

    def _is_representor(self, interface: str) -> bool:
        path = f"{self._root}/class/net/{interface}/phys_port_name"
        with suppress(OSError):  # most drivers have no name for the port
            return _REPRESENTOR.fullmatch(small_files.read_attribute(path)) is not None
        return False

    def _create_adapter(self, address: str) -> NetworkAdapter:
        folder = f"{self._root}/bus/pci/devices/{address}"
        ids = [
            self._files.read_text(RawReadings(), name, f"{folder}/{name}") or ""
            for name in ("vendor", "device")
        ]
        return NetworkAdapter(
            address,
            folder,
            self._root,
            self._files,
            self._history,
            model=":".join(ids),
            virtual=bool(_read_link(f"{folder}/physfn")),
        )

    def _find_expected_rate(self, adapter: NetworkAdapter) -> float:
        """In bits per second, of the first pattern that matches; 0 if none does."""
        matching = (
            rate
            for pattern, rate in self.rates.items()
            if any(fnmatch(name, pattern) for name in adapter.names)
        )
        return next(matching, 0.0)

    def _is_rdma_lent(self) -> bool:
        """Whether the kernel lets RDMA devices be moved into a container's network namespace, where
        they are not visible.
        """
        path = f"{self._root}/module/ib_core/parameters/netns_mode"
        try:
            return small_files.read_attribute(path) == "N"
        except OSError:
            return False

    def _create_device(self, adapter: NetworkAdapter) -> PolledDevice:
        component = Component(ComponentKind.NIC, adapter.address)
        if self._is_excluded(adapter):
            # Listed, so that an adapter that was known before is not reported missing.
            reason = "left alone: [network] exclude names it"
            return PolledDevice(component, lambda: RawReadings(missing={"link": reason}))
        had_rdma = bool(self._history.find_rdma(adapter.address)[0])
        return PolledDevice(
            component, adapter.read_adapter, expected=adapter.is_lasting or had_rdma
        )

    def _is_excluded(self, adapter: NetworkAdapter) -> bool:
        had_rdma = self._history.find_rdma(adapter.address)[0]
        return any(
            fnmatch(name, pattern)
            for name in (*adapter.names, *([had_rdma] if had_rdma else ()))
            for pattern in self._exclude
        )

    # --- all adapters together, on the loop

    def combine_readings(
        self,
        read: Mapping[Component, Readings],  # noqa: ARG002
        found: Found,
    ) -> Iterable[Readings]:
        """How many ports should be up, and how many are."""
        self._history.commit_observations()
        expected, up, down = self._history.count_ports()
        if found.devices and expected:
            values = {
                "ports_expected": float(expected),
                "ports_up": float(up),
                "ports_down": float(down),
            }
            yield derive_readings(NODE, {**values, "ports_all_down": float(down if not up else 0)})


def _find_function(entry: str) -> str:
    """PCI address of the function that a class device belongs to; empty if it is on no PCI
    function. A virtio device is the only child of one.
    """
    try:
        location = os.path.realpath(f"{entry}/device", strict=True).split("/")
    except OSError:
        return ""  # virtual, or it went away
    address = location[-2] if location[-1].startswith("virtio") else location[-1]
    return address if _FUNCTION.fullmatch(address) else ""


def _read_link(path: str) -> str:
    """The target of a symbolic link; empty if there is no link."""
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def _build_network(context: CollectorContext) -> Network:
    rates = context.config[ExpectSettings].link_rate
    return Network(context.config[Paths].sysfs, context.config[NetworkSettings], rates)


COLLECTOR = CollectorDefinition(
    name=NAME,
    section=SECTION,
    readings=READINGS,
    catalog_kinds=("network", "efa", "ib", "net"),
    counted=("efa", "nics"),
    subsystems=("pci", "infiniband", "net"),
    build_collector=_build_network,
)
