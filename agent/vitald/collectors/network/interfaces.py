"""The network interfaces of an adapter: carrier, and how often it was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vitald.collectors import small_files
from vitald.collectors.network.port import Carrier
from vitald.collectors.network.port_history import PortHistory
from vitald.collectors.small_files import Files, RawReadings

_IFF_UP = 0x1


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
