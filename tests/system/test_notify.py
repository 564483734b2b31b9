"""Notifications of a real `vitald publish` beside a real daemon: a webhook, a program and a real
Alertmanager get what happened.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Node
from tests.monitoring import Alertmanager, AlertReceiver
from tests.notifications import ReceivingServer, Reply, make_certificates
from tests.publisher_process import PublisherProcess
from tests.system.lines import xid
from tests.waiting import until

Json = dict[str, Any]
LINE = "NVRM: Xid (PCI:0000:65:00): 79, pid=42, name=<!channel>, GPU has fallen off the bus."
FINDINGS = 'on = ["opened", "escalated", "cleared"]'
MAX_RSS_KIB = 42 * 1024  # the limit, with two receivers


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path / "node") as made:
        yield made


@pytest.fixture
def hook() -> Iterator[ReceivingServer]:
    with ReceivingServer() as made:
        yield made


def list_entry(name: str, server: ReceivingServer, *lines: str) -> str:
    """A receiver that waits for nothing."""
    waits = ('quiet = "off"', 'settle = "1s"')
    return "\n".join([f"[notify.{name}]", f'url = "{server.url}"', *waits, *lines, ""])


def make_publisher(folder: Path, node: Node, *entries: str) -> PublisherProcess:
    return PublisherProcess(folder / "p", node, "\n".join(entries))


def open_findings(node: Node, *slots: int) -> None:
    node.write(*(xid(slot, pci=f"0000:{slot:02x}:00") for slot in slots))


def clear_findings(node: Node) -> None:
    for finding in node.findings():
        status, answer = node.request(
            "POST", f"/v1/findings/{finding['id']}/clear", {"reason": "replaced"}
        )
        assert status == 200, answer


def find_sink(node: Node, name: str) -> Json:
    publishers = node.status()["publishers"] or {"sinks": []}
    return next((sink for sink in publishers["sinks"] if sink["name"] == name), {})


def wait_until_up(node: Node, name: str = "notify-hook") -> None:
    until(lambda: find_sink(node, name).get("up"), f"the sink {name}")


@pytest.mark.core
def test_a_fault_and_its_end_at_all_receivers(node: Node, tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    with (
        ReceivingServer(certificates / "server.crt") as hook,
        AlertReceiver() as called,
        Alertmanager(tmp_path / "am", _route_to(called.port)) as alertmanager,
    ):
        hook.answers += [Reply(status=503), Reply(resets=True)]  # it takes the third attempt
        publisher = make_publisher(
            tmp_path,
            node,
            list_entry("hook", hook, f'ca = "{certificates}/ca.crt"', FINDINGS),
            f"""
