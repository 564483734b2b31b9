"""The words for codes: stable, closed, and each of one code."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.unit.builders import catalogue
from vitald.catalog import PROFILES
from vitald.model.reasons import UNLISTED, FixedReason, find_reason, make_reason

CODES = sorted({code for profile in PROFILES for code in catalogue(profile).rules})
KINDS = sorted({code.partition("/")[0] for code in CODES})
# Kubernetes, metav1.Condition: a reason is CamelCase, at most 1,024 bytes; an Event's at most 128.
GRAMMAR = re.compile(r"[A-Z][A-Za-z0-9]{0,127}")


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("xid/79", "Xid79"),
        ("sxid/20034", "Sxid20034"),
        ("nvml/gpu_lost", "NvmlGpuLost"),
        ("vitald/silence", "VitaldSilence"),
    ],
)
def test_a_word(code: str, word: str) -> None:
    assert make_reason(code) == word


def test_no_two_codes_share_a_word() -> None:
    words = Counter(find_reason(code, CODES, ()) for code in CODES)
    words.update(find_reason(f"{kind}/", (), ()) for kind in KINDS)
    words.update(reason.value for reason in FixedReason)
    assert [word for word, count in words.items() if count > 1] == []
    assert len(words) > 300


@pytest.mark.parametrize("profile", PROFILES)
def test_every_word_is_one_that_policies_can_match(profile: str) -> None:
    listed = catalogue(profile).rules
    words = [find_reason(code, listed, ()) for code in listed]
    assert words and [word for word in words if not GRAMMAR.fullmatch(word)] == []


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("xid/79", "Xid79"),  # a listed code whose action the site changed keeps its word
        ("xid/9999", "CustomRule"),
        ("check/scratch", "CustomRule"),
        ("xid/88888", f"Xid{UNLISTED}"),
        ("dcgm/no such thing; drop table", f"Dcgm{UNLISTED}"),
    ],
)
def test_what_the_catalogue_does_not_list(code: str, word: str) -> None:
    """Nothing of such a code gets into the word."""
    listed = {"xid/79", "xid/9999"}
    assert find_reason(code, listed, {"xid/9999"}) == word
