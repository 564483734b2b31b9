"""
How an error that a diagnostic reports is interpreted, before it is confirmed.

Owns     the key `diagnostic` of an entry, strictly checked.
Refuses  outputs of programs: their readers find the entry of an error by its number, its severity
         or its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from vitald import tomlfile
from vitald.checking import read_flag, read_key, read_member
from vitald.model.words import Remedy


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another entry that applies if the text contains one of these."""

    contains: tuple[str, ...]  # lower case
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    remedy: Remedy
    confirm: bool = False  # counts only if it is found twice
    environment: bool = False  # it says nothing about the hardware
    # Start of its text if no number is printed: lower case, `#` for a number, `*` for anything
    phrases: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    # Its text names an Xid, whose entry applies if that requires a reset or more
    xid: bool = False
    # In a default entry: the remedy by the severity that is printed
    severity: Mapping[int, Remedy] = field(default_factory=dict)

    @property
    def concerns_hardware(self) -> bool:
        return not (self.environment or self.remedy in _NOT_OF_HARDWARE)


_NOT_OF_HARDWARE = (Remedy.NONE, Remedy.RETRY, Remedy.FIX_CONFIG)
_KEYS = ("remedy", "confirm", "environment", "phrases", "alternatives", "severity", "xid")


def read_diagnosis(table: object) -> Diagnosis:
    """Check the value of the key. Raises ValueError that says what is wrong with it."""
    if not isinstance(table, dict):
        raise ValueError(f'expected a table such as {{ remedy = "retry" }}, found {table!r}')
    tomlfile.refuse_unknown_keys(table, _KEYS)
    if "remedy" not in table:
        raise ValueError("remedy: missing")
    severity = table.get("severity", {})
    if not isinstance(severity, dict) or not all(
        str(number).isdecimal() and len(str(number)) < 4 for number in severity
    ):
        raise ValueError(
            f'severity: expected a table such as {{ 6 = "reset_gpu" }}, found {severity!r}'
        )
    return Diagnosis(
        remedy=read_key("remedy", _remedy, table["remedy"]),
        confirm=read_key("confirm", read_flag, table.get("confirm", False)),
        environment=read_key("environment", read_flag, table.get("environment", False)),
        phrases=_read_phrases("phrases", table.get("phrases", [])),
        alternatives=_read_alternatives(table.get("alternatives", [])),
        xid=read_key("xid", read_flag, table.get("xid", False)),
        severity=_read_severities(severity),
    )


_remedy = partial(read_member, enum=Remedy)


def _read_severities(table: Mapping[str, object]) -> dict[int, Remedy]:
    return {
        int(number): read_key(f"severity.{number}", _remedy, word) for number, word in table.items()
    }


def _read_phrases(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(
        isinstance(item, str) and item.strip("*# ") for item in value
    ):
        raise ValueError(f"{key}: expected a list of strings, found {value!r}")
    for item in value:
        if item != item.lower():
            raise ValueError(f"{key}: expected lower case, found {item!r}")
    return tuple(value)


def _read_alternatives(value: object) -> tuple[Alternative, ...]:
    if not isinstance(value, list):
        raise ValueError(f"alternatives: expected a list of tables, found {value!r}")
    found = []
    for number, table in enumerate(value, start=1):
        if not isinstance(table, dict) or set(table) != {"contains", "code"}:
            raise ValueError(
                f"alternatives #{number}: expected {{ contains = [...], code = ... }},"
                f" found {table!r}"
            )
        code = table["code"]
        contains = _read_phrases(f"alternatives #{number} contains", table["contains"])
        if not isinstance(code, str) or "/" not in code or not contains:
            raise ValueError(
                f'alternatives #{number}: expected strings, and a code such as "dcgm/gpu_lost",'
                f" found {table!r}"
            )
        found.append(Alternative(contains, code))
    return tuple(found)
