"""The stream of changes: the verdict first, then what happens, in order; nobody is delayed by who
does not read.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.harness import PYTHON, ROOT, Json, Node, UnixConnection
from tests.system.document import conforms
from tests.system.lines import about, fallen_with_company, fresh_pci, pids, xid
from tests.waiting import WAIT_S, until


def checked(line: bytes) -> Json:
    """One object a line, as the API's document says."""
    value: Json = json.loads(line)
    conforms("WatchLine", value)
    return value


@contextmanager
def watching(node: Node) -> Iterator[Iterator[Json]]:
    """The lines of /v1/watch."""
    connection = UnixConnection(node.socket)
    try:
        connection.request("GET", "/v1/watch")
        response = connection.getresponse()
        assert (response.status, response.getheader("Content-Type")) == (
            200,
            "application/x-ndjson",
        ), response.read()
        yield map(checked, iter(response.readline, b""))
    finally:
        connection.close()


def stalled(node: Node) -> socket.socket:
    """A watcher that never reads."""
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(WAIT_S)
    made.connect(str(node.socket))
    made.sendall(b"GET /v1/watch HTTP/1.1\r\nHost: vitald\r\n\r\n")
    return made


@pytest.mark.core
def test_what_happens_in_order(node: Node) -> None:
    with watching(node) as lines:
        first = next(lines)
        assert (first["type"], first["status"], first["rebootRequired"]) == (
            "verdict",
            "healthy",
            False,
        )
        node.write("usb 1-1: nothing of note", xid(1))
        event, finding, incident, verdict = (next(lines) for _ in range(4))
        assert (event["type"], event["event"]["code"], event["event"]["fields"]["pid"]) == (
            "event",
            "xid/79",
            1,
        )
        assert (finding["type"], finding["finding"]["state"], finding["cause"]) == (
            "finding",
            "open",
            "xid/79 seen",
        )
        assert finding["event"] == event["event"]["identity"]
        assert (
            incident["type"],
            incident["incident"]["state"],
            incident["incident"]["findings"],
        ) == ("incident", "open", [1])
        assert (verdict["type"], verdict["status"], verdict["rebootRequired"]) == (
            "verdict",
            "unhealthy",
            True,
        )

        node.write(xid(2))
        assert next(lines)["event"]["fields"]["pid"] == 2
        node.request("POST", "/v1/findings/1/clear", {"reason": "over"})
        event, finding, incident, verdict = (next(lines) for _ in range(4))
        assert (event["type"], event["event"]["code"], event["event"]["trust"]) == (
            "event",
            "vitald/cleared",
            "daemon",
        )
        assert (finding["type"], finding["finding"]["state"], finding["finding"]["count"]) == (
            "finding",
            "cleared",
            2,
        )
        assert "over" in str(finding["cause"])
        assert (
            incident["type"],
            incident["incident"]["state"],
            incident["incident"]["findings"],
        ) == ("incident", "over", [])
        assert (verdict["type"], verdict["status"], verdict["rebootRequired"]) == (
            "verdict",
            "healthy",
            False,
        )


def incidents_in(lines: Iterator[Json], until: Callable[[Json], object]) -> list[Json]:
    """The incidents among the lines, up to the one for which `until` holds."""
    told: list[Json] = []
    for line in lines:
        if line["type"] == "incident":
            told.append(line["incident"])
        if until(line):
            break
    return told


def test_a_storm_of_one_story_is_told_once(node: Node) -> None:
    """Exactly one `incident` line when it begins and one when it is over, however many lines it has
    and however they come.
    """
    storm = fallen_with_company(1, suppressed=200)
    with watching(node) as lines:
        assert next(lines)["status"] == "healthy"
        for begin in range(0, len(storm), 40):
            node.write(*storm[begin : begin + 40])
            until(
                lambda so_far=begin + 40: len(node.events()) >= min(so_far, len(storm)),
                "the lines",
            )
        until(lambda: len(node.findings()) == 2, "the findings")
        for finding in node.findings():
            node.request("POST", f"/v1/findings/{finding['id']}/clear", {"reason": "over"})
        begun, over = incidents_in(
            lines, lambda line: line["type"] == "verdict" and line["status"] == "healthy"
        )
        assert (begun["state"], begun["code"], over["state"], over["id"], over["count"]) == (
            "open",
            "xid/79",
            "over",
            begun["id"],
            202,
        )


def test_a_cause_that_is_printed_late(node: Node) -> None:
    """The incident has another cause than it seemed to have: that is told too."""
    with watching(node) as lines:
        assert next(lines)["status"] == "healthy"
        node.write(xid(1, code=31, message="MMU Fault"))
        until(lambda: node.findings(), "the first finding")
        node.write(xid(2))
        told = incidents_in(
            lines, lambda line: line["type"] == "verdict" and line["rebootRequired"]
        )
        assert [(one["state"], one["code"]) for one in told] == [
            ("open", "xid/31"),
            ("open", "xid/79"),
        ]
        assert told[0]["id"] == told[1]["id"]


