"""
Reading sections of the configuration file: values are checked key by key, and all mistakes are
reported at once.

The sections are given: a program that needs few of them reads these only.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from vitald import tomlfile
from vitald.config.errors import ConfigError, FileReport
from vitald.config.section import Section, SectionGroup
from vitald.config.values import Config

DEFAULT_PATH = Path("/etc/vitald/config.toml")


def find_default_file() -> Path | None:
    """The configuration file of this node; None if it has none."""
    return DEFAULT_PATH if DEFAULT_PATH.exists() else None


def read_file(path: Path) -> tuple[str, tomlfile.Table]:
    """The text and the tables of a file. Raises ConfigError."""
    try:
        return tomlfile.read_toml(path)
    except ValueError as error:
        raise ConfigError([str(error)]) from None


def parse_sections(
    text: str,
    tables: tomlfile.Table,
    name: str,
    sections: Collection[Section],
    *,
    are_all: bool = False,
) -> Config:
    """Check these sections of a file key by key, and together. `text` only serves to find line
    numbers. `are_all`: there are no others. Raises ConfigError with every mistake.
    """
    report = FileReport(name, text)
    config = read_sections(tables, sections, report, are_all=are_all)
    for section in sections:
        section.check(config, report)
    if report.errors:
        raise ConfigError(report.errors)
    return config


def read_sections(
    tables: tomlfile.Table,
    sections: Collection[Section],
    report: FileReport,
    *,
    are_all: bool = False,
) -> Config:
    """What is right in these sections. `report` gets the mistakes, in the order of the file."""
    known = {section.name: section for section in sections}
    settings, groups = [], {}
    for name, table in tables.items():
        section = known.get(name)
        if isinstance(section, SectionGroup):
            reserved = known if section.avoids_sections else ()
            groups[section.settings] = _read_group(section, table, reserved, report)
        elif section is not None:
            settings.append(_read_section(name, section, table, report))
        elif are_all:
            _report_unknown(name, table, known, report)
    classes = frozenset(section.settings for section in sections)
    return Config(*settings, groups=groups, classes=classes)


def _report_unknown(
    name: str, table: object, known: dict[str, Section], report: FileReport
) -> None:
    if isinstance(table, dict):
        report.add_error(name, "", f"unknown section{tomlfile.suggest_word(name, known)}")
        return
    owners = [
        f"[{section.name}]"
        for section in known.values()
        if not isinstance(section, SectionGroup) and name in section.list_settings()
    ]
    where = f": it belongs below {' or '.join(owners)}" if owners else ""
    report.add_error_at((name,), f"{name}: stands in no section{where}")


def _read_section(name: str, section: Section, table: object, report: FileReport) -> Any:
    """The settings in a section's table; the defaults of what `report` gets as a mistake."""
    if not isinstance(table, dict):
        report.add_error(name, "", f"expected a table, found {table!r}")
        return section.settings()
    known = section.list_settings()
    values: dict[str, object] = {}
    for key, value in table.items():
        if key not in known:
            report.add_error(name, key, f"unknown key{tomlfile.suggest_word(key, known)}")
            continue
        attribute, setting = known[key]
        try:
            values[attribute] = setting.read(value)
        except ValueError as error:
            report.add_error(name, key, str(error))
    return section.settings(**values)


def _read_group(
    group: SectionGroup, table: object, reserved: Collection[str], report: FileReport
) -> dict[str, Any]:
    """The settings of each section of a group, by its name. One with a mistake is left out, so that
    nothing else is reported of it.
    """
    if not isinstance(table, dict) or not all(isinstance(item, dict) for item in table.values()):
        report.add_error(group.name, "", f"expected tables such as [{group.name}.{group.example}]")
        return {}
    settings = {}
    for name, keys in table.items():
        section = f"{group.name}.{name}"
        if not group.pattern.fullmatch(name) or name in reserved:
            report.add_error_at((group.name, name), f"[{section}]: expected {group.expected}")
            continue
        former = len(report.errors)
        read = _read_section(section, group, keys, report)
        if len(report.errors) == former:
            settings[name] = read
    return settings
