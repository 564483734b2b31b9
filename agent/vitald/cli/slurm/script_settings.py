"""
The settings of Slurm's scripts.

Owns     that a mistake in the file has no effect on other keys.
Refuses  other sections than the scripts need: reading them takes longer than all the rest of a
         prolog.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from vitald.config.errors import ConfigError, FileReport
from vitald.config.file import DEFAULT_PATH, read_file, read_sections
from vitald.config.paths import PATHS, Paths
from vitald.server.settings import SOCKET, SocketSettings, find_socket
from vitald.slurm.report import report
from vitald.slurm.settings import SLURM, SlurmSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSettings(SlurmSettings):
    """`[slurm]`, where the daemon listens if that is configured, and the file: its [recovery] has
    the brake.
    """

    socket: Path | None = None
    config: Path = DEFAULT_PATH


def read_settings(path: Path) -> ScriptSettings:
    """The settings of a file, or the defaults if there is none. Raises nothing for a mistake in it:
    that is reported, and the default is used.
    """
    if not path.exists():
        return ScriptSettings(config=path)
    try:
        text, tables = read_file(path)
    except ConfigError as error:
        report(f"{error}: going by the defaults")
        return ScriptSettings(config=path)
    mistakes = FileReport(str(path), text)
    config = read_sections(tables, (SLURM, SOCKET, PATHS), mistakes)
    for mistake in mistakes.errors:
        report(f"{mistake}: going by the default")
    default = SocketSettings().path, Paths().runtime
    is_set = (config[SocketSettings].path, config[Paths].runtime) != default
    given = config[SlurmSettings]
    return ScriptSettings(
        **{item.name: getattr(given, item.name) for item in fields(given)},
        socket=find_socket(config) if is_set else None,
        config=path,
    )
