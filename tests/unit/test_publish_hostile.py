"""What `vitald publish` makes of a daemon, an API server and a credential plugin that lie: it says
that the state is unknown, or tries again; it does not end, grow, or repeat its token.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import WAIT_S, until_async
from vitald.publish import daemon_feed
from vitald.publish.daemon_feed import DaemonFeed
from vitald.publish.http import parse_json
from vitald.publish.kubernetes import client as client_module
from vitald.publish.kubernetes.client import ApiRefused, ApiUnreachable, KubernetesClient
from vitald.publish.kubernetes.credentials import ClusterAccess, NoCredentials, TokenSource
from vitald.publish.kubernetes.desired import MAX_MESSAGE_BYTES, build_own_parts, combine
from vitald.publish.kubernetes.node_events import build_event
from vitald.publish.kubernetes.node_object import parse_node
from vitald.publish.kubernetes.node_watch import WatchingClient
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.publish.publisher import DaemonReport
from vitald.publish.sink import SinkHealth
from vitald.publish.sinks import find_node_name
from vitald.publish.summary import (
    DaemonSilent,
    NodeSummary,
    NoSummary,
    PublishedState,
    parse_summary,
)
from vitald.publish.transitions import NoTransitions, TransitionReader, parse_page
from vitald.systemd import Notifier

DEEP = b'{"a":' * 200_000 + b"1" + b"}" * 200_000
WIDE = b"[" + b"[]," * 200_000 + b"[]]"
SUMMARY: dict[str, Any] = {
    "status": "healthy",
    "action": "none",
    "reason": "Healthy",
    "reasons": [],
    "rebootDue": None,
    "replacementDue": None,
    "changedAt": "2026-11-23T00:00:00.000Z",
    "findings": [],
    "openFindings": 0,
    "complete": True,
    "accelerators": [],
    "bootId": "b",
    "time": "2026-11-23T00:00:00.000Z",
}
FINDING: dict[str, Any] = {
    "id": 1,
    "component": "gpu/0000:65:00.0",
    "code": "xid/79",
    "reason": "Xid79",
    "action": "reboot_node",
    "when": "now",
    "since": "2026-11-23T00:00:00.000Z",
    "confirmed": True,
    "accepted": False,
    "simulated": False,
    "due": True,
    "device": "GPU-1",
}
parse_summary({**SUMMARY, "findings": [FINDING]})  # sound but for what a test changes
NODE = {"metadata": {"name": "node1", "uid": "u", "resourceVersion": "1"}}
TOKEN = "secret-token.of_this-node"


# --- documents


def test_json_that_no_answer_has_is_refused() -> None:
    for content in (DEEP, WIDE, b"[" * 64 + b"]" * 64, b"\xff\xfe", b"", b"{"):
        with pytest.raises(ValueError, match=r"JSON|decode|Expecting"):
            parse_json(content)


def refuse(
    parse: Callable[[Any], object], refusal: type[Exception], documents: list[Any]
) -> list[str]:
    """Those that are taken, or refused in words that are too many or unfit to print."""
    wrong = []
    for document in documents:
        try:
            parse(document)
        except refusal as refused:
            if len(str(refused)) <= 200 and str(refused).isprintable():
                continue
        wrong.append(repr(document)[:1000])
    return wrong


def test_a_summary_with_a_wrong_value_is_refused() -> None:
    values: list[tuple[str, object]] = [
        ("status", {}),
        ("reason", "NotAWord\n\u202e"),
        ("reason", "A" * 129),
        ("reason", ["Healthy"]),
        ("reasons", "Healthy"),
        ("reasons", [1]),
        ("reasons", ["x"] * 100_000),
        ("rebootDue", True),
        ("rebootDue", "spaces are not allowed"),
        ("changedAt", 1),
        ("changedAt", "soon"),
        ("findings", {"a": 1}),
        ("findings", [None]),
        ("findings", [{**FINDING, "component": None}]),
        ("findings", [{**FINDING, "reason": "xid 79"}]),
        ("findings", [{**FINDING, "confirmed": "yes"}]),
        ("openFindings", float("nan")),
        ("openFindings", -1),
        ("bootId", None),
    ]
    documents = [{**SUMMARY, key: value} for key, value in values]
    assert refuse(parse_summary, NoSummary, documents) == []


def test_texts_of_the_kernel_reach_the_node_as_one_printable_line() -> None:
    hostile = "\x1b[2J\u202egpu\ud800\n\r\x00 " + "\U0001f525" * 2000
    summary = parse_summary(
        {
            **SUMMARY,
            "status": "unhealthy",
            "reason": "Xid79",
            "reasons": [hostile, hostile],
            "rebootDue": "Xid79",
            "findings": [{**FINDING, "component": hostile, "device": hostile}],
        }
    )
    desired = combine(build_own_parts(summary, "vitald.io").values())
    for condition in desired.conditions:
        assert condition.message.isprintable()
        assert len(condition.message.encode()) <= MAX_MESSAGE_BYTES
    annotation = json.loads(desired.annotations["vitald.io/findings"])
    assert annotation["findings"][0]["component"].isprintable()


def test_a_time_that_no_clock_shows_can_be_written() -> None:
    for year in ("0001", "9999"):
        moment = f"{year}-01-01T00:00:00+23:59"
        summary = parse_summary(
            {**SUMMARY, "changedAt": moment, "findings": [{**FINDING, "since": moment}]}
        )
        assert build_own_parts(summary, "vitald.io")["annotation"].annotations


def test_an_error_does_not_repeat_the_answer() -> None:
    with pytest.raises(ValueError, match="metadata: expected a table") as refused:
        parse_node({"metadata": ["\x1b" * 1_000_000]})
    assert len(str(refused.value)) <= 200 and str(refused.value).isprintable()


# --- the daemon


Answer = Callable[[str], bytes | None]


@asynccontextmanager
async def serve_daemon(path: Path, answer: Answer) -> AsyncIterator[None]:
    """A daemon that answers each path with these bytes; the stream stays open for a None."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                content = answer(head.split()[1].decode().partition("?")[0])
                if content is None:
                    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                    await asyncio.Event().wait()
                    continue
                writer.write(content)
                await writer.drain()
                if b"Content-Length" not in content:
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    server = await asyncio.start_unix_server(handle, path)
    try:
        yield
    finally:
        server.close()


