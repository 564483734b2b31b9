"""all_reduce_perf: the command, its table and its JSON, wrong results, and what NCCL's own lines
say of whom.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trees import NVIDIA, Tree
from tests.unit.builders import catalogue
from tests.unit.checking import asked, config, cuts, hung, install, perform, printed
from vitald.diagnostics.check import Output, ProgramEnd
from vitald.diagnostics.checks import nccl
from vitald.diagnostics.checks.nccl import NcclCheck, build_check, read_output
from vitald.diagnostics.settings import NcclSettings as Settings
from vitald.model.words import Action, Outcome, Remedy

# As all_reduce_perf prints it; the figures are ours.
HEAD = """\
# nThread 1 nGpus 4 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid  31337 on      node7 device  0 [0x18] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  31337 on      node7 device  1 [0x2a] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid  31337 on      node7 device  2 [0x3a] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid  31337 on      node7 device  3 [0x5d] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
TABLE = f"""{HEAD}\
           8             2     float     sum      -1    22.31    0.00    0.00      0    21.90    0.00    0.00      0
     1048576        262144     float     sum      -1    41.20   25.45   38.18      0    40.11   26.14   39.21      0
  8589934592    2147483648     float     sum      -1    27715  309.94  464.91      0    27689  310.23  465.35      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 167.942
#
"""
ECC = (
    "node7:31337:31402 [2] enqueue.cc:1556 NCCL WARN Cuda failure 214 'uncorrectable ECC error"
    " encountered'"
)
FAILURE = f"""{HEAD}\
{ECC}
node7: Test NCCL failure common.cu:392 'unhandled cuda error (run with NCCL_DEBUG=INFO for details) / '
 .. node7 pid 31337: Test failure common.cu:590
"""


def document(**over: object) -> dict[str, object]:
    """What all_reduce_perf -J writes (version 2 of its form)."""

    def row(size: int, outside: float, inside: float) -> dict[str, object]:
        halves = {
            name: {"time": 41.2, "alg_bw": bus / 1.5, "bus_bw": bus, "nwrong": 0.0}
            for name, bus in (("out_of_place", outside), ("in_place", inside))
        }
        return {"size": size, "count": size // 4, "type": "float", **halves}

    return {
        "version": 2,
        "args": ["all_reduce_perf", "-b", "8"],
        "results": [row(8, 0.0, 0.0), row(1 << 33, 464.9, 465.4)],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 167.9, "okay": "unchecked"},
        "errors": [],
        **over,
    }


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    tree = Tree(tmp_path)
    for bus in ("18", "2a", "3a", "5d"):
        tree.pci(f"0000:{bus}:00.0", NVIDIA, 0x2330, 0x030200, "nvidia")
        tree.pci(f"0000:{bus}:00.1", NVIDIA, 0x22BA, 0x040300)  # its sound function is no GPU
    return tmp_path


def check(sysfs: Path, **settings: float) -> NcclCheck:
    return NcclCheck(config(sysfs, Settings(**settings)))  # type: ignore[arg-type]


