"""
The daemon's side of the job socket as a small server, written from its contract: for tests of what
jobs use, without a daemon.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.harness import ROOT
from tests.pace import patient
from vitald.model import job_page

CLIENT = ROOT / "packaging/job/vitald_job.py"
PAGE_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def make_page(seals: int = PAGE_SEALS) -> int:
    fd = os.memfd_create("vitald-job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, job_page.PAGE_FILE_BYTES)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def load_client() -> ModuleType:
    """`vitald_job`, which is a distribution of its own and not installed here."""
    spec = importlib.util.spec_from_file_location("vitald_job", CLIENT)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@dataclass
class RankConnection:
    """One client, after its `hello`."""

    socket: socket.socket
    hello: dict[str, Any]
    page: int
    messages: list[dict[str, Any]] = field(default_factory=list)

    def welcome(self, every_s: float = 0.01) -> None:
        packet = {"v": 1, "kind": "welcome", "node": "gpu-17", "every_s": every_s}
        socket.send_fds(self.socket, [json.dumps(packet).encode()], [self.page])

    def send(self, **packet: Any) -> None:
        self.socket.send(json.dumps({"v": 1, **packet}).encode())

    def receive(self) -> dict[str, Any] | None:
        """The next packet; None at the end of the connection."""
        while True:
            try:
                data = self.socket.recv(65536)
                break
            except ConnectionResetError:  # it ended with unread packets; its own are still there
                continue
        if not data:
            return None
        assert len(data) <= job_page.MAX_PACKET_BYTES
        packet: dict[str, Any] = json.loads(data)
        self.messages.append(packet)
        return packet

    def receive_all(self) -> list[dict[str, Any]]:
        """What comes until the connection ends."""
        while self.receive() is not None:
            pass
        return self.messages

    def read_page(self) -> dict[str, float]:
        names = "seq step monotonic seconds busy loss grad_norm phase flags phase_limit end"
        data = os.pread(self.page, job_page.PAGE_BYTES, 0)
        page = dict(zip(names.split(), struct.unpack(job_page.PAGE_FORMAT, data)))
        assert page["seq"] == page.pop("end")
        return page

    def close(self) -> None:
        self.socket.close()
        os.close(self.page)


class JobServer:
    """Listens on `path`; each test accepts the clients that it expects."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen(16)
        self.listener.settimeout(patient(20))
        self.ranks: list[RankConnection] = []

    def accept(self, seals: int = PAGE_SEALS) -> RankConnection:
        connection, _ = self.listener.accept()
        connection.settimeout(patient(20))
        rank = RankConnection(connection, json.loads(connection.recv(65536)), make_page(seals))
        self.ranks.append(rank)
        return rank

    def has_client(self) -> bool:
        """Whether a client waits to be accepted."""
        self.listener.setblocking(False)
        try:
            self.listener.accept()[0].close()
        except BlockingIOError:
            return False
        else:
            return True
        finally:
            self.listener.settimeout(patient(20))

    def __enter__(self) -> JobServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.listener.close()
        self.path.unlink(missing_ok=True)
        for rank in self.ranks:
            rank.close()
        self.ranks.clear()
