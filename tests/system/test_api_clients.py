"""Clients that are malformed, oversized, slow or too many: a clear error, and nobody else is
delayed.
"""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from urllib.parse import quote

import pytest

from tests.harness import Node, UnixConnection
from tests.system.lines import fresh_pci, fresh_pid, pids, wait_for_pid, xid
from tests.waiting import WAIT_S, until

CLEAR = b"POST /v1/findings/1/clear HTTP/1.1\r\nHost: vitald\r\n"


def connected(node: Node, timeout: float = WAIT_S, *, port: bool = False) -> socket.socket:
    """To the socket, or to the port of the metrics."""
    if port:
        return socket.create_connection(("127.0.0.1", node.port), timeout)
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(timeout)
    made.connect(str(node.socket))
    return made


def answer(client: socket.socket) -> bytes:
    """All that comes until the other end closes."""
    received = b""
    try:
        while part := client.recv(1 << 16):
            received += part
    except ConnectionResetError:
        pass
    return received


def ask(node: Node, data: bytes, *, port: bool = False) -> bytes:
    with connected(node, port=port) as client:
        try:
            client.sendall(data)
        except BrokenPipeError:
            pass  # refused before it was whole
        return answer(client)


def serves(node: Node) -> None:
    """A line is judged and a question answered, as if nobody else were there."""
    pid = fresh_pid()
    node.write(xid(pid, pci=fresh_pci()))
    wait_for_pid(node, pid)


CLOSES = b"Host: vitald\r\nConnection: close\r\n"
LONG = b"a" * 50_000
MALFORMED = (
    b"hello\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
    b"GET\r\n\r\n",
    b"GET /healthz HTTP/9.9\r\nHost: vitald\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: vitald\r\nBroken header\r\n\r\n",
    CLEAR + b"Content-Length: -1\r\n\r\n",
    CLEAR + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /" + LONG + b" HTTP/1.1\r\nHost: vitald\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: vitald\r\nX-Long: " + LONG + b"\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: vitald\r\n"
    + b"".join(b"X-%d: y\r\n" % number for number in range(20_000))
    + b"\r\n",
)
# What the library refuses by itself, and the beginning of the status.
REFUSED = {
    b"GET /healthz HTTP/1.1\r\nExpect: odd\r\n": b"417",
    b"GET /odd HTTP/1.1\r\n": b"404",
    b"GET /%ff HTTP/1.1\r\n": b"404",
    b"BREW /metrics HTTP/1.1\r\n": b"40",
    b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n": b"40",
}


@pytest.mark.parametrize("port", [False, True], ids=["socket", "port"])
def test_malformed(shared_node: Node, port: bool) -> None:
    """An error as JSON without a byte of what was sent, and the connection is closed."""
    for data in MALFORMED:
        said = ask(shared_node, data, port=port)
        assert refused_as_json(said, b"400"), said
    for data, status in REFUSED.items():
        said = ask(shared_node, data + CLOSES + b"\r\n", port=port)
        assert refused_as_json(said, said.split(b" ", 2)[1]), said
        assert said.split(b" ", 2)[1].startswith(status), said
    serves(shared_node)


def refused_as_json(said: bytes, status: bytes) -> bool:
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"Content-Type: application/json" in head and b"Server: vitald/" in head, said
    assert set(json.loads(body)) <= {"error", "hint"}
    assert not any(
        echoed in body for echoed in (b"hello", b"aaa", b"9.9", b"Broken", b"odd", b"x16", b"X-")
    ), body
    return head.split(b" ", 2)[1] == status


def test_a_broken_chunk(shared_node: Node) -> None:
    for body in (
        *(b"zz\r\nodd\r\n0\r\n\r\n", b"5\r\noddodd", b"-1\r\nodd\r\n"),
        b"ffffffffffffffffff\r\nodd",
    ):
        head = CLEAR + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        said = ask(shared_node, head + body)
        assert refused_as_json(said, b"400"), said


def test_a_number_is_written_in_ascii(shared_node: Node) -> None:
    for number in ("१", "1²", "1x", "", "+1", "-1", "1_0"):
        for method, what, body in (("GET", "why", None), ("POST", "clear", {"reason": "x"})):
            path = f"/v1/findings/{quote(number)}/{what}"
            status, answer = shared_node.request(method, path, *([body] if body else []))
            assert (status, bool(answer["error"])) == (404 if not number else 400, True), number


@pytest.mark.core
def test_the_log_stays_a_log(shared_node: Node) -> None:
    """One JSON object a line, whatever clients send: who may read must not be able to write
    tracebacks into the journal.
    """
    ask(shared_node, b"GET /healthz HTTP/9.9\r\nHost: vitald\r\n\r\n")
    ask(
        shared_node,
        b"GET /healthz HTTP/1.1\r\nHost: vitald\r\nX-Long: " + b"a" * 50_000 + b"\r\n\r\n",
    )
    for line in shared_node.errors.read_text().splitlines():
        assert json.loads(line)["event"]