def test_the_command_is_for_all_gpus_or_for_those_asked_for(sysfs: Path) -> None:
    command = asked(check(sysfs, deadline_s=77.0), printed(TABLE))[0]
    assert command.argv[1:] == ("-b", "8", "-e", "8G", "-f", "2", "-g", "4", "-c", "1")
    assert command.environment == {"NCCL_DEBUG": "WARN", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert command.deadline_s == 77.0
    some = asked(check(sysfs), printed(TABLE), gpus=(3, 1, 3))[0]
    assert (
        some.environment["CUDA_VISIBLE_DEVICES"] == "1,3"
        and some.argv[some.argv.index("-g") + 1] == "2"
    )


def test_a_good_run(sysfs: Path) -> None:
    report = perform(check(sysfs, min_gbytes=460.0), printed(TABLE))
    assert (report.outcome, report.reason, report.remedy) == (Outcome.PASS, "", Remedy.NONE)
    measures = {measure.name: measure for measure in report.measures}
    assert measures["busbw_bytes_per_second"].value == pytest.approx(465.35e9)
    assert measures["busbw_bytes_per_second"].minimum == 460e9
    assert measures["busbw_average_bytes_per_second"].value == pytest.approx(167.942e9)
    assert measures["algbw_bytes_per_second"].value == pytest.approx(310.23e9)


def test_the_document_of_newer_versions_says_the_same(sysfs: Path) -> None:
    report = perform(
        check(sysfs, min_gbytes=460.0),
        printed(f"# Writing JSON output to /dev/stdout\n{json.dumps(document())}\n"),
    )
    assert report.outcome is Outcome.PASS
    assert report.measures[0].value == pytest.approx(465.4e9)


def test_slower_than_expected(sysfs: Path) -> None:
    report = perform(check(sysfs, min_gbytes=470.0), printed(TABLE))
    assert [(fault.code, fault.confirm, fault.gpu) for fault in report.faults] == [
        ("nccl/slow", True, None)
    ]
    assert "465.4 GB/s" in report.reason and "470 GB/s" in report.reason
    low = TABLE.replace("167.942", "167.942 FAILED")
    assert [fault.code for fault in perform(check(sysfs), printed(low, 1)).faults] == ["nccl/slow"]


def test_wrong_results_are_told_whatever_else_is_said(sysfs: Path) -> None:
    for text in (
        TABLE.replace("465.35      0", "465.35     17"),
        TABLE.replace(": 0 OK", ": 3 FAILED"),
        json.dumps(document(out_of_bounds={"count": 2, "okay": "false"})),
        TABLE.replace("465.35      0", "465.35  1e+06")[:-60],
    ):
        for code in (0, 1):
            report = perform(check(sysfs), printed(text, code))
            faults = [(fault.code, fault.confirm) for fault in report.faults]
            assert faults == [("nccl/wrong", False)], (text, code)
    rule = catalogue().find_rule("nccl/wrong")
    assert (rule.apply_to({"confirmed": True}).action, rule.clears.diagnostic) == (
        Action.INSPECT,
        3,
    )


# --- failures


def test_a_failure_names_the_gpu_that_says_it(sysfs: Path) -> None:
    for code in (3, 0):
        report = perform(check(sysfs), printed(FAILURE, code))
        assert report.outcome is Outcome.FAIL
        assert [(fault.code, fault.gpu, fault.confirm) for fault in report.faults] == [
            ("nccl/failed", 2, True)
        ]
        assert report.culprits == (2,) and "uncorrectable ECC error" in report.reason
    # CUDA's 2 of these is NVML's 3.
    assert perform(check(sysfs), printed(FAILURE, 3), gpus=(0, 1, 3)).culprits == (3,)


def test_who_is_blamed(sysfs: Path) -> None:
    stamped = "[2026-07-23 04:16:01] node7:31337:31402 [1] misc/x.cc:4 (f)"
    launch = "Cuda failure 'unspecified launch failure'"
    lines = {
        "node7:31337:31402 [1] misc/nvmlwrap.cc:12 NCCL WARN GPU 3 is lost: Xid 79": 3,
        f"node7:31337:31402 [1] init.cc:9 NCCL WARN busId 5d000: {launch}": 3,
        "node7:31337:31402 [0] init.cc:9 NCCL WARN Xid 94 on nvmlDev 1": 1,
        f"{stamped} NCCL WARN {launch}": 1,
        f"NCCL WARN {launch}": None,
    }
    for line, gpu in lines.items():
        report = perform(check(sysfs), printed(FAILURE.replace(ECC, line), 3))
        assert [fault.gpu for fault in report.faults] == [gpu], line


def test_all_that_complain_are_named(sysfs: Path) -> None:
    report = perform(
        check(sysfs), printed(FAILURE.replace(ECC, f"{ECC}\n{ECC.replace('[2]', '[0]')}\n{ECC}"), 3)
    )
    assert report.culprits == (0, 2) and len(report.faults) == 2


def test_whose_fault_a_failure_is(sysfs: Path) -> None:
    test = "node7: Test"
    missing = "all_reduce_perf: error while loading shared libraries: libnccl.so.2: cannot open"
    for line, code, outcome in (
        (f"{test} NCCL failure common.cu:303 'remote process exited'", 3, Outcome.FAIL),
        (f"{test} NCCL failure common.cu:392 'unhandled cuda error (run with'", 3, Outcome.FAIL),
        (f"{test} timeout (60s) common.cu:411", 4, Outcome.FAIL),
        (f"{test} CUDA failure common.cu:1030 'invalid device ordinal'", 2, Outcome.CONFIG),
        (f"{test} CUDA failure common.cu:200 'out of memory'", 2, Outcome.CONFIG),
        (f"{test} CUDA failure common.cu:200 'system not yet initialized'", 2, Outcome.CONFIG),
        ("Invalid number of GPUs: 8 requested but only 4 were found.", 7, Outcome.CONFIG),
        (missing, 127, Outcome.CONFIG),
        (f"{test} NCCL failure common.cu:1126 'unhandled system error (run'", 3, Outcome.ERROR),
        ("terminate called without an active exception", 134, Outcome.ERROR),
        ("", 1, Outcome.ERROR),
    ):
        report = perform(check(sysfs), printed(HEAD, code, stderr=f"{line}\n"))
        codes = ["nccl/failed"] if outcome is Outcome.FAIL else []
        assert (report.outcome, [fault.code for fault in report.faults]) == (outcome, codes), line
        assert line in report.reason


def test_a_warning_in_a_good_run_is_none_of_our_business(sysfs: Path) -> None:
    warned = (
        f"node7:1:2 [0] transport/nvls.cc:254 NCCL WARN Cuda failure 1 'invalid argument'\n{TABLE}"
    )
    assert perform(check(sysfs), printed(warned)).outcome is Outcome.PASS


def test_a_hang_and_an_end_from_outside(sysfs: Path) -> None:
    report = perform(check(sysfs), hung(f"{HEAD}{ECC}\n"))
    assert [(fault.code, fault.gpu) for fault in report.faults] == [
        ("nccl/failed", 2)
    ] and "600 s" in report.reason
    assert [fault.gpu for fault in perform(check(sysfs), hung(TABLE[:1600])).faults] == [None]
    ended = Output(ended=ProgramEnd.CANCELLED, stdout=FAILURE, why="it made room for job 7")
    assert (perform(check(sysfs), ended).outcome, perform(check(sysfs), ended).faults) == (
        Outcome.ERROR,
        (),
    )


# --- what is no pass


def test_a_table_that_is_not_whole_is_no_pass(sysfs: Path) -> None:
    texts = [
        *cuts(TABLE[: TABLE.index("167.942")]),
        TABLE.replace("167.942", "nan"),
        TABLE.replace("465.35", "   inf"),
        TABLE.replace("38.18", "     "),
        TABLE.replace("#wrong", "#"),
        TABLE.replace(" 0    27689", " N/A    27689")
        .replace("      0\n", "    N/A\n")
        .replace("      0    ", "    N/A    "),
        TABLE.replace("# Out of bounds values : 0 OK\n", ""),
        TABLE.replace("busbw", "bw"),
        json.dumps(document(results=[])),
        json.dumps(document(out_of_bounds=None)),
        json.dumps(document(average_bus_bandwidth={"bandwidth": "nan"})),
        json.dumps(document(results=[{"size": 8, "out_of_place": None, "in_place": None}])),
        json.dumps(
            document(
                results=[{"size": 8, "out_of_place": {"alg_bw": 1, "bus_bw": 1, "nwrong": None}}]
            )
        ),
        json.dumps(document())[:-2],
        "",
    ]
    for text in texts:
        report = perform(check(sysfs), printed(text))
        assert (report.outcome, report.faults) == (Outcome.INCONCLUSIVE, ()), text
        assert report.reason
    assert perform(check(sysfs), printed(TABLE, dropped=1)).outcome is Outcome.INCONCLUSIVE


def test_columns_that_versions_add_are_passed_over() -> None:
    stamped = TABLE.replace("#wrong\n", "#wrong           timestamp\n").replace(
        "      0\n", "      0  2026-01-31 08:00:00\n"
    )
    assert (
        read_output(stamped).bus_bandwidths == read_output(TABLE).bus_bandwidths
        and not read_output(stamped).broken
    )
    older = TABLE.replace("#wrong", " error").replace("      0", "  2e-07")
    assert (
        read_output(older).checked,
        read_output(older).wrong,
        read_output(older).bus_bandwidths,
    ) == (True, 0.0, read_output(TABLE).bus_bandwidths)
    assert read_output(HEAD.replace("[0x2a]", "[0000:2a:00]")).devices[1] == "0000:2a:00"


CELLS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)


