"""
The devices of this node by the names that people and tools have for them: `GPU 3`, a serial number,
a UUID, a slot, an interface.

A source reports the devices that it knows, those that are missing included. What the judge knows of
a slot is used where no source reports it, as without a driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from vitald.checking import parse_pci_address
from vitald.judge.devices import SlotRegistry
from vitald.model.component import NODE, Component, DeviceNames
from vitald.model.finding import Finding
from vitald.model.words import ComponentKind

_NUMBERED = re.compile(r"(gpu|neuron)[ /]([0-9]{1,4})")
_PLACED = re.compile(r"(slot|module)[ /](.{1,64})")
_MAX_COMPOSED = 4096  # forged lines may name any number of addresses
_NUMBER = re.compile(r"[0-9]{1,4}")


class DeviceDirectory:
    """The names of all devices that are known."""

    def __init__(self) -> None:
        self._by_source: dict[str, dict[Component, DeviceNames]] = {}
        self._slots = SlotRegistry()
        # Composed names: a verdict needs them for each of what may be thousands of findings
        self._composed: dict[Component, DeviceNames] = {}
        self._composed_of = (self._slots, 0)  # the slots that they are of, and their revision

    def set_slots(self, slots: SlotRegistry) -> None:
        """Use what the judge knows of each slot, now and later."""
        self._slots = slots

    def replace_devices(self, source: str, devices: Iterable[DeviceNames]) -> None:
        """Replace what a source knows."""
        known = {names.component: names for names in devices}
        if known != self._by_source.get(source):
            self._by_source[source] = known
            self._composed.clear()

    def find_names(self, component: Component) -> DeviceNames:
        """The names of the device that is in a slot now, or was there last."""
        present = (self._slots, self._slots.revision)
        if present != self._composed_of or len(self._composed) > _MAX_COMPOSED:
            self._composed.clear()
            self._composed_of = present
        if component not in self._composed:
            self._composed[component] = self._compose_names(component)
        return self._composed[component]

    def _compose_names(self, component: Component) -> DeviceNames:
        names = DeviceNames(component=component)
        if not component.id or component.kind is ComponentKind.NODE:
            return names
        for known in self._by_source.values():
            if (more := known.get(component)) is not None:
                names = names.fill_from(more)
        device = self._slots.get_device(component)
        return names.fill_from(
            DeviceNames(
                component=component,
                uuid=device.uuid,
                serial=device.serial,
                address=parse_pci_address(component.id) or "",
            )
        )

    def find_names_of(self, finding: Finding) -> DeviceNames | None:
        """The names of the device that a finding is about; None if it is about none, or if another
        device has been put into the slot since.
        """
        component = finding.component
        if not component.id or component.kind is ComponentKind.NODE:
            return None
        is_same = finding.last >= self._slots.placed_at(component)
        return self.find_names(component) if is_same else None

    def describe_component(self, finding: Finding) -> str:
        """The component of a finding: `gpu/0000:65:00.0 (GPU 3, serial 1650523000123)`."""
        names = self.find_names_of(finding)
        name, text = finding.component.name, names.text if names is not None else ""
        return f"{name} ({text})" if text else name

    def find_components(self, name: str, kind: ComponentKind | None = None) -> list[Component]:
        """The components that a person may mean by a name: its own, an index, a serial number, a
        UUID, a PCI address in any spelling, `slot 7`, `module 3`, an interface. Several if the name
        is ambiguous. `kind`: only of this one; then an address need not be known.
        """
        text = " ".join(name.split())
        prefix, _, rest = text.partition("/")
        known = self._list_known()
        if prefix in _KIND_NAMES:
            named = Component.parse_name(text)
            if kind not in (None, named.kind):
                return []
            found = self._match(rest, [each for each in known if each.kind is named.kind])
            return [named] if named in known or not found else found
        found = self._match(text, [each for each in known if kind in (None, each.kind)])
        address = parse_pci_address(text)
        if not found and kind is not None and address is not None:
            return [Component(kind, address)]
        return found

    def _list_known(self) -> list[Component]:
        own = [device.component for device in self._slots.all]
        listed = (*(each for known in self._by_source.values() for each in known), *own)
        return [each for each in dict.fromkeys(listed) if each.id and each.kind is not NODE.kind]

    def _match(self, text: str, components: Iterable[Component]) -> list[Component]:
        return [each for each in components if _is_called(self.find_names(each), text)]


_KIND_NAMES = frozenset(kind.value for kind in ComponentKind)


def _is_called(names: DeviceNames, text: str) -> bool:
    """Whether a device may be meant by a text."""
    if _NUMBER.fullmatch(text):
        return names.index == text
    lower = text.lower()
    if numbered := _NUMBERED.fullmatch(lower):
        return (names.component.kind.value, names.index) == numbered.groups()
    if placed := _PLACED.fullmatch(lower):
        which, value = placed.groups()
        return value == (names.slot if which == "slot" else names.module).lower()
    if (address := parse_pci_address(lower)) is not None:
        return address == names.address
    own = (names.component.id, names.serial, names.uuid, *names.aliases)
    return lower in {each.lower() for each in own if each}