[notify.program]
type = "exec"
command = ["/bin/sh", "-c", "cat > {out}/$VITALD_TRANSITION-$VITALD_ID"]
quiet = "off"
settle = "1s"
[notify.alerts]
type = "alertmanager"
url = "http://127.0.0.1:{alertmanager.port}"
quiet = "off"
settle = "1s"
""",
        )
        with publisher:
            for name in ("hook", "program", "alerts"):
                wait_until_up(node, f"notify-{name}")
            node.write(LINE)
            until(lambda: hook.taken, "the fault at the webhook")
            assert len({request.body for request in hook.requests}) == 1
            (opened,) = hook.taken
            assert (opened["transition"], opened["finding"]["code"]) == ("opened", "xid/79")
            assert opened["finding"]["raw"] == LINE and opened["finding"]["since"]
            assert opened["flags"]["rebootRequired"] and opened["bootId"] and opened["host"]
            until(lambda: called.select("VitaldFinding", "firing"), "the alert")
            (alert,) = alertmanager.list_alerts()
            assert (alert["labels"]["code"], alert["labels"]["severity"]) == ("79", "ticket")
            assert (
                node.cli("clear", str(opened["finding"]["id"]), "--reason", "a test").returncode
                == 0
            )
            until(lambda: len(hook.taken) == 2, "the end at the webhook")
            until(lambda: called.select("VitaldFinding", "resolved"), "the end of the alert")
            until(lambda: any(out.glob("cleared-*")), "the end at the program")
        cleared = hook.taken[1]
        assert (cleared["transition"], cleared["dedupKey"]) == ("cleared", opened["dedupKey"])
        assert cleared["id"] != opened["id"]
        assert cleared["finding"]["cause"] and cleared["finding"]["raw"] == LINE
        assert any(out.glob("opened-*"))
    log = publisher.errors.read_text()
    assert "SECRET-IN-URL" not in log and "Traceback" not in log


def _route_to(port: int) -> str:
    return (
        "route: {receiver: hook, group_wait: 0s, group_interval: 1s, group_by: [alertname]}\n"
        f"receivers: [{{name: hook, webhook_configs: [{{url: 'http://127.0.0.1:{port}/'}}]}}]\n"
    )


def test_what_is_open_is_sent_once_to_a_receiver_that_is_new(
    tmp_path: Path, node: Node, hook: ReceivingServer
) -> None:
    open_findings(node, 0x65)
    node.wait(lambda status: status["openFindings"] == 1)
    clear_findings(node)
    open_findings(node, 0x66)
    node.wait(lambda status: status["openFindings"] == 1)
    publisher = make_publisher(tmp_path, node, list_entry("hook", hook))
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        with publisher:
            until(lambda: hook.taken, "opened")
            wait_until_up(node)
            publisher.stop(number)
    assert hook.list_taken() == ["opened gpu/0000:66:00.0"]


@pytest.mark.parametrize("nth", [2, 3])
def test_a_kill_after_sending_repeats_one_message_with_its_id(
    tmp_path: Path, node: Node, hook: ReceivingServer, nth: int
) -> None:
    publisher = make_publisher(tmp_path, node, list_entry("hook", hook, FINDINGS))
    killed: list[str] = []

    def answer(body: Json) -> Reply:
        if len(hook.requests) % nth == 0 and publisher.process is not None:
            killed.append(body["id"])
            os.kill(publisher.process.pid, signal.SIGKILL)
        return Reply()

    def revive() -> None:
        if publisher.process is not None and publisher.process.poll() is not None:
            publisher.start(wait=False)

    with publisher:
        wait_until_up(node)
        hook.answer = answer
        for slot in (0x60, 0x61):
            open_findings(node, slot)

            def is_sent(slot: int = slot) -> bool:
                revive()
                return f"opened gpu/0000:{slot:02x}:00.0" in hook.list_taken()

            until(is_sent, f"the finding of {slot}")
        clear_findings(node)

        def is_over() -> bool:
            revive()
            return len({body["id"] for body in hook.bodies}) == 4

        until(is_over, lambda: f"the ends: {hook.list_taken()}")
        hook.answer = lambda _: Reply()

        def is_up() -> bool:
            revive()
            return bool(find_sink(node, "notify-hook").get("up"))

        until(is_up, "the sink")
    assert killed
    times = Counter(body["id"] for body in hook.bodies)
    assert {id_ for id_, count in times.items() if count > 1} <= {*killed}
    assert max(times.values()) == 2
    keys = {body["id"]: body["dedupKey"] for body in hook.bodies}
    assert all(keys[body["id"]] == body["dedupKey"] for body in hook.bodies)
    for key in {*keys.values()}:
        kinds = [body["transition"] for body in hook.bodies if body["dedupKey"] == key]
        assert sorted(kinds, reverse=True) == kinds and {*kinds} == {"opened", "cleared"}


def test_a_storm_is_few_messages(tmp_path: Path, node: Node, hook: ReceivingServer) -> None:
    with make_publisher(tmp_path, node, list_entry("hook", hook, FINDINGS)) as publisher:
        wait_until_up(node)
        open_findings(node, *range(0x20, 0x60))

        def count_sent() -> int:
            return sum((body["digest"] or {"count": 1})["count"] for body in hook.taken)

        until(lambda: count_sent() == 64, lambda: f"all of them: {hook.list_taken()}")
        assert len(hook.taken) <= 5 and "digest" in hook.list_taken()
        assert publisher.read_memory_kib() < MAX_RSS_KIB
        wait_until_up(node)


def test_one_dead_receiver_does_not_hold_another(
    tmp_path: Path, node: Node, hook: ReceivingServer
) -> None:
    with ReceivingServer(answer=lambda _: Reply(status=503)) as dead:
        entries = [list_entry("dead", dead, FINDINGS), list_entry("hook", hook, FINDINGS)]
        with make_publisher(tmp_path, node, *entries) as publisher:
            wait_until_up(node)
            open_findings(node, 0x65)
            until(lambda: hook.taken, "the other one's")
            until(lambda: find_sink(node, "notify-dead").get("waiting") == 1, "it waits")
            assert "answered 503" in find_sink(node, "notify-dead")["error"]
            shown = node.cli("status").stdout
            assert "publishing to notify-dead: DOWN" in shown and "SECRET" not in shown
            assert node.metric('vitald_publish_up{sink="notify-dead"}') == 0.0
            assert node.metric('vitald_publish_queue{sink="notify-dead"}') == 1.0
            dead.answer = lambda _: Reply()
            until(lambda: dead.taken, "it gets its own")
            assert dead.list_taken() == hook.list_taken()
            assert [entry["sink"] for entry in publisher.read_log("sink_failed")] == ["notify-dead"]


def test_what_is_refused_is_shown_and_the_next_one_is_sent(
    tmp_path: Path, node: Node, hook: ReceivingServer
) -> None:
    hook.answers.append(Reply(status=400))
    with make_publisher(tmp_path, node, list_entry("hook", hook, FINDINGS)) as publisher:
        wait_until_up(node)
        open_findings(node, 0x65)
        until(lambda: "dropped opened" in find_sink(node, "notify-hook")["error"], "it is shown")
        assert len(publisher.read_log("notification_dropped")) == 1
        assert "publishing to notify-hook: DOWN: dropped opened" in node.cli("status").stdout
        open_findings(node, 0x66)
        until(lambda: hook.taken, "the next one")
        wait_until_up(node)


def test_a_daemon_that_dies(tmp_path: Path, node: Node, hook: ReceivingServer) -> None:
    with make_publisher(tmp_path, node, list_entry("hook", hook)):
        wait_until_up(node)
        node.kill()
        until(lambda: hook.taken, "that nothing is known")
        node.start()
        until(lambda: len(hook.taken) == 2, "that all is well")
    assert [body["flags"]["status"] for body in hook.taken] == ["unknown", "healthy"]


def test_a_drill_is_sent_to_those_who_want_it(
    tmp_path: Path, node: Node, hook: ReceivingServer
) -> None:
    with ReceivingServer() as trainee:
        entries = [list_entry("hook", hook), list_entry("trainee", trainee, "drills = true")]
        with make_publisher(tmp_path, node, *entries):
            wait_until_up(node, "notify-trainee")
            line = xid(7, pci="0000:70:00")
            status, answer = node.request("POST", "/v1/drills", {"line": line, "holdSeconds": 600})
            assert status == 201, answer
            node.write(line)
            until(lambda: trainee.taken, "the drill")
            open_findings(node, 0x65)
            until(lambda: hook.taken, "the real one")
    assert trainee.taken[0]["simulated"] and "SIMULATED" in trainee.taken[0]["summary"]
    assert hook.list_taken() == ["opened gpu/0000:65:00.0"]


@pytest.mark.core
def test_what_would_be_sent(tmp_path: Path, node: Node, hook: ReceivingServer) -> None:
    open_findings(node, 0x65, 0x66)
    node.wait(lambda status: status["openFindings"] == 2)
    entries = [
        list_entry("hook", hook, 'format = "slack"'),
        list_entry("strict", hook, 'min_action = "replace_node"'),
        '[notify.alerts]\ntype = "alertmanager"\nurl = "http://127.0.0.1:1"\n',
    ]
    publisher = make_publisher(tmp_path, node, *entries)
    shown = publisher.run("show", verb="notify")
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert lines[0] == f"hook: slack, to http://127.0.0.1:{hook.port}"
    assert sum("gpu/0000:65:00.0: " in line for line in lines) == 2  # and the alert
    assert "  not sent, by its filters: 2 of 2 open findings" in lines
    assert "SECRET" not in shown.stdout and hook.requests == []
