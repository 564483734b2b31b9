"""The daemon's configuration, for `vitald report`: redacted, and as far as it can be parsed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from vitald import tomlfile
from vitald.cli import client
from vitald.cli.report.redact import Redactor, redact_configuration
from vitald.config.errors import ConfigError, FileReport
from vitald.config.file import read_sections
from vitald.config.sections import GROUPS, SECTIONS, parse_config
from vitald.config.values import Config
from vitald.server.settings import find_socket

CONFIG = Path("/etc/vitald/config.toml")
_MAX_BYTES = 1024 * 1024


class FoundConfiguration(NamedTuple):
    """`shown`: the redacted file, with what is wrong with it. `unreadable`: why it cannot be read;
    empty if it can.
    """

    shown: str
    config: Config
    unreadable: str = ""


def read_configuration(path: Path, redactor: Redactor) -> FoundConfiguration:
    """The file at `path`; the defaults if it cannot be read. `redactor` remembers its secrets."""
    config = Config()
    if path == CONFIG and not path.exists():
        return FoundConfiguration(f"# there is no {path}: the defaults are in force\n", config)
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        why = f"{path}: {error.strerror}"
        return FoundConfiguration(f"# {why}\n", config, why)
    shown, wrong = redact_configuration(text, redactor)
    errors = [wrong] if wrong else []
    try:
        tables = tomlfile.parse_toml(text, str(path))
        config = _read_valid_sections(tables)
        config = parse_config(text, tables, str(path))
    except ConfigError as error:
        errors += error.errors
    except ValueError as error:
        errors.append(str(error))
    notes = [f"{path}, written anew: without comments, and without what may be a secret"]
    notes += [f"redacted: {redaction}" for redaction in redactor.redactions]
    notes += [f"wrong: {redactor.redact_text(error)}" for error in errors]
    head = "".join(f"# {' '.join(note.split())}\n" for note in notes)
    return FoundConfiguration(f"{head}\n{shown}", config)


def find_existing_socket(config: Config) -> Path:
    """The configured socket, if it is there; else the daemon's usual one."""
    configured = find_socket(config)
    return configured if configured.exists() else client.default_socket()


def _read_valid_sections(tables: tomlfile.Table) -> Config:
    """What is right in a file that may have mistakes, which are reported for the whole file."""
    config = read_sections(tables, [*SECTIONS.values(), *GROUPS.values()], FileReport("", ""))
    for section in SECTIONS.values():
        mistakes = FileReport("", "")
        section.check(config, mistakes)
        if mistakes.errors:
            config = config.replace(section.settings())
    return config
