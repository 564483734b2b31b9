"""
Text for operators: replaced control characters, shortened lists, ranges, plurals.

Imports nothing: the command line and schedulers' prologs pay for every import.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_MAX_CHARACTERS = 512  # of a text that a device or a program gives


def replace_unprintable(text: str, replacement: str = "?") -> str:
    """The text with `replacement` for each character that is not printable, line breaks too."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else replacement for char in text)


def clean_line(text: str) -> str:
    """One printable line of limited length."""
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[:_MAX_CHARACTERS]}..."
    return replace_unprintable(text)


def limit_bytes(text: str, limit: int) -> str:
    """Printable, and at most `limit` bytes of UTF-8; `...` at the end of what is cut off."""
    encoded = replace_unprintable(text).encode(errors="replace")
    if len(encoded) <= limit:
        return encoded.decode()
    return encoded[: limit - 3].decode(errors="ignore") + "..."


def escape_unprintable(text: str, keep: str = "") -> str:
    """The text with `\\x1b` for each character that is not printable, but for those in `keep`."""
    if text.isprintable():
        return text
    unprintable = {char for char in text if not char.isprintable()} - {*keep}
    return text.translate({ord(char): f"\\x{ord(char):02x}" for char in unprintable})


def count_more(left: int, before: str = " and ", what: str = "more") -> str:
    """` and 3 more` for what is left out of a list; empty where nothing is."""
    return f"{before}{left} {what}" if left > 0 else ""


def join_first(
    items: Sequence[str],
    limit: int,
    separator: str = ", ",
    before: str = " and ",
    what: str = "more",
) -> str:
    """`a, b and 3 more`: the first `limit` items, and how many others there are."""
    return separator.join(items[:limit]) + count_more(len(items) - limit, before, what)


def join_ranges(numbers: Iterable[int]) -> str:
    """`0-3, 6`: in ascending order, each number once."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def count_noun(count: int, noun: str) -> str:
    """`1 line`, `2 lines`, `0 processes`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"
