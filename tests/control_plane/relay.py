"""
Stands between a client and the API server, with the server's own certificate: counts requests and
their bytes, and answers in its place what a test wants (429 with Retry-After, 503).

    with Relay(plane) as relay:
        Publisher(folder, daemon, cluster_node, server=relay.server)
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from tests.control_plane.plane import ControlPlane
from tests.harness import free_port
from tests.waiting import WAIT_S

_NOT_PASSED_ON = {"connection", "transfer-encoding", "content-length", "host"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedRequest:
    """Bytes of HTTP, without TLS. `at`, `seconds`: on the monotonic clock."""

    method: str
    path: str
    status: int
    sent: int
    received: int
    at: float
    seconds: float
    content_type: str
    body: bytes
    answer: bytes


class Relay:
    """HTTPS on a port of its own; connections are kept open."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.requests: list[RelayedRequest] = []
        self.refusals: deque[tuple[int, dict[str, str]]] = deque()
        """Status and headers of the next answers, which the API server does not give."""
        port = free_port()
        self.server = f"https://127.0.0.1:{port}"
        relay = self

        class Handler(_Handler):
            owner = relay

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._http.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(plane.certificate, plane.certificate.with_suffix(".key"))
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        self._http.server_close()

    def forward(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        context = ssl.create_default_context(cafile=str(self.plane.certificate))
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.plane.port, timeout=WAIT_S, context=context
        )
        try:
            connection.request(method, path, body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def open_stream(
        self, path: str, headers: dict[str, str]
    ) -> tuple[int, list[tuple[str, str]], Iterator[bytes]]:
        """A watch, and its lines as they come."""
        context = ssl.create_default_context(cafile=str(self.plane.certificate))
        connection = http.client.HTTPSConnection("127.0.0.1", self.plane.port, context=context)
        passed = {name: value for name, value in headers.items() if name.lower() != "host"}
        connection.request("GET", path, None, passed)
        answer = connection.getresponse()
        return answer.status, answer.getheaders(), iter(answer.readline, b"")


class _Handler(BaseHTTPRequestHandler):
    owner: Relay
    protocol_version = "HTTP/1.1"

    def _relay(self) -> None:
        begun = time.monotonic()
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if "watch=true" in self.path and not self.owner.refusals:
            self._relay_stream()
            return
        if self.owner.refusals:
            status, extra = self.owner.refusals.popleft()
            answer = list(extra.items())
            content = json.dumps({"kind": "Status", "message": "not now", "code": status}).encode()
        else:
            passed = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in _NOT_PASSED_ON
            }
            status, answer, content = self.owner.forward(self.command, self.path, body, passed)
        self.send_response_only(status)
        for name, value in answer:
            if name.lower() not in _NOT_PASSED_ON:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        headers = len(b"".join(self._headers_buffer))
        # Before the client has its answer: whoever waits for that sees the request here.
        self.owner.requests.append(
            RelayedRequest(
                method=self.command,
                path=self.path,
                status=status,
                sent=len(self.raw_requestline) + len(self.headers.as_bytes()) + len(body),
                received=headers + len("\r\n") + len(content),
                at=begun,
                seconds=time.monotonic() - begun,
                content_type=self.headers.get("Content-Type", ""),
                body=body,
                answer=content,
            )
        )
        self.end_headers()
        self.wfile.write(content)

    def _relay_stream(self) -> None:
        """Line by line, until one of the two sides ends it. Recorded as it begins, without its
        lines.
        """
        begun = time.monotonic()
        status, answer, lines = self.owner.open_stream(self.path, dict(self.headers.items()))
        self.send_response_only(status)
        for name, value in answer:
            if name.lower() not in _NOT_PASSED_ON:
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.close_connection = True
        self.owner.requests.append(
            RelayedRequest(
                method=self.command,
                path=self.path,
                status=status,
                sent=len(self.raw_requestline) + len(self.headers.as_bytes()),
                received=len(b"".join(self._headers_buffer)) + len("\r\n"),
                at=begun,
                seconds=time.monotonic() - begun,
                content_type="",
                body=b"",
                answer=b"{}",
            )
        )
        with contextlib.suppress(OSError):
            self.end_headers()
            self.wfile.flush()
            for line in lines:
                self.wfile.write(line)

    do_GET = do_PATCH = do_POST = do_PUT = do_DELETE = _relay  # noqa: N815

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """A test's output is no access log."""
