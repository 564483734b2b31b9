"""
The file that root's sensor reader (`vitald sensors`) writes: what the kernel shows to root only.

It is input like any other: who owns it, its size, its age and each of its values are checked. It
has what programs printed, unread by root; the collectors read that.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import CLOCK_BOOTTIME, clock_gettime
from typing import TypeVar

from vitald.model.component import PCI_ADDRESS

T = TypeVar("T")

RELATIVE_PATH = "run/vitald-sensors/sensors.json"  # below the node's root
VERSION = 1
MAX_BYTES = 4 << 20
_MAX_ENTRIES = 512  # of a table
_MAX_STRUCTURE = 4096  # bytes of an SMBIOS structure
INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}")
_NOT_READ = {"absent": "root's sensor reader did not read it"}
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class RootFileError(Exception):
    """The file cannot be used. The text names the file and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """What a program printed. `trouble`: why that is no answer; empty if it is one. `absent`: why
    it was not run, such as without a BMC.
    """

    output: str = ""
    trouble: str = ""
    absent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootFile:
    """What root read. `acs`: ACS control register by PCI address of a port; `memory_modules`:
    SMBIOS structures of type 17 with their texts.
    """

    age_s: float
    bmc_log: ProgramOutput
    bmc_sensors: ProgramOutput
    transceivers: Mapping[str, ProgramOutput]
    acs: Mapping[str, int]
    memory_modules: tuple[bytes, ...]


def read_clock() -> float:
    """Seconds since the boot: no step of the system clock changes it."""
    return clock_gettime(CLOCK_BOOTTIME)


def read_root_file(path: Path, now: float | None = None) -> RootFile | None:
    """None if there is no such file: root's reader has not run since the boot. Raises
    RootFileError.
    """
    data = _read_bytes(path)
    if data is None:
        return None
    try:
        return _parse(json.loads(data), read_clock() if now is None else now)
    except (ValueError, TypeError, RecursionError) as error:
        raise RootFileError(f"{path}: {error}") from None


def _read_bytes(path: Path) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RootFileError(f"{path}: {error.strerror}") from None
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise RootFileError(f"{path}: not an ordinary file")
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & _OTHERS_WRITE:
            raise RootFileError(f"{path}: others than root may write it")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise RootFileError(f"{path}: larger than {MAX_BYTES} bytes")
    return data


def _parse(document: object, now: float) -> RootFile:
    """Keys that are not known are ignored: a newer reader may write more. Raises ValueError."""
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    if document.get("version") != VERSION:
        raise ValueError(f"version: expected {VERSION}, not {document.get('version')!r:.40}")
    uptime = document.get("uptime")
    if isinstance(uptime, bool) or not isinstance(uptime, (int, float)) or not 0 <= uptime <= now:
        raise ValueError("uptime: expected seconds since this boot, not later than now")
    modules = document.get("memory_modules", [])
    if not isinstance(modules, list) or len(modules) > _MAX_ENTRIES:
        raise ValueError(f"memory_modules: expected a list of at most {_MAX_ENTRIES}")
    return RootFile(
        age_s=now - uptime,
        bmc_log=_parse_output("bmc_log", document.get("bmc_log", _NOT_READ)),
        bmc_sensors=_parse_output("bmc_sensors", document.get("bmc_sensors", _NOT_READ)),
        transceivers=_parse_table(document, "transceivers", INTERFACE, _parse_output),
        acs=_parse_table(document, "acs", PCI_ADDRESS, _parse_register),
        memory_modules=tuple(_parse_structure(module) for module in modules),
    )


def _parse_output(key: str, value: object) -> ProgramOutput:
    if not isinstance(value, dict):
        raise ValueError(f"{key}: expected an object")
    texts = [value.get(name, "") for name in ("output", "trouble", "absent")]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{key}: expected texts in output, trouble and absent")
    return ProgramOutput(*texts)


def _parse_register(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 0xFFFF:
        raise ValueError(f"{key}: expected a number of 16 bits")
    return value


def _parse_structure(value: object) -> bytes:
    if not isinstance(value, str) or len(value) > 2 * _MAX_STRUCTURE:
        raise ValueError(f"memory_modules: expected up to {_MAX_STRUCTURE} bytes as hexadecimal")
    try:
        return bytes.fromhex(value)
    except ValueError:
        raise ValueError("memory_modules: expected bytes as hexadecimal") from None


def _parse_table(
    document: Mapping[str, object],
    key: str,
    names: re.Pattern[str],
    parse: Callable[[str, object], T],
) -> dict[str, T]:
    table = document.get(key, {})
    if not isinstance(table, dict) or len(table) > _MAX_ENTRIES:
        raise ValueError(f"{key}: expected an object of at most {_MAX_ENTRIES}")
    for name in table:
        if not names.fullmatch(name):
            raise ValueError(f"{key}: {name!r:.40} is no name of one")
    return {name: parse(f"{key}.{name}", value) for name, value in table.items()}
