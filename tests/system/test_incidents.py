"""Incidents, and what the socket says about how a finding came to be: one story is told once,
whole, and as it ended.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.harness import Json, Node
from tests.system.disk import Disk, damage, open_codes
from tests.system.document import conforms
from tests.system.lines import about, dbe, fallen_with_company, fresh_pci, remap, wait_for_pid, xid
from tests.system.machine import Machine
from tests.waiting import until

Make = Callable[..., Node]
GONE, WAITING = "0000:65:00", "0000:66:00"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with a story of many lines on one GPU and a remap that waits on another."""
    with Node(tmp_path_factory.mktemp("told")) as node:
        node.write(*fallen_with_company(1, GONE, suppressed=40), remap(2, WAITING))
        wait_for_pid(node, 2)
        yield node


def why(node: Node, number: object) -> Json:
    chain = node.get(f"/v1/findings/{number}/why")
    conforms("Why", chain)
    return chain


def flags(*, reboot: bool, replacement: bool) -> Json:
    """Of what rests on lines alone."""
    return {
        "rebootRequired": reboot,
        "rebootConfirmed": False,
        "replacementRequired": replacement,
        "replacementConfirmed": False,
    }


def number_of(node: Node, pci: str, code: str) -> object:
    (found,) = [one for one in about(node.findings(), pci) if one["code"] == code]
    return found["id"]


def untold(status: Json) -> set[object]:
    """Open findings that no incident of the status names, or more than one does."""
    named = [number for incident in status["incidents"] for number in incident["findings"]]
    return {one["id"] for one in status["findings"] if named.count(one["id"]) != 1}


# --- incidents


@pytest.mark.core
def test_one_story_is_one_line(told: Node) -> None:
    """Forty-two lines of one GPU: one reason, one incident with its cause first, and the remap
    beside it.
    """
    status = told.status()
    conforms("NodeStatus", status)
    gone, waiting = status["incidents"]
    assert status["reasons"] == [gone["line"], waiting["line"]]
    assert untold(status) == set()
    assert (gone["code"], gone["state"], gone["action"], gone["when"], gone["count"]) == (
        "xid/79",
        "open",
        "reboot_node",
        "now",
        42,
    )
    members = [(one["code"], one["role"], one["count"]) for one in gone["members"]]
    assert members[0] == ("xid/79", "root", 1)
    assert sorted(members[1:]) == [("xid/154", "consequence", 1), ("xid/45", "consequence", 40)]
    assert (waiting["code"], waiting["action"], waiting["when"], waiting["correlation"]) == (
        "xid/63",
        "reset_device",
        "maintenance",
        "",
    )
    assert [one["code"] for one in about(told.findings(), GONE)] == [
        "xid/79",
        "xid/154",
    ], "a suppressed consequence has no finding of its own"
    assert told.metric("vitald_incidents") == 2
    assert told.metric("vitald_findings_escalated") == 0


@pytest.mark.core
def test_incidents(told: Node) -> None:
    """The open ones as in the status; at most as many as asked for; a wrong question is told."""
    listed = told.get("/v1/incidents")
    conforms("Incidents", listed)
    assert listed["incidents"] == told.status()["incidents"]
    first = told.get("/v1/incidents?limit=1")
    assert (first["incidents"], first["more"]) == (listed["incidents"][:1], True)
    assert not listed["more"]
    for query, said in (
        ("limit=0", "limit"),
        ("state=open", "unknown parameter"),
        ("limit=1&limit=2", "more than once"),
    ):
        status, answer = told.request("GET", f"/v1/incidents?{query}")
        assert (status, said in str(answer["error"])) == (400, True), answer
    assert told.request("POST", "/v1/incidents")[0] == 405


