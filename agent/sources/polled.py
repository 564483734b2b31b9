"""
A source that looks at devices in rounds: what Neuron, the network, PCI and the host have in common.

Owns     the rounds, the deadline of a look, who is who (a serial number survives a move to another slot), who is missing, and what
         was said before.
Refuses  files and meaning. A subject knows which devices there are and how to look at one; what its readings mean is said by the
         catalogue's watches.

A look may hang: it is left alone with its thread, and its device is not known until it comes back. What a source remembers is
stored as its position, together with the events that changed it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any, Protocol
from zlib import crc32

import structlog

from agent.catalog import Catalog
from agent.catalog.watch import Watched
from agent.model import NODE, Component, Event, Fields, Readings, Sample, SourceState, Trust, Value
from agent.sources.files import Look, why
from agent.sources.readers import Broken, Readers
from agent.sources.source import Batch, Position
from agent.sources.watch import Sign, Watcher

log: structlog.stdlib.BoundLogger = structlog.get_logger("polled")

IDENTITY = "device/identity"
_FIND = ""  # the key of the look that finds the devices
_MISSED = "missing "  # before the identity of a device that is nowhere: what is said of it is said of its former slot
_MISSING_LOOKS = 3  # a driver that is loaded again takes its devices away for a moment
_OFTEN_S = 1.0  # while a read is under way past its round, its end and its deadline are waited for
_MOST = 4096  # devices remembered; a node has tens


@dataclass(frozen=True, slots=True)
class Device:
    """Something to look at. `expected`: once seen, it should be there. `look` may block, and may raise OSError."""

    component: Component
    look: Callable[[], Look]
    expected: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Which devices there are. `absent`: why there is nothing to look at; `trouble`: why not all of it can be looked at.

    `excluded`: patterns of names and addresses that the site wants to be left alone.
    """

    devices: Sequence[Device] = ()
    absent: str = ""
    trouble: str = ""
    excluded: Sequence[str] = ()


class Subject(Protocol):
    """What a source looks at. `memory` is what it wants to find again after a restart or a boot: anything that JSON can hold."""

    name: str
    memory: dict[str, Any]

    def find(self) -> Found:
        """The devices, now. May block, and may raise OSError."""
        ...

    def together(self, read: Mapping[Component, Readings], found: Found) -> Iterable[Readings]:
        """What only shows when all are seen together, of the node or of a device: counts, what is missing, ports that are all down.

        Called at each round, on the loop.
        """
        ...


@dataclass(slots=True)
class Memory:
    """What is remembered of a device: where it was, and what to call it."""

    component: str
    words: str
    fields: dict[str, str] = field(default_factory=dict)
    expected: bool = False
    epoch: str = ""


