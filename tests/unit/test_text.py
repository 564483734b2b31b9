"""Text for people, and times as text."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitald.text import (
    count_more,
    count_noun,
    escape_unprintable,
    join_first,
    join_ranges,
    replace_unprintable,
)
from vitald.timestamps import format_compact, format_rfc3339, parse_rfc3339


@given(st.text())
def test_what_is_replaced_is_printable_and_as_long(text: str) -> None:
    replaced = replace_unprintable(text)
    assert replaced.isprintable()
    assert [new == old for new, old in zip(replaced, text)] == [
        old.isprintable() or old == "?" for old in text
    ]
    assert len(replaced) == len(text)


def test_each_unprintable_character_gets_its_stand_in() -> None:
    assert replace_unprintable("a\x1b[1mb\n\x85") == "a?[1mb??"
    assert replace_unprintable("a\tb", " ") == "a b"
    assert escape_unprintable("a\x1b\n\u2028é") == "a\\x1b\\x0a\\x2028é"
    assert escape_unprintable("a\tb\r\n", keep="\t\n") == "a\tb\\x0d\n"


@given(st.text(), st.sampled_from(["", "\n", "\t\n"]))
def test_what_is_escaped_is_printable_but_for_what_is_kept(text: str, keep: str) -> None:
    left = {char for char in escape_unprintable(text, keep) if not char.isprintable()}
    assert left == {char for char in text if char in keep}


def test_a_list_is_cut_and_says_so() -> None:
    words = ["", "a", "a, b", "a, b and 1 more", "a, b and 2 more"]
    assert [join_first("abcd"[:length], 2) for length in range(5)] == words


def test_a_cut_list_can_be_of_sentences() -> None:
    sentences = ["one", "two", "three", "four"]
    assert join_first(sentences, 2, "; ", "; and ") == "one; two; and 2 more"
    assert join_first(sentences, 3, what="more lines") == "one, two, three and 1 more lines"
    assert count_more(3) == " and 3 more"
    assert count_more(0) == count_more(-2) == ""


@given(st.lists(st.integers(0, 40)))
def test_ranges_name_each_number_once_and_no_other(numbers: list[int]) -> None:
    said = join_ranges(numbers)
    named: list[int] = []
    for word in filter(None, said.split(", ")):
        first, _, last = word.partition("-")
        named += range(int(first), int(last or first) + 1)
    assert named == sorted(set(numbers))
    missing = {number + 1 for number in numbers} - set(numbers)
    assert len(said.split(", ")) == max(1, len(missing)), "what is adjacent is one range"


def test_a_noun_has_its_plural() -> None:
    assert [count_noun(count, "line") for count in (0, 1, 2)] == ["0 lines", "1 line", "2 lines"]


@given(st.integers(0, 4_000_000_000_000))
def test_a_time_that_was_written_is_read_again(milliseconds: int) -> None:
    text = format_rfc3339(milliseconds / 1000)
    assert len(text) == len("2026-11-18T13:46:40.250Z")
    assert text.endswith("Z")
    # The last digit is cut and not rounded: 0.001 as a float may be a little less.
    assert abs(parse_rfc3339(text).timestamp() - milliseconds / 1000) <= 0.0011


def test_times_are_written_in_utc() -> None:
    assert format_rfc3339(1_763_473_600.25) == "2025-11-18T13:46:40.250Z"
    assert format_rfc3339(1_763_473_600.75, "seconds") == "2025-11-18T13:46:40Z"
    assert format_compact(1_763_473_600.75) == "20251118T134640Z"


def test_a_time_is_read_as_it_says() -> None:
    noon = datetime(2026, 11, 18, 12, tzinfo=timezone.utc)
    for text in ("2026-11-18T12:00:00Z", "2026-11-18T12:00:00z", "2026-11-18T13:00:00+01:00"):
        assert parse_rfc3339(text) == noon
    assert parse_rfc3339("2026-11-18T12:00:00").tzinfo is None


def test_what_is_no_time_is_refused() -> None:
    for text in ("", "Z", "yesterday", "2026-13-18T12:00:00Z", "Z2026-11-18"):
        with pytest.raises(ValueError):
            parse_rfc3339(text)
