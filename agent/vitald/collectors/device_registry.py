"""
The devices that a source knows: who is in which slot, what to call it, and who is missing.

A device goes by its serial number, which survives a move to another slot; one that does not say any
goes by its slot's name. What was here and should be is missing once it is nowhere for three rounds,
and after a boot it has that time again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from vitald.collectors.event_factory import derive_readings
from vitald.collectors.small_files import Look
from vitald.model import Component, Readings

# Before the identity of a device that is nowhere: what is said of it is said of its former slot
MISSED = "missing "
_ROUNDS = 3  # a driver that is loaded again takes its devices away for a moment
_MAX_DEVICES = 4096  # devices remembered; a node has tens


@dataclass(slots=True)
class Entry:
    """What is remembered of a device. `expected`: once seen, it should be there. `epoch`: as its
    look last said.
    """

    component: str
    words: str
    fields: dict[str, str] = field(default_factory=dict)
    expected: bool = False
    epoch: str = ""


@dataclass(frozen=True, slots=True)
class Met:
    """What it means that a device answered. `former`: the name by which it went until now; `anew`:
    what was said of it may not hold any more, as it is in another slot or its counters began anew;
    `news`: it says who it is for the first time, or where.
    """

    identity: str
    former: str = ""
    anew: bool = False
    news: bool = False


class DeviceRegistry:
    """All that are known, by identity."""

    def __init__(self, memory: Mapping[str, Any] | None = None) -> None:
        """`memory` is taken as far as it is understood: another version may have written it."""
        stored = memory or {}
        known = {identity: _entry(one) for identity, one in stored.get("known", {}).items()}
        self._known = {identity: one for identity, one in known.items() if one is not None}
        self._missed: dict[str, str] = {
            identity: slot
            for identity, slot in dict(stored.get("missed", {})).items()
            if is_name(slot)
        }
        self._away: dict[str, int] = {}  # for how many rounds
        self._serials: dict[str, str] = {}  # what each device said last

    @property
    def memory(self) -> dict[str, Any]:
        return {
            "known": {identity: asdict(one) for identity, one in self._known.items()},
            "missed": self._missed,
        }

    def identity(self, component: Component) -> str:
        """Who is in a slot, as far as is known; else the slot's own name."""
        name = component.name
        return next(
            (identity for identity, one in self._known.items() if one.component == name), name
        )

    def entry(self, identity: str) -> Entry | None:
        return self._known.get(identity.removeprefix(MISSED))

    def words(self, component: Component) -> str:
        known = self._known.get(self.identity(component))
        return known.words if known is not None and known.words else component.name

    def apart(
        self, looks: Mapping[str, Look], here: Collection[str], waiting: Collection[str]
    ) -> None:
        """A serial number that two devices say at once names neither. `waiting`: those that are
        being looked at still.
        """
        self._serials |= {name: look.serial for name, look in looks.items()}
        self._serials = {
            name: serial
            for name, serial in self._serials.items()
            if name in here and name not in waiting
        }
        often = Counter(self._serials.values())
        for look in looks.values():
            if look.serial and often[look.serial] > 1:
                look.missing["serial"] = f"several devices here say {look.serial}"
                look.serial = ""

    def met(
        self, component: Component, look: Look, here: Collection[str], *, expected: bool
    ) -> Met:
        """It answered."""
        name = component.name
        taken = self.identity(component)
        if not look.serial and taken != name:
            return Met(taken)  # it does not say now; it said before
        identity = look.serial or name
        before = self._known.get(identity)
        now = Entry(
            component=name,
            words=look.words,
            fields=dict(look.fields),
            expected=expected,
            epoch=look.epoch,
        )
        anew = False
        if before is None:
            if (
                self._known.pop(taken, None) is not None
            ):  # another one was here: it was replaced, unless it is seen elsewhere
                self._missed.pop(taken, None)
            if len(self._known) >= _MAX_DEVICES:
                self._known.pop(
                    next(
                        (one for one, known in self._known.items() if known.component not in here),
                        identity,
                    ),
                    None,
                )
        else:
            if look.blind:  # who it is it did not say either
                now.words, now.fields = now.words or before.words, now.fields or before.fields
            now.epoch = now.epoch or before.epoch
            anew = (before.epoch, before.component) != (now.epoch, name)
        self._known[identity] = now
        news = bool(look.serial) and (before is None or before.component != name)
        return Met(identity, name if before is None and look.serial else "", anew, news)

    def missing(
        self, here: Collection[str], given_up: Callable[[Entry], bool], *, counts: bool
    ) -> list[Readings]:
        """Of those that should be there: whether they are nowhere. `counts`: this is a round at its
        own time, and all was looked at.
        """
        slots = {
            one.component: identity for identity, one in reversed(self._known.items())
        }  # the first one counts, as in `identity`
        found = {slots.get(name, name) for name in here}
        self._known = {
            identity: one
            for identity, one in self._known.items()
            if identity in found or not given_up(one)
        }
        if counts:
            for identity, one in self._known.items():
                gone = one.expected and identity not in found and one.component not in here
                self._away[identity] = self._away.get(identity, 0) + 1 if gone else 0
        missed = {
            identity
            for identity, rounds in self._away.items()
            if rounds >= _ROUNDS and identity in self._known
        }
        back = {
            identity
            for identity in self._missed
            if identity not in self._known or identity in found
        }
        said = [
            derive_readings(
                Component.parse_name(self._known[one].component), {"missing": 1.0}, MISSED + one
            )
            for one in sorted(missed)
        ]
        said += [
            derive_readings(Component.parse_name(self._missed[one]), {"missing": 0.0}, MISSED + one)
            for one in sorted(back)
        ]
        self._missed = {one: slot for one, slot in self._missed.items() if one not in back}
        self._missed |= {one: self._known[one].component for one in missed}
        return said


def _entry(stored: object) -> Entry | None:
    if not isinstance(stored, dict) or not is_name(stored.get("component")):
        return None
    fields = stored.get("fields")
    return Entry(
        component=stored["component"],
        words=str(stored.get("words", "")),
        fields={str(name): str(value) for name, value in fields.items()}
        if isinstance(fields, dict)
        else {},
        expected=stored.get("expected") is True,
        epoch=str(stored.get("epoch", "")),
    )


def is_name(name: object) -> bool:
    """Whether this is the name of a component."""
    try:
        return isinstance(name, str) and bool(Component.parse_name(name))
    except ValueError:
        return False
