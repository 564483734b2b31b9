"""
The tables of outputs.toml: the tests of each level, exit codes, known texts.

Owns reading them once, when they are first needed. They are part of the program: a mistake in them
is a defect, found by a test.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

from vitald import tomlfile
from vitald.model.diagnostic import Outcome, Remedy

FILE = Path(__file__).with_name("outputs.toml")
Version = tuple[int, ...]  # (4, 2, 3); empty where none is known

_FIRST_SIGNAL, _LAST_SIGNAL = 129, 188  # 128 and a signal's number; DCGM's own codes come above


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRow:
    """A test that DCGM knows."""

    __test__ = False  # no test case of pytest's

    name: str
    level: int
    also: tuple[str, ...] = ()
    since: Version = ()
    before: Version = ()
    optional: bool = False
    gpus: int = 1
    not_for: tuple[str, ...] = ()
    stands_for: int | None = None
    one_status: bool = False
    busy_from: Version = ()

    @property
    def names(self) -> tuple[str, ...]:
        return self.name, *self.also

    def is_due(self, level: int, version: Version) -> bool:
        """Whether a run at this level by this version has to have it."""
        return (
            self.level <= level
            and version >= self.since
            and (not self.before or version < self.before)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitMeaning:
    """What an exit code or a text says."""

    means: str
    outcome: Outcome = Outcome.ERROR
    remedy: Remedy = Remedy.INVESTIGATE
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownText:
    row: ExitMeaning
    contains: tuple[str, ...] = ()
    words: re.Pattern[str] | None = None

    def matches_text(self, text: str) -> bool:
        return any(one in text for one in self.contains) or (
            self.words is not None and self.words.search(text) is not None
        )


@dataclass(frozen=True, slots=True)
class Tables:
    tests: tuple[TestRow, ...]
    exits: Mapping[int, ExitMeaning]
    texts: tuple[KnownText, ...]

    def find_test(self, name: str) -> TestRow | None:
        folded = name.casefold()
        return next(
            (row for row in self.tests if folded in (one.casefold() for one in row.names)), None
        )

    def find_exit(self, code: int) -> ExitMeaning | None:
        """Of a code other than 0; None where it is not known. Below 0: a signal."""
        if code < 0 or (_FIRST_SIGNAL <= code <= _LAST_SIGNAL and code not in self.exits):
            signal = -code if code < 0 else code - 128
            return ExitMeaning(means=f"dcgmi was ended by signal {signal}", remedy=Remedy.RETRY)
        return self.exits.get(code)

    def find_text(self, text: str) -> ExitMeaning | None:
        lower = text.lower()
        return next((one.row for one in self.texts if one.matches_text(lower)), None)


def parse_version(text: str) -> Version:
    """`4.2.3` -> (4, 2, 3); empty for what is none."""
    found = re.match(r"(\d{1,4})(?:\.(\d{1,4}))?(?:\.(\d{1,4}))?", text)
    return tuple(int(part) for part in found.groups() if part is not None) if found else ()


@cache
def load_tables() -> Tables:
    _, value = tomlfile.read_toml(FILE)
    exits = {
        int(code): _read_row(row)
        for code, row in cast("dict[str, tomlfile.Table]", value["exit"]).items()
    }
    return Tables(
        tests=tuple(map(_read_test, cast("list[tomlfile.Table]", value["test"]))),
        exits=exits,
        texts=tuple(
            _read_text(text, exits) for text in cast("list[tomlfile.Table]", value["text"])
        ),
    )


def _read_test(row: tomlfile.Table) -> TestRow:
    return TestRow(
        name=str(row["name"]),
        level=int(str(row["level"])),
        also=_read_texts(row, "also"),
        since=parse_version(str(row.get("from", ""))),
        before=parse_version(str(row.get("before", ""))),
        optional=row.get("optional") is True,
        gpus=int(str(row.get("gpus", 1))),
        not_for=_read_texts(row, "not_for"),
        stands_for=int(str(row["stands_for"])) if "stands_for" in row else None,
        one_status=row.get("one_status") is True,
        busy_from=parse_version(str(row.get("busy_from", ""))),
    )


def _read_row(row: tomlfile.Table) -> ExitMeaning:
    return ExitMeaning(
        means=str(row["means"]),
        outcome=Outcome(row.get("outcome", "error")),
        remedy=Remedy(row["remedy"]),
        code=str(row.get("code", "")),
    )


def _read_text(text: tomlfile.Table, exits: Mapping[int, ExitMeaning]) -> KnownText:
    words = _read_texts(text, "words")
    return KnownText(
        row=exits[int(str(text["exit"]))] if "exit" in text else _read_row(text),
        contains=_read_texts(text, "contains"),
        words=re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b") if words else None,
    )


def _read_texts(row: tomlfile.Table, key: str) -> tuple[str, ...]:
    return tuple(map(str, cast("list[object]", row.get(key, []))))