def test_an_incident_that_is_over(node: Node) -> None:
    """Its findings are closed: it has gone from the status, and stays in the list as long as a late
    line could join it.
    """
    node.write(*fallen_with_company(1))
    wait_for_pid(node, 1)
    until(lambda: len(node.findings()) == 2, "both findings")
    for finding in node.findings():
        assert node.status()["incidents"]
        node.request(
            "POST", f"/v1/findings/{finding['id']}/clear", {"reason": "replaced the riser"}
        )
    status = node.status()
    assert (status["status"], status["reasons"], status["incidents"]) == ("healthy", [], [])
    (over,) = node.get("/v1/incidents")["incidents"]
    assert (over["state"], over["findings"], over["action"], over["when"], over["code"]) == (
        "over",
        [],
        "none",
        None,
        "xid/79",
    )
    assert over["closedAt"]
    assert node.metric("vitald_incidents") == 0
    node.write(
        xid(2, code=45, message="Ch 00000099")
    )  # a late consequence: told by what is over, and asks for nothing
    wait_for_pid(node, 2)
    assert node.findings() == []
    node.write(xid(3))  # it fell off again: that is another one
    wait_for_pid(node, 3)
    until(lambda: len(node.get("/v1/incidents")["incidents"]) == 2, "the second incident")


@pytest.mark.core
def test_incidents_survive(told: Node) -> None:
    """A killed daemon tells the same incidents, and counts on in them."""
    before = told.status()
    told.kill()
    told.start()
    after = told.status()
    assert [after[key] for key in ("reasons", "incidents", "findings", "suspects")] == [
        before[key] for key in ("reasons", "incidents", "findings", "suspects")
    ]


def test_incidents_after_the_ledger_was_replaced(node: Node) -> None:
    """The new ledger has the findings that were open, and their incidents with them."""
    node.write(*fallen_with_company(1), remap(2, WAITING))
    wait_for_pid(node, 2)
    before = node.status()["incidents"]
    for path in node.state.glob("ledger.db*"):
        damage(path, 0)
    node.write(xid(3, code=13, pci="0000:67:00", message="Graphics Exception"))
    until(lambda: "vitald/ledger_replaced" in open_codes(node), "the damage to be noticed")
    node.restart()
    status = node.status()
    assert untold(status) == set()
    kept = {incident["id"]: incident["members"] for incident in status["incidents"]}
    assert [kept.get(incident["id"]) for incident in before] == [
        incident["members"] for incident in before
    ]


# --- why


@pytest.mark.core
def test_why_open(told: Node) -> None:
    """From the line to the flags, and the layer that decides."""
    chain = why(told, number_of(told, GONE, "xid/79"))
    assert chain["finding"] == told.findings("&code=xid/79")[0]
    assert chain["events"] == told.events("&code=xid/79")
    assert chain["incident"] == told.status()["incidents"][0]
    assert chain["rule"] == told.get("/v1/rules/xid/79")
    asked = [(one["layer"], one["action"], one["decides"]) for one in chain["layers"]]
    assert asked == [("base", "reboot_node", True)]  # the driver's own word says the same
    assert chain["flags"] == flags(reboot=True, replacement=False)
    assert chain["transitions"][0]["event"] == chain["events"][0]["identity"]


def test_why_of_many_events(node: Node) -> None:
    """The first four and the last four; the count says how many there were."""
    node.write(*(xid(pid) for pid in range(20)))
    wait_for_pid(node, 19)
    until(lambda: node.findings()[0]["count"] == 20, "all lines")
    chain = why(node, 1)
    assert [event["fields"]["pid"] for event in chain["events"]] == [0, 1, 2, 3, 16, 17, 18, 19]
    assert chain["finding"]["count"] == 20
    assert [change["cause"] for change in chain["transitions"]] == ["xid/79 seen"]


def test_why_cleared(node: Node) -> None:
    """It raises nothing any more; who closed it and why is the last of its changes. The next one is
    another story.
    """
    node.write(dbe(1))
    wait_for_pid(node, 1)
    node.request("POST", "/v1/findings/1/clear", {"reason": "wrong slot"})
    node.write(dbe(2))
    wait_for_pid(node, 2)
    chain = why(node, 1)
    assert (chain["finding"]["state"], chain["incident"]["state"]) == ("cleared", "over")
    assert chain["flags"] == flags(reboot=False, replacement=False)
    last = chain["transitions"][-1]
    assert (last["state"], "wrong slot" in last["cause"]) == ("cleared", True)
    assert [event["fields"]["pid"] for event in chain["events"]] == [1]
    assert [event["fields"]["pid"] for event in why(node, 2)["events"]] == [2]