@pytest.mark.core
def test_oversized_body(shared_node: Node) -> None:
    """413 with a length that says so, and without one."""
    long = json.dumps({"reason": "x" * 20_000}).encode()
    said = ask(
        shared_node,
        CLEAR + b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(long), long),
    )
    assert said.startswith(b"HTTP/1.1 413"), said
    chunked = b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (
        len(long),
        long,
    )
    assert ask(shared_node, CLEAR + chunked).startswith(b"HTTP/1.1 413")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]
    serves(shared_node)


def test_a_body_that_is_no_object(shared_node: Node) -> None:
    for body in (
        *(b"", b"{", b"\xff\xfe", b"[" * 10_000, b'{"reason": ' + b"9" * 5000 + b"}"),
        *(b'"reason"', b"null"),
    ):
        head = CLEAR + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        said = ask(shared_node, head + body)
        assert said.startswith(b"HTTP/1.1 400"), said
        assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]


@pytest.fixture(scope="module")
def slow(shared_node: Node) -> dict[str, bytes]:
    """What slow clients were told before they were closed: one that says nothing, one that sends
    its header byte by byte, one that sends half a body. The daemon serves others meanwhile.
    """
    with (
        connected(shared_node) as silent,
        connected(shared_node) as dribbling,
        connected(shared_node) as half,
    ):
        half.send(CLEAR + b"Content-Length: 100\r\n\r\n{")
        dribbling.send(b"GET /healthz HTTP/1.1\r\nX: ")
        said = b""
        dribbling.settimeout(0.2)

        def is_closed() -> bool:
            nonlocal said
            serves(shared_node)
            try:
                dribbling.send(b"a")
                part = dribbling.recv(1 << 16)
            except TimeoutError:
                return False
            except (
                BrokenPipeError,
                ConnectionResetError,
            ):  # closed between two bytes; what was said is there to be read
                said += dribbling.recv(1 << 16)
                return True
            said += part
            return not part

        until(is_closed, "a client that dribbles to be closed")
        return {"silent": answer(silent), "dribbling": said, "half": half.recv(1 << 16)}


def test_slow_clients_are_told_why_and_closed(slow: dict[str, bytes], shared_node: Node) -> None:
    assert len(slow) == 3
    assert slow["half"].startswith(b"HTTP/1.1 408")
    assert slow["dribbling"].startswith(b"HTTP/1.1 408")
    assert (shared_node.metric("vitald_api_clients_timed_out_total") or 0) >= 2


def test_two_hundred_idle_clients(shared_node: Node) -> None:
    """Those over the limit are told so; who was there before is served, and the verdict is as quick
    as ever.
    """
    node, pid = shared_node, fresh_pid()
    refused_before = node.metric("vitald_api_clients_refused_total") or 0
    early = UnixConnection(node.socket)
    early.request("GET", "/v1/status")
    early.getresponse().read()
    with ExitStack() as stack:
        idle = [stack.enter_context(connected(node)) for _ in range(200)]
        check = node.cli("check")
        assert (check.returncode, check.stdout.startswith("unknown: ")) == (30, True)
        assert node.metric("vitald_api_clients") == 128
        assert node.metric("vitald_api_clients_refused_total") == refused_before + 74
        for number in range(5):
            early.request("GET", f"/v1/events?since={number}")
            response = early.getresponse()
            assert (response.status, "events" in json.loads(response.read())) == (200, True)
        node.write(xid(pid, pci=fresh_pci()))

        def judged() -> bool:
            early.request("GET", "/v1/events?kind=xid&newest=true&limit=1")
            return pids(json.loads(early.getresponse().read())["events"]) == [pid]

        until(judged, "the verdict")
        for client in idle[127:]:
            head, _, body = answer(client).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503")
            assert json.loads(body)["error"] == "too many clients"
    until(lambda: node.answers("/healthz"), "room for others")
    early.close()


def test_a_hundred_scrapers(shared_node: Node) -> None:
    """The metrics endpoint has a limit of its own, and the socket does not feel it."""
    node = shared_node
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", node.port), timeout=WAIT_S))
        serves(node)
    until(lambda: node.metric("vitald_reboot_required") == 1, "a scrape")


def test_who_does_not_take_his_answers(node: Node) -> None:
    """A thousand questions and not one answer taken: closed, and the memory is what it was."""
    before = node.memory_kib()
    with connected(node) as greedy:
        greedy.settimeout(1.0)
        try:
            for _ in range(1000):
                greedy.sendall(b"GET /v1/openapi.json HTTP/1.1\r\nHost: vitald\r\n\r\n")
        except OSError:
            pass
        serves(node)
        assert node.memory_kib() - before < 8 * 1024
        until(lambda: node.metric("vitald_api_clients") == 0, "the client to be closed")
