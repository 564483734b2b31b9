"""Keys that configuration files had, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from vitald import tomlfile
from vitald.checking import read_flag
from vitald.config_file import FileReport


@dataclass(frozen=True, slots=True)
class Moved:
    """A renamed or removed key: its section and name now, or None and why it is gone."""

    since: str  # the version of vitald
    now: tuple[str, str] | None
    why: str = ""
    # Converts the value to that under the new name; raises ValueError.
    reads: Callable[[object], object] | None = None


# Former keys. They are accepted with a note: an upgrade that refused a key which was valid before
# would stop the daemon on a whole fleet. A word that never was a key is refused.
MOVED: dict[tuple[str, str], Moved] = {
    ("kernel_log", "accept_userspace"): Moved(
        "0.1",
        ("kernel_log", "userspace"),
        'true is "confirmed", false is "ignore"; without either it is "unconfirmed"',
        lambda value: "confirmed" if read_flag(value) else "ignore",
    ),
}


def upgrade_tables(
    tables: tomlfile.Table, sections: Collection[str], report: FileReport
) -> tomlfile.Table:
    """The tables of an older file with today's keys: renamed keys have their new name, removed
    keys are left out, and each gets a note. `sections`: those of today.
    """
    upgraded: tomlfile.Table = {
        section: dict(table) if isinstance(table, dict) else table
        for section, table in tables.items()
    }
    for (section, key), moved in MOVED.items():
        table = upgraded.get(section)
        if isinstance(table, dict) and key in table:
            _move_key(upgraded, (section, key), table.pop(key), moved, report)
    former = {section for section, _ in MOVED} - {*sections}
    return {section: table for section, table in upgraded.items() if table or section not in former}


def _move_key(
    upgraded: tomlfile.Table,
    former: tuple[str, str],
    value: Any,
    moved: Moved,
    report: FileReport,
) -> None:
    """Put the value of a former section and key where `moved` says."""
    why = f": {moved.why}" if moved.why else ""
    if moved.now is None:
        what = f"gone since vitald {moved.since}{why}. It has no effect: remove it"
        report.add_note(*former, what)
        return
    section, key = moved.now
    table = upgraded.setdefault(section, {})
    if moved.reads is not None:
        try:
            value = moved.reads(value)
        except ValueError as error:
            report.add_error(*former, str(error))
            return
        if isinstance(table, dict) and table.get(key, value) != value:
            what = f"says {value!r}, and [{section}] {key} says {table[key]!r}: remove this one"
            report.add_error(*former, what)
            return
    called = f"called [{section}] {key} since vitald {moved.since}{why}"
    if isinstance(table, dict) and key not in table:
        table[key] = value
        report.former[section, key] = former
        report.add_note(*former, f"{called}. It is read as that: rename it")
    else:
        what = f"{called}, which is set as well. It has no effect: remove it"
        report.add_note(*former, what)
