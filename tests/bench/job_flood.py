"""
job_flood: how fast the API answers while other processes flood the job socket, and what that costs
the daemon.

A flood is two processes of another user. The floor is the same daemon's API while the same two
flood a bare listener, which takes all that comes, in a process that gives way to others as the two
do. Both are measured by turns, so that other work on the machine reaches both: what the daemon
itself adds is the difference. `none` is without a flood. `welcome` is how long a client of a third
user waits, from its first attempt to connect, which does not block, to its welcome.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from tests.bench.measure import (
    SETTLE_S,
    Connection,
    Helper,
    Json,
    Node,
    Usage,
    less,
    load,
    memory_mib,
    node,
    percentile,
    pid_of,
    scratch,
    spread,
    timed,
)
from tests.job_flooder import become, flooded

TURNS, TURN_S = 4, 3.0
_GAP_S = 0.01
_WELCOME_S = 2.0
_THIRD_USER = 65533
_ROUTE = "/v1/jobs"
FLOODS: dict[str, tuple[str, ...]] = {
    "none": (),
    "packets": ("packets", "packets"),
    "garbage": ("garbage", "garbage"),
    "connects": ("connects", "connects"),
    "held": ("held", "held"),
    "mixed": ("packets", "connects"),
}


def run() -> Json:
    with scratch() as folder, node(folder) as running:
        job = running.runtime / "job/job.sock"
        running.until(job.exists, 10.0, "the job socket")
        time.sleep(SETTLE_S)
        before = memory_mib(pid_of(running))
        figures: Json = {
            name: _measure_flood(running, job, folder / f"{name}.sock", kinds)
            for name, kinds in FLOODS.items()
        }
        return {
            "unit": "ms",
            "route": _ROUTE,
            "memory_before_mib": before,
            **figures,
            "memory_after_mib": memory_mib(pid_of(running)),
            "socket": running.get("/v1/jobs")["socket"],
        }


def _measure_flood(running: Node, job: Path, bare: Path, kinds: Sequence[str]) -> Json:
    """The floor and the daemon by turns, and what the daemon used during its own."""
    pid = pid_of(running)
    times: dict[str, list[float]] = {"daemon": [], "floor": []}
    welcomes: list[float] = []
    attempts = 0
    used_s = 0.0
    with Helper(_listen, bare), Helper(_connect_ranks, job) as rank:
        for _ in range(TURNS):
            with flooded(bare, kinds) if kinds else nullcontext():
                times["floor"] += _ask_api(running)
            with flooded(job, kinds) if kinds else nullcontext():
                rank.pipe.send("go")
                usage = Usage.of(pid)
                began = time.monotonic()
                times["daemon"] += _ask_api(running)
                used_s += Usage.of(pid).since(usage).cpu_s / (time.monotonic() - began)
                tried = rank.ask()
                assert isinstance(tried, tuple)
                attempts, welcomes = attempts + tried[0], [*welcomes, tried[1]]
    figures = {name: _describe(taken) for name, taken in times.items()}
    return {
        **figures,
        "difference": less(figures["daemon"], figures["floor"]),
        "daemon_cpu_share": round(used_s / TURNS, 3),
        "welcome": {**spread(welcomes), "attempts": attempts},
        "rss_mib": memory_mib(pid)["rss"],
        "load": load(),
    }


def _describe(taken: Sequence[float]) -> Json:
    return {**spread(taken), "p95": round(1e3 * percentile(taken, 0.95), 3)}


def _ask_api(running: Node) -> list[float]:
    taken, until = [], time.monotonic() + TURN_S
    while time.monotonic() < until:
        taken.append(timed(lambda: running.get(_ROUTE))[0])
        time.sleep(_GAP_S)
    return taken


def _listen(pipe: Connection, path: Path) -> None:
    """The bare listener: takes and drops what comes, until the pipe ends."""
    os.nice(19)
    poll, clients = select.epoll(), dict[int, socket.socket]()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(256)
        for watched in (pipe, listener):
            poll.register(watched.fileno(), select.EPOLLIN)
        pipe.send("ready")
        while pipe.fileno() not in (ready := [number for number, _ in poll.poll()]):
            for number in ready:
                if number == listener.fileno():
                    client, _ = listener.accept()
                    clients[client.fileno()] = client
                    poll.register(client.fileno(), select.EPOLLIN)
                elif not _receive(clients[number]):
                    clients.pop(number).close()


def _receive(client: socket.socket) -> bytes:
    try:
        return client.recv(4096, socket.MSG_DONTWAIT)
    except OSError:
        return b""


def _connect_ranks(pipe: Connection, path: Path) -> None:
    """When asked: attempts to connect without blocking until one is welcomed. Sends their number
    and the seconds that it took.
    """
    become(_THIRD_USER, path.parent)
    pipe.send("ready")
    while pipe.poll(None):
        try:
            pipe.recv()
        except EOFError:
            return
        began, attempts = time.monotonic(), 1
        while not _is_welcomed(path.name):
            attempts += 1
            time.sleep(_GAP_S)
        pipe.send((attempts, time.monotonic() - began))


def _is_welcomed(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.setblocking(False)
        try:
            client.connect(path)
            client.send(b'{"v":1,"kind":"hello","rank":0,"job":"good"}')
            client.settimeout(_WELCOME_S)
            welcome = client.recv(4096)
            client.send(b'{"kind":"phase","phase":"end"}')
        except OSError:
            return False
        return bool(welcome)
