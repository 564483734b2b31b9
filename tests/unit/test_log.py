"""The daemon's own log, where whoever reads it goes away."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tests.waiting import WAIT_S
from vitald.log.output import Stream


def test_a_reader_that_is_gone_stops_nobody(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    file = os.fdopen(writing, "w", buffering=1)
    for journal in (None, tmp_path / "nobody"):
        stream = Stream(file, journal)
        for _ in range(1000):
            stream.write("a line\n" * 20)
            stream.flush()


def test_journald_comes_back(tmp_path: Path) -> None:
    """What could not be written is, once somebody listens again."""
    path = tmp_path / "stdout"
    before, ours = socket.socketpair()
    stream = Stream(os.fdopen(ours.detach(), "w", buffering=1), path)
    stream.write("first\n")
    stream.flush()
    before.close()
    stream.write("second\n")
    stream.flush()
    with socket.socket(socket.AF_UNIX) as journald:
        journald.bind(str(path))
        journald.listen()
        stream.write("third\n")
        stream.flush()
        with journald.accept()[0] as heard:
            heard.settimeout(WAIT_S)
            said = b""
            while b"third\n" not in said:
                said += heard.recv(4096)
    header, _, lines = said.partition(b"0\n0\n0\n")
    assert header == b"vitald\n\n3\n1\n"
    assert lines == b"second\nthird\n"
