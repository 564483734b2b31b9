"""
TOML files with helpful errors: each names its place, and suggests a key for a misspelt one.

Shared by the configuration and the catalogue: parsing, durations, sizes, suggestions, line numbers.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator
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


def refuse_unknown_keys(table: Iterable[str], known: Collection[str]) -> None:
    """Raises ValueError that names the first key that is not known, and the one that is meant."""
    for key in table:
        if key not in known:
            raise ValueError(f"{key}: unknown key{suggest_word(key, known)}")


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


def index_lines(text: str) -> dict[tuple[str, ...], int]:
    """The 1-based line of each table and key of a valid document, by its path; of what stands in a
    list of tables, the first. The parser does not keep them, but it can say of each statement what
    is set there.
    """
    lines: dict[tuple[str, ...], int] = {}
    header: tuple[str, ...] = ()
    statement, start = "", 1
    for number, line in enumerate(text.split("\n"), start=1):
        statement += f"{line}\n"
        try:
            found = tomli.loads(statement)
        except (ValueError, RecursionError):
            continue  # a value of several lines
        is_header = statement.lstrip().startswith("[")
        paths = list(_list_paths(found, () if is_header else header))
        for path in paths:
            lines.setdefault(path, start)
        header = paths[-1] if is_header else header
        statement, start = "", number + 1
    return lines


def _list_paths(value: object, prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths of what a table, or a list of tables, contains."""
    for table in value if isinstance(value, list) else [value]:
        for key, inner in table.items() if isinstance(table, dict) else ():
            yield (*prefix, key)
            yield from _list_paths(inner, (*prefix, key))
