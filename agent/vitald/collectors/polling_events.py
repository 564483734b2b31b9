"""The events of a source that polls: identities, reads that hang, and crossed thresholds."""

from __future__ import annotations

from vitald.collectors.crossing import Crossing
from vitald.collectors.device_poller import FIND
from vitald.collectors.device_registry import MISSED, DeviceRegistry
from vitald.collectors.event_factory import EventFactory
from vitald.collectors.small_files import RawReadings
from vitald.model import NODE, Component, Event, Fields, Value

IDENTITY = "device/identity"
_FINDING = "the look for devices"


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
        name = f"a look at {self._registry.find_display_name(component)}" if key else _FINDING
        fields: dict[str, Value] = {"seconds": round(seconds, 1)}
        text = f"{name} has not come back for {seconds:.0f} s"
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
