"""
The configuration of `vitald publish`.

Owns     which sections of the file the publisher reads.
Refuses  all others: a node pays for what reading them imports. The daemon and `vitald config check`
         check the whole file.
"""

from __future__ import annotations

from pathlib import Path

from vitald.config.file import parse_sections, read_file
from vitald.config.paths import PATHS
from vitald.config.values import Config
from vitald.log.settings import LOG
from vitald.publish.kubernetes.settings import KUBERNETES
from vitald.publish.notify.settings import NOTIFY
from vitald.publish.settings import PUBLISH
from vitald.recovery.settings import RECOVERY
from vitald.server.settings import SOCKET

_SECTIONS = (PATHS, SOCKET, LOG, RECOVERY, PUBLISH, KUBERNETES, NOTIFY)


def load_config(path: Path | None) -> Config:
    """Of a file; the defaults where `path` is None. Raises ConfigError with every mistake."""
    text, tables = ("", {}) if path is None else read_file(path)
    return parse_sections(text, tables, str(path or "the defaults"), _SECTIONS)
