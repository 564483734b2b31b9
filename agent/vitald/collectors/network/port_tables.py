"""
The PKey and GID tables of a port, compared with those of its siblings.

PKeys are the InfiniBand partitions that a port may send in; the subnet manager sets them. GIDs are
the addresses of a port: those of a RoCE port follow from the IP addresses of its interface. Each
PKey is a request to the adapter's firmware, so only the first entries are read, and not in each
round.

Source: Linux Documentation/ABI/stable/sysfs-class-infiniband (pkeys, gids, gid_attrs/types);
InfiniBand architecture: the top bit of a PKey is full membership, and 0 in the others is no key.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vitald.collectors import small_files
from vitald.collectors.small_files import RawReadings

_PKEY = re.compile(r"0x[0-9a-f]{4}")
_GID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){7}")
_PARTITION = 0x7FFF
_NO_GID = ":".join(["0000"] * 8)
_IPV4 = ":".join(["0000"] * 5) + ":ffff:"
_MAX_PKEYS = 16  # entries that are read; adapters have up to 128
_MAX_GIDS = 32  # adapters have up to 256
_MAX_AGE_S = 120.0
_MIN_SIBLINGS = 3  # ports of the same model that must agree


@dataclass(frozen=True, slots=True)
class PortTables:
    """None: not known. `gid_kinds`: which kinds of RoCE addresses the port has."""

    pkeys: frozenset[int] | None = None
    gid_kinds: frozenset[str] | None = None


UNKNOWN = PortTables()


@dataclass(slots=True)
class PortTableReader:
    """Reads the tables of one adapter's ports, every two minutes."""

    _read: dict[str, tuple[float, PortTables]] = field(default_factory=dict)  # by folder

    def read_tables(self, folder: str, *, ethernet: bool) -> PortTables:
        """The tables of a port that is up."""
        now = time.monotonic()
        read_at, tables = self._read.get(folder, (0.0, None))
        if tables is None or now - read_at >= _MAX_AGE_S:
            tables = _read_gids(folder) if ethernet else _read_pkeys(folder)
            self._read[folder] = now, tables
        return tables

    def forget(self, folder: str) -> None:
        """The port is not up: the tables are set anew when it comes up."""
        self._read.pop(folder, None)


def _read_pkeys(folder: str) -> PortTables:
    texts = _read_entries(f"{folder}/pkeys", _MAX_PKEYS)
    if texts is None or not all(map(_PKEY.fullmatch, texts)):
        return UNKNOWN
    keys = (int(text, 16) for text in texts)
    return PortTables(pkeys=frozenset(key for key in keys if key & _PARTITION))


def _read_gids(folder: str) -> PortTables:
    texts = _read_entries(f"{folder}/gids", _MAX_GIDS)
    if texts is None or not all(map(_GID.fullmatch, texts)):
        return UNKNOWN
    kinds = set()
    for number, gid in enumerate(texts):
        if gid == _NO_GID:
            continue
        try:
            version = small_files.read_attribute(f"{folder}/gid_attrs/types/{number}")
        except OSError:  # it was removed meanwhile, or the kernel is older than 4.5
            return UNKNOWN
        kinds.add(f"{version} {_name_family(gid)}")
    return PortTables(gid_kinds=frozenset(kinds))


def _read_entries(folder: str, most: int) -> list[str] | None:
    """The first entries of a table, in their order; None if they cannot be read."""
    numbers = sorted(int(name) for name in small_files.list_names(folder) if name.isdecimal())
    if not numbers:
        return None
    try:
        return [small_files.read_attribute(f"{folder}/{number}") for number in numbers[:most]]
    except OSError:
        return None


def _name_family(gid: str) -> str:
    if gid.startswith(_IPV4):
        return "IPv4"
    return "link-local" if gid.startswith("fe80:") else "IPv6"


def add_readings(raw: RawReadings, own: PortTables, siblings: Sequence[PortTables]) -> None:
    """The readings of a port that is up. `siblings`: the other ports of its model that are up.

    Nothing is compared unless three siblings are known and agree.
    """
    if own.pkeys is not None:
        _add_pkeys(raw, own.pkeys, [table.pkeys for table in siblings if table.pkeys is not None])
    if own.gid_kinds is not None:
        others = [table.gid_kinds for table in siblings if table.gid_kinds is not None]
        _add_gids(raw, own.gid_kinds, others)


def _add_pkeys(raw: RawReadings, own: frozenset[int], others: Sequence[frozenset[int]]) -> None:
    _add_flag(raw, "pkeys_empty", not own)
    raw.values.setdefault("pkeys", _list_keys(own))
    if len(others) < _MIN_SIBLINGS or len(set(others)) > 1:
        return
    _add_flag(raw, "pkeys_differ", own != others[0])
    if own != others[0]:
        raw.values |= {"pkeys": _list_keys(own), "pkeys_expected": _list_keys(others[0])}


def _add_gids(raw: RawReadings, own: frozenset[str], others: Sequence[frozenset[str]]) -> None:
    if len(others) < _MIN_SIBLINGS:
        return
    lacking = frozenset.intersection(*others) - own
    _add_flag(raw, "gids_lacking", bool(lacking))
    if lacking:
        raw.values["gid_kinds_lacking"] = ", ".join(sorted(lacking))


def _add_flag(raw: RawReadings, name: str, condition: bool) -> None:
    """1 if the condition holds for one of the adapter's ports."""
    raw.values[name] = float(condition or raw.values.get(name) == 1.0)


def _list_keys(keys: Iterable[int]) -> str:
    return ", ".join(f"{key:#06x}" for key in sorted(keys)) or "none"