def test_why_escalated(make_node: Make) -> None:
    """The reboot that it asked for did not hold: the escalation policy's requirement stands beside
    the table's, and the history has both.
    """
    machine = Machine(make_node())
    node = machine.node
    node.start()
    node.write(xid(1))
    wait_for_pid(node, 1)
    machine.reboot()
    node.write(xid(2))
    node.wait(lambda status: status["replacementRequired"])
    chain = why(node, 2)
    assert [(one["layer"], one["action"], one["decides"]) for one in chain["layers"]] == [
        ("base", "reboot_node", False),
        ("escalation", "replace_node", True),
    ]
    assert "it came back after its remedy" in str(chain["finding"]["actionReason"])
    assert chain["flags"] == flags(reboot=False, replacement=True)
    assert "rebooted" in str(why(node, 1)["transitions"][-1]["cause"])
    (suspect,) = node.status()["suspects"]
    assert {part["kind"] for part in suspect["parts"]} == {"fault", "not_held"}
    assert (
        node.metric(
            'vitald_device_lemon_score{component="gpu/0000:65:00.0",identity="gpu/0000:65:00.0"}'
        )
        == suspect["score"]
        > 1
    )
    shown = node.cli("why", "2").stdout
    assert "-> escalation replace_node: it came back after its remedy" in shown
    assert "replacement required" in shown


def test_why_shows_only_its_own_events(node: Node) -> None:
    """A drill beside the real thing, and a line that nobody believed: neither is evidence for the
    other's finding.
    """
    drill = xid(4001)
    node.write(xid(1))
    wait_for_pid(node, 1)
    announced = node.request("POST", "/v1/drills", {"line": drill, "holdSeconds": 60})
    assert announced[0] == 201, announced
    node.write(drill, f"<12>{xid(2, pci='0000:66:00')}", xid(3))
    wait_for_pid(node, 3)
    by_drill = {finding["simulated"]: finding["id"] for finding in about(node.findings(), GONE)}
    assert len(by_drill) == 2, node.events()
    for simulated, number in by_drill.items():
        chain = why(node, number)
        assert [event["simulated"] for event in chain["events"]] == [simulated] * chain["finding"][
            "count"
        ]


def test_why_while_the_ledger_cannot_be_written(make_node: Make) -> None:
    """What is open in memory only is open: whoever asks is not told that there is no such
    finding.
    """
    node = make_node()
    disk = Disk(node.state)
    disk.mount("1m")
    try:
        node.start()
        disk.fill()
        node.write(*(xid(number, pci=f"0000:{number % 64:02x}:00") for number in range(1, 400)))
        node.wait(lambda status: status["rebootRequired"] and not status["ledger"]["ok"])
        number = node.findings("&code=xid/79")[-1]["id"]
        status, answer = node.request("GET", f"/v1/findings/{number}/why")
        assert status in (200, 503), answer
    finally:
        node.stop()
        disk.unmount()


@pytest.mark.parametrize(
    "number",
    [
        "first",
        "-1",
        "0x1",
        "1e3",
        "1.0",
        "1" * 16,
        "%20",
        "%00",
        "1%2F2",
        "1;2",
        "%D9%A1x",
        "'",
        "1 or 1=1",
    ],
)
def test_a_number_that_is_none(told: Node, number: str) -> None:
    """For each route that takes one: told, and nothing is changed."""
    path = number.replace(" ", "%20")
    for method, verb, body in (
        ("GET", "why", None),
        ("POST", "remedy", {"reason": "x"}),
        ("POST", "clear", {"reason": "x"}),
    ):
        status, answer = told.request(method, f"/v1/findings/{path}/{verb}", body)
        assert (status, bool(answer["error"])) in ((400, True), (404, True)), (verb, answer)
    assert told.said("request_failed") == []


def test_a_finding_that_is_not_there(told: Node) -> None:
    for number in ("0", "999999", "9" * 15):
        for method, verb, body in (("GET", "why", None), ("POST", "remedy", {"reason": "x"})):
            status, answer = told.request(method, f"/v1/findings/{number}/{verb}", body)
            assert (
                status,
                f"finding {int(number)}" in str(answer["error"]),
                bool(answer["hint"]),
            ) == (404, True, True), answer


# --- remedy and replacement


