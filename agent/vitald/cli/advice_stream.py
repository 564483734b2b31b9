"""
The advice to jobs over the job socket, for users who may not read the API.

Owns     the packets of a listener: `vitald.model.job_page` lists them.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Generator
from pathlib import Path

from vitald.cli.connection import NoAnswer, default_socket
from vitald.model.job_page import MAX_PACKET_BYTES, VERSION, PacketKind

_FILE = Path("job/job.sock")  # beside the socket of the API
_ANSWER_S = 5.0


def follow_advice(api: Path | None, deadline: float | None) -> Generator[bool, None, None]:
    """Whether jobs are advised to save: now, and after each change. `api`: the socket of the API.
    Raises NoAnswer, also at `deadline` on the monotonic clock.
    """
    path = (api or default_socket()).parent / _FILE
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(str(path))
            connection.send(json.dumps({"v": VERSION, "kind": PacketKind.LISTEN.value}).encode())
            while data := connection.recv(MAX_PACKET_BYTES):
                yield _read_advice(data)
                left = None if deadline is None else max(0.001, deadline - time.monotonic())
                connection.settimeout(left)
    except (OSError, ValueError) as error:
        raise NoAnswer(f"no advice on {path}: {error}") from error


def _read_advice(data: bytes) -> bool:
    """Raises ValueError."""
    packet = json.loads(data)
    advice = packet.get("advice") if isinstance(packet, dict) else None
    if advice not in ("save", "none"):
        raise ValueError("it is no advice")
    return bool(advice == "save")
