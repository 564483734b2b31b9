"""
The devices that a source knows: which is in which slot, how it is displayed, and which is missing.

A device is identified by its serial number, which survives a move to another slot; one that gives
none, by the name of its slot. A device that should be present is missing once it was in no slot for
three rounds. After a boot it has that time again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from vitald.checking import parse_pci_address
from vitald.collectors.event_factory import derive_readings
from vitald.collectors.raw_readings import RawReadings
from vitald.model.component import Component, DeviceNames
from vitald.model.source import Readings

# Prefix of a missing device's identity: its readings are of its former slot
MISSED = "missing "
_MISSING_ROUNDS = 3  # a driver that is loaded again takes its devices away for a moment
_MAX_DEVICES = 4096  # devices remembered; a node has tens


@dataclass(slots=True)
class Entry:
    """What is remembered of a device. `expected`: once seen, it should be present. `epoch`: as last
    read.
    """

    component: str
    display_name: str
    fields: dict[str, str] = field(default_factory=dict)
    expected: bool = False
    epoch: str = ""


@dataclass(frozen=True, slots=True)
class DeviceMatch:
    """What the registry knew of a device that was read.

    `former_name`: the name by which it went until now. `invalidated`: earlier reports of it may no
    longer hold, as it is in another slot or its counters were reset. `new_identity`: it gave its
    serial number for the first time, or in another slot.
    """

    identity: str
    former_name: str = ""
    invalidated: bool = False
    new_identity: bool = False


class DeviceRegistry:
    """All known devices, by identity."""

    def __init__(self, memory: Mapping[str, Any] | None = None) -> None:
        """`memory` is used as far as it is understood: another version may have written it."""
        stored = memory or {}
        known = {
            identity: _restore_entry(fields) for identity, fields in stored.get("known", {}).items()
        }
        self._known = {identity: entry for identity, entry in known.items() if entry is not None}
        # Slots of devices that were reported missing, by identity
        self._missed: dict[str, str] = {
            identity: slot
            for identity, slot in dict(stored.get("missed", {})).items()
            if is_component_name(slot)
        }
        self._rounds_away: dict[str, int] = {}  # by identity
        self._serials: dict[str, str] = {}  # the serial number last read in each slot

    @property
    def memory(self) -> dict[str, Any]:
        return {
            "known": {identity: _store_entry(entry) for identity, entry in self._known.items()},
            "missed": self._missed,
        }

    def find_identity(self, component: Component) -> str:
        """The identity of the device in a slot, as far as it is known; else the slot's own name."""
        name = component.name
        return next(
            (identity for identity, entry in self._known.items() if entry.component == name), name
        )

    def find_entry(self, identity: str) -> Entry | None:
        return self._known.get(identity.removeprefix(MISSED))

    def list_devices(self) -> tuple[DeviceNames, ...]:
        """The names of the known devices, those that are missing included: of each slot, one."""
        names = {
            entry.component: _build_names(identity, entry)
            for identity, entry in reversed(self._known.items())  # as in `find_identity`
        }
        return tuple(names.values())

    def find_display_name(self, component: Component) -> str:
        known = self._known.get(self.find_identity(component))
        return known.display_name if known is not None and known.display_name else component.name

    def drop_shared_serials(
        self, read: Mapping[str, RawReadings], present: Collection[str], under_way: Collection[str]
    ) -> None:
        """A serial number that several devices give identifies none of them. `under_way`: slots
        whose read has not come back.
        """
        self._serials |= {name: raw.serial for name, raw in read.items()}
        self._serials = {
            name: serial
            for name, serial in self._serials.items()
            if name in present and name not in under_way
        }
        counts = Counter(self._serials.values())
        for raw in read.values():
            if raw.serial and counts[raw.serial] > 1:
                raw.missing["serial"] = f"several devices here say {raw.serial}"
                raw.serial = ""

    def match_device(
        self, component: Component, raw: RawReadings, present: Collection[str], *, expected: bool
    ) -> DeviceMatch:
        """Update the entry of a device that was read."""
        slot = component.name
        occupant = self.find_identity(component)
        if not raw.serial and occupant != slot:
            return DeviceMatch(occupant)  # it gives no serial number now; it did before
        identity = raw.serial or slot
        before = self._known.get(identity)
        entry = Entry(
            component=slot,
            display_name=raw.display_name,
            fields=dict(raw.fields),
            expected=expected,
            epoch=raw.epoch,
        )
        if before is None:
            self._replace_occupant(occupant)
            self._make_room(present)
            self._known[identity] = entry
            former = slot if raw.serial else ""
            return DeviceMatch(identity, former, new_identity=bool(raw.serial))
        if raw.unreadable_reason:  # what identifies it was not read either
            entry.display_name = entry.display_name or before.display_name
            entry.fields = {**before.fields, **entry.fields}
        entry.epoch = entry.epoch or before.epoch
        self._known[identity] = entry
        moved = before.component != slot
        return DeviceMatch(
            identity,
            invalidated=moved or before.epoch != entry.epoch,
            new_identity=moved and bool(raw.serial),
        )

    def _replace_occupant(self, occupant: str) -> None:
        """Another device is in the slot: the former one was replaced, unless another slot has
        it.
        """
        if self._known.pop(occupant, None) is not None:
            self._missed.pop(occupant, None)

    def _make_room(self, present: Collection[str]) -> None:
        """Forget a device that is not present, if too many are remembered."""
        if len(self._known) < _MAX_DEVICES:
            return
        absent = (
            identity for identity, entry in self._known.items() if entry.component not in present
        )
        self._known.pop(next(absent, ""), None)

    def find_missing(
        self, present: Collection[str], is_given_up: Callable[[Entry], bool], *, counts: bool
    ) -> list[Readings]:
        """Readings of the devices that are missing, and of those that no longer are.

        `present`: the slots that have a device. `is_given_up`: a device that need not be present
        when it is missing. `counts`: this round was at its time, and read all devices.
        """
        # The first entry of a slot counts, as in `find_identity`
        slots = {entry.component: identity for identity, entry in reversed(self._known.items())}
        found = {slots.get(name, name) for name in present}
        self._known = {
            identity: entry
            for identity, entry in self._known.items()
            if identity in found or not is_given_up(entry)
        }
        if counts:
            self._count_round(found, present)
        missing = sorted(
            identity
            for identity, rounds in self._rounds_away.items()
            if rounds >= _MISSING_ROUNDS and identity in self._known
        )
        back = sorted(
            identity
            for identity in self._missed
            if identity not in self._known or identity in found
        )
        readings = [
            *(_report_missing(name, self._known[name].component, 1.0) for name in missing),
            *(_report_missing(name, self._missed[name], 0.0) for name in back),
        ]
        for identity in back:
            del self._missed[identity]
        self._missed |= {identity: self._known[identity].component for identity in missing}
        return readings

    def _count_round(self, found: Collection[str], present: Collection[str]) -> None:
        for identity, entry in self._known.items():
            away = entry.expected and identity not in found and entry.component not in present
            self._rounds_away[identity] = self._rounds_away.get(identity, 0) + 1 if away else 0


