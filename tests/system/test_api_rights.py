"""Who may ask, and who may change something: decided by what the kernel says of the other end."""

from __future__ import annotations

import grp
from collections.abc import Iterator

import pytest

from tests.harness import Node
from tests.system.lines import wait_for_pid, xid
from tests.system.people import cli_as_nobody, request_as_nobody

GROUP = grp.getgrgid(1)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node whose socket belongs to a group, with one finding."""
    with Node(
        tmp_path_factory.mktemp("node"), extra=f'[socket]\ngroup = "{GROUP.gr_name}"'
    ) as node:
        node.write(xid(1))
        wait_for_pid(node, 1)
        yield node


@pytest.mark.core
def test_in_the_group(guarded: Node) -> None:
    """Reading, by a supplementary group too; changing nothing."""
    stat = guarded.socket.stat()
    assert (stat.st_gid, stat.st_mode & 0o777) == (GROUP.gr_gid, 0o660)
    member = (GROUP.gr_gid,)
    for path in (
        "/healthz",
        "/v1/status",
        "/v1/summary",
        "/v1/events",
        "/v1/findings",
        "/v1/components",
        "/v1/gpus",
        "/v1/expect",
        "/v1/incidents",
        "/v1/findings/1/why",
        "/v1/diagnostics",
        "/v1/diagnostics/runs",
        "/v1/jobs",
    ):
        assert request_as_nobody(guarded, "GET", path, groups=member)[0] == 200, path
    for path, body in (
        ("/v1/findings/1/clear", {"reason": "mine"}),
        ("/v1/findings/1/clear", {"reason": "mine", "replaced": True}),
        ("/v1/findings/1/remedy", {"reason": "mine"}),
        ("/v1/findings/999/remedy", {}),
        ("/v1/drills", {"line": xid(2)}),
        ("/v1/release", {"reason": "mine"}),
        ("/v1/release/end", {}),
        ("/v1/reload", {}),
        ("/v1/expect/confirm", {"reason": "mine"}),
        ("/v1/diagnostics/run", {"reason": "mine"}),
        ("/v1/diagnostics/cancel", {"reason": "mine"}),
        ("/v1/jobs", {"event": "begin", "job": "1"}),
        ("/v1/scheduler", {"state": "drained"}),
    ):
        status, answer = request_as_nobody(guarded, "POST", path, body, groups=member)
        assert (status, "may not change" in str(answer["error"])) == (403, True), answer
    refused = request_as_nobody(guarded, "POST", "/v1/publishers", {"sinks": []}, groups=member)
    assert (refused[0], "may not change" in str(refused[1]["error"])) == (403, True)
    assert [finding["state"] for finding in guarded.findings()] == ["open"]
    assert [entry["uid"] for entry in guarded.said("change_refused")] == [65534] * 13

    assert cli_as_nobody(guarded, "check", groups=member).returncode == 20
    assert cli_as_nobody(guarded, "why", "1", groups=member).returncode == 0
    assert cli_as_nobody(guarded, "gpus", groups=member).returncode == 0
    for verb in (
        ("clear", "1"),
        ("accept", "1", "--end"),
        ("remedy", "1"),
        ("release",),
        ("release", "--end"),
        ("expect", "--confirm"),
    ):
        refused = cli_as_nobody(guarded, *verb, "--reason", "mine", groups=member)
        assert (refused.returncode, "may not change" in refused.stderr) == (69, True), verb
    assert {source["name"]: source["state"] for source in guarded.status()["sources"]}[
        "nvml"
    ] == "not present"


@pytest.mark.core
def test_outside_the_group(guarded: Node) -> None:
    """The file's mode refuses; where somebody opened that, the daemon does."""
    assert request_as_nobody(guarded, "GET", "/v1/status")[0] == 0
    done = cli_as_nobody(guarded, "check")
    assert (done.returncode, "not allowed to ask" in done.stdout) == (30, True)

    guarded.socket.chmod(0o666)
    for method, path, body in (
        ("GET", "/healthz", None),
        ("GET", "/v1/status", None),
        ("GET", "/v1/summary", None),
        ("GET", "/v1/watch", None),
        ("GET", "/v1/nothing", None),
        ("GET", "/v1/incidents", None),
        ("GET", "/v1/gpus", None),
        ("GET", "/v1/expect", None),
        ("GET", "/v1/findings/1/why", None),
        ("POST", "/v1/findings/1/clear", {"reason": "mine"}),
        ("POST", "/v1/findings/1/remedy", {"reason": "mine"}),
        ("POST", "/v1/release", {"reason": "mine"}),
        ("POST", "/v1/release/end", {}),
        ("POST", "/v1/reload", {}),
        ("POST", "/v1/expect/confirm", {"reason": "mine"}),
        ("GET", "/v1/diagnostics", None),
        ("GET", "/v1/jobs", None),
        ("POST", "/v1/diagnostics/run", {"reason": "mine"}),
        ("POST", "/v1/diagnostics/cancel", {"reason": "mine"}),
        ("POST", "/v1/jobs", {"event": "begin", "job": "1"}),
        ("POST", "/v1/scheduler", {"state": "drained"}),
        ("POST", "/v1/publishers", {"sinks": []}),
    ):
        status, answer = request_as_nobody(guarded, method, path, body)
        assert (status, "uid 65534 may not" in str(answer["error"])) == (403, True), path
    assert cli_as_nobody(guarded, "check").returncode == 30
    assert cli_as_nobody(guarded, "status").returncode == 30
    assert len(guarded.findings()) == 1