def make_answer(content: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + content


GOOD = make_answer(json.dumps(SUMMARY).encode())
BOMB = gzip.compress(b" " * 50_000_000)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/v1/summary", make_answer(DEEP)),
        ("/v1/summary", make_answer(b" " * 3_000_000)),
        ("/v1/summary", make_answer(BOMB, "Content-Encoding: gzip")),
        ("/v1/summary", make_answer(b"[]")),
        ("/v1/summary", make_answer(b"\x1b" * 9999, status="500 No")),
        ("/v1/summary", b"\x00\xff not HTTP\r\n\r\n"),
        ("/v1/watch", make_answer(b"x" * 5_000_000)),
        ("/v1/watch", make_answer(b"[1]\n" * 10)),
        ("/v1/watch", make_answer(b'"\\ud800"\n')),
        ("/v1/watch", make_answer(b"too many watchers", status="503 Busy")),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_the_feed_outlives_a_daemon_that_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, content: bytes
) -> None:
    """It says that the daemon is silent, or follows it, and takes the next good answer."""
    monkeypatch.setattr(daemon_feed, "GRACE_S", 0.05)
    lies = 3
    states: list[PublishedState] = []

    def answer(asked: str) -> bytes | None:
        nonlocal lies
        if asked == path and lies:
            lies -= 1
            return content
        return GOOD if asked == "/v1/summary" else None

    async def follow() -> None:
        async with serve_daemon(tmp_path / "s", answer):
            feed = DaemonFeed(tmp_path / "s", states.append)
            task = asyncio.ensure_future(feed.run())
            while lies or not states or not isinstance(states[-1], NodeSummary):
                done, _ = await asyncio.wait([task], timeout=0.05)
                assert not done, task.result()
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(asyncio.wait_for(follow(), WAIT_S))
    assert lies == 0
    silent = [state for state in states if isinstance(state, DaemonSilent)]
    assert all(len(state.detail) < 500 for state in silent)


