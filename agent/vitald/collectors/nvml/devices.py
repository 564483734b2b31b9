"""
Which GPUs there should be: on PCI, known to the driver, and known from before.

A GPU goes by its UUID. One that was here and is nowhere to be found is missing until it is seen
again, however many boots that takes; one whose slot holds another UUID was replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vitald.model import Component, ComponentKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is remembered of a GPU. It cannot be read any more once the GPU is lost."""

    address: str
    uuid: str
    name: str = ""
    serial: str = ""
    module: str = ""  # its place on an SXM board, as the driver numbers them
    slot: str = ""  # the physical slot, as the firmware names it
    place: str = ""  # chassis, slot and tray, where a rack has them

    @property
    def component(self) -> Component:
        return Component(ComponentKind.GPU, self.address)

    @property
    def words(self) -> str:
        """For a person who must find the board."""
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


class Devices:
    """The GPUs that are known, by UUID."""

    def __init__(self, memory: Mapping[str, Any] | None = None) -> None:
        self._known = {uuid: Known(uuid=uuid, **stored) for uuid, stored in (memory or {}).items()}
        self._seen: set[str] = set()  # answered since we attached

    @property
    def memory(self) -> dict[str, Any]:
        return {
            uuid: {name: value for name, value in asdict(one).items() if name != "uuid"}
            for uuid, one in self._known.items()
        }

    def known(self, uuid: str) -> Known | None:
        return self._known.get(uuid)

    def at(self, address: str) -> Known | None:
        """Who is in a slot: who answered there, else who was there last."""
        here = [one for one in self._known.values() if one.address == address]
        return next((one for one in here if one.uuid in self._seen), here[0] if here else None)

    def identity(self, address: str) -> str:
        """Its UUID, or, until that is known, its address."""
        known = self.at(address)
        return known.uuid if known is not None else address

    def attached(self) -> None:
        """Everybody is to be met anew."""
        self._seen = set()

    def met(self, known: Known) -> bool:
        """It answered. Whether that is news: a new one, or in another place."""
        former = self._known.get(known.uuid)
        if former is None:
            # A board that was never here took the place of whatever was. One that has only moved
            # did not: where a GPU is dead at boot, the others may move up.
            taken = self.at(known.address)
            if taken is not None and taken.uuid not in self._seen:
                del self._known[taken.uuid]
        self._seen.add(known.uuid)
        self._known[known.uuid] = known
        return former is None or (former.address, former.serial) != (known.address, known.serial)

    def missing(self, on_pci: set[str]) -> list[Known]:
        """Those that were here and are nowhere now: their slot is empty, or holds another."""
        held = {one.address for one in self._known.values() if one.uuid in self._seen}
        return [
            one
            for one in self._known.values()
            if one.uuid not in self._seen and (one.address not in on_pci or one.address in held)
        ]
