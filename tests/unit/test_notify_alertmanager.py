"""Which alerts are pushed to Alertmanagers, when they end, and what happens where one fails."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.notifications import ReceivingServer, Reply
from tests.unit.test_publish_events import STATE
from vitald.model.words import Action, Status, When
from vitald.publish.notify import alertmanager
from vitald.publish.notify.alertmanager import RESEND_S, AlertmanagerSink, FiringAlerts, build_url
from vitald.publish.notify.receiver import QuietTime
from vitald.publish.notify.settings import NotifySettings
from vitald.publish.sink import SinkFailed
from vitald.publish.state_store import StateStore
from vitald.publish.summary import DaemonSilent, FindingSummary, NodeSummary, PublishedState
from vitald.timestamps import format_rfc3339

NOW = 1794000000.0
FINDING = FindingSummary(
    id=12,
    component="gpu/0000:65:00.0",
    code="xid/79",
    reason="Xid79",
    action=Action.REBOOT_NODE,
    when=When.AFTER_JOB,
    since=NOW,
    confirmed=True,
    accepted=False,
    simulated=False,
    due=False,
    device="GPU-5c1b1a3e",
)
WORSE = replace(FINDING, id=13, component="gpu/0000:66:00.0", action=Action.REPLACE_NODE)
SILENT = DaemonSilent(since=NOW, detail="no socket")
SETTINGS = NotifySettings(type="alertmanager", url=("https://am",), quiet_s=0.0, settle_s=0.0)


def make_state(*findings: FindingSummary, status: Status = Status.UNHEALTHY) -> NodeSummary:
    return replace(
        STATE,
        status=status,
        lines=("GPU has fallen off the bus",),
        findings=findings,
        open_findings=len(findings),
    )


HEALTHY = make_state(status=Status.HEALTHY)


def list_firing(
    states: list[tuple[float, PublishedState]], **settings: Any
) -> list[list[tuple[str, str]]]:
    """After each state, what fires: the component or the alert's name, and the action. The numbers
    are its time in seconds.
    """
    alerts = FiringAlerts(replace(SETTINGS, **settings), "node1")
    listed = []
    for now, state in states:
        labels = [dict(alert.labels) for alert in alerts.list_alerts(state, now)]
        listed.append(
            [(each.get("component", each["alertname"]), each.get("action", "")) for each in labels]
        )
    return listed


GPU, OTHER = (FINDING.component, "reboot_node"), (WORSE.component, "replace_node")
UNKNOWN = ("VitaldNodeUnknown", "")


def test_an_alert_in_full() -> None:
    (alert,) = FiringAlerts(SETTINGS, "node1").list_alerts(make_state(FINDING), 0.0)
    assert dict(alert.labels) == {
        "instance": "node1",
        "job": "vitald",
        "alertname": "VitaldFinding",
        "component": "gpu/0000:65:00.0",
        "kind": "xid",
        "code": "79",
        "action": "reboot_node",
        "when": "after_job",
        "severity": "ticket",
        "simulated": "false",
    }
    description = "reboot the node after the running job"
    assert dict(alert.annotations) == {
        "summary": f"node1: gpu/0000:65:00.0: xid/79: {description}",
        "description": f"{description}; on the node: vitald why 12",
        "device": "GPU-5c1b1a3e",
    }
    (paged,) = FiringAlerts(SETTINGS, "node1").list_alerts(make_state(WORSE), 0.0)
    assert ("severity", "page") in paged.labels


def test_which_findings() -> None:
    weak = replace(FINDING, component="gpu/weak", action=Action.OBSERVE)
    accepted = replace(FINDING, component="gpu/accepted", accepted=True)
    states = [(0.0, make_state(FINDING, weak, accepted, WORSE))]
    assert list_firing(states) == [[GPU, OTHER]]
    assert list_firing(states, min_action="replace_node") == [[OTHER]]
    assert ("gpu/weak", "observe") in list_firing(states, min_action="observe")[0]


def test_what_comes_and_goes_fires_on() -> None:
    states = [
        (0.0, make_state(FINDING)),
        (10.0, HEALTHY),
        (300.0, make_state(FINDING)),
        (310.0, HEALTHY),
        (599.0, HEALTHY),
        (600.0, HEALTHY),
    ]
    assert list_firing(states, settle_s=300.0) == [[GPU]] * 5 + [[]]


def test_what_requires_more_is_one_alert() -> None:
    worse = replace(FINDING, action=Action.REPLACE_NODE)
    states = [(0.0, make_state(FINDING)), (1.0, make_state(worse))]
    assert list_firing(states, settle_s=300.0) == [[GPU], [(FINDING.component, "replace_node")]]


def test_what_a_summary_has_no_room_for_fires_on() -> None:
    crowded = replace(make_state(WORSE), open_findings=2)
    states = [(0.0, make_state(FINDING, WORSE)), (1e6, crowded), (2e6, make_state(WORSE))]
    assert list_firing(states) == [[GPU, OTHER], [GPU, OTHER], [OTHER]]


@pytest.mark.parametrize("doubtful", [SILENT, make_state(status=Status.UNKNOWN)])
def test_that_nothing_is_known_fires_once_it_has_lasted(doubtful: PublishedState) -> None:
    """An upgrade is over sooner."""
    states = [(0.0, HEALTHY), (10.0, doubtful), (309.0, doubtful), (310.0, doubtful)]
    states += [(311.0, HEALTHY), (320.0, doubtful)]
    assert list_firing(states, settle_s=300.0) == [[], [], [], [UNKNOWN], [], []]


def test_while_the_daemon_is_silent_its_alerts_fire_on() -> None:
    states = [(0.0, make_state(FINDING)), (1e6, SILENT), (2e6, HEALTHY)]
    assert list_firing(states) == [[GPU], [GPU, UNKNOWN], []]


def test_not_more_than_an_alertmanager_takes() -> None:
    many = [replace(FINDING, component=f"gpu/{number}") for number in range(2000)]
    assert len(list_firing([(0.0, make_state(*many))])[0]) == 500


# --- what is sent


@pytest.fixture
def server() -> Iterator[ReceivingServer]:
    with ReceivingServer() as made:
        yield made


def get_base(server: ReceivingServer) -> str:
    return server.url.partition("/hook")[0]


def write(
    folder: Path, urls: list[str], states: list[PublishedState], **settings: Any
) -> list[str]:
    """One after the other, by one sink. Why each failed, "" where it did not."""

    async def write_all() -> list[str]:
        store = StateStore(folder)
        made = replace(SETTINGS, url=tuple(urls), **settings)
        quiet = QuietTime("notify-am", made.quiet_s, store)
        sink = AlertmanagerSink("notify-am", made, "node1", quiet)
        failures = []
        for state in states:
            try:
                await sink.write_state(state)
                failures.append("")
            except SinkFailed as error:
                failures.append(str(error))
        store.close()
        return failures

    return asyncio.run(write_all())


def read_sent(server: ReceivingServer) -> list[list[tuple[str, bool]]]:
    """For each request its alerts: the component, and whether it goes on."""
    later = format_rfc3339(time.time() + 60)
    return [
        [(alert["labels"]["component"], alert["endsAt"] > later) for alert in body]
        for body in server.bodies
    ]


def test_an_end_is_sent_once(server: ReceivingServer, tmp_path: Path) -> None:
    states = [HEALTHY, make_state(FINDING, WORSE), make_state(WORSE), HEALTHY, HEALTHY]
    assert write(tmp_path, [get_base(server)], [*states]) == [""] * 5
    assert [request.path for request in server.requests] == ["/api/v2/alerts"] * 3
    assert read_sent(server) == [
        [(FINDING.component, True), (WORSE.component, True)],
        [(WORSE.component, True), (FINDING.component, False)],
        [(WORSE.component, False)],
    ]


def test_an_end_that_did_not_arrive_is_sent_again(server: ReceivingServer, tmp_path: Path) -> None:
    server.answers += [Reply(), Reply(status=500)]
    failures = write(tmp_path, [get_base(server)], [make_state(FINDING), HEALTHY, HEALTHY])
    assert [bool(each) for each in failures] == [False, True, False]
    assert read_sent(server)[1:] == [[(FINDING.component, False)]] * 2


def test_one_of_a_pair_fails(server: ReceivingServer, tmp_path: Path) -> None:
    """The other gets all, once; the one that failed gets what it missed."""
    with ReceivingServer() as other:
        server.answers.append(Reply(status=503, headers={"Retry-After": "7"}))
        urls = [get_base(server), f"{get_base(other)}/"]
        failures = write(tmp_path, urls, [make_state(FINDING)] * 3)
        assert failures[0].endswith("answered 503") and failures[1:] == ["", ""]
        assert len(server.requests) == 2 and len(other.requests) == 1
        assert read_sent(server)[1] == read_sent(other)[0] == [(FINDING.component, True)]


def test_what_is_open_is_sent_again(
    server: ReceivingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Alertmanager ends it."""
    assert 2 * RESEND_S < alertmanager.HOLD_S
    monkeypatch.setattr(alertmanager, "RESEND_S", 0.0)
    write(tmp_path, [get_base(server)], [make_state(FINDING)] * 4)
    assert read_sent(server) == [[(FINDING.component, True)]] * 4


