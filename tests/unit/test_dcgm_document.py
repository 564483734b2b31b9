"""Finding the documents in what was printed, and never anything else; and that nothing at all makes
the reader raise or pass.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.builders import DCGM_SAMPLES
from tests.unit.dcgm_made import a_test, level2, new, old, passing, read, refused, warning
from vitald.diagnostics.dcgm.dcgmi_output import read_output
from vitald.model.words import Outcome, Remedy

PRINTED = (DCGM_SAMPLES / "printed-4.5.stdout").read_text(
    encoding="utf-8"
)  # in the tool's own style: tabs, braces on lines of their own
WELL = new(*passing("memory", "pcie"))
OLD = old(*level2())
ILL = new(
    a_test("memory", {0: "Pass", 1: "Fail"}, {1: [warning(57, "GPU 1 is bad")]}), *passing("pcie")
)
ROUNDS = {"Overall Result": "Pass", "iterations": [WELL, WELL]}


def test_noise_around_a_document_changes_nothing() -> None:
    before = (
        "",
        "\n\n",
        "WARNING: Failed to acquire log file lock.\n",
        "[x] handle {0x7f} busy\n",
        "\ufeff",
    )
    after = ("", "\n", "\n\n===RC===\nrc=0\n")
    wrong = [
        text
        for document in (PRINTED, json.dumps(WELL), json.dumps(OLD, indent=2))
        for text in (first + document.strip() + last for first in before for last in after)
        if ((report := read(text)).outcome, report.reason) != (Outcome.PASS, "")
    ]
    assert wrong == []


def test_what_is_not_understood_beside_a_document_may_be_the_failure() -> None:
    well = json.dumps(WELL)
    around = ("{0x80} busy", '{"level":"info"}', "{}", '"status": "Fail"}', "]", '"results": [')
    beside = [*(f"{text}\n{well}" for text in around), *(f"{well}\n{text}" for text in around)]
    assert [text for text in beside if "no whole document" not in read(text).reason] == []
    assert {read(text).outcome for text in beside} == {Outcome.ERROR}


def test_a_document_that_a_wrapper_indented_is_found() -> None:
    assert read("".join(f"    {line}\n" for line in PRINTED.splitlines())).outcome is Outcome.PASS


def test_what_is_cut_off_is_no_pass_wherever() -> None:
    passed = []
    rounds = (json.dumps(ROUNDS, indent=indent) for indent in (0, 1))
    for whole in (PRINTED, json.dumps(WELL), *rounds):
        whole = whole.rstrip()
        step = max(1, len(whole) // 300)
        parts = [whole[:end] for end in range(0, len(whole), step)]
        parts += [whole[start:] for start in range(1, len(whole), step)]
        passed += [part for part in parts if read(part).outcome is Outcome.PASS]
    assert passed == []


def test_the_end_of_what_was_cut_off_is_told() -> None:
    report = read(PRINTED[: len(PRINTED) // 2])
    assert (report.outcome, report.tests) == (Outcome.ERROR, ())
    assert "cut off" in report.reason


def test_a_whole_document_does_not_make_up_for_a_broken_one() -> None:
    for text in (json.dumps(WELL) + "\n" + PRINTED[:-100], PRINTED[:900] + "\n" + json.dumps(WELL)):
        assert read(text).outcome is Outcome.ERROR
    assert read(json.dumps(ILL) + "\n" + PRINTED[:-100], 205).outcome is Outcome.FAIL


def test_what_stands_inside_something_else_is_no_document() -> None:
    well = json.dumps(WELL)
    insides = (f"[\n{well}\n]", f'{{"result":\n{well}\n}}', f'{well},\n{{"x": 1}}')
    assert [read(inside).outcome for inside in insides] == [Outcome.ERROR] * 3


def test_a_shape_that_no_version_has_is_no_verdict() -> None:
    tests = [{"name": "Denylist", "results": [{"status": "Pass"}]}]
    inner: list[object] = [{}, None, True, {"runtime_error": None}, {"runtime_error": ["x"]}]
    inner += [{"test_categories": one} for one in ([], None, "x")]
    outputs: list[object] = [{"DCGM Diagnostic": one} for one in inner]
    outputs += [{"DCGM GPU Diagnostic": [{"category": "Deployment", "tests": tests}]}]
    outputs += [{}, [], 3, None]
    reports = [(output, read(output, 0, 1)) for output in outputs]
    assert [
        one for one in reports if one[1].outcome is not Outcome.ERROR or not one[1].reason
    ] == []


def test_a_document_with_the_fields_of_two_generations_is_no_verdict() -> None:
    mixed = [{**OLD, "entity_groups": []}, {**OLD, "metadata": {}}, {**WELL, **OLD}]
    mixed += [{**WELL, "GPU Device IDs": []}, {**WELL, "iterations": [WELL]}]
    summary = copy.deepcopy(OLD)
    summary["DCGM GPU Diagnostic"]["test_categories"][1]["tests"][0]["test_summary"] = {}
    reports = [read(output) for output in (*mixed, summary)]
    assert [report.outcome for report in reports] == [Outcome.ERROR] * 6


def test_an_old_version_is_refused_and_named() -> None:
    for version in ("2.4.8", "3.0.4"):
        report = read(old(*level2(), version=version))
        assert (report.outcome, report.remedy) == (Outcome.ERROR, Remedy.FIX_CONFIG)
        assert version in report.reason and "3.1" in report.reason
    assert read(old(*level2(), version="3.1.0")).outcome is Outcome.PASS


def test_a_failure_stands_in_a_document_that_is_odd_elsewhere() -> None:
    outcomes = []
    for whole, code in ((ILL, 205), (WELL, 0)):
        odd = copy.deepcopy(whole)
        tests = odd["DCGM Diagnostic"]["test_categories"][0]["tests"]
        tests.append({"name": "pcie2", "results": {"0": "Pass"}})
        outcomes.append(read(odd, code).outcome)
    assert outcomes == [Outcome.FAIL, Outcome.ERROR]


def test_warnings_in_all_their_forms() -> None:
    values: list[object] = [
        "warnings",
        [{"warning": "warnings"}],
        [{"warnings": "warnings"}],
        [None, {"warning": "warnings"}],
    ]
    for value in values:
        said = {"gpu_ids": "1", "status": "Fail", "warnings": value, "error_id": 52}
        output = old(a_test("PCIe", {}), {"name": "GPU Memory", "results": [said]})
        del output["DCGM GPU Diagnostic"]["test_categories"][1]["tests"][0]["test_summary"]
        (result,) = read_output(json.dumps(output)).documents[0].tests[-1].results
        assert (result.group, result.index, result.status) == ("gpu", 1, "Fail"), value
        assert [message.text for message in result.messages] == ["warnings"], value


def test_a_warning_of_another_form_is_no_pass() -> None:
    forms: list[dict[str, object]] = [{"warnings": one} for one in (3, {}, ["x"], [["x"]], [3])]
    forms += [{"warnings": [{"warning": "x", "error_id": one}]} for one in ("x", [], 1.5, True)]
    forms += [{"warnings": [{"warning": 3}]}, {"warning": "x"}, {"error_id": 52}]
    forms += [{"error_id": 52, "warnings": []}]
    for form in forms:
        result = {"gpu_id": "1", "status": "Pass", **form}
        output = old(level2()[0], {"name": "GPU Memory", "results": [result]})
        assert read(output).outcome is Outcome.ERROR, form
        of_entity = a_test("memory", {0: "Pass", 1: "Pass"})
        of_entity["results"][1] |= form
        assert read(new(of_entity, *passing("pcie"))).outcome is Outcome.ERROR, form


def test_hostile_output_is_no_pass() -> None:
    result = '{"entity_id": 1e999, "status": "Pass"}'
    tests = f'[{{"category": "x", "tests": [{{"name": "software", "results": [{result}]}}]}}]'
    texts = {
        "nested": '{"DCGM Diagnostic":' + "[" * 100_000,
        "nested lines": '{"a":\n' * 300_000,
        "braces": "{\n" * 1_000_000,
        "one long line": '{"DCGM Diagnostic": {' + '"a":[' * 500_000,
        "digits": '{"DCGM Diagnostic": ' + "9" * 100_000 + "}",
        "NaN": '{"DCGM Diagnostic": NaN}',
        "infinity": f'{{"DCGM Diagnostic": {{"test_categories": {tests}}}}}',
        "zeros": "\x00" * 1000,
        "surrogate": "\ud800",
    }
    wrong = [how for how, text in texts.items() if read(text, 0, 1).outcome is not Outcome.ERROR]
    assert wrong == []


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
