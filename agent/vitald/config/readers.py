"""
Readers of values: from what TOML gives to what the code uses. Each raises ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from vitald import tomlfile
from vitald.checking import Unexpected, read_choice, read_text, read_texts, read_whole

MIN_PERIOD_S = 0.1

read_nonempty_text = partial(read_text, least=1)
read_count = partial(read_whole, least=0, most=4096, expected="a number from 0 to 4096")


def read_path(value: object) -> Path:
    path = Path(read_nonempty_text(value))
    if not path.is_absolute() or "\0" in str(path):
        raise Unexpected("an absolute path", value)
    return path


def one_of(*words: str) -> Callable[[object], str]:
    """A reader of one of these words."""
    return partial(read_choice, known=words)


def some_of(*words: str, least: int = 0) -> Callable[[object], tuple[str, ...]]:
    """A reader of a list of at least so many of these words."""

    def read(value: object) -> tuple[str, ...]:
        expected = f"a list of {', '.join(words)}"
        chosen = read_texts(value, expected)
        if len(chosen) < least or not set(chosen).issubset(words):
            raise Unexpected(expected, value)
        return tuple(chosen)

    return read


def read_period(value: object) -> float:
    """Seconds; 0 for "off"."""
    return 0.0 if value == "off" else tomlfile.parse_duration(value)


def period_within(
    expected: str, *, least_s: float = 0.0, most_s: float = math.inf, may_be_off: bool = False
) -> Callable[[object], float]:
    """A reader of seconds within limits, which 0 for "off" need not be."""

    def read(value: object) -> float:
        seconds = read_period(value) if may_be_off else tomlfile.parse_duration(value)
        is_off = may_be_off and seconds == 0.0
        if not is_off and not least_s <= seconds <= most_s:
            raise Unexpected(expected, value)
        return seconds

    return read


# Between polls, or for one: not so few that polling is all that is done
read_poll_period = period_within(f"at least {MIN_PERIOD_S:g} s", least_s=MIN_PERIOD_S)


def read_names(value: object) -> tuple[str, ...]:
    """A list of texts without the space around them; a single text is none."""
    texts = read_texts(value)
    if not all(text.strip() for text in texts):
        raise Unexpected("a list of strings", value)
    return tuple(text.strip() for text in texts)


def read_program(value: object) -> str:
    """A program's absolute path, or a bare name, which is searched for."""
    program = read_nonempty_text(value)
    if "\0" in program or ("/" in program and not program.startswith("/")):
        raise Unexpected("an absolute path or a bare name", value)
    return program


def read_command(
    value: object,
    expected: str = "a list of the absolute path of a program and its arguments",
    *,
    is_searched: bool = False,
) -> tuple[str, ...]:
    """A program and its arguments, which no shell reads. `is_searched`: a bare name will do."""
    words = read_texts(value, expected)
    is_named = bool(words) and (is_searched or words[0].startswith("/"))
    if not is_named or "\0" in "".join(words):
        raise Unexpected(expected, value)
    return (read_program(words[0]), *words[1:])


def read_table(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise Unexpected("a table", value)
    return value
