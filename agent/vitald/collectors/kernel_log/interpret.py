"""
Makes an event of a record of the kernel log: its trust, its component, and the event it follows.

Shared by all readers of the log, so that a line means the same wherever it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from vitald.catalog import Catalog
from vitald.collectors.kernel_log.drills import DrillRegistry, is_drill_line
from vitald.collectors.kernel_log.recognise import Recogniser
from vitald.collectors.kernel_log.record import ParsedLine, unescape
from vitald.model.component import NODE, Component
from vitald.model.event import VOUCHED, Event, Trust, Value, is_hearsay
from vitald.model.source import KERNEL_LOG
from vitald.model.words import ComponentKind
from vitald.timestamps import format_rfc3339
from vitald.topology.listed_devices import ListedDevices
from vitald.topology.neuron_locations import PLACED, NeuronLocations
from vitald.topology.pci_inventory import PciInventory

NAME = KERNEL_LOG
_MAX_FOLLOW_UP_S = 5.0  # follow-up records of an SXid come within milliseconds of it
_MAX_SWITCHES = 64
# Devices that jobs run on
_JOB_DEVICE_KINDS = (
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
    """Makes events of records, by the catalogue's rules, the active drills and the node's devices.

    Without an inventory the lines are of another machine or another day, and this node's devices do
    not apply to them.
    """

    def __init__(
        self,
        catalog: Catalog,
        drills: DrillRegistry,
        inventory: PciInventory | None,
        *,
        userspace: str,
        places: NeuronLocations | None = None,
        needed: Callable[[], Collection[str]] | None = None,
        drive: Callable[[str], Mapping[str, Value]] | None = None,
        listed: ListedDevices | None = None,
    ) -> None:
        """`needed`: lists the disks of the file systems that the node needs; may raise OSError.
        `drive`: fields that describe an NVMe drive's role. `listed`: the node's memory controllers,
        disks and network devices.
        """
        self.drills = drills
        self.inventory = inventory
        self.places = places or NeuronLocations()
        self.needed = needed
        self.drive = drive
        self.listed = listed
        self.counters = Counters()
        # PCI address of an NVSwitch -> code, identity and time of its latest SXid
        self._first_records: dict[str, tuple[str, str, float]] = {}
        self.configure(catalog, userspace=userspace)

    def configure(self, catalog: Catalog, *, userspace: str) -> None:
        """Apply new settings; also called when the configuration is reloaded. `userspace` is one of
        `settings.USERSPACE`.
        """
        self.catalog = catalog
        self.userspace = userspace
        self._recogniser = Recogniser(catalog.rules.values())

    def parse_record(self, text: bytes) -> ParsedLine | None:
        """What the record reports, or None. A record on which parsing fails is reported as such,
        neither dropped nor fatal.
        """
        try:
            return self._recogniser.parse_record(text)
        except Exception:  # a bug of the parser must not affect the next record
            # Not at the top: vitald scan must start fast, and this line should never be reached
            import structlog

            structlog.get_logger("kernel_log").exception(
                "record_not_read", text=escape_unprintable(text)
            )
            return ParsedLine(kind="vitald", code="vitald/not_read")

    def make_event(
        self,
        parsed: ParsedLine,
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
        history: str = "",
        undated: bool = False,
    ) -> Event:
        """The event of a parsed record. `time` is in seconds since the epoch, `approximate` if it
        was computed from `usec`, the kernel's own clock in microseconds.

        `live`: the record was written while the daemon was reading, so the device it names must
        have been listed. `doubt`: why it may not be a record of its own. `history`: why it is none
        of this boot. `undated`: when it was written is unknown.
        """
        trust, simulated_until = self._determine_trust(text, facility, identity, time)
        on_node, absent = self._check_presence(parsed)
        untrusted = history or (absent if live and trust is Trust.KERNEL else "")
        if trust is Trust.ACCEPTED and self.userspace != "confirmed":
            untrusted = untrusted or self._explain_foreign(parsed)
        if trust is Trust.ANNOUNCED:
            untrusted = doubt = ""
        if untrusted:
            trust = Trust.UNTRUSTED
        if trust is Trust.UNTRUSTED:
            self.counters.untrusted += 1
        fields = _copy_fields(
            parsed,
            usec=usec,
            approximate=approximate or None,
            undated=undated or None,
            on_node=on_node,
            untrusted=untrusted or None,
            doubted=doubt or None,
            facility=facility or None,
        )
        if trust is Trust.ACCEPTED:
            fields[VOUCHED] = self.userspace == "confirmed"
        is_written = trust in (Trust.KERNEL, Trust.ACCEPTED) and not is_hearsay(fields)
        if parsed.code == PLACED and is_written:
            self.places.record_event(fields)
        component = self._find_component(parsed)
        self._add_device_fields(fields, parsed, component)
        return Event(
            identity=identity,
            time=time,
            source=NAME,
            kind=parsed.kind,
            code=parsed.code,
            component=component,
            boot_id=boot_id,
            raw=escape_unprintable(text),
            trust=trust,
            fields=fields,
            follows=self._find_followed_event(parsed, trust, identity, time),
            simulated_until=simulated_until,
        )

    def _add_device_fields(
        self, fields: dict[str, Value], parsed: ParsedLine, component: Component
    ) -> None:
        """Add what this node knows about the component."""
        blamed = fields.get("blamed")
        if parsed.pci is not None and "blamed" in fields:
            fields["reporter"] = parsed.pci
        if component.kind is ComponentKind.DISK:
            fields |= self._describe_disk(parsed.code, component.id)
        if self.inventory is None:
            return
        if component.kind in _JOB_DEVICE_KINDS:
            fields["device_kind"] = component.kind.value
        by_neuron_place = component.kind is ComponentKind.NEURON and ":" in component.id
        if component.id and (component.id in (parsed.pci, blamed) or by_neuron_place):
            fields["on_pci"] = self.inventory.is_present(component.id)
            if (had := self.inventory.has_or_had(component.id)) is not None:
                fields["on_node"] = had
            if (port := self.inventory.find_port(component.id)) is not None:
                fields["port"] = port

    def _describe_disk(self, code: str, name: str) -> Mapping[str, Value]:
        if self.drive is not None and self._rule_needs_field(code, "volume"):
            return self.drive(name)
        if self.needed is not None and self._rule_needs_field(code, "needed"):
            with suppress(OSError):  # then it is not known, and the milder case of the rule applies
                return {"needed": name in self.needed()}
        return {}

    def _determine_trust(
        self, text: bytes, facility: int | None, identity: str, now: float
    ) -> tuple[Trust, float | None]:
        """The trust of a record, and until when its drill lasts. A file that the operator named as
        the kernel's log keeps no facility; its lines are trusted.
        """
        if (
            facility != 0
            and (drill := self.drills.claim_drill(unescape(text), identity, now)) is not None
        ):
            return Trust.ANNOUNCED, drill.simulated_until
        if not facility:
            return Trust.KERNEL, None
        # A drill's line without an announcement: the drill is over
        if self.userspace == "ignore" or is_drill_line(unescape(text)):
            return Trust.UNTRUSTED, None
        return Trust.ACCEPTED, None

    def _find_component(self, parsed: ParsedLine) -> Component:
        kind = self.catalog.find_rule(parsed.code).component
        if kind is ComponentKind.NODE:
            return NODE
        blamed = parsed.fields.get("blamed")
        address = blamed if isinstance(blamed, str) else parsed.pci
        if address is not None:
            return (
                self.inventory.get_component(address, kind)
                if self.inventory is not None
                else Component(kind, address)
            )
        device = parsed.fields.get("device") or parsed.fields.get("port")
        if kind is ComponentKind.NEURON and device is not None:
            return self.places.get_component(int(str(device)))
        if kind is ComponentKind.NIC and device is not None and self.inventory is not None:
            device = self.inventory.find_address(str(device)) or device
        return Component(kind, str(device)) if device else NODE

    def _check_presence(self, parsed: ParsedLine) -> tuple[bool | None, str]:
        """Whether the node has the device that a line names, None if unknown; and a message if it
        certainly has none.
        """
        among, name = self.catalog.find_rule(parsed.code).among, parsed.fields.get("device")
        if self.listed is None or among is None or not isinstance(name, str):
            return None, ""
        absent = self.listed.is_certainly_absent(among, name)
        message = f"no {among.noun} {name} on this node" if absent else ""
        return self.listed.has_device(among, name), message

    def _explain_foreign(self, parsed: ParsedLine) -> str:
        """Why a process cannot know of the accelerator that it wrote about; empty if it may."""
        kind = self.catalog.find_rule(parsed.code).component
        if self.inventory is None or not self.inventory.has_never_had(kind):
            return ""
        return f"this node has no {kind.value} and no driver for one"

    def _rule_needs_field(self, code: str, field: str) -> bool:
        return any(field in case.where for case in self.catalog.find_rule(code).cases)

    def _find_followed_event(
        self, parsed: ParsedLine, trust: Trust, identity: str, time: float
    ) -> str | None:
        """The identity of the SXid that this record continues."""
        if parsed.kind != "sxid" or parsed.pci is None or trust is Trust.UNTRUSTED:
            return None
        if not parsed.continues:
            if len(self._first_records) >= _MAX_SWITCHES:
                self._first_records.clear()
            self._first_records[parsed.pci] = (parsed.code, identity, time)
            return None
        code, first, at = self._first_records.get(parsed.pci, ("", "", 0.0))
        return first if code == parsed.code and abs(time - at) <= _MAX_FOLLOW_UP_S else None


def _copy_fields(parsed: ParsedLine, **more: Value) -> dict[str, Value]:
    """Fields of the event: those of the line, and of the rest what is not None."""
    fields: dict[str, Value] = dict(parsed.fields)
    rest: dict[str, Value] = {
        "number": parsed.number,
        "pci": parsed.pci,
        "pid": parsed.pid,
        "process": parsed.process,
        "link": parsed.link,
        "fatal": parsed.fatal,
        **more,
    }
    for name, value in rest.items():
        if value is not None:
            fields[name] = value
    return fields


def escape_unprintable(text: bytes) -> str:
    """The record as /dev/kmsg escapes it: ASCII without control characters, safe for terminals and
    logs.
    """
    if text.isascii() and text.decode("ascii").isprintable():
        return text.decode("ascii")
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}" for byte in text)


def make_lost_event(
    *,
    identity: str,
    time: float,
    boot_id: str,
    count: int | None,
    fields: dict[str, Value],
    span: tuple[float | None, float | None] = (None, None),
    code: str = "vitald/records_lost",
) -> Event:
    """The event of records that were lost before they were read, so that missing reports are not
    taken for health. `count` is None if unknown; `span`: times after and before which they were
    written, in seconds since the epoch.
    """
    number = "an unknown number of" if count is None else str(count)
    bounds = {name: moment for name, moment in zip(("after", "before"), span) if moment}
    when = [f"{name} {format_rfc3339(moment, 'seconds')}" for name, moment in bounds.items()]
    which = [f"{key} {value}" for key, value in fields.items() if key != "ranges"]
    return Event(
        identity=identity,
        time=time,
        source=NAME,
        kind="vitald",
        code=code,
        component=NODE,
        boot_id=boot_id,
        raw=f"{number} kernel log records lost ({', '.join([*which, *when])})",
        trust=Trust.DAEMON,
        fields={**fields, "count": count, **bounds},
    )


def make_boot_event(boot_id: str, time: float) -> Event:
    """The event of a boot that only the log shows: it resolves findings before the records after it
    are judged.
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