def test_a_changed_policy_is_a_changed_verdict(node: Node) -> None:
    """A reset that the site does itself asks for no reboot: who watches is told at the reload, not
    at the next heartbeat.
    """
    node.write(xid(1, code=95, message="Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No"))
    node.wait(lambda status: status["rebootRequired"])
    with watching(node) as lines:
        assert next(lines)["rebootRequired"]
        node.config.write_text(node.settings + "[policy]\ndevice_reset = true\n")
        assert node.reload()["event"] == "reloaded"
        verdict = next(lines)
        assert (verdict["type"], verdict["rebootRequired"]) == ("verdict", False)


def test_who_does_not_read_delays_nobody(shared_node: Node) -> None:
    """One that reads beside a stalled watcher gets every event, and others are answered."""
    node = shared_node
    pci, rounds, size = fresh_pci(), 10, 150
    with stalled(node), watching(node) as lines:
        for number in range(rounds):
            node.write(*(xid(number * size + one, pci=pci) for one in range(size)))
            got = []
            while len(got) < size:
                line = next(lines)
                if line["type"] == "event":
                    got.append(line["event"]["fields"]["pid"])
            assert got == [*range(number * size, (number + 1) * size)]
            assert node.answers("/v1/status")


def test_who_does_not_read_is_closed(shared_node: Node) -> None:
    """Once its buffers are full and nothing is taken for some seconds."""
    node, pci = shared_node, fresh_pci()
    until(lambda: node.metric("vitald_api_clients") == 0, "earlier clients to be gone")
    with stalled(node):
        for number in range(10):
            node.write(*(xid(number, pci=pci) for _ in range(150)))
            until(
                lambda so_far=150 * (number + 1): len(about(node.events(), pci)) == so_far,
                "the lines",
            )
        until(lambda: node.metric("vitald_api_clients") == 0, "the stalled watcher to be closed")


def test_a_burst_too_long_for_the_queue(shared_node: Node) -> None:
    """Who cannot be told everything is told so, and finds the rest in the ledger."""
    node, pci = shared_node, fresh_pci()
    with watching(node) as lines:
        assert next(lines)["type"] == "verdict"
        with node.frozen():
            node.write(*(xid(pid, pci=pci) for pid in range(5000)))
        told = []
        while len(told) < 5000 and (line := next(lines))["type"] != "lagged":
            told += [line["event"]["fields"]["pid"]] if line["type"] == "event" else []
        assert told == [*range(len(told))]
        until(lambda: len(about(node.events(), pci)) == 5000, "all lines")
        assert pids(about(node.events(), pci)) == [*range(5000)]


def test_too_many_watchers(shared_node: Node) -> None:
    """The 33rd is told so; as soon as the others have gone there is room again."""
    node = shared_node
    watchers = [stalled(node) for _ in range(32)]
    for watcher in watchers:
        assert watcher.recv(1 << 16).startswith(b"HTTP/1.1 200")
    status, answer = node.request("GET", "/v1/watch")
    assert (status, answer["error"]) == (503, "too many watchers")
    for watcher in watchers:
        watcher.close()
    until(lambda: node.metric("vitald_api_clients") == 0, "the watchers to be gone")
    with watching(node) as lines:
        assert next(lines)["type"] == "verdict"


def test_head(shared_node: Node) -> None:
    """A question for the headers has an end."""
    node = shared_node
    connection = UnixConnection(node.socket, 3.0)
    connection.request("HEAD", "/v1/watch")
    assert connection.getresponse().status in (200, 405)
    connection.close()
    until(lambda: node.metric("vitald_api_clients") == 0, "the client to be gone")


@pytest.mark.core
def test_an_orderly_stop_is_announced(node: Node) -> None:
    """To every watcher, as the last line, also right behind other changes."""
    with watching(node) as lines, watching(node) as others:
        assert [next(each)["type"] for each in (lines, others)] == ["verdict", "verdict"]
        node.write(xid(1))
        assert next(lines)["type"] == "event"
        node.stop()
        assert [each["type"] for each in lines][-1] == "stopping"
        assert [each["type"] for each in others][-1] == "stopping"


@pytest.mark.core
def test_a_daemon_that_is_killed_announces_nothing(node: Node) -> None:
    with watching(node) as lines:
        assert next(lines)["type"] == "verdict"
        node.kill()
        assert [each["type"] for each in lines] == []


def test_whoever_follows_is_told_of_the_stop(node: Node) -> None:
    node.write(xid(1))
    until(node.events, "the event")
    command = [PYTHON, "-m", "vitald", "events", "--follow", "--socket", str(node.socket)]
    following = subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert following.stdout is not None
    assert "xid/79" in following.stdout.readline()  # it follows from here on
    node.stop()
    _, remarks = following.communicate(timeout=WAIT_S)
    assert (following.returncode, remarks) == (
        30,
        "vitald: the daemon is being stopped; follow again once it runs\n",
    )


def test_heartbeat(shared_node: Node) -> None:
    node = shared_node
    with watching(node) as lines:
        assert [next(lines)["type"], next(lines)["type"]] == ["verdict", "heartbeat"]
