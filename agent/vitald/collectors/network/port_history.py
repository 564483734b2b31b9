"""
History of the node's network ports: which were ever up and how fast, and their last state; and the
readings of an adapter as a whole, which derive from its ports.

A port is expected to be up if it ever was. Management ports, virtual functions and unused second
ports are permanently down, which is no fault. Reader threads only read here; their observations are
committed on the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitald.collectors.network.port import Carrier, Link, Port
from vitald.collectors.raw_readings import RawReadings

# Entries of each table; virtual functions get a new name each time they are created.
_MAX_REMEMBERED = 1024
_RUNNING = (Link.UP, Link.RETRAINING)
_MIN_SIBLINGS = 3  # ports of the same model that must agree
# Time that a port was down is stored in steps of this, not after every poll.
_DOWN_STEP_S = 300.0
_WORST_FIRST = (Link.DOWN, Link.WAITING, Link.RETRAINING, Link.UNKNOWN, Link.UP)
Ports = Mapping[str, Port]  # by the adapter's identity and the port's number


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterObservation:
    """One adapter as it was last read. The keys are its identity and the number of the port, or the
    name of the interface.
    """

    at: float  # on the monotonic clock
    identity: str
    model: str = ""
    driver: str = ""
    rdma: str = ""  # its RDMA device, if that should stay where it is
    ports: Mapping[str, Port] = field(default_factory=dict)
    carriers: Mapping[str, Carrier] = field(default_factory=dict)
    counts: bool = False  # its port's counters were readable


class PortHistory:
    """`memory` is the collector's: `ports` with their best rate and lanes, `interfaces`, `rdma`
    devices by PCI address, `counted` (adapters whose counters were readable), and `down` (seconds
    by port).
    """

    def __init__(self, lasts_s: float) -> None:
        """`lasts_s`: for how many seconds an observation is current."""
        self.memory: dict[str, Any] = {}
        self._lasts_s = lasts_s
        self._seen: dict[str, AdapterObservation] = {}  # by PCI address
        self._present: set[str] = set()  # PCI addresses of all adapters, read or not
        # By port: for how many seconds it was observed down, and when last.
        self._down: dict[str, tuple[float, float]] = {}

    def record_observation(self, address: str, seen: AdapterObservation) -> None:
        self._seen[address] = seen

    def set_present(self, addresses: set[str]) -> None:
        """The PCI addresses of the adapters that are present."""
        self._present = addresses
        for address in set(self._seen) - addresses:
            del self._seen[address]

    def commit_observations(self) -> None:
        """Updates the memory from the last observations. Runs on the event loop."""
        for address, seen in list(self._seen.items()):
            if seen.rdma:
                self._remember_value("rdma", address, [seen.rdma, seen.driver])
            if seen.counts:
                self._remember_value("counted", seen.identity, True)
            for key, port in seen.ports.items():
                if port.link is Link.UP:
                    rate, lanes = self._get_best(key)
                    self._remember_value(
                        "ports", key, [max(rate, port.rate), max(lanes, port.lanes)]
                    )
                self._count_down_time(key, port.link, seen)
            for key, carrier in seen.carriers.items():
                if carrier is Carrier.UP:
                    self._remember_value("interfaces", key, True)

    def _count_down_time(self, key: str, link: Link, seen: AdapterObservation) -> None:
        """Adds up how long a port was observed down while another port of the node was up, across
        restarts and boots.

        Observed time only, on the monotonic clock: neither a clock step nor time without polling
        counts.
        """
        if link not in (Link.DOWN, Link.UNKNOWN):
            self._down.pop(key, None)
            self.memory.get("down", {}).pop(key, None)
            return
        seconds, last = self._down.get(key, (self.get_down_s(key), seen.at))
        if link is Link.DOWN and self.summarize_others(set(seen.ports)) == "up":
            seconds += min(max(0.0, seen.at - last), self._lasts_s)
        self._down[key] = seconds, seen.at
        if seconds >= _DOWN_STEP_S:
            self._remember_value("down", key, seconds // _DOWN_STEP_S * _DOWN_STEP_S)

    def _remember_value(self, table: str, key: str, value: object) -> None:
        remembered = self.memory.setdefault(table, {})
        if key not in remembered and len(remembered) >= _MAX_REMEMBERED:
            del remembered[next(iter(remembered))]
        remembered[key] = value

    def _get_best(self, key: str) -> tuple[float, float]:
        rate, lanes = self.memory.get("ports", {}).get(key, (0.0, 0.0))
        return float(rate), float(lanes)

    # --- used by reader threads

    def find_rdma(self, address: str) -> tuple[str, str]:
        """The RDMA device that the function at an address had, and its driver; empty if none."""
        name, driver = self.memory.get("rdma", {}).get(address, ("", ""))
        return str(name), str(driver)

    def had_counters(self, identity: str) -> bool:
        return identity in self.memory.get("counted", {})

    def was_used(self, key: str) -> bool:
        """Whether a port or an interface was ever up."""
        return key in self.memory.get("ports", {}) or key in self.memory.get("interfaces", {})

    def get_down_s(self, key: str) -> float:
        """For how many seconds a port was observed down while another one of the node was up."""
        seconds = (
            self._down[key][0] if key in self._down else self.memory.get("down", {}).get(key, 0.0)
        )
        return float(seconds)

    def get_expected(self, key: str, model: str) -> tuple[float, float]:
        """The expected rate and lanes of a port: its best so far, or that of all others of its
        model if they agree on more.
        """
        rate, lanes = self._get_best(key)
        others = [
            (port.rate, port.lanes)
            for other, port, other_model in self._list_current()
            if other != key and other_model == model and port.link is Link.UP
        ]
        if len(others) >= _MIN_SIBLINGS and len(set(others)) == 1:
            rate, lanes = max(rate, others[0][0]), max(lanes, others[0][1])
        return rate, lanes

    def is_only_down(self, key: str, model: str) -> bool:
        """Whether all other ports of its model are up, and there are some."""
        others = [
            port.link
            for other, port, other_model in self._list_current()
            if other != key and other_model == model
        ]
        return len(others) >= _MIN_SIBLINGS and all(link is Link.UP for link in others)

    def summarize_others(self, keys: set[str]) -> str:
        """State of the node's other ports that should be up: `up` if one is, `down` if none is,
        `none` if there are none. Empty while unknown: no port is up, but not all adapters have been
        read since the start.
        """
        links = [
            port.link
            for key, port, _ in self._list_current()
            if key not in keys and self._should_be_up(key, port)
        ]
        if any(link in _RUNNING for link in links):
            return "up"
        if not self._present <= self._seen.keys():
            return ""
        return "down" if links else "none"

    def count_ports(self) -> tuple[int, int, int]:
        """Ports that should be up: how many there are, are up, and are down."""
        links = [
            port.link for key, port, _ in self._list_current() if self._should_be_up(key, port)
        ]
        return len(links), sum(link in _RUNNING for link in links), links.count(Link.DOWN)

    def _should_be_up(self, key: str, port: Port) -> bool:
        return self.was_used(key) and port.link is not Link.DISABLED

    def _list_current(self) -> Iterator[tuple[str, Port, str]]:
        since = time.monotonic() - self._lasts_s
        for seen in list(self._seen.values()):
            for key, port in seen.ports.items() if seen.at >= since else ():
                yield key, port, seen.model


@dataclass(frozen=True, slots=True)
class PortSummary:
    """`model`: the adapter's. `configured_rate` in bits per second, 0 if not configured."""

    history: PortHistory
    model: str
    virtual: bool
    configured_rate: float

    def add_to(self, raw: RawReadings, ports: Ports) -> None:
        """The worst of those ports that should be up; and of those that are up, the one that is
        slowest for its expected rate.
        """
        expected = {key: port for key, port in ports.items() if self._should_be_up(key, port)}
        _add_link(raw, expected)
        if others := self.history.summarize_others(set(ports)):
            raw.values["others"] = others
        self._add_down_time(raw, expected)
        raw.values["never_up"] = float(self._has_port_never_up(ports, expected))
        self._add_rate(raw, expected)

    def _should_be_up(self, key: str, port: Port) -> bool:
        if port.link in (Link.UP, Link.UNKNOWN) or self.history.was_used(key):
            return True
        # A link that trained and waits has a partner, whether it was ever used or not: unless it is
        # a virtual function's.
        return port.link is Link.WAITING and not self.virtual

    def _add_down_time(self, raw: RawReadings, expected: Ports) -> None:
        down = [key for key, port in expected.items() if port.link is Link.DOWN]
        down_s = max(map(self.history.get_down_s, down), default=0.0)
        raw.values["link_down_seconds"] = down_s

    def _has_port_never_up(self, ports: Ports, expected: Ports) -> bool:
        """Whether a port is unused while all others of its model are up."""
        if self.virtual:
            return False
        return any(
            port.link is Link.DOWN
            and key not in expected
            and self.history.is_only_down(key, self.model)
            for key, port in ports.items()
        )

    def _add_rate(self, raw: RawReadings, expected: Ports) -> None:
        running = [
            (port, *self._get_expected_rate(key, port))
            for key, port in expected.items()
            if port.link is Link.UP and port.rate
        ]
        if not running:
            raw.missing |= dict.fromkeys(("bits_per_second", "lanes"), "no port is up")
            return
        port, rate, lanes = min(running, key=_compute_rate_ratio)
        raw.values |= {
            "bits_per_second": port.rate,
            "bits_per_second_expected": max(rate, port.rate),
        }
        if port.lanes:
            raw.values |= {"lanes": port.lanes, "lanes_expected": max(lanes, port.lanes)}

    def _get_expected_rate(self, key: str, port: Port) -> tuple[float, float]:
        """The expected rate and lanes of a port: configured, else learned."""
        if self.configured_rate:
            return self.configured_rate, port.lanes
        return self.history.get_expected(key, self.model)