@pytest.mark.core
def test_remedy(make_node: Make) -> None:
    """Begun, audited, shown; it still counts; the same fault again means that it did not hold; the
    reboot ends it.
    """
    machine = Machine(make_node())
    node = machine.node
    node.start()
    node.write(xid(1))
    wait_for_pid(node, 1)
    status, answer = node.request(
        "POST", "/v1/findings/1/remedy", {"reason": "  drained, reboot at 15:00\n"}
    )
    conforms("OneFinding", answer)
    assert (status, answer["finding"]["state"]) == (200, "in_remedy")
    now = node.status()
    assert (now["status"], now["rebootRequired"], now["findings"][0]["state"]) == (
        "unhealthy",
        True,
        "in_remedy",
    )
    assert node.findings("&code=xid/79")[0]["state"] == "in_remedy"
    assert "(begun)" in node.cli("status").stdout
    (event,) = node.events("&code=vitald/remedy_begun")
    assert "drained" in str(event["raw"])
    assert why(node, 1)["transitions"][-1]["state"] == "in_remedy"
    with closing(sqlite3.connect(node.state / "ledger.db")) as ledger:
        row = ledger.execute("SELECT uid, pid, verb, target, reason FROM audit").fetchone()
    assert row == (0, os.getpid(), "remedy", "1", "drained, reboot at 15:00")

    node.write(xid(2))
    node.wait(lambda status: status["findings"][0]["state"] == "open")
    node.request("POST", "/v1/findings/1/remedy", {"reason": "again"})
    node.restart()
    assert node.findings()[0]["state"] == "in_remedy"
    machine.reboot()
    assert node.status()["status"] == "healthy"
    assert [change["state"] for change in why(node, 1)["transitions"]] == [
        "open",
        "in_remedy",
        "open",
        "in_remedy",
        "cleared",
    ]
    assert node.request("POST", "/v1/findings/1/remedy", {"reason": "late"})[0] == 404


def test_the_log_says_what_became_of_a_finding(node: Node) -> None:
    """A remedy that has begun is no end: the log must not say `finding_cleared` before it is."""
    node.write(xid(1))
    wait_for_pid(node, 1)
    node.request("POST", "/v1/findings/1/remedy", {"reason": "reboot at 15:00"})
    assert node.said("finding_cleared") == []
    node.request("POST", "/v1/findings/1/clear", {"reason": "over"})
    until(lambda: len(node.said("finding_cleared")) == 1, "the word in the log")


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"reason": ""},
        {"reason": "\t"},
        {"reason": 7},
        {"reason": "x" * 501},
        {"reason": "x", "replaced": True},
        {"reason": "a\x1bb"},
    ],
    ids=str,
)
def test_a_remedy_without_a_reason(told: Node, body: object) -> None:
    number = number_of(told, GONE, "xid/79")
    status, answer = told.request("POST", f"/v1/findings/{number}/remedy", body)
    assert (status, bool(answer["error"])) == (400, True), answer
    assert told.findings("&code=xid/79")[0]["state"] == "open"


@pytest.mark.core
def test_replaced(node: Node) -> None:
    """Another board is in the slot: every finding of the old one is closed, and its record does not
    count against the new one.
    """
    node.write(xid(1), remap(2), xid(3, pci=WAITING))
    wait_for_pid(node, 3)
    assert {one["component"] for one in node.status()["suspects"]} == {
        "gpu/0000:65:00.0",
        "gpu/0000:66:00.0",
    }
    for wrong in ("yes", 1, None, []):
        assert (
            node.request("POST", "/v1/findings/1/clear", {"reason": "x", "replaced": wrong})[0]
            == 400
        ), wrong
    status, answer = node.request(
        "POST", "/v1/findings/1/clear", {"reason": "new board", "replaced": True}
    )
    assert (status, answer["finding"]["state"]) == (200, "cleared")
    assert about(node.findings(), GONE) == []
    assert len(about(node.findings(), WAITING)) == 1
    (event,) = node.events("&code=device/replaced")
    assert event["component"] == "gpu/0000:65:00.0"
    assert (
        node.metric(
            'vitald_device_lemon_score{component="gpu/0000:65:00.0",identity="gpu/0000:65:00.0"}'
        )
        is None
    )
    node.write(xid(4))
    until(lambda: about(node.findings(), GONE), "the new board's fault")
    assert (
        node.metric(
            'vitald_device_lemon_score{component="gpu/0000:65:00.0",identity="gpu/0000:65:00.0"}'
        )
        == 1
    )


