"""
Reading sections of the configuration file: values are checked key by key, and all mistakes are
reported at once, each with its file, line and key.

The whole file is `config`; a program that needs few sections reads these with this module alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from vitald import tomlfile
from vitald.settings import Setting

DEFAULT_PATH = Path("/etc/vitald/config.toml")
# The file's names where they differ from the code's, which carry their unit; seconds' `_s` is left
# out in any case.
_FILE_NAMES = {("ledger", "most_bytes"): "max_size", ("notify", "urls"): "url"}


_MAX_NAME = 40  # of an entry, as an error shows it


@dataclass(frozen=True, slots=True)
class Array:
    """An array of tables, `[[notify]]`. `check` reports, as (place from 0, key, problem), what is
    wrong only in combination.
    """

    settings: type[Any]
    check: Callable[[Sequence[Any], Callable[[int, str, str], None]], None]


class ConfigError(Exception):
    """The file is wrong: exit code 78 (EX_CONFIG). `errors` holds every mistake, each with file,
    line and key.
    """

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


class FileReport:
    """The mistakes in a configuration file and the notes on it, each with its place."""

    def __init__(self, name: str, text: str) -> None:
        self.errors: list[str] = []
        self.notes: list[str] = []
        # Section and key of a setting: those under which the file has it, by a former name.
        self.former: dict[tuple[str, str], tuple[str, str]] = {}
        self._name = name
        self._text = text

    def add_error(self, section: str, key: str, what: str) -> None:
        place = self.former.get((section, key), (section, key))
        self.errors.append(self._format(*place, what))

    def add_note(self, section: str, key: str, what: str) -> None:
        self.notes.append(self._format(section, key, what))

    def add_entry_error(self, section: str, place: int, entry: str, key: str, what: str) -> None:
        """Of an array of tables: in the entry at this place, counted from 0, which is called so."""
        line = tomlfile.find_line(self._text, section, key, place + 1)
        self.errors.append(self._place(line, f"[[{section}]] {entry}", key, what))

    def _format(self, section: str, key: str, what: str) -> str:
        line = tomlfile.find_line(self._text, section, key)
        return self._place(line, f"[{section}]", key, what)

    def _place(self, line: int | None, table: str, key: str, what: str) -> str:
        place = f"{self._name}:{line}" if line is not None else self._name
        return f"{place}: {table}{' ' + key if key else ''}: {what}"


def list_settings(section: str, class_: type[Any]) -> dict[str, tuple[str, Setting]]:
    """Key in the file -> (attribute, setting)."""
    names = {
        f.name: _FILE_NAMES.get((section, f.name), f.name.removesuffix("_s"))
        for f in fields(class_)
    }
    return {names[f.name]: (f.name, f.metadata["setting"]) for f in fields(class_)}


def read_sections(
    path: Path,
    classes: Mapping[str, type[Any]],
    check: Callable[[dict[str, Any], Callable[[str, str, str], None]], None],
    arrays: Mapping[str, Array] | None = None,
) -> dict[str, Any]:
    """The settings of these sections and arrays of a file, by their names; others are not
    read. `check` reports, as (section, key, problem), what is wrong only in combination of
    sections. Raises ConfigError with every mistake.
    """
    try:
        text, tables = tomlfile.read_toml(path)
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    report = FileReport(str(path), text)
    sections = {
        name: read_section(name, class_, tables.get(name, {}), report)
        for name, class_ in classes.items()
    }
    check(sections, report.add_error)
    for name, array in (arrays or {}).items():
        sections[name] = read_array(name, array, tables.get(name, []), report)
    if report.errors:
        raise ConfigError(report.errors)
    return sections


def read_section(section: str, class_: type[Any], table: object, report: FileReport) -> Any:
    """The settings in a section's table; the defaults of what `report` gets as a mistake."""
    if not isinstance(table, dict):
        report.add_error(section, "", f"expected a table, found {table!r}")
        return class_()
    return _read_table(section, class_, table, partial(report.add_error, section))


def read_array(section: str, array: Array, tables: object, report: FileReport) -> tuple[Any, ...]:
    """The settings of each `[[section]]`; the defaults of what `report` gets as a mistake."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        report.add_error(section, "", f"expected tables, each below its own [[{section}]]")
        return ()
    errors_before = len(report.errors)
    reports = [
        partial(report.add_entry_error, section, place, _name_entry(table, place))
        for place, table in enumerate(tables)
    ]
    entries = tuple(
        _read_table(section, array.settings, table, wrong)
        for table, wrong in zip(tables, reports, strict=True)
    )
    if len(report.errors) == errors_before:  # else the rest may only follow from them
        array.check(entries, lambda place, key, what: reports[place](key, what))
    return entries


def _name_entry(table: Mapping[str, object], place: int) -> str:
    name = table.get("name")
    return repr(name[:_MAX_NAME]) if isinstance(name, str) and name else f"number {place + 1}"


def _read_table(
    section: str, class_: type[Any], table: Mapping[str, object], wrong: Callable[[str, str], None]
) -> Any:
    known = list_settings(section, class_)
    values: dict[str, object] = {}
    for key, value in table.items():
        if key not in known:
            wrong(key, f"unknown key{tomlfile.suggest_word(key, known)}")
            continue
        attribute, setting_ = known[key]
        try:
            values[attribute] = setting_.read(value)
        except ValueError as error:
            wrong(key, str(error))
    return class_(**values)