class Polled:
    """One subject, looked at every so often."""

    def __init__(
        self,
        subject: Subject,
        catalog: Catalog,
        boot_id: str,
        *,
        every_s: float,
        look_s: float,
        kinds: Sequence[str] = (),
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """`look_s`: how long a look may take. `kinds`: kinds of entries whose watches are about this subject; its name, if not said.

        `enough`: the site said how many devices there should be, and so many are here. What is gone was taken out on purpose.
        """
        self.name = subject.name
        self.subject = subject
        self.deadline_s = 2 * every_s + look_s + 5.0
        self.boot_id = boot_id
        self.read: dict[Component, Readings] = {}
        self._every_s = every_s
        self._look_s = look_s
        self._kinds = kinds or (subject.name,)
        self._enough = enough
        self._readers: Readers[Look | Found] = Readers(subject.name)
        self._wake = asyncio.Event()
        self._found = Found()
        self._serial = 0
        self._noted = ""
        self._catalog = catalog
        self._begin({})

    def _begin(self, memory: Mapping[str, Any]) -> None:
        self._watcher = Watcher(self._watches(), memory.get("said"))
        self._known = {identity: Memory(**stored) for identity, stored in memory.get("known", {}).items()}
        self.subject.memory = dict(memory.get("subject", {}))
        self._missed: dict[str, str] = dict(memory.get("missed", {}))
        self._hung: set[str] = set(memory.get("hung", ()))
        self._away: dict[str, int] = {}
        self._broken: dict[str, str] = {}
        self.read = {}

    def _watches(self) -> list[Watched]:
        return [one for kind in self._kinds for one in self._catalog.watched(kind)]

    def configure(self, catalog: Catalog) -> None:
        """The catalogue was reloaded."""
        self._catalog = catalog
        self._watcher.configure(self._watches())

    def look_now(self) -> None:
        """Something happened: do not wait for the next round."""
        self._wake.set()

    def recall(self, after: Position | None) -> None:
        """What was remembered. What cannot be read is logged, and forgotten."""
        self._begin({})
        if after is None:
            return
        try:
            self._begin(json.loads(after.cursor))
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            self._begin({})
            log.error("memory_not_read", source=self.name, error=str(error), effect="baselines begin anew")
        if after.boot_id != self.boot_id:
            self._watcher.forget_all()
            self._hung.clear()

    @property
    def memory(self) -> str:
        known = {identity: {name: getattr(one, name) for name in Memory.__slots__} for identity, one in self._known.items()}
        stored = {
            "said": self._watcher.memory,
            "known": known,
            "missed": self._missed,
            "hung": sorted(self._hung),
            "subject": self.subject.memory,
        }
        return json.dumps(stored, sort_keys=True)

    # --- rounds

    async def batches(self, after: Position | None) -> AsyncIterator[Batch]:
        """Until cancelled."""
        self.recall(after)
        due = time.monotonic()
        first = True
        while True:
            if time.monotonic() >= due or self._wake.is_set():
                self._wake.clear()
                yield self._digest(await self._round())
                now = time.monotonic()
                # Nodes that boot together part ways after the first look.
                share = crc32(f"{self.boot_id}{self.name}".encode()) % 1000 / 1000 if first else 1.0
                first = False
                due = max(due + self._every_s * share, now + min(self._every_s * share, _OFTEN_S))
            elif back := self._readers.collect():
                yield self._digest(back)
            elif self._overdue():
                yield self._digest({})
            pause = due - time.monotonic()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(0.0, min(pause, _OFTEN_S) if self._readers.owing else pause))

    async def _round(self) -> dict[str, Look | Found | Broken]:
        back = await self._readers.read({_FIND: self.subject.find})
        found = back.pop(_FIND, None)
        if isinstance(found, Found):
            self._found = found
            self._broken.pop(_FIND, None)
        elif isinstance(found, Broken):
            self._broken[_FIND] = self._complaint("devices", found)
        return back | await self._readers.read({one.component.name: one.look for one in self._found.devices})

    def _overdue(self) -> set[str]:
        """Devices whose look has taken too long, of which this has not been said."""
        now = time.monotonic()
        return {key for key, since in self._readers.under_way.items() if now - since > self._look_s and key not in self._hung}

    def _complaint(self, what: str, broken: Broken) -> str:
        if isinstance(broken.error, OSError):
            return f"{broken.error.filename or what}: {why(broken.error)}"
        log.error("look_failed", source=self.name, device=what, exc_info=broken.error)
        return f"{type(broken.error).__name__}: {broken.error}"

    # --- from looks to events

    def _digest(self, back: Mapping[str, Look | Found | Broken]) -> Batch:
        """What came back, as readings and events."""
        events: list[Event] = []
        here = {one.component.name: one for one in self._found.devices}
        fresh: list[Readings] = []
        for key, result in back.items():
            if key == _FIND or key not in here:
                continue
            component = here[key].component
            if isinstance(result, Broken):
                self._broken[key] = self._complaint(key, result)
                self._blinded(component, self._broken[key])
                continue
            assert isinstance(result, Look)
            self._broken.pop(key, None)
            events += self._met(here[key], result)
            self.read[component] = self._readings(component, result)
            fresh.append(self.read[component])
        self.read = {component: one for component, one in self.read.items() if component.name in here}
        together = list(self.subject.together(self.read, self._found))
        fresh += [*together, *self._missing(set(here))]
        events += self._hangs()
        events += [self._signed(sign) for sign in self._watcher.look(fresh, time.monotonic(), tuple(self.read.values()))]
        return self._batch(events, [one for one in together if one.component not in self.read])

    def _readings(self, component: Component, look: Look) -> Readings:
        return Readings(
            component=component,
            identity=look.serial or self._identity(component),
            time=time.time(),
            looked=time.monotonic(),
            values=look.values,
            fresh=frozenset(look.values),
            missing=look.missing,
            blind=look.blind,
            who=dict(look.fields),
        )

    def _blinded(self, component: Component, reason: str) -> None:
        """Looked at, and nothing could be read."""
        before = self.read.get(component)
        self.read[component] = Readings(
            component=component,
            identity=before.identity if before is not None else self._identity(component),
            time=time.time(),
            looked=time.monotonic(),
            values={},
            fresh=frozenset(),
            blind=reason,
            who=before.who if before is not None else {},
        )

    def _identity(self, component: Component) -> str:
        """Who is in a slot, as far as is known; else the slot's own name."""
        name = component.name
        return next((identity for identity, one in self._known.items() if one.component == name), name)

    def _met(self, device: Device, look: Look) -> list[Event]:
        """It answered. An event where it says who it is for the first time, or is somewhere else."""
        name = device.component.name
        if not look.serial and self._identity(device.component) != name:
            return []  # it does not say now; it said before
        identity = look.serial or name
        before = self._known.get(identity)
        if before is None:
            taken = self._identity(device.component)
            if taken in self._known:  # another one was here: it was replaced, unless it is seen elsewhere
                del self._known[taken]
                self._missed.pop(taken, None)
            if look.serial:
                self._watcher.rename(name, identity)
        if len(self._known) < _MOST or before is not None:
            epoch = look.epoch or (before.epoch if before is not None else "")
            if before is not None and before.epoch != epoch:
                self._watcher.forget(identity)
            self._known[identity] = Memory(
                component=name, words=look.words, fields=dict(look.fields), expected=device.expected, epoch=epoch
            )
        if not look.serial or (before is not None and before.component == name):
            return []
        return [self.event(IDENTITY, device.component, {"serial": look.serial, **look.fields}, look.words or name)]

    def _missing(self, here: set[str]) -> list[Readings]:
        """Of those that should be there: whether they are nowhere."""
        slots = {one.component: identity for identity, one in reversed(self._known.items())}  # the first one counts, as in _identity
        found = {slots.get(name, name) for name in here}
        self._known = {identity: one for identity, one in self._known.items() if identity in found or not self._given_up(one)}
        if not self._broken.get(_FIND) and _FIND not in self._readers.under_way:
            for identity, one in self._known.items():
                gone = one.expected and identity not in found and one.component not in here
                self._away[identity] = self._away.get(identity, 0) + 1 if gone else 0
        missed = {identity for identity, times in self._away.items() if times >= _MISSING_LOOKS and identity in self._known}
        missed |= {identity for identity in self._missed if identity in self._known and identity not in found}
        said = [plain(Component.parse(self._known[one].component), {"missing": 1.0}, _MISSED + one) for one in sorted(missed)]
        said += [plain(Component.parse(self._missed[one]), {"missing": 0.0}, _MISSED + one) for one in sorted(set(self._missed) - missed)]
        self._missed = {identity: self._known[identity].component for identity in missed}
        return said

    def _given_up(self, one: Memory) -> bool:
        """Whether the site says that a device which is not here need not be."""
        names = (Component.parse(one.component).id, *one.fields.values())
        return self._enough() or any(fnmatch(name, pattern) for name in names for pattern in self._found.excluded)

    def _hangs(self) -> list[Event]:
        events = []
        under_way = self._readers.under_way
        for key in sorted(self._overdue()):
            self._hung.add(key)
            seconds = time.monotonic() - under_way[key]
            component = Component.parse(key) if key else NODE
            if key:
                self._blinded(component, "a look at it has not come back")
            what = f"a look at {self._words(component)}" if key else "the look for devices"
            events.append(
                self.event(f"{self.name}/hung", component, {"seconds": round(seconds, 1)}, f"{what} has not come back for {seconds:.0f} s")
            )
        for key in sorted(self._hung - set(under_way)):
            self._hung.discard(key)
            component = Component.parse(key) if key else NODE
            events.append(self.event(f"{self.name}/hung", component, {"recovered": True}, f"{self._words(component)} answers again"))
        return events

    def _words(self, component: Component) -> str:
        known = self._known.get(self._identity(component))
        return known.words if known is not None and known.words else component.name

    def _signed(self, sign: Sign) -> Event:
        known = self._known.get(sign.identity.removeprefix(_MISSED))
        fields: dict[str, Value] = {**sign.fields}
        if known is not None:
            fields |= {**known.fields, **({"serial": sign.identity.removeprefix(_MISSED)} if "/" not in sign.identity else {})}
        words = known.words if known is not None and known.words else sign.component.name if sign.component != NODE else ""
        return self.event(sign.code, sign.component, fields, f"{sign.text}: {words}" if words else sign.text)

    def event(self, code: str, component: Component, fields: Fields, text: str) -> Event:
        """One fact of this source."""
        now = time.time()
        self._serial += 1
        return Event(
            identity=f"{self.name}:{self.boot_id}:{component.name}:{code}:{now:.6f}:{self._serial}",
            time=now,
            source=self.name,
            kind=code.partition("/")[0],
            code=code,
            component=component,
            boot_id=self.boot_id,
            raw=f"{self.name}: {text}",
            trust=Trust.DAEMON,
            fields=fields,
        )

    # --- batches

    def _batch(self, events: Sequence[Event], whole: Sequence[Readings]) -> Batch:
        position = None
        memory = self.memory
        if events or memory != self._noted:
            position, self._noted = Position(self.name, self.boot_id, memory), memory
        state, detail = self._standing()
        return Batch(self.name, tuple(events), position, caught_up=True, state=state, detail=detail, readings=(*self.read.values(), *whole))

    def _standing(self) -> tuple[SourceState, str]:
        """A device that nobody can look at makes what is known of this node incomplete."""
        waiting = [key for key in self._readers.under_way if key in self._hung]
        out = [f"{key or 'the look for devices'} does not answer" for key in sorted(waiting)]
        out += [f"{key or 'devices'}: {reason}" for key, reason in sorted(self._broken.items())]
        out += [
            f"{component.name}: {one.blind}" for component, one in self.read.items() if one.blind and component.name not in self._broken
        ]
        if self._found.trouble:
            out.append(self._found.trouble)
        if out:
            more = f"; and {len(out) - 3} more" if len(out) > 3 else ""
            return SourceState.FAILED, "; ".join(out[:3]) + more
        if self._found.absent:
            return SourceState.ABSENT, self._found.absent
        return SourceState.OK, ""


def plain(component: Component, values: Mapping[str, Sample], identity: str = "", missing: Mapping[str, str] | None = None) -> Readings:
    """Readings that were worked out and not read."""
    return Readings(
        component=component,
        identity=identity or component.name,
        time=time.time(),
        looked=time.monotonic(),
        values=values,
        fresh=frozenset(values),
        missing=missing or {},
    )
