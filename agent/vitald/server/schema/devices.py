"""The names of a device."""

from __future__ import annotations

from typing import Annotated, TypedDict

from vitald.server.schema.values import Keywords


class ApiDevice(TypedDict, total=False):
    """The names by which people and tools know the device in a slot. An unknown one is left out.
    Each is accepted wherever a component is required, slot and module with that word: `slot 7`."""

    index: Annotated[int, Keywords(minimum=0)]
    """The number that nvidia-smi (`-i`) or neuron-ls gives it; another boot may change it."""
    serial: str
    """Serial number of the board, as it is printed on it; of an adapter its node GUID."""
    uuid: str
    """UUID of the GPU."""
    slot: str
    """Physical slot, as the firmware names it."""
    module: str
    """Position on an SXM board."""
    pci: Annotated[str, Keywords(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")]
    """PCI address, as sysfs writes it."""
    names: list[str]
    """Names of its RDMA device and interfaces."""
    text: str
    """What finds the board, for people: beside the component's name, which has the PCI address."""
