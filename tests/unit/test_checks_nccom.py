"""nccom-test: how many workers, its table and its JSON, wrong results, and what is no fault of a
device.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.neuron_tree import TRN2, NeuronTree
from tests.trees import AMAZON, Tree
from tests.unit.builders import catalogue
from tests.unit.checking import asked, config, cuts, hung, install, perform, printed
from vitald.diagnostics.check import Output, ProgramEnd
from vitald.diagnostics.checks import nccom
from vitald.diagnostics.checks.nccom import NccomCheck, build_check, count_cores, read_output
from vitald.diagnostics.settings import NccomSettings as Settings
from vitald.model.words import Action, Outcome, Remedy

GIB = float(1 << 30)
# As nccom-test prints it (SDK 2.29); the figures are ours.
TABLE = """\
    size(B)    count(elems)    type    time:avg(us)    algbw(GB/s)    busbw(GB/s)
    1048576          262144    fp32           74.12          13.17          25.94
    4194304         1048576    fp32          110.30          35.41          69.72
   16777216         4194304    fp32          338.05          46.22          91.00
   67108864        16777216    fp32         1201.77          52.01         102.39
  268435456        67108864    fp32         4702.34          53.16         104.66
 1073741824       268435456    fp32        18711.06          53.44         105.22
Avg bus bandwidth:\t83.1550GB/s
"""
FAILURE = """\
    size(B)    count(elems)    type    time(us)    algbw(GB/s)    busbw(GB/s)
    1048576    Failure running neuron-bench - log file /tmp/nccom_test_log_x1.log
