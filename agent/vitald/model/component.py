"""
Components of a node: what a finding is about.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

# As sysfs writes them
PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


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

    @property
    def pci_bus_id(self) -> str:
        """Its PCI address; empty for what is not a PCI device."""
        return find_pci_bus_id(self.name)

    @staticmethod
    def parse_name(name: str) -> Component:
        """The inverse of `name`. Raises ValueError for a kind that does not exist."""
        kind, _, id_ = name.partition("/")
        return Component(ComponentKind(kind), id_)


def find_pci_bus_id(name: str) -> str:
    """The PCI address in a component's name; empty for what is not a PCI device."""
    id_ = name.partition("/")[2]
    return id_ if PCI_ADDRESS.fullmatch(id_) else ""


NODE = Component(ComponentKind.NODE)
