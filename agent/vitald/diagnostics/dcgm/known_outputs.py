"""
The tables of outputs.toml: the tests of each level, exit codes, known texts.

They are read once, at the first use. They are part of the program: an error in them is a defect
that a test finds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

from vitald import tomlfile
from vitald.model.words import Outcome, Remedy

FILE = Path(__file__).with_name("outputs.toml")
Version = tuple[int, ...]  # (4, 2, 3); empty if unknown

_FIRST_SIGNAL, _LAST_SIGNAL = 129, 188  # 128 + the signal; DCGM's own codes are higher


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRow:
    """A test of DCGM; outputs.toml explains the fields."""

    __test__ = False  # not a test case of pytest

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
        """Whether a run at this level by this version must have the test."""
        return (
            self.level <= level
            and version >= self.since
            and (not self.before or version < self.before)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitMeaning:
    """The meaning of an exit code or a text."""

    means: str
    outcome: Outcome = Outcome.ERROR
    remedy: Remedy = Remedy.INVESTIGATE
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownText:
    """A text that is printed instead of results. `contains` is in lower case."""

    row: ExitMeaning
    contains: tuple[str, ...] = ()
    words: re.Pattern[str] | None = None

    def matches_text(self, text: str) -> bool:
        """`text` is in lower case."""
        return any(part in text for part in self.contains) or (
            self.words is not None and self.words.search(text) is not None
        )


@dataclass(frozen=True, slots=True)
class Tables:
    """All of outputs.toml."""

    tests: tuple[TestRow, ...]
    exits: Mapping[int, ExitMeaning]
    texts: tuple[KnownText, ...]

    def find_test(self, name: str) -> TestRow | None:
        """The test of that name, in upper or lower case; None if it is unknown."""
        folded = name.casefold()
        rows = (row for row in self.tests if folded in map(str.casefold, row.names))
        return next(rows, None)

    def find_exit(self, code: int) -> ExitMeaning | None:
        """The meaning of a code other than 0; None if it is unknown. Below 0: a signal."""
        if code < 0 or (_FIRST_SIGNAL <= code <= _LAST_SIGNAL and code not in self.exits):
            signal = -code if code < 0 else code - 128
            return ExitMeaning(means=f"dcgmi was ended by signal {signal}", remedy=Remedy.RETRY)
        return self.exits.get(code)

    def find_text(self, text: str) -> ExitMeaning | None:
        """The meaning of the first known text that this one contains; None if there is none."""
        lower = text.lower()
        return next((known.row for known in self.texts if known.matches_text(lower)), None)


def parse_version(text: str) -> Version:
    """`4.2.3` -> (4, 2, 3); empty if the text is no version."""
    found = re.match(r"(\d{1,4})(?:\.(\d{1,4}))?(?:\.(\d{1,4}))?", text)
    return tuple(int(part) for part in found.groups() if part is not None) if found else ()


@cache
def load_tables() -> Tables:
    """Reads outputs.toml once."""
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
