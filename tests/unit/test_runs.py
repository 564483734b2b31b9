"""Runs of diagnostics in the ledger."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vitald.ledger.queries import read_last_runs, read_run, read_runs
from vitald.ledger.store import Ledger, LedgerEntry
from vitald.model.diagnostic import Fault, Measure, Report, Run, RunRequest, Test
from vitald.model.words import Outcome, Remedy

FULL = Run(
    id="20261121T010203-1-dcgm-2",
    request=RunRequest(
        check="dcgm", level=2, gpus=(1, 3), by="finding #7", reason="xid/999", busy=True
    ),
    began=1000.0,
    ended=1100.5,
    exit_code=205,
    command="dcgmi diag -r 2 -j",
    preempted="job 12",
    raw="déjà vu\n" * 1000,
    report=Report(
        outcome=Outcome.FAIL,
        reason="GPU 3: memory",
        remedy=Remedy.REPLACE,
        replacement_required=True,
        tests=(Test(name="memory", category="Hardware", status="Fail", gpus={"3": "Fail"}),),
        faults=(
            Fault(
                code="dcgm/58",
                test="memory",
                text="bad",
                gpu=3,
                error_id=58,
                severity=2,
                remedy=Remedy.REPLACE,
                confirm=True,
            ),
        ),
        culprits=(3,),
        measures=(
            Measure(name="busbw_bytes_per_second", value=1.5e9, device="rdmap0s6", minimum=1e9),
        ),
        dcgm_version="4.5.2",
        device_ids=("2330", "2330"),
        serials={3: "1234"},
    ),
)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path)
    made.open()
    return made


def run(number: int, check: str = "dcgm", level: int = 1) -> Run:
    report = Report(outcome=Outcome.PASS)
    return Run(
        id=f"{check}-{level}-{number}",
        request=RunRequest(check=check, level=level),
        began=float(number),
        ended=number + 0.5,
        report=report,
        raw="x",
    )


def test_a_run_comes_back_as_it_was(ledger: Ledger) -> None:
    known = replace(FULL, report=replace(FULL.report, addresses={3: "0000:03:00.0"}))
    ledger.commit([LedgerEntry(runs=(known,))])  # of use only while the run is interpreted
    assert read_run(ledger.path, FULL.id) == FULL
    assert read_run(ledger.path, "another") is None
    (listed,) = read_runs(ledger.path, 10)
    assert listed.raw == "" and listed.report == FULL.report


def test_the_newest_come_first_and_one_check_can_be_asked_for(ledger: Ledger) -> None:
    ledger.commit(
        [
            LedgerEntry(
                runs=tuple(run(number, check) for number in range(5) for check in ("dcgm", "nccl"))
            )
        ]
    )
    assert [one.began for one in read_runs(ledger.path, 3, "nccl")] == [4.0, 3.0, 2.0]
    assert len(read_runs(ledger.path, 100)) == 10


def test_the_last_of_each_check_and_level(ledger: Ledger) -> None:
    ledger.commit(
        [
            LedgerEntry(
                runs=tuple(run(number, "dcgm", level) for number in range(20) for level in (1, 2))
            )
        ]
    )
    found = read_last_runs(ledger.path, 3)
    assert [(one.request.level, one.began) for one in found if one.request.level == 1] == [
        (1, 17.0),
        (1, 18.0),
        (1, 19.0),
    ]
    assert len(found) == 6


def test_what_was_printed_is_forgotten_first_and_the_run_with_the_events(ledger: Ledger) -> None:
    ledger.commit([LedgerEntry(runs=(run(1), run(100)))])
    ledger.forget_output(before=50.0)
    assert [
        getattr(read_run(ledger.path, f"dcgm-1-{number}"), "raw", None) for number in (1, 100)
    ] == ["", "x"]