@given(
    st.lists(
        st.sampled_from([*TABLE.splitlines(), *FAILURE.splitlines(), "8 nan x", ECC[:30]])
        | st.text(max_size=50),
        max_size=16,
    ).map("\n".join)
    | st.dictionaries(
        st.sampled_from(["results", "out_of_bounds", "average_bus_bandwidth"]),
        CELLS
        | st.lists(
            CELLS
            | st.dictionaries(
                st.sampled_from(["size", "out_of_place", "in_place"]),
                CELLS | st.dictionaries(st.just("bus_bw"), CELLS),
            )
        )
        | st.dictionaries(st.sampled_from(["count", "okay", "bandwidth"]), CELLS),
    ).map(json.dumps)
)
def test_anything_printed_is_read(text: str) -> None:
    found = read_output(text)
    assert len(found.complaints) <= 40
    assert all(bus >= 0.0 for bus in found.bus_bandwidths)
    for line in found.complaints:
        nccl.find_blamed_gpu(line, found, (1, 3))


@given(st.text(max_size=60), st.from_regex(r"bus ?id:? ?(0x)?[0-9a-f:.]{1,18}", fullmatch=True))
def test_any_line_blames_somebody_or_nobody(words: str, bus: str) -> None:
    found = nccl.find_blamed_gpu(f"{words} {bus} NCCL WARN", read_output(HEAD), ())
    assert found is None or 0 <= found < 1000


