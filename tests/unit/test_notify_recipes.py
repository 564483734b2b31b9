"""The programs of packaging/notify, with an `aws` that writes down what it is called with."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.notifications import FINDING, UNHEALTHY, make_notification
from tests.unit.builders import ROOT
from vitald.model import Action
from vitald.publish.notify.body_formats import FORMATS, encode_json
from vitald.publish.notify.exec import build_environment
from vitald.publish.notify.notification import Notification, NotificationKind

FOLDER = ROOT / "packaging/notify"
LOST = replace(
    FINDING, action=Action.REPLACE_NODE, title="'; touch /tmp/x; $(id) `id` \"\\ é" + "A" * 300
)
OPENED = make_notification(NotificationKind.OPENED, finding=LOST)
DUE = replace(UNHEALTHY, replacement_required=True, replacement_due=True)
needs_jq = pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")


class Aws:
    """Runs a program. `calls`: the arguments of each call of aws."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.answer("0")

    def answer(self, text: str, status: int = 0) -> None:
        aws = self._folder / "aws"
        aws.write_text(
            f'#!/bin/sh\nprintf "%s\\0" "$@" >> {self._folder}/calls\n'
            f"cat > {self._folder}/document\n"
            f"echo '{text}'\nexit {status}\n"
        )
        aws.chmod(0o755)

    def run(self, program: str, *arguments: str, notification: Notification = OPENED) -> int:
        environment = build_environment(notification)
        environment["PATH"] = f"{self._folder}:{environment['PATH']}"
        return subprocess.run(
            [FOLDER / program, *arguments],
            input=encode_json(FORMATS["vitald"].build(notification)),
            env=environment,
            capture_output=True,
        ).returncode

    def read_call(self) -> dict[str, str]:
        """Options of the only call; the words before them are under ""."""
        words = (self._folder / "calls").read_text().rstrip("\0").split("\0")
        options: dict[str, str] = {"": " ".join(words[:2])}
        for word, value in zip(words[2:], [*words[3:], ""]):
            if word.startswith("--"):
                options[word] = "" if value.startswith("--") else value
        return options

    def read_document(self, option: str) -> Any:
        """What it got as this option, from standard input: every user can read arguments."""
        assert self.read_call()[option] == "file:///dev/stdin"
        assert LOST.raw not in (self._folder / "calls").read_text()
        return json.loads((self._folder / "document").read_text())

    @property
    def was_called(self) -> bool:
        return (self._folder / "calls").exists()


@pytest.fixture
def aws(tmp_path: Path) -> Aws:
    return Aws(tmp_path)


@needs_jq
def test_eventbridge(aws: Aws) -> None:
    assert aws.run("eventbridge", "eu-central-1", "fleet") == 0
    call = aws.read_call()
    assert (call[""], call["--region"]) == ("events put-events", "eu-central-1")
    (entry,) = aws.read_document("--entries")
    assert {key: entry[key] for key in entry if key != "Detail"} == {
        "Time": "2026-11-06T21:20:00.500Z",
        "Source": "vitald",
        "DetailType": "Node Health Event",
        "EventBusName": "fleet",
    }
    assert json.loads(entry["Detail"]) == FORMATS["vitald"].build(OPENED)


@needs_jq
@pytest.mark.parametrize(("answer", "status"), [("1", 0), ("", 0), ("0", 255)])
def test_a_refused_event_is_tried_again(aws: Aws, answer: str, status: int) -> None:
    """The command succeeds although an entry failed."""
    aws.answer(answer, status)
    assert aws.run("eventbridge", "eu-central-1") == 75


@needs_jq
def test_sns(aws: Aws) -> None:
    assert aws.run("sns", "eu-central-1", "arn:aws:sns:eu-central-1:1:t") == 0
    call = aws.read_call()
    assert (call[""], call["--topic-arn"]) == ("sns publish", "arn:aws:sns:eu-central-1:1:t")
    assert aws.read_document("--message") == FORMATS["vitald"].build(OPENED)
    assert re.fullmatch(r"vitald gpu-node-1[ -~]{1,82}", call["--subject"])
    aws.answer("", 254)
    assert aws.run("sns", "eu-central-1", "arn:aws:sns:eu-central-1:1:t") == 75


def test_set_instance_health(aws: Aws) -> None:
    """The fault is reported before anything has confirmed it; then its replacement is due."""
    unconfirmed = replace(LOST, confirmed=False)
    begins = make_notification(NotificationKind.OPENED, finding=unconfirmed)
    assert aws.run("set-instance-health", "eu-central-1", notification=begins) == 0
    assert not aws.was_called
    due = make_notification(NotificationKind.FLAGS, flags=DUE)
    assert aws.run("set-instance-health", "eu-central-1", notification=due) == 0
    assert aws.read_call() == {
        "": "autoscaling set-instance-health",
        "--region": "eu-central-1",
        "--instance-id": "i-0abc123def4567890",
        "--health-status": "Unhealthy",
        "--should-respect-grace-period": "",
    }
    aws.answer("", 254)
    assert aws.run("set-instance-health", "eu-central-1", notification=due) == 75


@pytest.mark.parametrize(
    "notification",
    [
        make_notification(NotificationKind.OPENED, finding=LOST, flags=DUE),
        make_notification(NotificationKind.CLEARED, finding=LOST, flags=DUE),
        make_notification(NotificationKind.DIGEST, flags=DUE),
        make_notification(NotificationKind.TEST, flags=DUE),
        make_notification(NotificationKind.FLAGS, flags=replace(DUE, simulated=True)),
        make_notification(NotificationKind.FLAGS, flags=replace(DUE, replacement_due=False)),
        make_notification(NotificationKind.FLAGS, flags=UNHEALTHY),
    ],
)
def test_no_instance_is_replaced_for(aws: Aws, notification: Notification) -> None:
    assert aws.run("set-instance-health", "eu-central-1", notification=notification) == 0
    assert not aws.was_called


def test_every_program_is_explained() -> None:
    text = (FOLDER / "README.md").read_text()
    programs = {path.name for path in FOLDER.iterdir() if path.name != "README.md"}
    assert programs == {"eventbridge", "sns", "set-instance-health"}
    assert all(f"`{name} " in text for name in programs)
