"""
A source that looks at devices in rounds: what Neuron, the network, PCI and the host have in common.

Owns     the rounds, the deadline of a look, and what it means for the source that one does not come
         back.
Refuses  files and meaning. A subject knows which devices there are and how to look at one, the
         roster who is who and who is missing; what readings mean is said by the catalogue's
         watches.

A look may hang: it is left alone with its thread, and its device is not known until a look comes
back in time. What a source remembers is stored as its position, together with the events that
changed it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, Protocol
from zlib import crc32

import structlog

from vitald.catalog import Catalog
from vitald.catalog.threshold import ThresholdGroup
from vitald.collectors.crossing import Crossing
from vitald.collectors.device_registry import MISSED, DeviceRegistry, Entry, is_name
from vitald.collectors.event_factory import EventFactory
from vitald.collectors.reader_threads import Broken, Readers
from vitald.collectors.small_files import Look, why
from vitald.collectors.thresholds import ThresholdEvaluator
from vitald.model import (
    NODE,
    Action,
    Batch,
    Component,
    Event,
    Fields,
    Position,
    Readings,
    SourceState,
    Value,
)
from vitald.text import join_first

log: structlog.stdlib.BoundLogger = structlog.get_logger("polled")

IDENTITY = "device/identity"
_FIND = ""  # the key of the look that finds the devices
_NOT_BACK = "a look has not come back"
_OFTEN_S = 1.0  # while a read is under way past its round, its end and its deadline are waited for


@dataclass(frozen=True, slots=True)
class PolledDevice:
    """Something to look at. `expected`: once seen, it should be there. `look` may block, and may
    raise OSError.
    """

    component: Component
    look: Callable[[], Look]
    expected: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Which devices there are. `absent`: why there is nothing to look at; `trouble`: why not all of
    it can be looked at.

    `excluded`: patterns of names and addresses that the site wants to be left alone.
    """

    devices: Sequence[PolledDevice] = ()
    absent: str = ""
    trouble: str = ""
    excluded: Sequence[str] = ()


class Collector(Protocol):
    """What a source looks at. `memory` is what it wants to find again after a restart or a boot:
    anything that JSON can hold.
    """

    name: str
    memory: dict[str, Any]

    def find(self) -> Found:
        """The devices, now. May block, and may raise OSError."""
        ...

    def together(self, read: Mapping[Component, Readings], found: Found) -> Iterable[Readings]:
        """What only shows when all are seen together, of the node or of a device: counts, what is
        missing, ports that are all down.

        Called at each round, on the loop.
        """
        ...


