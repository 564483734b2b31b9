"""Answers that no daemon of ours would give: each is one line of words and exit code 30, and costs
little memory.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.harness import ROOT
from tests.waiting import WAIT_S
from vitald.cli import client, main
from vitald.cli.client import NoAnswer
from vitald.server import endpoints

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
MOST_KIB = 96 * 1024
# Its exit code, and as the last line of its complaints the most memory that it ever had.
_ASKED = """
import sys
from vitald.cli import main
try:
    main()
finally:
    with open("/proc/self/status") as status:
        print(status.read().partition("VmHWM:")[2].split()[0], file=sys.stderr)
"""
Answers = Callable[..., Path]


def with_length(body: bytes) -> Iterator[bytes]:
    yield HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def endless(piece: bytes) -> Iterator[bytes]:
    """A body without an end, in as much at once as the socket takes."""
    yield HEAD + b"\r\n{"
    while True:
        yield piece * (65536 // len(piece))


def endless_chunks(size: int) -> Iterator[bytes]:
    yield HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    while True:
        yield (b"%x\r\n" % size + b"a" * size + b"\r\n") * (65536 // size)


@pytest.fixture
def answers(tmp_path: Path) -> Iterator[Answers]:
    """A socket of this user's own on which each client is sent the same, whatever it asks."""
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        place = tmp_path / "vitald.sock"

        def serve(made: Callable[[], Iterator[bytes]]) -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    connection.recv(65536)
                    for part in made():
                        connection.sendall(part)

        def begin(made: Callable[[], Iterator[bytes]]) -> Path:
            listener.bind(str(place))
            listener.listen(8)
            threading.Thread(target=serve, args=(made,), daemon=True).start()
            return place

        yield begin
        listener.shutdown(socket.SHUT_RDWR)


def asking(place: Path) -> argparse.Namespace:
    return argparse.Namespace(socket=place, timeout=WAIT_S)


def test_what_is_no_answer(answers: Answers, capsys: pytest.CaptureFixture[str]) -> None:
    bodies = [
        (b"[" * 100_000, "nested deeper"),
        (b"[" * 200_000, "parts"),
        (b'{"a":' * 200_000, "parts"),
        (b'{"a":' * 500 + b"1" + b"}" * 500, "nested deeper"),
        (b"[" * 40 + b"]" * 40, "nested deeper"),
        (b'{"a": [' + b"{}," * 200_000 + b"{}]}", "parts"),
        (b'{"a": "' + b"x" * 9_000_000 + b'"}', "bytes"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "no JSON"),
        (b"null", "no JSON object"),
        (b"[]", "no JSON object"),
        (b"\xff", "no JSON"),
        (b"", "no JSON"),
    ]
    left = [body for body, _ in bodies]
    place = answers(lambda: with_length(left.pop(0)))
    wrong = []
    for body, said in bodies:
        code = main(["findings", "--socket", str(place), "--timeout", "60"])
        lines = capsys.readouterr().err.splitlines()
        if (code, len(lines)) != (30, 1) or said not in lines[0]:
            wrong.append((len(body), body[:8], code, lines))
    assert wrong == []


def test_what_it_says_of_itself_drives_no_terminal(
    answers: Answers, capsys: pytest.CaptureFixture[str]
) -> None:
    body = json.dumps({"error": "no\x1b[2J", "hint": "see\nthere\x9b2J"}).encode()
    head = b"HTTP/1.1 404 x\r\nServer: vitald/9\x1b[31m\r\nContent-Length: %d\r\n\r\n" % len(body)
    place = answers(lambda: iter((head + body,)))
    assert main(["findings", "--socket", str(place)]) == 69
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()
    assert "no?[2J (see?there?2J; of the daemon: it is vitald 9?[31m" in line


def test_an_answer_as_large_as_they_get(answers: Answers) -> None:
    """A thousand findings, each with long lines of evidence."""
    finding = {
        "id": 1,
        "component": "gpu/0000:65:00.0",
        "evidence": [{"raw": "x" * 900}] * 4,
        "fields": {"pid": 1},
    }
    body = json.dumps({"findings": [finding] * 1000}).encode()
    place = answers(lambda: with_length(body))
    assert len(client.get(asking(place), endpoints.FINDINGS)["findings"]) == 1000


@pytest.mark.parametrize(
    ("line", "chunked"),
    [
        (b'{"a": "' + b"x" * 2_000_000 + b'"}\n', False),
        (b'{"a": "' + b"x" * 2_000_000 + b'"}\n', True),
        (b"[" * 100_000 + b"\n", False),
        (b"no JSON\n", True),
        (b"[]\n", False),
    ],
    ids=["long", "long, chunked", "deep", "no JSON", "list"],
)
def test_a_line_of_the_stream_that_is_none(answers: Answers, line: bytes, chunked: bool) -> None:
    first = b'{"type": "verdict"}\n'
    whole = (
        b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (first, line))
        if chunked
        else first + line
    )
    place = answers(
        lambda: iter(
            (HEAD + (b"Transfer-Encoding: chunked\r\n" if chunked else b"") + b"\r\n" + whole,)
        )
    )
    stream = client.follow_changes(asking(place))
    assert next(stream)["type"] == "verdict"
    with pytest.raises(NoAnswer):
        next(stream)


@pytest.mark.parametrize(
    "made",
    [
        lambda: endless(b"a"),
        lambda: endless(b"{},"),
        lambda: endless(b'"ab",'),
        lambda: endless_chunks(8),
        lambda: with_length(b'{"a": [' + b'{"b": 1},' * 100_000 + b"1]}"),
        lambda: with_length('{"a": "\U0001f600'.encode() + b"a" * 8_000_000 + b'"}'),
    ],
    ids=["bytes", "tables", "texts", "chunks of 8", "as many parts as may be", "wide characters"],
)
def test_what_it_costs(answers: Answers, made: Callable[[], Iterator[bytes]]) -> None:
    """A process of its own, whose memory is what a command run by root would have taken."""
    place = answers(made)
    command = [sys.executable, "-c", _ASKED, "findings", "--socket", str(place), "--timeout", "60"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=WAIT_S,
    )
    *said, most = done.stderr.splitlines()
    print(f"{int(most) / 1024:.0f} MiB: {said}")
    assert int(most) < MOST_KIB, f"{int(most) / 1024:.0f} MiB"
