"""
The examples of openapi.json: what the real daemon answered on a node with two GPUs, of which one
falls off the bus below a job. The driver's library is simulated, and does not say so.

    python -m tests.api_examples        records them anew

They are recorded once and kept: times and process ids are those of that run. Only the names of the
machine's own files and of its host are replaced.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from tests.dcgmi import Dcgmi, diag
from tests.examples import FILE, name_endpoint
from tests.harness import Json, Node, UnixConnection
from tests.system.nvml import as_if_real
from tests.system.test_expect import Machine
from tests.waiting import until
from vitald.server import endpoints
from vitald.server.endpoint import Answer, Endpoint, Get, Post
from vitald.simulator.simulated_node import SimulatedNode

_PLACES = {
    "config.toml": "/etc/vitald/config.toml",
    "kernel.log": "/var/log/kern.log",
    "bin/dcgmi": "/usr/bin/dcgmi",
}


class _Recorder:
    """Asks the daemon, and keeps what it answered."""

    def __init__(self, node: Node, examples: dict[str, dict[str, Any]]) -> None:
        self._node = node
        self.examples = examples

    def get(self, endpoint: Get[Answer], **values: object) -> Answer:
        return self._record(endpoint, None, values)

    def post(self, endpoint: Post[Any, Answer], body: Json, **values: object) -> Answer:
        return self._record(endpoint, body, values)

    def _record(self, endpoint: Endpoint[Answer], body: Json | None, values: Json) -> Answer:
        target = endpoint.make_target(values)
        status, answer = self._node.request(endpoint.method, target, body)
        assert status == endpoint.status, (target, status, answer)
        request = {} if body is None else {"request": body}
        self.examples[name_endpoint(endpoint)] = {**request, "answer": answer}
        return cast("Answer", answer)

    @contextmanager
    def watch(self) -> Iterator[Iterator[Json]]:
        """The lines of the stream, from its first on."""
        connection = UnixConnection(self._node.socket)
        connection.request("GET", endpoints.WATCH.path)
        stream = connection.getresponse()
        lines = self.examples[name_endpoint(endpoints.WATCH)] = {"answer": []}
        try:
            yield (
                lines["answer"].append(json.loads(line)) or lines["answer"][-1] for line in stream
            )
        finally:
            connection.close()


def record() -> dict[str, dict[str, Any]]:
    """Of a GPU node, and what a Trainium node should have."""
    examples: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as place, Dcgmi(Path(place) / "bin", gpus=2) as dcgmi:
        folder = Path(place)
        dcgmi.answer("diag -r 2", diag(level=2, gpus=2, delay_s=30.0))
        gpus = as_if_real(SimulatedNode(folder / "gpus", "h100", 2))
        program = f'[dcgm]\nprogram = "{dcgmi.path}"\n[dcgm_health]\nenabled = false\n'
        with Node(folder, gpus=gpus, extra=program) as node:
            node.wait(lambda status: status["status"] == "healthy")
            recorder = _Recorder(node, examples)
            _lose_a_gpu(recorder, node, gpus)
            _run_diagnostics(recorder, node)
            _operate(recorder, node, gpus.addresses[0])
        machine = Machine(folder / "trainium")
        machine.tree.unplug(15)
        with machine:
            machine.settle(15)
            recorder = _Recorder(machine, examples)
            recorder.get(endpoints.EXPECT)
            recorder.post(endpoints.CONFIRM, {"reason": "card 15 is out until Monday, #4711"})
        examples[name_endpoint(endpoints.STATUS)]["answer"]["host"] = "gpu-node-17"
        text = json.dumps(examples)
        for own, usual in _PLACES.items():
            text = text.replace(str(folder / own), usual)
        assert place not in text, text[text.index(place) - 80 :][:160]
    return cast("dict[str, dict[str, Any]]", json.loads(text))


def _lose_a_gpu(recorder: _Recorder, node: Node, gpus: SimulatedNode) -> None:
    """Below a job: the driver's lines, the verdict, and the end of the job."""
    job = {"job": "1234", "user": "alice", "uid": 1000}
    recorder.post(endpoints.REPORT_JOB, {"event": "begin", **job})
    sink = {
        "name": "kubernetes",
        "up": False,
        "lastSuccess": "2026-11-20T13:40:02.310Z",
        "error": "HTTP 503: the server is currently unable to handle the request",
        "refused": [],
        "waiting": 1,
        "waitingSince": "2026-11-20T13:46:40.300Z",
        "writes": 42,
        "failures": 3,
    }
    recorder.post(endpoints.REPORT_SINKS, {"sinks": [sink]})
    address = gpus.addresses[1]
    xid = f"NVRM: Xid (PCI:{address[:-2]}): %d, pid=1234, name=python3, %s"
    with recorder.watch() as lines:
        assert next(lines)["type"] == "verdict"
        node.write(xid % (79, "GPU has fallen off the bus."))
        next(line for line in lines if line["type"] == "verdict")
    gpus.lose(1)
    node.write(xid % (45, "Ch 00000008"), xid % (45, "Ch 00000009"))
    node.wait(
        lambda status: status["rebootConfirmed"] and status["incidents"][0]["count"] == 4,
    )
    number = node.findings()[0]["id"]
    for endpoint in (
        endpoints.HEALTHZ,
        endpoints.STATUS,
        endpoints.SUMMARY,
        endpoints.GPUS,
        endpoints.FINDINGS,
        endpoints.INCIDENTS,
        endpoints.EVENTS,
        endpoints.TRANSITIONS,
    ):
        recorder.get(endpoint)
    recorder.get(endpoints.COMPONENTS, component=f"gpu/{address}")
    recorder.get(endpoints.WHY, id=number)
    recorder.get(endpoints.RULE, kind="xid", code="79")
    end = {"exitCode": 1, "signal": 0, "diagnose": True}
    recorder.post(endpoints.REPORT_JOB, {"event": "end", **job, **end})
    recorder.get(endpoints.JOBS)
    recorder.post(endpoints.REPORT_SCHEDULER, {"state": "drained"})
    recorder.post(
        endpoints.ACCEPT, {"reason": "spare on Monday, #4711", "seconds": 604800}, id=number
    )
    recorder.post(endpoints.REMEDY, {"reason": "drained, reboot at 15:00"}, id=number)
    recorder.post(endpoints.CLEAR, {"reason": "new board, #4711", "replaced": True}, id=number)


