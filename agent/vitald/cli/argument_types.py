"""
Types for argparse: each parses an argument, or raises InvalidArgument with what it expected.

Owns     the checks that need no daemon. The daemon's API makes the same checks.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from vitald.checking import is_line
from vitald.timestamps import parse_rfc3339

DAY_S = 86400.0
_MAX_REASON = 500
_MAX_NAME = 128


class InvalidArgument(argparse.ArgumentTypeError):
    """`argument --limit: expected a number from 1 to 1000, not 'x'`."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, not {found[:80]!r}")


def parse_seconds(most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        plain = re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,9})?|\.[0-9]{1,9}", text)
        value = float(text) if plain else 0.0
        if not 0 < value <= most:
            raise InvalidArgument(f"a number of seconds such as 2 or 0.5, at most {most:g}", text)
        return value

    return read


def parse_number(least: int, most: int, what: str = "a number") -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,12}", text) or not least <= int(text) <= most:
            raise InvalidArgument(f"{what} from {least} to {most}", text)
        return int(text)

    return read


def parse_duration(least: float, most: float, limits: str) -> Callable[[str], float]:
    """Seconds of `90s`, `10m`. `limits`: the limits as the error has them."""

    def read(text: str) -> float:
        value = convert_duration(text)
        if value is None or not least <= value <= most:
            raise InvalidArgument(f"a time such as 90s, 10m or 24h, from {limits}", text)
        return value

    return read


def convert_duration(text: str) -> float | None:
    """Seconds of `90s`, `10m`, `24h`, `7d`; None if it is no duration."""
    from vitald import tomlfile  # imports a parser, which most commands do not need

    try:
        return tomlfile.parse_duration(text)
    except ValueError:
        return None


def parse_since(text: str) -> str:
    """An event's id, how long ago, or a time; unchanged, since the daemon's clock applies."""
    if re.fullmatch(r"[0-9]{1,15}", text) or convert_duration(text) is not None:
        return text
    try:
        parse_rfc3339(text)
    except ValueError:
        expected = "how long ago (30m, 24h), a moment (2026-11-18T13:46:40Z) or an event's id"
        raise InvalidArgument(expected, text) from None
    return text


def parse_finding(text: str) -> str:
    """The number of a finding, as `vitald status` shows it."""
    found = re.fullmatch(r"#?([0-9]{1,15})", text)
    if found is None:
        raise InvalidArgument("a finding's number such as 12 (vitald findings shows them)", text)
    return found[1]


def parse_reason(text: str) -> str:
    stripped = text.strip()
    if not is_line(stripped, 1, _MAX_REASON):
        raise InvalidArgument(f"one line of 1 to {_MAX_REASON} printable characters", text)
    return stripped


def parse_device(text: str) -> str:
    """Any name of a device or component; the daemon looks it up."""
    stripped = text.strip()
    if not is_line(stripped, 1, _MAX_NAME):
        raise InvalidArgument("an index, serial number, UUID, PCI address or another name", text)
    return stripped


def parse_code(text: str) -> str:
    if not re.fullmatch(r"[^/\s]+/\S+", text):
        raise InvalidArgument("kind/code such as xid/79", text)
    return text


def parse_profile(text: str) -> str:
    from vitald.catalog import PROFILES

    if text not in PROFILES:
        raise InvalidArgument(f"one of {', '.join(PROFILES)}", text)
    return text
