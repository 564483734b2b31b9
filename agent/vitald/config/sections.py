"""
All sections of the configuration file, in its order, reading the whole file, and
`config.example.toml`: every key with its default.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from vitald import tomlfile
from vitald.catalog.settings import CATALOG
from vitald.collectors.discovery import find_sections
from vitald.config.file import parse_sections, read_file
from vitald.config.paths import PATHS
from vitald.config.section import Section, SectionGroup, TakesEffect
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
_HEAD = "# vitald: every key with its default. Check a file of yours with: vitald config check FILE"


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


def format_example() -> str:
    """The file: every key, its default, a line on what it does."""
    lines = [_HEAD, ""]
    for name, section in SECTIONS.items():
        lines += _describe_section(section, f"[{name}]")
    for name, group in GROUPS.items():
        lines += (
            line if line.startswith("# ") or not line else f"#{line}"
            for line in _describe_section(group, f"[{name}.{group.example}]")
        )
    return "\n".join(lines)


def _describe_section(section: Section, header: str) -> Iterator[str]:
    class_ = section.settings
    yield f"# {' '.join(str(class_.__doc__).split())}"
    yield header
    for key, (attribute, setting) in section.list_settings().items():
        value = getattr(class_(), attribute)
        after = (
            " Takes effect on a reload." if section.find_effect(key) is TakesEffect.RELOAD else ""
        )
        yield f"# {setting.help}{after}"
        written = _format_time(value) if attribute.endswith("_s") else _format_value(value)
        yield section.examples.get(key) or f"{key} = {written}"
        yield ""


def _format_value(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, (bool, int)) else f'"{value}"'


def _format_time(seconds: float) -> str:
    """A duration as it is written in the file."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length and seconds % length == 0 and (seconds > length or unit != "m"):
            return f'"{seconds / length:g}{unit}"'
    return f'"{seconds:g}s"' if seconds else '"off"'
