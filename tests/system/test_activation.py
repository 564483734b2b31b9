"""Socket activation, as systemd does it: it holds the socket while the daemon is away, and requests
wait there.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.harness import Node
from tests.system.lines import xid
from tests.waiting import WAIT_S, until

Make = Callable[..., Node]


@contextmanager
def held(node: Node, path: Path) -> Iterator[None]:
    """A listening socket that the node is handed at each start, with its number among the variables
    that say so.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(64)
        number = listening.fileno()
        node.fds = (number,)
        # Its process id is known to the shell only, and stays its own when it becomes the daemon.
        handing = (
            f"exec 3<&{number} {number}<&-; export LISTEN_FDS=1 LISTEN_PID=$$"
            ' LISTEN_FDNAMES=vitald.socket; exec "$@"'
        )
        node.command = ["bash", "-c", handing, "bash", *node.command]
        yield


@pytest.fixture
def node(make_node: Make) -> Iterator[Node]:
    made = make_node()
    with held(made, made.socket):
        yield made


def test_requests_wait_while_the_daemon_is_away(node: Node) -> None:
    node.start()
    node.write(xid(79))
    until(lambda: node.status()["rebootRequired"] is True, "the finding")
    for number in (signal.SIGTERM, signal.SIGKILL):
        node.stop(number)
        assert node.socket.exists(), "it is systemd's to remove"
        with ThreadPoolExecutor(20) as pool:
            asked = [pool.submit(node.request, "GET", "/v1/status") for _ in range(20)]
            node.start(wait=False)
            answers = [one.result() for one in asked]
        assert {(code, answer["rebootRequired"]) for code, answer in answers} == {(200, True)}


def test_requests_wait_through_restarts_under_load(node: Node) -> None:
    """`vitald check` in a prolog while the package is upgraded."""
    node.start()
    codes: list[object] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            try:
                codes.append(node.request("GET", "/healthz")[0])
            except (OSError, HTTPException) as error:
                codes.append(repr(error))

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(5):
        node.stop()
        before = len(codes)
        node.start(wait=False)
        until(lambda: len(codes) > before + 5, "answers")
    over.set()
    asking.join(WAIT_S)
    assert set(codes) == {200}


@pytest.mark.core
def test_what_it_starts_does_not_inherit_the_socket(node: Node) -> None:
    node.start()
    assert node.process is not None
    lines = Path(f"/proc/{node.process.pid}/fdinfo/3").read_text().splitlines()
    flags = next(int(line.split()[1], 8) for line in lines if line.startswith("flags:"))
    assert flags & os.O_CLOEXEC


def test_another_path_in_the_configuration_is_served_too(make_node: Make, tmp_path: Path) -> None:
    node = make_node()
    elsewhere = tmp_path / "elsewhere.sock"
    with held(node, elsewhere):
        node.start()
        node.socket, own = elsewhere, node.socket
        assert node.answers("/healthz")
        node.socket = own
        node.stop()
        assert (elsewhere.exists(), own.exists()) == (True, False)


def test_a_group_that_the_socket_does_not_have_is_said(make_node: Make) -> None:
    node = make_node(extra='[socket]\ngroup = "daemon"\n')
    with held(node, node.socket):
        node.start()
        (entry,) = node.said("socket_group")
        assert "SocketGroup=" in str(entry["next_step"])


def test_another_processes_sockets_are_left_alone(make_node: Make) -> None:
    node = make_node()
    node.environment = {"LISTEN_FDS": "1", "LISTEN_PID": "1"}
    node.start()
    assert node.cli("check").returncode == 0
