"""
NVMe drives: state, identity and temperature of each controller.

State and identity are in the kernel's memory. The temperature is read from the drive: if it does
not answer, the read hangs, and the hang is reported with the drive's name. Wear (spare blocks,
percentage used) is only in the SMART log, whose ioctl requires root, so it is not observable here.

Source: Linux drivers/nvme/host/{core,sysfs,hwmon}.c.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from vitald.collectors.collector import PolledDevice
from vitald.collectors.raw_readings import Files, RawReadings
from vitald.model.component import Component
from vitald.model.event import Value
from vitald.model.words import ComponentKind
from vitald.small_files import list_names, read_text

_DRIVE = re.compile(r"nvme\d{1,4}")
# Volumes of a cloud's storage service are attached and detached, and no part of the machine.
_VOLUMES = ("Amazon Elastic Block Store", "nvme_card-pd", "MSFT NVMe Accelerator")
_NAMED = re.compile(r"nvme\d{1,4}")
_MAX_SEEN = 4096  # names and addresses of drives that are remembered
_NO_WEAR = "the SMART log needs root and an ioctl"


class NvmeDrives:
    """All NVMe controllers, on PCI or over a fabric."""

    def __init__(
        self, sysfs: Path, files: Files, needed: Callable[[], Collection[str] | None] = lambda: None
    ) -> None:
        """`needed`: the drives that the node requires; None if unknown."""
        self._root = sysfs / "class/nvme"
        self._files = files
        self._needed = needed
        # Identities of the drives, also of those that are gone; by name and by address
        self._seen: dict[str, dict[str, str]] = {}

    def describe_drive(self, name: str) -> dict[str, Value]:
        """Role of a drive that a kernel log line names: by its own name, its namespace's, or its
        PCI address.
        """
        found = _NAMED.match(name)
        with suppress(OSError):
            for _ in self.list_devices():
                pass
        who = self._seen.get(found[0] if found is not None else name)
        return self._derive_role(who["name"], who) if who is not None else {}

    def _remember_drive(self, who: dict[str, str]) -> None:
        for key in filter(None, (who["name"], who.get("pci"))):
            if who.get("model") and (key in self._seen or len(self._seen) < _MAX_SEEN):
                self._seen[key] = who

    def _derive_role(self, name: str, who: dict[str, str]) -> dict[str, Value]:
        """Whether it is a volume of a storage service, and whether the node requires it, as far as
        known.
        """
        role: dict[str, Value] = {}
        if who.get("model"):
            role["volume"] = int(who["model"].startswith(_VOLUMES))
        with suppress(OSError):
            needed = self._needed()
            if needed is not None:
                role["needed"] = int(name in needed)
        return role

    def list_devices(self) -> Iterator[PolledDevice]:
        identities = {
            name: self._read_identity(self._root / name)
            for name in list_names(self._root)
            if _DRIVE.fullmatch(name)
        }
        for name, fields in identities.items():
            self._remember_drive({**fields, "name": name})
        # Two paths to one drive, or a simulator's drives, have the same serial number
        serials = Counter(fields.get("serial", "") for fields in identities.values())
        for name, fields in identities.items():
            serial = fields.get("serial", "")
            own = fields.get("transport") == "pcie" and not fields.get("model", "").startswith(
                _VOLUMES
            )
            read = partial(
                self._read_drive, self._root / name, fields, serial if serials[serial] == 1 else ""
            )
            yield PolledDevice(Component(ComponentKind.DISK, name), read, expected=own)

    def _read_identity(self, folder: Path) -> dict[str, str]:
        fields = {}
        for name, file in (
            ("model", "model"),
            ("serial", "serial"),
            ("firmware", "firmware_rev"),
            ("transport", "transport"),
            ("pci", "address"),
        ):
            with suppress(OSError):  # not every drive has all of these
                fields[name] = read_text(folder / file)
        return fields

    def _read_drive(self, folder: Path, who: dict[str, str], serial: str) -> RawReadings:
        fields = {name: value for name, value in who.items() if name != "serial" and value}
        raw = RawReadings(
            serial=serial,
            display_name=" ".join((folder.name, *filter(None, (who.get("model"), serial)))),
            fields=fields,
        )
        raw.missing["wear"] = _NO_WEAR
        raw.values |= {
            key: float(value)
            for key, value in self._derive_role(folder.name, who).items()
            if isinstance(value, int)
        }
        state = self._files.read_text(raw, "state", folder / "state")
        raw.require("state")
        if state != "live":
            raw.missing["temperature_celsius"] = f"the controller is {state or 'in no known state'}"
            return raw
        sensor = self._find_sensor(folder)
        if sensor is None:
            raw.missing["temperature_celsius"] = "the kernel shows no sensor of this drive"
            return raw
        self._files.read_value(
            raw, "temperature_celsius", sensor / "temp1_input", lambda text: int(text) / 1000
        )
        self._files.read_number(raw, "temperature_alarm", sensor / "temp1_alarm")
        return raw

    def _find_sensor(self, folder: Path) -> Path | None:
        for place in (folder, folder / "device/hwmon", folder / "hwmon"):
            for name in list_names(place):
                if name.startswith("hwmon") and name != "hwmon":
                    return place / name
        return None
