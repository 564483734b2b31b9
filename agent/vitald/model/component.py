"""
The things that are well or ill.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ComponentKind(Enum):
    NODE = "node"
    GPU = "gpu"
    NVSWITCH = "nvswitch"
    NEURON = "neuron"
    NIC = "nic"
    PCI = "pci"
    CPU = "cpu"
    DIMM = "dimm"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Component:
    """The thing that is well or ill. `id` is its PCI address until something better (serial, UUID)
    is known.
    """

    kind: ComponentKind
    id: str = ""

    def __hash__(self) -> int:
        """Of the id alone: it is looked up several times for each line of a storm, and an enum's
        hash is not remembered.
        """
        return hash(self.id)

    @property
    def name(self) -> str:
        return f"{self.kind.value}/{self.id}" if self.id else self.kind.value

    @staticmethod
    def parse(name: str) -> Component:
        """The inverse of `name`. Raises ValueError for a kind that does not exist."""
        kind, _, id_ = name.partition("/")
        return Component(ComponentKind(kind), id_)


NODE = Component(ComponentKind.NODE)
