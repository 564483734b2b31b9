"""The page on monitoring: its receivers in a real Alertmanager, and its command that tries the way
to the phone.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

from tests.doc_commands import Where, commands
from tests.harness import Json
from tests.monitoring import Alertmanager, JsonReceiver
from tests.system.test_alerts_live import shorten_waits
from tests.unit.builders import ROOT
from tests.unit.test_docs_monitoring import PAGE, read_receivers
from tests.waiting import until


def test_a_page_reaches_the_pager(tmp_path: Path) -> None:
    shipped = (ROOT / "packaging/prometheus/alertmanager.yml").read_text("utf-8")
    routing = yaml.safe_load(shorten_waits(shipped))
    pager, tickets = read_receivers()
    (events,) = pager["pagerduty_configs"]
    key = tmp_path / "key"
    key.write_text("key of the service", encoding="utf-8")
    arrived: list[Json] = []
    with JsonReceiver(lambda _, event: arrived.append(event)) as pagerduty:
        events |= {"url": f"http://127.0.0.1:{pagerduty.port}/", "routing_key_file": str(key)}
        text = yaml.safe_dump({**routing, "receivers": [pager, tickets]})
        with Alertmanager(tmp_path / "alertmanager", text) as alertmanager:
            (command,) = (
                command.text
                for command in commands(PAGE, Where.ELSEWHERE)
                if command.text.startswith("amtool --alertmanager.url")
            )
            command = command.replace("localhost:9093", f"127.0.0.1:{alertmanager.port}")
            subprocess.run(["sh", "-c", command], check=True)
            until(lambda: arrived, "an event at PagerDuty's address")
    event = arrived[0]
    assert event["routing_key"] == "key of the service"
    assert event["event_action"] == "trigger"
    assert event["payload"]["summary"].strip() == "Test of the way to the phone."
