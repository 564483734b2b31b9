"""Notifications, and a server that receives them, for tests of what is sent to others.

with ReceivingServer(folder / "server.crt") as server:
    server.answers.append(Reply(status=500))
    ... url = server.url
    server.requests[0].body
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from vitald.model.words import Action, Status
from vitald.publish.notify.notification import (
    WELL,
    Digest,
    DigestGroup,
    NodeFlags,
    NodeIdentity,
    Notification,
    NotificationKind,
    NotifiedFinding,
)

Json = dict[str, Any]
NODE = NodeIdentity(
    host="gpu-node-1.example.com",
    instance_id="i-0abc123def4567890",
    boot_id="9c1c2f5e-3b7a-4f0e-8a51-5f6f0f0e7d11",
)
FINDING = NotifiedFinding(
    id=12,
    component="gpu/0000:65:00.0",
    code="xid/79",
    title="GPU has fallen off the bus",
    action=Action.REBOOT_NODE,
    when="now",
    since=1794000000.25,
    device="GPU 3, serial 1654922006333",
    uuid="GPU-5c1b1a3e-6a0f-4a3c-9a52-0d1f6d4f0c11",
    serial="1654922006333",
    raw="NVRM: Xid (PCI:0000:65:00): 79, pid=4242, name=python3, GPU has fallen off the bus.",
    cause="xid/79 seen",
    confirmed=True,
    simulated=False,
)
UNHEALTHY = NodeFlags(status=Status.UNHEALTHY, reboot_required=True, reboot_due=True)
DIGEST = Digest(
    count=43,
    groups=(
        DigestGroup(
            kind=NotificationKind.OPENED,
            code="xid/79",
            action=Action.REBOOT_NODE,
            count=40,
            components=("gpu/0000:65:00.0", "gpu/0000:66:00.0"),
        ),
        DigestGroup(
            kind=NotificationKind.ESCALATED,
            code="xid/63",
            action=Action.INSPECT,
            count=3,
            components=("gpu/0000:67:00.0",),
        ),
    ),
)


def make_notification(kind: NotificationKind, **changed: Any) -> Notification:
    """One of this kind, about a fault of GPU 0000:65:00.0."""
    values: dict[str, Any] = {
        "kind": kind,
        "key": f"{NODE.host}/{FINDING.key}",
        "id": "955d5c40059385d7bd66ae9d47dfc447",  # as long as real ones
        "time": 1794000000.5,
        "node": NODE,
        "flags": UNHEALTHY,
    }
    if kind.value in ("opened", "escalated", "cleared"):
        values["finding"] = FINDING
    else:
        values["key"] = f"{NODE.host}/{kind.value}"
    if kind is NotificationKind.FLAGS:
        values["former_flags"] = WELL
    if kind is NotificationKind.DIGEST:
        values["digest"] = DIGEST
    if kind is NotificationKind.TEST:
        values["flags"] = WELL
    return Notification(**(values | changed))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the server does with a request. `content`: the body of the answer; `endless`: it never
    ends; `resets`: the connection is reset in place of an answer; `delay_s`: before the answer.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b"ok"
    endless: bool = False
    resets: bool = False
    raw: bytes = b""
    delay_s: float = 0.0


class ReceivingServer:
    """Serves on loopback while its context lasts, keeps the requests, and answers them as the test
    says: the next of `answers`, else what `answer` returns.
    """

    def __init__(
        self, certificate: Path | None = None, answer: Callable[[Json], Reply] = lambda _: Reply()
    ) -> None:
        """HTTPS where `certificate` is given: the path of the .crt, beside which its .key lies."""
        self.requests: list[ReceivedRequest] = []
        self.taken: list[Json] = []  # the bodies of those that were answered with 2xx
        self.answers: deque[Reply] = deque()
        self.answer = answer
        self.stopping = threading.Event()
        owner = self

        class Handler(_Handler):
            server_ = owner

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.port: int = self._http.server_port
        scheme = "http"
        if certificate is not None:
            scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
            # The handshake is the handler's: a client that is slow at it delays no other.
            self._http.socket = context.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )
        self.url = f"{scheme}://127.0.0.1:{self.port}/hook?token=SECRET-IN-URL"

    def __enter__(self) -> ReceivingServer:
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._http.shutdown()
        self._http.server_close()

    @property
    def bodies(self) -> list[Json]:
        """Of all requests."""
        return [json.loads(request.body) for request in list(self.requests)]

    def list_taken(self) -> list[str]:
        """The kind of each message that was taken, with the component."""
        return [
            f"{body['transition']} {(body['finding'] or {}).get('component', '')}".strip()
            for body in list(self.taken)
        ]


class _Handler(BaseHTTPRequestHandler):
    server_: ReceivingServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """A test's output is no access log."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        server = self.server_
        server.requests.append(
            ReceivedRequest(
                path=self.path,
                headers={name.lower(): value for name, value in self.headers.items()},
                body=body,
            )
        )
        document = json.loads(body)
        reply = server.answers.popleft() if server.answers else server.answer(document)
        self.close_connection = True
        server.stopping.wait(reply.delay_s)
        if 200 <= reply.status < 300 and not (reply.resets or reply.raw):
            server.taken.append(document)
        try:
            self._answer(reply)
        except OSError:  # the client has gone
            return

    def _answer(self, reply: Reply) -> None:
        if reply.resets:
            linger = b"\1\0\0\0\0\0\0\0"  # on, 0 s: close() sends RST
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
            return
        if reply.raw:
            self.wfile.write(reply.raw)
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if not reply.endless:
            self.send_header("Content-Length", str(len(reply.content)))
        self.end_headers()
        self.wfile.write(reply.content)
        while reply.endless and not self.server_.stopping.is_set():
            self.wfile.write(b"x" * 65536)


def make_certificates(folder: Path) -> Path:
    """A certificate authority `ca`; of it, for 127.0.0.1: `server`, and `expired`; for another name
    `other`. All are files .crt and .key in the folder.
    """
    _run_openssl(
        folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=ca",
        "-keyout", "ca.key", "-out", "ca.crt",
    )  # fmt: skip
    for name, subject, days in (
        ("server", "IP:127.0.0.1", "2"),
        ("other", "DNS:other.example.com", "2"),
        ("expired", "IP:127.0.0.1", "-1"),
    ):
        (folder / f"{name}.cnf").write_text(f"subjectAltName={subject}\n")
        _run_openssl(
            folder, "req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.csr",
        )  # fmt: skip
        _run_openssl(
            folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
            "-CAcreateserial", "-days", days, "-extfile", f"{name}.cnf", "-out", f"{name}.crt",
        )  # fmt: skip
    return folder


def _run_openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
