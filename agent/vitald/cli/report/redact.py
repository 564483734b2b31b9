"""
What `vitald report` leaves out of a configuration and of texts: whatever may be a secret, by its
name and by its shape.

Most secrets of the configuration are in files of their own. But the path of a webhook's address is
one, the sites' own programs have arguments, a file may have keys that are not ours, and an address
may have a password in it. Too much is taken out rather than too little; comments are left out,
since they can hold anything.

Owns     what looks like a secret, and the redacted configuration: the tables that vitald parsed.
         Of a file that is not valid TOML nothing is shown: its secrets cannot be known.
Refuses  redacting a secret in one place only: once found, it is removed from every other part of
         the report.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from pathlib import Path

from vitald import tomlfile
from vitald.cli import client
from vitald.config.errors import ConfigError, FileReport
from vitald.config.file import read_sections
from vitald.config.sections import GROUPS, SECTIONS, parse_config
from vitald.config.values import Config
from vitald.server.settings import find_socket

REDACTED = "[redacted]"
# Shorter secrets are words of any text: these are only removed where they were found.
_MIN_LENGTH, _MIN_MIXED_LENGTH = 8, 6
_MAX_LINE = 16 * 1024  # of a log's line
_WORDS = (
    r"pass(?:word|wd|phrase|code)|secret|token|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|credential|auth(?!or)|cookie|bearer|webhook"
    r"|signature|license[_-]?key"
)
# An environment may hold any secret, so nothing of one is shown.
_NAME = re.compile(
    rf"{_WORDS}|(?:^|[_.-])(?:pass|pwd|pw|key|dsn|sig|pin|env|environment)(?:$|[_.-])",
    re.IGNORECASE,
)
_UUID = r"(?:[A-Z]+-)?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
# Repetitions are bounded: the text may have lines made to be slow to match.
_SHAPES = tuple(
    re.compile(shape, re.DOTALL)
    for shape in (
        r"://(?P<secret>[^\s/?#]+)@",  # user and password in an address
        # The same with a slash in the password
        r"://[^\s/?#:@]{1,256}:(?!\d{1,5}/)(?P<secret>[^\s@]{1,256})@",
        (
            rf"(?i)(?:{_WORDS}|\bpwd|\bsig|[?&]key)[a-z0-9_-]{{0,40}}[\"']?"
            r"\s{0,8}[=:]\s{0,8}[\"']?(?P<secret>(?!bearer |basic )[^\s\"'&;,]+)"
        ),
        rf"(?i)(?:^|\s)--?[a-z-]{{0,40}}(?:{_WORDS})[a-z-]{{0,40}}\s{{1,8}}(?P<secret>[^\s-]\S*)",
        r"(?i)\b(?:bearer|basic)\s+(?P<secret>[A-Za-z0-9+/=._~-]{6,})",
        (
            r"\b(?P<secret>"
            r"(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|sk-|AKIA|ASIA|AIza|hf_|eyJ)"
            r"[A-Za-z0-9_.=/+-]{10,})"
        ),
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?P<secret>.*?)(?:-----END|\Z)",
        # A part of an address that looks random, also in logs
        (
            r"https?://[^\s\"']{1,256}?/"
            r"(?P<secret>(?=[A-Za-z_-]{0,64}\d)(?=[\d_-]{0,64}[A-Za-z])[A-Za-z0-9_-]{20,})"
        ),
        # A text that is nothing but random letters and digits
        (
            rf"\A(?!{_UUID}\Z)(?P<secret>(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])"
            r"[A-Za-z0-9+=_-][A-Za-z0-9+/=_-]{31,})\Z"
        ),
    )
)
# In a configuration, nothing of an address is shown but its server. It is remembered with the
# server: a path such as /devices alone is in any text.
_ADDRESS = re.compile(
    r"(?i)https?://(?P<remembered>[^\s/?#\"']{1,256}(?P<secret>[/?#][^\s\"']*[^\s\"'/]))"
)
# Its texts are shown with findings, and their addresses are those of pages for everybody.
_OF_CATALOG = "catalog"
CONFIG = Path("/etc/vitald/config.toml")
_MAX_BYTES = 1024 * 1024


def _is_secret_name(name: str) -> bool:
    return _NAME.search(name) is not None


def _is_secret_option(argument: object) -> bool:
    """Whether the argument after it is a secret, as after `--password`."""
    is_option = isinstance(argument, str) and argument.startswith("-") and "=" not in argument
    return is_option and _is_secret_name(str(argument))


def _redact_match(found: re.Match[str]) -> str:
    begin, end = found.start("secret") - found.start(), found.end("secret") - found.start()
    return found[0][:begin] + REDACTED + found[0][end:]


@dataclass(slots=True)
class Redactor:
    """Remembers what it took out: `redactions` where and why, `secrets` the texts themselves."""

    redactions: list[str] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)

    def redact_tables(self, tables: Mapping[str, object]) -> dict[str, object]:
        return {
            self.redact_text(name): self._redact_value(name, value, _is_secret_name(name))
            for name, value in tables.items()
        }

    def redact_text(self, text: str) -> str:
        """The text without what looks like a secret. `secrets` does not get these: else a line of a
        log could remove evidence from the other parts.
        """
        for shape in _SHAPES:
            text = shape.sub(_redact_match, text)
        return text

    def redact_log(self, text: str) -> str:
        return "".join(
            self.redact_text(line[:_MAX_LINE]) + ("...\n" if len(line) > _MAX_LINE else "")
            for line in text.splitlines(keepends=True)
        )

    def _redact_value(self, place: str, value: object, secret: bool) -> object:
        """`place`: of the value in the configuration. `secret`: by the name of a key."""
        if isinstance(value, dict):
            return {
                self.redact_text(name): self._redact_value(
                    f"{place}.{name}", inner, secret or _is_secret_name(name)
                )
                for name, inner in value.items()
            }
        if isinstance(value, list):
            follows = [False, *map(_is_secret_option, value)]
            return [
                self._redact_value(place, item, secret or is_argument)
                for item, is_argument in zip(value, follows)
            ]
        if isinstance(value, bool) or value in ("", 0):
            return value
        if secret:
            self.secrets.add(str(value))
            self._note_redaction(place, "by its name")
            return REDACTED
        if isinstance(value, (date, datetime, time)):
            return value.isoformat()
        return self._redact_string(place, value) if isinstance(value, str) else value

    def _redact_string(self, place: str, value: str) -> str:
        is_of_catalog = place.partition(".")[0] == _OF_CATALOG
        shown = value
        for shape in _SHAPES if is_of_catalog else (*_SHAPES, _ADDRESS):
            for found in shape.finditer(value):
                self.secrets.add(found.groupdict().get("remembered", found["secret"]))
            shown = shape.sub(_redact_match, shown)
        if shown != value:
            self._note_redaction(place, "by its shape")
        return shown

    def _note_redaction(self, place: str, why: str) -> None:
        redaction = f"{self.redact_text(place)}: {why}"
        if redaction not in self.redactions:
            self.redactions.append(redaction)

    def remove_secrets(self, data: bytes) -> bytes:
        """Without the secrets that were found, as they are or as JSON writes them."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            if len(secret) >= _MIN_LENGTH or (
                len(secret) >= _MIN_MIXED_LENGTH and any(map(str.isdigit, secret))
            ):
                for form in {
                    secret,
                    json.dumps(secret)[1:-1],
                    json.dumps(secret, ensure_ascii=False)[1:-1],
                }:
                    data = data.replace(form.encode(errors="replace"), REDACTED.encode())
        return data


