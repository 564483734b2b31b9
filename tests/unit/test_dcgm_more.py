"""Outputs of dcgmi diag that somebody else thought of: exit codes against documents, damage, runs
by name, hostile sizes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.dcgm_made import (
    a_test,
    an_old_test,
    level2,
    new,
    old,
    passing,
    read,
    refused,
    warning,
)
from vitald.cli.diag import read as diag_read
from vitald.model.words import Outcome, Remedy

PASSING, LAST_FAILS = new(), new(a_test("software", {0: "Pass", 1: "Fail"}, {1: [warning(80)]}))
FAIL, ERROR, PASS, INCONCLUSIVE = Outcome.FAIL, Outcome.ERROR, Outcome.PASS, Outcome.INCONCLUSIVE
TWICE = (
    ('"status": "Pass"', '"status": "Fail", "status": "Pass"'),
    (
        '"DCGM Diagnostic": ',
        f'"DCGM Diagnostic": {json.dumps(LAST_FAILS["DCGM Diagnostic"])}, "DCGM Diagnostic": ',
    ),
    ('"results": [', '"results": [{"status": "Fail"}], "results": ['),
)


def test_a_key_that_stands_twice_hides_nothing() -> None:
    text = json.dumps(PASSING)
    for once, twice in TWICE:
        assert once in text
        report = read(text.replace(once, twice, 1), 0, 1)
        assert (report.outcome, "stands twice" in report.reason) == (ERROR, True), once


def test_no_other_exit_code_than_0_lets_it_pass_nor_takes_a_failure_back() -> None:
    codes = [*range(1, 256), *range(-64, 0)]
    assert [code for code in codes if read(PASSING, code, 1).outcome in (PASS, INCONCLUSIVE)] == []
    failing = {code: read(LAST_FAILS, code, 1) for code in (*codes, 0, None)}
    assert {
        code: report
        for code, report in failing.items()
        if (report.outcome, report.remedy, report.culprits) != (FAIL, Remedy.REPLACE, (1,))
    } == {}


def test_a_run_by_name_is_held_to_the_tests_that_it_has() -> None:
    pcie = an_old_test("PCIe", {0: "Pass", 1: "Pass"})
    named = old(pcie)
    named["DCGM GPU Diagnostic"]["test_categories"].pop(0)
    assert read(named, 0, None).outcome is PASS
    assert (
        read({**named, "version": "3.3.5"}, 0, None).outcome is INCONCLUSIVE
    )  # which always had the software too
    assert read(named, 0, 2).outcome is INCONCLUSIVE
    assert read(new(*passing("pcie")), 0, None).outcome is PASS
    without = new(*passing("pcie"))
    without["DCGM Diagnostic"]["test_categories"][0]["tests"].pop(0)
    assert read(without, 0, None).outcome is INCONCLUSIVE  # 4.x begins every run with the software


def test_the_notes_say_how_far_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from vitald.cli import main

    path = tmp_path / "out"
    path.write_text(json.dumps(new(*passing("pcie"))))
    assert main(["diag", "read", str(path), "--exit-code", "0"]) == 0
    assert capsys.readouterr().out.startswith("PASS  dcgmi diag, some tests only, DCGM 4.5.2")
    main(["diag", "read", str(path), "--json"])
    assert len(json.loads(capsys.readouterr().out)["notes"]) == 2
    main(["diag", "read", str(path), "--json", "--exit-code", "0", "--level", "1"])
    assert "notes" not in json.loads(capsys.readouterr().out)


def test_a_cpu_that_fails_is_no_gpu() -> None:
    cpu = {
        "entity_group": "CPU",
        "entity_group_id": 7,
        "entity_id": 0,
        "status": "Fail",
        "warnings": [warning(94, severity=4)],
    }
    test = a_test("software", {0: "Pass", 1: "Pass"}, status="Fail")
    test["results"].append(cpu)
    report = read(new(test), 0, 1)  # CPU findings never count in the exit code
    assert (report.outcome, report.culprits, report.reason[:6]) == (FAIL, (), "CPU 0:")
    assert report.faults[0].device == "cpu/0"
    assert (report.tests[0].cpus, report.tests[0].gpus) == (
        {"0": "Fail"},
        {"0": "Pass", "1": "Pass"},
    )


def test_what_says_that_it_was_not_tested_blames_nobody() -> None:
    skipped = a_test("memory", {0: "Skip", 1: "Skip"}, {0: [warning(48, severity=5)]})
    report = read(new(skipped, *passing("pcie")))
    assert (report.outcome, report.culprits, report.reason.count("switched off")) == (
        INCONCLUSIVE,
        (),
        1,
    )


def test_what_need_not_be_tested_does_not_explain_a_failing_exit_code() -> None:
    output = new(a_test("memory", {0: "Skip", 1: "Skip"}, {0: [warning(48, severity=5)]}))
    assert (read(output, 0, 1).outcome, read(output, 226, 1).outcome) == (PASS, ERROR)


def test_names_are_no_templates() -> None:
    for name in ("{", "a}b", "{0}", "{status}"):
        report = read(new(a_test(name, {0: "Fail", 1: "Pass"})), 226, 1)
        assert (report.outcome, report.culprits, name in report.reason) == (FAIL, (0,), True)


def test_more_tests_than_any_version_has_are_no_pass() -> None:
    padded = new(*passing(*(f"test {number}" for number in range(300))))
    assert read(padded, 0, 1).outcome is ERROR


def test_what_is_no_whole_document_is_no_pass() -> None:
    rounds = json.dumps({"iterations": [PASSING, LAST_FAILS]}, indent=0)
    busy = refused("Error: Unable to complete diagnostic. Return: (-39) busy")
    for output, said in (
        ({"DCGM Diagnostic": {"test_categories": []}}, "holds no tests"),
        ({"status": "Pass", "gpus": [{"status": "Pass"}]}, "does not print"),
        ({"tool": "other", "output": PASSING}, "does not print"),
        (rounds[:-700], "cut off"),
        (json.dumps([PASSING, PASSING], indent=0)[1:], "a part of something"),
        (json.dumps(PASSING) + "\n" + json.dumps(LAST_FAILS)[:-90], "cut off"),
        (f'{json.dumps(busy)}\n{{"iterations": [null]}}', "another diagnostic"),
        ({"iterations": []}, "no iterations"),
    ):
        report = read(output, 0, 1)
        assert (report.outcome, said in report.reason) == (ERROR, True), report.reason


def test_an_old_gpu_that_is_named_twice_in_its_text_is_blamed_once() -> None:
    text = "GPU 1 GPU 1 had uncorrectable memory errors and 18446744073709551615 rows need to be"
    entry = {
        "gpu_id": 0,
        "status": "Fail",
        "warnings": [{"warnings": f"{text} remapped.", "error_id": 84}],
    }
    report = read(old(*level2(), deployment={"Page Retirement/Row Remap": [entry]}), 226, 2)
    assert (report.culprits, report.remedy, report.reboot_required) == (
        (1,),
        Remedy.RESET_GPU,
        True,
    )
    assert diag_read.serialize_report(report)["errors"] == [
        {"test": "Page Retirement/Row Remap", "gpu": None, "error_id": 84}
    ]
