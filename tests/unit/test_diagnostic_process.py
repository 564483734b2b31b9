"""What is kept of a program's output and of the daemon's environment; and the documents of the
stand-in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dcgmi import Fault, document, exit_code, health, refusal
from tests.dcgmi_program import printed
from tests.unit.builders import reference
from vitald.diagnostics.run.descendants import list_processes
from vitald.diagnostics.run.process import _KeptOutput
from vitald.diagnostics.run.start import clean_environment


@given(
    st.binary(max_size=300),
    st.lists(st.integers(min_value=1, max_value=40)),
    st.integers(min_value=2, max_value=100),
)
def test_the_first_and_the_last_part_are_kept_however_it_comes(
    raw: bytes, sizes: list[int], most: int
) -> None:
    kept, rest = _KeptOutput(most), raw
    for size in [*sizes, 1000]:
        kept.add(rest[:size])
        rest = rest[size:]
        assert len(kept._head) + len(kept._tail) <= 2 * most
    half = most // 2
    if len(raw) <= 2 * half:
        assert (kept.dropped, kept.text()) == (0, raw.decode(errors="replace"))
    else:
        assert kept.dropped == len(raw) - 2 * half
        gap = f"\n... {kept.dropped} bytes dropped ...\n".encode()
        assert kept.text() == (raw[:half] + gap + raw[len(raw) - half :]).decode(errors="replace")


@given(st.integers(min_value=2, max_value=3000))
def test_what_is_left_of_a_document_is_none(most: int) -> None:
    raw = document(level=2).encode()
    kept = _KeptOutput(most)
    kept.add(raw)
    assert kept.dropped
    with pytest.raises(ValueError):
        json.loads(kept.text())


def test_the_environment_of_nobody() -> None:
    assert clean_environment({}) == {
        "LC_ALL": "C",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    assert clean_environment(
        {"HOME": "/root", "DCGM_HOME_DIR": "/x", "NCCL_DEBUG": "INFO"}
    ).keys() == {"HOME", "DCGM_HOME_DIR", "NCCL_DEBUG", "LC_ALL", "PATH"}


def test_a_process_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    for pid, stat in enumerate(
        (
            b"",
            b"12",
            b"12 (a",
            b"12 (a) S",
            b"12 (a) S x y z",
            b"\xff" * 5000,
            b"12 (a) S 1 2 3" + b" 4" * 15 + b" x",
            b"13 (a) b) R) S 1 2 3" + b" 4" * 15 + b" 99 5",
        )
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_bytes(stat)
    (one,) = list_processes(tmp_path)
    assert (one.pid, one.name, one.state, one.parent) == (7, "a) b) R", "S", 1)
    assert (one.group, one.session, one.started) == (2, 3, 99)


# --- the stand-in against what was really printed


def shape(value: Any, path: str = "") -> set[str]:
    if isinstance(value, Mapping):
        names = {key: "N" if key.isdecimal() else key for key in value}
        return {f"{path}/{names[key]}: {type(one).__name__}" for key, one in value.items()}.union(
            *(shape(one, f"{path}/{names[key]}") for key, one in value.items())
        )
    if isinstance(value, list):
        return set().union(*(shape(one, f"{path}[]") for one in value))
    return set()


def test_documents_have_the_shape_of_real_ones() -> None:
    skipped = {"pcie": "x"}
    samples = {
        "c-4.2.3-l2-memory-dbe-gpu3-status-pass-8gpu": document(
            "4.2.3", 2, 8, [Fault(57, 3, "memory")], skipped
        ),
        "c-3.3.5-l2-memory-dbe-gpu2-of-4-a100": document(
            "3.3.5", 2, 4, [Fault(57, 2, "memory"), Fault(29, 1)], skipped
        ),
        "c-4.5.2-l1-gpu6-detached-8gpu": document("4.5.2", 1, 8, detached=[6]),
        "c-4.6.0-l1-recovery-state-node-reboot-gpu1": document("4.6.0", 1, 8, [Fault(126, 1)]),
        "c-health-failure-gpu3": health({3: {"NVLINK system": ("Failure", "x")}}),
        "c-rt-4.4.2-killed-203": refusal(203, "4.4.2"),
        "c-rt-3.3.9-timeout-245": refusal(245, "3.3.9"),
    }
    for sample, built in samples.items():
        real = reference(f"dcgm-samples/{sample}.stdout").read_text()
        assert shape(json.loads(built)) == shape(json.loads(real)), sample
        assert printed(json.loads(real)) == real.rstrip("\n"), sample
        if "runtime_error" in real:
            assert built == real, sample


def test_exit_codes_follow_the_severity() -> None:
    assert exit_code([]) == 0
    assert exit_code([Fault(29)]) == 226
    assert exit_code([Fault(29), Fault(57, 3, "memory")]) == 205
