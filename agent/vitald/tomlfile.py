"""
TOML files with helpful errors: each names its place, and suggests a key for a misspelt one.

Shared by the configuration and the catalogue: parsing, durations, sizes, suggestions, line numbers.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import tomli  # also where Python has tomllib: compiled, it reads the catalogue three times as fast

Table = dict[str, object]

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def parse_toml(text: str, name: str) -> Table:
    """The tables of a TOML document. Raises ValueError that says `name`, line and column."""
    try:
        return tomli.loads(text)
    # TOMLDecodeError is a ValueError; so is the error for a number of 5,000 digits.
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: not valid TOML: {error}") from None


def read_toml(path: Path) -> tuple[str, Table]:
    """The text of a file and its tables. Raises ValueError with the file's name."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text at byte {error.start}") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    return text, parse_toml(text, str(path))


def share_texts(value: object) -> object:
    """The same value, with one object for equal texts: tables repeat many, and the parser makes a
    new object for each.
    """
    if isinstance(value, str):
        return sys.intern(value)
    if isinstance(value, dict):
        return {sys.intern(key): share_texts(each) for key, each in value.items()}
    if isinstance(value, list):
        return [share_texts(each) for each in value]
    return value


def suggest_word(word: str, known: Iterable[str]) -> str:
    """`, did you mean X?`; empty if no known word is similar."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f", did you mean {close[0]}?" if close else ""


def parse_duration(value: object) -> float:
    """Seconds from a text such as `"90s"`, `"10m"`, `"24h"`, `"7d"`. Raises ValueError."""
    found = (
        re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h|d)", value)
        if isinstance(value, str)
        else None
    )
    if not found:
        raise ValueError(f'{value!r} is not a duration such as "90s", "10m", "24h", "7d"')
    return float(found[1]) * _UNITS[found[2]]


def parse_size(value: object) -> int:
    """Bytes from a text such as `"256MiB"`, `"1GiB"`, or a number. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    found = re.fullmatch(r"(\d{1,9})\s*(KiB|MiB|GiB)", value) if isinstance(value, str) else None
    if not found:
        raise ValueError(f'{value!r} is not a size such as "64MiB", "1GiB"')
    return int(found[1]) * _SIZES[found[2]]


def find_line(text: str, table: str, key: str = "", number: int = 0) -> int | None:
    """The 1-based line of `[table]`, or of `key` in it, which the parser does not keep. `number`:
    of the table in an array, the first one is 1; 0 if it is in none.

    Finds the usual layout, one key per line below its header; None for anything else.
    """
    header = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?")
    wanted = re.compile(rf"""\s*["']?{re.escape(key)}["']?\s*[.=]""")
    is_in_it, found, passed = False, None, 0
    for line_number, line in enumerate(text.splitlines(), start=1):
        if (match := header.fullmatch(line)) is not None:
            passed += match[1] == table
            is_in_it = match[1] == table and number in (0, passed)
            if is_in_it and found is None:
                found = line_number
        elif key and is_in_it and wanted.match(line):
            return line_number
    return found
