"""`vitald diag read` of `dcgmi mndiag -j`. The documents are made as DCGM's dcgmi/MnDiag.cpp makes
them, with the hosts and errors of its own test, dcgmi/tests/MnDiagTests.cpp.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import FUZZ
from vitald.cli import main
from vitald.diagnostics.dcgm.multinode import read_multinode
from vitald.model.diagnostic import Outcome

HOSTS = {"host-01": 2, "host-02": 2, "host-03": 1}
FAILED = {
    ("host-01", 1): "CUDA memory allocation failed",
    ("host-02", 1): "NCCL communication timeout",
}
MPI = {"warning": "Error: MPI initialization failed", "error_category": "MPI"}


def mndiag(
    failed: dict[tuple[str, int], str] | None = None, status: str = "", **more: object
) -> dict[str, Any]:
    """One document; `status` of the test."""
    bad = failed or {}
    results: list[dict[str, object]] = []
    for index, (host, count) in enumerate(HOSTS.items()):
        for gpu in range(count):
            text = bad.get((host, gpu), "")
            entity = {"entity_group_id": 1, "entity_group": "GPU", "entity_id": gpu}
            result = {"host_id": index, **entity, "status": "Fail" if text else "Pass"}
            error = {"error_id": 1, "error_category": 15, "error_severity": 4}
            results.append(
                {**result, **({"warnings": [{"warning": text, **error}]} if text else {})}
            )
    word = status or ("Fail" if bad else "Pass")
    test = {"name": "MNUBERGEMM", "status": word, "test_summary": {"status": word}}
    hosts = [
        {
            "host_id": index,
            "hostname": host,
            "dcgm_version": "4.3.0",
            "driver_version": "570.32.17",
            "num_entities": count,
            "entities": [],
        }
        for index, (host, count) in enumerate(HOSTS.items())
    ]
    return {
        "DCGM Multi-Node Diagnostic": "DCGM Multi-Node Diagnostic",
        "hosts": hosts,
        "metadata": {"num_entities": 5, "num_hosts": 3},
        "test_categories": [
            {"category": "Multi-Node Tests", "tests": [{**test, "results": results}]}
        ],
        **more,
    }


def fail_to_start() -> dict[str, Any]:
    document = mndiag(status="Fail", global_errors=[MPI])
    document["test_categories"][0]["tests"][0] |= {"mpi_error": MPI, "results": []}
    return document


REFUSED = {
    "DCGM Multi-Node Diagnostic": "DCGM Multi-Node Diagnostic",
    "metadata": {"num_entities": 0, "num_hosts": 0},
    "runtime_error": "Error: Unable to complete multi-node diagnostic on host localhost.\n",
}


def read_printed(tmp_path: Path, output: object, *words: str) -> int:
    path = tmp_path / "printed"
    text = output if isinstance(output, str) else json.dumps(output, indent=3)
    path.write_text(text, encoding="utf-8")
    return main(["diag", "read", str(path), *words])


@pytest.mark.parametrize(
    ("output", "words", "code", "outcome", "reason"),
    [
        (mndiag(), [], 0, "pass", ""),
        (mndiag(), ["--exit-code", "0"], 0, "pass", ""),
        (mndiag(), ["--exit-code", "1"], 30, "error", "ended with exit code 1"),
        (mndiag(FAILED), [], 20, "fail", "failed: host-01 GPU 1, host-02 GPU 1"),
        (mndiag(status="Skip"), [], 30, "inconclusive", "not passed: Skip"),
        (mndiag(status="Not Run"), [], 30, "inconclusive", "not passed: Not Run"),
        (mndiag(test_categories=[]), [], 30, "inconclusive", "no result of host-01"),
        (mndiag(hosts=[], test_categories=[]), [], 30, "inconclusive", "no result of any host"),
        (mndiag(global_errors=[{"warning": "odd"}]), [], 30, "inconclusive", "odd"),
        (fail_to_start(), [], 30, "error", "MPI initialization failed"),
        (REFUSED, [], 30, "error", "Unable to complete"),
        (json.dumps(mndiag(), indent=3)[:-200], [], 30, "error", "cut off"),
        ("Error: a line before\n" + json.dumps(mndiag(FAILED), indent=3), [], 20, "fail", ""),
    ],
)
def test_outcomes(
    output: object,
    words: list[str],
    code: int,
    outcome: str,
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert read_printed(tmp_path, output, "--json", *words) == code
    shown = json.loads(capsys.readouterr().out)
    assert (shown["outcome"], reason in shown["reason"]) == (outcome, True), shown


def test_the_json_holds_what_was_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read_printed(tmp_path, mndiag(FAILED), "--json")
    shown = json.loads(capsys.readouterr().out)
    assert [(host["hostname"], host["gpus"]) for host in shown["hosts"]] == [
        ("host-01", {"0": "Pass", "1": "Fail"}),
        ("host-02", {"0": "Pass", "1": "Fail"}),
        ("host-03", {"0": "Pass"}),
    ]
    assert shown["tests"] == {"MNUBERGEMM": "Fail"}
    assert [(error["host"], error["gpu"], error["text"]) for error in shown["errors"]] == [
        (host, gpu, text) for (host, gpu), text in FAILED.items()
    ]


def test_the_text_names_what_failed_and_that_nothing_is_at_fault_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read_printed(tmp_path, mndiag(FAILED))
    shown = capsys.readouterr().out
    assert "FAIL  dcgmi mndiag, 3 hosts, MNUBERGEMM Fail, DCGM 4.3.0, driver 570.32.17" in shown
    assert "Fail GPU 1, Pass GPU 0" in shown
    assert "host-02 GPU 1: NCCL communication timeout" in shown
    assert "need not be the" in shown


def test_the_same_error_on_two_hosts_is_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "NCCL communication timeout"
    read_printed(tmp_path, mndiag({("host-01", 0): text, ("host-02", 0): text}), "--json")
    shown = json.loads(capsys.readouterr().out)
    assert [error["host"] for error in shown["errors"]] == ["host-01", "host-02"]


def test_an_error_of_mpi_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read_printed(tmp_path, fail_to_start())
    assert capsys.readouterr().out.count("all hosts: Error: MPI initialization failed") == 1


def test_nothing_that_was_printed_drives_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = mndiag({("host-01", 0): "\x1b[2J"})
    document["hosts"][0]["hostname"] = "a\x1b[31m"
    read_printed(tmp_path, document)
    assert "\x1b[2J" not in capsys.readouterr().out


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["hosts", "test_categories", "tests", "results", "warnings", "host_id", "name"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@FUZZ
@given(_JSON)
def test_whatever_it_is_it_is_no_pass(value: object) -> None:
    body = value if isinstance(value, dict) else {"test_categories": value}
    document = {"DCGM Multi-Node Diagnostic": "x", **body}
    assert read_multinode(json.dumps(document)).outcome is not Outcome.PASS
