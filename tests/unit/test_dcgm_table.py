"""`dcgmi diag` without -j: what its table says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.dcgm_made import DEPLOYMENT, meanings
from vitald.diagnostics.dcgm.reading import read_report
from vitald.model.diagnostic import Report
from vitald.model.words import Outcome

HEAD = """\
Successfully ran diagnostic for group.
+---------------------------+------------------------------------------------+
| Diagnostic                | Result                                         |
+===========================+================================================+
|-----  Metadata  ----------+------------------------------------------------|
| DCGM Version              | {version:<46} |
| Driver Version Detected   | 550.54.15                                      |
| GPU Device IDs Detected   | {ids:<46} |
|-----  Deployment  --------+------------------------------------------------|
"""
END = "+---------------------------+------------------------------------------------+\n"
HARDWARE = "+-----  Hardware  ----------+------------------------------------------------+\n"


def rows(*cells: tuple[str, str]) -> str:
    return "".join(f"| {name:<25} | {cell:<46} |\n" for name, cell in cells)


def wrapped(name: str, text: str) -> str:
    """A text as it is printed: cut at 45 characters."""
    pieces = [text[at : at + 45] for at in range(0, len(text), 45)]
    return rows((name, pieces[0]), *(("", piece) for piece in pieces[1:]))


def read(*parts: str, version: str = "3.3.5", gpus: int = 4, end: str = END) -> Report:
    head = HEAD.format(version=version, ids=",".join(["20b5"] * gpus))
    return read_report(head + "".join(parts) + end, meanings())


def statuses(report: Report) -> dict[str, dict[str, str]]:
    return {test.name: dict(test.gpus) for test in report.tests}


CUDA = "GPU 0 Error using CUDA API cudaStreamCreate Check DCGM and system logs for errors."


def test_a_failure_names_its_test_and_its_gpu() -> None:
    report = read(
        rows(("Denylist", "Pass"), ("Graphics Processes", "Pass")),
        HARDWARE,
        rows(("GPU Memory", "Pass - GPUs: 1, 2, 3"), ("", "Fail - GPU: 0")),
        wrapped("Warning", CUDA),
        rows(("Info", "GPU 1 average 299.5 W")),
    )
    assert report.outcome is Outcome.FAIL
    assert report.culprits == (0,)
    assert [(fault.code, fault.test, fault.gpu) for fault in report.faults] == [
        ("dcgm/51", "GPU Memory", 0)
    ]
    assert report.faults[0].text == CUDA
    assert (report.dcgm_version, report.driver_version) == ("3.3.5", "550.54.15")
    assert report.device_ids == ("20b5",) * 4


def test_all_are_those_that_the_table_lists() -> None:
    report = read(HARDWARE, rows(("PCIe", "Fail - All")), wrapped("Warning", CUDA))
    assert report.culprits == (0, 1, 2, 3)
    assert statuses(report)["PCIe"] == dict.fromkeys("0123", "Fail")


def test_a_list_of_gpus_that_goes_on_in_the_next_row() -> None:
    text = "Fail - GPUs: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14"
    report = read(HARDWARE, wrapped("GPU Memory", text), rows(("", "Pass - GPU: 15")), gpus=16)
    assert report.culprits == tuple(range(15))


def test_the_rows_of_4x_name_their_devices() -> None:
    report = read(
        rows(("software", "Pass"), ("", "GPU0: Pass"), ("", "GPU1: Pass")),
        HARDWARE,
        rows(("memory", "Fail"), ("", "GPU0: Pass"), ("", "GPU1: Fail")),
        version="4.4.2",
        gpus=2,
    )
    assert (report.outcome, report.culprits) == (Outcome.FAIL, (1,))
    whole = read(
        rows(("software", "Pass"), ("", "GPU0: Pass")),
        HARDWARE,
        rows(("memory", "Skip"), ("", "GPU0: Skip")),
        version="4.4.2",
        gpus=1,
    )
    assert whole.outcome is Outcome.INCONCLUSIVE
    assert "memory was skipped" in whole.reason


def test_an_error_of_no_test_is_that_of_its_section() -> None:
    text = "GPU 3 has uncorrectable memory errors and row remappings are pending"
    report = read(wrapped("Error", text), end="")
    assert (report.outcome, report.culprits) == (Outcome.FAIL, (3,))


def test_an_error_before_the_first_section_is_no_pass() -> None:
    software = rows(*((name, "Pass") for name in DEPLOYMENT))
    title, line, head = HEAD.format(version="3.3.5", ids="20b5").partition("|-----  Metadata")
    passing = software, HARDWARE, rows(("GPU Memory", "Pass - All"), ("PCIe", "Pass - All")), END
    for text, outcome in (("", Outcome.PASS), (rows(("Error", "x")), Outcome.ERROR)):
        assert (
            read_report("".join((title, text, line, head, *passing)), meanings()).outcome is outcome
        )


def test_a_table_that_is_cut_off_is_no_pass() -> None:
    software = rows(*((name, "Pass") for name in DEPLOYMENT))
    passing = software, HARDWARE, rows(("GPU Memory", "Pass - All"), ("PCIe", "Pass - All"))
    assert read(*passing).outcome is Outcome.PASS
    assert read(*passing, end="").outcome is Outcome.ERROR


def test_what_stands_around_the_table_and_indents_it() -> None:
    """kubectl exec says which container it took; a report quotes the table."""
    head = HEAD.format(version="3.3.5", ids="20b5, 20b5")
    table = head + HARDWARE + rows(("GPU Memory", "Fail - GPU: 1")) + END
    text = 'Defaulted container "nvidia-dcgm-ctr" out of: nvidia-dcgm-ctr\n' + "".join(
        f"    {line}" for line in table.splitlines(keepends=True)
    )
    report = read_report(text, meanings())
    assert (report.outcome, report.culprits) == (Outcome.FAIL, (1,))
    assert statuses(report) == {"GPU Memory": {"1": "Fail"}}


def test_a_table_without_results_is_none() -> None:
    report = read_report(HEAD.format(version="3.3.5", ids="20b5") + END, meanings())
    assert report.outcome is Outcome.ERROR
    assert "-j" in report.reason


def test_a_remark_of_a_test_that_passed_is_no_failure() -> None:
    software = rows(*((name, "Pass") for name in DEPLOYMENT))
    tests = rows(("GPU Memory", "Pass - All"), ("Info", "4 GPUs, 40960 MiB each"))
    report = read(software, HARDWARE, tests, rows(("PCIe", "Pass - All")))
    assert (report.outcome, report.faults) == (Outcome.PASS, ())


def test_of_two_runs_the_second_may_be_cut_off_or_fail() -> None:
    software = rows(*((name, "Pass") for name in DEPLOYMENT))
    first = software + HARDWARE + rows(("GPU Memory", "Pass - All"), ("PCIe", "Pass - All")) + END
    head = HEAD.format(version="3.3.5", ids="20b5, 20b5, 20b5, 20b5")
    assert read(first, head, first, end="").outcome is Outcome.PASS
    assert read(first, head, software, end="").outcome is Outcome.ERROR
    failing = HARDWARE + rows(("GPU Memory", "Fail - GPU: 2")) + END
    assert read(first, head, failing, end="").culprits == (2,)


def test_the_test_diagnostic_is_no_header() -> None:
    report = read(HARDWARE, rows(("Diagnostic", "Fail - GPU: 1")))
    assert (report.outcome, report.culprits) == (Outcome.FAIL, (1,))


CELLS = (
    *("Pass - All", "Fail - GPU: 0", "Pass - GPUs: 0, 1, ", "2, 3", "9" * 46, "GPU0: Fail", "Fail"),
    *("GPU 0 Error using CUDA", "", "Result", "Pass|Fail", "\x00", "Skip - GPUs: ,,", "١٢"),
)
NAMES = ("PCIe", "", "Warning", "Info", "Error", "Warning: GPU1", "Diagnostic", "DCGM Version", "|")
LINES = st.one_of(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(CELLS)).map(lambda row: rows(row)),
    st.sampled_from((END, HARDWARE, "", "|", "| Diagnostic | Result |\n", "noise\n")),
)


@given(st.lists(LINES, max_size=40), st.integers(1, 300))
def test_no_table_is_too_odd_to_be_read(lines: list[str], times: int) -> None:
    text = HEAD.format(version="3.3.5", ids="20b5") + "".join(lines)
    read_report(text + rows(("PCIe", "Pass - GPUs: 1")) + rows(("", "9" * 45)) * times, meanings())
