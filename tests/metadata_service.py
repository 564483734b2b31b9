"""
A metadata service of AWS, Azure or Google on the loopback, as their documentation describes it: who
may ask, the paths, and what is answered while nothing is announced.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from vitald.publish.cloud import aws, azure, gcp

# Amazon EC2 User Guide, "Scheduled events for your Amazon EC2 instances".
AWS_REBOOT = {
    "NotBefore": "21 Jan 2019 09:00:43 GMT",
    "Code": "system-reboot",
    "Description": "scheduled reboot",
    "EventId": "instance-event-0d59937288b749b32",
    "NotAfter": "21 Jan 2019 09:17:23 GMT",
    "State": "active",
}
# Google Cloud, "Monitor and plan for a host maintenance event".
GCP_MAINTENANCE = {
    "can_reschedule": "true",
    "latest_window_start_time": "2024-12-01T19:00:01Z",
    "maintenance_reasons": ["PLANNED_UPDATE", "PLANNED_NETWORK_UPDATE"],
    "maintenance_status": "PENDING",
    "type": "SCHEDULED",
    "window_end_time": "2024-12-01T21:00:01Z",
    "window_start_time": "2024-12-01T19:00:01Z",
}
AZURE_VM = "gpu-vm-0"
_TOKEN = "AQAEAtest=="


def azure_event(kind: str, **more: object) -> dict[str, object]:
    """As Microsoft's "Scheduled Events for Linux VMs" lists the properties of an event."""
    return {
        "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": [AZURE_VM],
        "EventStatus": "Scheduled",
        "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT",
        "Description": "Host server is undergoing maintenance.",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
        **more,
    }


@dataclass
class MetadataServer:
    """Answers until closed. `answers`: body by path, else the provider's "nothing"; None: 404.

    `status`: instead of any answer. `delay_s`: before each. `tokens`: how many are valid yet.
    """

    provider: str
    answers: dict[str, object] = field(default_factory=dict)
    status: int = 0
    delay_s: float = 0.0
    asked: list[str] = field(default_factory=list)
    tokens: int = 0

    def __enter__(self) -> MetadataServer:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.answer(self)

            def do_PUT(self) -> None:
                service.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def expire_token(self) -> None:
        self.tokens += 1

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append(f"{request.command} {request.path}")
        time.sleep(self.delay_s)
        answers: dict[str, Callable[[BaseHTTPRequestHandler], tuple[int, object]]] = {
            "aws": self._answer_aws,
            "azure": self._answer_azure,
            "gcp": self._answer_gcp,
        }
        status, body = answers[self.provider](request)
        if self.status:
            status, body = self.status, "something is wrong"
        content = body if isinstance(body, bytes) else _encode(body)
        try:
            request.send_response(status)
            if self.provider == "gcp":
                request.send_header("Metadata-Flavor", "Google")
            request.send_header("Content-Length", str(len(content)))
            request.end_headers()
            request.wfile.write(content)
        except OSError:  # the client did not wait
            pass

    def _find(self, path: str, nothing: object = None) -> tuple[int, object]:
        body = self.answers.get(path, nothing)
        return (404, "") if body is None else (200, body)

    def _answer_aws(self, request: BaseHTTPRequestHandler) -> tuple[int, object]:
        token = f"{_TOKEN}{self.tokens}"
        if request.command == "PUT":
            ttl = request.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            return (200, token) if request.path == "/latest/api/token" and ttl else (400, "")
        if request.headers.get("X-aws-ec2-metadata-token") != token:
            return 401, ""
        return self._find(request.path)

    def _answer_azure(self, request: BaseHTTPRequestHandler) -> tuple[int, object]:
        if request.headers.get("Metadata") != "true":
            return 400, {"error": "Bad request. Required metadata header not specified"}
        nothing = {
            azure.EVENTS: {"DocumentIncarnation": 1, "Events": []},
            azure.NAME: AZURE_VM,
        }
        return self._find(request.path, nothing.get(request.path))

    def _answer_gcp(self, request: BaseHTTPRequestHandler) -> tuple[int, object]:
        if request.headers.get("Metadata-Flavor") != "Google":
            return 403, "Missing required header: Metadata-Flavor"
        nothing = {gcp.EVENT: "NONE", gcp.PREEMPTED: "FALSE", gcp.UPCOMING: {}}
        return self._find(request.path, nothing.get(request.path))


def announce_spot(server: MetadataServer, seconds: float, action: str = "terminate") -> None:
    """A Spot interruption in so many seconds."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
    server.answers[aws.SPOT] = {"action": action, "time": moment}


def _encode(body: object) -> bytes:
    return (body if isinstance(body, str) else json.dumps(body)).encode()
