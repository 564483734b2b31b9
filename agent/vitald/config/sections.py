"""All sections of the configuration file, in its order, and reading the whole file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from vitald import tomlfile
from vitald.catalog.settings import CATALOG
from vitald.collectors.discovery import find_sections
from vitald.config.file import parse_sections, read_file
from vitald.config.paths import PATHS
from vitald.config.section import Section, SectionGroup
from vitald.config.values import Config
from vitald.diagnostics.settings import CHECKS, DIAGNOSTICS
from vitald.judge.settings import POLICY
from vitald.ledger.settings import LEDGER
from vitald.log.settings import LOG
from vitald.metrics.settings import METRICS
from vitald.publish.kubernetes.settings import KUBERNETES
from vitald.publish.notify.settings import NOTIFY
from vitald.publish.settings import PUBLISH
from vitald.recovery.settings import RECOVERY
from vitald.server.settings import SOCKET
from vitald.slurm.settings import SLURM

SECTIONS: dict[str, Section] = {
    section.name: section
    for section in (
        *(PATHS, *find_sections(), *DIAGNOSTICS, SLURM, RECOVERY, PUBLISH, KUBERNETES),
        *(SOCKET, METRICS, CATALOG, POLICY, LEDGER, LOG),
    )
}
GROUPS: dict[str, SectionGroup] = {group.name: group for group in (CHECKS, NOTIFY)}
_HASH_BYTES = 6  # what a metric's 64-bit float holds exactly


def load_config(path: Path | None) -> Config:
    """The configuration in a file; the defaults where `path` is None. Raises ConfigError with every
    mistake.
    """
    if path is None:
        return Config()
    text, tables = read_file(path)
    return parse_config(text, tables, str(path))


def parse_config(text: str, tables: tomlfile.Table, name: str) -> Config:
    """As parse_sections, of the whole file."""
    sections = (*SECTIONS.values(), *GROUPS.values())
    config = parse_sections(text, tables, name, sections, are_all=True)
    return config.replace(settings_hash=hash_settings(tables))


def hash_settings(tables: tomlfile.Table) -> int:
    """A number that is the same for files with the same settings, whatever their comments and
    order: the first 48 bits of a SHA-256; 0 where nothing is set.
    """
    if not tables:
        return 0
    text = json.dumps(tables, sort_keys=True, separators=(",", ":"), default=str)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:_HASH_BYTES], "big")
