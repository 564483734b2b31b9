"""A receiver of notifications, and a publisher that sends them there."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.harness import Node
from tests.loopback import LoopbackServer
from tests.pace import patient
from tests.publisher_process import PublisherProcess

Json = dict[str, Any]


class HttpReceiver(LoopbackServer):
    """Records what it gets. `answer` gives the status for a body, and the headers; it may also kill
    who sent it.
    """

    def __init__(
        self, answer: Callable[[Json], int | tuple[int, dict[str, str]]] = lambda _: 200
    ) -> None:
        self.answer = answer
        self.bodies: list[Json] = []  # all of them
        self.taken: list[Json] = []  # those answered with 2xx
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.bodies.append(body)
                answer = receiver.answer(body)
                status, headers = answer if isinstance(answer, tuple) else (answer, {})
                if status < 300:
                    receiver.taken.append(body)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": "0"}.items():
                    self.send_header(name, value)
                self.end_headers()

        super().__init__(Handler)
        self.url = f"{self.origin}/hook"

    def list_received(self, *, taken: bool = True) -> list[tuple[str, str]]:
        """The kind and the key of each message, without the host."""
        bodies = self.taken if taken else self.bodies
        return [(body["transition"], body["dedupKey"].rpartition("/")[2]) for body in bodies]

    def wait_for(self, holds: Callable[[], object], what: str, seconds: float = 15.0) -> None:
        Node.until(holds, patient(seconds), f"{what}: {self.list_received(taken=False)[-30:]}")


def make_publisher(folder: Path, daemon: Node, *entries: str) -> PublisherProcess:
    """`entries`: the lines of each [[notify]]."""
    sections = "\n".join(f"[[notify]]\n{entry}" for entry in entries)
    return PublisherProcess(folder, daemon, sections)
