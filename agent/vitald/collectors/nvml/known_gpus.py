"""
Registry of the node's GPUs by UUID: which there should be, and in which slot.

A known GPU that is not found is missing until it is seen again, however many boots that takes. One
whose slot holds another UUID was replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vitald.model.component import Component, DeviceNames
from vitald.model.source import Sample
from vitald.model.words import ComponentKind

_SIMULATED = " (simulated)"  # after the model's name


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGpu:
    """Identity and location of a GPU. They cannot be read once the GPU is lost."""

    address: str
    uuid: str
    name: str = ""
    serial: str = ""
    module: str = ""  # position on an SXM board, as the driver numbers them
    slot: str = ""  # the physical slot, as the firmware names it
    place: str = ""  # chassis, slot and tray in a rack

    @property
    def component(self) -> Component:
        return Component(ComponentKind.GPU, self.address)

    @property
    def display_name(self) -> str:
        """Display name: all that helps to find the board."""
        parts = [
            self.name or "GPU",
            f"serial {self.serial}" if self.serial else "",
            self.uuid,
            f"PCI {self.address}",
        ]
        parts += [
            f"slot {self.slot}" if self.slot else "",
            f"module {self.module}" if self.module else "",
        ]
        return ", ".join(filter(None, [*parts, self.place]))

    def build_names(self, index: float | None) -> DeviceNames:
        """The names it goes by. `index`: its number in nvidia-smi, None if unknown."""
        return DeviceNames(
            component=self.component,
            index="" if index is None else f"{index:g}",
            serial=self.serial,
            uuid=self.uuid,
            slot=self.slot,
            module=self.module,
            address=self.address,
        )

    @property
    def values(self) -> dict[str, Sample]:
        """What of it is still true when it cannot be asked, as it would answer."""
        values: dict[str, Sample] = {
            "uuid": self.uuid,
            "name": self.name.removesuffix(_SIMULATED),
            "serial": self.serial,
        }
        if self.module.isdecimal():
            values["module_id"] = float(self.module)
        return {name: value for name, value in values.items() if value != ""}

    def update_from(
        self, address: str, slot: str, values: Mapping[str, Sample], *, simulated: bool
    ) -> KnownGpu:
        """The same GPU after it answered from an address. What could not be read this time stays as
        it was.
        """
        module = values.get("module_id")
        suffix = _SIMULATED if simulated else ""
        return KnownGpu(
            address=address,
            uuid=self.uuid,
            name=f"{values['name']}{suffix}" if "name" in values else self.name or suffix,
            serial=str(values.get("serial", self.serial)),
            module=str(int(module)) if isinstance(module, (int, float)) else self.module,
            slot=slot,
            place=_describe_location(values) or self.place,
        )


class GpuRegistry:
    """The known GPUs. `memory`: what a former registry's `memory` returned."""

    def __init__(self, memory: Mapping[str, Any] | None = None) -> None:
        self._known = {
            uuid: KnownGpu(uuid=uuid, **stored) for uuid, stored in (memory or {}).items()
        }
        self._seen: set[str] = set()  # answered since the worker attached

    @property
    def memory(self) -> dict[str, Any]:
        return {
            uuid: {name: value for name, value in asdict(known).items() if name != "uuid"}
            for uuid, known in self._known.items()
        }

    def list_gpus(self) -> list[KnownGpu]:
        """The known GPUs, one for each slot: the one that answered there, else the last one."""
        addresses = dict.fromkeys(known.address for known in self._known.values())
        found = map(self.find_gpu_at, addresses)
        return [known for known in found if known is not None]

    def find_gpu(self, uuid: str) -> KnownGpu | None:
        return self._known.get(uuid)

    def find_gpu_at(self, address: str) -> KnownGpu | None:
        """The GPU in a slot: the one that answered there, else the last one known there."""
        in_slot = [known for known in self._known.values() if known.address == address]
        last = in_slot[0] if in_slot else None
        return next((known for known in in_slot if known.uuid in self._seen), last)

    def get_identity(self, address: str) -> str:
        """The GPU's UUID, or its address until that is known."""
        known = self.find_gpu_at(address)
        return known.uuid if known is not None else address

    def note_attached(self) -> None:
        """A worker attached, or none can: no GPU has answered yet."""
        self._seen = set()

    def register_gpu(self, known: KnownGpu) -> bool:
        """Records a GPU that answered. True if it is new or has moved."""
        former = self._known.get(known.uuid)
        if former is None:
            # A new board replaces the one that was known in its slot. One that has only moved does
            # not: if a GPU is dead at boot, the addresses of the others may change.
            replaced = self.find_gpu_at(known.address)
            if replaced is not None and replaced.uuid not in self._seen:
                del self._known[replaced.uuid]
        self._seen.add(known.uuid)
        self._known[known.uuid] = known
        return former is None or (former.address, former.serial) != (known.address, known.serial)

    def list_missing(self, on_pci: set[str]) -> list[KnownGpu]:
        """Known GPUs that are not here now: their slot is empty, or holds another one."""
        occupied = {known.address for known in self._known.values() if known.uuid in self._seen}
        return [
            known
            for known in self._known.values()
            if known.uuid not in self._seen
            and (known.address not in on_pci or known.address in occupied)
        ]


def _describe_location(values: Mapping[str, Sample]) -> str:
    """The GPU's location in the rack; empty if the board does not report it."""
    parts = {
        "chassis": values.get("chassis_serial"),
        "chassis slot": values.get("chassis_slot"),
        "tray": values.get("tray_index"),
    }
    return " ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in parts.items()
        if value is not None
    )
