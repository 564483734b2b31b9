"""Notifications, and a server that receives them, for tests of what is sent to others.

with ReceivingServer(folder / "server.crt") as server:
    server.answers.append(Reply(status=500))
    ... url = server.url
    server.requests[0].body
"""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.loopback import LoopbackServer
from vitald.model import Action, Status
from vitald.publish.notify.notification import (
    UNKNOWN_FLAGS,
    Digest,
    DigestGroup,
    NodeIdentity,
    Notification,
    NotificationKind,
    NotifiedFinding,
)

NODE = NodeIdentity(
    host="gpu-node-1.example.com",
    instance_id="i-0abc123def4567890",
    boot_id="9c1c2f5e-3b7a-4f0e-8a51-5f6f0f0e7d11",
    version="1.0",
)
FINDING = NotifiedFinding(
    id=12,
    component="gpu/0000:65:00.0",
    kind="xid",
    code="xid/79",
    reason="Xid79",
    title="GPU has fallen off the bus",
    action=Action.REBOOT_NODE,
    when="now",
    todo="reboot the node",
    since=1794000000.25,
    uuid="GPU-5c1b1a3e-6a0f-4a3c-9a52-0d1f6d4f0c11",
    serial="1654922006333",
    raw="NVRM: Xid (PCI:0000:65:00): 79, pid=4242, name=python3, GPU has fallen off the bus.",
    source="kernel_log",
    cause="the kernel log reports Xid 79",
    confirmed=True,
    simulated=False,
)
HEALTHY = replace(UNKNOWN_FLAGS, status=Status.HEALTHY)
UNHEALTHY = replace(UNKNOWN_FLAGS, status=Status.UNHEALTHY, reboot_required=True, reboot_due=True)
DIGEST = Digest(
    first_id=100,
    last_id=142,
    count=43,
    groups=(
        DigestGroup(
            kind=NotificationKind.OPENED, code="xid/79", action=Action.REBOOT_NODE, count=40
        ),
        DigestGroup(kind=NotificationKind.CLEARED, code="xid/63", action=Action.INSPECT, count=3),
    ),
)


def make_notification(kind: NotificationKind, **changed: Any) -> Notification:
    """One of this kind, of a fault of GPU 0000:65:00.0."""
    values: dict[str, Any] = {
        "kind": kind,
        "key": f"{NODE.host}/12",
        "id": "955d5c40059385d7bd66ae9d47dfc447",  # as long as real ones
        "time": 1794000000.5,
        "node": NODE,
        "flags": UNHEALTHY,
    }
    if kind in (
        NotificationKind.OPENED,
        NotificationKind.ESCALATED,
        NotificationKind.CLEARED,
    ):
        values["finding"] = FINDING
    if kind is NotificationKind.FLAGS:
        values |= {"former_flags": HEALTHY, "key": f"{NODE.host}/flags"}
    if kind is NotificationKind.DIGEST:
        values |= {"digest": DIGEST, "key": f"{NODE.host}/digest"}
    if kind is NotificationKind.TEST:
        values |= {"flags": HEALTHY, "key": f"{NODE.host}/test"}
    return Notification(**(values | changed))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """`at`: on the monotonic clock."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float


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


class ReceivingServer(LoopbackServer):
    """Keeps the requests, and answers them as the test says."""

    def __init__(self, certificate: Path | None = None) -> None:
        self.requests: list[ReceivedRequest] = []
        self.answers: deque[Reply] = deque()
        """The next answers; 200 where there are none."""
        self.stopping = threading.Event()
        owner = self

        class Handler(_Handler):
            server_ = owner

        super().__init__(Handler, certificate=certificate)
        self.url = f"{self.origin}/hook?token=SECRET-IN-URL"

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        super().__exit__()


class _Handler(BaseHTTPRequestHandler):
    server_: ReceivingServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.server_.requests.append(
            ReceivedRequest(
                path=self.path,
                headers={name.lower(): value for name, value in self.headers.items()},
                body=body,
                at=time.monotonic(),
            )
        )
        reply = self.server_.answers.popleft() if self.server_.answers else Reply()
        self.close_connection = True
        self.server_.stopping.wait(reply.delay_s)
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
