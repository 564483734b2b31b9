"""What is data: the catalogue's entries of DCGM's errors, and the tables of outputs."""

from __future__ import annotations

import pytest

from tests.unit.builders import catalogue
from tests.unit.dcgm_made import meanings
from vitald.catalog import CatalogError, load_catalog
from vitald.diagnostics.dcgm.document import Message
from vitald.diagnostics.dcgm.tables import load_tables, parse_version
from vitald.model import Action
from vitald.model.diagnostic import Outcome, Remedy
from vitald.tomlfile import parse_toml

ENTRIES = [rule for rule in catalogue().rules.values() if rule.kind == "dcgm"]


def test_every_entry_says_how_it_is_read() -> None:
    assert len(ENTRIES) > 130
    assert [rule.code for rule in ENTRIES if rule.diagnostic is None] == []


def test_every_code_that_is_meant_elsewhere_exists() -> None:
    others = {
        other.code for rule in ENTRIES if rule.diagnostic for other in rule.diagnostic.alternatives
    }
    exits = {row.code for row in load_tables().exits.values() if row.code}
    stands_for = {
        f"dcgm/{row.stands_for}" for row in load_tables().tests if row.stands_for is not None
    }
    assert others | exits | stands_for <= set(catalogue().rules)


def test_no_two_entries_begin_with_the_same_words() -> None:
    words = [phrase for rule in ENTRIES if rule.diagnostic for phrase in rule.diagnostic.words]
    assert len(words) > 80
    assert len(words) == len(set(words))


def test_an_entry_is_found_by_its_own_words() -> None:
    for rule in ENTRIES:
        for words in rule.diagnostic.words if rule.diagnostic else ():
            text = words.replace("#", "7").replace("*", "something")
            for said in (text, text.capitalize(), f"GPU 3 GPU 3 {text}"):
                found = meanings().find_by_text(said)
                assert found is not None and found.code == rule.code, said


def test_the_tables_hold_what_is_read_from_them() -> None:
    assert {1, 2, 3, 4} == {row.level for row in load_tables().tests}
    assert all(row.means for row in load_tables().exits.values())
    assert not [
        code
        for code, row in load_tables().exits.items()
        if row.outcome is Outcome.PASS or row.remedy is Remedy.NONE
    ]
    versions = {"4.10.2": (4, 10, 2), "4.2.3-rc1": (4, 2, 3), "x": (), "": ()}
    assert {text: parse_version(text) for text in versions} == versions


def test_a_wrong_entry_is_told() -> None:
    values = {
        '{ remedy = "replce" }': "did you mean replace?",
        "{ confirm = true }": "remedy: missing",
        '{ remedy = "none", cofirm = true }': "cofirm: unknown key, did you mean confirm?",
        '{ remedy = "none", confirm = 1 }': "confirm: ",
        '{ remedy = "none", words = "x" }': "words: expected a list",
        '{ remedy = "none", words = ["X"] }': "expected lower case, found 'X'",
        '{ remedy = "none", severity = { high = "none" } }': "expected a table",
        '{ remedy = "none", severity = { 2 = "x" } }': "severity.2: must be one of",
        '{ remedy = "none", instead = [{ contains = ["x"] }] }': "instead #1: expected",
        "3": "expected a table",
    }
    for value, said in values.items():
        with pytest.raises(CatalogError) as told:
            load_catalog(overrides={"dcgm/58": parse_toml(f"diagnostic = {value}", "x")})
        (error,) = told.value.errors
        assert error.startswith("[catalog.overrides]: [dcgm.58] diagnostic"), error
        assert said in error, error


def test_an_override_counts_for_the_judge_and_for_the_reading() -> None:
    from vitald.diagnostics.dcgm.meanings import Meanings

    changed = load_catalog(
        overrides={"dcgm/52": {"action": "observe", "diagnostic": {"remedy": "monitor"}}}
    )
    assert changed.find_rule("dcgm/52").apply_to({"confirmed": True}).action is Action.OBSERVE
    assert Meanings(changed).find_meaning(Message("x", 52)).remedy is Remedy.MONITOR
    own = load_catalog(overrides={"dcgm/777": {**_OWN, "diagnostic": {"remedy": "reboot"}}})
    assert Meanings(own).find_meaning(Message("x", 777, severity=1)).remedy is Remedy.REBOOT


def test_an_engine_that_answers_again_is_no_finding_any_more() -> None:
    rule = catalogue().find_rule("dcgm/engine_down")
    assert (rule.state, rule.apply_to({}).action, rule.apply_to({"recovered": True}).action) == (
        True,
        Action.INSPECT,
        Action.NONE,
    )
    assert "systemctl start nvidia-dcgm" in rule.advice


_OWN = {
    "title": "Ours",
    "meaning": "Ours.",
    "class": "hardware",
    "action": "reboot_node",
    "clears": ["reboot"],
    "escalation": "none",
    "source": "us",
}
