"""
A client of the job socket that knows the packets and the page only from docs/jobs.md: as an object,
and as a process that makes steps until it is ended.

    python -m tests.job_rank SOCKET '{"rank": 3, "job": "1234"}' SECONDS_PER_STEP
"""

from __future__ import annotations

import array
import json
import math
import mmap
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PAGE = struct.Struct("<QQdddddIIdQ")
TRAIN, CHECKPOINT, END = 1, 3, 5
NOT_FINITE = 1


class Rank:
    """One rank. Its socket waits for at most five seconds."""

    def __init__(self, path: Path, **hello: Any) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(path))
        self.socket.settimeout(5.0)
        self.page: mmap.mmap | None = None
        self.fd = -1
        self.seq = 0
        if hello:
            self.greet(**hello)

    def greet(self, **hello: Any) -> dict[str, Any]:
        self.send(**{"v": 1, "kind": "hello", "rank": 0, "world": 2, "job": "", **hello})
        welcome = self.receive()
        assert welcome["kind"] == "welcome"
        self.page = mmap.mmap(self.fd, 4096)
        return welcome

    def send(self, **packet: Any) -> None:
        self.socket.send(json.dumps(packet).encode())

    def receive(self) -> dict[str, Any]:
        """The next packet; the file that comes with it is `fd`."""
        data, ancillary, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(4))
        for _, _, payload in ancillary:
            self.fd = array.array("i", payload)[0]
        assert data, "the daemon closed the connection"
        received: dict[str, Any] = json.loads(data)
        return received

    def step(
        self, step: int, *, seconds: float = 0.01, phase: int = TRAIN, flags: int = 0, **more: float
    ) -> None:
        assert self.page is not None
        self.seq += 1
        self.page[: _PAGE.size] = _PAGE.pack(
            self.seq,
            step,
            time.monotonic(),
            seconds,
            more.get("busy", math.nan),
            more.get("loss", math.nan),
            math.nan,
            phase,
            flags,
            more.get("limit", 0.0),
            self.seq,
        )

    def write(self, data: bytes) -> None:
        """Whatever, into its page."""
        assert self.page is not None
        self.page[: len(data)] = data

    def close(self) -> None:
        self.socket.close()


class RankProcess:
    """A process that makes a step every so often, and prints each."""

    def __init__(self, path: Path, every_s: float = 0.02, **hello: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.job_rank", str(path), json.dumps(hello), str(every_s)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "connected\n"

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait_for_end(self) -> int:
        """The last step that it printed."""
        output, _ = self._process.communicate(timeout=20.0)
        return int(output.split()[-1])

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(10.0)
        assert self._process.stdout is not None
        self._process.stdout.close()


def _run(path: Path, hello: dict[str, Any], every_s: float) -> None:
    """Steps after each other; a new connection as soon as there is a daemon again."""
    rank = Rank(path, **hello)
    print("connected", flush=True)
    step = 0
    while True:
        step += 1
        rank.step(step, seconds=every_s, loss=2.0)
        os.write(1, f"{step}\n".encode())
        time.sleep(every_s)
        try:
            rank.socket.setblocking(False)
            if not rank.socket.recv(4096):
                raise ConnectionError
        except BlockingIOError:
            pass
        except OSError:
            rank = _connect_again(path, hello) or rank


def _connect_again(path: Path, hello: dict[str, Any]) -> Rank | None:
    try:
        return Rank(path, **hello)
    except (OSError, AssertionError):
        return None


if __name__ == "__main__":
    _run(Path(sys.argv[1]), json.loads(sys.argv[2]), float(sys.argv[3]))
