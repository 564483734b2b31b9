"""
Components of a node, which findings are about: the device in a slot, the names that it goes by, and
the marks of a device's history.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from vitald.model.words import ComponentKind


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


_COUNTED = (ComponentKind.GPU, ComponentKind.NEURON)  # kinds whose number goes by their noun
# The word before a serial number, where it is another one
_SERIAL_WORDS = {ComponentKind.NIC: "GUID"}


class MarkKind(Enum):
    """Kinds of marks in a device's history."""

    FAULT = "fault"  # a fault of the device itself was the root of an incident
    REMEDY = "remedy"  # the action that a finding required was done
    NOT_HELD = "not_held"  # the fault came back after its remedy
    PROCESS = "process"  # a process died of a fault that may be its own or the device's
    REMOVED = "removed"  # it left its slot with an open finding that only a replacement clears
    ACCEPTED = "accepted"  # a boot closed an accepted finding, which may be found again
    JOB_DIED = "job_died"
    DIAGNOSTIC_FAILED = "diagnostic_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One entry of a device's history. `device` is its UUID or serial number, else the component's
    name.
    """

    device: str
    time: float
    kind: MarkKind
    fault: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What is known of the device in a slot: its identity, and the times of its last reset and of
    its installation (0 if unknown).
    """

    component: Component
    uuid: str = ""
    serial: str = ""
    reset_at: float = 0.0
    placed_at: float = 0.0

    @property
    def identity(self) -> str:
        return self.uuid or self.serial


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNames:
    """The names by which people and tools know the device in a slot; empty where unknown.

    `index`: the number that nvidia-smi or neuron-ls gives it, which another boot may change.
    `slot`: the physical slot, as the firmware names it. `module`: the position on an SXM board.
    `address`: on PCI. `aliases`: of its RDMA device and interfaces.
    """

    component: Component
    index: str = ""
    serial: str = ""
    uuid: str = ""
    slot: str = ""
    module: str = ""
    address: str = ""
    aliases: tuple[str, ...] = ()

    def fill_from(self, other: DeviceNames) -> DeviceNames:
        """The same, with what only the other one knows."""
        return DeviceNames(
            component=self.component,
            index=self.index or other.index,
            serial=self.serial or other.serial,
            uuid=self.uuid or other.uuid,
            slot=self.slot or other.slot,
            module=self.module or other.module,
            address=self.address or other.address,
            aliases=self.aliases or other.aliases,
        )

    @property
    def text(self) -> str:
        """What finds the board: `GPU 3, serial 1650523000123, slot 7`, the UUID where there is no
        serial number; empty if nothing is known. The component's name stands before it.
        """
        kind = self.component.kind
        parts = [
            f"{kind.noun if kind in _COUNTED else 'number'} {self.index}" if self.index else "",
            *self.aliases,
            f"{_SERIAL_WORDS.get(kind, 'serial')} {self.serial}" if self.serial else self.uuid,
            f"slot {self.slot}" if self.slot else "",
            f"module {self.module}" if self.module else "",
            f"PCI {self.address}" if self.address not in ("", self.component.id) else "",
        ]
        return ", ".join(filter(None, parts))
