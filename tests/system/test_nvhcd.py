"""`vitald nvhcd` in front of a real daemon: what a gRPC client gets, byte by byte too, and clients
that are hostile.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import stat
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError

from tests.harness import PYTHON, ROOT, Node
from tests.logged_process import LoggedProcess
from tests.pace import patient
from tests.system.lines import remap, xid
from vitald.cli.nvhcd.server import MAX_BYTES, MAX_PER_USER

METHOD = "/nvhcd.HealthCheckService/RunHealthCheck"
REQUEST = b"\x0a\x0a--no-slurm"  # as ft_launcher: args = ["--no-slurm"]
_MEMORY_KIB = 64 * 1024  # MemoryMax= of its unit


class HealthService(LoggedProcess):
    """The real `vitald nvhcd`."""

    def __init__(self, folder: Path, node: Node, unknown: str = "allow") -> None:
        super().__init__(folder / "nvhcd.log")
        self.folder = folder
        self.socket = folder / "job/nvhcd.sock"
        self.config = folder / "nvhcd.toml"
        self.config.write_text(
            f'[paths]\nruntime = "{folder}"\n[socket]\npath = "{node.socket}"\n'
            f'[nvhcd]\nunknown = "{unknown}"\n'
        )

    def start(self, *, wait: bool = True) -> None:
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [PYTHON, "-m", "vitald", "nvhcd", "--config", str(self.config)],
                stdout=errors,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ},
            )
        if wait:
            Node.until(lambda: self.read_log("serving"), 15.0, "vitald nvhcd")

    def connect(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.connect(str(self.socket))
        made.settimeout(patient(10.0))
        return made

    def memory_kib(self) -> int:
        assert self.process is not None
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0])


class RawCodec(CodecBase):
    """Bytes as they are."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


def parse_fields(data: bytes) -> dict[int, Any]:
    """The fields of a message by their number, by a parser of the test's own."""
    found: dict[int, Any] = {}
    at = 0

    def read_varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = read_varint()
        if key & 7 == 0:
            found[key >> 3] = read_varint()
        else:
            assert key & 7 == 2
            size = read_varint()
            found[key >> 3] = data[at : at + size].decode()
            at += size
    return found


def ask(service: HealthService, method: str = METHOD, request: bytes = REQUEST) -> dict[int, Any]:
    return ask_at(service.socket, method, request)


def ask_at(path: Path, method: str = METHOD, request: bytes = REQUEST) -> dict[int, Any]:
    """One request by grpclib's client."""

    async def call() -> bytes:
        channel = Channel(path=str(path), codec=RawCodec())
        try:
            unary = UnaryUnaryMethod(channel, method, bytes, bytes)
            return await unary(request, timeout=patient(20.0))
        finally:
            channel.close()

    return parse_fields(asyncio.run(call()))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path / "n") as made:
        yield made


@pytest.fixture
def start(tmp_path: Path, node: Node) -> Iterator[Callable[..., HealthService]]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(HealthService(tmp_path, node, **options))


def test_fit_unfit_and_stopped(node: Node, start: Callable[..., HealthService]) -> None:
    service = start()
    assert stat.S_IMODE(service.socket.stat().st_mode) == 0o666
    assert stat.S_IMODE(service.socket.parent.stat().st_mode) == 0o755
    fit = ask(service)
    assert fit[1] == 1 and 2 not in fit and 4 not in fit
    assert json.loads(fit[3])["fail_count"] == 0
    assert json.loads(fit[3])["vitald"]["status"] == "healthy"

    node.write(xid(1))
    node.wait(lambda status: status["status"] == "unhealthy")
    unfit = ask(service)
    assert 1 not in unfit and unfit[2] == 20
    assert json.loads(unfit[3])["failed_checks"] == [
        "gpu/0000:65:00.0: GPU has fallen off the bus (xid/79)"
    ]

    node.stop()
    stopped = ask(service)
    assert stopped[1] == 1 and json.loads(stopped[3])["fail_count"] == 0
    assert json.loads(stopped[3])["vitald"] == {
        **json.loads(fit[3])["vitald"],
        "status": "unknown",
        "answers": False,
    }
    node.start()  # the fault is in the ledger
    assert ask(service)[2] == 20
    service.stop()
    assert not service.socket.exists()


