"""
Memory modules, by memory controller. Their speed is in the firmware's tables, which only root can
read.

Source: Linux Documentation/ABI/testing/sysfs-devices-edac (dimmX/size in MiB, dimm_mem_type).
"""

from __future__ import annotations

import re
from pathlib import Path

from vitald.collectors.small_files import Files, RawReadings, list_names

_CONTROLLER = re.compile(r"mc\d{1,3}")
_MODULE = re.compile(r"(?:dimm|rank)\d{1,4}")
_NO_EDAC = "no memory controller driver (EDAC) shows modules here: usual in virtual machines"
_MAX_LISTED = 32


def read_modules(raw: RawReadings, sysfs: Path, files: Files) -> None:
    """How many modules there are, of which types, and whether the controllers have equal memory.

    A module that failed its test at boot is left out by the firmware: its controller has less.
    """
    root = sysfs / "devices/system/edac/mc"
    sizes: dict[str, float] = {}
    types: set[str] = set()
    count = 0
    for controller in filter(_CONTROLLER.fullmatch, list_names(root)):
        for module in filter(_MODULE.fullmatch, list_names(root / controller)):
            folder = root / controller / module
            size = files.read_number(RawReadings(), "", folder / "size")
            if size is None:
                raw.missing["memory_modules"] = f"{controller}/{module}: its size cannot be read"
                return
            if not size:
                continue  # an empty slot
            count += 1
            sizes[controller] = sizes.get(controller, 0.0) + size
            types.add(files.read_text(RawReadings(), "", folder / "dimm_mem_type") or "unknown")
    if not count:
        raw.missing["memory_modules"] = _NO_EDAC
        return
    raw.values["memory_modules"] = float(count)
    raw.values["memory_types"] = ",".join(sorted(types))
    raw.values["memory_unbalanced"] = float(len(set(sizes.values())) > 1)
    listed = list(sizes.items())[:_MAX_LISTED]
    raw.values["memory_by_controller"] = ", ".join(f"{name} {size:g}" for name, size in listed)
