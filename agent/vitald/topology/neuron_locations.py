"""
Maps indexes of Neuron devices to PCI addresses, which sysfs does not.

Sources are the driver's log line at load (`** BDF: a0:1b.0 => nd[15]`), tables of known machines,
and elimination if only one is left. An index without an address is named by its number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from vitald.model.component import Component
from vitald.model.event import Fields
from vitald.model.words import ComponentKind

PLACED = "device/placed"  # the catalogue's entry for the driver's line

# By instance type, in the order of the indexes; from published listings (AWS Neuron documentation,
# neuron-ls). They may differ on other hosts, so a table only counts where every function that is
# there is in it.
_TRN1 = (
    "10:1c 10:1d a0:1c a0:1d 20:1b 20:1c 90:1b 90:1c 20:1d 20:1e 90:1d 90:1e 10:1e 10:1b a0:1e"
    " a0:1b"
)
_TRN2 = (
    "cc:00 b5:00 b6:00 cb:00 6f:00 58:00 59:00 6e:00 9b:00 84:00 85:00 9a:00 f8:00 e1:00 e2:00"
    " f7:00"
)
_TABLES = {
    machine: tuple(f"0000:{slot}.0" for slot in slots.split())
    for machine, slots in (
        ("trn1.32xlarge", _TRN1),
        ("trn1n.32xlarge", _TRN1),
        ("trn2.48xlarge", _TRN2),
        ("trn2u.48xlarge", _TRN2),
    )
}


class NeuronLocations:
    """The PCI address of each index, as far as it is known."""

    def __init__(self) -> None:
        self._reported: dict[int, str] = {}  # by the driver
        self._at: dict[int, str] = {}

    @property
    def memory(self) -> dict[str, str]:
        return {str(index): address for index, address in sorted(self._reported.items())}

    def restore_memory(self, memory: Mapping[str, str]) -> None:
        """The driver's messages of an earlier start; newer ones take precedence."""
        self._reported = {
            **{int(index): address for index, address in memory.items()},
            **self._reported,
        }
        self._at = {**self._reported, **self._at}

    def record_location(self, index: int, address: str) -> None:
        """The driver's message. It replaces an earlier index of that address."""
        self._reported = {other: at for other, at in self._reported.items() if at != address}
        self._reported[index] = self._at[index] = address

    def record_event(self, fields: Fields) -> None:
        """The same, from the fields of an event."""
        self.record_location(int(str(fields["device"])), f"0000:{fields['slot']}")

    def assign_devices(
        self, indexes: Collection[int], addresses: Collection[str], machine: str
    ) -> None:
        """Maps these indexes to these PCI functions."""
        at = {index: address for index, address in self._reported.items() if address in addresses}
        table = _TABLES.get(machine, ())
        if not self._reported and addresses and set(addresses) <= set(table):
            at = {index: address for index, address in enumerate(table) if address in addresses}
        loose = [index for index in indexes if index not in at]
        free = [address for address in addresses if address not in at.values()]
        if len(loose) == len(free) == 1:
            at[loose[0]] = free[0]
        self._at = at

    def find_address(self, index: int) -> str | None:
        return self._at.get(index)

    def find_index(self, address: str) -> int | None:
        return next((index for index, at in self._at.items() if at == address), None)

    def get_component(self, index: int) -> Component:
        """Named by its address if known, like all other devices; else by its number."""
        return Component(ComponentKind.NEURON, self._at.get(index, str(index)))

    def list_absent(self, addresses: Collection[str], machine: str) -> dict[int, str]:
        """The devices that this type of machine has and this node lacks: only if all others match
        the table.
        """
        table = _TABLES.get(machine, ())
        if (
            not addresses
            or not set(addresses) <= set(table)
            or any(self._reported.get(i, at) != at for i, at in enumerate(table))
        ):
            return {}
        return {index: address for index, address in enumerate(table) if address not in addresses}
