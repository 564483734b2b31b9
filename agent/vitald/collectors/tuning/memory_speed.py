"""
The speed of memory modules, from the firmware's tables. Only root can read these; root's sensor
reader passes them on.

Source: DMTF DSP0134 (SMBIOS), Memory Device (Type 17).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vitald.collectors.small_files import RawReadings

_SIZE, _LOCATOR, _TYPE = 0x0C, 0x10, 0x12
_CONFIGURED, _EXTENDED_CONFIGURED = 0x20, 0x58
_EMPTY, _UNKNOWN, _EXTENDED = 0, 0, 0xFFFF
_PER_MT = 1_000_000
_MAX_LISTED = 32


@dataclass(frozen=True, slots=True)
class MemoryModule:
    """An installed module. `type`: a number of the specification; `speed`: the one it runs at, in
    MT/s, 0 if it is not known.
    """

    locator: str
    type: int
    speed: int


def parse_module(structure: bytes) -> MemoryModule | None:
    """None for an empty slot, and for what is no structure of a memory device."""
    if len(structure) < 2 or len(structure) < structure[1] or structure[1] <= _TYPE:
        return None
    fixed = structure[: structure[1]]
    if _read_number(fixed, _SIZE, 2) == _EMPTY:
        return None
    speed = _read_number(fixed, _CONFIGURED, 2)
    if speed == _EXTENDED:
        speed = _read_number(fixed, _EXTENDED_CONFIGURED, 4)
    texts = structure[len(fixed) :].split(b"\0")
    place = fixed[_LOCATOR]  # from 1; 0 is none
    locator = texts[place - 1] if 0 < place <= len(texts) else b""
    name = locator.decode("utf-8", "replace").strip()
    return MemoryModule(name or "unnamed", fixed[_TYPE], speed)


def read_speeds(raw: RawReadings, structures: Sequence[bytes]) -> None:
    """How many modules the firmware lists, how fast they run, and which are slower than others of
    their type.
    """
    modules = [module for item in structures if (module := parse_module(item)) is not None]
    if not modules:
        raw.missing["memory_modules_listed"] = "the firmware's tables list no memory module"
        return
    raw.values["memory_modules_listed"] = float(len(modules))
    speeds = Counter(module.speed for module in modules)
    if _UNKNOWN in speeds:
        raw.missing["memory_speed_unequal"] = "the firmware does not list the speed of each module"
        return
    slow = _find_slow(modules)
    raw.values["memory_speed_transfers_per_second"] = float(min(speeds) * _PER_MT)
    raw.values["memory_speed_unequal"] = float(bool(slow))
    raw.values["memory_speeds"] = ", ".join(
        f"{count} x {speed} MT/s" for speed, count in sorted(speeds.items())
    )
    raw.values["memory_slow_modules"] = ", ".join(slow[:_MAX_LISTED])


def _find_slow(modules: Iterable[MemoryModule]) -> list[str]:
    fastest: dict[int, int] = {}
    modules = list(modules)
    for module in modules:
        fastest[module.type] = max(module.speed, fastest.get(module.type, 0))
    return [module.locator for module in modules if module.speed < fastest[module.type]]


def _read_number(fixed: bytes, place: int, size: int) -> int:
    """Little endian; 0 where the structure is too short for it, as in older versions."""
    field = fixed[place : place + size]
    return int.from_bytes(field, "little") if len(field) == size else 0
