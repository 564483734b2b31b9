"""Open findings as alerts, in a real Alertmanager and at the webhook that it calls."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.alertmanager import Alertmanager
from tests.notifications import ReceivingServer, Reply
from tests.pace import patient
from tests.published import HEALTHY_NODE, XID_79
from vitald.model import Action, Status, When
from vitald.publish.notify import alertmanager
from vitald.publish.notify.alertmanager import AlertmanagerSink, find_anchor
from vitald.publish.sink import PartlyWritten, SinkFailed
from vitald.publish.summary import DaemonSilent, FindingSummary, NodeSummary, PublishedState
from vitald.publish_sections import NotifySettings
from vitald.timestamps import format_rfc3339

HOST = "gpu-node-1"
NOW = time.time()
FINDING = replace(XID_79, id=12, when=When.AFTER_JOB, since=NOW - 60, due=False)
WORSE = replace(FINDING, id=13, component="gpu/0000:66:00.0", action=Action.REPLACE_NODE)
SILENT = DaemonSilent(since=NOW - 30, detail="no socket")


def make_state(*findings: FindingSummary, status: Status = Status.UNHEALTHY) -> NodeSummary:
    return replace(
        HEALTHY_NODE,
        status=status,
        action=Action.find_strongest(each.action for each in findings),
        reason="Xid79",
        lines=("GPU has fallen off the bus",),
        changed_at=NOW,
        findings=findings,
        open_findings=len(findings),
    )


HEALTHY = make_state(status=Status.HEALTHY)


@pytest.fixture
def hook() -> Iterator[ReceivingServer]:
    with ReceivingServer() as server:
        yield server


@pytest.fixture
def server(tmp_path: Path, hook: ReceivingServer) -> Iterator[Alertmanager]:
    with Alertmanager(tmp_path / "alertmanager", hook.url) as started:
        yield started


def make_sink(*urls: str, **settings: Any) -> AlertmanagerSink:
    return AlertmanagerSink(
        NotifySettings(name="am", type="alertmanager", urls=urls, **settings), HOST
    )


def write(sink: AlertmanagerSink, *states: PublishedState) -> None:
    """One after the other. Raises as write_state does."""

    async def write_all() -> None:
        for state in states:
            await sink.write_state(state)

    asyncio.run(asyncio.wait_for(write_all(), patient(30)))


def list_notified(hook: ReceivingServer) -> list[tuple[str, str, str]]:
    """Status, name and component of each alert that arrived at the webhook."""
    return [
        (alert["status"], alert["labels"]["alertname"], alert["labels"].get("component", ""))
        for request in hook.requests
        for alert in json.loads(request.body)["alerts"]
    ]


# --- a real Alertmanager


def test_an_alert_fires_and_resolves(server: Alertmanager, hook: ReceivingServer) -> None:
    sink = make_sink(server.url)
    write(sink, make_state(FINDING))
    fired = ("firing", "VitaldFinding", "gpu/0000:65:00.0")
    server.await_condition(lambda: fired in list_notified(hook))
    (alert,) = server.list_alerts()
    assert alert["labels"] == {
        "alertname": "VitaldFinding",
        "instance": HOST,
        "job": "vitald",
        "component": "gpu/0000:65:00.0",
        "kind": "xid",
        "code": "79",
        "action": "reboot_node",
        "when": "after_job",
        "severity": "ticket",
    }
    assert alert["annotations"]["todo"] == "reboot the node after the running job"
    assert alert["annotations"]["runbook"].endswith("findings.md#xid-79")
    write(sink, HEALTHY)
    resolved = ("resolved", "VitaldFinding", "gpu/0000:65:00.0")
    server.await_condition(lambda: resolved in list_notified(hook))
    assert server.list_alerts() == []


def test_a_publisher_that_dies(
    server: Alertmanager, hook: ReceivingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its alerts end by themselves."""
    monkeypatch.setattr(alertmanager, "HOLD_S", 3.0)
    write(make_sink(server.url), make_state(FINDING))
    server.await_condition(
        lambda: ("firing", "VitaldFinding", FINDING.component) in list_notified(hook)
    )
    resolved = ("resolved", "VitaldFinding", FINDING.component)
    server.await_condition(lambda: resolved in list_notified(hook))


