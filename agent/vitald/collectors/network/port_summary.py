"""The readings of an adapter as a whole, from those of its InfiniBand or RoCE ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitald.collectors.network.port import Link, Port
from vitald.collectors.network.port_history import PortHistory
from vitald.collectors.small_files import RawReadings

_WORST_FIRST = (Link.DOWN, Link.WAITING, Link.RETRAINING, Link.UNKNOWN, Link.UP)

Ports = Mapping[str, Port]  # by the adapter's identity and the port's number


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
