"""The programs of packaging/notify, with an `aws` that writes down what it is called with."""

from __future__ import annotations

import email
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.notifications import FINDING, make_notification
from tests.unit.builders import ROOT
from vitald.model.words import Action
from vitald.publish.notify.exec import build_environment
from vitald.publish.notify.formats import FORMATS, encode_json
from vitald.publish.notify.notification import Notification, NotificationKind

FOLDER = ROOT / "packaging/notify"
LOST = replace(
    FINDING, action=Action.REPLACE_NODE, title="'; touch /tmp/x; $(id) `id` \"\\ é" + "A" * 300
)
OPENED = make_notification(NotificationKind.OPENED, finding=LOST)
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


def test_mail(tmp_path: Path) -> None:
    """A mail whose headers are those of the recipe, whatever the summary is."""
    sendmail = tmp_path / "sendmail"
    sendmail.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/called\ncat > {tmp_path}/mail\n'
    )
    sendmail.chmod(0o755)
    environment = {**build_environment(OPENED), "SENDMAIL": str(sendmail)}

    def send() -> int:
        return subprocess.run(
            [FOLDER / "mail", "oncall@example.com", "vitald@example.com"],
            input=encode_json(FORMATS["vitald"].build(OPENED)),
            env=environment,
        ).returncode

    assert send() == 0
    called = (tmp_path / "called").read_text().splitlines()
    assert called == ["-i", "-f", "vitald@example.com", "--", "oncall@example.com"]
    mail = email.message_from_bytes((tmp_path / "mail").read_bytes())
    assert (mail["To"], mail["From"]) == ("oncall@example.com", "vitald@example.com")
    assert re.fullmatch(r"\[vitald\] gpu-node-1[ -~]{1,190}", str(mail["Subject"]))
    assert mail["Message-ID"] == f"<{OPENED.id}@vitald.invalid>"
    content = mail.get_payload(decode=True)
    assert isinstance(content, bytes)
    summary, _, body = content.decode().partition("\n\n")
    assert summary == environment["VITALD_SUMMARY"]
    assert json.loads(body) == FORMATS["vitald"].build(OPENED)
    sendmail.write_text("#!/bin/sh\nexit 1\n")
    assert send() == 75


def test_every_program_is_explained() -> None:
    text = (FOLDER / "README.md").read_text()
    programs = {path.name for path in FOLDER.iterdir() if path.name != "README.md"}
    assert programs == {"eventbridge", "mail", "sns"}
    assert all(f"`{name} " in text for name in programs)
