"""nvbandwidth: the command, its document, each GPU's figure, and whose fault an error is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trees import NVIDIA, Tree
from tests.unit.builders import FUZZ, catalogue
from tests.unit.checking import asked, config, cuts, hung, install, perform, printed
from vitald.diagnostics.check import Output, ProgramEnd
from vitald.diagnostics.checks import bandwidth
from vitald.diagnostics.checks.bandwidth import HostBandwidthCheck, read_output
from vitald.diagnostics_sections import Bandwidth as Settings
from vitald.diagnostics_sections import Diagnostics
from vitald.model import Action
from vitald.model.diagnostic import Outcome, Remedy

H2D, D2H = "host_to_device_memcpy_ce", "device_to_host_memcpy_ce"


def document(
    h2d: tuple[str, ...] = ("55.4", "55.3"), d2h: tuple[str, ...] = ("56.1", "55.9"), **over: object
) -> str:
    """What nvbandwidth 0.8 prints with -j; the figures are ours."""

    def case(name: str, row: tuple[str, ...], arrow: str) -> dict[str, object]:
        return {
            "bandwidth_description": f"memcpy CE CPU(row) {arrow} GPU(column) bandwidth (GB/s)",
            "bandwidth_matrix": [list(row)],
            "name": name,
            "status": "Passed",
            "sum": 111.0,
        }

    body = {
        "CUDA Runtime Version": 12080,
        "Driver Version": "570.124.06",
        "GPU Device list": ["0: NVIDIA H100 80GB HBM3 (00000000:18:00): (node7)"],
        "git_version": "v0.8",
        "testcases": [case(H2D, h2d, "->"), case(D2H, d2h, "<-")],
        "version": "0.8",
        **over,
    }
    return json.dumps({"nvbandwidth": body}, indent=3) + "\n\n"


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    tree = Tree(tmp_path)
    for bus in ("18", "2a"):
        tree.pci(f"0000:{bus}:00.0", NVIDIA, 0x2330, 0x030200, "nvidia")
    return tmp_path


def check(sysfs: Path, machine: str = "", **settings: float) -> HostBandwidthCheck:
    bandwidth = Settings(**settings)  # type: ignore[arg-type]
    return HostBandwidthCheck(
        config(sysfs, bandwidth=bandwidth, diagnostics=Diagnostics(machine=machine))
    )


def test_the_command_is_for_all_gpus_or_for_those_asked_for(sysfs: Path) -> None:
    (command,) = asked(check(sysfs, deadline_s=77.0), printed(document()))
    assert command.argv[1:] == ("-j", "-t", H2D, D2H)
    assert command.environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert command.deadline_s == 77.0
    (some,) = asked(check(sysfs), printed(document()), gpus=(1,))
    assert some.environment["CUDA_VISIBLE_DEVICES"] == "1"


def test_a_good_run_has_a_figure_of_each_gpu_and_direction(sysfs: Path) -> None:
    report = perform(check(sysfs, least_gbytes=50.0), printed(document()))
    assert (report.outcome, report.reason, report.remedy) == (Outcome.PASS, "", Remedy.NONE)
    assert [(one.name, one.device, one.value, one.least) for one in report.measures] == [
        ("host_to_device_bytes_per_second", "GPU 0", 55.4e9, 50e9),
        ("host_to_device_bytes_per_second", "GPU 1", 55.3e9, 50e9),
        ("device_to_host_bytes_per_second", "GPU 0", 56.1e9, 50e9),
        ("device_to_host_bytes_per_second", "GPU 1", 55.9e9, 50e9),
    ]
    assert report.driver_version == "570.124.06"


def test_the_gpu_that_is_slow_is_named_with_the_limit_and_its_source(sysfs: Path) -> None:
    slow = printed(document(d2h=("56.1", "26.2")))
    report = perform(check(sysfs, "Standard_ND96isr_H100_v5"), slow)
    assert [(fault.code, fault.gpu, fault.test, fault.confirm) for fault in report.faults] == [
        ("bandwidth/slow", 1, D2H, True)
    ]
    assert report.culprits == (1,)
    assert report.reason.startswith("GPU 1: 26.2 GB/s to the host, below the 48 GB/s that azurehpc")
    assert perform(check(sysfs), slow).outcome is Outcome.PASS, "no limit is known"


def test_a_run_of_one_gpu_blames_it_by_its_own_number(sysfs: Path) -> None:
    one = printed(document(("20.0",), ("55.0",)))
    report = perform(check(sysfs, least_gbytes=50.0), one, gpus=(1,))
    assert report.culprits == (1,) and report.measures[0].device == "GPU 1"


def test_wrong_data_needs_no_second_run(sysfs: Path) -> None:
    text = " Invalid value when checking the pattern at 0x7f0\n Current offset : 12 \n"
    report = perform(check(sysfs), printed(text + document(), 1))
    assert [(fault.code, fault.confirm) for fault in report.faults] == [("bandwidth/wrong", False)]


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        ("[CUDA_ERROR_ECC_UNCORRECTABLE] uncorrectable ECC error encountered", "fail", "failed"),
        ("[CUDA_ERROR_SYSTEM_NOT_READY] system not yet initialized in expression", "config", ""),
        ("[CUDA_ERROR_OUT_OF_MEMORY] out of memory in expression cuMemAlloc", "config", ""),
        ("something new", "error", ""),
    ],
)
def test_an_error_is_of_the_hardware_of_settings_or_unknown(
    sysfs: Path, error: str, outcome: str, code: str
) -> None:
    text = document(error=error, testcases=[{"name": H2D, "status": "Running"}])
    report = perform(check(sysfs), printed(text, 1))
    assert report.outcome.value == outcome
    assert [fault.code for fault in report.faults] == ([f"bandwidth/{code}"] if code else [])
    assert error.split("]")[0].strip("[") in report.reason


def test_a_version_without_json_says_so(sysfs: Path) -> None:
    report = perform(check(sysfs), printed("ERROR: Invalid Arguments \nnvbandwidth -j:\n\n", 1))
    assert report.outcome is Outcome.CONFIG and "0.5" in report.reason


@pytest.mark.parametrize(
    "text",
    [
        document(("55.4",)),
        document(("55.4", "N/A")),
        document(("55.4", "nan")),
        document(("55.4", "0")),
        document(testcases=[]),
        document(testcases=[{"name": H2D, "status": "Waived"}]),
        "{}",
        "",
    ],
)
def test_what_is_not_whole_is_no_pass(sysfs: Path, text: str) -> None:
    report = perform(check(sysfs), printed(text))
    assert (report.outcome, report.faults) == (Outcome.INCONCLUSIVE, ())


def test_other_ends(sysfs: Path) -> None:
    assert [fault.code for fault in perform(check(sysfs), hung()).faults] == ["bandwidth/failed"]
    assert perform(check(sysfs), printed(document(), dropped=5)).outcome is Outcome.INCONCLUSIVE
    crashed = Output(ended=ProgramEnd.SIGNALLED, exit_code=-11)
    assert perform(check(sysfs), crashed).outcome is Outcome.ERROR


def test_no_beginning_of_a_document_passes(sysfs: Path) -> None:
    for beginning in cuts(document().rstrip()):
        assert perform(check(sysfs), printed(beginning)).outcome is not Outcome.PASS


@FUZZ
@given(st.text(max_size=300) | st.builds(lambda row: document(testcases=row), st.lists(st.none())))
def test_no_text_raises(text: str) -> None:
    read_output(text)


def test_where_it_can_run(sysfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "nvbandwidth is not installed" in check(sysfs).find_obstacle()
    install(tmp_path / "bin", monkeypatch, "nvbandwidth")
    assert check(sysfs).find_obstacle() == ""
    assert "no NVIDIA GPU" in check(tmp_path / "none").find_obstacle()


def test_the_catalogue_knows_its_codes() -> None:
    for code in (bandwidth.FAILED, bandwidth.WRONG, bandwidth.SLOW):
        rule = catalogue().find_rule(code)
        assert (rule.action, rule.state) == (Action.INSPECT, True)
