"""A line in the kernel log of a real daemon, and what a real `vitald publish` tells a webhook, a
program and a real Alertmanager.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.alertmanager import Alertmanager
from tests.harness import PYTHON, ROOT, Node
from tests.notifications import ReceivingServer, Reply, make_certificates
from tests.pace import patient

LINE = "NVRM: Xid (PCI:0000:65:00): 79, pid=42, name=<!channel>, GPU has fallen off the bus."


@contextmanager
def publish(folder: Path, node: Node, entries: str) -> Iterator[Path]:
    """`vitald publish` with these entries of [[notify]]. The path of its log."""
    config, log = folder / "publish.toml", folder / "publish.log"
    config.write_text(
        f'[socket]\npath = "{node.socket}"\n[publish]\nstate = "{folder}/publish"\n{entries}'
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "agent"), "NODE_NAME": "gpu-node-1"}
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [PYTHON, "-m", "vitald", "publish", "--config", str(config)],
            cwd=ROOT,
            env=environment,
            stderr=errors,
        )
    try:
        yield log
        assert process.poll() is None, log.read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(patient(20))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path / "node") as started:
        yield started


def list_transitions(texts: list[bytes]) -> list[tuple[str, str]]:
    """The kind of each message and the code of its finding."""
    bodies = [json.loads(text) for text in texts]
    return [
        (body["transition"], body["finding"]["code"] if body["finding"] else "") for body in bodies
    ]


def test_a_fault_is_reported_and_its_end(node: Node, tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    with (
        ReceivingServer(certificates / "server.crt") as hook,
        ReceivingServer() as called,
        Alertmanager(tmp_path / "alertmanager", called.url) as alertmanager,
    ):
        hook.answers += [Reply(status=503), Reply(resets=True)]  # it takes the third attempt
        entries = f"""
[[notify]]
name = "hook"
url = "{hook.url}"
ca = "{certificates}/ca.crt"
on = ["opened", "escalated", "cleared"]
[[notify]]
name = "program"
type = "exec"
command = ["/bin/sh", "-c", "cat > {out}/$VITALD_TRANSITION-$VITALD_ID"]
[[notify]]
name = "alerts"
type = "alertmanager"
url = "{alertmanager.url}"
"""
        with publish(tmp_path, node, entries) as log:
            node.write(LINE)
            Node.until(lambda: len(hook.requests) >= 3, 30, "the webhook gets the fault")
            bodies = [request.body for request in hook.requests]
            assert len(set(bodies)) == 1, "each attempt says the same"
            body = json.loads(bodies[0])
            assert (body["transition"], body["host"]) == ("opened", "gpu-node-1")
            assert body["finding"]["code"] == "xid/79"
            assert body["finding"]["raw"] == LINE
            Node.until(lambda: alertmanager.list_alerts(), 30, "the alert")
            (alert,) = alertmanager.list_alerts()
            assert (alert["labels"]["code"], alert["labels"]["instance"]) == ("79", "gpu-node-1")
            number = body["finding"]["id"]
            node.cli("clear", str(number), "--reason", "a test")
            Node.until(lambda: len(hook.requests) >= 4, 30, "the webhook gets the end")
            end = json.loads(hook.requests[-1].body)
            assert (end["transition"], end["dedupKey"]) == ("cleared", body["dedupKey"])
            Node.until(lambda: not alertmanager.list_alerts(), 30, "the alert ends")
            Node.until(lambda: any(out.glob("cleared-*")), 30, "the program gets the end")
            received = list_transitions([path.read_bytes() for path in sorted(out.iterdir())])
            assert {("opened", "xid/79"), ("cleared", "xid/79"), ("flags", "")} <= {*received}
            assert "SECRET-IN-URL" not in log.read_text()
    assert "Traceback" not in (tmp_path / "publish.log").read_text()


def test_a_receiver_that_is_down_holds_no_other(node: Node, tmp_path: Path) -> None:
    """And `vitald status` names it, without its address."""
    with ReceivingServer() as dead, ReceivingServer() as hook:
        dead.answers += [Reply(status=500)] * 1000
        entries = f"""
[[notify]]
name = "dead"
url = "{dead.url}"
[[notify]]
name = "hook"
url = "{hook.url}"
format = "cloudevents"
"""
        with publish(tmp_path, node, entries):
            node.write(LINE)

            def list_types() -> list[str]:
                return [json.loads(request.body)["type"] for request in hook.requests]

            Node.until(lambda: "io.vitald.finding.opened" in list_types(), 30, "the other's")
            assert dead.requests
            shown = ""

            def names_the_dead_one() -> bool:
                nonlocal shown
                shown = node.cli("status").stdout
                return "answered 500" in shown and "notify/hook" not in shown

            # The publisher's first report may be from before the first delivery.
            Node.until(names_the_dead_one, 30, "the status names the receiver that is down")
            assert "notify/dead" in shown and "SECRET-IN-URL" not in shown