def test_a_site_that_refuses_unknown_nodes(node: Node, start: Callable[..., HealthService]) -> None:
    service = start(unknown="refuse")
    assert ask(service)[1] == 1
    node.stop()
    refused = ask(service)
    assert 1 not in refused and refused[2] == 30
    assert json.loads(refused[3])["fail_count"] == 1


def test_what_waits_for_the_running_job_is_due_before_the_next(tmp_path: Path) -> None:
    """As `vitald check --for prolog`: the ranks of a job begin anew."""
    after_job = '[catalog.overrides."xid/63"]\nwhen = "after_job"\ncases = []\n'
    with Node(tmp_path / "n", extra=after_job) as node, HealthService(tmp_path, node) as service:
        node.write(remap(1))
        node.wait(lambda status: status["findings"])
        assert node.cli("check").returncode == 0
        assert node.cli("check", "--for", "prolog").returncode == 20
        assert ask(service)[2] == 20


def exchange(service: HealthService, method: str = METHOD) -> list[h2.events.Event]:
    """What a client that is only HTTP/2 gets for a request of gRPC."""
    connection = begin_request(method)
    connection.send_data(1, struct.pack(">BI", 0, len(REQUEST)) + REQUEST, end_stream=True)
    got: list[h2.events.Event] = []
    with service.connect() as sock:
        sock.sendall(connection.data_to_send())
        while not any(isinstance(event, h2.events.StreamEnded) for event in got):
            data = sock.recv(65536)
            assert data
            got += connection.receive_data(data)
            sock.sendall(connection.data_to_send())
    return got


def begin_request(method: str = METHOD) -> h2.connection.H2Connection:
    connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    connection.initiate_connection()
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("grpc-timeout", "60S"),
    ]
    connection.send_headers(1, headers)
    return connection


def headers_of(event: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in event.headers}


def test_the_exchange_byte_by_byte(start: Callable[..., HealthService]) -> None:
    """As gRPC over HTTP/2 defines it."""
    got = exchange(start())
    head = headers_of(next(each for each in got if isinstance(each, h2.events.ResponseReceived)))
    assert head[":status"] == "200" and head["content-type"].startswith("application/grpc")
    body = b"".join(each.data or b"" for each in got if isinstance(each, h2.events.DataReceived))
    assert body[:1] == b"\0" and struct.unpack(">I", body[1:5])[0] == len(body) - 5
    assert body[5:8] == b"\x08\x01\x1a"  # field 1: true; field 3: a text
    assert json.loads(parse_fields(body[5:])[3])["fail_count"] == 0
    end = headers_of(next(each for each in got if isinstance(each, h2.events.TrailersReceived)))
    assert end["grpc-status"] == "0"


def test_another_method_and_any_arguments(start: Callable[..., HealthService]) -> None:
    service = start()
    got = exchange(service, "/nvhcd.HealthCheckService/Reboot")
    head = headers_of(next(each for each in got if isinstance(each, h2.events.ResponseReceived)))
    assert head["grpc-status"] == "12"  # UNIMPLEMENTED
    for request in (b"", b"\xff" * 1000, random.Random(1).randbytes(5000)):
        assert ask(service, request=request)[1] == 1


def test_hostile_clients(node: Node, start: Callable[..., HealthService]) -> None:
    """Garbage, half a request, a message of 4 GiB, 300 connections: they are cut off, the answers
    stay right, and memory below the limit of the unit.
    """
    service = start()
    ask(service)
    before = service.memory_kib()
    noise = random.Random(7)
    for _ in range(50):
        with service.connect() as sock, suppress(OSError):
            sock.sendall(noise.randbytes(noise.randrange(1, 20_000)))
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
    for data in (huge_message(), unknown_frames(), pings()):
        with service.connect() as sock:
            send_until_cut_off(sock, data)
    assert ask(service)[1] == 1

    with ExitStack() as stack:
        crowd = [stack.enter_context(service.connect()) for _ in range(300)]
        Node.until(lambda: count_closed(crowd) >= 300 - MAX_PER_USER, 20.0, "refused connections")
        for sock in crowd[:8]:  # room for this user's own request
            sock.close()
        Node.until(lambda: tries_to_ask(service), 20.0, "an answer beside the crowd")
    node.write(xid(1))
    node.wait(lambda status: status["status"] == "unhealthy")
    Node.until(lambda: tries_to_ask(service) == 20, 20.0, "the verdict after the crowd")
    assert service.memory_kib() < min(_MEMORY_KIB, before + 16 * 1024)
    assert len(service.errors.read_text()) < 20_000  # nor can they fill the log
    assert service.process is not None and service.process.poll() is None


