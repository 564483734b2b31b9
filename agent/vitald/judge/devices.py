"""
The devices by slot: identity, time of installation, last reset; and the current boot.

This decides whether an old line is history, and to which device's history a fault belongs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vitald.model.component import NODE, Component, Device

_MAX_DEVICES = 4096  # forged lines may name any number of addresses
_UNKNOWN_DEVICE = Device(component=NODE)  # of which nothing is known


class SlotRegistry:
    """The devices by slot. The node is stored like a device: its `uuid` is the id of the current
    boot, its `serial` that of the previous one.
    """

    def __init__(self, devices: Iterable[Device] = ()) -> None:
        self._in = {device.component: device for device in devices}
        self._changed: dict[Component, Device] = {}
        self.revision = 0  # grows with each change

    @property
    def all(self) -> tuple[Device, ...]:
        return tuple(self._in.values())

    @property
    def boot(self) -> str:
        """Id of the current boot; empty before the first one is known."""
        return self._find_device(NODE).uuid

    @property
    def former_boot(self) -> str:
        return self._find_device(NODE).serial

    def take_changes(self) -> tuple[Device, ...]:
        """The devices that changed since the last call."""
        changed, self._changed = tuple(self._changed.values()), {}
        return changed

    def get_device(self, component: Component) -> Device:
        return self._in.get(component) or Device(component=component)

    def put_device(self, device: Device) -> None:
        if device.component in self._in or len(self._in) < _MAX_DEVICES:
            self._in[device.component] = self._changed[device.component] = device
            self.revision += 1

    def identify(self, component: Component) -> str:
        """UUID or serial number of the device, which survive a move; else the component's name.
        The node keeps its name over its boots.
        """
        return (
            component.name
            if component == NODE
            else self._find_device(component).identity or component.name
        )

    def note_reset(self, component: Component, time: float) -> None:
        """Note a reset. A component without an id means all devices of its kind."""
        device = self.get_device(component)
        self.put_device(replace(device, reset_at=max(device.reset_at, time)))

    def reset_at(self, component: Component) -> float | None:
        """Time of the last reset, alone or with all of its kind. None if none was observed."""
        return (
            max(
                self._find_device(component).reset_at,
                self._find_device(Component(component.kind)).reset_at,
            )
            or None
        )

    def placed_at(self, component: Component) -> float:
        """Time at which the device was put into its slot; 0 if that was not observed."""
        return self._find_device(component).placed_at

    def _find_device(self, component: Component) -> Device:
        return self._in.get(component, _UNKNOWN_DEVICE)

    def find_elsewhere(self, component: Component, uuid: str, serial: str) -> list[Device]:
        """Entries of other slots that hold this device."""
        return [
            device
            for device in self._in.values()
            if device.component not in (component, NODE)
            and ((uuid and device.uuid == uuid) or (not uuid and device.serial == serial))
        ]

    def adopt_devices(self, devices: Iterable[Device]) -> None:
        """Add devices from another ledger, where nothing newer is known."""
        self._in = {**{device.component: device for device in devices}, **self._in}
        self.revision += 1

    def shift_times(self, seconds: float) -> None:
        """Shift all times after a step of the clock."""
        for device in self.all:
            placed_at = device.placed_at + seconds if device.placed_at else 0.0
            reset_at = device.reset_at + seconds if device.reset_at else 0.0
            self.put_device(replace(device, reset_at=reset_at, placed_at=placed_at))
