"""What all checks share in dealing with their tool: where it is, how it ended, and figures and
documents in what it printed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitald.diagnostics.check import Output, ProgramEnd
from vitald.diagnostics.run import tool
from vitald.model.words import Outcome


def test_a_program_is_found_on_path_then_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, beside = tmp_path / "here", tmp_path / "beside"
    for folder in (here, beside):
        folder.mkdir()
    monkeypatch.setenv("PATH", str(here))
    assert tool.find_program("nccom-test", [str(beside)]) == ""
    for folder in (beside, here):
        (folder / "nccom-test").write_text("#!/bin/sh\n")
        assert tool.find_program("nccom-test", [str(beside)]) != str(
            folder / "nccom-test"
        )  # not executable yet
        (folder / "nccom-test").chmod(0o755)
        assert tool.find_program("nccom-test", [str(beside)]) == str(folder / "nccom-test")
    assert tool.find_program(str(here / "nccom-test")) == str(here / "nccom-test")
    assert tool.find_program(str(tmp_path)) == tool.find_program(str(tmp_path / "nothing")) == ""


def test_it_is_said_where_a_program_was_looked_for() -> None:
    assert "/opt/aws/neuron/bin" in tool.explain_absence("nccom-test", ["/opt/aws/neuron/bin"])
    assert "PATH" in tool.explain_absence("dcgmi")
    assert tool.explain_absence("/usr/bin/dc\ngmi").startswith("/usr/bin/dc?gmi is")


def test_a_figure_is_finite_and_not_below_zero() -> None:
    figures = {"0": 0.0, "12.50": 12.5, "1.2e+07": 1.2e7, ".5": 0.5, "7.": 7.0}
    others = ("nan", "inf", "-1", "1_000", "1e999", "", "1 2", "0x10", "١٢", "N/A", "1,5", "12GB/s")
    expected = {**figures, **dict.fromkeys(others)}
    assert {text: tool.parse_figure(text) for text in expected} == expected


def test_a_number_of_a_document() -> None:
    assert [tool.parse_number(value) for value in (3, 2.5, "2.5")] == [3.0, 2.5, 2.5]
    assert [
        tool.parse_number(value)
        for value in (True, None, -1, float("nan"), float("inf"), 10**400, "nan", [1])
    ] == [None] * 8


def test_a_document_is_found_amid_other_text() -> None:
    assert tool.find_document('warning: {x} is odd\n{"body": {"a": 1}}\ntrailer {') == {
        "body": {"a": 1}
    }
    assert tool.find_document('{"body": {"a": 1}') is None
    assert tool.find_document("[1, 2]") is None
    assert tool.find_document("{" * 100_000) is None
    assert tool.find_document('{"a":' * 100_000) is None
    assert tool.find_document(f'{{"a": {"9" * 10_000}}}') is None


@given(st.text() | st.text(alphabet='{}[]":,0a \n'))
def test_any_text_has_a_document_or_none(text: str) -> None:
    found = tool.find_document(text)
    assert found is None or isinstance(found, dict)


def test_what_ended_otherwise_has_no_verdict() -> None:
    for ended, why, code in [
        (ProgramEnd.NOT_STARTED, "Exec format error", None),
        (ProgramEnd.CANCELLED, "it made room for job 7", -15),
        (ProgramEnd.SIGNALLED, "", -11),
    ]:
        report = tool.report_not_run("x", Output(ended=ended, why=why, exit_code=code))
        assert report is not None and report.outcome is Outcome.ERROR
        assert (why or "signal 11") in report.reason
    assert tool.report_not_run("x", Output(ended=ProgramEnd.EXITED, exit_code=1)) is None
    assert tool.report_not_run("x", Output(ended=ProgramEnd.DEADLINE)) is None


def test_the_last_words_are_presentable() -> None:
    assert tool.find_last_line("", " \n", "one\ntwo \x1b[31m\n\n") == "two ?[31m"
    assert tool.find_last_line("", "\n") == ""
    assert len(tool.find_last_line("x" * 100_000)) < 1000
