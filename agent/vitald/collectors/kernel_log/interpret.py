"""
From a record to an event: trust, component, and which records belong together.

Shared by both readers, so that a line means the same wherever it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from vitald.catalog import Catalog
from vitald.collectors.kernel_log.drills import Announcements, is_signed
from vitald.collectors.kernel_log.listed_devices import Listed
from vitald.collectors.kernel_log.parsed_line import Sighting
from vitald.collectors.kernel_log.recognise import Recogniser
from vitald.collectors.kernel_log.record import unescape
from vitald.collectors.neuron.locations import PLACED, NeuronLocations
from vitald.collectors.pci.inventory import PciInventory
from vitald.model import KERNEL_LOG, NODE, VOUCHED, Component, ComponentKind, Event, Trust, Value
from vitald.timestamps import format_rfc3339

NAME = KERNEL_LOG
_FOLLOW_S = 5.0  # an SXid's follow-up records come within milliseconds of it
_SWITCHES = 64
# What jobs run on
_ACCELERATION = (
    ComponentKind.GPU,
    ComponentKind.NVSWITCH,
    ComponentKind.NEURON,
    ComponentKind.NIC,
)


@dataclass(slots=True)
class Counters:
    """Records of the kernel log, since the daemon started."""

    read: int = 0
    lost: int = 0
    torn: int = 0
    untrusted: int = 0
    userspace: int = 0
    overruns: int = 0


class Interpreter:
    """Holds what a line is read against: the catalogue's shapes, the drills, the devices.

    Without an inventory the lines are another machine's or another day's, and this node's devices
    say nothing about them. `needed` names the disks that hold the file systems which the node
    cannot do without; `drive` tells what an NVMe drive is to the node; `listed` knows which memory
    controllers, disks and network devices it has.
    """

    def __init__(
        self,
        catalog: Catalog,
        announcements: Announcements,
        inventory: PciInventory | None,
        *,
        userspace: str,
        places: NeuronLocations | None = None,
        needed: Callable[[], Collection[str]] | None = None,
        drive: Callable[[str], Mapping[str, Value]] | None = None,
        listed: Listed | None = None,
    ) -> None:
        self.announcements = announcements
        self.inventory = inventory
        self.places = places or NeuronLocations()
        self.needed = needed
        self.drive = drive
        self.listed = listed
        self.counters = Counters()
        self._heads: dict[str, tuple[str, str, float]] = {}
        self.configure(catalog, userspace=userspace)

    def configure(self, catalog: Catalog, *, userspace: str) -> None:
        """Take new settings; also called when the configuration is reloaded. `userspace` is one of
        `settings.USERSPACE`.
        """
        self.catalog = catalog
        self.userspace = userspace
        self._recogniser = Recogniser(catalog.rules.values())

    def recognise(self, text: bytes) -> Sighting | None:
        """What the record reports, or None. A record that we fail at is kept as such: neither
        dropped nor fatal.
        """
        try:
            return self._recogniser.recognise(text)
        except Exception:  # a fault of ours; the next record must not suffer for it
            # Not at the top: vitald scan must start fast, and this line is never to be reached
            import structlog

            structlog.get_logger("kernel_log").exception("record_not_read", text=printable(text))
            return Sighting(kind="vitald", code="vitald/not_read")

    def event(
        self,
        sighting: Sighting,
        text: bytes,
        facility: int | None,
        *,
        identity: str,
        time: float,
        boot_id: str,
        usec: int | None,
        approximate: bool = False,
        live: bool = False,
        doubt: str = "",
    ) -> Event:
        """The event of a recognised record. `time` is seconds since the epoch, `approximate` if it
        was reckoned from `usec`, the kernel's own clock.

        `live`: it was written while we were reading, so that the device it names had to be here to
        be seen. `doubt`: why it may not be a record of its own.
        """
        trust, simulated_until = self._trust(text, facility, identity, time)
        on_node, stranger = self._whereabouts(sighting)
        reason = doubt or (stranger if live and trust is Trust.KERNEL else "")
        untrusted = reason if trust is not Trust.ANNOUNCED else ""
        trust = Trust.UNTRUSTED if untrusted else trust
        fields: dict[str, Value] = dict(sighting.fields)
        said = {
            "number": sighting.number,
            "pci": sighting.pci,
            "pid": sighting.pid,
            "process": sighting.process,
        }
        said |= {
            "link": sighting.link,
            "fatal": sighting.fatal,
            "usec": usec,
            "approximate": approximate or None,
        }
        said |= {"on_node": on_node, "untrusted": untrusted or None}
        fields.update({name: value for name, value in said.items() if value is not None})
        if facility:
            fields["facility"] = facility
        if trust is Trust.ACCEPTED:
            fields[VOUCHED] = self.userspace == "confirmed"
        if sighting.code == PLACED and (trust is Trust.KERNEL or fields.get(VOUCHED) is True):
            self.places.record_event(fields)
        component = self._component(sighting)
        named = component.id in (sighting.pci, fields.get("blamed")) or (
            component.kind is ComponentKind.NEURON and ":" in component.id
        )
        if sighting.pci is not None and "blamed" in fields:
            fields["reporter"] = sighting.pci
        if self.inventory is not None and component.kind in _ACCELERATION:
            fields["device_kind"] = component.kind.value
        if (
            self.drive is not None
            and component.kind is ComponentKind.DISK
            and self._asks(sighting.code, "volume")
        ):
            fields |= self.drive(component.id)
        elif (
            self.needed is not None
            and component.kind is ComponentKind.DISK
            and self._asks(sighting.code, "needed")
        ):
            with suppress(OSError):  # then nobody knows, and the line asks for less
                fields["needed"] = component.id in self.needed()
        if self.inventory is not None and component.id and named:
            fields["on_pci"] = self.inventory.is_present(component.id)
            if (had := self.inventory.has_or_had(component.id)) is not None:
                fields["on_node"] = had
            if (port := self.inventory.find_port(component.id)) is not None:
                fields["port"] = port
        if trust is Trust.UNTRUSTED:
            self.counters.untrusted += 1
        return Event(
            identity=identity,
            time=time,
            source=NAME,
            kind=sighting.kind,
            code=sighting.code,
            component=component,
            boot_id=boot_id,
            raw=printable(text),
            trust=trust,
            fields=fields,
            follows=self._follows(sighting, identity, time)
            if trust is not Trust.UNTRUSTED
            else None,
            simulated_until=simulated_until,
        )

    def _trust(
        self, text: bytes, facility: int | None, identity: str, now: float
    ) -> tuple[Trust, float | None]:
        """A file that the operator named as the kernel's log keeps no facility; its lines are taken
        at their word.
        """
        if (
            facility != 0
            and (drill := self.announcements.claim(unescape(text), identity, now)) is not None
        ):
            return Trust.ANNOUNCED, drill.simulated_until
        if not facility:
            return Trust.KERNEL, None
        # Of a drill that nobody announces any more
        if self.userspace == "ignore" or is_signed(unescape(text)):
            return Trust.UNTRUSTED, None
        return Trust.ACCEPTED, None

    def _component(self, sighting: Sighting) -> Component:
        kind = self.catalog.find_rule(sighting.code).component
        if kind is ComponentKind.NODE:
            return NODE
        blamed = sighting.fields.get("blamed")
        address = blamed if isinstance(blamed, str) else sighting.pci
        if address is not None:
            return (
                self.inventory.get_component(address, kind)
                if self.inventory is not None
                else Component(kind, address)
            )
        device = sighting.fields.get("device") or sighting.fields.get("port")
        if kind is ComponentKind.NEURON and device is not None:
            return self.places.get_component(int(str(device)))
        if kind is ComponentKind.NIC and device is not None and self.inventory is not None:
            device = self.inventory.find_address(str(device)) or device
        return Component(kind, str(device)) if device else NODE

    def _whereabouts(self, sighting: Sighting) -> tuple[bool | None, str]:
        """Whether the node has the device that a line names, as far as that can be told; and, where
        it certainly has not, in words.
        """
        among, name = self.catalog.find_rule(sighting.code).among, sighting.fields.get("device")
        if self.listed is None or among is None or not isinstance(name, str):
            return None, ""
        stranger = self.listed.is_stranger(among, name)
        return self.listed.has(
            among, name
        ), f"no {among.noun} {name} on this node" if stranger else ""

    def _asks(self, code: str, field: str) -> bool:
        return any(field in case.where for case in self.catalog.find_rule(code).cases)

    def _follows(self, sighting: Sighting, identity: str, time: float) -> str | None:
        """The identity of the SXid that this record continues."""
        if sighting.kind != "sxid" or sighting.pci is None:
            return None
        if not sighting.continues:
            if len(self._heads) >= _SWITCHES:
                self._heads.clear()
            self._heads[sighting.pci] = (sighting.code, identity, time)
            return None
        code, head, at = self._heads.get(sighting.pci, ("", "", 0.0))
        return head if code == sighting.code and abs(time - at) <= _FOLLOW_S else None


def printable(text: bytes) -> str:
    """The record as /dev/kmsg escapes it: ASCII without control characters, safe on any terminal
    and in any log.
    """
    if text.isascii() and text.decode("ascii").isprintable():
        return text.decode("ascii")
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}" for byte in text)


def lost_event(
    *,
    identity: str,
    time: float,
    boot_id: str,
    count: int | None,
    fields: dict[str, Value],
    span: tuple[float | None, float | None] = (None, None),
    code: str = "vitald/records_lost",
) -> Event:
    """Records that nobody will ever read: an event of its own, so that silence is not taken for
    health. `span`: from when to when.
    """
    said = "an unknown number of" if count is None else str(count)
    when = [
        f"{word} {format_rfc3339(moment, 'seconds')}"
        for word, moment in zip(("after", "before"), span)
        if moment
    ]
    which = [f"{key} {value}" for key, value in fields.items() if key != "ranges"]
    return Event(
        identity=identity,
        time=time,
        source=NAME,
        kind="vitald",
        code=code,
        component=NODE,
        boot_id=boot_id,
        raw=f"{said} kernel log records lost ({', '.join([*which, *when])})",
        trust=Trust.DAEMON,
        fields={
            **fields,
            "count": count,
            **{word: moment for word, moment in zip(("after", "before"), span) if moment},
        },
    )


def boot_event(boot_id: str, time: float) -> Event:
    """A boot that nobody saw but the log: what was done by it must be known before what came after
    it.
    """
    return Event(
        identity=f"vitald:boot:{boot_id}",
        time=time,
        source=NAME,
        kind="vitald",
        code="vitald/boot",
        component=NODE,
        boot_id=boot_id,
        raw="the node was booted",
        trust=Trust.DAEMON,
    )
