"""
One scenario of `vitald publish`, recorded with a real API server and replayed without one.

    .venv/bin/python -m tests.control_plane.recorded    records it again, into FILE

The replaying server accepts a write only if it is the next one of the recording for its path, apart
from times: the answer of the real server to any other write is not known. A change of what is
written therefore needs a new recording.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.control_plane.cluster_node import NAMES, ClusterNode
from tests.control_plane.plane import ControlPlane, kubelet_token
from tests.control_plane.publisher import Publisher
from tests.control_plane.relay import Relay, RelayedRequest
from tests.harness import ROOT, Node
from tests.system.lines import xid
from tests.waiting import until

Json = dict[str, Any]
FILE = ROOT / "tests/data/api_server.json"
_EXPIRED = "expired"
# What differs from run to run, and its replacement.
_DIFFERS = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "TIME"),
    (re.compile(r"(?<=\.)[0-9a-f]{16}(?=\")"), "DIGEST"),  # in an event's name: made from times
    (re.compile(r"(?<=does not answer: )[^\"]+"), "REASON"),
    (re.compile(r"(?<=cleared by )\w+ \(uid \d+\)"), "USER"),
)


def run_scenario(publisher: Publisher, daemon: Node, node: ClusterNode, relay: Relay) -> None:
    """A refused token, a fault, its end, a killed daemon, and the removal of all that was written.
    `publisher` is not running yet; `daemon` is running and healthy.
    """
    publisher.write_token(_EXPIRED)
    publisher.start()
    daemon.wait(lambda status: "401" in str(status.get("publishers")))
    publisher.write_token(node.kubelet_token)
    node.wait_for_status("True")
    assert node.labels == {"status": "healthy", "action": "none"}

    daemon.write(xid(1))
    node.wait_for_status("False")
    assert node.read_reason() == "Xid79"
    assert node.labels == {"status": "unhealthy", "action": "reboot_node"}
    assert [finding["code"] for finding in node.findings["findings"]] == ["xid/79"]
    (finding,) = daemon.findings()
    daemon.request("POST", f"/v1/findings/{finding['id']}/clear", {"reason": "replaced"})
    node.wait_for_status("True")
    until(lambda: len(_select_events(relay)) == 2, "the events Opened and Cleared")

    daemon.kill()
    node.wait_for_status("Unknown")
    assert node.read_reason() == "DaemonSilent"
    publisher.stop()
    done = publisher.run("kubernetes", "--retire")
    assert done.returncode == 0, done.stderr
    assert not (node.labels or node.annotations)
    assert not [type_ for type_ in node.conditions if type_.startswith("vitald.io/")]


def _select_events(relay: Relay) -> list[RelayedRequest]:
    return [
        request for request in relay.requests if (request.method, request.status) == ("POST", 201)
    ]


class RecordedServer(Relay):
    """Replays the recording. Takes the place of the ControlPlane of a ClusterNode, too."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.certificate = folder / "apiserver.crt"
        _make_certificate(self.certificate)
        super().__init__(self)
        recording = json.loads(FILE.read_text())
        self.name: str = recording["node"]["metadata"]["name"]
        self._refused: Json = recording["refused"]
        self._node: Json = recording["node"]
        self._times: dict[str, Json] = {}  # of conditions, by type, as they were written
        self.writes_left: list[Json] = recording["writes"]
        self.unknown: list[str] = []  # requests that are not in the recording

    def read_node(self, name: str) -> Json:
        """As ControlPlane does."""
        assert name == self.name
        for condition in self._node["status"].get("conditions", []):
            condition.update(self._times.get(condition["type"], {}))
        return self._node

    def forward(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        status, answer = self._answer(method, path, body, headers)
        return status, [("Content-Type", "application/json")], json.dumps(answer).encode()

    def _answer(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, Json]:
        if headers.get("Authorization") != f"Bearer {kubelet_token(self.name)}":
            return 401, self._refused
        if (method, path) == ("GET", f"/api/v1/nodes/{self.name}"):
            return 200, self.read_node(self.name)
        if method == "GET":  # the watch is not in the recording: the node is read each time
            return 403, {"kind": "Status", "code": 403, "message": "not permitted"}
        write = describe_write(method, path, headers.get("Content-Type", ""), body)
        recorded = next(
            (each for each in self.writes_left if each["request"]["path"] == path), None
        )
        if recorded is not None and recorded["request"] == write:
            self.writes_left.remove(recorded)
            return recorded["status"], self._apply(json.loads(body), recorded["answer"])
        self.unknown.append(json.dumps(write, indent=1))
        return 500, {"kind": "Status", "code": 500, "message": "not in the recording"}

    def _apply(self, body: Json, answer: Json) -> Json:
        """The recorded answer, with the times that were sent."""
        if answer["kind"] != "Node":
            return answer
        for condition in body["status"]["conditions"]:
            times = {name: value for name, value in condition.items() if name.endswith("Time")}
            self._times[condition["type"]] = times
        self._node = answer
        return self.read_node(self.name)


def _make_certificate(path: Path) -> None:
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=recorded"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(path.with_suffix(".key")), "-out", str(path)),
        ],
        check=True,
        capture_output=True,
    )


def describe_write(method: str, path: str, content_type: str, body: bytes) -> Json:
    """A request, without what differs from run to run."""
    text = body.decode()
    for pattern, word in _DIFFERS:
        text = pattern.sub(word, text)
    return {"method": method, "path": path, "content_type": content_type, "body": json.loads(text)}


def build_recording(requests: Iterable[RelayedRequest]) -> Json:
    """From the requests of a relay: the node as first read, the answer to a refused token, and the
    writes with their answers.
    """
    recording: Json = {"node": None, "refused": None, "writes": []}
    for request in requests:
        answer = json.loads(request.answer)
        if request.status == 401:
            recording["refused"] = answer
        elif request.method == "GET":
            is_node = answer.get("kind") == "Node"
            recording["node"] = recording["node"] or (answer if is_node else None)
        else:
            write = describe_write(request.method, request.path, request.content_type, request.body)
            recording["writes"].append(
                {"request": write, "status": request.status, "answer": answer}
            )
    return recording


def record(plane: ControlPlane, node: ClusterNode, folder: Path) -> Json:
    """Run the scenario with a real API server."""
    with Relay(plane) as relay, Node(folder / "node") as daemon:
        publisher = Publisher(folder / "publisher", daemon, node, server=relay.server)
        try:
            run_scenario(publisher, daemon, node, relay)
        finally:
            publisher.stop()
        return build_recording(relay.requests)


def _main() -> int:
    with (
        tempfile.TemporaryDirectory() as folder,
        ControlPlane(Path(folder) / "plane", NAMES[:1]) as plane,
    ):
        node = ClusterNode(plane, NAMES[0])
        node.create()
        recording = record(plane, node, Path(folder))
    FILE.write_text(json.dumps(recording, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
