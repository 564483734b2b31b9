"""
Hostile clients of the job socket, each a process that gives other processes precedence, as jobs do
on a node: for tests and benchmarks.

    python -m tests.job_flooder SOCKET KIND UID
"""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.harness import ROOT

_KEPT, _HELD = 30, 300  # connections
_ERROR = b'{"kind":"error","what":"nan","text":"flood"}'
_DEEP = b"[" * 2000
FLOODER = 65534  # a user; only root may become one
_ROUNDS = 1000  # from one check of the parent to the next


def main(path: str, kind: str, uid: int) -> None:
    """Until it is killed, or its parent has ended."""
    parent = os.getppid()
    become(uid, Path(path).parent)
    flood = KINDS[kind](Path(path).name)
    print("ready", flush=True)
    while os.getppid() == parent:
        for _ in range(_ROUNDS):
            next(flood)


def become(uid: int, folder: Path) -> None:
    """Another user, in a folder whose parents it may not enter, who gives way to other processes."""
    os.nice(19)
    os.chdir(folder)
    if os.getuid() == 0:
        os.setresuid(uid, uid, uid)


def _send_packets(path: str) -> Iterator[None]:
    """Packets that are right, over connections that said hello."""
    return _send(path, lambda: _ERROR)


def _send_garbage(path: str) -> Iterator[None]:
    return _send(path, lambda: random.choice([b"x" * 3000, b"[", _DEEP, random.randbytes(64)]))


def _send(path: str, make_packet: Callable[[], bytes]) -> Iterator[None]:
    """Over 30 connections by turns. One that the daemon closed is made again."""
    socks = [_greet(path, number) for number in range(_KEPT)]
    for number in itertools.count(_KEPT):
        place = number % _KEPT
        try:
            socks[place].send(make_packet(), socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except OSError:
            socks[place].close()
            socks[place] = _greet(path, number)
        yield


def _connect_often(path: str) -> Iterator[None]:
    while True:
        _connect(path).close()
        yield


def _hold_connections(path: str) -> Iterator[None]:
    """300 at once. One that the daemon closed is made again."""
    socks = [_connect(path) for _ in range(_HELD)]
    for number in itertools.count():
        place = number % _HELD
        if not _is_open(socks[place]):
            socks[place].close()
            socks[place] = _connect(path)
        yield


KINDS: Mapping[str, Callable[[str], Iterator[None]]] = {
    "packets": _send_packets,
    "garbage": _send_garbage,
    "connects": _connect_often,
    "held": _hold_connections,
}


def _is_open(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _connect(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with suppress(OSError):
        made.connect(path)
    return made


def _greet(path: str, number: int) -> socket.socket:
    made = _connect(path)
    hello = {"v": 1, "kind": "hello", "rank": 0, "job": f"flood {number % 40}"}
    with suppress(OSError):
        made.send(json.dumps(hello).encode())
    return made


@contextmanager
def flooded(path: Path, kinds: Sequence[str], uid: int = FLOODER) -> Iterator[None]:
    """While one process of each kind floods the socket."""
    floods = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.job_flooder", str(path), kind, str(uid)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for kind in kinds
    ]
    try:
        for flood in floods:
            assert flood.stdout is not None and flood.stdout.readline() == "ready\n"
        yield
        assert all(flood.poll() is None for flood in floods), "a flooding process has ended"
    finally:
        for flood in floods:
            flood.kill()
            flood.communicate()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
