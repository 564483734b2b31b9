"""
Checks of values in requests, the catalogue and the configuration.

Owns     the checks of flags, numbers, texts, lists and choices, and the texts of their errors.
Refuses  naming the place of a value: the reader of a file or request adds it.

Cheap to import; what only an error needs is imported then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, TypeGuard, TypeVar

if TYPE_CHECKING:
    import re

E = TypeVar("E", bound=Enum)
T = TypeVar("T")


class Unexpected(ValueError):
    """`expected true or false, found 'x'`. `expected`: the same without the value."""

    def __init__(self, expected: str, found: object) -> None:
        super().__init__(f"expected {expected}, found {found!r}")
        self.expected = expected


def parse_pci_address(text: str) -> str | None:
    """A PCI address as sysfs writes it, of any spelling: `65:00` is `0000:65:00.0`. None if it is
    no address.
    """
    import re

    found = re.fullmatch(
        r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", text.lower()
    )
    if found is None:
        return None
    domain = int(found[1] or "0", 16)
    return f"{domain:04x}:{found[2]}:{found[3]}.{found[4] or '0'}"


def read_flag(value: object) -> bool:
    """True or false. Raises Unexpected."""
    if not isinstance(value, bool):
        raise Unexpected("true or false", value)
    return value


def read_whole(
    value: object,
    least: int,
    most: int,
    expected: str = "",
    *,
    from_json: bool = False,
) -> int:
    """A whole number within limits. `from_json`: 2.0 is taken as 2. Raises Unexpected."""
    number = int(value) if from_json and isinstance(value, float) and value.is_integer() else value
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        raise Unexpected(expected or f"a whole number from {least} to {most}", value)
    return number


def read_number(value: object, least: float, most: float, expected: str = "") -> float:
    """A number within limits, which must be finite; nan is in none. Raises Unexpected."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise Unexpected(expected or f"a number from {least:g} to {most:g}", value)
    return float(value)


def read_text(value: object, least: int = 0, expected: str = "a string") -> str:
    """A text of at least `least` characters. Raises Unexpected."""
    if not isinstance(value, str) or len(value) < least:
        raise Unexpected(expected, value)
    return value


def is_line(
    value: object,
    least: int,
    most: int,
    *,
    ascii_only: bool = False,
) -> TypeGuard[str]:
    """Whether it is a text of `least` to `most` characters, all of them printable."""
    if not isinstance(value, str) or not least <= len(value) <= most:
        return False
    return value.isprintable() and (value.isascii() or not ascii_only)


def read_line(
    value: object,
    least: int,
    most: int,
    expected: str = "",
    *,
    ascii_only: bool = False,
) -> str:
    """A text for which is_line holds. Raises Unexpected."""
    if not is_line(value, least, most, ascii_only=ascii_only):
        raise Unexpected(expected or f"one line of {least} to {most} printable characters", value)
    return value


def read_match(value: object, pattern: re.Pattern[str], expected: str) -> str:
    """A text of which all matches. Raises Unexpected."""
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise Unexpected(expected, value)
    return value


def read_list(value: object, least: int, most: int, expected: str = "") -> list[object]:
    """A list of `least` to `most` members, which are not checked. Raises Unexpected."""
    if not isinstance(value, list) or not least <= len(value) <= most:
        range_ = f"{least} to {most}" if least else f"at most {most}"
        raise Unexpected(expected or f"a list of {range_}", value)
    return value


def read_texts(value: object, expected: str = "a list of strings") -> list[str]:
    """A list of texts. Raises Unexpected."""
    if not isinstance(value, list) or not all(isinstance(member, str) for member in value):
        raise Unexpected(expected, value)
    return value


def is_deep(document: object, max_depth: int) -> bool:
    """Whether lists and tables of a JSON document are nested deeper. Without recursion, whose limit
    is what this guards.
    """
    level = [document]
    for _ in range(max_depth):
        level = [
            inner
            for outer in level
            for inner in _list_parts(outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


def _list_parts(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def read_choice(value: object, known: Iterable[str]) -> str:
    """One of the known words. Raises ValueError that lists them, with the one that may be meant."""
    words = tuple(known)
    if value not in words:
        from vitald.tomlfile import suggest_word

        meant = suggest_word(str(value), words)
        raise ValueError(f"must be one of {', '.join(words)}, not {value!r}{meant}")
    return str(value)


def read_member(value: object, enum: type[E]) -> E:
    """The member of an enum whose values are words. Raises ValueError as read_choice does."""
    return enum(read_choice(value, [member.value for member in enum]))


def read_key(key: str, read: Callable[[object], T], value: object) -> T:
    """The result of `read` for the value of a key. Raises ValueError that begins with the key."""
    try:
        return read(value)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
