"""`[socket]` of the configuration: where the API listens."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from vitald.config.errors import FileReport
from vitald.config.paths import Paths
from vitald.config.readers import read_nonempty_text, read_path
from vitald.config.section import Section, setting
from vitald.config.values import Config

_MAX_PATH = 107  # bytes of a Unix socket's path (sun_path), without the NUL


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketSettings:
    """The Unix socket of the API."""

    path: Path | None = setting(None, read_path, "Default: vitald.sock in the runtime folder.")
    group: str | None = setting(
        None,
        read_nonempty_text,
        "Group that may read over the socket. Default: the daemon's own group.",
    )


def find_socket(config: Config) -> Path:
    """Where the API's socket is."""
    return config[SocketSettings].path or config[Paths].runtime / "vitald.sock"


def _check_length(config: Config, report: FileReport) -> None:
    path = find_socket(config)
    if len(os.fsencode(path)) > _MAX_PATH:
        what = f"{path} is longer than the {_MAX_PATH} bytes that a Unix socket's path may have"
        report.add_error(SOCKET.name, "path", what)


SOCKET = Section(
    name="socket",
    settings=SocketSettings,
    examples={"path": 'path = "/run/vitald/vitald.sock"', "group": '#group = "slurm"'},
    check=_check_length,
)
