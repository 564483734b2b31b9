"""`vitald notify`: what is sent as a test, what came back, and the exit codes."""

from __future__ import annotations

import json
import os
import pwd
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.examples import get_answer
from tests.notifications import ReceivingServer, Reply
from vitald.cli import main, notify
from vitald.server import endpoints
from vitald.server.endpoint import Endpoint

FINDINGS, NODE_SUMMARY = get_answer(endpoints.FINDINGS), get_answer(endpoints.SUMMARY)

Write = Callable[[str], list[str]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """The option for a file with these entries."""

    def write_config(text: str) -> list[str]:
        path = tmp_path / "config.toml"
        path.write_text(text)
        return ["--config", str(path)]

    return write_config


@pytest.fixture(autouse=True)
def no_publisher_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which vitald is installed has the publisher's user."""
    monkeypatch.setattr(notify, "_find_user", lambda _: None)


def make_entry(name: str, **keys: Any) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join([f"[notify.{name}]", *lines, ""])


def test_a_delivered_test(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    with ReceivingServer() as server:
        server.answers.append(Reply(status=202, content=b"thanks\x1b[2J"))
        option = write(make_entry("ops", url=server.url))
        assert main(["notify", "test", "ops", *option]) == 0
        (request,) = server.requests
    body = json.loads(request.body)
    assert (body["transition"], body["finding"]) == ("test", None)
    assert body["host"] == socket.gethostname()
    assert request.headers["webhook-id"] == body["id"]
    shown = capsys.readouterr().out
    assert f"ops: webhook to http://127.0.0.1:{server.port}\n" in shown
    assert "answer: status 202 after " in shown and "s: thanks [2J\n" in shown
    assert shown.endswith("delivered\n")
    assert '"transition": "test"' in shown
    assert "SECRET" not in shown


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Reply(status=404, content=b"no_service"), "it would not be tried again: "),
        (Reply(status=503), "it would be tried again: "),
        (Reply(resets=True), "it would be tried again: "),
    ],
)
def test_a_failed_test(
    write: Write, capsys: pytest.CaptureFixture[str], reply: Reply, expected: str
) -> None:
    with ReceivingServer() as server:
        server.answers.append(reply)
        option = write(make_entry("ops", url=server.url))
        assert main(["notify", "test", "ops", *option]) == 69
    shown = capsys.readouterr().out
    assert f"not delivered, {expected}http://127.0.0.1:{server.port}" in shown
    assert ("no_service" in shown) == (reply.status == 404)
    assert "SECRET" not in shown