def test_a_stream_that_lags_is_no_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a storm the daemon ends the stream of a slow reader, and takes longer to answer."""
    monkeypatch.setattr(daemon_feed, "UNANNOUNCED_S", 0.0)
    states: list[PublishedState] = []
    asked: list[str] = []

    def answer(path: str) -> bytes | None:
        asked.append(path)
        if path == "/v1/summary":
            return GOOD
        return make_answer(b'{"type":"lagged"}\n') if asked.count(path) < 4 else None

    async def follow() -> None:
        async with serve_daemon(tmp_path / "s", answer):
            task = asyncio.ensure_future(DaemonFeed(tmp_path / "s", states.append).run())
            await until_async(lambda: asked.count("/v1/watch") >= 4)
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(asyncio.wait_for(follow(), WAIT_S))
    assert states and not any(isinstance(state, DaemonSilent) for state in states)


def test_a_report_is_one_that_the_daemon_takes(tmp_path: Path) -> None:
    """An error may be as long as an answer; the daemon takes one line of 300 characters."""
    reports: list[dict[str, Any]] = []
    health = SinkHealth("kubernetes", error="500: \x1b\n" + "x" * 9999)

    async def collect() -> None:
        arrived = asyncio.Event()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length:")[2].split()[0])
            reports.append(json.loads(await reader.readexactly(length)))
            writer.write(make_answer(b"{}"))
            await writer.drain()
            writer.close()
            arrived.set()

        server = await asyncio.start_unix_server(handle, tmp_path / "s")
        task = asyncio.ensure_future(DaemonReport(tmp_path / "s", lambda: [health]).run())
        await arrived.wait()
        task.cancel()
        await asyncio.wait([task])
        server.close()

    asyncio.run(asyncio.wait_for(collect(), WAIT_S))
    error = reports[0]["sinks"][0]["error"]
    assert error.isprintable() and len(error) == 300


def test_a_status_line_has_no_further_assignments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(WAIT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        Notifier().notify_status("kubernetes: 500: x\nSTOPPING=1\ud800")
        assert systemd.recv(4096) == b"STATUS=kubernetes: 500: x STOPPING=1 "


# --- credentials


def test_a_token_that_a_header_cannot_carry(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for token in ("a\nX-Evil: 1", "a\x00", "a b", "a\u202e", "é", "", "\n"):
        path.write_text(token, encoding="utf-8")
        source = TokenSource(ClusterAccess(server="https://x", token_file=path))
        with pytest.raises(NoCredentials, match="token file") as refused:
            asyncio.run(source.read_token(0.0))
        assert "Evil" not in str(refused.value)


def test_a_plugin_that_prints_no_credential(tmp_path: Path) -> None:
    """The error names the plugin, and repeats nothing of what it printed."""
    outputs: list[object] = [
        {"status": {"token": f"{TOKEN}\n{TOKEN}"}},
        {"status": {"token": None}},
        {"status": {"token": ""}},
        {"status": {"token": TOKEN, "expirationTimestamp": TOKEN}},
        {"status": {"token": TOKEN, "expirationTimestamp": 1}},
        {"status": TOKEN},
        {TOKEN: 1},
        TOKEN,
    ]
    printed = tmp_path / "printed"
    for output in outputs:
        printed.write_text(json.dumps(output))
        source = TokenSource(ClusterAccess(server="https://x", program=("/bin/cat", str(printed))))
        with pytest.raises(NoCredentials, match="/bin/cat") as refused:
            asyncio.run(source.read_token(0.0))
        assert TOKEN not in str(refused.value), output
        assert refused.value.__cause__ is None


def test_what_a_plugin_says_is_one_line(tmp_path: Path) -> None:
    program = ("/bin/sh", "-c", r"printf 'no\nSTOPPING=1\033[2J' >&2; exit 3")
    source = TokenSource(ClusterAccess(server="https://x", program=program))
    with pytest.raises(NoCredentials, match="exit 3: no STOPPING=1") as refused:
        asyncio.run(source.read_token(0.0))
    assert str(refused.value).isprintable()


def test_a_name_that_no_node_has_is_in_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("../namespaces", "node1/status", "a?b=c", "a b", "gpu_1", "ä"):
        monkeypatch.setenv("NODE_NAME", name)
        with pytest.raises(NoCredentials, match=r"set \[kubernetes\] node"):
            find_node_name(KubernetesSettings())
    monkeypatch.setenv("NODE_NAME", "ip-10-0-0-1.ec2.internal")
    assert find_node_name(KubernetesSettings()) == "ip-10-0-0-1.ec2.internal"


# --- the API server

Handler = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate authority without key identifiers, as old clusters have, and a certificate of
    it for 127.0.0.1.
    """
    folder = tmp_path_factory.mktemp("certificates")
    config = folder / "openssl.cnf"
    config.write_text(
        "[req]\ndistinguished_name=dn\n[dn]\n"
        "[ca]\nbasicConstraints=critical,CA:TRUE\n"
        "subjectKeyIdentifier=none\nauthorityKeyIdentifier=none\n"
        "[server]\nsubjectAltName=IP:127.0.0.1\n"
        "subjectKeyIdentifier=none\nauthorityKeyIdentifier=none\n"
    )
    new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-config", str(config)]
    for name, options in (
        ("ca", ["-subj", "/CN=kubernetes", "-extensions", "ca"]),
        ("server", ["-subj", "/CN=kube-apiserver", "-extensions", "server"]),
    ):
        signed = ["-CA", "ca.crt", "-CAkey", "ca.key"] if name == "server" else []
        subprocess.run(
            ["openssl", *new, *options, *signed, "-keyout", f"{name}.key", "-out", f"{name}.crt"],
            cwd=folder,
            check=True,
            capture_output=True,
        )
    return folder


