"""
Settings as fields of frozen dataclasses, and the readers of their values.

One dataclass is one section of the configuration file; `Section` adds its name and its place in the
file. A collector declares its section in its own package, with nothing but this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from vitald import tomlfile
from vitald.checking import (
    Unexpected,
    read_choice,
    read_text,
    read_texts,
    read_whole,
)

S = TypeVar("S")
V = TypeVar("V")
MIN_PERIOD_S = 0.1


@dataclass(frozen=True, slots=True)
class Setting:
    """What a field of a section carries besides its default."""

    read: Callable[[object], object]
    help: str
    reload: bool  # it takes effect on a reload; otherwise it needs a restart


def setting(
    default: V | Callable[[], V], read: Callable[[object], V], help_: str, *, reload: bool = False
) -> V:
    """A field: default, reader, one line of help, and whether a reload changes it."""
    metadata = {"setting": Setting(read, help_, reload)}
    made: V = (
        field(default_factory=default, metadata=metadata)
        if callable(default)
        else field(default=default, metadata=metadata)
    )
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of the configuration file: its name, its dataclass, and its place among others.

    `examples` are lines of `config.example.toml` for keys whose default cannot be written there.
    `check` reports, as (key, problem), what is wrong only in combination.
    """

    name: str
    settings: type[Any]
    order: int
    examples: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Any, Callable[[str, str], None]], None] = lambda _settings, _wrong: None


class SectionValues:
    """The settings of several sections, by their class. A section that was not given has its
    defaults.
    """

    def __init__(self, *given: object) -> None:
        self._by_class = {type(section): section for section in given if section != type(section)()}

    def __getitem__(self, settings: type[S]) -> S:
        given = self._by_class.get(settings)
        return given if isinstance(given, settings) else settings()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SectionValues) and self._by_class == other._by_class

    def __repr__(self) -> str:
        return f"SectionValues({', '.join(map(repr, self._by_class.values()))})"

    __hash__ = None  # type: ignore[assignment]


# What TOML gives -> what the code uses. Each raises ValueError.

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


def read_period(value: object) -> float:
    """Seconds; 0 for "off"."""
    return 0.0 if value == "off" else tomlfile.parse_duration(value)


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


def read_table(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise Unexpected("a table", value)
    return value
