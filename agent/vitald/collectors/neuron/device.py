"""
Readings of one Neuron device, from the driver's files.

The driver determines the order. A card that is off the bus reads all ones, so PCI is checked first.
During a reset, error counters read 0 or block up to 75 s, so they are read between two checks that
no reset is in progress. The serial number is read from the card, so only once. Nothing is written,
and `/dev/neuron*` is never opened.

Source: aws-neuron-driver 2.24 and 2.30.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitald import small_files
from vitald.collectors.neuron import layout
from vitald.collectors.neuron.layout import Attribute
from vitald.collectors.raw_readings import Files, RawReadings
from vitald.model.source import Sample

ALL_ONES = 0xFFFF  # the 16-bit counters of a card that is off the bus
UNREACHABLE = "device_unreachable"
_RESETTING = 0
_BUSY = "busy"
_AGAIN_S = 0.1
_HEADER = 4  # vendor and device: the first bytes of a function's configuration
_NO_PARTS = {"", "none", "ok"}  # no unhealthy part, as different drivers write it
# Earlier drivers mix repairable with unrepairable errors when the firmware is newer
_SEPARATES_REPAIRABLE = (2, 28)
_MIXED = 4096  # then what they read is a multiple of this
_IN_RESET = "the device is being reset"
_NO_ANSWER = "the device did not answer while it was read"
# Readings from the card itself, not from the driver's memory.
_OF_THE_CARD = (
    *(
        attribute.reading
        for attribute in (*layout.ECC, layout.UNHEALTHY, layout.HEARTBEAT, layout.ERROR_EVENTS)
    ),
    *("hbm_ecc_unclear", "unreachable", "unhealthy_parts"),
)


@dataclass(slots=True)
class KnownDevice:
    """Values that are read once, until the driver is loaded again."""

    serial: str = ""
    family: str = ""
    name: str = ""
    cores: tuple[str, ...] = ()
    read: bool = False  # its health has been read at least once
    repairable: float = 0.0  # repairable errors that it counted


@dataclass(slots=True)
class NeuronDevice:
    """`neuronN` in the driver's folder, and its PCI function if it is known."""

    index: int
    folder: str
    function: Path | None
    files: Files
    version: tuple[int, ...]
    known: KnownDevice = field(default_factory=KnownDevice)

    def read_device(self) -> RawReadings:
        """May block on the card. Raises OSError if the folder itself cannot be read."""
        raw = RawReadings(fields={"index": str(self.index)})
        if self.function is not None:
            raw.fields["pci"] = self.function.name
        self._read_identity(raw)
        if self._is_off_bus():
            return self._report_lost(raw)
        interruption = _IN_RESET if self._is_resetting(raw) else ""
        if not interruption:
            self._read_serial(raw)
            self._read_errors(raw)
            self._read_firmware_health(raw)
            # A reset may have begun, or the card left the bus, while its counters were read.
            silent = self._reads_ones()
            if silent and self._is_off_bus():
                return self._report_lost(raw)
            interruption = _NO_ANSWER if silent else ""
            interruption = _IN_RESET if self._is_resetting(raw) else interruption
        if interruption:
            for reading in _OF_THE_CARD:
                raw.values.pop(reading, None)
                raw.missing.setdefault(reading, interruption)
        raw.values["resetting"] = float(interruption == _IN_RESET)
        if raw.values.get("sram_ecc_uncorrected") == ALL_ONES:
            return self._report_lost(raw)
        raw.values["lost"] = 0.0
        self._read_cores(raw)
        self._read_power(raw)
        self._read_host_memory(raw)
        raw.missing.setdefault("temperature_celsius", "the driver shows none")
        if not interruption:
            self._remember_repairable(raw)
            self._judge_observability(raw)
        elif interruption == _NO_ANSWER:
            raw.unreadable_reason = interruption
        elif not self.known.read:
            raw.unreadable_reason = f"{interruption}, and has not been read before"
        self._set_display_name(raw)
        return raw

    # --- presence

    def _is_off_bus(self) -> bool:
        """Reads the configuration space: the kernel caches vendor and class."""
        if not self._reads_ones():
            return False
        time.sleep(_AGAIN_S)  # a card whose link is retraining does not answer either
        return self._reads_ones()

    def _reads_ones(self) -> bool:
        if self.function is None:
            return False
        try:
            with (self.function / "config").open("rb", buffering=0) as config:
                return config.read(_HEADER) == b"\xff" * _HEADER
        except OSError:
            return False

    def _report_lost(self, raw: RawReadings) -> RawReadings:
        """All other readings are invalid."""
        raw.values = {"lost": 1.0}
        raw.missing = {}
        self._set_display_name(raw)
        return raw

    def _is_resetting(self, raw: RawReadings) -> bool:
        """Whether a reset is in progress. Only root can read `reset`, the most reliable file."""
        state = self.files.read_number(raw, "reset_state", f"{self.folder}/{layout.RESET}")
        if state is not None:
            return state == _RESETTING
        if not self._has_file(layout.FIRMWARE):
            return False
        return (
            self.files.read_value(
                raw, "firmware_version", f"{self.folder}/{layout.FIRMWARE}", _parse_firmware
            )
            == _BUSY
        )

    def _has_file(self, path: str) -> bool:
        return Path(self.folder, path).exists()

    # --- identity

    def _read_identity(self, raw: RawReadings) -> None:
        for name, path in (("family", layout.FAMILY), ("name", layout.NAME)):
            if not getattr(self.known, name):
                setattr(
                    self.known,
                    name,
                    self.files.read_text(raw, name, f"{self.folder}/{path}") or "",
                )
                raw.values.pop(name, None)
        if not self.known.cores:
            found = [
                entry
                for entry in small_files.list_names(self.folder)
                if entry.removeprefix(layout.CORE).isdigit()
            ]
            self.known.cores = tuple(
                sorted(found, key=lambda entry: int(entry.removeprefix(layout.CORE)))
            )
        raw.values["cores"] = float(len(self.known.cores))

    def _read_serial(self, raw: RawReadings) -> None:
        if self.known.serial:
            return
        serial = self.files.read_text(raw, "serial", f"{self.folder}/{layout.SERIAL}")
        raw.values.pop("serial", None)
        if serial and set(serial) not in ({"f"}, {"0"}):
            self.known.serial = serial
        elif "serial" not in raw.missing:
            raw.missing["serial"] = "the device does not say"

    def _set_display_name(self, raw: RawReadings) -> None:
        raw.serial = self.known.serial
        parts = [
            f"{self.known.name or 'Neuron'} neuron{self.index}",
            f"serial {self.known.serial}" if self.known.serial else "",
        ]
        parts.append(f"PCI {self.function.name}" if self.function is not None else "")
        raw.display_name = ", ".join(filter(None, parts))
        if self.known.name:
            raw.values["name"] = self.known.name

    # --- health

    def _read_attribute(self, raw: RawReadings, attribute: Attribute) -> float | None:
        if not attribute.is_expected(self.version, self.known.family):
            raw.missing[attribute.reading] = "this driver or device has no such file"
            return None
        return self.files.read_number(raw, attribute.reading, f"{self.folder}/{attribute.path}")

    def _read_errors(self, raw: RawReadings) -> None:
        # `sram_ecc_uncorrected` is read last: where the card's place on PCI is not known, all ones
        # in it are the only sign that the card left the bus before the others were read.
        for attribute in reversed(layout.ECC):
            self._read_attribute(raw, attribute)
        repairable = raw.values.get("hbm_ecc_repairable")
        if isinstance(repairable, float) and repairable < self.known.repairable:
            # A reset is not always visible
            del raw.values["hbm_ecc_repairable"]
            raw.missing["hbm_ecc_repairable"] = (
                "fewer than before, and only a driver that is loaded repairs any: it did not answer"
            )
        unclear = raw.values.get("hbm_ecc_uncorrected")
        if (
            isinstance(unclear, float)
            and unclear
            and self.version
            and self.version < _SEPARATES_REPAIRABLE
            and unclear % _MIXED == 0
        ):
            del raw.values["hbm_ecc_uncorrected"]
            raw.values["hbm_ecc_unclear"] = unclear / _MIXED
            raw.missing["hbm_ecc_uncorrected"] = (
                "this driver cannot tell it from repairable errors, as the firmware is newer"
            )
        elif "hbm_ecc_uncorrected" in raw.values:
            raw.values["hbm_ecc_unclear"] = 0.0

    def _remember_repairable(self, raw: RawReadings) -> None:
        """Only of a complete poll: a card that is lost meanwhile reads any count."""
        repairable = raw.values.get("hbm_ecc_repairable")
        if isinstance(repairable, float):
            self.known.repairable = repairable

    def _judge_observability(self, raw: RawReadings) -> None:
        """Missing essential files make the device's state unknown.

        Except with drivers that are known to have moved files: there it is a limit of what can be
        observed, which has a finding of its own, and the other checks go on.
        """
        due = [
            attribute
            for attribute in layout.ESSENTIAL
            if attribute.is_expected(self.version, self.known.family)
        ]
        gone = [attribute for attribute in due if _is_gone(raw, attribute)]
        moved = self._were_moved(gone)
        if due:
            raw.values["ecc_observable"] = float(not gone)
        else:
            # A device that counts no memory errors: what the runtime counted is the only sign
            raw.require("hw_error")
        if not gone or moved:
            self.known.read = True
        if gone:
            self._report_gone(raw, gone, moved=moved)

    def _were_moved(self, gone: Sequence[Attribute]) -> bool:
        """Whether these files are not where this code expects them, in a driver that moved some."""
        return (
            self.version >= layout.REORGANISED
            and bool(gone)
            and not any(self._has_file(attribute.path) for attribute in gone)
        )

    def _report_gone(self, raw: RawReadings, gone: Sequence[Attribute], *, moved: bool) -> None:
        first = gone[0]
        found = layout.find_moved(self.folder, first.path.rpartition("/")[2])
        hint = ""
        if found and found != first.path:
            hint = f"; a file of that name is at {found}, a layout that is not known here"
        if not moved:
            raw.unreadable_reason = f"{first.path}: {raw.missing[first.reading]}{hint}"
            return
        for attribute in gone:
            raw.missing[attribute.reading] = (
                f"driver 2.31 moved files, and where this one is now is not known here{hint}"
            )

    def _read_firmware_health(self, raw: RawReadings) -> None:
        """The firmware's list of unhealthy parts; empty if all are healthy."""
        for attribute in (layout.UNHEALTHY, layout.HEARTBEAT, layout.ERROR_EVENTS):
            if not attribute.is_expected(self.version, self.known.family):
                raw.missing[attribute.reading] = "this driver or device has no such file"
        if layout.UNHEALTHY.reading not in raw.missing:
            listed = self.files.read_value(
                raw, layout.UNHEALTHY.reading, f"{self.folder}/{layout.UNHEALTHY.path}", str
            )
            if listed is not None:
                parts = {part.strip().lower() for part in listed.split(",")} - _NO_PARTS
                raw.values["unreachable"] = float(UNREACHABLE in parts)
                raw.values.pop(layout.UNHEALTHY.reading, None)
                if UNREACHABLE not in parts:
                    raw.values[layout.UNHEALTHY.reading] = ",".join(sorted(parts))
                    raw.values["unhealthy_parts"] = float(len(parts))
        if raw.values.get("unreachable") == 1.0:
            raw.missing[layout.HEARTBEAT.reading] = UNREACHABLE
        elif layout.HEARTBEAT.reading not in raw.missing:
            self._read_attribute(raw, layout.HEARTBEAT)
        if layout.ERROR_EVENTS.reading not in raw.missing:
            self._read_attribute(raw, layout.ERROR_EVENTS)

    def _read_cores(self, raw: RawReadings) -> None:
        """A counter is reported for all cores, or not at all."""
        for attribute in layout.CORE_COUNTERS:
            if not attribute.is_expected(self.version, self.known.family):
                raw.missing[attribute.reading] = "this driver or device has no such file"
                continue
            found = self._read_each_core(raw, attribute.reading, attribute.path)
            if found is not None:
                raw.values[attribute.reading] = found
        aborts = raw.values.get("hw_dma_abort_error")
        if isinstance(aborts, tuple):
            raw.values["dma_aborts"] = max(aborts)  # one abort may be counted by several cores
        memory = self._read_each_core(raw, "memory_used_bytes", layout.CORE_MEMORY)
        if memory is not None:
            raw.values["memory_used_bytes"] = sum(memory)

    def _read_each_core(
        self, raw: RawReadings, reading: str, path: str
    ) -> tuple[float, ...] | None:
        if not self.known.cores:
            raw.missing[reading] = "the driver shows no cores"
            return None
        found: list[float] = []
        for core in self.known.cores:
            value = self.files.read_number(raw, reading, f"{self.folder}/{core}/{path}")
            if value is None:
                raw.missing[reading] = f"{core}/{path}: {raw.missing[reading]}"
                return None
            found.append(value)
        raw.values.pop(reading, None)
        return tuple(found)

    def _read_power(self, raw: RawReadings) -> None:
        if not layout.POWER.is_expected(self.version, self.known.family):
            raw.missing[layout.POWER.reading] = "this driver or device has no such file"
            return
        self.files.read_value(
            raw, layout.POWER.reading, f"{self.folder}/{layout.POWER.path}", _parse_power
        )

    def _read_host_memory(self, raw: RawReadings) -> None:
        folder = f"{self.folder}/{layout.HOST_MEMORY}"
        scratch, used = RawReadings(), 0.0
        try:
            categories = small_files.list_names(folder)
        except OSError as error:
            raw.missing["host_memory_used_bytes"] = small_files.describe_error(error)
            return
        for category in categories:
            used += self.files.read_number(scratch, category, f"{folder}/{category}/present") or 0.0
        if scratch.values and not scratch.missing:
            raw.values["host_memory_used_bytes"] = used
        else:
            raw.missing["host_memory_used_bytes"] = next(
                iter(scratch.missing.values()), "there is no such file"
            )


def _is_gone(raw: RawReadings, attribute: Attribute) -> bool:
    """Whether an essential reading could not be observed, in any form."""
    name = attribute.reading
    if name == "hbm_ecc_uncorrected" and "hbm_ecc_unclear" in raw.values:
        return False
    return name in raw.missing and name not in raw.values


def _parse_firmware(text: str) -> str:
    if text != _BUSY and not text.isdigit():
        raise ValueError(text)
    return text


def _parse_power(text: str) -> Sample:
    """`POWER_STATUS_VALID,1763635200,5.12,60.00,32.56`: status, epoch, least, most, mean of the
    last minute in per cent.
    """
    status, _, _, _, mean = text.split(",")
    if status != "POWER_STATUS_VALID":
        raise ValueError(text)
    return float(mean) / 100