class PollingSource:
    """One subject, looked at every so often."""

    def __init__(
        self,
        subject: Collector,
        catalog: Catalog,
        boot_id: str,
        *,
        every_s: float,
        look_s: float,
        kinds: Sequence[str] = (),
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """`look_s`: how long a look may take. `kinds`: kinds of entries whose watches are about
        this subject; its name, if not said.

        `enough`: the site said how many devices there should be, and so many are here. What is gone
        was taken out on purpose.
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
        self._due = 0.0  # of the next round, on the monotonic clock
        self._found = Found()
        self._listed = False  # the devices have been listed once
        self._late: set[str] = set()  # looks under way that are past their deadline
        self._answered: set[str] = set()  # that came back in time since this was last told
        self._facts = EventFactory(subject.name, boot_id)
        self._noted = ""
        self._catalog = catalog
        self._begin({})

    def _begin(self, memory: Mapping[str, Any]) -> None:
        self._watcher = ThresholdEvaluator(self._watches(), memory.get("said"))
        self._roster = DeviceRegistry(memory)
        self.subject.memory = dict(memory.get("subject", {}))
        self._hung: set[str] = {
            key for key in memory.get("hung", ()) if key == _FIND or is_name(key)
        }
        self._holding: list[Event] = []  # what the last round found to hold still
        self._broken: dict[str, str] = {}
        self.read = {}

    def _watches(self) -> list[ThresholdGroup]:
        return [one for kind in self._kinds for one in self._catalog.find_thresholds(kind)]

    def configure(self, catalog: Catalog) -> None:
        """The catalogue was reloaded."""
        before, self._catalog = self._catalog, catalog
        watches = self._watches()
        self._watcher.configure(watches)
        # Entries that asked for nothing had their findings closed.
        asks = {
            one.code for one in watches if catalog.find_rule(one.code).action is not Action.NONE
        }
        self._watcher.say_again(
            {code for code in asks if before.find_rule(code).action is Action.NONE}
        )

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
            log.error(
                "memory_not_read", source=self.name, error=str(error), effect="baselines begin anew"
            )
        if after.boot_id != self.boot_id:
            self._watcher.forget_all()
            self._hung.clear()

    @property
    def memory(self) -> str:
        stored = {
            **self._roster.memory,
            "said": self._watcher.memory,
            "hung": sorted(self._hung),
            "subject": self.subject.memory,
        }
        return json.dumps(stored, sort_keys=True)

    # --- rounds

    async def read_batches(self, after: Position | None) -> AsyncIterator[Batch]:
        """Until cancelled."""
        self.recall(after)
        self._due = time.monotonic()
        first = True
        while True:
            timely = time.monotonic() >= self._due
            if timely or self._wake.is_set():
                self._wake.clear()
                back = await self._round()
                batch = self._begun(back) if first else self._digest(back, timely=timely)
                if timely:  # a look that was brought forward puts off no other
                    # Nodes that boot together part ways after the first look.
                    share = (
                        crc32(f"{self.boot_id}{self.name}".encode()) % 1000 / 1000 if first else 1.0
                    )
                    self._due = max(
                        self._due + self._every_s * share,
                        time.monotonic() + min(self._every_s * share, _OFTEN_S),
                    )
                    first = False
                yield batch
            elif back := self._readers.collect():
                yield self._digest(await self._listing(back))
            elif self._overdue():
                yield self._digest({})
            pause = self._due - time.monotonic()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(
                    self._wake.wait(),
                    max(0.0, min(pause, _OFTEN_S) if self._readers.owing else pause),
                )

    async def _round(self) -> dict[str, Look | Found | Broken]:
        back = await self._readers.read({_FIND: self.subject.find})
        self._took_list(back)
        return await self._listing(back | await self._readers.read(self._looks()))

    async def _listing(
        self, back: dict[str, Look | Found | Broken]
    ) -> dict[str, Look | Found | Broken]:
        """What came back; if a list of devices is in it, with looks at those that are new."""
        while self._took_list(back):
            back |= await self._readers.read(
                {key: look for key, look in self._looks().items() if key not in back}
            )
        return back

    def _looks(self) -> dict[str, Callable[[], Look | Found]]:
        return {one.component.name: one.look for one in self._found.devices}

    def _took_list(self, back: dict[str, Look | Found | Broken]) -> bool:
        """A list that comes late is the best there is, and is used."""
        found = back.pop(_FIND, None)
        if found is None:
            return False
        self._in_time(_FIND)
        if isinstance(found, Broken):
            self._broken[_FIND] = self._complaint("devices", found)
            return False
        assert isinstance(found, Found)
        self._found, self._listed = found, True
        self._broken.pop(_FIND, None)
        return True

    def _in_time(self, key: str) -> bool:
        """Whether what came back did so before its deadline. If not, another look is due."""
        if key not in self._late:
            self._answered.add(key)
            return True
        self._late.discard(key)
        self._wake.set()
        return False

    def _overdue(self) -> set[str]:
        """Looks that have just become late."""
        now = time.monotonic()
        return {
            key
            for key, since in self._readers.under_way.items()
            if now - since > self._look_s and key not in self._late
        }

    def _complaint(self, what: str, broken: Broken) -> str:
        if isinstance(broken.error, OSError):
            return f"{broken.error.filename or what}: {why(broken.error)}"
        log.error("look_failed", source=self.name, device=what, exc_info=broken.error)
        return f"{type(broken.error).__name__}: {broken.error}"

    # --- from looks to events

    def _begun(self, back: Mapping[str, Look | Found | Broken]) -> Batch:
        """The first round. What is remembered may be another version's, and of no use: then it is
        forgotten, or nothing would ever go on.
        """
        try:
            return self._digest(back, timely=True)
        except Exception:  # a fault that is not in what is remembered comes back with the next line
            log.exception("memory_not_used", source=self.name, effect="baselines begin anew")
            self._begin({})
            return self._digest(back, timely=True)

    def _digest(self, back: Mapping[str, Look | Found | Broken], *, timely: bool = False) -> Batch:
        """What came back, as readings and events. `timely`: of a round that came at its time, and
        not because something was announced.

        What comes back late is not believed: it was read at some time before, and some drivers give
        0 for what did not answer.
        """
        events: list[Event] = []
        here = {one.component.name: one for one in self._found.devices}
        self._broken = {
            key: reason for key, reason in self._broken.items() if key in here or key == _FIND
        }
        back = {key: result for key, result in back.items() if self._in_time(key) and key in here}
        looks = {key: look for key, look in back.items() if isinstance(look, Look)}
        for look in looks.values():
            look.make_presentable()
        self._roster.apart(looks, here, self._readers.under_way)
        fresh: list[Readings] = []
        for key, result in back.items():
            component = here[key].component
            if isinstance(result, Broken):
                self._broken[key] = self._complaint(key, result)
                self._blinded(component, self._broken[key])
                continue
            assert isinstance(result, Look)
            self._broken.pop(key, None)
            events += self._met(here[key], result, here)
            self.read[component] = self._readings(component, result)
            fresh.append(self.read[component])
        self.read = {
            component: one for component, one in self.read.items() if component.name in here
        }
        together = list(self.subject.together(self.read, self._found))
        fresh += [*together, *self._missing(here, timely=timely)]
        events += self._hangs(set(here))
        events += [
            self._signed(sign)
            for sign in self._watcher.look(fresh, time.monotonic(), tuple(self.read.values()))
        ]
        self._holding = [self._signed(sign) for sign in self._watcher.holding]
        return self._batch(events, [one for one in together if one.component not in self.read])

    def _readings(self, component: Component, look: Look) -> Readings:
        return Readings(
            component=component,
            identity=look.serial or self._roster.identity(component),
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
            identity=before.identity if before is not None else self._roster.identity(component),
            time=time.time(),
            looked=time.monotonic(),
            values={},
            fresh=frozenset(),
            blind=reason,
            who=before.who if before is not None else {},
        )

    def _met(self, device: PolledDevice, look: Look, here: Collection[str]) -> list[Event]:
        """It answered. An event where that is news."""
        met = self._roster.met(device.component, look, here, expected=device.expected)
        if met.former:
            self._watcher.rename(met.former, met.identity)
        if met.anew:
            self._watcher.forget(met.identity)
        if not met.news:
            return []
        return [
            self.event(
                IDENTITY,
                device.component,
                {"serial": look.serial, **look.fields},
                look.words or device.component.name,
            )
        ]

    def _missing(self, here: Collection[str], *, timely: bool) -> list[Readings]:
        """Rounds count that come at their time: while devices go and come, there are many
        others.
        """
        counts = timely and not (
            self._found.trouble or _FIND in self._broken or _FIND in self._readers.under_way
        )
        return self._roster.missing(here, self._given_up, counts=counts)

    def _given_up(self, one: Entry) -> bool:
        """Whether the site says that a device which is not here need not be."""
        names = (Component.parse_name(one.component).id, *one.fields.values())
        return self._enough() or any(
            fnmatch(name, pattern) for name in names for pattern in self._found.excluded
        )

    def _hangs(self, here: set[str]) -> list[Event]:
        """What does not come back, once; and what came back in time after that."""
        events = []
        under_way = self._readers.under_way
        overdue = self._overdue()
        self._late |= overdue
        for key in sorted(overdue | (self._hung & set(under_way))):
            component = Component.parse_name(key) if key else NODE
            if key:
                self._blinded(component, _NOT_BACK)
            if key in self._hung:
                continue  # said before a restart, or of the look before this one
            self._hung.add(key)
            events.append(self._hangs_still(key))
        gone = (
            set()
            if not self._listed or _FIND in self._broken
            else self._hung - here - set(under_way) - {_FIND}
        )
        for key in sorted(self._hung & self._answered | gone):
            self._hung.discard(key)
            component = Component.parse_name(key) if key else NODE
            what = "is gone" if key in gone else "answers again"
            words = self._roster.words(component) if key else "the look for devices"
            events.append(
                self.event(f"{self.name}/hung", component, {"recovered": True}, f"{words} {what}")
            )
        self._answered.clear()
        return events

    def _hangs_still(self, key: str) -> Event:
        component = Component.parse_name(key) if key else NODE
        seconds = time.monotonic() - self._readers.under_way[key]
        what = f"a look at {self._roster.words(component)}" if key else "the look for devices"
        fields: dict[str, Value] = {"seconds": round(seconds, 1)}
        return self.event(
            f"{self.name}/hung", component, fields, f"{what} has not come back for {seconds:.0f} s"
        )

    def _signed(self, sign: Crossing) -> Event:
        known = self._roster.entry(sign.identity)
        fields: dict[str, Value] = {**sign.fields}
        if known is not None:
            fields |= {
                **known.fields,
                **(
                    {"serial": sign.identity.removeprefix(MISSED)}
                    if "/" not in sign.identity
                    else {}
                ),
            }
        words = (
            known.words
            if known is not None and known.words
            else sign.component.name
            if sign.component != NODE
            else ""
        )
        return self.event(
            sign.code, sign.component, fields, f"{sign.text}: {words}" if words else sign.text
        )

    def event(self, code: str, component: Component, fields: Fields, text: str) -> Event:
        """One fact of this source."""
        return self._facts.event(code, component, fields, f"{self.name}: {text}")

    # --- batches

    def told(self, code: str, fields: Fields, text: str) -> Batch:
        """Somebody told the subject what to remember: the event that says so, to be stored together
        with it.
        """
        return self._batch([self.event(code, NODE, fields, text)], [])

    def _batch(self, events: Sequence[Event], whole: Sequence[Readings]) -> Batch:
        position = None
        memory = self.memory
        if events or memory != self._noted:
            position, self._noted = Position(self.name, self.boot_id, memory), memory
        state, detail = self._standing()
        said = {(event.component, event.code) for event in events}
        hanging = [
            self._hangs_still(key) for key in sorted(self._hung & set(self._readers.under_way))
        ]
        holding, self._holding = [*self._holding, *hanging], []
        return Batch(
            self.name,
            tuple(events),
            position,
            caught_up=True,
            state=state,
            detail=detail,
            readings=(*self.read.values(), *whole),
            holding=tuple(event for event in holding if (event.component, event.code) not in said),
            calm=frozenset(self._watcher.calm),
        )

    def _standing(self) -> tuple[SourceState, str]:
        """A device that nobody can look at makes what is known of this node incomplete."""
        out = [f"the look for devices: {_NOT_BACK}"] if _FIND in self._hung else []
        out += [f"{key or 'devices'}: {reason}" for key, reason in sorted(self._broken.items())]
        out += [
            f"{component.name}: {one.blind}"
            for component, one in self.read.items()
            if one.blind and component.name not in self._broken
        ]
        if self._found.trouble:
            out.append(self._found.trouble)
        if out:
            return SourceState.FAILED, join_first(out, 3, "; ", "; and ")
        if not self._listed:
            return SourceState.STARTING, "the devices have not been listed yet"
        if unseen := [
            one.component.name for one in self._found.devices if one.component not in self.read
        ]:
            return SourceState.STARTING, f"not looked at yet: {', '.join(sorted(unseen)[:3])}"
        if self._found.absent:
            return SourceState.ABSENT, self._found.absent
        return SourceState.OK, ""
