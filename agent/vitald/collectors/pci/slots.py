"""
What was in the slots of this node: PCI shows no serial numbers, so a function is known by its slot
and its model.

A device that is gone after a boot is missing, until one of its model is in its slot again, or in
another slot: the boot numbers the buses anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Occupant:
    """A function as it is remembered: its role, and its vendor and device ids."""

    part: str
    model: str


Slots = Mapping[str, Occupant]  # by name of the component


def find_absent(remembered: Slots, present: Slots) -> dict[str, Occupant]:
    """The remembered functions that are in no slot now. Where functions of the same model are in
    slots that had none of it, as many have moved; which ones is not known, only their number.
    """
    absent = {name: known for name, known in sorted(remembered.items()) if name not in present}
    moved = Counter(found.model for name, found in present.items() if name not in remembered)
    missing = {}
    for name, known in absent.items():
        if moved[known.model]:
            moved[known.model] -= 1
        else:
            missing[name] = known
    return missing


def restore_slots(stored: object) -> dict[str, Occupant]:
    """As far as it is understood: another version may have written it."""
    if not isinstance(stored, dict):
        return {}
    return {
        name: Occupant(*fields)
        for name, fields in stored.items()
        if isinstance(name, str)
        and isinstance(fields, list)
        and len(fields) == 2
        and all(isinstance(text, str) for text in fields)
    }


def store_slots(slots: Slots) -> dict[str, list[str]]:
    """For JSON."""
    return {name: [known.part, known.model] for name, known in sorted(slots.items())}
