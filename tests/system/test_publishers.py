"""The publisher's user on a real daemon: what it may do, and what is shown of its reports."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Iterator

import pytest

from tests.examples import get_request
from tests.harness import Json, Node
from tests.system.lines import wait_for_pid, xid
from tests.system.people import NOBODY, request_as_nobody
from vitald.server import endpoints

GROUP = grp.getgrgid(1)
MEMBER = (GROUP.gr_gid,)
SINK = get_request(endpoints.REPORT_SINKS)["sinks"][0]
WELL: Json = {**SINK, "up": True, "error": "", "waiting": 0, "waitingSince": None}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    user = pwd.getpwuid(NOBODY).pw_name
    extra = f'[socket]\ngroup = "{GROUP.gr_name}"\n[publish]\nuser = "{user}"'
    with Node(tmp_path_factory.mktemp("node"), extra=extra) as made:
        made.write(xid(1))
        wait_for_pid(made, 1)
        yield made


@pytest.mark.core
def test_its_reports_are_shown(node: Node) -> None:
    assert node.status()["publishers"] is None
    assert node.metric('vitald_publish_up{sink="kubernetes"}') is None
    assert "publish" not in node.cli("status").stdout
    body = {"sinks": [SINK, {**WELL, "name": "nfd"}]}
    for _ in range(3):
        status, answer = request_as_nobody(node, "POST", "/v1/publishers", body, groups=MEMBER)
        assert (status, answer) == (200, {"ok": True})
    told = node.status()["publishers"]
    assert (told["silent"], told["sinks"]) == (False, body["sinks"])
    assert node.metric('vitald_publish_up{sink="kubernetes"}') == 0.0
    assert node.metric('vitald_publish_up{sink="nfd"}') == 1.0
    lines = [line for line in node.cli("status").stdout.splitlines() if "publish" in line]
    assert len(lines) == 1 and "publishing to kubernetes: DOWN since" in lines[0]
    assert node.request("POST", "/v1/publishers", {"sinks": []}) == (200, {"ok": True})
    assert node.status()["publishers"] is None


def test_its_reports_are_no_changes(node: Node) -> None:
    """Neither the ledger nor the log gets them."""
    before, log = len(node.events()), node.errors.read_text()
    status, _ = request_as_nobody(node, "POST", "/v1/publishers", {"sinks": [WELL]}, groups=MEMBER)
    assert (status, len(node.events()), node.errors.read_text()) == (200, before, log)


def test_what_else_it_may_change(node: Node) -> None:
    """It may release the GPUs (of which this node has none), and nothing more."""
    for path, body in (("/v1/release", {"reason": "driver upgrade"}), ("/v1/release/end", {})):
        status, answer = request_as_nobody(node, "POST", path, body, groups=MEMBER)
        assert status != 403, answer
    for path, body in (
        ("/v1/findings/1/clear", {"reason": "mine"}),
        ("/v1/findings/1/accept", {"reason": "mine", "seconds": 60}),
        ("/v1/findings/1/remedy", {"reason": "mine"}),
        ("/v1/drills", {"line": xid(2)}),
        ("/v1/expect/confirm", {"reason": "mine"}),
        ("/v1/diagnostics/run", {"reason": "mine"}),
        ("/v1/diagnostics/cancel", {"reason": "mine"}),
        ("/v1/jobs", {"event": "begin", "job": "1"}),
    ):
        status, answer = request_as_nobody(node, "POST", path, body, groups=MEMBER)
        assert (status, "may not change" in str(answer["error"])) == (403, True), answer


def test_it_needs_the_group_as_everybody_does(node: Node) -> None:
    assert request_as_nobody(node, "POST", "/v1/publishers", {"sinks": []})[0] == 0


@pytest.mark.parametrize("user", ["vitald-nobody-has-this-name", "daemon"])
def test_another_user_may_not_report(node: Node, user: str) -> None:
    """The configured one is not on this node, or is another one."""
    node.configure(f'user = "{pwd.getpwuid(NOBODY).pw_name}"', f'user = "{user}"')
    node.restart()
    for path, body in (("/v1/publishers", {"sinks": []}), ("/v1/release", {"reason": "mine"})):
        status, answer = request_as_nobody(node, "POST", path, body, groups=MEMBER)
        assert (status, "may not change" in str(answer["error"])) == (403, True), answer
    assert [entry["path"] for entry in node.said("change_refused")][-1] == "/v1/release"
    node.configure(f'user = "{user}"', f'user = "{pwd.getpwuid(NOBODY).pw_name}"')