def test_nothing_listens(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    option = write(make_entry("ops", url=f"http://127.0.0.1:{port}/SECRET"))
    assert main(["notify", "test", "ops", *option]) == 69
    shown = capsys.readouterr().out
    assert f"http://127.0.0.1:{port}: Connection refused" in shown
    assert "SECRET" not in shown


def test_the_routing_key_is_not_shown(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    key.write_text("R" * 32)
    key.chmod(0o600)
    with ReceivingServer() as server:
        option = write(
            make_entry("pd", url=server.url, format="pagerduty", routing_key_file=str(key))
        )
        assert main(["notify", "test", "pd", *option]) == 0
        assert json.loads(server.requests[0].body)["routing_key"] == "R" * 32
    shown = capsys.readouterr().out
    assert '"routing_key": "[secret]"' in shown and "R" * 32 not in shown


def test_an_address_in_a_file_is_not_shown(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "url"
    with ReceivingServer() as server:
        file.write_text(f"{server.url}\n")
        file.chmod(0o600)
        option = write(make_entry("chat", url_file=str(file), format="slack"))
        assert main(["notify", "test", "chat", *option]) == 0
        assert len(server.requests) == 1
        assert f"chat: webhook to http://127.0.0.1:{server.port}\n" in capsys.readouterr().out
        file.write_text("http://elsewhere.example/SECRET")
        assert main(["notify", "test", "chat", *option]) == 78
    shown = capsys.readouterr()
    assert f"vitald: {file}: expected an address https://HOST" in shown.err
    assert "SECRET" not in shown.err + shown.out


def test_a_wrong_file(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "key"
    key.write_text("whsec_c2VjcmV0\n")
    for mode, said in ((0o644, "lets every user in"), (0o600, "expected whsec_")):
        key.chmod(mode)
        with ReceivingServer() as server:
            option = write(make_entry("ops", url=server.url, secret_file=str(key)))
            assert main(["notify", "test", "ops", *option]) == 78
            assert server.requests == []
        shown = capsys.readouterr()
        assert f"vitald: {key}: " in shown.err and said in shown.err
        assert "c2VjcmV0" not in shown.err + shown.out


def test_unknown_names(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    option = write(make_entry("ops", url="http://127.0.0.1:9/"))
    for name, said in (
        ("opps", "no receiver 'opps'; there are ops, did you mean ops?"),
        ("\x1b[2J", "no receiver '?[2J'; there are ops"),
    ):
        assert main(["notify", "test", name, *option]) == 2
        assert said in capsys.readouterr().err
    assert main(["notify", "test", "ops", *write("")]) == 2
    assert "the configuration has no [notify.NAME]" in capsys.readouterr().err


def test_a_wrong_configuration(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    option = write(make_entry("ops", url="http://elsewhere.example/"))
    for what in (["show"], ["test", "ops"]):
        assert main(["notify", *what, *option]) == 78
        assert "url: " in capsys.readouterr().err


def test_json(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    with ReceivingServer() as server, ReceivingServer() as other:
        other.answers.append(Reply(status=500))
        urls = [each.url.partition("/hook")[0] for each in (server, other)]
        option = write(make_entry("am", type="alertmanager", url=urls))
        assert main(["notify", "test", "am", "--json", *option]) == 69
    first, second = json.loads(capsys.readouterr().out)["results"]
    assert (first["delivered"], first["status"], first["error"]) == (True, 200, "")
    assert (second["delivered"], second["status"], second["final"]) == (False, 500, False)
    assert first["sent"][0]["labels"]["alertname"] == "VitaldTest"


def test_a_program(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    for command, code, said in (
        ("cat; echo done", 0, "delivered"),
        ("echo no; exit 65", 69, "it would not be tried again: /bin/sh: exit status 65: no"),
        ("exit 3", 69, "it would be tried again: /bin/sh: exit status 3"),
    ):
        option = write(make_entry("p", type="exec", command=["/bin/sh", "-c", command]))
        assert main(["notify", "test", "p", *option]) == code
        assert said in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() != 0, reason="root is refused")
def test_root_runs_no_program(
    write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notify, "_find_user", lambda _: pwd.getpwnam("nobody"))
    option = write(make_entry("p", type="exec", command=["/bin/true"]))
    assert main(["notify", "test", "p", *option]) == 2
    assert "runuser -u nobody -- vitald notify test p" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="root may read what the publisher may not")
def test_a_file_that_the_publisher_cannot_read(
    write: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(notify, "_find_user", lambda _: pwd.getpwnam("nobody"))
    headers = tmp_path / "headers"
    headers.write_text("X-Token: t\n")
    headers.chmod(0o600)
    with ReceivingServer() as server:
        option = write(make_entry("ops", url=server.url, headers_file=str(headers)))
        assert main(["notify", "test", "ops", *option]) == 0
        assert f"cannot read {headers}" in capsys.readouterr().out
        os.chown(headers, pwd.getpwnam("nobody").pw_uid, -1)
        assert main(["notify", "test", "ops", *option]) == 0
        assert "cannot read" not in capsys.readouterr().out


def test_nothing_to_show(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["notify", "show", *write("")]) == 0
    assert "no receiver is configured: [notify.NAME]" in capsys.readouterr().out
    assert main(["notify", "show", "ops", *write("")]) == 2
    option = write(make_entry("ops", url="https://x.example"))
    assert main(["notify", "show", "--socket", "/nonexistent", *option]) == 30


class Daemon:
    """Answers as the daemon does, with these findings."""

    def __init__(self, *findings: dict[str, Any]) -> None:
        self.findings = [{**FINDINGS["findings"][0], **each} for each in findings]

    def get(self, _: object, endpoint: Endpoint[object], **values: object) -> Any:
        if endpoint is endpoints.SUMMARY:
            return NODE_SUMMARY
        assert (endpoint, values) == (endpoints.FINDINGS, {"limit": 1000})
        return {**FINDINGS, "findings": self.findings}


def test_what_each_would_be_sent(
    write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = Daemon({}, {"id": 8, "action": "observe"}, {"id": 9, "simulated": True})
    monkeypatch.setattr(notify.client, "get", daemon.get)
    option = write(
        make_entry("ops", url="https://hooks.slack.com/services/SECRET", format="slack")
        + make_entry("aws", type="exec", command=["/usr/bin/true", "SECRET"], drills=True)
        + make_entry("am", type="alertmanager", url=["https://a.example", "https://b.example/x"])
    )
    assert main(["notify", "show", *option]) == 0
    shown = capsys.readouterr().out
    headings = [line for line in shown.splitlines() if not line.startswith(" ")]
    assert headings == [
        "ops: slack, to https://hooks.slack.com",
        "aws: exec, to /usr/bin/true",
        "am: alertmanager, to https://a.example, https://b.example",
    ]
    assert "not sent, by its filters: 2 of 3 open findings" in shown
    assert "not sent, by its filters: 1 of 3 open findings" in shown
    assert "SIMULATED: " in shown and "SECRET" not in shown
    assert main(["notify", "show", "aws", "--json", *option]) == 0
    (receiver,) = json.loads(capsys.readouterr().out)["receivers"]
    assert (receiver["name"], receiver["leftOut"], len(receiver["messages"])) == ("aws", 1, 2)
    assert receiver["messages"][0]["flags"]["rebootRequired"] is True


def test_an_accepted_finding_is_not_sent(
    write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    accepted = {"by": "ann", "reason": "known", "since": NODE_SUMMARY["time"]}
    daemon = Daemon({"accepted": {**accepted, "until": NODE_SUMMARY["time"]}}, {"id": 8})
    monkeypatch.setattr(notify.client, "get", daemon.get)
    option = write(make_entry("ops", url="https://x.example"))
    assert main(["notify", "show", "--json", *option]) == 0
    (receiver,) = json.loads(capsys.readouterr().out)["receivers"]
    assert [each["finding"]["id"] for each in receiver["messages"]] == [8]


def test_an_answer_of_another_version(
    write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notify.client, "get", Daemon({"action": "new"}).get)
    option = write(make_entry("ops", url="https://x.example"))
    assert main(["notify", "show", *option]) == 30
    assert "the daemon's answer is not usable" in capsys.readouterr().err
