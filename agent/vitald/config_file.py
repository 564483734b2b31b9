"""
Reading sections of the configuration file: values are checked key by key, and all mistakes are
reported at once, each with its file, line and key.

The whole file is `config`; a program that needs few sections reads these with this module alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from vitald import tomlfile
from vitald.settings import Setting

DEFAULT_PATH = Path("/etc/vitald/config.toml")


def find_default_file() -> Path | None:
    """The configuration file of this node; None if it has none."""
    return DEFAULT_PATH if DEFAULT_PATH.exists() else None


class ConfigError(Exception):
    """The file is wrong: exit code 78 (EX_CONFIG). `errors` holds every mistake, each with file,
    line and key.
    """

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


class FileReport:
    """The mistakes in a configuration file, each with its place."""

    def __init__(self, name: str, text: str) -> None:
        self.errors: list[str] = []
        self._name = name
        self._text = text

    def add_error(self, section: str, key: str, what: str) -> None:
        name = f"[{section}]{' ' + key if key else ''}"
        self.add_error_at((*section.split("."), key), f"{name}: {what}")

    def add_error_at(self, path: tuple[str, ...], text: str) -> None:
        """A text that names the key; `path` is where it stands."""
        self.errors.append(f"{self._find_place(path)}: {text}")

    @cached_property
    def _lines(self) -> dict[tuple[str, ...], int]:
        return tomlfile.index_lines(self._text)

    def _find_place(self, path: tuple[str, ...]) -> str:
        """The file and the line of a table or a key, or of the closest table that has it."""
        outward = (self._lines.get(path[:length]) for length in range(len(path), 0, -1))
        line = next(filter(None, outward), None)
        return f"{self._name}:{line}" if line is not None else self._name


def list_settings(class_: type[Any]) -> dict[str, tuple[str, Setting]]:
    """Key in the file -> (attribute, setting). The key `every` is the attribute `every_s`."""
    return {
        item.name.removesuffix("_s"): (item.name, item.metadata["setting"])
        for item in fields(class_)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionGroup:
    """A table of sections of one kind, each with a name of its own: `[checks.scratch]`.
    `expected`: what `pattern` matches, in words; `reserved`: names that none may have.
    """

    name: str
    settings: type[Any]
    pattern: re.Pattern[str]
    expected: str
    example: str  # a name
    reserved: frozenset[str] = frozenset()


def read_sections(
    path: Path,
    classes: Mapping[str, type[Any]],
    group: SectionGroup,
    check: Callable[[dict[str, Any], Callable[[str, str, str], None]], None],
) -> dict[str, Any]:
    """The settings of these sections of a file and of one group, by their names; others are not
    read. `check` reports, as (section, key, problem), what is wrong only in combination. Raises
    ConfigError with every mistake.
    """
    try:
        text, tables = tomlfile.read_toml(path)
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    report = FileReport(str(path), text)
    sections: dict[str, Any] = {
        name: read_section(name, class_, tables.get(name, {}), report)
        for name, class_ in classes.items()
    }
    sections[group.name] = read_group(group, tables.get(group.name, {}), report)
    check(sections, report.add_error)
    if report.errors:
        raise ConfigError(report.errors)
    return sections


def read_section(section: str, class_: type[Any], table: object, report: FileReport) -> Any:
    """The settings in a section's table; the defaults of what `report` gets as a mistake."""
    if not isinstance(table, dict):
        report.add_error(section, "", f"expected a table, found {table!r}")
        return class_()
    known = list_settings(class_)
    values: dict[str, object] = {}
    for key, value in table.items():
        if key not in known:
            report.add_error(section, key, f"unknown key{tomlfile.suggest_word(key, known)}")
            continue
        attribute, setting_ = known[key]
        try:
            values[attribute] = setting_.read(value)
        except ValueError as error:
            report.add_error(section, key, str(error))
    return class_(**values)


def read_group(group: SectionGroup, table: object, report: FileReport) -> dict[str, Any]:
    """The settings of each section of a group, by its name. `report` gets what is wrong; a section
    with a mistake is left out, so that nothing else is reported of it.
    """
    if not isinstance(table, dict) or not all(isinstance(item, dict) for item in table.values()):
        report.add_error(group.name, "", f"expected tables such as [{group.name}.{group.example}]")
        return {}
    settings = {}
    for name, keys in table.items():
        section = f"{group.name}.{name}"
        if not group.pattern.fullmatch(name) or name in group.reserved:
            report.add_error_at((group.name, name), f"[{section}]: expected {group.expected}")
            continue
        former = len(report.errors)
        read = read_section(section, group.settings, keys, report)
        if len(report.errors) == former:
            settings[name] = read
    return settings
