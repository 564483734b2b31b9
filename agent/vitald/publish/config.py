"""
What `vitald publish` needs of the configuration file. It reads its own sections only, which costs
less memory than the whole file: `vitald config check` checks that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from vitald.config_file import read_sections
from vitald.config_sections import Log, Recovery, Socket, find_socket
from vitald.notify_section import NOTIFY, NotifySettings, check_notify
from vitald.paths import Paths
from vitald.publish_sections import KubernetesSettings, PublishSettings, check_kubernetes

_SECTIONS: dict[str, type[Any]] = {
    "paths": Paths,
    "socket": Socket,
    "log": Log,
    "recovery": Recovery,
    "publish": PublishSettings,
    "kubernetes": KubernetesSettings,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherConfig:
    """The sections that the publisher reads."""

    paths: Paths = field(default_factory=Paths)
    socket: Socket = field(default_factory=Socket)
    log: Log = field(default_factory=Log)
    recovery: Recovery = field(default_factory=Recovery)
    publish: PublishSettings = field(default_factory=PublishSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    notify: Mapping[str, NotifySettings] = field(default_factory=dict)  # by name

    @property
    def socket_path(self) -> Path:
        return find_socket(self.socket, self.paths)


def load_config(path: Path | None) -> PublisherConfig:
    """Of a file; the defaults where `path` is None. Raises ConfigError with every mistake."""
    if path is None:
        return PublisherConfig()
    return PublisherConfig(**read_sections(path, _SECTIONS, NOTIFY, _check_together))


def _check_together(sections: dict[str, Any], wrong: Callable[[str, str, str], None]) -> None:
    mode = sections["recovery"].mode
    check_notify(sections[NOTIFY.name], wrong)
    check_kubernetes(sections["kubernetes"], mode, partial(wrong, "kubernetes"))
