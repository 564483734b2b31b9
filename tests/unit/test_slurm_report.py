"""What Slurm's scripts report."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.waiting import WAIT_S
from vitald.slurm.report import report


def test_what_is_done_is_in_the_systems_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurmd keeps what a script prints only where it failed. A log that hangs is not
    waited for.
    """
    path = tmp_path / "log"
    monkeypatch.setattr("vitald.slurm.report._LOG_SOCKET", str(path))
    report("nobody listens")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(path))
        log.settimeout(WAIT_S)
        report("gpu01: resumed\n: healthy")
        line = log.recv(4096).decode()
        assert line.startswith("<28>") and line.endswith("]: gpu01: resumed\\x0a: healthy")
        for _ in range(2000):
            report("nobody reads")
