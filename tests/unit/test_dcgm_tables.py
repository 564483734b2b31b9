"""What is data: the catalogue's entries of DCGM's errors, and the tables of outputs."""

from __future__ import annotations

import pytest

from tests.unit.builders import catalogue
from tests.unit.dcgm_made import meanings
from vitald.catalog import CatalogError, FaultClass, load_catalog
from vitald.diagnostics.dcgm.document import Message
from vitald.diagnostics.dcgm.known_outputs import load_tables, parse_version
from vitald.model.words import Action, Outcome, Remedy
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
    phrases = [phrase for rule in ENTRIES if rule.diagnostic for phrase in rule.diagnostic.phrases]
    assert len(phrases) > 80
    assert len(phrases) == len(set(phrases))


def test_an_entry_is_found_by_its_own_words() -> None:
    for rule in ENTRIES:
        for phrase in rule.diagnostic.phrases if rule.diagnostic else ():
            text = phrase.replace("#", "7").replace("*", "something")
            for said in (text, text.capitalize(), f"GPU 3 GPU 3 {text}"):
                found = meanings().find_by_text(said)
                assert found is not None and found.code == rule.code, said


# The texts of errors as dcgmi prints them; up to 3.2 it prints no numbers.
PRINTED = {
    9: "A corrupt InfoROM has been detected in GPU 0. Flash the InfoROM to clear this corruption.",
    28: (
        "Found CUDA performance-limiting environment variable 'CUDA_PROFILE'. Please unset this"
        " environment variable to address test failures."
    ),
    29: (
        "Persistence mode for GPU 1 is disabled. Enable persistence mode by running"
        ' "nvidia-smi -i <gpuId> -pm 1 " as root.'
    ),
    30: (
        "GPU 1 Bandwidth of GPU 1 in direction GPU to Host of 11.62 did not exceed minimum required"
        " bandwidth of 20.00."
    ),
    47: "Test was aborted early due to user signal",
    52: "GPU 1 Found 4 faulty memory elements on GPU 1 Run a field diagnostic on the GPU.",
    57: (
        "CUDA APIs have indicated that a double-bit ECC error has occured on GPU 3. Run a field"
        " diagnostic on the GPU."
    ),
    80: (
        "GPU 3 had uncorrectable memory errors and row remapping failed. Run a field diagnostic on"
        " the GPU."
    ),
    85: "GPU 5 had memory errors and row remappings are pending",
}


def test_the_words_of_an_error_lead_where_its_number_does() -> None:
    for number, text in PRINTED.items():
        found = meanings().find_by_text(text)
        meant = meanings().find_meaning(Message(text, number))
        assert found is not None, text
        assert found.code in (f"dcgm/{number}", meant.code), text


ACTIONS = {
    Remedy.NONE: Action.NONE,
    Remedy.RETRY: Action.NONE,
    Remedy.MONITOR: Action.OBSERVE,
    Remedy.FIX_CONFIG: Action.INSPECT,
    Remedy.EXCLUSIVE_RERUN: Action.OBSERVE,
    Remedy.INVESTIGATE: Action.INSPECT,
    Remedy.RESET_GPU: Action.RESET_DEVICE,
    Remedy.REBOOT: Action.REBOOT_NODE,
    Remedy.REPLACE: Action.REPLACE_NODE,
}
NUMBERED = [rule for rule in ENTRIES if rule.code.partition("/")[2].isdecimal()]


def test_the_action_of_an_error_is_that_of_its_remedy() -> None:
    """What must be confirmed requires an inspection first, and its remedy when it was found
    twice.
    """
    assert len(NUMBERED) > 130
    for rule in NUMBERED:
        assert rule.diagnostic is not None
        remedy, confirm = rule.diagnostic.remedy, rule.diagnostic.confirm
        drastic = ACTIONS[remedy].makes_unfit
        first, then = (rule.apply_to({"confirmed": one}).action for one in (False, True))
        assert first is (Action.INSPECT if confirm and drastic else ACTIONS[remedy]), rule.code
        if rule.fault_class is FaultClass.FABRIC and remedy is Remedy.REPLACE:
            assert then in (Action.RESET_DEVICE, Action.REBOOT_NODE), rule.code  # which end is it?
        elif drastic or not confirm:
            assert then is ACTIONS[remedy], rule.code
        else:
            assert then.rank >= first.rank and not then.makes_unfit, rule.code


def test_the_other_profile_goes_by_the_severity() -> None:
    """Severity 2 is a replacement there (a reboot, where hardware is not the cause) and 6 a reboot;
    nothing requires less than in the default profile.
    """
    for code in [*(rule.code for rule in NUMBERED), "dcgm/999"]:
        there = catalogue("hyperpod").find_rule(code)
        isolate = (
            Action.REPLACE_NODE if there.fault_class.may_require_replacement else Action.REBOOT_NODE
        )
        for severity in range(1, 7):
            fields = {"severity": severity, "confirmed": False}
            here = catalogue().find_rule(code).apply_to(fields).action
            least = {2: isolate, 6: Action.REBOOT_NODE}.get(severity, Action.NONE)
            action = there.apply_to(fields).action
            assert action.rank >= max(least.rank, here.rank), (code, severity)


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
        '{ remedy = "none", phrases = "x" }': "phrases: expected a list",
        '{ remedy = "none", phrases = ["X"] }': "expected lower case, found 'X'",
        '{ remedy = "none", severity = { high = "none" } }': "expected a table",
        '{ remedy = "none", severity = { 2 = "x" } }': "severity.2: must be one of",
        '{ remedy = "none", alternatives = [{ contains = ["x"] }] }': "alternatives #1: expected",
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