@asynccontextmanager
async def serve_tls(certificates: Path, answer: Handler) -> AsyncIterator[int]:
    """The port of a server that answers each request with these bytes, and closes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(answer(await reader.readuntil(b"\r\n\r\n")))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    server = await asyncio.start_server(handle, "0.0.0.0", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def make_access(certificates: Path, port: int, host: str = "127.0.0.1") -> ClusterAccess:
    token = certificates / "token"
    token.write_text(TOKEN)
    return ClusterAccess(
        server=f"https://{host}:{port}", ca_file=certificates / "ca.crt", token_file=token
    )


def read_node(certificates: Path, answer: Handler, **access: Any) -> str:
    """The uid of the node that a server with such answers has. Raises as the client."""

    async def read() -> str:
        async with (
            serve_tls(certificates, answer) as port,
            KubernetesClient(
                replace(
                    make_access(certificates, port),
                    **{
                        key: value(port) if callable(value) else value
                        for key, value in access.items()
                    },
                ),
                "node1",
            ) as client,
        ):
            return (await client.read_node()).uid

    return asyncio.run(asyncio.wait_for(read(), WAIT_S))


def test_a_certificate_authority_without_key_identifiers(certificates: Path) -> None:
    """Python 3.13 refuses it by default; the API servers of old EKS clusters have such."""
    assert read_node(certificates, lambda _: make_answer(json.dumps(NODE).encode())) == "u"
    access = make_access(certificates, 1)
    context = access.build_tls_context()
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert context.check_hostname and context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_server_of_another_name_or_authority_gets_no_token(certificates: Path) -> None:
    heads: list[bytes] = []

    def answer(head: bytes) -> bytes:
        heads.append(head)
        return make_answer(json.dumps(NODE).encode())

    for access in (
        {"server": lambda port: f"https://127.0.0.2:{port}"},
        {"ca_file": None},
    ):
        with pytest.raises(ApiUnreachable, match=r"(?i)certificate"):
            read_node(certificates, answer, **access)
    assert heads == []


def test_a_redirect_gets_no_token(certificates: Path) -> None:
    heads: list[bytes] = []

    def answer(head: bytes) -> bytes:
        heads.append(head)
        return make_answer(b"", "Location: /elsewhere", status="307 Temporary Redirect")

    with pytest.raises(ApiRefused, match="307"):
        read_node(certificates, answer)
    assert len(heads) == 1


def test_proxies_of_the_environment_are_not_used(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert read_node(certificates, lambda _: make_answer(json.dumps(NODE).encode())) == "u"


def test_an_answer_that_is_no_node(certificates: Path) -> None:
    for content in (
        make_answer(DEEP),
        make_answer(WIDE),
        make_answer(b"[" * 4_500_000),
        make_answer(BOMB, "Content-Encoding: gzip"),
        make_answer(json.dumps({"metadata": ["x" * 1_000_000]}).encode()),
        make_answer(b"<html>"),
        make_answer(b"", status="204 No Content"),
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"\x16\x03\x01",
    ):
        with pytest.raises(ApiUnreachable) as refused:
            read_node(certificates, lambda _, content=content: content)
        assert len(str(refused.value)) < 1000


def test_a_token_that_comes_back_is_not_repeated(certificates: Path) -> None:
    """Some proxies print the request that they refuse."""

    def answer(head: bytes) -> bytes:
        message = f"no route for\n{head.decode()}"
        return make_answer(json.dumps({"message": message}).encode(), status="403 Forbidden")

    with pytest.raises(ApiRefused) as refused:
        read_node(certificates, answer)
    assert "Bearer [token]" in str(refused.value) and TOKEN not in str(refused.value)
    assert str(refused.value).isprintable()


def test_cookies_are_not_kept(certificates: Path) -> None:
    heads: list[bytes] = []

    def answer(head: bytes) -> bytes:
        heads.append(head)
        return make_answer(json.dumps(NODE).encode(), "Set-Cookie: a=b; Path=/")

    async def read_twice() -> None:
        async with (
            serve_tls(certificates, answer) as port,
            KubernetesClient(make_access(certificates, port), "node1") as client,
        ):
            await client.read_node()
            await client.read_node()

    asyncio.run(asyncio.wait_for(read_twice(), WAIT_S))
    assert len(heads) == 2 and b"cookie" not in heads[1].lower()


def test_what_is_no_watch_ends_it(certificates: Path) -> None:
    """Nothing of it is kept, and nothing grows: a line, too, has a limit."""
    listing = json.dumps({"metadata": {"resourceVersion": "1"}, "items": [NODE]}).encode()
    event = json.dumps({"type": "ADDED", "object": NODE}).encode()
    for lines, error in (
        (b"<html>\n", "Expecting value"),
        (b"[]\n", "no object"),
        (b'{"a":' * 100 + b"1" + b"}" * 100 + b"\n", "deep"),
        (WIDE + b"\n", "tables"),
        (b"x" * 9_000_000, "more than"),
        (event + b"\n" + event[:10], "JSON|delimiter|Unterminated"),
        (event + b"\n", "ended the watch"),
    ):

        def answer(head: bytes, lines: bytes = lines) -> bytes:
            return make_answer(lines if b"watch=true" in head else listing)

        async def follow(answer: Handler = answer) -> None:
            async with (
                serve_tls(certificates, answer) as port,
                WatchingClient(
                    make_access(certificates, port), "node1", "vitald.io/hold"
                ) as client,
            ):
                await client.follow_node(lambda _: None)

        with pytest.raises(ApiUnreachable, match=error) as refused:
            asyncio.run(asyncio.wait_for(follow(), WAIT_S))
        assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    ("status", "is_deferred"),
    [("429 Too Many Requests", True), ("503 Service Unavailable", True), ("403 No", False)],
)
def test_a_wish_to_wait_holds_for_every_request(
    certificates: Path, monkeypatch: pytest.MonkeyPatch, status: str, is_deferred: bool
) -> None:
    clock = SimpleNamespace(now=1000.0, time=time.time)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(client_module, "time", clock)
    heads: list[bytes] = []

    def answer(head: bytes) -> bytes:
        heads.append(head)
        message = json.dumps({"message": "not now"}).encode()
        return make_answer(message, "Retry-After: 7", status=status)

    async def ask() -> list[tuple[int, float | None]]:
        """After 0, 1 and 7 s: how many requests the server got so far, and the wait."""
        found = []
        async with (
            serve_tls(certificates, answer) as port,
            KubernetesClient(make_access(certificates, port), "node1") as client,
        ):
            for request in (client.read_node(), client.patch_status({}), client.read_node()):
                with pytest.raises(ApiRefused, match=f"{status[:3]}: not now") as refused:
                    await request
                found.append((len(heads), refused.value.retry_after_s))
                clock.now += 1.0 if len(found) == 1 else 6.0
        return found

    found = asyncio.run(asyncio.wait_for(ask(), WAIT_S))
    deferred, each = [(1, 7.0), (1, 6.0), (2, 7.0)], [(1, None), (2, None), (3, None)]
    assert found == (deferred if is_deferred else each)


def test_a_failure_of_one_request_does_not_break_the_next(certificates: Path) -> None:
    """Conditions and events are written at the same time, over one client."""
    count = 0

    def answer(head: bytes) -> bytes:
        nonlocal count
        count += 1
        return b"\x00" if count % 2 else make_answer(json.dumps(NODE).encode())

    async def read_often() -> None:
        async with (
            serve_tls(certificates, answer) as port,
            KubernetesClient(make_access(certificates, port), "node1") as client,
        ):
            for _ in range(5):
                results = await asyncio.gather(
                    *(client.read_node() for _ in range(8)), return_exceptions=True
                )
                failures = [each for each in results if isinstance(each, BaseException)]
                assert all(isinstance(each, ApiUnreachable) for each in failures), failures

    asyncio.run(asyncio.wait_for(read_often(), WAIT_S))


# --- transitions

CHANGE: dict[str, Any] = {
    "id": 7,
    "time": "2026-11-23T00:00:00.000Z",
    "change": "opened",
    "finding": 1,
    "component": "gpu/0000:65:00.0",
    "device": None,
    "code": "xid/79",
    "reason": "Xid79",
    "title": "GPU has fallen off the bus",
    "action": "reboot_node",
    "cause": "NVRM: Xid",
    "simulated": False,
}
PAGE: dict[str, Any] = {"transitions": [CHANGE], "next": None, "newestId": 7}
parse_page(PAGE)  # sound but for what a test changes


def test_a_page_of_transitions_with_a_wrong_value_is_refused() -> None:
    changes: dict[str, object] = {
        "id": "7",
        "time": "soon",
        "change": [],
        "finding": 1e9,
        "component": None,
        "reason": "two words",
        "title": 1,
        "simulated": "no",
    }
    pages: list[Any] = [
        [],
        {**PAGE, "transitions": {}},
        {**PAGE, "transitions": [None]},
        {**PAGE, "next": "8"},
        {**PAGE, "next": -1},
        {**PAGE, "newestId": float("nan")},
        *({**PAGE, "transitions": [{**CHANGE, key: value}]} for key, value in changes.items()),
    ]
    assert refuse(parse_page, NoTransitions, pages) == []


def test_an_event_of_hostile_texts_is_sound() -> None:
    hostile = "\x1b[2J\u202e\ud800\n" + "\U0001f525" * 2000
    texts = dict.fromkeys(("component", "code", "title", "cause"), hostile)
    page = parse_page(
        {**PAGE, "transitions": [{**CHANGE, **texts, "time": "0001-01-01T00:00:00Z"}]}
    )
    event = build_event(page.changes[0], parse_node(NODE), "vitald.io")
    note = event["note"]
    assert isinstance(note, str) and note.isprintable() and len(note.encode()) <= 1024


def test_pages_without_an_end_are_refused(tmp_path: Path) -> None:
    def answer(_: str) -> bytes:
        return make_answer(json.dumps({**PAGE, "next": 7}).encode())

    async def read() -> None:
        async with serve_daemon(tmp_path / "s", answer):
            reader = TransitionReader(tmp_path / "s")
            assert (await reader.read_page(6)).next_after == 7
            with pytest.raises(NoTransitions, match="follows"):
                await reader.read_page(7)

    asyncio.run(asyncio.wait_for(read(), WAIT_S))
