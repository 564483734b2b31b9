"""What `vitald nvhcd` needs of the configuration file. It reads its own sections only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitald.config_file import read_sections
from vitald.config_sections import Log, Socket, find_socket
from vitald.nvhcd_section import NvhcdSettings
from vitald.paths import Paths

_SECTIONS: dict[str, type[Any]] = {
    "paths": Paths,
    "socket": Socket,
    "log": Log,
    "nvhcd": NvhcdSettings,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NvhcdConfig:
    """The sections that the health service reads."""

    paths: Paths = field(default_factory=Paths)
    socket: Socket = field(default_factory=Socket)
    log: Log = field(default_factory=Log)
    nvhcd: NvhcdSettings = field(default_factory=NvhcdSettings)

    @property
    def daemon_socket(self) -> Path:
        return find_socket(self.socket, self.paths)

    @property
    def default_path(self) -> Path:
        """Where to listen: in a folder that a container can mount without the daemon's socket."""
        return self.paths.runtime / "job/nvhcd.sock"


def load_config(path: Path | None) -> NvhcdConfig:
    """Of a file; the defaults where `path` is None. Raises ConfigError with every mistake."""
    if path is None:
        return NvhcdConfig()
    return NvhcdConfig(**read_sections(path, _SECTIONS, lambda *_: None))
