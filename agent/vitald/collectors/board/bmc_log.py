"""
The event log of the BMC (SEL), as `ipmitool sel elist` lists it:

       3 | 03/01/2018 | 19:24:21 | Power Supply PS1 Status | Power Supply AC lost | Asserted

record, date, time, type and name of the sensor, event, direction. Entries are counted by what they
mean; each counts once, over restarts and boots.

Source: ipmitool(1), sel elist; ipmitool lib/ipmi_sel.c (ipmi_sel_print_std_entry,
ipmi_sel_get_std_entry, __ipmi_sel_savelist_entries),
include/ipmitool/ipmi_sel.h (generic_event_types, sensor_specific_event_types).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from vitald.collectors.small_files import RawReadings, presentable

_MAX_ENTRIES = 512
_MAX_KNOWN = 1024  # entries that are remembered
_RECORD = re.compile(r" *[0-9a-f]{1,4} *")
_DATE = re.compile(r"(\d\d/\d\d/)(?:\d\d)?(\d\d)")
_ASSERTED, _DEASSERTED = "Asserted", "Deasserted"
_ENTRY_FAILED = re.compile(r"Get SEL Entry .{0,80}failed", re.IGNORECASE)
_CPU_ERROR = re.compile(r"CATERR|IERR", re.IGNORECASE)
_GOING_HIGH = ("Upper Critical going high", "Upper Non-recoverable going high")
_GOING_LOW = ("Lower Critical going low", "Lower Non-recoverable going low")
# Reading, and what counts for it: type of the sensor (the beginning of its name), events
_MEANINGS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "log_processor_errors",
        "Processor",
        (
            "IERR",
            "SM BIOS Uncorrectable CPU-complex Error",
            "Uncorrectable machine check exception",
        ),
    ),
    ("log_memory_errors", "Memory", ("Uncorrectable ECC",)),
    ("log_bus_errors", "Critical Interrupt", ("Bus Fatal Error", "Bus Uncorrectable error")),
    ("log_supply_failures", "Power Supply", ("Failure detected",)),
    (
        "log_input_losses",
        "Power Supply",
        ("Power Supply AC lost", "AC lost or out-of-range", "AC out-of-range, but present"),
    ),
    ("log_input_losses", "Power Unit", ("AC lost",)),
    ("log_fan_failures", "Fan", _GOING_LOW),
    ("log_overheating", "Temperature", _GOING_HIGH),
    ("log_overheating", "Processor", ("Thermal Trip",)),
    ("log_overheating", "Memory", ("Critical Overtemperature",)),
)
READINGS = tuple(dict.fromkeys(reading for reading, _, _ in _MEANINGS))


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry. `key` identifies it: number, day, event and direction. The name of a sensor and
    the time differ with the state of the BMC and the version of ipmitool.
    """

    key: str
    text: str
    sensor: str
    event: str
    asserted: bool


def parse_entries(output: str) -> Iterator[LogEntry]:
    """Lines of another form are no entries; OEM records have no common meaning."""
    for line in output.splitlines()[-_MAX_ENTRIES:]:
        record, _, rest = line.partition("|")
        parts = [part.strip() for part in rest.split("|")]
        direction = next((part for part in parts[3:] if part in (_ASSERTED, _DEASSERTED)), "")
        if not _RECORD.fullmatch(record) or not direction:
            continue
        event = " | ".join(parts[3 : parts.index(direction, 3)])
        identity = "|".join((record.strip(), _shorten_year(parts[0]), event, direction))
        key = blake2b(identity.encode(), digest_size=8).hexdigest()
        yield LogEntry(key, " | ".join(parts), parts[2], event, direction == _ASSERTED)


def _shorten_year(date: str) -> str:
    """The year has two or four digits, by the version of ipmitool."""
    found = _DATE.fullmatch(date)
    return f"{found[1]}{found[2]}" if found else date


def find_gap(output: str) -> str:
    """Why a list lacks entries or may begin anywhere; empty if it does not. ipmitool ends with 0 in
    spite of it.
    """
    failed = _ENTRY_FAILED.search(output)
    return presentable(failed[0]) if failed is not None else ""


def find_reading(entry: LogEntry) -> str:
    """The reading that counts this entry; empty for none."""
    if not entry.asserted:
        return ""
    event = entry.event.partition(" (")[0]  # some vendors' details follow
    if entry.sensor.startswith("Processor") and _CPU_ERROR.search(entry.sensor):
        return "log_processor_errors" if event in ("State Asserted", "IERR") else ""
    return next(
        (
            reading
            for reading, sensor, events in _MEANINGS
            if entry.sensor.startswith(sensor) and event in events
        ),
        "",
    )


class EventLog:
    """Counts new entries. What the log had when it was first read is not counted: it may be years
    old.
    """

    def __init__(self, memory: Mapping[str, Any]) -> None:
        """`memory`: what `memory` gave before; empty at first. Raises TypeError and ValueError."""
        known = memory.get("known")
        self._known = None if known is None else dict.fromkeys(map(str, known))
        counts = memory.get("counts", {})
        self._counts = {reading: int(counts.get(reading, 0)) for reading in READINGS}
        self._latest = {str(name): str(text) for name, text in memory.get("latest", {}).items()}

    @property
    def memory(self) -> dict[str, Any]:
        known = None if self._known is None else list(self._known)
        return {"known": known, "counts": dict(self._counts), "latest": dict(self._latest)}

    def add_entries(self, output: str) -> None:
        """Count the entries that are new. Empty output is that of an empty log."""
        entries = list(parse_entries(output))
        if self._known is not None:
            self._count([entry for entry in entries if entry.key not in self._known])
        known = self._known or {}
        for entry in entries:  # those that are listed now are the last to be forgotten
            known.pop(entry.key, None)
            known[entry.key] = None
        self._known = dict.fromkeys(list(known)[-_MAX_KNOWN:])

    def _count(self, new: Sequence[LogEntry]) -> None:
        for entry in new:
            reading = find_reading(entry)
            if reading:
                self._counts[reading] += 1
                self._latest[f"{reading}_entry"] = presentable(entry.text)

    def add_readings(self, raw: RawReadings) -> None:
        raw.values |= {reading: float(count) for reading, count in self._counts.items()}
        raw.values |= self._latest