def test_nothing_is_sent_in_the_quiet_time(server: ReceivingServer, tmp_path: Path) -> None:
    assert write(tmp_path, [get_base(server)], [make_state(FINDING)], quiet_s=60.0) == [""]
    assert server.requests == []


def test_a_start_in_the_future_ends_not_before_it(server: ReceivingServer, tmp_path: Path) -> None:
    """The clock was stepped: Alertmanager refuses an end before the start."""
    later = make_state(replace(FINDING, since=time.time() + 1e6))
    write(tmp_path, [get_base(server)], [later, HEALTHY])
    for body in server.bodies:
        assert all(alert["endsAt"] >= alert["startsAt"] for alert in body)


def test_a_file_with_headers_that_everybody_can_read(
    server: ReceivingServer, tmp_path: Path
) -> None:
    headers = tmp_path / "headers"
    headers.write_text("Authorization: Bearer SECRET\n")
    headers.chmod(0o644)
    (failure,) = write(tmp_path, [get_base(server)], [make_state(FINDING)], headers_file=headers)
    assert "lets every user in" in failure and server.requests == []
    headers.chmod(0o600)
    write(tmp_path, [get_base(server)], [make_state(FINDING)], headers_file=headers)
    assert server.requests[0].headers["authorization"] == "Bearer SECRET"


def test_the_address_of_an_alertmanager() -> None:
    for url in ("https://am/x", "https://am/x/", "https://am/x/api/v2/alerts"):
        assert build_url(url) == "https://am/x/api/v2/alerts"


def test_hostile_text() -> None:
    text = '"}\n\x00<b>\u202e{{ .Labels }}' * 1000
    hostile = replace(FINDING, component=text, code=f"xid/{text}", device=text)
    (alert,) = FiringAlerts(SETTINGS, "node1").list_alerts(make_state(hostile), 0.0)
    document = json.dumps(alertmanager.build_document(alert, NOW))
    values = [*json.loads(document)["labels"].values(), *dict(alert.annotations).values()]
    assert all(value.isprintable() and len(value.encode()) <= 500 for value in values)