def _build_names(identity: str, entry: Entry) -> DeviceNames:
    component, fields = Component.parse_name(entry.component), entry.fields
    interfaces = fields.get("interface", "").split(", ")
    return DeviceNames(
        component=component,
        index=fields.get("index", ""),
        serial=identity if "/" not in identity else "",
        slot=fields.get("slot", ""),
        address=parse_pci_address(fields.get("pci", "")) or "",  # a drive's may be of a fabric
        aliases=tuple(filter(None, (fields.get("device", ""), *interfaces))),
    )


def _report_missing(identity: str, slot: str, missing: float) -> Readings:
    return derive_readings(Component.parse_name(slot), {"missing": missing}, MISSED + identity)


def _store_entry(entry: Entry) -> dict[str, Any]:
    return {
        "component": entry.component,
        "words": entry.display_name,
        "fields": entry.fields,
        "expected": entry.expected,
        "epoch": entry.epoch,
    }


def _restore_entry(stored: object) -> Entry | None:
    if not isinstance(stored, dict) or not is_component_name(stored.get("component")):
        return None
    fields = stored.get("fields")
    if not isinstance(fields, dict):
        fields = {}
    return Entry(
        component=stored["component"],
        display_name=str(stored.get("words", "")),
        fields={str(name): str(value) for name, value in fields.items()},
        expected=stored.get("expected") is True,
        epoch=str(stored.get("epoch", "")),
    )


def is_component_name(name: object) -> bool:
    """Whether this is the name of a component."""
    try:
        return isinstance(name, str) and bool(Component.parse_name(name))
    except ValueError:
        return False