def huge_message() -> bytes:
    """One of 4 GiB, as far as its length goes, and its next frame at the end. The server's settings
    are acknowledged, so its window is 4 MiB, and moves on as it reads.
    """
    connection = begin_request()
    connection.send_data(1, b"\0\xff\xff\xff\xff")
    first = connection.data_to_send() + b"\0\0\0\x04\x01\0\0\0\0" * 2
    connection.send_data(1, b"x" * 8183)
    return first + connection.data_to_send()


def unknown_frames() -> bytes:
    """Frames of a type that HTTP/2 does not define: grpclib raises NotImplementedError."""
    return begin_request().data_to_send() + b"\0\0\0\xbb\0\0\0\0\0" * 1000


def pings() -> bytes:
    connection = begin_request()
    for _ in range(500):
        connection.ping(b"12345678")
    return connection.data_to_send()


def send_until_cut_off(sock: socket.socket, data: bytes) -> None:
    """`data`, and its last part again and again, without reading an answer."""
    sent = 0
    with suppress(BrokenPipeError, ConnectionResetError):
        sock.sendall(data)
        while sent < 100 * MAX_BYTES:
            sock.sendall(data[-8192:])
            sent += 8192
        raise AssertionError("it takes everything")


def count_closed(crowd: list[socket.socket]) -> int:
    closed = 0
    for sock in crowd:
        sock.settimeout(0.0)
        with suppress(BlockingIOError):
            try:
                while sock.recv(4096):
                    pass
                closed += 1
            except ConnectionResetError:
                closed += 1
    return closed


def tries_to_ask(service: HealthService) -> int:
    """The exit code of the answer, or 1 where there is none that refuses; 0 without an answer."""
    with suppress(OSError, GRPCError, Exception):
        return int(ask(service).get(2, 1))
    return 0


def test_requests_at_once_are_all_answered(start: Callable[..., HealthService]) -> None:
    """Each rank of a node may have a launcher."""
    service = start()

    async def call_all() -> list[bytes]:
        channel = Channel(path=str(service.socket), codec=RawCodec())
        try:
            unary = UnaryUnaryMethod(channel, METHOD, bytes, bytes)
            calls = [unary(REQUEST, timeout=patient(20.0)) for _ in range(64)]
            return list(await asyncio.gather(*calls))
        finally:
            channel.close()

    assert {parse_fields(each)[1] for each in asyncio.run(call_all())} == {1}


def test_a_hung_daemon_is_an_unknown_state(node: Node, start: Callable[..., HealthService]) -> None:
    service = start(unknown="refuse")
    with node.frozen():
        began = time.monotonic()
        refused = ask(service)
        assert refused[2] == 30
        assert time.monotonic() - began < patient(15.0)  # the client waits for 60 s
    assert ask(service)[1] == 1


def test_its_socket(tmp_path: Path, node: Node) -> None:
    """One that a killed process left is replaced; a second process, or a file, is not."""
    with HealthService(tmp_path, node) as service:
        second = run(service)
        assert second.returncode == 69 and "another process listens there" in second.stderr
        service.stop(signal.SIGKILL)
        assert service.socket.exists()
        service.start()
        Node.until(lambda: len(service.read_log("serving")) == 2, 15.0, "its second start")
        assert ask(service)[1] == 1
    service.socket.write_text("mine")
    third = run(service)
    assert third.returncode == 69 and "it exists, and is no socket" in third.stderr
    assert service.socket.read_text() == "mine"


def run(service: HealthService) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PYTHON, "-m", "vitald", "nvhcd", "--config", str(service.config)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patient(60.0),
    )


def test_a_wrong_configuration_names_the_place(tmp_path: Path, node: Node) -> None:
    service = HealthService(tmp_path, node, unknown="perhaps")
    done = run(service)
    assert done.returncode == 78
    assert f"{service.config}:6: [nvhcd] unknown: " in done.stderr
