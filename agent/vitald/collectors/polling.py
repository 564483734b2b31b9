"""
A source that polls devices in rounds: what the collectors of kernel files have in common.

The collector knows which devices there are and how to read one. The device poller runs the reads
with their deadlines, the registry knows which device is in which slot and which is missing, the
thresholds of the catalogue say what a reading means. What the source remembers is stored as its
position, together with the events that changed it: identities, reads that hang, and crossed
thresholds.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from typing import Any
from zlib import crc32

import structlog

from vitald.catalog import Catalog
from vitald.catalog.threshold import ThresholdGroup
from vitald.collectors.collector import Collector, PolledDevice
from vitald.collectors.device_poller import FIND, NOT_BACK, Broken, DevicePoller, Results
from vitald.collectors.device_registry import MISSED, DeviceRegistry, Entry, is_component_name
from vitald.collectors.event_factory import EventFactory
from vitald.collectors.raw_readings import RawReadings
from vitald.collectors.thresholds import Crossing, ThresholdEvaluator
from vitald.model.component import NODE, Component
from vitald.model.event import Event, Fields, Value
from vitald.model.source import Batch, Position, Readings, SourceState
from vitald.model.words import Action
from vitald.text import join_first

log: structlog.stdlib.BoundLogger = structlog.get_logger("polling")

_OFTEN_S = 1.0  # how often reads that are still under way after their round are checked
_MAX_REASONS = 3  # of a failed source, in its detail
IDENTITY = "device/identity"
_FINDING = "the listing of devices"


class PollingSource:
    """Polls one collector at an interval, and when something was announced."""

    def __init__(
        self,
        collector: Collector,
        catalog: Catalog,
        boot_id: str,
        *,
        every_s: float,
        timeout_s: float,
        kinds: Sequence[str] = (),
        has_enough: Callable[[], bool] = lambda: False,
        settle_s: float = 0.0,
    ) -> None:
        """`timeout_s`: how long a read may take. `kinds`: kinds of the catalogue's entries whose
        thresholds apply to this collector; by default, its name.

        `has_enough`: the configured number of devices is present, so what is missing was removed on
        purpose. `settle_s`: as for ThresholdEvaluator.
        """
        self.name = collector.name
        self.collector = collector
        self.deadline_s = 2 * every_s + timeout_s + 5.0
        self.boot_id = boot_id
        self._every_s = every_s
        self._kinds = kinds or (collector.name,)
        self._has_enough = has_enough
        self._settle_s = settle_s
        self._poller = DevicePoller(collector, timeout_s)
        self._due = 0.0  # of the next round, on the monotonic clock
        self._facts = EventFactory(collector.name, boot_id)
        self._stored_memory = ""
        self._catalog = catalog
        # States that did not hold at the last round: component and code
        self._calm: frozenset[tuple[Component, str]] = frozenset()
        self._restore_state({})

    def configure(self, catalog: Catalog) -> None:
        """Use a catalogue that was reloaded."""
        before, self._catalog = self._catalog, catalog
        thresholds = self._list_thresholds()
        self._evaluator.configure(thresholds)
        self._calm = frozenset()
        # Findings of entries that required nothing were closed.
        requiring = {
            group.code
            for group in thresholds
            if catalog.find_rule(group.code).action is not Action.NONE
        }
        self._evaluator.report_again(
            {code for code in requiring if before.find_rule(code).action is Action.NONE}
        )

    def poll_now(self) -> None:
        """Something happened: do not wait for the next round."""
        self._poller.wake.set()

    def make_event_batch(self, code: str, fields: Fields, text: str) -> Batch:
        """An event of an operator who changed what the collector remembers, to be stored together
        with it.
        """
        return self._make_batch([self._events.make_event(code, NODE, fields, text)], [])

    # --- memory

    def restore_memory(self, after: Position | None) -> None:
        """Restore what was stored. What cannot be read is logged, and forgotten."""
        self._restore_state({})
        if after is None:
            return
        try:
            self._restore_state(json.loads(after.cursor))
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            self._restore_state({})
            log.error(
                "memory_not_read", source=self.name, error=str(error), effect="baselines begin anew"
            )
        if after.boot_id != self.boot_id:
            self._evaluator.forget_all()
            self._poller.hung.clear()

    def _restore_state(self, memory: Mapping[str, Any]) -> None:
        self._evaluator = ThresholdEvaluator(
            self._list_thresholds(), memory.get("said"), settle_s=self._settle_s
        )
        self._registry = DeviceRegistry(memory)
        self._events = PollingEvents(self.name, self._facts, self._registry)
        self.collector.memory = dict(memory.get("subject", {}))
        self._poller.restore_hung(
            key for key in memory.get("hung", ()) if key == FIND or is_component_name(key)
        )
        self._holding: list[Event] = []  # states that held at the last round
        self._calm = frozenset()
        self._readings: dict[Component, Readings] = {}

    def _list_thresholds(self) -> list[ThresholdGroup]:
        return [group for kind in self._kinds for group in self._catalog.find_thresholds(kind)]

    @property
    def memory(self) -> str:
        """What is to be stored."""
        stored = {
            **self._registry.memory,
            "said": self._evaluator.memory,
            "hung": sorted(self._poller.hung),
            "subject": self.collector.memory,
        }
        return json.dumps(stored, sort_keys=True)

    # --- rounds

    async def read_batches(self, after: Position | None) -> AsyncIterator[Batch]:
        """Until cancelled."""
        self.restore_memory(after)
        poller = self._poller
        self._due = time.monotonic()
        first = True
        while True:
            timely = time.monotonic() >= self._due
            if timely or poller.wake.is_set():
                poller.wake.clear()
                results = await poller.poll_devices()
                if first:
                    batch = self._process_first_results(results)
                else:
                    batch = self._process_results(results, timely=timely)
                if timely:  # a poll that was brought forward does not put off the next round
                    self._schedule_round(first=first)
                    first = False
                yield batch
            elif results := poller.readers.collect_results():
                yield self._process_results(await poller.read_new_devices(results))
            elif poller.find_overdue(time.monotonic()):
                yield self._process_results({})
            pause = self._due - time.monotonic()
            if poller.readers.is_pending:
                pause = min(pause, _OFTEN_S)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(poller.wake.wait(), max(0.0, pause))

    def _schedule_round(self, *, first: bool) -> None:
        pause = self._every_s
        if first:  # nodes that boot together poll at different times from the second round on
            pause *= crc32(f"{self.boot_id}{self.name}".encode()) % 1000 / 1000
        self._due = max(self._due + pause, time.monotonic() + min(pause, _OFTEN_S))

    def _process_first_results(self, results: Results) -> Batch:
        """The first round. What is remembered may be that of another version, and of no use: then
        it is forgotten, as the source could never start.
        """
        try:
            return self._process_results(results, timely=True)
        except Exception:  # one that has another cause is raised again by the second attempt
            log.exception("memory_not_used", source=self.name, effect="baselines begin anew")
            self._restore_state({})
            return self._process_results(results, timely=True)

    # --- from results to events

    def _process_results(self, results: Results, *, timely: bool = False) -> Batch:
        """Turn results into readings and events. `timely`: of a round that was due, not of one that
        was brought forward.
        """
        poller = self._poller
        devices = {device.component.name: device for device in poller.found.devices}
        results = poller.accept_results(results, devices)
        read = {key: raw for key, raw in results.items() if isinstance(raw, RawReadings)}
        for raw in read.values():
            raw.make_presentable()
        self._registry.drop_shared_serials(read, devices, poller.readers.under_way)
        if devices and not self._readings:  # the driver was loaded
            self._evaluator.restart_settling()
        fresh, events = self._record_results(results, devices)
        self._readings = {
            component: readings
            for component, readings in self._readings.items()
            if component.name in devices
        }
        combined = list(self.collector.combine_readings(self._readings, poller.found))
        # Only rounds at their time count: there are many others while devices come and go.
        counts = timely and poller.is_complete
        missing = self._registry.find_missing(devices, self._is_given_up, counts=counts)
        events += self._update_hung(devices)
        observed = self._evaluator.evaluate_readings(
            [*fresh, *combined, *missing], time.monotonic(), tuple(self._readings.values())
        )
        events += map(self._events.report_crossing, observed.crossings)
        self._holding = [*map(self._events.report_crossing, observed.holding)]
        self._calm = frozenset(observed.calm)
        return self._make_batch(
            events, [readings for readings in combined if readings.component not in self._readings]
        )

    def _record_results(
        self, results: Results, devices: Mapping[str, PolledDevice]
    ) -> tuple[list[Readings], list[Event]]:
        """Keep what was read. Returns it, and the identities that are new."""
        fresh: list[Readings] = []
        events: list[Event] = []
        for key, result in results.items():
            device = devices[key]
            if isinstance(result, Broken):
                reason = self._poller.record_failure(key, result)
                self._mark_unreadable(device.component, reason)
                continue
            assert isinstance(result, RawReadings)
            self._poller.clear_failure(key)
            events += self._match_device(device, result, devices)
            identity = result.serial or self._registry.find_identity(device.component)
            if result.unreadable_reason:
                result.fields = self._list_labels(identity)
            readings = _make_readings(device.component, identity, result)
            self._readings[device.component] = readings
            fresh.append(readings)
        return fresh, events

    def _mark_unreadable(self, component: Component, reason: str) -> None:
        """The device was polled, and nothing could be read."""
        before = self._readings.get(component)
        identity = before.identity if before else self._registry.find_identity(component)
        labels = dict(before.labels) if before else self._list_labels(identity)
        raw = RawReadings(unreadable_reason=reason, fields=labels)
        self._readings[component] = _make_readings(component, identity, raw)

    def _list_labels(self, identity: str) -> dict[str, str]:
        """What identified a device that cannot be read now, also before the start."""
        entry = self._registry.find_entry(identity)
        return dict(entry.fields) if entry is not None else {}

    def _match_device(
        self, device: PolledDevice, raw: RawReadings, present: Collection[str]
    ) -> list[Event]:
        """The device was read. An event if its serial number, or its slot, is new."""
        match = self._registry.match_device(
            device.component, raw, present, expected=device.expected
        )
        if match.former_name:
            self._evaluator.rename_component(match.former_name, match.identity)
        if match.invalidated:
            self._evaluator.forget_component(match.identity)
        return [self._events.report_identity(device.component, raw)] if match.new_identity else []

    def _is_given_up(self, entry: Entry) -> bool:
        """Whether the configuration says that a device which is missing need not be present."""
        names = (Component.parse_name(entry.component).id, *entry.fields.values())
        return self._has_enough() or any(
            fnmatch(name, pattern) for name in names for pattern in self._poller.found.excluded
        )

    def _update_hung(self, present: Collection[str]) -> list[Event]:
        """An event for each read that begins to hang, and for each that no longer does."""
        now = time.monotonic()
        hung = self._poller.update_hung(present, now)
        for key in hung.hanging:
            if key != FIND:
                self._mark_unreadable(get_component(key), NOT_BACK)
        return [
            *(self._events.report_hung(key, now - since) for key, since in hung.begun.items()),
            *(self._events.report_hung_over(key, gone=key in hung.gone) for key in hung.ended),
        ]

    # --- batches

    def _make_batch(self, events: Sequence[Event], combined: Sequence[Readings]) -> Batch:
        """With the position, if anything that is remembered changed."""
        position = None
        memory = self.memory
        if events or memory != self._stored_memory:
            position, self._stored_memory = Position(self.name, self.boot_id, memory), memory
        state, detail = self._determine_state()
        reported = {(event.component, event.code) for event in events}
        now = time.monotonic()
        hanging = [
            self._events.report_hung(key, now - since)
            for key, since in self._poller.find_hung().items()
        ]
        holding, self._holding = [*self._holding, *hanging], []
        return Batch(
            self.name,
            tuple(events),
            position,
            caught_up=True,
            state=state,
            detail=detail,
            readings=(*self._readings.values(), *combined),
            devices=self._registry.list_devices(),
            holding=tuple(
                event for event in holding if (event.component, event.code) not in reported
            ),
            calm=self._calm,
        )

    def _determine_state(self) -> tuple[SourceState, str]:
        """A device that cannot be read makes what is known of this node incomplete."""
        found, failures = self._poller.found, self._poller.failures
        reasons = self._poller.describe_failures()
        reasons += [
            f"{component.name}: {readings.unknown_reason}"
            for component, readings in self._readings.items()
            if readings.unknown_reason and component.name not in failures
        ]
        if found.trouble:
            reasons.append(found.trouble)
        if reasons:
            return SourceState.FAILED, join_first(reasons, _MAX_REASONS, "; ", "; and ")
        if not self._poller.is_listed:
            return SourceState.STARTING, "the devices have not been listed yet"
        components = [device.component for device in found.devices]
        unread = sorted(each.name for each in components if each not in self._readings)
        if unread:
            return SourceState.STARTING, f"not polled yet: {', '.join(unread[:3])}"
        if found.absent:
            return SourceState.ABSENT, found.absent
        return SourceState.OK, ""


def _make_readings(component: Component, identity: str, raw: RawReadings) -> Readings:
    return Readings(
        component=component,
        identity=identity,
        time=time.time(),
        polled_at=time.monotonic(),
        values=raw.values,
        fresh=frozenset(raw.values),
        missing=raw.missing,
        unknown_reason=raw.unreadable_reason,
        labels=dict(raw.fields),
    )


def get_component(key: str) -> Component:
    """The component of a read, by its key."""
    return NODE if key == FIND else Component.parse_name(key)


class PollingEvents:
    """Makes the events of one source, with what its registry knows of a device."""

    def __init__(self, source: str, facts: EventFactory, registry: DeviceRegistry) -> None:
        self._source = source
        self._facts = facts
        self._registry = registry

    def make_event(self, code: str, component: Component, fields: Fields, text: str) -> Event:
        return self._facts.make_event(code, component, fields, f"{self._source}: {text}")

    def report_identity(self, component: Component, raw: RawReadings) -> Event:
        """The device gives its serial number for the first time, or in another slot."""
        fields = {"serial": raw.serial, **raw.fields}
        text = raw.display_name or component.name
        return self.make_event(IDENTITY, component, fields, text)

    def report_hung(self, key: str, seconds: float) -> Event:
        """A read that has not come back for so long."""
        component = get_component(key)
        name = f"a read of {self._registry.find_display_name(component)}" if key else _FINDING
        fields: dict[str, Value] = {"seconds": round(seconds, 1)}
        text = f"{name} has not returned for {seconds:.0f} s"
        return self.make_event(f"{self._source}/hung", component, fields, text)

    def report_hung_over(self, key: str, *, gone: bool) -> Event:
        """The device answers again, or is `gone`."""
        component = get_component(key)
        name = self._registry.find_display_name(component) if key else _FINDING
        text = f"{name} {'is gone' if gone else 'answers again'}"
        return self.make_event(f"{self._source}/hung", component, {"recovered": True}, text)

    def report_crossing(self, crossing: Crossing) -> Event:
        """A threshold that a device, or the node, crossed."""
        known = self._registry.find_entry(crossing.identity)
        fields: dict[str, Value] = {**crossing.fields}
        name = "" if crossing.component == NODE else crossing.component.name
        if known is not None:
            fields.update(known.fields)
            if "/" not in crossing.identity:
                fields["serial"] = crossing.identity.removeprefix(MISSED)
            name = known.display_name or name
        text = f"{crossing.text}: {name}" if name else crossing.text
        return self.make_event(crossing.code, crossing.component, fields, text)
