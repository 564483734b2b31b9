"""
How a section of the configuration file is declared: a frozen dataclass whose fields are settings,
and a `Section` that adds its name and what concerns it as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, TypeVar

from vitald import tomlfile
from vitald.config.errors import FileReport
from vitald.config.values import Config

V = TypeVar("V")


class TakesEffect(Enum):
    """What makes a changed key take effect."""

    AT_ONCE = "at once"
    RELOAD = "reload"
    RESTART = "restart"
    PUBLISHER = "restart of vitald-publish"


@dataclass(frozen=True, slots=True)
class Setting:
    """What a field of a section carries besides its default."""

    read: Callable[[object], object]
    help: str
    effect: TakesEffect | None  # None: that of the section


def setting(
    default: V | Callable[[], V],
    read: Callable[[object], V],
    help_: str,
    *,
    reload: bool | None = None,
) -> V:
    """A field: default, reader, one line of help, and whether a reload changes it or it takes a
    restart, where that is not as for the whole section.
    """
    effect = None if reload is None else TakesEffect.RELOAD if reload else TakesEffect.RESTART
    metadata = {"setting": Setting(read, help_, effect)}
    made: V = (
        field(default_factory=default, metadata=metadata)
        if callable(default)
        else field(default=default, metadata=metadata)
    )
    return made


def duration(
    default: str,
    help_: str,
    read: Callable[[object], float] = tomlfile.parse_duration,
    *,
    reload: bool | None = None,
) -> float:
    """A field in seconds, whose default is written as in the file: `10m`."""
    return setting(read(default), read, help_, reload=reload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of the configuration file.

    `order`: its place among the sections of the collectors. `examples`: lines of
    `config.example.toml` for keys whose default cannot be written there. `check` reports what is
    wrong only in combination.
    """

    name: str
    settings: type[Any]
    order: int = 0
    effect: TakesEffect = TakesEffect.RESTART
    examples: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Config, FileReport], None] = lambda _config, _report: None

    def list_settings(self) -> dict[str, tuple[str, Setting]]:
        """Key in the file -> (attribute, setting). The key `every` is the attribute `every_s`."""
        return {
            item.name.removesuffix("_s"): (item.name, item.metadata["setting"])
            for item in fields(self.settings)
        }

    def find_effect(self, key: str) -> TakesEffect:
        """What makes a change of this key take effect."""
        return self.list_settings()[key][1].effect or self.effect


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionGroup(Section):
    """Sections of one kind, each with a name of its own: `[checks.scratch]`.

    `expected`: what `pattern` matches, in words; `example`: a name. `avoids_sections`: nor may it
    be the name of a section.
    """

    pattern: re.Pattern[str]
    expected: str
    example: str
    avoids_sections: bool = False