def test_a_silent_daemon(server: Alertmanager, hook: ReceivingServer) -> None:
    """What fired goes on, and one more tells that nothing is known."""
    sink = make_sink(server.url)
    write(sink, make_state(FINDING), SILENT)
    server.await_condition(lambda: ("firing", "VitaldSilent", "") in list_notified(hook))
    names = {alert["labels"]["alertname"] for alert in server.list_alerts()}
    assert names == {"VitaldFinding", "VitaldSilent"}
    write(sink, HEALTHY)
    server.await_condition(lambda: ("resolved", "VitaldSilent", "") in list_notified(hook))
    assert server.list_alerts() == []


def test_hostile_text_is_accepted(server: Alertmanager) -> None:
    text = '"}\n\x00<b>\u202e{{ .Labels }}' * 1000
    hostile = replace(FINDING, component=text, code=f"xid/{text}", device=text)
    write(make_sink(server.url), make_state(hostile))
    (alert,) = server.list_alerts()
    values = [*alert["labels"].values(), *alert["annotations"].values()]
    assert all(value.isprintable() and len(value.encode()) <= 600 for value in values)


def test_both_of_a_pair(server: Alertmanager, tmp_path: Path, hook: ReceivingServer) -> None:
    with Alertmanager(tmp_path / "second", hook.url) as second:
        sink = make_sink(server.url, f"{second.url}/")
        write(sink, make_state(FINDING))
        assert len(server.list_alerts()) == len(second.list_alerts()) == 1


# --- what is sent, and failures


def read_sent(hook: ReceivingServer) -> list[list[tuple[str, bool]]]:
    """For each request its alerts: component or name, and whether it goes on."""
    return [
        [
            (
                alert["labels"].get("component", alert["labels"]["alertname"]),
                alert["endsAt"] > format_rfc3339(time.time() + 60),
            )
            for alert in json.loads(request.body)
        ]
        for request in hook.requests
    ]


def test_it_is_sent_again_and_ended_once(hook: ReceivingServer) -> None:
    sink = make_sink(hook.url.partition("/hook")[0])
    write(sink, HEALTHY, make_state(FINDING, WORSE), make_state(WORSE), HEALTHY, HEALTHY)
    assert [request.path for request in hook.requests] == ["/api/v2/alerts"] * 3
    assert read_sent(hook) == [
        [(FINDING.component, True), (WORSE.component, True)],
        [(WORSE.component, True), (FINDING.component, False)],
        [(WORSE.component, False)],
    ]
    assert sink.get_recheck_s(HEALTHY) == 120.0


def test_a_finding_that_is_not_listed_goes_on(hook: ReceivingServer) -> None:
    """The summary of a node with many findings has only some of them."""
    sink = make_sink(hook.url.partition("/hook")[0])
    crowded = replace(make_state(WORSE), open_findings=2)
    write(sink, make_state(FINDING, WORSE), crowded, make_state(WORSE))
    assert read_sent(hook)[1:] == [
        [(WORSE.component, True), (FINDING.component, True)],
        [(WORSE.component, True), (FINDING.component, False)],
    ]


def test_a_listed_finding_has_one_alert_while_others_are_not(hook: ReceivingServer) -> None:
    """Its labels change with what it requires."""
    sink = make_sink(hook.url.partition("/hook")[0])
    escalated = replace(make_state(replace(FINDING, action=WORSE.action)), open_findings=2)
    write(sink, make_state(FINDING), escalated)
    first, second = (json.loads(request.body) for request in hook.requests)
    assert [alert["labels"]["action"] for alert in (*first, *second)] == [
        *("reboot_node", "replace_node", "reboot_node")
    ]
    assert read_sent(hook)[1] == [(FINDING.component, True), (FINDING.component, False)]


def test_an_accepted_finding_fires_no_alert(hook: ReceivingServer) -> None:
    """As those of Prometheus; it fires again once it counts again."""
    sink = make_sink(hook.url.partition("/hook")[0])
    accepted = make_state(replace(FINDING, accepted=True))
    write(sink, accepted, make_state(FINDING), accepted)
    assert read_sent(hook) == [[(FINDING.component, True)], [(FINDING.component, False)]]


