"""The catalogue and the reader against the reference's table of errors and its sample outputs;
skipped where these are not there.
"""

from __future__ import annotations

import csv
import json
import re
from functools import cache
from typing import Any

from tests.unit.builders import ROOT, catalogue, reference
from tests.unit.dcgm_made import meanings
from vitald.catalog import FaultClass
from vitald.cli.diag.read import serialize_report
from vitald.diagnostics.dcgm import document, output, reading
from vitald.model import Action
from vitald.model.diagnostic import Outcome, Remedy

SAMPLES = ROOT.parent / "shared" / "reference" / "dcgm-samples"
REMEDIES = {
    "NONE": Remedy.NONE,
    "RETRY": Remedy.RETRY,
    "MONITOR": Remedy.MONITOR,
    "CONFIG": Remedy.FIX_CONFIG,
    "RERUN_EXCLUSIVE": Remedy.EXCLUSIVE_RERUN,
    "TRIAGE": Remedy.INVESTIGATE,
    "RESET_GPU": Remedy.RESET_GPU,
    "REBOOT_NODE": Remedy.REBOOT,
    "REPLACE": Remedy.REPLACE,
}
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


@cache
def rows() -> list[dict[str, str]]:
    with reference("dcgm-errors.csv").open(newline="", encoding="utf-8") as table:
        return list(csv.DictReader(table))


@cache
def cases() -> list[dict[str, Any]]:
    listed = json.loads(reference("dcgm-samples/cases.json").read_text(encoding="utf-8"))
    return [one for one in listed if "outcome" in one["expected"]]


def test_samples_are_read_as_expected() -> None:
    assert len(cases()) > 50
    for case in cases():
        report = reading.read_report(
            (SAMPLES / case["stdout"]).read_bytes(),
            meanings(),
            exit_code=case["exit_code"],
            level=case["requested_level"],
            stderr=(SAMPLES / case["stderr"]).read_bytes() if case["stderr"] else b"",
        )
        expected = dict(case["expected"])
        actions = {expected.pop("action"), *expected.pop("also_acceptable_actions", [])}
        said = serialize_report(report)
        assert {key: said[key] for key in expected} == expected, case["case"]
        assert said["action"] in actions, case["case"]
        assert bool(report.reason) is (report.outcome is not Outcome.PASS), case["case"]


def test_every_error_is_in_the_catalogue_with_the_remedy_that_is_suggested() -> None:
    assert len(rows()) > 130
    for row in rows():
        rule = catalogue().rules[f"dcgm/{row['id']}"]
        assert rule.diagnostic is not None, rule.code
        # The table reads a narrow link as a setting; its own category, and the review of November
        # 2026, as hardware.
        remedy = REMEDIES[row["suggested"]] if row["id"] != "46" else Remedy.INVESTIGATE
        confirm = row["confirm_first"] == "yes"
        found = (rule.mnemonic, rule.diagnostic.remedy, rule.diagnostic.confirm)
        assert found == (row["name"], remedy, confirm), rule.code
        assert (remedy is Remedy.REPLACE, remedy in (Remedy.RESET_GPU, Remedy.REBOOT)) == (
            row["replacement"] == "yes",
            row["reboot"] == "yes",
        )
        # What must be confirmed asks for a look first, and for its remedy when it was found twice.
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
    nothing asks for less than in the default profile.
    """
    for row in [*rows(), {"id": "999", "severity_code": "2"}, {"id": "999", "severity_code": "6"}]:
        fields = {"severity": int(row["severity_code"]), "confirmed": False}
        rules = [
            catalogue(profile).find_rule(f"dcgm/{row['id']}") for profile in ("hyperpod", "nvidia")
        ]
        there, here = (rule.apply_to(fields).action for rule in rules)
        isolate = (
            Action.REPLACE_NODE
            if rules[0].fault_class.may_require_replacement
            else Action.REBOOT_NODE
        )
        least = {2: isolate, 6: Action.REBOOT_NODE}.get(fields["severity"], Action.NONE)
        assert there.rank >= max(least.rank, here.rank), row["id"]


def test_the_words_of_an_error_lead_where_its_number_does() -> None:
    """For the versions that print no numbers, tried on those that do."""
    texts = {
        (message.error_id, message.text)
        for case in cases()
        for message in _messages(case)
        if message.error_id is not None
    }
    assert len({number for number, _ in texts}) >= 7
    for number, text in sorted(texts):
        found = meanings().find_by_text(_SUB_CHECK.sub("", text))
        # No later ones were ever printed without a number.
        if found is not None and number <= 101:
            meant = meanings().find_meaning(document.Message(text, number)).code
            assert found.code in (f"dcgm/{number}", meant), text
        assert found is not None or number > 85 or "detached" in text, text


_SUB_CHECK = re.compile(r"^[A-Z][A-Za-z/ ]{2,30}: ")


def _messages(case: dict[str, Any]) -> list[document.Message]:
    found = output.read_output((SAMPLES / case["stdout"]).read_bytes())
    tests = [test for one in found.documents for test in one.tests]
    return [
        message
        for test in tests
        for message in (*test.messages, *(m for result in test.results for m in result.messages))
    ]