@dataclass(frozen=True, slots=True)
class FoundConfiguration:
    """`shown`: the redacted file, with what is wrong with it. `unreadable`: why it cannot be read;
    empty if it can.
    """

    shown: Mapping[str, object]
    config: Config = field(default_factory=Config)
    unreadable: str = ""


def read_configuration(path: Path, redactor: Redactor) -> FoundConfiguration:
    """The file at `path`; the defaults if it cannot be read. `redactor` remembers its secrets."""
    shown: dict[str, object] = {"file": str(path)}
    if path == CONFIG and not path.exists():
        return FoundConfiguration({**shown, "note": "there is no such file: the defaults hold"})
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
        tables = tomlfile.parse_toml(text, str(path))
    except OSError as error:
        why = f"{path}: {error.strerror}"
        return FoundConfiguration({**shown, "errors": [why]}, unreadable=why)
    except ValueError as error:
        why = f"{redactor.redact_text(str(error))}: nothing of it is shown"
        return FoundConfiguration({**shown, "errors": [why]}, unreadable=why)
    config, errors = Config(), list[str]()
    try:
        config = _read_valid_sections(tables)
        config = parse_config(text, tables, str(path))
    except ConfigError as error:
        errors = error.errors
    redacted = redactor.redact_tables(tables)
    return FoundConfiguration(
        {
            **shown,
            "redacted": redactor.redactions,
            "errors": [redactor.redact_text(error) for error in errors],
            "tables": redacted,
        },
        config,
    )


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
