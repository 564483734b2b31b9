"""
What was in the slots of this node, over a boot: PCI shows no serial numbers, so a function is known
by its slot and its model.

A device that is gone after a boot is missing, until one of its model is in its slot again, or in
another slot: the boot numbers the buses anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vitald.collectors.device_registry import is_component_name
from vitald.collectors.event_factory import derive_readings
from vitald.model.component import Component
from vitald.model.source import Readings
from vitald.model.words import ComponentKind
from vitald.topology.pci_inventory import PciDevice


@dataclass(frozen=True, slots=True)
class Occupant:
    """A function as it is remembered: its role, and its vendor and device ids."""

    part: str
    model: str


Occupants = Mapping[Component, Occupant]


class SlotMemory:
    """The occupants of this boot and of the last one. `departed`: what left in this boot before the
    daemon was restarted. `missing`: what the last boot had and this one has not.
    """

    def __init__(self, boot_id: str, is_given_up: Callable[[Component, Occupant], bool]) -> None:
        """`is_given_up`: whether the configuration allows that it is absent."""
        self.departed: dict[Component, Occupant] = {}
        self.missing: dict[Component, Occupant] = {}
        self._boot_id = boot_id
        self._is_given_up = is_given_up
        self._known: dict[Component, Occupant] = {}

    def restore(self, stored: object, machine: str, present: Occupants) -> None:
        """What was stored before the start, as far as it is understood: another version may have
        written it. That of another machine is forgotten: the disk may be a copy.
        """
        memory = stored if isinstance(stored, dict) else {}
        if memory.get("machine", machine) != machine:
            return
        self._known = _restore_occupants(memory.get("known"))
        names = memory.get("missing")
        reported = set(names) if isinstance(names, list) else set()
        same_boot = memory.get("boot") == self._boot_id
        for component, known in self._find_absent(present).items():
            was_missing = not same_boot or component.name in reported
            (self.missing if was_missing else self.departed)[component] = known

    def build_memory(self, machine: str) -> dict[str, Any]:
        """For JSON."""
        return {
            "machine": machine,
            "boot": self._boot_id,
            "known": {
                component.name: [known.part, known.model]
                for component, known in self._known.items()
            },
            "missing": [component.name for component in self.missing],
        }

    def compare(self, present: Occupants) -> Iterator[Readings]:
        """Readings of what is missing since the boot, and of what of it is back."""
        absent = self._find_absent(present)
        missing = {
            component: known for component, known in self.missing.items() if component in absent
        }
        for component, known in self.missing.items():
            still = float(component in missing)
            yield derive_readings(component, {"missing": still, "part": known.part})
        self.missing = missing
        self._known = {**absent, **present}

    def _find_absent(self, present: Occupants) -> dict[Component, Occupant]:
        """Known functions that are in no slot now. Where functions of the same model are in slots
        that had none of it, as many have moved; which ones is not known, only their number.
        """
        moved = Counter(
            found.model for component, found in present.items() if component not in self._known
        )
        absent = {}
        for component, known in sorted(self._known.items(), key=lambda item: item[0].name):
            if component in present or self._is_given_up(component, known):
                continue
            if moved[known.model]:
                moved[known.model] -= 1
            else:
                absent[component] = known
        return absent


def count_lacking(gpus: int) -> int:
    """How many GPUs a board lacks at least that shows so many: boards have 2, 4, 8 or 16, and so
    have virtual machines on them.
    """
    return (1 << max(gpus - 1, 0).bit_length()) - gpus  # one at least where there is none


def count_lacking_on_board(devices: Iterable[PciDevice]) -> int | None:
    """How many GPUs a board with NVSwitches lacks at least, by the most common model. None where
    there is no such board.
    """
    physical = [device for device in devices if not device.virtual]
    if not any(device.kind is ComponentKind.NVSWITCH for device in physical):
        return None
    models = Counter(device.model for device in physical if device.kind is ComponentKind.GPU)
    return count_lacking(max(models.values(), default=0))


def _restore_occupants(stored: object) -> dict[Component, Occupant]:
    if not isinstance(stored, dict):
        return {}
    return {
        Component.parse_name(name): Occupant(*fields)
        for name, fields in stored.items()
        if is_component_name(name)
        and isinstance(fields, list)
        and len(fields) == 2
        and all(isinstance(text, str) for text in fields)
    }
