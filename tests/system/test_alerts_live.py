"""Alerts as a site has them: real daemons, a real Prometheus with the shipped rules, a real
Alertmanager with the shipped routing, and what arrives at a webhook.

The waits of the rules and of the routing are shortened to a second; nothing else is changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness import Json, Node
from tests.monitoring import Alertmanager, AlertReceiver, Prometheus, Received, make_config
from tests.system.lines import REPLACE_FOR_64, wait_for_pid, xid
from tests.unit.builders import ROOT
from tests.waiting import until

FOLDER = ROOT / "packaging/prometheus"
DOCS = "https://docs.example.com/vitald"


@dataclass(frozen=True, slots=True)
class Site:
    """Two monitored nodes, and the webhook of the person on call."""

    reboots: Node
    replaced: Node
    alertmanager: Alertmanager
    receiver: AlertReceiver

    def wait_for(self, alert: str, status: str) -> Received:
        """The alert as it arrived last."""
        until(lambda: self.receiver.select(alert, status), f"{alert} to be {status}")
        return self.receiver.select(alert, status)[-1]

    def is_inhibited(self, alert: str) -> bool:
        states = [
            each["status"]
            for each in self.alertmanager.list_alerts()
            if each["labels"]["alertname"] == alert
        ]
        return bool(states) and all(state["inhibitedBy"] for state in states)


def shorten_waits(text: str) -> str:
    """Of rules or routing, all but the repeats."""
    return re.sub(
        r"^( *(?:for|keep_firing_for|group_wait|group_interval|interval): )\d+\w\b",
        r"\g<1>1s",
        text,
        flags=re.MULTILINE,
    )


def route_to(receiver: AlertReceiver, routing: str) -> str:
    """The receivers are distinguished by the path of their URL."""
    routing, count = re.subn(
        r"https://(\w+)\.example\.com/vitald", rf"http://127.0.0.1:{receiver.port}/\1", routing
    )
    assert count == 2
    return routing


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    rules = tmp_path / "rules.yml"
    rules.write_text(shorten_waits((FOLDER / "rules.yml").read_text("utf-8")), encoding="utf-8")
    routing = shorten_waits((FOLDER / "alertmanager.yml").read_text("utf-8"))
    with (
        AlertReceiver() as receiver,
        Alertmanager(tmp_path / "alertmanager", route_to(receiver, routing)) as alertmanager,
        Node(tmp_path / "a") as reboots,
        Node(tmp_path / "b", extra=REPLACE_FOR_64) as replaced,
        Prometheus(
            tmp_path / "prometheus",
            make_config(
                {"node-a": f"127.0.0.1:{reboots.port}", "node-b": f"127.0.0.1:{replaced.port}"},
                rules,
                scrape="scrape-large-fleet",
                alertmanager=f"127.0.0.1:{alertmanager.port}",
            ),
        ) as prometheus,
    ):
        prometheus.wait_until_scraped(4)
        yield Site(reboots, replaced, alertmanager, receiver)


def change_finding(node: Node, code: str, change: str, body: Json) -> None:
    (finding,) = node.findings(f"&code={code}")
    node.request("POST", f"/v1/findings/{finding['id']}/{change}", body)


def lose_gpu(site: Site) -> Callable[[], object]:
    site.reboots.write(xid(1))
    wait_for_pid(site.reboots, 1)
    body: Json = {"reason": "until Monday", "seconds": 3600}
    return lambda: change_finding(site.reboots, "xid/79", "accept", body)


def fail_remap(site: Site) -> Callable[[], object]:
    site.replaced.write(xid(2, code=64, message="Row Remapper: Error"))
    wait_for_pid(site.replaced, 2)
    return lambda: change_finding(site.replaced, "xid/64", "clear", {"reason": "replaced"})


def kill_daemon(site: Site) -> Callable[[], object]:
    site.reboots.kill()
    return site.reboots.start


@dataclass(frozen=True, slots=True)
class Trouble:
    """What happens, and the alert that arrives. `cause` returns what resolves it."""

    cause: Callable[[Site], Callable[[], object]]
    alert: str
    path: str
    instance: str
    summary: str
    link: str
    inhibits: str | None


TROUBLES = (
    Trouble(
        lose_gpu,
        "VitaldRebootRequired",
        "/tickets",
        "node-a",
        "node-a: reboot now: xid/79 on gpu/0000:65:00.0",
        f"{DOCS}/findings.md#xid-79",
        "VitaldUnhealthy",
    ),
    Trouble(
        fail_remap,
        "VitaldReplacementRequired",
        "/pager",
        "node-b",
        "node-b: replace the node: xid/64 on gpu/0000:65:00.0",
        f"{DOCS}/findings.md#xid-64",
        "VitaldUnhealthy",
    ),
    Trouble(
        kill_daemon,
        "VitaldDown",
        "/tickets",
        "node-a",
        "vitald on node-a does not answer: the node is not observed",
        f"{DOCS}/alerts.md#vitalddown",
        None,
    ),
)


@pytest.mark.timeout(600)
def test_alerts_arrive_and_resolve(site: Site) -> None:
    for trouble in TROUBLES:
        end = trouble.cause(site)
        arrived = site.wait_for(trouble.alert, "firing")
        labels, texts = arrived.alert["labels"], arrived.alert["annotations"]
        assert arrived.path == trouble.path
        assert (labels["instance"], labels["cluster"]) == (trouble.instance, "c1")
        assert (texts["summary"], texts["runbook_url"]) == (trouble.summary, trouble.link)
        assert texts["description"]
        if trouble.inhibits is not None:  # what the node requires says more
            until(lambda: site.is_inhibited("VitaldUnhealthy"), "an inhibited VitaldUnhealthy")
        end()
        assert site.wait_for(trouble.alert, "resolved").alert["labels"] == labels
    for trouble in TROUBLES:
        fired = site.receiver.select(trouble.alert, "firing")
        assert {each.alert["labels"]["instance"] for each in fired} == {trouble.instance}
