"""Whether a value that somebody gives is what it must be."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import ROOT
from vitald.checking import (
    Unexpected,
    read_choice,
    read_flag,
    read_key,
    read_line,
    read_list,
    read_match,
    read_member,
    read_number,
    read_text,
    read_texts,
    read_whole,
)

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.lists(st.integers() | st.text()),
    st.dictionaries(st.text(), st.integers()),
)
NAME = re.compile(r"[a-z]{1,8}")


class Colour(Enum):
    RED = "red"
    GREEN = "green"


TAKEN: list[tuple[Callable[[object], object], object, object]] = [
    (read_flag, False, False),
    (partial(read_whole, least=1, most=9), 9, 9),
    (partial(read_whole, least=1, most=9, from_json=True), 2.0, 2),
    (partial(read_number, least=0, most=9), 9, 9.0),
    (partial(read_number, least=0, most=9), 0.5, 0.5),
    (read_text, "", ""),
    (partial(read_text, least=1), "\n", "\n"),
    (partial(read_line, least=0, most=4), "é a", "é a"),
    (partial(read_match, pattern=NAME, expected="a name"), "abc", "abc"),
    (partial(read_list, least=0, most=2), [1, "a"], [1, "a"]),
    (read_texts, ["a", ""], ["a", ""]),
    (partial(read_choice, known=("on", "off")), "off", "off"),
    (partial(read_member, enum=Colour), "green", Colour.GREEN),
]
REFUSED: list[tuple[Callable[[object], object], object, str]] = [
    (read_flag, 1, "expected true or false, found 1"),
    (partial(read_whole, least=1, most=9), 10, "expected a whole number from 1 to 9, found 10"),
    (partial(read_whole, least=0, most=9), True, "expected a whole number from 0 to 9, found True"),
    (partial(read_whole, least=0, most=9), 2.0, "expected a whole number from 0 to 9, found 2.0"),
    (
        partial(read_whole, least=0, most=9, from_json=True),
        2.5,
        "expected a whole number from 0 to 9, found 2.5",
    ),
    (partial(read_whole, least=0, most=9, expected="a digit"), "7", "expected a digit, found '7'"),
    (partial(read_number, least=0, most=9), -0.5, "expected a number from 0 to 9, found -0.5"),
    (
        partial(read_number, least=0, most=9),
        float("nan"),
        "expected a number from 0 to 9, found nan",
    ),
    (partial(read_number, least=0, most=9), False, "expected a number from 0 to 9, found False"),
    (partial(read_text, least=1), "", "expected a string, found ''"),
    (partial(read_text, expected="a name"), None, "expected a name, found None"),
    (
        partial(read_line, least=1, most=4),
        "a\nb",
        "expected one line of 1 to 4 printable characters, found 'a\\nb'",
    ),
    (partial(read_line, least=1, most=4, expected="a word"), "", "expected a word, found ''"),
    (
        partial(read_line, least=1, most=4, expected="ASCII", ascii_only=True),
        "é",
        "expected ASCII, found 'é'",
    ),
    (
        partial(read_match, pattern=NAME, expected="a name"),
        "abc\n",
        "expected a name, found 'abc\\n'",
    ),
    (partial(read_list, least=0, most=1), [1, 2], "expected a list of at most 1, found [1, 2]"),
    (partial(read_list, least=1, most=2), [], "expected a list of 1 to 2, found []"),
    (read_texts, ["a", 1], "expected a list of strings, found ['a', 1]"),
    (partial(read_choice, known=("on", "off")), 1, "must be one of on, off, not 1"),
    (
        partial(read_member, enum=Colour),
        "geen",
        "must be one of red, green, not 'geen', did you mean green?",
    ),
]


def test_what_is_as_it_must_be_is_taken() -> None:
    taken = [read(value) for read, value, _ in TAKEN]
    assert [(type(made), made) for made in taken] == [(type(made), made) for *_, made in TAKEN]


def test_what_is_not_is_refused_in_words() -> None:
    for read, value, words in REFUSED:
        with pytest.raises(ValueError) as refused:
            read(value)
        assert str(refused.value) == words


@given(ANYTHING)
def test_numbers_are_never_flags_and_always_within_their_limits(value: object) -> None:
    for read in (
        partial(read_whole, least=-3, most=300),
        partial(read_whole, least=-3, most=300, from_json=True),
        partial(read_number, least=-3, most=300),
    ):
        try:
            made = read(value)
        except Unexpected as error:
            assert str(error) == f"expected {error.expected}, found {value!r}"
        else:
            assert -3 <= made <= 300
            assert made == value
            assert not isinstance(value, bool)


@given(ANYTHING)
def test_a_line_is_one_line(value: object) -> None:
    try:
        line = read_line(value, 1, 6, ascii_only=True)
    except Unexpected:
        return
    assert line == value
    assert line.isascii()
    assert line.isprintable()
    assert 1 <= len(line) <= 6


def test_a_mistake_can_begin_with_its_key() -> None:
    assert read_key("busy", read_flag, True) is True
    with pytest.raises(ValueError, match=r"^busy: expected true or false, found 'x'$"):
        read_key("busy", read_flag, "x")


def test_text_times_and_checks_load_next_to_nothing() -> None:
    """They stand in schedulers' prologs: every import is paid for at every job."""
    code = (
        "import sys, vitald.text, vitald.checking, vitald.backoff\n"
        "print(*(name for name in ('tomli', 'tomllib', 'difflib', 'datetime', 'asyncio')"
        " if name in sys.modules))"
    )
    command = [sys.executable, "-S", "-c", code]
    environment = {"PYTHONPATH": str(ROOT / "agent")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
