"""
Components of a node: what a finding is about.
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
    """A component of the node. `id` is its PCI address, unless its kind has a better one; empty for
    the node, and for all components of a kind.
    """

    kind: ComponentKind
    id: str = ""

    def __hash__(self) -> int:
        """Hash of the id alone: components are dictionary keys in code that runs for every log
        line, and an enum computes its hash each time.
        """
        return hash(self.id)

    @property
    def name(self) -> str:
        return f"{self.kind.value}/{self.id}" if self.id else self.kind.value

    @staticmethod
    def parse_name(name: str) -> Component:
        """The inverse of `name`. Raises ValueError for a kind that does not exist."""
        kind, _, id_ = name.partition("/")
        return Component(ComponentKind(kind), id_)


NODE = Component(ComponentKind.NODE)
