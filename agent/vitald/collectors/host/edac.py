"""
Host memory: ECC counters of each DIMM or memory controller (EDAC), corrupted pages, and available
memory.

If the driver counts by DIMM, the controller has only the errors that it could not assign to one,
so that none counts twice. Kernel log lines name the controller (`EDAC MC0: ...`), which is the port
above a DIMM.

Source: Linux Documentation/ABI/testing/sysfs-devices-edac, drivers/edac/edac_mc_sysfs.c;
fs/proc/meminfo.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vitald.collectors.collector import PolledDevice
from vitald.collectors.raw_readings import Files, RawReadings
from vitald.model.component import Component
from vitald.model.words import ComponentKind
from vitald.small_files import list_names, read_text

_CONTROLLER = re.compile(r"mc\d{1,3}")
_DIMM = re.compile(r"(?:dimm|rank)\d{1,4}")
_NO_EDAC = "no memory controller driver (EDAC) shows counters here: usual in virtual machines"
_MEMINFO = {"MemAvailable": "memory_available_bytes", "HardwareCorrupted": "memory_corrupted_bytes"}
_KIB = 1024.0


class HostMemory:
    """DIMMs, memory controllers, and the node's memory in total."""

    def __init__(self, sysfs: Path, procfs: Path, files: Files) -> None:
        self._controllers = sysfs / "devices/system/edac/mc"
        self._procfs = procfs
        self._files = files

    def list_devices(self) -> Iterator[PolledDevice]:
        yield PolledDevice(Component(ComponentKind.NODE, "memory"), self._read_meminfo)
        controllers = [
            name for name in list_names(self._controllers) if _CONTROLLER.fullmatch(name)
        ]
        if not controllers:
            yield PolledDevice(
                Component(ComponentKind.DIMM),
                lambda: RawReadings(
                    missing={"corrected_errors": _NO_EDAC, "uncorrected_errors": _NO_EDAC}
                ),
            )
        for name in controllers:
            folder = self._controllers / name
            above = name.upper()
            dimms = [
                dimm
                for dimm in list_names(folder)
                if _DIMM.fullmatch(dimm) and (folder / dimm / "dimm_ce_count").exists()
            ]
            yield PolledDevice(
                Component(ComponentKind.DIMM, above),
                partial(self._read_controller, folder, bool(dimms)),
            )
            for dimm in dimms:
                yield PolledDevice(
                    Component(ComponentKind.DIMM, f"{above}.{dimm}"),
                    partial(self._read_dimm, folder / dimm, above),
                )

    def _read_controller(self, folder: Path, by_dimm: bool) -> RawReadings:
        raw = RawReadings(fields={"port": folder.name.upper()})
        part = "_noinfo" if by_dimm else ""
        self._files.read_number(raw, "corrected_errors", folder / f"ce{part}_count")
        self._files.read_number(raw, "uncorrected_errors", folder / f"ue{part}_count")
        raw.require("uncorrected_errors")
        raw.display_name = (
            f"memory controller {folder.name.upper()}{', no DIMM named' if by_dimm else ''}"
        )
        return raw

    def _read_dimm(self, folder: Path, above: str) -> RawReadings:
        raw = RawReadings(fields={"port": above})
        self._files.read_number(raw, "corrected_errors", folder / "dimm_ce_count")
        self._files.read_number(raw, "uncorrected_errors", folder / "dimm_ue_count")
        raw.require("uncorrected_errors")
        for name, file in (("label", "dimm_label"), ("location", "dimm_location")):
            try:
                raw.fields[name] = read_text(folder / file)
            except OSError as error:
                raw.fields[name] = ""
                raw.missing[name] = str(error.strerror)
        raw.display_name = raw.fields["label"] or raw.fields["location"] or f"{above} {folder.name}"
        return raw

    def _read_meminfo(self) -> RawReadings:
        raw = RawReadings()
        text = self._files.read_value(
            raw, "memory_available_bytes", self._procfs / "meminfo", lambda text: [text]
        )
        lines = (
            dict(line.split(":", 1) for line in text[0].splitlines() if ":" in line) if text else {}
        )
        for line, name in _MEMINFO.items() if text else ():
            words = lines.get(line, "").split()
            if words and words[0].isdigit():
                raw.values[name] = float(words[0]) * _KIB
            else:
                raw.missing[name] = f"this kernel's meminfo has no {line}"
        return raw
