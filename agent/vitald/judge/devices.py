"""
Who is in which slot, since when, and when it was last reset; and which boot this is.

What is kept here decides whether an old line is history, and whose record a fault goes into.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vitald.model import NODE, Component, Device

_MAX_DEVICES = 4096  # addresses without end come from forged lines
_UNKNOWN_DEVICE = Device(component=NODE)  # of whom nothing is known


class SlotRegistry:
    """The devices by slot. The node is kept like one: its `uuid` is the boot, its `serial` the boot
    before.
    """

    def __init__(self, devices: Iterable[Device] = ()) -> None:
        self._in = {device.component: device for device in devices}
        self._changed: dict[Component, Device] = {}

    @property
    def all(self) -> tuple[Device, ...]:
        return tuple(self._in.values())

    @property
    def boot(self) -> str:
        """The boot that was folded in last; empty before any was."""
        return self._find_device(NODE).uuid

    @property
    def former_boot(self) -> str:
        return self._find_device(NODE).serial

    def take_changes(self) -> tuple[Device, ...]:
        """Those that changed since this was last asked."""
        changed, self._changed = tuple(self._changed.values()), {}
        return changed

    def get_device(self, component: Component) -> Device:
        return self._in.get(component) or Device(component=component)

    def put_device(self, device: Device) -> None:
        if device.component in self._in or len(self._in) < _MAX_DEVICES:
            self._in[device.component] = self._changed[device.component] = device

    def identify(self, component: Component) -> str:
        """What survives a move to another slot: UUID or serial, else the slot's own name. The node
        stays itself over its boots.
        """
        return (
            component.name
            if component == NODE
            else self._find_device(component).identity or component.name
        )

    def note_reset(self, component: Component, time: float) -> None:
        """`component` without an id stands for every one of its kind."""
        device = self.get_device(component)
        self.put_device(replace(device, reset_at=max(device.reset_at, time)))

    def reset_at(self, component: Component) -> float | None:
        """When it was last reset, alone or with all of its kind. None if that was never seen."""
        return (
            max(
                self._find_device(component).reset_at,
                self._find_device(Component(component.kind)).reset_at,
            )
            or None
        )

    def placed_at(self, component: Component) -> float:
        """When it was put into its slot; 0 if that was never seen."""
        return self._find_device(component).placed_at

    def _find_device(self, component: Component) -> Device:
        return self._in.get(component, _UNKNOWN_DEVICE)

    def find_elsewhere(self, component: Component, uuid: str, serial: str) -> list[Device]:
        """Where this device was seen before, in another slot."""
        return [
            one
            for one in self._in.values()
            if one.component not in (component, NODE)
            and ((uuid and one.uuid == uuid) or (not uuid and one.serial == serial))
        ]

    def adopt_devices(self, devices: Iterable[Device]) -> None:
        """Take up what was remembered elsewhere, where nothing newer is known."""
        self._in = {**{device.component: device for device in devices}, **self._in}

    def shift_times(self, seconds: float) -> None:
        """The clock was stepped: what lies behind is told by the new one."""
        for device in self.all:
            placed_at = device.placed_at + seconds if device.placed_at else 0.0
            reset_at = device.reset_at + seconds if device.reset_at else 0.0
            self.put_device(replace(device, reset_at=reset_at, placed_at=placed_at))
