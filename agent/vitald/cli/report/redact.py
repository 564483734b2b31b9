"""
What `vitald report` leaves out of a configuration and of texts: whatever may be a secret, by its
name and by its shape.

Most secrets of the configuration are in files of their own. But the path of a webhook's address is
one, the sites' own programs have arguments, a file may have keys that are not ours, and an address
may have a password in it. Too much is taken out rather than too little; comments are left out,
since they can hold anything.

Owns     what looks like a secret, and the redacted configuration: the tables that vitald parsed,
         written anew, as far as the file can be parsed.
Refuses  redacting a secret in one place only: once found, it is removed from every other part of
         the report.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from pathlib import Path
from typing import NamedTuple

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
    )
)
# In a configuration, nothing of an address is shown but its server.
_ADDRESS = re.compile(r"(?i)https?://(?P<server>[^\s/?#\"']{1,256})(?P<secret>[/?#][^\s\"']+)")
# Its texts are shown with findings, and their addresses are those of pages for everybody.
_OF_CATALOG = "catalog"
_OPAQUE = re.compile(r"(?=[^\d]*\d)(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9+=_-][A-Za-z0-9+/=_-]{31,}")
_UUID = re.compile(r"(?:[A-Z]+-)?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_OPTION = re.compile(rf"--?[a-z-]*(?:{_WORDS})[a-z-]*", re.IGNORECASE)
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN = re.compile(
    r"(\s*[A-Za-z0-9_.\"-]+\s*)=\s*(true|false|[0-9.]+|\"[^\"\\#]*\"|'[^'#]*')\s*(?:#.*)?"
)
_QUOTES = "\"'"
_HEADER = re.compile(r"\s*(\[\[?[A-Za-z0-9_.\"/ -]+\]\]?)\s*(?:#.*)?")
CONFIG = Path("/etc/vitald/config.toml")
_MAX_BYTES = 1024 * 1024


def _is_secret_name(name: str) -> bool:
    return _NAME.search(name) is not None


def _is_secret_option(argument: object) -> bool:
    return isinstance(argument, str) and _OPTION.fullmatch(argument) is not None


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
            # The value after an option such as --password
            follows = [False, *map(_is_secret_option, value)]
            return [
                self._redact_value(place, item, secret or is_argument)
                for item, is_argument in zip(value, follows)
            ]
        if isinstance(value, bool) or value in ("", 0):
            return value
        if secret:
            return self._take_out(place, str(value), "by its name")
        return self._redact_string(place, value) if isinstance(value, str) else value

    def _redact_string(self, place: str, value: str) -> str:
        if _OPAQUE.fullmatch(value) and not _UUID.fullmatch(value):
            return self._take_out(place, value, "by its shape")
        for shape in _SHAPES:
            self.secrets.update(found["secret"] for found in shape.finditer(value))
        shown = self.redact_text(value)
        if place.partition(".")[0] != _OF_CATALOG:
            self.remember_addresses(value)
            shown = _ADDRESS.sub(_redact_match, shown)
        if shown != value:
            self._note_redaction(place, "by its shape")
        return shown

    def remember_addresses(self, text: str) -> None:
        """With the server: a path such as /devices alone is in any text."""
        self.secrets.update(
            (found["server"] + found["secret"]).rstrip("/") for found in _ADDRESS.finditer(text)
        )

    def _take_out(self, place: str, value: str, why: str) -> str:
        self.secrets.add(value)
        self._note_redaction(place, why)
        return REDACTED

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


def redact_configuration(text: str, redactor: Redactor) -> tuple[str, str]:
    """A configuration file as it may be shown, and what is wrong with it as TOML."""
    try:
        tables = tomlfile.parse_toml(text, "config.toml")
    except ValueError:
        return (
            "\n".join(_redact_lines(text, redactor)) + "\n",
            "it is not valid TOML: only what is plain in it is shown",
        )
    return "\n".join(_format_tables(redactor.redact_tables(tables))).lstrip("\n") + "\n", ""


def _redact_lines(text: str, redactor: Redactor) -> Iterator[str]:
    """The lines of a file that is not valid TOML: table headers, and keys with plain values. The
    table of any other line is unknown, so it is not shown.
    """
    table = ""
    for line in text.splitlines():
        header, found = _HEADER.fullmatch(line), _PLAIN.fullmatch(line)
        if header is not None:
            table = header[1].strip("[] ")
            yield redactor.redact_text(header[1])
        elif found is not None:
            name, value = found[1].strip(), found[2]
            (shown,) = redactor.redact_tables(
                {f"{table}.{name}" if table else name: value.strip("\"'")}
            ).values()
            if value[0] in _QUOTES or shown == REDACTED:
                shown = json.dumps(shown)
            yield f"{redactor.redact_text(name)} = {shown}"
        elif line.strip() and not line.lstrip().startswith("#"):
            redactor.remember_addresses(line)
            yield "# [a line that is not shown]"


def _format_tables(tables: Mapping[str, object], place: str = "") -> Iterator[str]:
    """As TOML: the keys of a table first, then the tables in it."""
    for name, value in tables.items():
        if not isinstance(value, dict):
            yield f"{_format_key(name)} = {_format_value(value)}"
    for name, value in tables.items():
        if isinstance(value, dict):
            inner = f"{place}.{_format_key(name)}" if place else _format_key(name)
            yield f"\n[{inner}]"
            yield from _format_tables(value, inner)


def _format_key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _format_value(name)


def _format_value(value: object) -> str:
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(
                f"{_format_key(name)} = {_format_value(inner)}" for name, inner in value.items()
            )
            + "}"
        )
    if isinstance(value, list):
        return f"[{', '.join(map(_format_value, value))}]"
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else str(value)


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
