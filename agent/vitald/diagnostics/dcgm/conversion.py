"""Converts single values of DCGM's documents to the type that they should have."""

from __future__ import annotations

from vitald.text import replace_unprintable

_MAX_GPUS = 1024
_NOT_SUPPORTED = "<<<NOT_SUPPORTED>>>"
_MAX_TEXT = 600


def to_int(value: object) -> int | None:
    """None if the value is no integer of up to nine digits, nor the text of one."""
    if isinstance(value, str) and len(value) < 12 and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if abs(value) < 10**9 else None


def to_index(value: object) -> int | None:
    """None if the value is no index of a device."""
    number = to_int(value)
    return number if number is not None and 0 <= number < _MAX_GPUS else None


def to_text(value: str) -> str:
    """One printable line, shortened."""
    line = " ".join(value[: 2 * _MAX_TEXT].split())[:_MAX_TEXT]
    return replace_unprintable(line)


def to_word(value: object) -> str:
    """A short line; "" if the value is no text."""
    return to_text(value)[:80] if isinstance(value, str) else ""


def to_serial(value: object) -> str:
    """A serial number; "" if the value is none."""
    word = to_word(value)
    return "" if word == _NOT_SUPPORTED else word