def test_an_end_that_did_not_arrive_is_sent_again(hook: ReceivingServer) -> None:
    sink = make_sink(hook.url.partition("/hook")[0])
    write(sink, make_state(FINDING))
    hook.answers.append(Reply(status=500))
    with pytest.raises(SinkFailed, match="500"):
        write(sink, HEALTHY)
    write(sink, HEALTHY)
    assert read_sent(hook)[1:] == [[(FINDING.component, False)]] * 2


def test_one_of_a_pair_fails(hook: ReceivingServer) -> None:
    """The other gets all; the one that failed gets what it missed."""
    base = hook.url.partition("/hook")[0]
    with ReceivingServer() as other:
        sink = make_sink(base, other.url.partition("/hook")[0])
        hook.answers.append(Reply(status=503, headers={"Retry-After": "7"}))
        with pytest.raises(PartlyWritten, match="503"):
            write(sink, make_state(FINDING))
        assert sink.get_recheck_s(HEALTHY) == alertmanager.RETRY_S
        write(sink, make_state(FINDING))
        assert sink.get_recheck_s(HEALTHY) == alertmanager.RESEND_S
        assert len(other.requests) == len(hook.requests) == 2
    sink = make_sink(base)
    hook.answers.append(Reply(status=400))
    with pytest.raises(SinkFailed, match="400"):
        write(sink, make_state(FINDING))


def test_which_findings(hook: ReceivingServer) -> None:
    weak = replace(FINDING, component="gpu/weak", action=Action.OBSERVE)
    drill = replace(FINDING, component="gpu/drill", simulated=True)
    state = make_state(FINDING, weak, drill, status=Status.UNKNOWN)
    base = hook.url.partition("/hook")[0]

    def list_named(**settings: Any) -> set[str]:
        alerts = make_sink(base, **settings).list_alerts(state)
        return {
            dict(each.labels).get("component", dict(each.labels)["alertname"]) for each in alerts
        }

    assert list_named() == {FINDING.component, "VitaldNodeUnknown"}
    assert list_named(min_action="observe") == {FINDING.component, "gpu/weak", "VitaldNodeUnknown"}
    assert list_named(drills=True) == {FINDING.component, "gpu/drill", "VitaldNodeUnknown"}
    assert list_named(min_action="replace_node") == {"VitaldNodeUnknown"}


def test_drills_that_the_publisher_leaves_out(hook: ReceivingServer) -> None:
    """They are read from the daemon; without its answer nothing is sent."""
    drill = replace(FINDING, component="gpu/drill", simulated=True)
    answers: list[PublishedState | None] = [make_state(drill), None]

    class Reader:
        async def read_state(self) -> PublishedState | None:
            return answers.pop(0)

    base = hook.url.partition("/hook")[0]
    settings = NotifySettings(name="am", type="alertmanager", urls=(base,), drills=True)
    sink = AlertmanagerSink(settings, HOST, Reader())
    write(sink, HEALTHY)
    assert read_sent(hook) == [[("gpu/drill", True)]]
    with pytest.raises(SinkFailed, match="no summary"):
        write(sink, HEALTHY)
    assert len(hook.requests) == 1


def test_two_findings_with_the_same_labels_are_one(hook: ReceivingServer) -> None:
    """With the earlier start."""
    earlier = replace(FINDING, id=14, since=FINDING.since - 100)
    (alert,) = make_sink(hook.url).list_alerts(make_state(FINDING, earlier))
    assert alert.starts_at == earlier.since


def test_a_start_in_the_future_ends_not_before_it(hook: ReceivingServer) -> None:
    """The clock was stepped: Alertmanager refuses an end before the start."""
    sink = make_sink(hook.url.partition("/hook")[0])
    write(sink, make_state(replace(FINDING, since=NOW + 1e6)), HEALTHY)
    for request in hook.requests:
        for alert in json.loads(request.body):
            assert alert["endsAt"] >= alert["startsAt"]


def test_anchors() -> None:
    assert [find_anchor(code) for code in ("xid/79", "nvml/ecc dbe", "xid/48.A_b")] == [
        "xid-79",
        "nvml-ecc-dbe",
        "xid-48-A_b",
    ]
