"""HyperPod's lines: what those who grep for them find, and that no program's output can break out
of its field.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.unit.diagnosing import FAILED, PASSED, run_of, slow_link
from vitald.diagnostics.hyperpod_log import DeepLog, format_deep_lines, format_summary
from vitald.model.diagnostic import Fault, Measure, Report, Run, Test
from vitald.model.words import Outcome, Remedy

# As a reader of both published variants would have it.
GRAMMAR = re.compile(
    r"DCGM diagnostic health summary:"
    r" dcgmCheckLevel:\s*(?P<level>\d+)\s+dcgmVersion:\s*(?P<dcgm>\S+)\s+gpuDriverVersion:\s*"
    r"(?P<driver>[^,\s]+),?\s+gpuDeviceIds:\s*\[(?P<ids>[^\]]*)\]\s+"
    r"replacementRequired:\s*(?P<replace>true|false)\s+"
    r"rebootRequired:\s*(?P<reboot>true|false)"
)
LOOPBACK = re.compile(
    r"EFA Loopback check (passed|failed) for device: (\S+) \. Output summary is MaxBw:"
    r" (\d+\.\d{6}), AvgBw: (\d+\.\d{6}), "
    r"MaxTypicalLat: (\d+\.\d{6}), MinTypicalLat: (\d+\.\d{6}), AvgLat: (\d+\.\d{6})"
)
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
FAULTY = "Encountered FaultyInstance. Replace the Instance."


def said(run: Run, *place: str) -> list[tuple[str, str]]:
    """Level and text of each record."""
    return [record(one) for one in format_deep_lines(run, *place)]


def record(one: str) -> tuple[str, str]:
    """As AWS documents them: JSON for a faulty instance, else moment, level and text."""
    if one.startswith("{"):
        found = json.loads(one)
        assert set(found) == {"level", "ts", "msg"}
        assert found["msg"].startswith(FAULTY)
        assert MOMENT.fullmatch(found["ts"])
        return found["level"], found["msg"]
    moment, level, text = one.split("\t")
    assert MOMENT.fullmatch(moment)
    return level, text


def test_the_summary_line() -> None:
    """To the letter: the published one, with its comma, and its blank that is missing."""
    told = replace(PASSED, device_ids=("2237",))
    assert (
        format_summary(run_of(told))
        == "DCGM diagnostic health summary: dcgmCheckLevel: 2 dcgmVersion: 3.3.7 gpuDriverVersion:"
        " 535.183.01, gpuDeviceIds: [2237] replacementRequired: false rebootRequired:false"
    )
    found = GRAMMAR.fullmatch(
        format_summary(run_of(replace(FAILED, reboot_required=True), level=4))
    )
    assert found is not None
    assert found.groupdict() == {
        "level": "4",
        "dcgm": "3.3.7",
        "driver": "535.183.01",
        "ids": "2330 2330",
        "replace": "true",
        "reboot": "true",
    }


@pytest.mark.parametrize("outcome", [Outcome.INCONCLUSIVE, Outcome.ERROR, Outcome.NOT_APPLICABLE])
def test_a_run_without_a_verdict_has_no_summary(outcome: Outcome) -> None:
    """Two flags that are false would read as a pass."""
    run = run_of(Report(outcome=outcome, reason="the GPUs are in use"))
    assert format_summary(run) == ""
    assert said(run) == [("warn", "dcgm level 2 check has no result: the GPUs are in use")]


def test_other_checks_have_none() -> None:
    assert format_summary(run_of(check="nccl", level=0)) == ""
    assert said(run_of(check="nccl", level=0)) == [("info", "nccl check success")]


def test_records() -> None:
    """In whole seconds, as the end of the run."""
    (first,) = format_deep_lines(run_of())
    assert first.startswith("2026-11-18T11:07:40Z\tinfo\tDCGM diagnostic health summary: ")
    assert said(run_of(FAILED), "us-east-1", "p5.48xlarge")[1] == (
        "error",
        f"{FAULTY} Region: us-east-1, InstanceType: p5.48xlarge. ERROR:GPU 3: a row remap failed",
    )
    assert said(run_of(FAILED))[1][1].startswith(
        f"{FAULTY} Region: unknown, InstanceType: unknown. ERROR:"
    )


def test_only_what_is_to_be_replaced_is_faulty() -> None:
    """A reboot is no replacement, nor is a failure that somebody must look into."""
    for remedy in (Remedy.REBOOT, Remedy.RESET_GPU, Remedy.INVESTIGATE):
        report = Report(
            outcome=Outcome.FAIL,
            reason="GPU 3: told to reboot",
            remedy=remedy,
            reboot_required=True,
        )
        assert said(run_of(report))[1:] == [
            ("error", "dcgm level 2 check failed: GPU 3: told to reboot")
        ]
    config = Report(
        outcome=Outcome.CONFIG, reason="persistence mode is off", remedy=Remedy.FIX_CONFIG
    )
    assert said(run_of(config))[1:] == [
        ("warn", "dcgm level 2 check found settings that are wrong: persistence mode is off")
    ]


def test_a_slow_link_is_faulty_and_says_how_slow() -> None:
    """What was expected, and what was measured. A health check that is slow to answer is no
    link.
    """
    ((level, text),) = said(slow_link())
    assert (level, text.startswith(FAULTY)) == ("error", True)
    assert text.endswith(
        "ERROR:busbw_bytes_per_second: expected at least 350000000000, measured 101500000000"
    )
    slow_answer = replace(
        slow_link().report, measures=(Measure(name="answer_seconds", value=90.0, maximum=60.0),)
    )
    assert said(run_of(slow_answer, check="dcgm_health", level=0))[0][1].startswith(
        "dcgm_health check failed: "
    )


def loopback(device: str, best: float, least: float | None = None) -> tuple[Measure, ...]:
    return (
        Measure(name="bandwidth_bytes_per_second", value=best, device=device, minimum=least),
        Measure(name="bandwidth_average_bytes_per_second", value=4.0525e9, device=device),
        Measure(name="latency_seconds", value=21e-6, device=device),
        Measure(name="latency_max_typical_seconds", value=30.87e-6, device=device),
        Measure(name="latency_min_typical_seconds", value=20.08e-6, device=device),
        Measure(name="latency_average_seconds", value=21.63e-6, device=device),
    )


def test_efa_loopback() -> None:
    """The published line: Gbit/s and microseconds, a blank before the full stop."""
    measures = (*loopback("rdmap0s6", 7.32375e9), *loopback("rdmap0s7", 1e9, least=5e9))
    tests = (
        Test(name="loopback rdmap0s6", status="Pass"),
        Test(name="loopback rdmap0s7", status="Fail"),
        Test(name="loopback rdmap0s8", status="Fail"),
    )
    fault = Fault(
        code="efa_loopback/slow",
        test="loopback",
        text="slow",
        device="nic/0000:00:07.0",
        confirm=True,
    )
    report = Report(
        outcome=Outcome.FAIL,
        reason="rdmap0s7 is slow",
        tests=tests,
        faults=(fault,),
        measures=measures,
    )
    once = said(run_of(report, check="efa_loopback", level=0))[-1]
    assert once[1].startswith("efa_loopback check failed: ")
    assert once[1].endswith("measured 1000000000 (to be confirmed by a second run)")
    report = replace(report, faults=(replace(fault, confirmed=True),))
    passed, slow, broken, faulty = said(run_of(report, check="efa_loopback", level=0))
    assert passed == (
        "info",
        (
            "EFA Loopback check passed for device: rdmap0s6 . Output summary is MaxBw: 58.590000,"
            " AvgBw: 32.420000, MaxTypicalLat: 30.870000, MinTypicalLat: 20.080000, AvgLat:"
            " 21.630000"
        ),
    )
    assert LOOPBACK.fullmatch(passed[1])
    assert slow[0] == "error"
    failed = LOOPBACK.fullmatch(slow[1])
    assert failed is not None and failed[1] == "failed"
    assert broken == ("error", "EFA Loopback check failed for device: rdmap0s8 . rdmap0s7 is slow")
    assert faulty[1].startswith(FAULTY)
    assert faulty[1].endswith("of rdmap0s7: expected at least 5000000000, measured 1000000000")


def test_what_passed_is_told_of_a_run_without_a_verdict_too() -> None:
    report = Report(
        outcome=Outcome.ERROR, reason="rdmap0s7 is busy", measures=loopback("rdmap0s6", 7e9)
    )
    assert [level for level, _ in said(run_of(report, check="efa_loopback", level=0))] == [
        "info",
        "warn",
    ]


HOSTILE = st.text(max_size=40) | st.sampled_from(
    ["3.3.7 rebootRequired:true", "], replacementRequired: true", '"\n{', "", "\x1b[2J", "\ud800"]
)


@given(
    version=HOSTILE,
    driver=HOSTILE,
    devices=st.lists(HOSTILE, max_size=3),
    reason=HOSTILE,
    outcome=st.sampled_from(Outcome),
)
def test_whatever_was_printed_stays_in_its_field(
    version: str, driver: str, devices: list[str], reason: str, outcome: Outcome
) -> None:
    report = Report(
        outcome=outcome,
        reason=reason,
        dcgm_version=version,
        driver_version=driver,
        device_ids=tuple(devices),
        measures=(
            Measure(name=reason, value=float("nan"), device=version, minimum=1.0),
            Measure(name="x", value=float("inf"), device=driver),
        ),
    )
    if summary := format_summary(run_of(report)):
        found = GRAMMAR.fullmatch(summary)
        assert found is not None
        assert (found["replace"], found["reboot"], len(found["ids"].split())) == (
            "false",
            "false",
            len(devices),
        )
    for check in ("dcgm", "efa_loopback", "nccl"):
        for one in format_deep_lines(run_of(report, check=check), reason, version):
            assert one.isascii()
            assert all(map(str.isprintable, record(one)))


# --- the file


@pytest.fixture(autouse=True)
def _plain_log() -> Iterator[None]:
    """Whatever another test made of the log."""
    structlog.reset_defaults()
    yield


def test_the_file(tmp_path: Path) -> None:
    """Appended to, and made anew where somebody has rotated it away."""
    path = tmp_path / "deep.log"
    deep = DeepLog(path, "eu-west-1", "p4d.24xlarge")
    deep.add_run(run_of())
    deep.add_run(run_of(FAILED))
    lines = path.read_text().splitlines()
    assert [record(one)[0] for one in lines] == ["info", "info", "error"]
    assert "Region: eu-west-1, InstanceType: p4d.24xlarge." in lines[2]
    assert stat.S_IMODE(path.stat().st_mode) & ~0o640 == 0
    path.rename(tmp_path / "deep.log.1")
    deep.add_run(run_of())
    assert len(path.read_text().splitlines()) == 1
    assert len((tmp_path / "deep.log.1").read_text().splitlines()) == 3


def test_a_file_that_cannot_be_written_is_told_of_once(tmp_path: Path) -> None:
    """No folder, then a pipe without a reader, then all is well, then a folder in its place."""
    folder = tmp_path / "aws"
    deep = DeepLog(folder / "deep.log")
    with capture_logs() as entries:
        deep.add_run(run_of())
        deep.add_run(run_of())
        assert [entry["error"] for entry in entries] == ["No such file or directory"]
        assert entries[0]["path"] == str(folder / "deep.log")
        folder.mkdir()
        deep.add_run(run_of())
        assert len(entries) == 1
        deep.path.rename(folder / "deep.log.1")
        deep.path.mkdir()
        deep.add_run(run_of())
        deep.add_run(run_of())
        assert len(entries) == 2
    assert len((folder / "deep.log.1").read_text().splitlines()) == 1


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_what_is_no_file_is_not_written_to(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "deep.log"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path = Path("/dev/null")
    with capture_logs() as entries:
        DeepLog(path).add_run(run_of())
    assert [entry["event"] for entry in entries] == ["deep_log_not_written"]
