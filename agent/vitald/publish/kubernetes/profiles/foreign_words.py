"""
Reads the tables of foreign words, once. A mistake in one is a mistake of the package: it raises
ValueError that names the file and the place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from vitald.checking import Unexpected, read_flag, read_member, read_text
from vitald.model.words import ComponentKind, Repair
from vitald.publish.kubernetes.desired import ConditionStatus
from vitald.publish.summary import FindingSummary
from vitald.tomlfile import Table, read_toml

_FOLDER = Path(__file__).parent
_NOT_IN_A_WORD = re.compile(r"[^A-Za-z0-9_]")
_KEYS = frozenset({"type", "word", "codes", "components", "repair"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignWord:
    """The condition type, or the fault type, and the word for a fault. `type`: "" for none."""

    type: str
    word: str
    codes: tuple[str, ...]
    components: tuple[ComponentKind, ...]
    repair: Repair | None = None  # only where this one is due

    def spell(self, finding: FindingSummary) -> str:
        """The word for a finding: letters, digits and underscores."""
        number = finding.code.partition("/")[2]
        word = self.word.format(number=number, reason=finding.reason)
        return _NOT_IN_A_WORD.sub("", word)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignCondition:
    """A condition type of another agent. `well`: its reason while no repair is due, by a kind of
    component that the node has.
    """

    type: str
    problem: ConditionStatus
    well: Mapping[str, str]
    needs_accelerator: bool = False

    @property
    def well_status(self) -> ConditionStatus:
        is_problem_true = self.problem is ConditionStatus.TRUE
        return ConditionStatus.FALSE if is_problem_true else ConditionStatus.TRUE

    def find_well_word(self, accelerators: Iterable[str]) -> str:
        """Of the first accelerator that it names, else the first."""
        named = [self.well[kind] for kind in accelerators if kind in self.well]
        return (named or list(self.well.values()))[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignWords:
    """One table."""

    name: str
    conditions: tuple[ForeignCondition, ...] = ()
    refused_labels: Mapping[str, str] = field(default_factory=dict)
    by_key: Mapping[str, tuple[ForeignWord, ...]] = field(default_factory=dict)
    """Code, kind of codes (`xid/*`) or kind of component (`gpu`): the words for it."""

    def find_word(
        self, finding: FindingSummary, repair: Repair | None = None
    ) -> ForeignWord | None:
        """The word for a finding: of its code, else of its kind of code, else of its component."""
        kind = finding.component.partition("/")[0]
        for key in (finding.code, f"{finding.code.partition('/')[0]}/*", kind):
            for word in self.by_key.get(key, ()):
                if word.repair in (None, repair):
                    return word
        return None


@cache
def read_words(name: str) -> ForeignWords:
    """The table of the profile `name`. Raises ValueError."""
    path = _FOLDER / f"{name}.toml"
    document = read_toml(path)[1]
    try:
        conditions = _read_tables(document.get("conditions", {}), "conditions")
        entries = document.get("word", [])
        if not isinstance(entries, list):
            raise Unexpected("a list of tables", entries)
        words = [_read_word(entry, f"word {number}") for number, entry in enumerate(entries, 1)]
        return ForeignWords(
            name=name,
            conditions=tuple(_read_condition(type_, keys) for type_, keys in conditions.items()),
            refused_labels=_read_texts(document.get("refused_labels", {}), "refused_labels"),
            by_key=_index_words(words),
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _index_words(words: Iterable[ForeignWord]) -> dict[str, tuple[ForeignWord, ...]]:
    found: dict[str, tuple[ForeignWord, ...]] = {}
    for word in words:
        for key in (*word.codes, *(kind.value for kind in word.components)):
            if any(word.repair is other.repair for other in found.get(key, ())):
                raise ValueError(f"{key}: two words for it")
            found[key] = (*found.get(key, ()), word)
    return found


def _read_word(entry: object, place: str) -> ForeignWord:
    keys = _read_table(entry, place)
    try:
        if unknown := keys.keys() - _KEYS:
            raise ValueError(f"unknown key {min(unknown)}")
        repair = keys.get("repair")
        return ForeignWord(
            type=read_text(keys.get("type", "")),
            word=read_text(keys.get("word"), 1),
            codes=_read_list(keys.get("codes", [])),
            components=tuple(
                read_member(kind, ComponentKind) for kind in _read_list(keys.get("components", []))
            ),
            repair=None if repair is None else read_member(repair, Repair),
        )
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _read_condition(type_: str, keys: Table) -> ForeignCondition:
    try:
        return ForeignCondition(
            type=type_,
            problem=read_member(keys.get("problem"), ConditionStatus),
            well=_read_texts(keys.get("well"), "well"),
            needs_accelerator=read_flag(keys.get("accelerators", False)),
        )
    except ValueError as error:
        raise ValueError(f"conditions.{type_}: {error}") from None


def _read_table(value: object, place: str) -> Table:
    if not isinstance(value, dict):
        raise ValueError(f"{place}: {Unexpected('a table', value)}")
    return value


def _read_tables(value: object, place: str) -> dict[str, Table]:
    table = _read_table(value, place)
    return {name: _read_table(keys, f"{place}.{name}") for name, keys in table.items()}


def _read_texts(value: object, place: str) -> dict[str, str]:
    table = _read_table(value, place)
    return {name: read_text(text, 1) for name, text in table.items()}


def _read_list(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise Unexpected("a list of strings", value)
    return tuple(read_text(entry, 1) for entry in value)
