"""
One PCI function with an RDMA device, network interfaces, or both: its identity and its readings.

A virtual function, or one without its RDMA device, is still one component: kernel log lines name
the function. The state of an EFA port is constant and EFA has no interface, so it is judged by its
counters only.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitald import small_files
from vitald.collectors.network import port as ports
from vitald.collectors.network.efa import EfaDevice
from vitald.collectors.network.port import Carrier, Link, Port, PortCounters
from vitald.collectors.network.port_history import (
    AdapterObservation,
    PortHistory,
    PortSummary,
    join_ports,
)
from vitald.collectors.raw_readings import Files, RawReadings

# As mlx5_core, bnxt_en, mana and ice name theirs
_AUXILIARY_RDMA = re.compile(r"\w+\.(?:rdma|roce|iwarp)\.\d+")
_KIND_NAMES = {"efa": "EFA", "ib": "InfiniBand", "roce": "RoCE", "net": "interface"}
_IFF_UP = 0x1


@dataclass(slots=True)
class NetworkAdapter:
    """`rdma` and `interfaces` are the names of the function's devices, `folder` is the function's
    own in sysfs.
    """

    address: str
    folder: str
    root: str  # of sysfs
    files: Files
    history: PortHistory
    rdma: str = ""
    interfaces: tuple[str, ...] = ()
    driver: str = ""
    model: str = ""  # vendor and device number
    virtual: bool = False  # an SR-IOV virtual function
    lent: bool = False  # RDMA devices of this node may be moved into a container
    # Bits per second that the configuration expects of each port; 0: not configured.
    rate: float = 0.0
    _serial: str = ""
    _counters: PortCounters = field(init=False)
    _efa: EfaDevice = field(init=False)
    _interface_reader: InterfaceReader = field(init=False)

    def __post_init__(self) -> None:
        self._counters = PortCounters(self.files)
        self._efa = EfaDevice(self.files, self._counters)
        self._interface_reader = InterfaceReader(self.root, self.files, self.history)

    @property
    def names(self) -> tuple[str, ...]:
        """All names by which the configuration may refer to it."""
        return (*((self.rdma,) if self.rdma else ()), *self.interfaces, self.address)

    @property
    def is_lasting(self) -> bool:
        """Whether its RDMA device should stay where it is. Virtual functions are created and
        removed by command.
        """
        return bool(self.rdma) and not self.virtual and not self.lent

    def read_adapter(self) -> RawReadings:
        """All its readings. May block as long as the driver waits for the device."""
        raw = RawReadings()
        self._counters.begin_read()
        numbers = self._list_port_numbers()
        layer = self._read_link_layer(numbers[0]) if numbers else ""
        kind = self._find_kind(layer)
        raw.values["kind"] = kind
        if self.rdma:
            self._identify(raw)
        identity = raw.serial or f"nic/{self.address}"
        carriers: dict[str, Carrier] = {}
        if kind not in ("ib", "efa"):  # InfiniBand: its port reports more than its interface
            carriers = self._interface_reader.read_carriers(raw, identity, self.interfaces)
        seen: dict[str, Port] = {}
        if kind == "efa":
            had_counters = self.history.had_counters(identity)
            self._efa.read_device(raw, self._device, had_counters=had_counters)
        elif self.rdma:
            seen = self._read_ports(raw, identity, numbers, layer, carriers)
        self._detect_missing(raw)
        self._set_display_name(raw, kind)
        self.history.record_observation(
            self.address,
            AdapterObservation(
                at=time.monotonic(),
                identity=identity,
                model=self._describe_model(layer),
                driver=self.driver,
                rdma=self.rdma if self.is_lasting else "",
                ports=seen,
                carriers={f"{identity}/{name}": carrier for name, carrier in carriers.items()},
                counts=self._counters.answered,
            ),
        )
        return raw

    # --- identity

    @property
    def _device(self) -> str:
        return f"{self.root}/class/infiniband/{self.rdma}"

    def _list_port_numbers(self) -> list[str]:
        if not self.rdma:
            return []
        numbers = small_files.list_names(f"{self._device}/ports")
        return sorted(numbers, key=lambda number: (len(number), number))

    def _find_kind(self, link_layer: str) -> str:
        if not self.rdma:
            return "net"
        if self.driver == "efa":
            return "efa"
        return "roce" if link_layer == "Ethernet" else "ib"

    def _describe_model(self, link_layer: str) -> str:
        return f"{self.driver} {self.model} {link_layer}"

    def _read_link_layer(self, number: str) -> str:
        path = f"{self._device}/ports/{number}/link_layer"
        return self.files.read_text(RawReadings(), "link_layer", path) or ""

    def _identify(self, raw: RawReadings) -> None:
        guid = self.files.read_text(RawReadings(), "node_guid", f"{self._device}/node_guid") or ""
        if guid.strip("0:"):  # all zero: the driver does not report it
            self._serial = guid
        raw.serial = self._serial
        firmware = self.files.read_text(RawReadings(), "firmware", f"{self._device}/fw_ver")
        if firmware:
            raw.fields["firmware"] = firmware

    def _set_display_name(self, raw: RawReadings, kind: str) -> None:
        device = self.rdma or self.history.find_rdma(self.address)[0]
        interface = ", ".join(self.interfaces)
        if self.rdma or not device:
            name = f"{_KIND_NAMES[kind]} {self.rdma or interface}"
        else:
            name = f"RDMA device {device}"
        raw.display_name = f"{name}, PCI {self.address}"
        identification = {
            "pci": self.address,
            "device": device,
            "interface": interface,
            "driver": self.driver,
        }
        raw.fields |= {key: value for key, value in identification.items() if value}

    def _detect_missing(self, raw: RawReadings) -> None:
        """Detects a function whose RDMA device is gone. If another driver is bound to it, that was
        intended. One that is in another network namespace is not visible here; its function, and
        its device on the auxiliary bus, are in none.
        """
        had, driver = self.history.find_rdma(self.address)
        if self.rdma or not had or self.virtual or self.driver not in ("", driver):
            raw.values["rdma_missing"] = 0.0
        elif self.lent or self._has_auxiliary_rdma():
            raw.missing["rdma_missing"] = f"{had} is not visible in this network namespace"
        elif not self.driver and driver not in small_files.list_names(f"{self.root}/module"):
            raw.unreadable_reason = f"the driver {driver} is not loaded"
        else:
            raw.values["rdma_missing"] = 1.0

    def _has_auxiliary_rdma(self) -> bool:
        """Whether the driver has an RDMA device of this function on the auxiliary bus."""
        bus = f"{self.root}/bus/auxiliary/devices"
        return any(
            Path(os.path.realpath(f"{bus}/{name}")).parent.name == self.address
            for name in small_files.list_names(bus)
            if _AUXILIARY_RDMA.fullmatch(name)
        )

    # --- InfiniBand and RoCE

    def _read_ports(
        self,
        raw: RawReadings,
        identity: str,
        numbers: list[str],
        layer: str,
        carriers: dict[str, Carrier],
    ) -> dict[str, Port]:
        carrier = Carrier.UNKNOWN
        if len(carriers) == len(numbers) == 1:
            carrier = next(iter(carriers.values()))
        by_port, seen = [], {}
        for number in numbers:
            port_raw = RawReadings()
            seen[f"{identity}/{number}"] = self._read_port(
                port_raw, number, ethernet=layer == "Ethernet", carrier=carrier
            )
            by_port.append(port_raw)
        join_ports(raw, by_port)
        self._counters.report_unreadable(raw)
        summary = PortSummary(
            self.history,
            self._describe_model(layer),
            virtual=self.virtual,
            configured_rate=self.rate,
        )
        summary.add_to(raw, seen)
        return seen

    def _read_port(
        self, raw: RawReadings, number: str, *, ethernet: bool, carrier: Carrier
    ) -> Port:
        folder = f"{self._device}/ports/{number}"
        state = ports.parse_number(self.files.read_text(raw, "state", f"{folder}/state"))
        physical = ports.parse_number(
            self.files.read_text(raw, "phys_state", f"{folder}/phys_state")
        )
        link = ports.classify_link(state, physical, ethernet=ethernet, carrier=carrier)
        rate, lanes = ports.parse_rate(self.files.read_text(raw, "rate", f"{folder}/rate"))
        self._counters.read_port(raw, folder)
        return Port(link, rate, lanes) if link is Link.UP else Port(link)


@dataclass(frozen=True, slots=True)
class InterfaceReader:
    """Reads the interfaces of one adapter. `root`: of sysfs."""

    root: str
    files: Files
    history: PortHistory

    def read_carriers(
        self, raw: RawReadings, identity: str, interfaces: Sequence[str]
    ) -> dict[str, Carrier]:
        """The carriers by interface. `identity`: the adapter's."""
        if not interfaces:
            return {}
        carriers = {name: self._read_carrier(raw, name) for name in interfaces}
        expected = [
            carrier
            for name, carrier in carriers.items()
            if carrier is Carrier.UP or self.history.was_used(f"{identity}/{name}")
        ]
        if Carrier.UNKNOWN in expected:
            raw.missing.setdefault("carrier", "the interface does not say")
        elif expected:
            raw.values["carrier"] = _find_worst(expected).value
        counts = [self._read_carrier_downs(raw, name) for name in interfaces]
        known = [count for count in counts if count is not None]
        if known and len(known) == len(counts):
            raw.values["carrier_down_count"] = known[0] if len(known) == 1 else tuple(known)
        return carriers

    def _read_carrier(self, raw: RawReadings, name: str) -> Carrier:
        """The file returns EINVAL while the interface is turned off, so it is tried again each
        time.
        """
        flags = self.files.read_number(
            RawReadings(), "flags", f"{self.root}/class/net/{name}/flags"
        )
        if flags is None:
            return Carrier.UNKNOWN
        if not int(flags) & _IFF_UP:
            return Carrier.OFF
        try:
            text = small_files.read_attribute(f"{self.root}/class/net/{name}/carrier")
        except OSError as error:
            raw.missing["carrier"] = small_files.describe_error(error)
            return Carrier.UNKNOWN
        return {"1": Carrier.UP, "0": Carrier.LOST}.get(text, Carrier.UNKNOWN)

    def _read_carrier_downs(self, raw: RawReadings, name: str) -> float | None:
        interface_raw = RawReadings()
        path = f"{self.root}/class/net/{name}/carrier_down_count"
        count = self.files.read_number(interface_raw, "carrier_down_count", path)
        raw.missing |= interface_raw.missing
        return count


def _find_worst(carriers: Sequence[Carrier]) -> Carrier:
    """`carriers` has none that is unknown."""
    return next(
        (carrier for carrier in (Carrier.LOST, Carrier.UP) if carrier in carriers), Carrier.OFF
    )