# --- whether it can run


def test_why_it_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "FOLDERS", (str(tmp_path / "build"),))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    tree = Tree(tmp_path)
    assert str(tmp_path / "build") in check(tmp_path).find_obstacle()
    install(tmp_path / "build", monkeypatch, "all_reduce_perf")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert "no NVIDIA GPU" in check(tmp_path).find_obstacle()
    tree.pci("0000:18:00.0", NVIDIA, 0x2330, 0x030200, "nvidia")
    assert "two GPUs" in check(tmp_path).find_obstacle()
    assert perform(check(tmp_path), printed(TABLE)).outcome is Outcome.NOT_APPLICABLE
    tree.pci("0000:2a:00.0", NVIDIA, 0x2330, 0x030200, "nvidia")
    assert check(tmp_path).find_obstacle() == ""
    assert perform(check(tmp_path), printed(TABLE), gpus=(0,)).outcome is Outcome.NOT_APPLICABLE
    elsewhere = NcclCheck(config(tmp_path, Settings(program="/opt/x/all_reduce_perf")))
    assert "/opt/x/all_reduce_perf" in elsewhere.find_obstacle()


def test_its_place_among_the_checks(tmp_path: Path) -> None:
    one = build_check(config(tmp_path, Settings(every_s=604800.0)))
    place = (one.name, one.levels, one.every_s(0), one.needs_idle(0))
    assert place == ("nccl", (0,), 604800.0, True)
