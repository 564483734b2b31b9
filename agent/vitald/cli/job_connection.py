"""
A connection to the job socket, for `vitald tell` and `vitald tee`, which run as a part of a job.

Nothing here waits for the daemon, and nothing fails without one: a job must not depend on it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from vitald.model.job_page import MAX_ERROR_TEXT, MAX_PACKET_BYTES, VERSION

Json = dict[str, object]

# As in `vitald_job`, which must not be imported here: a test compares them. The first that is set.
SOCKET_VARIABLE = "VITALD_JOB_SOCKET"
SYSTEM_SOCKET = Path("/run/vitald/job/job.sock")
ENVIRONMENT: Mapping[str, tuple[str, ...]] = {
    "job": ("VITALD_JOB_ID", "SLURM_JOB_ID", "AWS_BATCH_JOB_ID", "TORCHELASTIC_RUN_ID"),
    "rank": ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "JOB_COMPLETION_INDEX"),
    "local_rank": ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "world": ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"),
}
MAX_JOB = 64  # characters
_RETRY_S = 30.0
_MAX_TEXT_BYTES = 1536  # of an error: the packet must hold it


def find_socket(environ: Mapping[str, str]) -> str:
    """Where the job socket is; empty if the job switched it off."""
    return environ.get(SOCKET_VARIABLE, str(SYSTEM_SOCKET))


def read_identity(environ: Mapping[str, str]) -> Json:
    """What the environment says of this process: job, rank, local_rank, world."""
    found: Json = {"rank": 0}
    for key, names in ENVIRONMENT.items():
        value = next((environ[name] for name in names if environ.get(name)), "")
        if key == "job":
            found[key] = value[:MAX_JOB]
        elif value.isascii() and value.isdigit() and len(value) < 10:
            found[key] = int(value)
    return found


def cut_error_text(text: str) -> str:
    """What fits a packet, on one line."""
    shown = "".join(char if char.isprintable() else " " for char in text[:MAX_ERROR_TEXT])
    return shown.encode("utf-8", "replace")[:_MAX_TEXT_BYTES].decode("utf-8", "ignore")


class JobConnection:
    """`hello`: who reports, without version and kind."""

    def __init__(self, path: str, hello: Mapping[str, object]) -> None:
        self._path = path
        self._hello = {"v": VERSION, "kind": "hello", **hello}
        self._socket: socket.socket | None = None
        self._next_attempt = 0.0

    def send(self, packet: Mapping[str, object]) -> bool:
        """False if it could not be sent. Connects first, at most every 30 s."""
        if self._socket is not None:
            self._drain(self._socket)
        if self._socket is None and not self._connect():
            return False
        assert self._socket is not None
        data = json.dumps({"v": VERSION, **packet}, ensure_ascii=False, allow_nan=False).encode()
        try:
            self._send(self._socket, data)
        except BlockingIOError:
            return False
        except OSError:
            self.close()
            return False
        return True

    def close(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def _connect(self) -> bool:
        now = time.monotonic()
        if not self._path or now < self._next_attempt:
            return False
        self._next_attempt = now + _RETRY_S
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened.setblocking(False)
        try:
            opened.connect(self._path)
            self._send(opened, json.dumps(self._hello).encode())
        except OSError:
            opened.close()
            return False
        self._socket = opened
        return True

    @staticmethod
    def _send(connection: socket.socket, data: bytes) -> None:
        assert len(data) <= MAX_PACKET_BYTES, "the caller limits its texts"
        connection.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _drain(self, connection: socket.socket) -> None:
        """Discards what the daemon sent, and finds out whether it is still there. A page is closed
        by the kernel, as no room is given for it.
        """
        with suppress(BlockingIOError):
            try:
                while connection.recv(MAX_PACKET_BYTES):
                    pass
            except BlockingIOError:
                raise
            except OSError:
                pass
            self.close()


def describe_absence(path: str) -> str:
    if not path:
        return f"{SOCKET_VARIABLE} is empty"
    reason = "no daemon listens" if os.path.exists(path) else "there is no such socket"  # noqa: PTH110
    return f"{path}: {reason}"
