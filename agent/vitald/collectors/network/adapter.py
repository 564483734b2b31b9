"""
One PCI function with an RDMA device, network interfaces, or both: what a look at it reads.

Owns     which files are read and in which order, the heartbeat and the commands of an EFA device,
         and the words for a person.
Refuses  to ask a dead EFA device anything more: once a command of it was never answered, its driver
         answers every further question with an error and a line in the kernel log.

The state of an EFA port is a constant, so it is not read; and it has no interface. How it is shows
in what it counts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from vitald.collectors import small_files
from vitald.collectors.network import port as ports
from vitald.collectors.network.learned import AdapterObservation, PortHistory
from vitald.collectors.network.port import Carrier, Link, Port, PortCounters
from vitald.collectors.small_files import Files, RawReadings

_IFF_UP = 0x1
_BEATS, _MOVES = 10, 3  # so many heartbeats, seen in so many looks, have a rhythm
_KINDS = {"efa": "EFA", "ib": "InfiniBand", "roce": "RoCE", "net": "interface"}
_WORST = (Link.DOWN, Link.WAITING, Link.RETRAINING, Link.UNKNOWN, Link.UP)


@dataclass(slots=True)
class KeepAlive:
    """A counter that should go on rising. How fast is not documented, so it is learned."""

    first: tuple[float, float] | None = None  # when, and what it stood at
    last: tuple[float, float] = (0.0, 0.0)
    moves: int = 0

    def record_beat(self, now: float, count: float) -> tuple[float, float] | None:
        """For how long it has stood still, and the seconds from one beat to the next, at least 1.
        None while that is not known.
        """
        if (
            self.first is None or count < self.last[1]
        ):  # it began anew, as when the driver is loaded
            self.first, self.last, self.moves = (now, count), (now, count), 0
        elif count > self.last[1]:
            self.last, self.moves = (now, count), self.moves + 1
        beats = self.last[1] - self.first[1]
        if self.moves < _MOVES or beats < _BEATS:
            return None
        return now - self.last[0], max(1.0, (self.last[0] - self.first[0]) / beats)


@dataclass(slots=True)
class NetworkAdapter:
    """`rdma` and `interfaces` are the names of the function's devices, `folder` the
    function's own.
    """

    address: str
    folder: str
    root: str  # of sysfs
    files: Files
    learned: PortHistory
    rdma: str = ""
    interfaces: tuple[str, ...] = ()
    driver: str = ""
    model: str = ""  # maker and device number
    virtual: bool = False  # a function that another one made
    lent: bool = False  # RDMA devices of this node may be moved into a container
    rate: float = (
        0.0  # bits per second that the configuration expects of each of its ports; 0: not said
    )
    replace_after_s: float = (
        0.0  # a port that was down for so long asks for a replacement; 0: never
    )
    heart: KeepAlive = field(default_factory=KeepAlive)
    _serial: str = ""
    _completed: float = -1.0
    _counters: PortCounters = field(init=False)

    def __post_init__(self) -> None:
        self._counters = PortCounters(self.files)

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that it may be called by in the configuration."""
        return (*((self.rdma,) if self.rdma else ()), *self.interfaces, self.address)

    @property
    def is_lasting(self) -> bool:
        """Whether its RDMA device should stay where it is. Virtual functions come and go by
        command.
        """
        return bool(self.rdma) and not self.virtual and not self.lent

    def read_adapter(self) -> RawReadings:
        """All its readings. May block as long as the driver waits for the device."""
        look = RawReadings()
        self._counters.begin_read()
        number = (
            sorted(
                small_files.list_names(f"{self._device}/ports"), key=lambda name: (len(name), name)
            )
            if self.rdma
            else []
        )
        layer = self._read_link_layer(number[0]) if number else ""
        kind = self._find_kind(layer)
        look.values["kind"] = kind
        if self.rdma:
            self._identify(look)
        identity = look.serial or f"nic/{self.address}"
        carriers = self._read_interfaces(look, identity, kind)
        seen: dict[str, Port] = {}
        if kind == "efa":
            self._read_efa(look, identity)
        elif self.rdma:
            seen = self._read_ports(look, identity, number, layer, carriers)
        self._detect_missing(look)
        self._set_display_name(look, kind)
        self.learned.record_observation(
            self.address,
            AdapterObservation(
                at=time.monotonic(),
                identity=identity,
                model=f"{self.driver} {self.model} {layer}",
                driver=self.driver,
                rdma=self.rdma if self.is_lasting else "",
                ports=seen,
                carriers={f"{identity}/{name}": carrier for name, carrier in carriers.items()},
                counts=self._counters.answered,
            ),
        )
        return look

    # --- identity

    def _find_kind(self, link_layer: str) -> str:
        if not self.rdma:
            return "net"
        if self.driver == "efa":
            return "efa"
        return "roce" if link_layer == "Ethernet" else "ib"

    @property
    def _device(self) -> str:
        return f"{self.root}/class/infiniband/{self.rdma}"

    def _read_link_layer(self, number: str) -> str:
        return (
            self.files.read_text(
                RawReadings(), "link_layer", f"{self._device}/ports/{number}/link_layer"
            )
            or ""
        )

    def _identify(self, look: RawReadings) -> None:
        guid = self.files.read_text(RawReadings(), "node_guid", f"{self._device}/node_guid") or ""
        if guid.strip("0:"):  # all zero: a driver that does not say
            self._serial = guid
        look.serial = self._serial
        firmware = self.files.read_text(RawReadings(), "firmware", f"{self._device}/fw_ver")
        if firmware:
            look.fields["firmware"] = firmware

    def _set_display_name(self, look: RawReadings, kind: str) -> None:
        device, interface = (
            self.rdma or self.learned.find_rdma(self.address)[0],
            ", ".join(self.interfaces),
        )
        what = (
            f"{_KINDS[kind]} {self.rdma or interface}"
            if self.rdma or not device
            else f"RDMA device {device}"
        )
        look.display_name = f"{what}, PCI {self.address}"
        said = {
            "pci": self.address,
            "device": device,
            "interface": interface,
            "driver": self.driver,
        }
        look.fields |= {key: value for key, value in said.items() if value}

    def _detect_missing(self, look: RawReadings) -> None:
        """Detects a function whose RDMA device is gone. If another driver is bound to it, that was
        intended.
        """
        had, driver = self.learned.find_rdma(self.address)
        if self.rdma or not had or self.virtual or self.lent or self.driver not in ("", driver):
            look.values["rdma_missing"] = 0.0
        elif not self.driver and driver not in small_files.list_names(f"{self.root}/module"):
            look.unreadable_reason = f"the driver {driver} is not loaded"
        else:
            look.values["rdma_missing"] = 1.0

    # --- interfaces

    def _read_interfaces(self, look: RawReadings, identity: str, kind: str) -> dict[str, Carrier]:
        """The carriers. An interface of InfiniBand is not looked at: its port says more, and it
        goes with the fabric's manager.
        """
        if kind in ("ib", "efa") or not self.interfaces:
            return {}
        carriers = {name: self._read_carrier(look, name) for name in self.interfaces}
        should = [
            carrier
            for name, carrier in carriers.items()
            if carrier is Carrier.UP or self.learned.was_used(f"{identity}/{name}")
        ]
        if Carrier.UNKNOWN in should:
            look.missing.setdefault("carrier", "the interface does not say")
        elif should:
            look.values["carrier"] = next(
                (one.value for one in (Carrier.LOST, Carrier.UP) if one in should),
                Carrier.OFF.value,
            )
        counts = [self._read_carrier_downs(look, name) for name in self.interfaces]
        whole = [count for count in counts if count is not None]
        if whole and len(whole) == len(counts):
            look.values["carrier_down_count"] = whole[0] if len(whole) == 1 else tuple(whole)
        return carriers

    def _read_carrier(self, look: RawReadings, name: str) -> Carrier:
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
            return {"1": Carrier.UP, "0": Carrier.LOST}.get(
                small_files.read_attribute(f"{self.root}/class/net/{name}/carrier"), Carrier.UNKNOWN
            )
        except OSError as error:
            look.missing["carrier"] = small_files.describe_error(error)
            return Carrier.UNKNOWN

    def _read_carrier_downs(self, look: RawReadings, name: str) -> float | None:
        one = RawReadings()
        count = self.files.read_number(
            one, "carrier_down_count", f"{self.root}/class/net/{name}/carrier_down_count"
        )
        look.missing |= one.missing
        return count

    # --- InfiniBand and RoCE

    def _read_ports(
        self,
        look: RawReadings,
        identity: str,
        numbers: list[str],
        layer: str,
        carriers: dict[str, Carrier],
    ) -> dict[str, Port]:
        carrier = (
            next(iter(carriers.values())) if len(carriers) == len(numbers) == 1 else Carrier.UNKNOWN
        )
        looks, seen = [], {}
        for number in numbers:
            one = RawReadings()
            seen[f"{identity}/{number}"] = self._read_port(
                one, number, ethernet=layer == "Ethernet", carrier=carrier
            )
            looks.append(one)
        _join_ports(look, looks)
        if self._counters.failed or self._counters.answered:
            look.values["counters_unreadable"] = float(self._counters.failed)
        self._summarize_ports(look, seen, f"{self.driver} {self.model} {layer}")
        return seen

    def _read_port(
        self, look: RawReadings, number: str, *, ethernet: bool, carrier: Carrier
    ) -> Port:
        folder = f"{self._device}/ports/{number}"
        state = ports.parse_number(self.files.read_text(look, "state", f"{folder}/state"))
        physical = ports.parse_number(
            self.files.read_text(look, "phys_state", f"{folder}/phys_state")
        )
        link = ports.classify_link(state, physical, ethernet=ethernet, carrier=carrier)
        rate, lanes = ports.parse_rate(self.files.read_text(look, "rate", f"{folder}/rate"))
        self._counters.read_port(look, folder)
        return Port(link, rate, lanes) if link is Link.UP else Port(link)

    def _summarize_ports(self, look: RawReadings, seen: dict[str, Port], model: str) -> None:
        """The worst of those ports that should be up; and of those that are up, the one that is
        slowest for what it should be.
        """
        # A link that trained and waits has a partner, whether it was ever used or not: unless it is
        # a virtual function's.
        should = {
            key: port
            for key, port in seen.items()
            if port.link in (Link.UP, Link.UNKNOWN)
            or self.learned.was_used(key)
            or (port.link is Link.WAITING and not self.virtual)
        }
        links = {port.link for port in should.values()}
        worst = next((link for link in _WORST if link in links), Link.DISABLED if links else None)
        if worst is Link.UNKNOWN:
            why = look.missing.get("state") or look.missing.get("phys_state")
            look.missing["link"] = why or "the port's state is none that is known here"
            look.require("link")
        else:
            look.values["link"] = worst.value if worst is not None else "unused"
        if others := self.learned.summarize_others(set(seen)):
            look.values["others"] = others
        down_s = max(
            (self.learned.down_s(key) for key, port in should.items() if port.link is Link.DOWN),
            default=0.0,
        )
        look.values["link_down_seconds"] = down_s
        look.values["link_down_overdue"] = float(0.0 < self.replace_after_s <= down_s)
        unused = [
            key
            for key, port in seen.items()
            if key not in should and port.link is Link.DOWN and not self.virtual
        ]
        look.values["never_up"] = float(
            any(self.learned.is_only_down(key, model) for key in unused)
        )
        running = [
            (port, self._expected_of(port, key, model))
            for key, port in should.items()
            if port.link is Link.UP and port.rate
        ]
        if not running:
            look.missing |= dict.fromkeys(("bits_per_second", "lanes"), "no port is up")
            return
        port, (rate, lanes) = min(
            running, key=lambda one: one[0].rate / max(one[1][0], one[0].rate)
        )
        look.values |= {
            "bits_per_second": port.rate,
            "bits_per_second_expected": max(rate, port.rate),
        }
        if port.lanes:
            look.values |= {"lanes": port.lanes, "lanes_expected": max(lanes, port.lanes)}

    def _expected_of(self, port: Port, key: str, model: str) -> tuple[float, float]:
        """The expected rate and lanes of a port: configured, else learned."""
        return (self.rate, port.lanes) if self.rate else self.learned.get_expected(key, model)

    # --- EFA

    def _read_efa(self, look: RawReadings, identity: str) -> None:
        """The device's own counters are in the node's memory and can be read even if the card is
        dead, so they are read first.
        """
        own = f"{self._device}/hw_counters"
        self._counters.read_counters(
            look, own, ("submitted_cmds", "completed_cmds", "no_completion_cmds", "keep_alive_rcvd")
        )
        now = time.monotonic()
        self._derive_waiting(look)
        beats = look.values.get("keep_alive_rcvd")
        if isinstance(beats, float) and (still := self.heart.record_beat(now, beats)) is not None:
            look.values["keep_alive_still_seconds"], look.values["keep_alive_rhythm_seconds"] = (
                still
            )
        self.files.read_text(look, "rate", f"{self._device}/ports/1/rate")
        self._counters.begin_read()  # that these can be read proves nothing
        if look.values.get("no_completion_cmds"):
            look.missing |= dict.fromkeys(
                ports.EFA, "the device answers no commands any more, so it is not asked"
            )
            return
        self._counters.read_counters(
            look,
            f"{self._device}/ports/1/hw_counters",
            ports.EFA,
            before=self.learned.had_counters(identity),
        )
        if self._counters.failed or self._counters.answered:
            look.values["counters_unreadable"] = float(self._counters.failed)
        elif (
            "no_completion_cmds" not in look.values
        ):  # its state is a constant: its counters are all that tells a dead one
            look.missing.setdefault(
                "no_completion_cmds", "the driver offers no counters of this device"
            )
            look.require("no_completion_cmds")

    def _derive_waiting(self, look: RawReadings) -> None:
        """How many commands wait while none is completed; without those that the driver gave up."""
        submitted, completed, lost = (
            look.values.get(name)
            for name in ("submitted_cmds", "completed_cmds", "no_completion_cmds")
        )
        if not isinstance(submitted, float) or not isinstance(completed, float):
            return
        if self._completed >= 0:
            waiting = submitted - completed - (lost if isinstance(lost, float) else 0.0)
            look.values["commands_waiting"] = (
                max(0.0, waiting) if completed == self._completed else 0.0
            )
        self._completed = completed


def _join_ports(look: RawReadings, looks: list[RawReadings]) -> None:
    """One port's readings as they are; of several ports, one value per port, in the order of their
    numbers.
    """
    if len(looks) == 1:
        look.values |= looks[0].values
        look.missing |= looks[0].missing
        return
    for name in sorted({name for one in looks for name in (*one.values, *one.missing)}):
        values = [one.values.get(name) for one in looks]
        numbers = [value for value in values if isinstance(value, float)]
        if len(numbers) == len(looks):
            look.values[name] = tuple(numbers)
        elif all(isinstance(value, str) for value in values):
            look.values[name] = ", ".join(map(str, values))
        else:
            look.missing[name] = next(
                (one.missing[name] for one in looks if name in one.missing), "not all ports have it"
            )
