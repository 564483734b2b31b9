"""Alerts as a site has them: real daemons, a real Prometheus with the shipped rules, a real
Alertmanager with the shipped routing, and what arrives at a webhook.

The waits of the rules and of the routing are shortened to a second; nothing else is changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.alertmanager import Alertmanager
from tests.conftest import require
from tests.harness import Json, Node
from tests.notifications import ReceivingServer
from tests.prometheus import Prometheus, find_prometheus
from tests.system.lines import REPLACE_FOR_64, wait_for_pid, xid
from tests.unit.builders import ROOT

FOLDER = ROOT / "packaging/prometheus"
DOCS = "https://docs.example.com/vitald"
ALERT_S = 30.0  # until an alert arrives: scrape, evaluation, twice the wait of the rule, grouping


@dataclass(frozen=True, slots=True)
class Site:
    """Two nodes that are monitored, and the webhook of the person on call."""

    reboots: Node
    replaced: Node
    alertmanager: Alertmanager
    hook: ReceivingServer

    def list_received(self, alert: str, status: str) -> list[tuple[str, Json]]:
        """The alerts of this name and status ("firing", "resolved") so far, with the receiver."""
        messages: list[tuple[str, Json]] = [
            (request.path, json.loads(request.body)) for request in list(self.hook.requests)
        ]
        return [
            (path.strip("/"), each)
            for path, message in messages
            for each in message["alerts"]
            if each["labels"]["alertname"] == alert and each["status"] == status
        ]

    def wait_for(self, alert: str, status: str) -> tuple[str, Json]:
        """The receiver and the alert, as it arrived last."""
        Node.until(lambda: self.list_received(alert, status), ALERT_S, f"{alert} {status}")
        return self.list_received(alert, status)[-1]

    def is_inhibited(self, alert: str) -> bool:
        states = [
            each["status"]
            for each in self.alertmanager.list_alerts()
            if each["labels"]["alertname"] == alert
        ]
        return bool(states) and all(state["inhibitedBy"] for state in states)


def hurry(text: str) -> str:
    """Rules or routing with every wait shortened to a second, but the repeats."""
    return re.sub(
        r"^( *(?:for|keep_firing_for|group_wait|group_interval)): \w+$",
        r"\1: 1s",
        text,
        flags=re.MULTILINE,
    )


def point_to(folder: Path, alertmanager: Alertmanager) -> None:
    """Prometheus evaluates the rules every second and scrapes what large fleets scrape."""
    (folder / "rules.yml").write_text(hurry((FOLDER / "rules.yml").read_text("utf-8")))
    path = folder / "prometheus.yml"
    config: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    config["global"]["evaluation_interval"] = "1s"
    config["rule_files"] = ["rules.yml"]
    config["scrape_configs"] = [
        {**job, "job_name": "vitald", "params": {"collect[]": ["verdict"]}}
        for job in config["scrape_configs"][:1]
    ]
    target = alertmanager.url.removeprefix("http://")
    config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [target]}]}]}
    path.write_text(yaml.safe_dump(config))


def route_to(folder: Path, hook: ReceivingServer) -> None:
    """The shipped routing; receivers are distinguished by the path of their URL."""
    routing = hurry((FOLDER / "alertmanager.yml").read_text("utf-8"))
    base = f"http://127.0.0.1:{hook.port}"
    routing, found = re.subn(r"https://(\w+)\.example\.com/vitald", rf"{base}/\1", routing)
    assert found == 2
    (folder / "alertmanager.yml").write_text(routing)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    require(find_prometheus(), "prometheus (apt-get install prometheus)")
    with (
        ReceivingServer() as hook,
        Node(tmp_path / "a") as reboots,
        Node(tmp_path / "b", extra=REPLACE_FOR_64) as replaced,
    ):
        alertmanager = Alertmanager(tmp_path / "alertmanager", hook.url)
        route_to(tmp_path / "alertmanager", hook)
        targets = {
            f"127.0.0.1:{node.port}": {"instance": name, "cluster": "c1"}
            for name, node in (("node-a", reboots), ("node-b", replaced))
        }
        prometheus = Prometheus(tmp_path / "prometheus", targets)
        point_to(tmp_path / "prometheus", alertmanager)
        with alertmanager, prometheus:
            prometheus.wait_for('up{job="vitald"} == 1')
            yield Site(reboots, replaced, alertmanager, hook)


def clear(node: Node, code: str) -> None:
    (finding,) = node.findings(f"&code={code}")
    node.request("POST", f"/v1/findings/{finding['id']}/clear", {"reason": "over"})


def fall(site: Site) -> Callable[[], None]:
    site.reboots.write(xid(1))
    wait_for_pid(site.reboots, 1)
    return lambda: clear(site.reboots, "xid/79")


def fail_remap(site: Site) -> Callable[[], None]:
    site.replaced.write(xid(2, code=64, message="Row Remapper: Error"))
    wait_for_pid(site.replaced, 2)
    return lambda: clear(site.replaced, "xid/64")


def die(site: Site) -> Callable[[], None]:
    site.reboots.kill()
    return site.reboots.start


@dataclass(frozen=True, slots=True)
class Trouble:
    """What happens, and the alert that it makes: who gets it, about which node, and its texts."""

    cause: Callable[[Site], Callable[[], None]]  # returns what ends it
    alert: str
    receiver: str
    instance: str
    summary: str
    link: str


TROUBLES = (
    Trouble(
        fall,
        "VitaldRebootRequired",
        "tickets",
        "node-a",
        "node-a: reboot now: xid/79 on gpu/0000:65:00.0",
        f"{DOCS}/findings.md#xid-79",
    ),
    Trouble(
        fail_remap,
        "VitaldReplacementRequired",
        "pager",
        "node-b",
        "node-b: replace the node: xid/64 on gpu/0000:65:00.0",
        f"{DOCS}/findings.md#xid-64",
    ),
    Trouble(
        die,
        "VitaldDown",
        "tickets",
        "node-a",
        "vitald on node-a does not answer: the node is not watched",
        f"{DOCS}/alerts.md#vitalddown",
    ),
)


@pytest.mark.prometheus
@pytest.mark.timeout(240)
def test_alerts_arrive_and_resolve(site: Site) -> None:
    for trouble in TROUBLES:
        end = trouble.cause(site)
        receiver, alert = site.wait_for(trouble.alert, "firing")
        assert receiver == trouble.receiver
        assert alert["labels"]["instance"] == trouble.instance
        assert alert["labels"]["cluster"] == "c1"
        assert alert["annotations"]["summary"] == trouble.summary
        assert alert["annotations"]["todo"]
        assert alert["annotations"]["runbook_url"] == trouble.link
        if trouble.cause is not die:  # what the node needs says more than that it is unhealthy
            Node.until(
                lambda: site.is_inhibited("VitaldUnhealthy"),
                ALERT_S,
                "an inhibited VitaldUnhealthy",
            )
        end()
        _, over = site.wait_for(trouble.alert, "resolved")
        assert over["labels"] == alert["labels"]
    firing = {trouble.alert: trouble.instance for trouble in TROUBLES}
    for name, instance in firing.items():
        assert {each["labels"]["instance"] for _, each in site.list_received(name, "firing")} == {
            instance
        }