1 errors found - test failed
"""
RESULTS = {
    "results": [
        {
            "size(B)": size,
            "count(elems)": size // 4,
            "type": "fp32",
            "algbw(GB/s)": algorithm,
            "busbw(GB/s)": bus,
            "time:avg(us)": 74.1,
        }
        for size, algorithm, bus in ((1 << 20, 13.0, 26.0), (1 << 30, 53.0, 104.0))
    ]
}


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    NeuronTree(tmp_path, TRN2[:2])
    return tmp_path


def check(sysfs: Path, **settings: float) -> NccomCheck:
    return NccomCheck(config(sysfs, Settings(**settings)))


def test_one_worker_for_each_logical_core(tmp_path: Path) -> None:
    families: list[tuple[str, int, int, int, dict[str, str]]] = [
        ("Trn1", 16, 32, 32, {}),
        ("Inf2", 12, 24, 24, {}),
        ("Trn2", 16, 128, 64, {"NEURON_LOGICAL_NC_CONFIG": "2"}),
    ]
    for family, devices, physical, workers, environment in families:
        sysfs = tmp_path / family
        NeuronTree(sysfs, TRN2[:devices], family=family)
        here = count_cores(sysfs)
        cores = (here.devices, here.physical, here.workers, here.family)
        assert cores == (devices, physical, workers, family)
        command = asked(check(sysfs, deadline_s=44.0), printed(TABLE))[0]
        assert command.argv[1:4] == ("allr", "-r", str(workers))
        assert command.environment == environment
        assert command.deadline_s == 44.0
        # `--check` takes a word of its own in newer versions: it must not be the operation.
        assert command.argv[command.argv.index("--check") + 1].startswith("--")


def test_a_good_run(sysfs: Path) -> None:
    report = perform(check(sysfs, min_gbytes=100.0), printed(TABLE))
    assert (report.outcome, report.reason, report.remedy) == (Outcome.PASS, "", Remedy.NONE)
    measures = {measure.name: measure for measure in report.measures}
    assert measures["busbw_bytes_per_second"].value == pytest.approx(105.22 * GIB)
    assert measures["busbw_bytes_per_second"].minimum == pytest.approx(100.0 * GIB)
    assert measures["busbw_average_bytes_per_second"].value == pytest.approx(83.155 * GIB)
    assert measures["algbw_bytes_per_second"].value == pytest.approx(53.44 * GIB)


def test_slower_than_expected(sysfs: Path) -> None:
    report = perform(check(sysfs, min_gbytes=110.0), printed(TABLE))
    assert [(fault.code, fault.confirm) for fault in report.faults] == [("nccom/slow", True)]
    assert "105.2 GB/s" in report.reason and "110 GB/s" in report.reason
    assert report.outcome is Outcome.FAIL and len(report.measures) == 3


def test_a_failure_counts_whatever_the_exit_status(sysfs: Path) -> None:
    for code in (0, 1):
        report = perform(check(sysfs), printed(FAILURE, code))
        assert [fault.code for fault in report.faults] == ["nccom/failed"], code
        assert report.outcome is Outcome.FAIL and "/tmp/nccom_test_log_x1.log" in report.reason


def test_wrong_results_are_told_apart(sysfs: Path) -> None:
    text = TABLE.replace(
        "Avg bus",
        "Rank 3: output tensor mismatch against golden\n1 errors found - test failed\nAvg bus",
    )
    report = perform(check(sysfs), printed(text, 1))
    assert [(fault.code, fault.confirm) for fault in report.faults] == [("nccom/wrong", False)]
    assert (
        catalogue().find_rule("nccom/wrong").apply_to({"confirmed": True}).action is Action.INSPECT
    )
    # Words alone, with everything else well, are neither.
    report = perform(check(sysfs), printed(f"checking that output data does not differ\n{TABLE}"))
    assert (report.outcome, report.faults) == (Outcome.INCONCLUSIVE, ())


def test_whose_fault_a_failure_is(sysfs: Path) -> None:
    cores = "ERROR TDRV: NERR_RESOURCE_NC: insufficient cores\n1 errors found - test failed\n"
    for text, code, outcome in (
        ("Neuron DKMS Driver is not running! Read the guide\n", 0, Outcome.CONFIG),
        (cores, 1, Outcome.CONFIG),
        ("usage: x\nnccom-test: error: unrecognized arguments: --check\n", 2, Outcome.CONFIG),
        ("", 127, Outcome.CONFIG),
        ("Traceback (most recent call last):\n  File x\nKeyError: 'avg'\n", 1, Outcome.ERROR),
        ("something else went wrong\n", 9, Outcome.FAIL),
    ):
        report = perform(check(sysfs), printed(text, code))
        assert (report.outcome, bool(report.faults)) == (outcome, outcome is Outcome.FAIL), text


def test_noise_of_settings_in_a_good_run_is_noise(sysfs: Path) -> None:
    assert (
        perform(check(sysfs), printed(TABLE, stderr="cache: No such file or directory\n")).outcome
        is Outcome.PASS
    )


def test_a_hang_and_an_end_from_outside(sysfs: Path) -> None:
    assert [fault.code for fault in perform(check(sysfs), hung(TABLE[:300])).faults] == [
        "nccom/failed"
    ]
    ended = Output(ended=ProgramEnd.CANCELLED, stdout=FAILURE, why="it made room for job 7")
    assert (perform(check(sysfs), ended).outcome, perform(check(sysfs), ended).faults) == (
        Outcome.ERROR,
        (),
    )


def test_a_table_that_is_not_whole_is_no_pass(sysfs: Path) -> None:
    texts = [
        *cuts(TABLE[: TABLE.index("83.15")]),
        TABLE.replace("83.1550", "nan"),
        TABLE.replace("105.22", "inf"),
        TABLE.replace("  46.22", ""),
        "\n".join(TABLE.splitlines()[:3] + TABLE.splitlines()[-1:]),  # ends early, with an average
        TABLE.replace("busbw(GB/s)", "bw"),
        "",
    ]
    for text in texts:
        report = perform(check(sysfs), printed(text))
        assert (report.outcome, report.faults) == (Outcome.INCONCLUSIVE, ()), text
        assert report.reason
    assert perform(check(sysfs), printed(TABLE, dropped=1)).outcome is Outcome.INCONCLUSIVE


def test_every_form_of_the_table_is_read() -> None:
    old = "\n".join(
        [
            "     size(B)    count(elems)     type    time(us)    algbw(GB/s)    busbw(GB/s)",
            "    33554432        33554432    uint8         768          40.69          40.69",
            "Avg bus bandwidth:      40.6901GB/s",
        ]
    )
    assert (read_output(old).sizes, read_output(old).bus_bandwidths, read_output(old).average) == (
        (33554432,),
        (40.69,),
        40.6901,
    )
    algorithm = (
        TABLE.replace("busbw(GB/s)", "busbw(GB/s)    algorithm")
        .replace("25.94", "25.94  mesh")
        .replace("69.72", "69.72 rdh")
    )
    assert read_output(algorithm).bus_bandwidths[:2] == (25.94, 69.72)
    document = read_output(f"Writing results\n{json.dumps(RESULTS, indent=4)}\n")
    assert (document.bus_bandwidths, document.average, document.broken) == ((26.0, 104.0), 65.0, "")
    assert read_output(json.dumps({"results": [*RESULTS["results"], {"size(B)": 7}]})).broken


@given(
    st.lists(
        st.sampled_from([*TABLE.splitlines(), *FAILURE.splitlines(), "123 nan x"])
        | st.text(max_size=40),
        max_size=12,
    ).map("\n".join)
    | st.recursive(
        st.none()
        | st.integers()
        | st.floats()
        | st.text(max_size=8)
        | st.sampled_from(["size(B)", "busbw(GB/s)"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["results", "size(B)", "busbw(GB/s)", "x"]), inner)
        ),
    ).map(lambda value: json.dumps({"results": value}))
)
def test_anything_printed_is_read(text: str) -> None:
    table = read_output(text)
    assert len(table.sizes) == len(table.bus_bandwidths) == len(table.algorithm_bandwidths)
    assert all(bus >= 0.0 for bus in table.bus_bandwidths)


def test_a_device_that_the_driver_does_not_show_was_not_tested(tmp_path: Path) -> None:
    tree = NeuronTree(tmp_path, TRN2[:4])
    assert perform(check(tmp_path), printed(TABLE)).outcome is Outcome.PASS
    tree.remove("class/neuron_device/neuron3")
    for core in (tmp_path / tree.path(2)).glob("neuron_core*"):
        tree.remove(core)
    report = perform(check(tmp_path), printed(TABLE))
    assert (report.outcome, report.remedy) == (Outcome.INCONCLUSIVE, Remedy.RETRY)
    assert report.reason.endswith("2 of 4 Neuron devices not tested: the driver does not show them")
    report = perform(check(tmp_path, min_gbytes=110.0), printed(TABLE))
    assert report.outcome is Outcome.FAIL  # what was tested is slow


def test_a_bus_that_cannot_be_read_hides_no_device(tmp_path: Path) -> None:
    tree = NeuronTree(tmp_path, TRN2[:4])
    tree.remove("bus/pci/devices")
    (tmp_path / "bus/pci/devices").touch()
    report = perform(check(tmp_path), printed(TABLE))
    assert report.outcome is Outcome.INCONCLUSIVE and "bus/pci/devices" in report.reason


def test_a_device_of_a_virtual_machine_is_not_expected(tmp_path: Path) -> None:
    tree = NeuronTree(tmp_path, TRN2[:4])
    tree.pci(TRN2[4], AMAZON, 0x7364, 0x088000, "vfio-pci")
    assert perform(check(tmp_path), printed(TABLE)).outcome is Outcome.PASS
    tree.pci(TRN2[5], AMAZON, 0x7364, 0x088000)
    assert perform(check(tmp_path), printed(TABLE)).outcome is Outcome.INCONCLUSIVE


def test_why_it_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccom, "FOLDERS", (str(tmp_path / "aws"),))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    Tree(tmp_path / "none")
    NeuronTree(tmp_path / "trn1", TRN2[:1], family="Trn1")
    assert str(tmp_path / "aws") in check(tmp_path / "none").find_obstacle()
    install(tmp_path / "aws", monkeypatch, "nccom-test")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert "no device" in check(tmp_path / "none").find_obstacle()
    assert perform(check(tmp_path / "none"), printed(TABLE)).outcome is Outcome.NOT_APPLICABLE
    assert check(tmp_path / "trn1").find_obstacle() == ""
    assert asked(check(tmp_path / "trn1"), printed(TABLE))[0].argv[0] == str(
        tmp_path / "aws/nccom-test"
    )


def test_its_place_among_the_checks(tmp_path: Path) -> None:
    one = build_check(config(tmp_path, Settings(every_s=604800.0)))
    place = (one.name, one.levels, one.every_s(0), one.needs_idle(0))
    assert place == ("nccom", (0,), 604800.0, True)
