"""The real daemon over what a newer vitald left, and commands and daemons of different versions."""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.harness import PYTHON, ROOT, Json, Node
from tests.unit.test_ledger_versions import write_ledger
from tests.waiting import WAIT_S
from vitald import __version__
from vitald.cli import client
from vitald.ledger.schema import VERSION
from vitald.ledger.store import FILE

Make = Callable[..., Node]


@contextmanager
def told_to_systemd(folder: Path) -> Iterator[list[str]]:
    """What a process says to the socket that systemd would have given it; read when it has
    ended.
    """
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(folder / "notify"))
        sock.settimeout(0.2)
        yield heard
        try:
            while True:
                heard.append(sock.recv(4096).decode())
        except TimeoutError:
            pass


def start(node: Node, folder: Path) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    with told_to_systemd(folder) as heard:
        environment = {**os.environ, "NOTIFY_SOCKET": str(folder / "notify")}
        done = subprocess.run(
            node.command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, env=environment
        )
    return done, heard


@pytest.mark.core
def test_a_newer_ledger_ends_the_daemon_and_says_why(make_node: Make, tmp_path: Path) -> None:
    """Exit 69, which systemd does not restart; why stands on standard error and is the service's
    last word.
    """
    node = make_node()
    with closing(sqlite3.connect(write_ledger(node.state) / FILE)) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = {path.name: path.read_bytes() for path in node.state.iterdir()}
    done, heard = start(node, tmp_path)
    assert done.returncode == 69
    assert {path.name: path.read_bytes() for path in node.state.iterdir()} == before
    for told in (done.stderr, heard[-1].removeprefix("STATUS=")):
        for part in (
            f"{node.state / FILE}",
            "newer vitald",
            f"schema is {VERSION + 1}",
            f"knows {VERSION}.",
            "Install the newer",
        ):
            assert part in told, part
    assert "READY=1" not in heard


def test_a_wrong_configuration_is_the_last_word_too(make_node: Make, tmp_path: Path) -> None:
    node = make_node()
    node.config.write_text("[log]\nlevle = 'info'\n")
    done, heard = start(node, tmp_path)
    assert done.returncode == 78
    assert heard == [f"STATUS={node.config}:2: [log] levle: unknown key, did you mean level?"]


def test_the_service_is_not_started_again_in_vain() -> None:
    unit = (ROOT / "systemd" / "vitald.service").read_text()
    (codes,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.M)
    assert {"69", "78"} <= {*codes.split()}


def fake_systemctl(folder: Path, state: str, code: int, text: str) -> str:
    path = folder / "systemctl"
    path.write_text(
        f"#!/bin/sh\nprintf 'ActiveState=%s\\nExecMainStatus=%s\\nStatusText=%s\\n' '{state}'"
        f" {code} '{text}'\n"
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("state", "code", "text", "answer"),
    [
        (
            "failed",
            69,
            "ledger.db: written by a newer vitald",
            "could not start: ledger.db: written by a newer vitald",
        ),
        ("failed", 78, "", "could not start: its configuration is wrong; try: vitald config check"),
        ("failed", 69, "", "could not start: try: journalctl -u vitald"),
        ("inactive", 0, "", "try: systemctl status vitald"),
        ("active", 69, "an old word", "try: systemctl status vitald"),
    ],
)
def test_who_asks_is_told_why_nobody_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, code: int, text: str, answer: str
) -> None:
    monkeypatch.setattr(client, "_SYSTEMD_FOLDER", tmp_path)
    monkeypatch.setattr(client, "_SYSTEMCTL", fake_systemctl(tmp_path, state, code, text))
    monkeypatch.setattr(client, "_SYSTEM_SOCKET", tmp_path / "none.sock")
    assert answer in str(client._explain_no_answer(tmp_path / "none.sock", FileNotFoundError()))
    assert "could not start" not in str(
        client._explain_no_answer(tmp_path / "another.sock", FileNotFoundError())
    )


