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
from dataclasses import dataclass, field
from pathlib import Path

from vitald.collectors import small_files
from vitald.collectors.neuron import layout
from vitald.collectors.neuron.layout import Attribute
from vitald.collectors.small_files import Files, RawReadings
from vitald.model import Sample

ALL_ONES = 0xFFFF  # what the 16-bit counters of a card read that is off the bus
UNREACHABLE = "device_unreachable"
_READY, _RESETTING = 1, 0
_BUSY = "busy"
_AGAIN_S = 0.1
_HEADER = 4  # vendor and device: the first bytes of a function's configuration
_NO_PARTS = {"", "none", "ok"}  # no unhealthy part, as different drivers write it
_TOLD_APART = (
    2,
    28,
)  # earlier drivers mix repairable with unrepairable errors when the firmware is newer
_MIXED = 4096  # then what they read is a multiple of this
_RESETTING_SAID = "the device is being reset"
_SILENT_SAID = "the device did not answer while it was read"
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
    repairable: float = 0.0  # errors that it counted


@dataclass(slots=True)
class NeuronDevice:
    """`neuronN` below the driver's folder, and its PCI function where that is known."""

    index: int
    folder: str
    function: Path | None
    files: Files
    version: tuple[int, ...]
    known: KnownDevice = field(default_factory=KnownDevice)

    def read_device(self) -> RawReadings:
        """May block on the card. Raises OSError if the folder itself cannot be read."""
        look = RawReadings(fields={"index": str(self.index)})
        if self.function is not None:
            look.fields["pci"] = self.function.name
        self._read_identity(look)
        if self._off_the_bus():
            return self._report_lost(look)
        repairable_before = self.known.repairable
        interruption = _RESETTING_SAID if self._is_resetting(look) else ""
        if not interruption:
            self._ask_serial(look)
            self._read_errors(look)
            self._firmware_health(look)
            # A reset may have begun, or the card left the bus, while its counters were read.
            silent = self._reads_ones()
            if silent and self._off_the_bus():
                return self._report_lost(look)
            interruption = _SILENT_SAID if silent else ""
            interruption = _RESETTING_SAID if self._is_resetting(look) else interruption
        if interruption:
            self.known.repairable = repairable_before
            for reading in _OF_THE_CARD:
                look.values.pop(reading, None)
                look.missing.setdefault(reading, interruption)
        look.values["resetting"] = float(interruption == _RESETTING_SAID)
        if look.values.get("sram_ecc_uncorrected") == ALL_ONES:
            return self._report_lost(look)
        look.values["lost"] = 0.0
        self._read_cores(look)
        self._read_power(look)
        self._host_memory(look)
        look.missing.setdefault("temperature_celsius", "the driver shows none")
        if not interruption:
            self._judge_sight(look)
        elif not self.known.read:
            look.unreadable_reason = f"{interruption}, and has not been read before"
        self._set_display_name(look)
        return look

    # --- presence

    def _off_the_bus(self) -> bool:
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

    def _report_lost(self, look: RawReadings) -> RawReadings:
        """All other readings are invalid."""
        look.values = {"lost": 1.0}
        look.missing = {}
        self._set_display_name(look)
        return look

    def _is_resetting(self, look: RawReadings) -> bool:
        """Whether a reset is in progress. Only root can read `reset`, the most reliable file."""
        state = self.files.read_number(look, "reset_state", f"{self.folder}/{layout.RESET}")
        if state is not None:
            return state == _RESETTING
        if not self._has_file(layout.FIRMWARE):
            return False
        return (
            self.files.read_value(
                look, "firmware_version", f"{self.folder}/{layout.FIRMWARE}", _parse_firmware
            )
            == _BUSY
        )

    def _has_file(self, path: str) -> bool:
        return Path(self.folder, path).exists()

    # --- identity

    def _read_identity(self, look: RawReadings) -> None:
        for name, path in (("family", layout.FAMILY), ("name", layout.NAME)):
            if not getattr(self.known, name):
                setattr(
                    self.known,
                    name,
                    self.files.read_text(look, name, f"{self.folder}/{path}") or "",
                )
                look.values.pop(name, None)
        if not self.known.cores:
            found = [
                entry
                for entry in small_files.list_names(self.folder)
                if entry.removeprefix(layout.CORE).isdigit()
            ]
            self.known.cores = tuple(
                sorted(found, key=lambda entry: int(entry.removeprefix(layout.CORE)))
            )
        look.values["cores"] = float(len(self.known.cores))

    def _ask_serial(self, look: RawReadings) -> None:
        if self.known.serial:
            return
        serial = self.files.read_text(look, "serial", f"{self.folder}/{layout.SERIAL}")
        look.values.pop("serial", None)
        if serial and set(serial) not in ({"f"}, {"0"}):
            self.known.serial = serial
        elif "serial" not in look.missing:
            look.missing["serial"] = "the device does not say"

    def _set_display_name(self, look: RawReadings) -> None:
        look.serial = self.known.serial
        parts = [
            f"{self.known.name or 'Neuron'} neuron{self.index}",
            f"serial {self.known.serial}" if self.known.serial else "",
        ]
        parts.append(f"PCI {self.function.name}" if self.function is not None else "")
        look.display_name = ", ".join(filter(None, parts))
        if self.known.name:
            look.values["name"] = self.known.name

    # --- health

    def _read_attribute(self, look: RawReadings, attribute: Attribute) -> float | None:
        if not attribute.is_expected(self.version, self.known.family):
            look.missing[attribute.reading] = "this driver or device has no such file"
            return None
        return self.files.read_number(look, attribute.reading, f"{self.folder}/{attribute.path}")

    def _read_errors(self, look: RawReadings) -> None:
        # `sram_ecc_uncorrected` is read last: where the card's place on PCI is not known, all ones
        # in it are the only sign that the card left the bus before the others were read.
        for attribute in reversed(layout.ECC):
            self._read_attribute(look, attribute)
        repairable = look.values.get("hbm_ecc_repairable")
        if isinstance(repairable, float) and repairable < self.known.repairable:
            # Of a reset, not everybody is told.
            del look.values["hbm_ecc_repairable"]
            look.missing["hbm_ecc_repairable"] = (
                "fewer than before, and only a driver that is loaded repairs any: it did not answer"
            )
        elif isinstance(repairable, float):
            self.known.repairable = repairable
        unclear = look.values.get("hbm_ecc_uncorrected")
        if (
            isinstance(unclear, float)
            and unclear
            and self.version
            and self.version < _TOLD_APART
            and unclear % _MIXED == 0
        ):
            del look.values["hbm_ecc_uncorrected"]
            look.values["hbm_ecc_unclear"] = unclear / _MIXED
            look.missing["hbm_ecc_uncorrected"] = (
                "this driver cannot tell it from repairable errors, as the firmware is newer"
            )
        elif "hbm_ecc_uncorrected" in look.values:
            look.values["hbm_ecc_unclear"] = 0.0

    def _judge_sight(self, look: RawReadings) -> None:
        """Missing essential files make the device's state unknown.

        Except with drivers that are known to have moved files: there it is a limit of what can be
        observed, which has a finding of its own, and the other checks go on.
        """
        due = [one for one in layout.ESSENTIAL if one.is_expected(self.version, self.known.family)]
        gone = [
            one for one in due if one.reading in look.missing and one.reading not in look.values
        ]
        if "hbm_ecc_unclear" in look.values:
            gone = [one for one in gone if one.reading != "hbm_ecc_uncorrected"]
        moved = (
            self.version >= layout.REORGANISED
            and bool(gone)
            and not any(self._has_file(one.path) for one in gone)
        )
        if due:
            look.values["ecc_observable"] = float(not gone)
        if not gone or moved:
            self.known.read = True
        # A device that counts no memory errors: what the runtime counted is all that tells a sick
        # one
        if not due:
            look.require("hw_error")
        if not gone:
            return
        why = look.missing[gone[0].reading]
        at = layout.find_moved(self.folder, gone[0].path.rpartition("/")[2])
        known = (
            f"; a file of that name is at {at}, a layout that is not known here"
            if at and at != gone[0].path
            else ""
        )
        if not moved:
            look.unreadable_reason = f"{gone[0].path}: {why}{known}"
            return
        for attribute in gone:
            look.missing[attribute.reading] = (
                f"driver 2.31 moved files, and where this one is now is not known here{known}"
            )

    def _firmware_health(self, look: RawReadings) -> None:
        """The firmware's list of unhealthy parts; empty if all are healthy."""
        for attribute in (layout.UNHEALTHY, layout.HEARTBEAT, layout.ERROR_EVENTS):
            if not attribute.is_expected(self.version, self.known.family):
                look.missing[attribute.reading] = "this driver or device has no such file"
        if layout.UNHEALTHY.reading not in look.missing:
            said = self.files.read_value(
                look, layout.UNHEALTHY.reading, f"{self.folder}/{layout.UNHEALTHY.path}", str
            )
            if said is not None:
                parts = {part.strip().lower() for part in said.split(",")} - _NO_PARTS
                look.values["unreachable"] = float(UNREACHABLE in parts)
                look.values.pop(layout.UNHEALTHY.reading, None)
                if UNREACHABLE not in parts:
                    look.values[layout.UNHEALTHY.reading] = ",".join(sorted(parts))
                    look.values["unhealthy_parts"] = float(len(parts))
        if look.values.get("unreachable") == 1.0:
            look.missing[layout.HEARTBEAT.reading] = UNREACHABLE
        elif layout.HEARTBEAT.reading not in look.missing:
            self._read_attribute(look, layout.HEARTBEAT)
        if layout.ERROR_EVENTS.reading not in look.missing:
            self._read_attribute(look, layout.ERROR_EVENTS)

    def _read_cores(self, look: RawReadings) -> None:
        """A counter is reported for all cores, or not at all."""
        for attribute in layout.CORE_COUNTERS:
            if not attribute.is_expected(self.version, self.known.family):
                look.missing[attribute.reading] = "this driver or device has no such file"
                continue
            found = self._of_each_core(look, attribute.reading, attribute.path)
            if found is not None:
                look.values[attribute.reading] = found
        aborts = look.values.get("hw_dma_abort_error")
        if isinstance(aborts, tuple):
            look.values["dma_aborts"] = max(aborts)  # one abort may be counted by several cores
        memory = self._of_each_core(look, "memory_used_bytes", layout.CORE_MEMORY)
        if memory is not None:
            look.values["memory_used_bytes"] = sum(memory)

    def _of_each_core(self, look: RawReadings, reading: str, path: str) -> tuple[float, ...] | None:
        if not self.known.cores:
            look.missing[reading] = "the driver shows no cores"
            return None
        found: list[float] = []
        for core in self.known.cores:
            value = self.files.read_number(look, reading, f"{self.folder}/{core}/{path}")
            if value is None:
                look.missing[reading] = f"{core}/{path}: {look.missing[reading]}"
                return None
            found.append(value)
        look.values.pop(reading, None)
        return tuple(found)

    def _read_power(self, look: RawReadings) -> None:
        if not layout.POWER.is_expected(self.version, self.known.family):
            look.missing[layout.POWER.reading] = "this driver or device has no such file"
            return
        self.files.read_value(
            look, layout.POWER.reading, f"{self.folder}/{layout.POWER.path}", _parse_power
        )

    def _host_memory(self, look: RawReadings) -> None:
        folder = f"{self.folder}/{layout.HOST_MEMORY}"
        scratch, used = RawReadings(), 0.0
        try:
            categories = small_files.list_names(folder)
        except OSError as error:
            look.missing["host_memory_used_bytes"] = small_files.describe_error(error)
            return
        for category in categories:
            used += self.files.read_number(scratch, category, f"{folder}/{category}/present") or 0.0
        if scratch.values and not scratch.missing:
            look.values["host_memory_used_bytes"] = used
        else:
            look.missing["host_memory_used_bytes"] = next(
                iter(scratch.missing.values()), "there is no such file"
            )


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
