"""Finding the documents in what was printed, and never anything else; and that nothing at all makes
the reader raise or pass.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.builders import ROOT
from tests.unit.dcgm_made import a_test, level2, new, old, passing, read, refused, warning
from vitald.diagnostics.dcgm import document
from vitald.model.diagnostic import Outcome

DATA = ROOT / "tests" / "data" / "dcgm"
PRINTED = (DATA / "printed-4.5.stdout").read_text(
    encoding="utf-8"
)  # in the tool's own style: tabs, braces on lines of their own
WELL = new(*passing("memory", "pcie"))
OLD = old(*level2())
ILL = new(
    a_test("memory", {0: "Pass", 1: "Fail"}, {1: [warning(57, "GPU 1 is bad")]}), *passing("pcie")
)
ROUNDS = {"Overall Result": "Pass", "iterations": [WELL, WELL]}


@pytest.mark.parametrize(
    "before",
    [
        "",
        "\n\n",
        "WARNING: Failed to acquire log file lock.\n",
        "[x] handle {0x7f} busy\n{0x80} busy\n",
        '{"level":"info"}\n',
        "\ufeff",
    ],
)
@pytest.mark.parametrize(
    "after", ["", "\n", "\n\n===RC===\nrc=0\n", '\n{"level":"info"}\n', "\n{not json}\n"]
)
def test_noise_around_a_document_changes_nothing(before: str, after: str) -> None:
    for text in (PRINTED, json.dumps(WELL), json.dumps(OLD, indent=2)):
        report = read(before + text.strip() + after)
        assert (report.outcome, report.reason) == (Outcome.PASS, "")


def test_a_document_that_a_wrapper_indented_is_found() -> None:
    assert read("".join(f"    {line}\n" for line in PRINTED.splitlines())).outcome is Outcome.PASS


@pytest.mark.parametrize(
    "whole", [PRINTED, json.dumps(ROUNDS, indent=1), json.dumps(ROUNDS, indent=0), json.dumps(WELL)]
)
def test_what_is_cut_off_is_no_pass_wherever(whole: str) -> None:
    whole = whole.rstrip()
    step = max(1, len(whole) // 300)
    passed = [
        end for end in range(0, len(whole), step) if read(whole[:end]).outcome is Outcome.PASS
    ]
    assert passed == []
    passed = [
        start for start in range(1, len(whole), step) if read(whole[start:]).outcome is Outcome.PASS
    ]
    assert passed == []


def test_the_end_of_what_was_cut_off_is_told() -> None:
    report = read(PRINTED[: len(PRINTED) // 2])
    assert (report.outcome, report.tests) == (Outcome.ERROR, ())
    assert "cut off" in report.reason


def test_a_whole_document_does_not_make_up_for_a_broken_one() -> None:
    for text in (json.dumps(WELL) + "\n" + PRINTED[:-100], PRINTED[:900] + "\n" + json.dumps(WELL)):
        assert read(text).outcome is Outcome.ERROR
    assert read(json.dumps(ILL) + "\n" + PRINTED[:-100], 205).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    "inside",
    [
        f"[\n{json.dumps(WELL)}\n]",
        f'{{"result":\n{json.dumps(WELL)}\n}}',
        f'{json.dumps(WELL)},\n{{"x": 1}}',
    ],
)
def test_what_stands_inside_something_else_is_no_document(inside: str) -> None:
    assert read(inside).outcome is Outcome.ERROR


@pytest.mark.parametrize(
    "output",
    [
        {
            "DCGM GPU Diagnostic": [
                {
                    "category": "Deployment",
                    "tests": [{"name": "Denylist", "results": [{"status": "Pass"}]}],
                }
            ]
        },
        {"DCGM Diagnostic": {}},
        {"DCGM Diagnostic": None},
        {"DCGM Diagnostic": {"test_categories": []}},
        {"DCGM Diagnostic": {"test_categories": None}},
        {"DCGM Diagnostic": {"test_categories": "x"}},
        {"DCGM Diagnostic": {"runtime_error": None}},
        {"DCGM Diagnostic": {"runtime_error": ["x"]}},
        {"DCGM Diagnostic": True},
        {},
        [],
        3,
        None,
    ],
)
def test_a_shape_that_no_version_has_is_no_verdict(output: object) -> None:
    report = read(output, 0, 1)
    assert report.outcome is Outcome.ERROR
    assert report.reason


def test_findings_at_a_root_of_no_known_shape_are_worth_a_look_only() -> None:
    damaged = {"DCGM GPU Diagnostic": ILL["DCGM Diagnostic"]["test_categories"]}
    report = read(damaged, 205)
    assert (
        report.outcome,
        report.replacement_required,
        [fault.code for fault in report.faults],
    ) == (
        Outcome.ERROR,
        False,
        ["dcgm/unclear"],
    )


def test_a_failure_stands_in_a_document_that_is_odd_elsewhere() -> None:
    odd = copy.deepcopy(ILL)
    odd["DCGM Diagnostic"]["test_categories"][0]["tests"].append(
        {"name": "pcie2", "results": {"0": "Pass"}}
    )
    assert read(odd, 205).outcome is Outcome.FAIL
    well = copy.deepcopy(WELL)
    well["DCGM Diagnostic"]["test_categories"][0]["tests"].append(
        {"name": "pcie2", "results": {"0": "Pass"}}
    )
    assert read(well).outcome is Outcome.ERROR


@pytest.mark.parametrize(
    "value",
    [
        "warnings",
        ["warnings"],
        [{"warning": "warnings"}],
        [{"warnings": "warnings"}],
        [None, "warnings"],
        {"warning": "warnings"},
        [{"warning": ["war", "nings"]}],
    ],
)
def test_warnings_in_all_their_forms(value: object) -> None:
    found = document.read_output(
        json.dumps(
            old(
                a_test("PCIe", {}),
                {
                    "name": "GPU Memory",
                    "results": [
                        {"gpu_ids": "1", "status": "Fail", "warnings": value, "error_id": 52}
                    ],
                },
            )
        )
    )
    (result,) = found.documents[0].tests[-1].results
    assert (result.group, result.index, result.status) == ("gpu", 1, "Fail")
    assert [message.text.replace(" ", "") for message in result.messages] == ["warnings"]


def test_a_number_without_a_text_is_a_finding() -> None:
    report = read(
        old(
            level2()[0],
            {
                "name": "GPU Memory",
                "results": [
                    {"gpu_id": "0", "status": "Pass"},
                    {"gpu_id": "1", "status": "Fail", "error_id": 52},
                ],
            },
        ),
        205,
    )
    assert (report.outcome, report.culprits, report.faults[0].code) == (
        Outcome.FAIL,
        (1,),
        "dcgm/52",
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"DCGM Diagnostic":' + "[" * 100_000,
        '{"a":\n' * 300_000,
        "{\n" * 1_000_000,
        '{"DCGM Diagnostic": ' + "9" * 100_000 + "}",
        '{"DCGM Diagnostic": NaN}',
        (
            '{"DCGM Diagnostic": {"test_categories": [{"category": "x", "tests": [{"name":'
            ' "software", "results": [{"entity_id": 1e999, "status": "Pass"}]}]}]}}'
        ),
        "\x00" * 1000,
        "\ud800",
    ],
    ids=["nested", "nested lines", "braces", "digits", "NaN", "infinity", "zeros", "surrogate"],
)
def test_hostile_output_is_read_soon_and_is_no_pass(text: str) -> None:
    assert read(text, 0, 1).outcome is Outcome.ERROR


# --- whatever is printed

JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["Pass", "Fail", "GPU 3 x", "software"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "results", "status", "warnings", "error_id", "tests", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
CODES = (
    st.none()
    | st.sampled_from([0, 1, -9, 137, 189, 203, 205, 217, 226, 254])
    | st.integers(-300, 300)
)


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(found for key, one in inner for found in places(one, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], junk: object) -> Any:
    if not path:
        return junk
    copied = copy.copy(value)
    copied[path[0]] = changed(value[path[0]], path[1:], junk)
    return copied


@given(
    st.binary(max_size=400) | st.text(max_size=400),
    CODES,
    st.none() | st.integers(1, 4),
    st.text(max_size=60),
)
@example("", None, None, "")
def test_nothing_is_a_pass_that_holds_no_document(
    printed: bytes | str, code: int | None, level: int | None, stderr: str
) -> None:
    report = read(printed, code, level, stderr)
    assert report.outcome is not Outcome.PASS
    assert report.reason.isprintable() and report.reason


@given(st.sampled_from([WELL, OLD, ILL, ROUNDS, refused("Error: x")]), st.data(), JUNK, CODES)
def test_wrong_types_anywhere_never_raise(
    whole: Any, data: st.DataObject, junk: object, code: int | None
) -> None:
    path = data.draw(st.sampled_from(places(whole)))
    report = read(changed(whole, path, junk), code)
    assert isinstance(report.outcome, Outcome)
    json.dumps([dict(test.gpus) for test in report.tests])
    if report.outcome is not Outcome.PASS:
        assert report.reason


@given(st.data(), st.sampled_from([None, "Fail", "Skip", "", 0, [], {}, "Nonsense"]))
def test_a_document_without_all_its_passes_does_not_pass(
    data: st.DataObject, status: object
) -> None:
    """Whichever status of a mandatory test is taken away or changed."""
    for whole in (WELL, OLD):
        path = data.draw(
            st.sampled_from([one for one in places(whole) if one and one[-1] == "status"])
        )
        assert read(whole).outcome is Outcome.PASS
        optional = (
            whole is OLD
            and path[:6] == ("DCGM GPU Diagnostic", "test_categories", 0, "tests", 8, "results")
            and status in (None, "Skip", "")
        )
        summary = path[-2] == "test_summary" and status in (None, "")  # its GPUs all say Pass
        if not (optional or summary):
            assert read(changed(whole, path, status)).outcome is not Outcome.PASS


@given(st.data(), st.binary(min_size=1, max_size=3))
def test_flipped_bytes_never_raise(data: st.DataObject, bytes_: bytes) -> None:
    raw = PRINTED.encode()
    at = data.draw(st.integers(0, len(raw)))
    read(raw[:at] + bytes_ + raw[at + len(bytes_) :], 0)


def test_the_made_documents_are_what_the_tests_think(tmp_path: Path) -> None:
    del tmp_path
    assert json.loads(PRINTED)["metadata"]["version"] == "4.5.2"
    assert read(PRINTED).outcome is read(ROUNDS).outcome is read(OLD).outcome is Outcome.PASS
    assert read(ILL, 205).outcome is Outcome.FAIL
