"""Outputs in each shape that dcgmi has had, as it prints them (tests/data/dcgm): how they are read,
and that the stand-in of tests/dcgmi.py prints the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.dcgmi import Fault, document, health, refusal
from tests.dcgmi_program import printed
from tests.unit.builders import DCGM_SAMPLES
from tests.unit.dcgm_made import read
from vitald.cli.diag.read import serialize_report

# File, exit code and level; outcome, what it requires, GPUs to blame, numbers of the errors.
READ_AS: list[tuple[str, int, int, str, str, list[int], list[int]]] = [
    # Older than what is read: its software tests are not those of 3.1
    ("diag-2.x-level1", 0, 1, "inconclusive", "retry", [], []),
    ("diag-3.3.5-level2-memory-gpu1", 205, 2, "fail", "replace", [1], [29, 57]),
    ("diag-3.3.9-timeout", 245, 3, "error", "retry", [], []),
    # Its result says Pass, its test Fail.
    ("diag-4.2.3-level2-memory-gpu1", 205, 2, "fail", "replace", [1], [57]),
    ("diag-4.4.2-killed", 203, 3, "error", "retry", [], []),
    ("diag-4.5.2-level1-gpu1-detached", 226, 1, "fail", "reboot", [1], [44]),
    # Both GPUs say Fail.
    ("diag-4.6.0-level1-recovery-state-gpu1", 205, 1, "fail", "reboot", [1], [126]),
]


def sample(name: str) -> str:
    return (DCGM_SAMPLES / f"{name}.stdout").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "code", "level", "outcome", "action", "gpus", "errors"), READ_AS)
def test_samples_are_read_as_expected(
    name: str, code: int, level: int, outcome: str, action: str, gpus: list[int], errors: list[int]
) -> None:
    said = serialize_report(read(sample(name), code, level))
    assert (said["outcome"], said["action"], said["culprit_gpus"]) == (outcome, action, gpus)
    assert [one["error_id"] for one in said["errors"]] == errors
    assert said["reboot_required"] is (action == "reboot")
    assert said["replacement_required"] is (action == "replace")
    assert bool(said["reason"]) is (outcome != "pass")


def test_the_head_of_a_document_is_read() -> None:
    for name, version, driver, device in (
        ("diag-3.3.5-level2-memory-gpu1", "3.3.5", "535.161.08", "20b0"),
        ("diag-4.2.3-level2-memory-gpu1", "4.2.3", "570.133.20", "2330"),
    ):
        said = serialize_report(read(sample(name), 205))
        assert (said["dcgm_version"], said["driver_version"]) == (version, driver)
        assert said["device_ids"] == [device, device]
        assert sorted(read(sample(name), 205).serials) == [0, 1]


# --- the stand-in


def shape(value: Any, path: str = "") -> set[str]:
    if isinstance(value, Mapping):
        names = {key: "N" if key.isdecimal() else key for key in value}
        return {f"{path}/{names[key]}: {type(one).__name__}" for key, one in value.items()}.union(
            *(shape(one, f"{path}/{names[key]}") for key, one in value.items())
        )
    if isinstance(value, list):
        return set().union(*(shape(one, f"{path}[]") for one in value))
    return set()


def test_the_stand_ins_documents_have_the_shape_of_the_samples() -> None:
    skipped = {"pcie": "x"}
    built = {
        "diag-4.2.3-level2-memory-gpu1": document("4.2.3", 2, 2, [Fault(57, 1, "memory")], skipped),
        "diag-3.3.5-level2-memory-gpu1": document(
            "3.3.5", 2, 2, [Fault(57, 1, "memory"), Fault(29, 0)], skipped
        ),
        "diag-4.5.2-level1-gpu1-detached": document("4.5.2", 1, 2, detached=[1]),
        "diag-4.6.0-level1-recovery-state-gpu1": document("4.6.0", 1, 2, [Fault(126, 1)]),
        "health-healthy": health(),
        "health-nvlink-gpu1": health({1: {"NVLINK system": ("Failure", "x")}}),
    }
    for name, text in built.items():
        assert shape(json.loads(text)) == shape(json.loads(sample(name))), name
        assert printed(json.loads(sample(name))) == sample(name).rstrip("\n"), name
    assert refusal(203, "4.4.2") == sample("diag-4.4.2-killed")
    assert refusal(245, "3.3.9") == sample("diag-3.3.9-timeout")
