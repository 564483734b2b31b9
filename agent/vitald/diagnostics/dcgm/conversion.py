"""Converts single values of DCGM's documents to the type that they should have."""

from __future__ import annotations

from vitald.text import replace_unprintable

MAX_GPUS = 1024
_NOT_SUPPORTED = "<<<NOT_SUPPORTED>>>"
_MAX_TEXT = 600


def to_int(value: object) -> int | None:
    """None if the value is no integer, nor the text of one."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1e9 else None
    if isinstance(value, str) and len(value) < 12 and value.strip().isdecimal():
        return int(value)
    return None


def to_index(value: object) -> int | None:
    """None if the value is no index of a device."""
    number = to_int(value)
    return number if number is not None and 0 <= number < MAX_GPUS else None


def to_text(value: object) -> str:
    """One printable line, shortened; the name of the type for a list or an object."""
    if value is None:
        return ""
    if not isinstance(value, str):
        value = str(value) if isinstance(value, (int, float)) else type(value).__name__
    line = " ".join(value[: 2 * _MAX_TEXT].split())[:_MAX_TEXT]
    return replace_unprintable(line)


def to_word(value: object) -> str:
    """A short line; "" if the value is no text."""
    return to_text(value)[:80] if isinstance(value, str) else ""


def to_serial(value: object) -> str:
    """A serial number; "" if the value is none."""
    word = to_word(value)
    return "" if word == _NOT_SUPPORTED else word
