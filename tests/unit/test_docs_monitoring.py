"""docs/monitoring.md: its configurations are accepted, and what its commands make of the shipped
files says the same.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import require
from tests.doc_commands import Where, commands
from tests.unit.builders import ROOT
from tests.unit.test_alert_rules import read_groups

PAGE = "docs/monitoring.md"
PROMETHEUS = ROOT / "packaging/prometheus"
BLOCKS = [
    textwrap.dedent(block)
    for block in re.findall(r"```yaml\n(.*?) *```", (ROOT / PAGE).read_text("utf-8"), re.DOTALL)
]


def read_block(word: str) -> Any:
    """The only configuration of the page that has this word."""
    (text,) = (block for block in BLOCKS if word in block)
    return yaml.safe_load(text)


def read_receivers() -> Any:
    return read_block("pagerduty_configs")["receivers"]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder after the commands of the page that need no more than the shipped files."""
    (tmp_path / "packaging").symlink_to(ROOT / "packaging")
    made = [
        command.text
        for command in commands(PAGE, Where.ELSEWHERE)
        if re.match(r"(sed|cp|\{) ", command.text) and "/etc/" not in command.text
    ]
    assert len(made) == 5
    for text in made:
        subprocess.run(["sh", "-e", "-c", text], cwd=tmp_path, check=True)
    return tmp_path


def run(*command: object) -> str:
    require(shutil.which(str(command[0])), f"{command[0]} (`tests/run` installs it)")
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_prometheus(site: Path, text: str) -> None:
    """promtool ignores what follows where the indentation changes; yaml refuses that."""
    assert len(yaml.safe_load(text)) > 1
    path = site / "prometheus.yml"
    path.write_text(text.replace("/etc/prometheus/", f"{site}/"), encoding="utf-8")
    run("promtool", "check", "config", path)


@pytest.mark.parametrize("jobs", ["scrape.yml", "scrape-large-fleet.yml"])
def test_prometheus_accepts_the_configuration(site: Path, jobs: str) -> None:
    (text,) = (block for block in BLOCKS if "alerting:" in block)
    check_prometheus(site, text + (PROMETHEUS / jobs).read_text("utf-8"))


def test_prometheus_accepts_what_sends_to_amazon(site: Path) -> None:
    check_prometheus(site, yaml.safe_dump(read_block("remote_write")))


def test_the_links_of_the_alerts_are_those_of_the_site(site: Path) -> None:
    text = (site / "vitald-rules.yml").read_text("utf-8")
    rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    links = [rule["annotations"]["runbook_url"] for rule in rules if "alert" in rule]
    assert links
    assert all(link.startswith("https://wiki.example.org/vitald/docs/") for link in links)


def test_alertmanager_accepts_the_receivers(site: Path) -> None:
    path = site / "alertmanager.yml"
    shipped = yaml.safe_load(path.read_text("utf-8"))
    receivers = read_receivers()
    names = [receiver["name"] for receiver in shipped["receivers"]]
    assert [receiver["name"] for receiver in receivers] == names
    path.write_text(yaml.safe_dump({**shipped, "receivers": receivers}), encoding="utf-8")
    run("amtool", "check-config", path)


def test_the_routing_is_the_same_everywhere(site: Path) -> None:
    def read(name: str) -> Any:
        return yaml.safe_load((site / name).read_text("utf-8"))

    shipped = read("alertmanager.yml")
    assert read("values.yaml")["alertmanager"]["config"] == shipped
    assert yaml.safe_load(read("amazon-alertmanager.yml")["alertmanager_config"]) == shipped


def test_the_rules_for_google_lack_only_what_its_objects_do_not_have(site: Path) -> None:
    rules = yaml.safe_load((site / "google-rules.yaml").read_text("utf-8"))
    expected = [
        {
            **group,
            "rules": [
                {key: value for key, value in rule.items() if key != "keep_firing_for"}
                for rule in group["rules"]
            ],
        }
        for group in read_groups()
    ]
    text = yaml.safe_dump(rules["spec"]["groups"])
    text = text.replace("https://wiki.example.org/vitald/docs", "https://docs.example.com/vitald")
    assert yaml.safe_load(text) == expected


def test_google_scrapes_our_pods() -> None:
    """As the PodMonitor does: the same pods and port, under the job that the alerts expect."""
    scraped = read_block("kind: PodMonitoring")
    monitor = yaml.safe_load((ROOT / "packaging/kubernetes/pod-monitor.yaml").read_text("utf-8"))
    assert scraped["metadata"]["name"] == "vitald"
    assert scraped["spec"]["selector"] == monitor["spec"]["selector"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert scraped["spec"]["endpoints"] == [
        {"port": endpoint["port"], "interval": endpoint["interval"]}
    ]