def test_a_drill_replaces_no_board(node: Node) -> None:
    """To close a drill with `replaced` is refused: it must neither close what is real nor put the
    device's record away.
    """
    drill = xid(4001)
    node.write(xid(1))
    wait_for_pid(node, 1)
    node.request("POST", "/v1/drills", {"line": drill, "holdSeconds": 60})
    node.write(drill)
    until(lambda: len(node.findings()) == 2, "the drill")
    (number,) = [finding["id"] for finding in node.findings() if finding["simulated"]]
    assert (
        node.request(
            "POST", f"/v1/findings/{number}/clear", {"reason": "drill over", "replaced": True}
        )[0]
        == 400
    )
    assert [finding["simulated"] for finding in node.findings()] == [False, True]
    node.request("POST", f"/v1/findings/{number}/clear", {"reason": "drill over"})
    assert [finding["simulated"] for finding in node.findings()] == [False]
    assert (
        node.metric(
            'vitald_device_lemon_score{component="gpu/0000:65:00.0",identity="gpu/0000:65:00.0"}'
        )
        == 1
    )


# --- what the answer is for


def test_what_the_answer_is_for(make_node: Make) -> None:
    """A reset that waits: fit while the job runs, due before the next one and after this one; and
    each part says the same.
    """
    node = make_node()
    node.start()
    node.write(dbe(1), remap(2))
    wait_for_pid(node, 2)
    for work, status, code in (
        ("running", "degraded", 0),
        ("prolog", "unhealthy", 20),
        ("epilog", "unhealthy", 20),
    ):
        answer = node.get(f"/v1/status?for={work}")
        assert (answer["status"], node.cli("check", "--for", work).returncode) == (
            status,
            code,
        ), work
        assert node.cli("check", "--for", work, "--as", "slurm").returncode == (1 if code else 0), (
            work
        )
    assert node.status()["status"] == "degraded"
    assert node.cli("check", "--strict").returncode == 10
    assert node.metric('vitald_status{status="degraded"}') == 1
    for query, said in (
        ("for=", "for"),
        ("for=lunch", "must be one of"),
        ("for=prolog&for=epilog", "more than once"),
        ("For=prolog", "did you mean for"),
    ):
        status, answer = node.request("GET", f"/v1/status?{query}")  # type: ignore[assignment]
        assert (status, said in str(answer["error"])) == (400, True), answer
    assert node.cli("check", "--for", "lunch").returncode == 2


def test_a_component_is_judged_for_the_same_work(node: Node) -> None:
    """Before a job the node is unfit for this GPU's sake: the GPU cannot be merely degraded in the
    same answer.
    """
    node.write(dbe(1), remap(2))
    wait_for_pid(node, 2)
    listed = {one["name"]: one["status"] for one in node.get("/v1/status?for=prolog")["components"]}
    assert listed["node"] == listed["gpu/0000:65:00.0"] == "unhealthy"


# --- metrics


def test_metrics_follow_the_incidents(node: Node) -> None:
    pci = fresh_pci()
    assert (node.metric("vitald_incidents"), node.metric("vitald_findings_escalated")) == (0, 0)
    node.write(*fallen_with_company(1, pci), remap(2, WAITING))
    wait_for_pid(node, 2)
    until(lambda: node.metric("vitald_incidents") == 2, "both incidents")
    scores = {one["device"]: one["score"] for one in node.status()["suspects"]}
    assert {
        device: node.metric(
            f'vitald_device_lemon_score{{component="{device}",identity="{device}"}}'
        )
        for device in scores
    } == scores
    assert scores[f"gpu/{pci}.0"] >= 1


def test_a_record_has_an_end(node: Node) -> None:
    """One device and processes without end: what is stored of it is bounded, as a start reads all
    of it.
    """
    node.write(*(xid(pid, code=13, message="Graphics Exception") for pid in range(3000)))
    wait_for_pid(node, 2999)
    with closing(sqlite3.connect(node.state / "ledger.db")) as ledger:
        assert ledger.execute("SELECT count(*) FROM marks").fetchone()[0] <= 512