def _add_link(raw: RawReadings, expected: Ports) -> None:
    links = {port.link for port in expected.values()}
    if not links:
        raw.values["link"] = "unused"
        return
    worst = next((link for link in _WORST_FIRST if link in links), Link.DISABLED)
    if worst is Link.UNKNOWN:
        reason = raw.missing.get("state") or raw.missing.get("phys_state")
        raw.missing["link"] = reason or "the port's state is none that is known here"
        raw.require("link")
    else:
        raw.values["link"] = worst.value


def _compute_rate_ratio(running: tuple[Port, float, float]) -> float:
    """The rate of a port relative to the expected one; at most 1."""
    port, rate, _ = running
    return port.rate / max(rate, port.rate)


def join_ports(raw: RawReadings, by_port: Sequence[RawReadings]) -> None:
    """The readings of one port as they are; of several ports, one value per port, in the order of
    their numbers.
    """
    if len(by_port) == 1:
        raw.values |= by_port[0].values
        raw.missing |= by_port[0].missing
        return
    for name in sorted({name for port in by_port for name in (*port.values, *port.missing)}):
        values = [port.values.get(name) for port in by_port]
        numbers = [value for value in values if isinstance(value, float)]
        if len(numbers) == len(by_port):
            raw.values[name] = tuple(numbers)
        elif all(isinstance(value, str) for value in values):
            raw.values[name] = ", ".join(map(str, values))
        else:
            reasons = (port.missing[name] for port in by_port if name in port.missing)
            raw.missing[name] = next(reasons, "not all ports have it")
