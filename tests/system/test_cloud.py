"""Notices of a cloud provider: from its metadata service by `vitald publish` to the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.harness import Json, Node
from tests.metadata_service import AWS_REBOOT, MetadataServer, announce_spot
from tests.publisher_process import PublisherProcess
from vitald.publish.cloud import aws, azure, gcp

IMMINENT, SCHEDULED = "cloud/interruption_imminent", "cloud/interruption_scheduled"
LATER = "21 Jan 2999 09:00:43 GMT"


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    made = make_node()
    made.start()
    return made


@pytest.fixture
def publish(node: Node, tmp_path: Path) -> Iterator[Callable[[MetadataServer], PublisherProcess]]:
    """Starts a publisher that reads the notices of this server, and nothing else."""
    made: list[PublisherProcess] = []

    def start(server: MetadataServer) -> PublisherProcess:
        section = f'[cloud]\nprovider = "{server.provider}"\nendpoint = "{server.url}"'
        made.append(PublisherProcess(tmp_path / "p", node, f'{section}\nevery = "1s"'))
        made[-1].start()
        return made[-1]

    yield start
    for publisher in made:
        publisher.stop()


def codes(node: Node) -> list[str]:
    return [str(finding["code"]) for finding in node.findings() if finding["kind"] == "cloud"]


def wait_for_codes(node: Node, *expected: str) -> None:
    Node.until(lambda: codes(node) == [*expected], 30.0, f"the findings {expected}")


def sink(node: Node) -> Json:
    publishers = cast("Json", node.status()["publishers"] or {"sinks": []})
    return next((each for each in publishers["sinks"] if each["name"] == "cloud"), {})


Publish = Callable[[MetadataServer], PublisherProcess]


def test_a_scheduled_reboot_is_shown_until_it_is_gone(node: Node, publish: Publish) -> None:
    """The node stays fit; a time that comes near makes it unfit; a notice that is gone ends it."""
    with MetadataServer("aws") as server:
        server.answers[aws.SCHEDULED] = [{**AWS_REBOOT, "NotBefore": LATER}]
        publish(server)
        wait_for_codes(node, SCHEDULED)
        [finding] = node.findings()
        assert finding["raw"] == (
            "aws: system-reboot, not before 2999-01-21T09:00:43Z: scheduled reboot"
        )
        verdict = node.status()
        flags = ("status", "rebootRequired", "replacementRequired")
        assert [verdict[name] for name in flags] == ["degraded", False, False]
        assert node.cli("check", "--for", "prolog").returncode == 0
        server.answers[aws.SCHEDULED] = [AWS_REBOOT]
        wait_for_codes(node, IMMINENT)
        assert node.cli("check", "--for", "prolog").returncode == 20
        assert [node.status()[name] for name in flags] == ["unhealthy", False, False]
        server.answers[aws.SCHEDULED] = [{**AWS_REBOOT, "State": "completed"}]
        wait_for_codes(node)
        assert node.cli("check").returncode == 0


def test_a_service_that_fails_neither_opens_nor_ends_a_finding(
    node: Node, publish: Publish
) -> None:
    with MetadataServer("aws") as server:
        announce_spot(server, 120.0)
        publish(server)
        wait_for_codes(node, IMMINENT)
        server.status = 500
        Node.until(lambda: "HTTP 500" in str(sink(node).get("error")), 30.0, "the failed reading")
        assert sink(node)["up"] is False
        assert codes(node) == [IMMINENT]
        server.status, server.answers = 0, {}
        wait_for_codes(node)
        Node.until(lambda: sink(node).get("up"), 30.0, "the sink to be up again")


def test_a_finding_that_was_cleared_is_open_again(node: Node, publish: Publish) -> None:
    """While the notice stands; and a daemon that was killed knows it without a second event."""
    with MetadataServer("gcp") as server:
        server.answers[gcp.EVENT] = "TERMINATE_ON_HOST_MAINTENANCE"
        publish(server)
        wait_for_codes(node, IMMINENT)
        [finding] = node.findings()
        node.kill()
        node.start()
        assert [each["id"] for each in node.findings()] == [finding["id"]]
        clear = f"/v1/findings/{finding['id']}/clear"
        assert node.request("POST", clear, {"reason": "a mistake"})[0] == 200
        Node.until(lambda: codes(node) == [IMMINENT], 40.0, "the finding to be open again")
        assert len(node.events("&kind=cloud")) == 2


def test_events_of_azure_are_read_and_not_approved(node: Node, publish: Publish) -> None:
    event = {
        "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
        "EventType": "Freeze",
        "ResourceType": "VirtualMachine",
        "Resources": ["gpu-vm-0"],
        "EventStatus": "Scheduled",
        "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT",
    }
    with MetadataServer("azure") as server:
        server.answers[azure.EVENTS] = {"DocumentIncarnation": 2, "Events": [event]}
        publish(server)
        wait_for_codes(node, "cloud/pause_scheduled")
        assert node.status()["status"] == "degraded"
        assert {line.partition(" ")[0] for line in server.asked} == {"GET"}


NOTICE: Json = {
    "effect": "interruption_scheduled",
    "kind": "system-reboot",
    "id": "instance-event-1",
    "notBefore": None,
    "description": "",
}


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"notices": []}, "provider: it is missing"),
        ({"provider": "oci", "notices": []}, "none of aws, azure, gcp"),
        ({"provider": "aws"}, "notices: it is missing"),
        ({"provider": "aws", "notices": [NOTICE] * 17}, "notices: expected a list of at most 16"),
        ({"provider": "aws", "notices": [7]}, "notices[0]: expected an object"),
        ({"provider": "aws", "notices": [{}]}, "notices[0].effect: it is missing"),
        ({"provider": "aws", "notices": [{**NOTICE, "effect": "fire"}]}, "none of interruption_"),
        ({"provider": "aws", "notices": [{**NOTICE, "kind": ""}]}, "notices[0].kind: expected"),
        ({"provider": "aws", "notices": [{**NOTICE, "notBefore": "soon"}]}, "notBefore: expected"),
        (
            {"provider": "aws", "notices": [{**NOTICE, "notBefore": "2026-02-31T00:00:00.000Z"}]},
            "notBefore: expected",
        ),
        ({"provider": "aws", "notices": [{**NOTICE, "description": "a\nb"}]}, "description: "),
        ({"provider": "aws", "notices": [{**NOTICE, "extra": 1}]}, "unknown key 'extra'"),
        ({"provider": "aws", "notices": [], "more": 1}, "unknown key 'more'"),
    ],
)
def test_what_is_no_notice_is_refused(node: Node, body: Json, complaint: str) -> None:
    status, answer = node.request("POST", "/v1/notices", body)
    assert status == 400, answer
    assert complaint in str(answer["error"])
    assert codes(node) == []


def test_notices_of_one_effect_are_one_finding(node: Node) -> None:
    """It names the first, and is updated when that changes; the same again is no event."""
    later = {**NOTICE, "notBefore": "2999-01-02T00:00:00.000Z", "id": "instance-event-2"}
    first = {**NOTICE, "notBefore": "2999-01-01T00:00:00.000Z"}
    for notices in ([later], [later], [later, first], [later, first]):
        body = {"provider": "aws", "notices": notices}
        assert node.request("POST", "/v1/notices", body) == (200, {"ok": True})
    Node.until(lambda: len(node.events("&kind=cloud")) == 2, 20.0, "the update, 10 s later")
    [finding] = node.findings()
    assert finding["fields"]["id"] == "instance-event-1", json.dumps(finding)
    assert finding["raw"] == "aws: system-reboot, not before 2999-01-01T00:00:00Z (and 1 more)"
    assert len(node.events("&kind=cloud")) == 2
    assert node.request("POST", "/v1/notices", {"provider": "aws", "notices": []})[0] == 200
    wait_for_codes(node)


def test_a_notice_that_stands_opens_a_cleared_finding_again(node: Node) -> None:
    body = {"provider": "aws", "notices": [NOTICE]}
    assert node.request("POST", "/v1/notices", body)[0] == 200
    [finding] = node.findings()
    clear = f"/v1/findings/{finding['id']}/clear"
    assert node.request("POST", clear, {"reason": "a mistake"})[0] == 200
    assert codes(node) == []
    assert node.request("POST", "/v1/notices", body)[0] == 200
    [again] = node.findings()
    assert again["code"] == SCHEDULED
    assert str(again["raw"]).endswith("still observed)")