def _run_diagnostics(recorder: _Recorder, node: Node) -> None:
    """Level 2 for the failed job is stopped, so that level 1 runs."""
    recorder.post(endpoints.RUN_DIAGNOSTIC, {"level": 1, "reason": "before a big run, #4711"})
    until(lambda: _get_stages(node) == ["running", "waiting"], "a run, and one that waits")
    recorder.get(endpoints.DIAGNOSTICS)
    recorder.post(endpoints.CANCEL_DIAGNOSTIC, {"reason": "a job needs the node, #4711"})
    until(lambda: not _get_stages(node), "the end of the runs")
    runs = recorder.get(endpoints.DIAGNOSTIC_RUNS)["runs"]
    recorder.get(endpoints.DIAGNOSTIC_RUN, id=runs[0]["id"])


def _get_stages(node: Node) -> list[str]:
    return [run["stage"] for run in node.get(endpoints.DIAGNOSTICS.path)["active"]]


def _operate(recorder: _Recorder, node: Node, gpu: str) -> None:
    """A drill, a release of the GPUs, and another configuration."""
    line = (
        f"NVRM: Xid (PCI:{gpu[:-2]}): 79, pid=812, name=vitald-drill, GPU has fallen off the bus."
    )
    drill = recorder.post(endpoints.ANNOUNCE, {"line": line, "holdSeconds": 600})["id"]
    node.write(line)
    until(lambda: recorder.get(endpoints.DRILL, id=drill)["finding"], "the drill's finding")
    release = {"reason": "reset after xid/48, #4711", "seconds": 600}
    recorder.post(endpoints.RELEASE, release)
    recorder.post(endpoints.END_RELEASE, {"reason": release["reason"]})
    node.configure(f"127.0.0.1:{node.port}", "127.0.0.1:9400")
    node.configure('userspace = "confirmed"', 'userspace = "unconfirmed"')
    recorder.post(endpoints.RELOAD, {})


if __name__ == "__main__":
    FILE.write_text(json.dumps(record(), indent=1) + "\n", encoding="utf-8")
