"""Notifications of a real `vitald publish` beside a real daemon, at a real HTTP server."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Node
from tests.notifying import HttpReceiver, make_publisher
from tests.publisher_process import PublisherProcess
from tests.system.lines import xid

Json = dict[str, Any]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path / "node") as made:
        yield made


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with HttpReceiver() as made:
        yield made


def open_findings(node: Node, *slots: int) -> None:
    node.write(*(xid(slot, pci=f"0000:{slot:02x}:00") for slot in slots))


def clear_findings(node: Node) -> None:
    for finding in node.findings():
        status, answer = node.request(
            "POST", f"/v1/findings/{finding['id']}/clear", {"reason": "replaced"}
        )
        assert status == 200, answer


def list_entry(receiver: HttpReceiver, *lines: str, name: str = "hook") -> str:
    return "\n".join([f'name = "{name}"', f'url = "{receiver.url}"', *lines])


def find_sink(node: Node, name: str) -> Json:
    publishers = node.status()["publishers"] or {"sinks": []}
    return next((sink for sink in publishers["sinks"] if sink["name"] == name), {})


FINDINGS = 'on = ["opened", "escalated", "cleared"]'


@pytest.mark.smoke
def test_a_finding_from_its_opening_to_its_end(
    tmp_path: Path, node: Node, receiver: HttpReceiver
) -> None:
    with make_publisher(tmp_path / "p", node, list_entry(receiver)):
        Node.until(lambda: find_sink(node, "notify/hook").get("up"), 15.0, "the sink is up")
        open_findings(node, 0x65)
        receiver.wait_for(lambda: len(receiver.taken) == 2, "opened, and the flags")
        clear_findings(node)
        receiver.wait_for(lambda: len(receiver.taken) == 4, "cleared, and the flags")
        assert node.metric('vitald_publish_up{sink="notify/hook"}') == 1.0
    opened, flags, cleared, after = receiver.taken
    assert (opened["transition"], cleared["transition"]) == ("opened", "cleared")
    assert opened["dedupKey"] == cleared["dedupKey"]
    assert len({body["id"] for body in receiver.taken}) == 4
    assert opened["finding"]["component"] == "gpu/0000:65:00.0"
    assert opened["finding"]["kind"] == "xid" and opened["finding"]["code"] == "xid/79"
    assert opened["finding"]["action"] == "reboot_node"
    assert "fallen off the bus" in opened["finding"]["raw"]
    assert opened["finding"]["since"] and opened["bootId"] and opened["host"]
    assert (flags["flags"]["status"], flags["flags"]["rebootRequired"]) == ("unhealthy", True)
    assert (after["flags"]["status"], after["formerFlags"]["status"]) == ("healthy", "unhealthy")


def test_what_is_open_is_reported_once_to_a_receiver_that_is_new(
    tmp_path: Path, node: Node, receiver: HttpReceiver
) -> None:
    open_findings(node, 0x65)
    node.wait(lambda status: status["openFindings"] == 1)
    clear_findings(node)
    open_findings(node, 0x66)
    node.wait(lambda status: status["openFindings"] == 1)
    publisher = make_publisher(tmp_path / "p", node, list_entry(receiver))
    for number in (signal.SIGTERM, signal.SIGKILL):
        with publisher:
            receiver.wait_for(lambda: len(receiver.taken) >= 2, "opened, and the flags")
            Node.until(lambda: find_sink(node, "notify/hook").get("up"), 15.0, "the sink is up")
            publisher.stop(number)
    assert [kind for kind, _ in receiver.list_received()] == ["opened", "flags"]
    assert receiver.taken[0]["finding"]["component"] == "gpu/0000:66:00.0"


def kill_at_every(publisher: PublisherProcess, receiver: HttpReceiver, nth: int) -> list[str]:
    """Kill the publisher when the receiver has a message and has not answered. The ids of these."""
    killed: list[str] = []

    def answer(body: Json) -> int:
        if len(receiver.bodies) % nth == 0 and publisher.process is not None:
            killed.append(body["id"])
            os.kill(publisher.process.pid, signal.SIGKILL)
        return 200

    receiver.answer = answer
    return killed


def revive(publisher: PublisherProcess) -> None:
    """Start it if it was killed."""
    if publisher.process is not None and publisher.process.poll() is not None:
        publisher.start(wait=False)


@pytest.mark.parametrize("nth", [2, 3])
def test_a_kill_after_sending_repeats_one_message_with_its_id(
    tmp_path: Path, node: Node, receiver: HttpReceiver, nth: int
) -> None:
    publisher = make_publisher(tmp_path / "p", node, list_entry(receiver))
    with publisher:
        Node.until(lambda: find_sink(node, "notify/hook").get("up"), 15.0, "the sink is up")
        killed = kill_at_every(publisher, receiver, nth)
        expected = 0
        for slot in range(0x60, 0x66):
            expected += 1
            open_findings(node, slot)

            def is_reported(expected: int = expected) -> bool:
                revive(publisher)
                opened = {body["id"] for body in receiver.bodies if body["transition"] == "opened"}
                return len(opened) == expected

            receiver.wait_for(is_reported, f"finding {expected}", 30.0)
        receiver.answer = lambda _: 200
        clear_findings(node)

        def is_over() -> bool:
            revive(publisher)
            return sum(kind == "cleared" for kind, _ in receiver.list_received()) == expected

        receiver.wait_for(is_over, "the ends", 30.0)
    assert len(killed) >= 2
    times = Counter(body["id"] for body in receiver.bodies)
    assert {id_ for id_, count in times.items() if count > 1} <= {*killed}
    assert max(times.values()) == 2
    keys = {body["id"]: body["dedupKey"] for body in receiver.bodies}
    assert all(keys[body["id"]] == body["dedupKey"] for body in receiver.bodies)
    first = [body["finding"]["id"] for body in _list_first(receiver.bodies, "opened")]
    assert first == sorted(first) and len(first) == expected
    ends = [body["finding"]["id"] for body in _list_first(receiver.bodies, "cleared")]
    assert ends == first


def _list_first(bodies: list[Json], kind: str) -> list[Json]:
    """Without repeats."""
    found = {body["id"]: body for body in reversed(bodies) if body["transition"] == kind}
    return sorted(found.values(), key=lambda body: bodies.index(body))


def test_a_storm_is_one_message_and_every_end_is_reported(
    tmp_path: Path, node: Node, receiver: HttpReceiver
) -> None:
    with make_publisher(tmp_path / "p", node, list_entry(receiver, FINDINGS)):
        Node.until(lambda: find_sink(node, "notify/hook").get("up"), 15.0, "the sink is up")
        open_findings(node, *range(0x20, 0x50))
        receiver.wait_for(lambda: "digest" in str(receiver.list_received()), "a digest", 60.0)
        received = [kind for kind, _ in receiver.list_received()]
        assert received == ["opened"] * 20 + ["digest"]
        digest = receiver.taken[-1]["digest"]
        assert digest["count"] == 28
        clear_findings(node)
        receiver.wait_for(
            lambda: [kind for kind, _ in receiver.list_received()].count("cleared") >= 20, "20 ends"
        )
        opened = {body["dedupKey"] for body in receiver.taken if body["transition"] == "opened"}
        ended = {body["dedupKey"] for body in receiver.taken if body["transition"] == "cleared"}
        receiver.wait_for(
            lambda: (
                opened
                <= {body["dedupKey"] for body in receiver.taken if body["transition"] == "cleared"}
            ),
            f"the ends of {opened - ended}",
        )


def test_one_dead_receiver_does_not_hold_another(
    tmp_path: Path, node: Node, receiver: HttpReceiver
) -> None:
    with HttpReceiver(answer=lambda _: 503) as dead:
        entries = [list_entry(dead, FINDINGS, name="dead"), list_entry(receiver, FINDINGS)]
        with make_publisher(tmp_path / "p", node, *entries) as publisher:
            Node.until(lambda: find_sink(node, "notify/hook").get("up"), 15.0, "the sink is up")
            open_findings(node, 0x65, 0x66)
            receiver.wait_for(lambda: len(receiver.taken) == 2, "both")
            Node.until(lambda: find_sink(node, "notify/dead").get("waiting") == 2, 20.0, "it waits")
            assert not find_sink(node, "notify/dead")["up"]
            assert "503" in find_sink(node, "notify/dead")["error"]
            assert "notify/dead" in node.cli("status").stdout
            dead.answer = lambda _: 200
            dead.wait_for(lambda: len(dead.taken) == 2, "both", 60.0)
            assert dead.list_received() == receiver.list_received()
            assert [entry["sink"] for entry in publisher.read_log("sink_failed")] == ["notify/dead"]


def test_what_is_refused_is_shown_and_the_next_ones_are_sent(
    tmp_path: Path, node: Node, receiver: HttpReceiver
) -> None:
    receiver.answer = lambda body: 400 if len(receiver.bodies) == 1 else 200
    with make_publisher(tmp_path / "p", node, list_entry(receiver, FINDINGS)) as publisher:
        Node.until(lambda: find_sink(node, "notify/hook").get("up"), 15.0, "the sink is up")
        open_findings(node, 0x65)
        Node.until(
            lambda: "refused" in find_sink(node, "notify/hook")["error"], 20.0, "it is shown"
        )
        assert len(publisher.read_log("notification_dropped")) == 1
        open_findings(node, 0x66)
        receiver.wait_for(lambda: len(receiver.taken) == 1, "the next one")
        Node.until(lambda: find_sink(node, "notify/hook")["up"], 20.0, "it is up")


def test_a_daemon_that_dies_is_reported(tmp_path: Path, node: Node, receiver: HttpReceiver) -> None:
    with make_publisher(tmp_path / "p", node, list_entry(receiver)):
        Node.until(lambda: find_sink(node, "notify/hook").get("up"), 15.0, "the sink is up")
        node.kill()
        receiver.wait_for(lambda: receiver.taken, "the status is unknown")
        node.start()
        receiver.wait_for(lambda: len(receiver.taken) == 2, "it is healthy again", 30.0)
    assert [body["flags"]["status"] for body in receiver.taken] == ["unknown", "healthy"]


def test_a_drill_is_sent_only_to_those_that_want_it(
    tmp_path: Path, node: Node, receiver: HttpReceiver
) -> None:
    with HttpReceiver() as trainee:
        entries = [list_entry(receiver), list_entry(trainee, "drills = true", name="trainee")]
        with make_publisher(tmp_path / "p", node, *entries):
            Node.until(lambda: find_sink(node, "notify/trainee").get("up"), 15.0, "it is up")
            line = xid(7, pci="0000:70:00")
            status, answer = node.request(
                "POST", "/v1/injections", {"line": line, "holdSeconds": 600}
            )
            assert status == 201, answer
            node.write(line)
            trainee.wait_for(lambda: len(trainee.taken) == 2, "opened, and the flags")
            open_findings(node, 0x65)
            receiver.wait_for(lambda: len(receiver.taken) == 2, "the real one")
    opened, flags = trainee.taken[:2]
    assert opened["finding"]["simulated"] and flags["flags"]["simulated"]
    assert flags["flags"]["status"] == "unhealthy"
    assert receiver.taken[0]["finding"]["component"] == "gpu/0000:65:00.0"
    assert not any(body["flags"]["simulated"] for body in receiver.taken)
