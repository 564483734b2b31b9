"""The command line when the daemon is not there, hangs, or is something else: it never hangs, and
never says healthy.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import PYTHON, ROOT, Node
from tests.system.lines import pids, wait_for_pid, xid
from tests.waiting import WAIT_S, until


@contextmanager
def pretender(path: Path, serve: Callable[[socket.socket], object]) -> Iterator[Path]:
    """Something that listens in the daemon's place and is not the daemon."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    held: list[socket.socket] = []

    def run() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            held.append(client)
            try:
                serve(client)
            except OSError:
                pass

    threading.Thread(target=run, daemon=True).start()
    try:
        yield path
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for client in held:
            client.close()


def dribble(client: socket.socket) -> None:
    """An answer without an end, a byte at a time: each arrives well before the timeout."""
    client.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
    )
    while True:
        client.sendall(b" ")
        time.sleep(0.05)


def saying(body: bytes, status: bytes = b"200 OK") -> Callable[[socket.socket], None]:
    def serve(client: socket.socket) -> None:
        client.recv(65536)
        client.sendall(
            b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
            % (status, len(body), body)
        )
        client.close()

    return serve


def ask(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [PYTHON, "-m", "vitald", *arguments, "--socket", str(path), "--timeout", "0.3"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S)


@pytest.mark.parametrize(
    "serve",
    [
        lambda client: None,
        dribble,
        lambda client: client.close(),
        lambda client: client.sendall(b"\x00" * 100_000),
    ],
    ids=["never answers", "never ends", "hangs up", "no HTTP"],
)
def test_no_answer_is_unknown(tmp_path: Path, serve: Callable[[socket.socket], object]) -> None:
    with pretender(tmp_path / "sock", serve) as path:
        for arguments in (
            ("status",),
            ("why",),
            ("why", "1"),
            ("clear", "1", "--reason", "x"),
            ("remedy", "1", "--reason", "x"),
        ):
            done = ask(path, *arguments)
            assert (done.returncode, "Traceback" in done.stderr) == (30, False), (
                arguments,
                done.stderr,
            )
        check = ask(path, "check", "--json")
        assert (check.returncode, json.loads(check.stdout)["status"]) == (30, "unknown")


@pytest.mark.parametrize(
    "serve",
    [
        saying(b"hello"),
        saying(b"{}"),
        saying(b"[]"),
        saying(b"null"),
        saying(b'{"status": "fine"}'),
        saying(b'{"status": "healthy"}'),
        saying(b"[]", b"500 Oops"),
        saying(b"<html>", b"502 Bad Gateway"),
        saying(b'{"error": "too many clients"}', b"503 Service Unavailable"),
        saying(b"\xff\xfe"),
    ],
    ids=[
        "text",
        "empty object",
        "list",
        "null",
        "unknown status",
        "no reasons",
        "500",
        "502",
        "503",
        "no UTF-8",
    ],
)
def test_a_strange_answer_is_unknown(
    tmp_path: Path, serve: Callable[[socket.socket], object]
) -> None:
    """Neither a traceback nor exit code 1, and above all not healthy."""
    with pretender(tmp_path / "sock", serve) as path:
        for arguments in (("check",), ("check", "--for", "prolog"), ("status",)):
            done = ask(path, *arguments)
            assert (done.returncode, "Traceback" in done.stderr) == (30, False), (
                arguments,
                done.stderr,
            )
        done = ask(path, "why")  # it gives no verdict, so an error may be told as one
        assert (done.returncode in (30, 69), "Traceback" in done.stderr) == (
            True,
            False,
        ), done.stderr


@pytest.mark.core
def test_no_daemon(tmp_path: Path) -> None:
    """Absent, left over by one that was killed, or no socket at all: each in its words."""
    left, plain = tmp_path / "left", tmp_path / "plain"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(left))
    plain.touch()
    for path, said in (
        (tmp_path / "absent", "no socket at"),
        (left, "nobody listens on"),
        (plain, "nobody listens on"),
    ):
        done = ask(path, "check")
        assert (done.returncode, said in done.stdout) == (30, True), done.stdout


@pytest.mark.core
def test_a_frozen_daemon(shared_node: Node) -> None:
    """It accepts nothing and answers nothing: unknown, in time."""
    node = shared_node
    with node.frozen():
        for verb in ("check", "status"):
            assert ask(node.socket, verb).returncode == 30, verb
    assert ask(node.socket, "check").returncode == 0


@contextmanager
def following(node: Node, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [
        PYTHON,
        "-m",
        "vitald",
        "events",
        "--follow",
        "--json",
        *arguments,
        "--socket",
        str(node.socket),
    ]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def pid_in(line: str) -> int | None:
    """The process of a line of the log; None for the change of a finding."""
    entry = json.loads(line)
    return None if "change" in entry else int(pids([entry])[0])


@pytest.mark.core
def test_events_follow(node: Node) -> None:
    """First what was, then what comes, as it comes; narrowed all the while; it ends when the daemon
    does.
    """
    node.write(xid(1), xid(2, code=13, message="Graphics Exception"))
    wait_for_pid(node, 2)
    with following(node, "--code", "xid/79") as process:
        assert process.stdout is not None
        assert pid_in(process.stdout.readline()) == 1
        assert json.loads(process.stdout.readline())["change"] == "opened"
        until(lambda: node.metric("vitald_api_clients") == 1, "the stream to be open")
        node.write(xid(3, code=13, message="Graphics Exception"), xid(4))
        assert pid_in(process.stdout.readline()) == 4
        node.cli("clear", "--code", "xid/79", "--reason", "test")
        assert json.loads(process.stdout.readline())["change"] == "cleared"
        node.stop()
        assert process.wait(WAIT_S) in (0, 30)


def test_events_follow_leaves_no_gap(shared_node: Node) -> None:
    """What happens while the past is still being printed is shown too."""
    node = shared_node
    node.write(*(xid(number) for number in range(400)))
    wait_for_pid(node, 399)
    with following(node, "--since", "0") as process:
        assert process.stdout is not None
        pipe = process.stdout.fileno()
        until(lambda: waiting_in(pipe), "the past")  # 240 KB of it, for a pipe that holds 64
        node.write(xid(1000))
        wait_for_pid(node, 1000)
        shown = [pid_in(process.stdout.readline())]
        while shown[-1] != 399:
            shown.append(pid_in(process.stdout.readline()))
        until(lambda: node.metric("vitald_api_clients") == 1, "the stream to be open")
        node.write(xid(2000))
        while shown[-1] != 2000:
            shown.append(pid_in(process.stdout.readline()))
        assert shown.count(None) == 1, "the finding is opened once"
        assert [pid for pid in shown if pid is not None] == [*range(400), 1000, 2000]


def waiting_in(pipe: int) -> int:
    """Bytes written to a pipe and not yet read."""
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0])


def test_a_reader_that_goes_away(shared_node: Node) -> None:
    """`vitald events | head -1` is no error."""
    node = shared_node
    node.write(*(xid(number) for number in range(400)), xid(401))
    wait_for_pid(node, 401)
    command = (
        f"{PYTHON} -m vitald events --since 0 --json --socket {node.socket} | head -1; exit"
        " ${PIPESTATUS[0]}"
    )
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S
    )
    assert (done.returncode, done.stderr, pid_in(done.stdout)) == (0, "", 0)