def test_a_systemd_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "systemctl"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(client, "_SYSTEMD_FOLDER", tmp_path)
    monkeypatch.setattr(client, "_SYSTEMCTL", str(slow))
    monkeypatch.setattr(client, "_SYSTEMCTL_TIMEOUT_S", 0.2)
    assert client._explain_daemon_exit() == ""


# --- another version at the other end


@contextmanager
def daemon_of(folder: Path, server: str, answers: dict[str, Json]) -> Iterator[Path]:
    """What answers as a daemon of that version would; a path that it does not have is a 404."""
    path = folder / "other.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                asked = client.recv(65536).decode().split(" ")[1].partition("?")[0]
                body = json.dumps(answers.get(asked, {"error": "Not Found"})).encode()
                head = (
                    f"HTTP/1.1 {200 if asked in answers else 404} X\r\nContent-Length:"
                    f" {len(body)}\r\n"
                )
                client.sendall(
                    f"{head}{f'Server: {server}' if server else 'X-None: 1'}\r\nConnection:"
                    " close\r\n\r\n".encode()
                    + body
                )

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield path
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def vitald(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PYTHON, "-m", "vitald", *arguments, "--socket", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


VERDICT: Json = {
    "status": "degraded",
    "rebootRequired": False,
    "replacementRequired": False,
    "reasons": ["dimm/1: corrected errors"],
}


@pytest.mark.parametrize(
    ("server", "named"),
    [
        ("vitald/9.9.9", "vitald 9.9.9"),
        ("", "an older version"),
        ("Python/3.11", "an older version"),
    ],
)
def test_a_command_and_a_daemon_of_different_versions(
    tmp_path: Path, server: str, named: str
) -> None:
    """A verdict is a verdict; what the other does not have is said, with both versions, and is
    never a traceback or a healthy node.
    """
    with daemon_of(
        tmp_path, server, {"/v1/status": VERDICT, "/v1/findings": {"findings": [{"id": 1}]}}
    ) as path:
        done = vitald(path, "check", "--strict")
        assert (done.returncode, done.stdout) == (10, "degraded: dimm/1: corrected errors\n")
        for verb, code in (("status", 30), ("findings", 30), ("components", 69), ("gpus", 69)):
            done = vitald(path, verb)
            assert done.returncode == code, (verb, done)
            assert "Traceback" not in done.stderr and "vitald: " in done.stderr, verb
            assert (
                named in done.stderr and f"this command is vitald {__version__}" in done.stderr
            ), done.stderr


def test_a_later_verdict_is_not_guessed_at(tmp_path: Path) -> None:
    with daemon_of(
        tmp_path, "vitald/9.9.9", {"/v1/status": {**VERDICT, "status": "resting"}}
    ) as path:
        for verb in ("check", "status"):
            assert vitald(path, verb).returncode == 30


def test_a_daemon_says_which_it_is_and_what_it_has(shared_node: Node) -> None:
    """On every answer, the refusals too; and a path of another version of the API is told
    as JSON.
    """
    for path, expected in (
        ("/v1/status", 200),
        ("/v2/status", 404),
        ("/v1/status?x=1", 400),
        ("/", 404),
    ):
        done = subprocess.run(
            ["curl", "-si", "--unix-socket", str(shared_node.socket), f"http://vitald{path}"],
            capture_output=True,
            text=True,
            check=True,
        )
        head, _, body = (
            done.stdout.partition("\n\n")
            if "\r\n\r\n" not in done.stdout
            else done.stdout.partition("\r\n\r\n")
        )
        assert f" {expected} " in head.splitlines()[0]
        assert f"Server: vitald/{__version__}" in head
        if expected == 404:
            told = json.loads(body)
            assert (
                "version 1" in told["error"]
                and "/v1" in told["error"]
                and "/v1/openapi.json" in told["hint"]
            )


def test_a_command_knows_its_own_daemon(shared_node: Node) -> None:
    done = shared_node.cli("status")
    assert f"vitald {__version__}, up" in done.stdout
    done = shared_node.cli("findings", "--json")
    assert done.returncode == 0 and "this command is" not in done.stderr
