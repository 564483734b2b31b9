"""What is kept of a program's output and of the daemon's environment; and the documents of the
stand-in.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dcgmi import Fault, document, exit_code
from vitald.diagnostics.run.held_processes import list_processes
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


def test_exit_codes_follow_the_severity() -> None:
    assert exit_code([]) == 0
    assert exit_code([Fault(29)]) == 226
    assert exit_code([Fault(29), Fault(57, 3, "memory")]) == 205
