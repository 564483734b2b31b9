"""
`[slurm]` of the configuration file, as Slurm's scripts read it: at every call, and cheaply.

Owns     what these scripts need of the file; an invalid value has no effect on other keys.
Refuses  importing `vitald.config`, which takes longer than all the rest of a prolog: a test
         compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from vitald import tomlfile
from vitald.slurm.report import report

T = TypeVar("T")
UNKNOWN_CHOICES = ("allow", "refuse")


class Settings(NamedTuple):
    """Settings of `[slurm]`, and where the daemon listens."""

    unknown: str = "allow"
    level_1_age_s: float = 0.0  # 0: no diagnostic before a job
    budget_s: float = 2.0
    level_2_after_failure: bool = True
    reason: str = "vitald"
    record: Path = Path("/var/lib/vitald-recover/slurm-reason")
    hyperpod: bool = False
    socket: Path | None = None
    config: Path = Path("/etc/vitald/config.toml")  # the file, whose [recovery] has the brake

    @property
    def prefix(self) -> str:
        """The beginning of every reason that we give a node."""
        return f"{self.reason}: "


def read_settings(path: Path) -> Settings:
    """The settings of a file, or the defaults if there is none.

    Raises nothing for an invalid value: it is reported, and the default is used.
    """
    if not path.exists():
        return Settings()
    try:
        tables = tomlfile.read_toml(path)[1]
    except ValueError as error:
        report(f"{error}: going by the defaults")
        return Settings()
    table, default = tables.get("slurm"), Settings()
    values = table if isinstance(table, dict) else {}

    def read_value(key: str, convert: Callable[[object], T], otherwise: T) -> T:
        try:
            return convert(values[key]) if key in values else otherwise
        except ValueError as error:
            report(f"{path}: [slurm] {key}: {error}: going by the default")
            return otherwise

    after_failure = read_value("level_2_after_failure", _read_flag, default.level_2_after_failure)
    return Settings(
        unknown=read_value("unknown", _read_choice, default.unknown),
        level_1_age_s=read_value("level_1_age", _read_period, default.level_1_age_s),
        budget_s=read_value("budget", tomlfile.parse_duration, default.budget_s),
        level_2_after_failure=after_failure,
        reason=read_value("reason", _read_text, default.reason),
        record=read_value("record", _read_path, default.record),
        hyperpod=read_value("hyperpod", _read_flag, default.hyperpod),
        socket=_find_socket(tables),
    )


def _find_socket(tables: tomlfile.Table) -> Path | None:
    for section, key, name in (("socket", "path", ""), ("paths", "runtime", "vitald.sock")):
        table = tables.get(section)
        if isinstance(table, dict) and isinstance(table.get(key), str):
            return Path(table[key]) / name
    return None


def _read_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, found {value!r}")
    return value


def _read_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"expected a string, found {value!r}")
    return value


def _read_path(value: object) -> Path:
    path = Path(_read_text(value))
    if not path.is_absolute() or "\0" in str(path):
        raise ValueError(f"expected an absolute path, found {value!r}")
    return path


def _read_choice(value: object) -> str:
    if value not in UNKNOWN_CHOICES:
        raise ValueError(f"must be one of {', '.join(UNKNOWN_CHOICES)}, not {value!r}")
    return str(value)


def _read_period(value: object) -> float:
    return 0.0 if value == "off" else tomlfile.parse_duration(value)
