"""`vitald diag read` of NVCRE's certifications. The documents have the fields of its
api/v1alpha1/certification_types.go, and ConfigMaps as NVSentinel's certification monitor reads
them.
"""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from vitald.cli import main

NCCL, TRAINING = "communication/nccl-all-reduce", "training/nemotron5-8b"


def config_map(name: str, **data: str) -> dict[str, Any]:
    packed = {
        key.replace("_", "-", 1).replace("_", "."): base64.b64encode(
            gzip.compress(text.encode())
        ).decode()
        for key, text in data.items()
    }
    metadata = {"name": name, "namespace": "nvcre"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": packed}


def failed_nodes(*rows: tuple[str, str]) -> dict[str, Any]:
    listed = [{"name": name, "reason": reason, "message": "busbw 12"} for name, reason in rows]
    return config_map("failed-0", failed_nodes_json_gz=json.dumps(listed))


def certification(condition: str, nccl: str, training: str = "Succeeded") -> dict[str, Any]:
    statuses = []
    for position, (category, status) in enumerate(((NCCL, nccl), (TRAINING, training))):
        domain, _, variant = category.partition("/")
        entry = {
            "domain": domain,
            "variant": variant,
            "status": status,
            "succeededNodesRef": {"kind": "ConfigMap", "name": f"succeeded-{position}"},
        }
        if status == "Failed":
            entry["failedNodesRef"] = {"kind": "ConfigMap", "name": f"failed-{position}"}
        statuses.append(entry)
    return {
        "apiVersion": "nvcre.nvidia.com/v1alpha1",
        "kind": "Certification",
        "metadata": {"name": "gpu-cluster-cert", "namespace": "nvcre"},
        "status": {
            "conditions": [{"type": condition, "status": "True"}],
            "categoryStatuses": statuses,
        },
    }


def listed(*items: dict[str, Any]) -> dict[str, Any]:
    passed = [
        config_map(f"succeeded-{position}", succeeded_nodes_csv_gz="gpu-01, gpu-02")
        for position in range(2)
    ]
    return {"apiVersion": "v1", "kind": "List", "items": [*items, *passed]}


def read_printed(tmp_path: Path, output: object, *words: str) -> int:
    path = tmp_path / "printed"
    path.write_text(output if isinstance(output, str) else json.dumps(output), encoding="utf-8")
    return main(["diag", "read", str(path), *words])


FAILED = certification("Failed", "Failed")


@pytest.mark.parametrize(
    ("output", "code", "outcome", "reason"),
    [
        (listed(certification("Succeeded", "Succeeded")), 0, "pass", ""),
        (certification("Succeeded", "Succeeded"), 0, "pass", ""),
        (certification("Succeeded", "Pending"), 30, "inconclusive", "has not ended"),
        (certification("InProgress", "InProgress"), 30, "inconclusive", "has not ended"),
        (
            listed(FAILED, failed_nodes(("gpu-03", "HardwareFailureDetected"))),
            20,
            "fail",
            "failed: gpu-03",
        ),
        (
            listed(FAILED, failed_nodes(("gpu-03", "ThresholdViolation"))),
            20,
            "fail",
            "failed: gpu-03",
        ),
        (
            listed(FAILED, failed_nodes(("gpu-03", "WorkloadFailed"))),
            30,
            "inconclusive",
            "may be the fault of any node",
        ),
        (FAILED, 30, "inconclusive", "no node is named"),
        (listed(FAILED, failed_nodes()), 30, "inconclusive", "no node is named"),
    ],
)
def test_outcomes(
    output: object,
    code: int,
    outcome: str,
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert read_printed(tmp_path, output, "--json") == code
    [shown] = json.loads(capsys.readouterr().out)["certifications"]
    assert (shown["outcome"], reason in shown["reason"]) == (outcome, True), shown


def test_the_json_has_the_nodes_by_category(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read_printed(tmp_path, listed(FAILED, failed_nodes(("gpu-03", "ThresholdViolation"))), "--json")
    [shown] = json.loads(capsys.readouterr().out)["certifications"]
    assert shown["categories"] == {NCCL: "Failed", TRAINING: "Succeeded"}
    assert shown["failed_nodes"] == [
        {
            "node": "gpu-03",
            "category": NCCL,
            "reason": "ThresholdViolation",
            "message": "busbw 12",
        }
    ]
    assert shown["passed_nodes"][TRAINING] == ["gpu-01", "gpu-02"]
    assert shown["missing"] == []


def test_the_worst_of_several_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    passed = certification("Succeeded", "Succeeded")
    rows = failed_nodes(("gpu-03", "ThresholdViolation"))
    assert read_printed(tmp_path, listed(passed, FAILED, rows)) == 20
    shown = capsys.readouterr().out
    assert "PASS  NVCRE certification nvcre/gpu-cluster-cert" in shown
    assert "FAIL  NVCRE certification nvcre/gpu-cluster-cert" in shown
    assert "gpu-03" in shown


def test_lists_that_are_not_there_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read_printed(tmp_path, FAILED)
    assert "failed-0" in capsys.readouterr().out


@pytest.mark.parametrize(
    "data",
    [
        "not base64!",
        base64.b64encode(b"not gzip").decode(),
        base64.b64encode(gzip.compress(b"[]")[:-6]).decode(),
        7,
    ],
    ids=["no base64", "no gzip", "cut off", "a number"],
)
def test_a_list_that_is_not_readable_is_missing(
    data: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {**failed_nodes(), "binaryData": {"failed-nodes.json.gz": data}}
    assert read_printed(tmp_path, listed(FAILED, broken), "--json") == 30
    [shown] = json.loads(capsys.readouterr().out)["certifications"]
    assert shown["missing"] == ["failed-0"]


@pytest.mark.parametrize(
    "output",
    [
        json.dumps(FAILED)[:-20],
        {"kind": "Certification", "apiVersion": "cert-manager.io/v1"},
        {"kind": "List", "items": [7, {"kind": "Certification"}]},
    ],
    ids=["cut off", "of another group", "a list of others"],
)
def test_what_is_no_certification_is_no_pass(
    output: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_printed(tmp_path, output) == 30
    assert "NO ANSWER" in capsys.readouterr().out


def test_nothing_that_was_printed_drives_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read_printed(tmp_path, listed(FAILED, failed_nodes(("gpu\x1b[2J", "Workload\x1b[31m"))))
    assert "\x1b[2J" not in capsys.readouterr().out
