"""Every route of the socket API: what it answers, and what a wrong question is told."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone

import pytest

from tests.harness import Json, Node
from tests.system.document import DOCUMENT, conforms
from tests.system.lines import pids, wait_for_pid, xid
from tests.waiting import until

LINE = xid(1234, pci="0000:70:00")


@pytest.fixture(scope="module")
def known(shared_node: Node) -> Iterator[Node]:
    """A node with twelve events: of three kinds, on two devices."""
    node = shared_node
    node.write(
        *(xid(pid, code=13, pci="0000:65:00", message="Graphics Exception") for pid in range(8))
    )
    node.write(
        xid(8, pci="0000:66:00"),
        xid(
            9, code=63, pci="0000:66:00", message="Row Remapper: New row (0x1) marked for remapping"
        ),
    )
    node.write("nvidia-nvswitch0: SXid (PCI:0000:87:00.0): 20034, Fatal, Link 38 LTSSM Fault Up")
    node.write(
        "nvidia-nvswitch0: SXid (PCI:0000:87:00.0): 20034, Severity 1 Engine instance 38 Sub-engine"
        " instance 00"
    )
    node.write(xid(10, pci="0000:66:00"))
    wait_for_pid(node, 10)
    yield node


def page(node: Node, query: str = "") -> Json:
    return node.get(f"/v1/events?{query}")


@pytest.mark.core
def test_healthz(known: Node) -> None:
    assert known.get("/healthz") == {"ok": True, "version": known.status()["version"]}


@pytest.mark.core
def test_status(known: Node) -> None:
    """The verdict follows from the findings beside it."""
    status = known.status()
    assert (status["status"], status["rebootRequired"], status["replacementRequired"]) == (
        "unhealthy",
        True,
        False,
    )
    assert status["openFindings"] == len(status["findings"])
    assert status["reasons"] == [incident["line"] for incident in status["incidents"]]
    assert status["bootId"] == open("/proc/sys/kernel/random/boot_id").read().strip()
    sources = {source["name"]: source for source in status["sources"]}
    assert {
        name: (sources[name]["state"], sources[name]["detail"]) for name in ("kernel_log", "nvml")
    } == {
        "kernel_log": ("ok", ""),
        "nvml": ("not present", "no NVIDIA GPU on PCI"),
    }
    for source in sources.values():
        moments = [
            datetime.fromisoformat(source[key].replace("Z", "+00:00"))
            for key in ("lastRead", "deadline")
        ]
        assert moments[0] < moments[1]
    assert status["ledger"]["ok"]
    assert status["kernelLog"]["recordsRead"] >= 13


@pytest.mark.core
def test_findings(known: Node) -> None:
    """The strongest first; filtered by component and code; at most as many as asked for."""
    findings = known.findings()
    assert findings[0]["action"] == "reboot_node"
    assert [one["code"] for one in known.findings("&component=gpu/0000:66:00.0")] == [
        "xid/79",
        "xid/63",
    ]
    (one,) = known.findings("&code=xid/13")
    assert (one["component"], one["count"], one["action"]) == (
        "gpu/0000:65:00.0",
        8,
        "restart_workload",
    )
    listed = known.get("/v1/findings?limit=2")
    assert (len(listed["findings"]), listed["more"]) == (2, True)
    assert not known.get("/v1/findings?limit=1000")["more"]
    assert not known.get("/v1/findings?state=cleared&limit=1000")["more"]
    assert known.findings("&component=gpu/0000:99:00.0") == []


@pytest.mark.core
def test_an_sxid_and_what_follows_it_are_one_event(known: Node) -> None:
    (event,) = known.events("&kind=sxid")
    assert len(event["followedBy"]) == 1
    (finding,) = known.findings("&component=nvswitch/0000:87:00.0")
    assert finding["count"] == 1


@pytest.mark.core
def test_events_page_by_page(known: Node) -> None:
    """Each once, in order, whatever the size of a page; the last page says that it is the last."""
    everything = [event["id"] for event in known.events()]
    assert len(everything) == 12
    for limit in (1, 5, 6, 12, 1000):
        found, after = [], "0"
        for _ in range(20):
            answer = page(known, f"limit={limit}&since={after}")
            found += [event["id"] for event in answer["events"]]
            if answer["next"] is None:
                break
            after = str(answer["next"])
        assert found == everything


@pytest.mark.core
def test_events_narrowed(known: Node) -> None:
    assert pids(page(known, "kind=xid&limit=3")["events"]) == [0, 1, 2]
    assert pids(page(known, "kind=xid&limit=3&newest=true")["events"]) == [8, 9, 10]
    assert page(known, "limit=3&newest=true")["next"] is None
    assert pids(page(known, "code=xid/79")["events"]) == [8, 10]
    assert pids(page(known, "component=gpu/0000:66:00.0&code=xid/63")["events"]) == [9]
    assert page(known, "kind=xid&code=sxid/20034")["events"] == []


def test_events_since_a_time(known: Node) -> None:
    """A duration, an RFC 3339 time with or without fraction and offset; nothing is older than the
    daemon, all younger than an hour.
    """
    everything = known.events()
    now = datetime.now(timezone.utc)
    hour, later = now - timedelta(hours=1), now + timedelta(minutes=5)
    for since in (
        "1h",
        f"{hour:%Y-%m-%dT%H:%M:%SZ}",
        f"{hour:%Y-%m-%dT%H:%M:%S}.5Z",
        f"{hour:%Y-%m-%dt%H:%M:%S}z",
    ):
        assert page(known, f"since={since}")["events"] == everything, since
    ahead = later.astimezone(timezone(timedelta(hours=5, minutes=30)))
    for since in ("1ms", f"{later:%Y-%m-%dT%H:%M:%SZ}", f"{ahead:%Y-%m-%dT%H:%M:%S}%2B05:30"):
        time.sleep(0.002)
        assert page(known, f"since={since}")["events"] == [], since


SLOW_TO_SHOW = """
import asyncio, sys
from vitald.cli import main
from vitald.core.ledger_writer import LedgerWriter

store = LedgerWriter.store_entries

async def slow(keeper, entries):
    await store(keeper, entries)
    await asyncio.sleep(0.2)

LedgerWriter.store_entries = slow
sys.exit(main())
"""


def test_an_event_is_not_told_before_its_finding(make_node: Callable[[], Node]) -> None:
    """Between its commit and its show there is a moment, here a long one."""
    node = make_node()
    node.command[1:3] = ["-c", SLOW_TO_SHOW]
    node.start()
    node.write(LINE)
    wait_for_pid(node, 1234)
    assert [finding["code"] for finding in node.findings()] == ["xid/79"]


@pytest.mark.core
def test_components(known: Node) -> None:
    """Each with its own verdict; the node with the verdict on the whole."""
    listed = {one["name"]: one for one in known.get("/v1/components")["components"]}
    assert listed["node"]["status"] == "unhealthy"
    assert (listed["gpu/0000:65:00.0"]["status"], listed["gpu/0000:66:00.0"]["status"]) == (
        "degraded",
        "unhealthy",
    )
    assert listed["gpu/0000:66:00.0"]["findings"] == 2
    short = {one["name"]: one for one in known.status()["components"]}
    assert short.keys() == listed.keys()
    assert all(one.items() <= listed[name].items() for name, one in short.items())


@pytest.mark.core
def test_rules(known: Node) -> None:
    """Unknown is said, never dropped."""
    assert known.get("/v1/rules/xid/79")["action"] == "reboot_node"
    assert (
        known.get("/v1/rules/xid/9999")["known"],
        known.get("/v1/rules/nonsense/1")["known"],
    ) == (False, False)


def test_examples_of_the_document_are_true_to_it() -> None:
    """Each example of an answer is a possible answer."""
    examples = 0
    for item in DOCUMENT["paths"].values():
        for operation in item.values():
            for answer in operation["responses"].values():
                for kind, content in answer.get("content", {}).items():
                    for one in (
                        content.get("example", "").splitlines()
                        if kind == "application/x-ndjson"
                        else [json.dumps(content.get("example"))]
                    ):
                        name = content["schema"].get("$ref", "").rpartition("/")[2]
                        if name and one != "null":
                            conforms(name, json.loads(one))
                            examples += 1
    assert examples > 10


@pytest.mark.core
def test_openapi(known: Node) -> None:
    """The document tells all routes that there are."""
    document = known.get("/v1/openapi.json")
    assert str(document["openapi"]).startswith("3.1")
    for path in document["paths"]:
        method = "POST" if "post" in document["paths"][path] else "GET"
        if path != "/v1/watch":
            assert known.request(
                method, path.replace("{", "").replace("}", ""), {} if method == "POST" else None
            )[0] in (200, 400, 404)


@pytest.mark.core
def test_clear(known: Node) -> None:
    """Closed, gone from the list, in the list of cleared ones, audited; a second time there is
    nothing to clear.
    """
    known.write(LINE)
    wait_for_pid(known, 1234)
    (finding,) = known.findings("&component=gpu/0000:70:00.0")
    status, answer = known.request(
        "POST", f"/v1/findings/{finding['id']}/clear", {"reason": "  replaced the riser\n"}
    )
    assert status == 200
    assert (answer["finding"]["state"], answer["finding"]["id"]) == ("cleared", finding["id"])
    assert "replaced the riser" in str(answer["finding"]["clearedBy"])
    assert known.findings("&component=gpu/0000:70:00.0") == []
    assert known.findings("&state=cleared")[0] == answer["finding"]
    with closing(sqlite3.connect(known.state / "ledger.db")) as ledger:
        uid, pid, verb, target, reason = ledger.execute(
            "SELECT uid, pid, verb, target, reason FROM audit ORDER BY id DESC"
        ).fetchone()
    assert (uid, pid, verb, target, reason) == (
        0,
        os.getpid(),
        "clear",
        str(finding["id"]),
        "replaced the riser",
    )
    assert (
        known.request("POST", f"/v1/findings/{finding['id']}/clear", {"reason": "again"})[0] == 404
    )
    with closing(sqlite3.connect(known.state / "ledger.db")) as ledger:
        assert ledger.execute("SELECT count(*) FROM audit WHERE reason = 'again'").fetchone() == (
            0,
        )


def test_cleared_findings_are_filtered_before_they_are_counted(known: Node) -> None:
    """The last one with this code, however many others were cleared since."""
    for pid, code in ((2001, 31), (2002, 43)):
        known.write(xid(pid, code=code, pci="0000:71:00", message="-"))
        wait_for_pid(known, pid)
        (finding,) = known.findings(f"&component=gpu/0000:71:00.0&code=xid/{code}")
        known.request("POST", f"/v1/findings/{finding['id']}/clear", {"reason": "test"})
    found = known.get("/v1/findings?state=cleared&code=xid/31&limit=1")["findings"]
    assert [one["code"] for one in found] == ["xid/31"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("/v1/events?limit=0", "limit"),
        ("/v1/events?limit=1001", "limit"),
        ("/v1/events?limit=ten", "limit"),
        ("/v1/events?since=yesterday", "since"),
        ("/v1/events?code=79", "names no kind"),
        ("/v1/events?newest=yes", "newest"),
        ("/v1/events?kind=xidd", "no kind 'xidd', did you mean xid?"),
        ("/v1/events?code=xidd/79", "no kind 'xidd', did you mean xid?"),
        ("/v1/findings?code=nosuch/1", "no kind 'nosuch'"),
        ("/v1/findings?state=cleared&code=nosuch/1", "no kind 'nosuch'"),
        ("/v1/events?limt=5", "did you mean limit"),
        ("/v1/events?limit=5&limit=6", "more than once"),
        ("/v1/findings?state=closed", "state"),
        ("/v1/findings?since=1h", "unknown parameter"),
        ("/v1/status?verbose=1", "unknown parameter"),
        ("/v1/components?kind=gpu", "unknown parameter"),
        ("/v1/watch?since=1", "unknown parameter"),
        ("/healthz?deep=1", "unknown parameter"),
    ],
)
def test_a_wrong_parameter_is_named(known: Node, query: str, said: str) -> None:
    status, answer = known.request("GET", query)
    assert (status, said in str(answer["error"])) == (400, True), answer


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        "text",
        {},
        {"reason": ""},
        {"reason": " \n "},
        {"reason": 7},
        {"reason": "x" * 501},
        {"reason": "x", "force": True},
    ],
    ids=str,
)
def test_a_wrong_reason_is_refused(known: Node, body: object) -> None:
    status, answer = known.request("POST", "/v1/findings/1/clear", body)
    assert status == 400, answer
    assert answer["error"]


def test_a_reason_that_cannot_be_written_down(node: Node) -> None:
    """Half of a surrogate pair is JSON but no text: refused, and the daemon lives on."""
    node.write(xid(1))
    wait_for_pid(node, 1)
    status, answer = node.request("POST", "/v1/findings/1/clear", {"reason": "broken \ud800 text"})
    assert status == 400, answer
    assert len(node.findings()) == 1
    node.write(xid(2))
    wait_for_pid(node, 2)


@pytest.mark.core
def test_what_is_not_there(known: Node) -> None:
    for method, path in (
        ("GET", "/"),
        ("GET", "/v1"),
        ("GET", "/v1/findings/1"),
        ("POST", "/v1/findings/999999/clear"),
        ("GET", "/v1/drills/x"),
    ):
        status, answer = known.request(method, path, {"reason": "x"} if method == "POST" else None)
        assert (status, bool(answer["error"])) == (404, True), path
    assert known.request("POST", "/v1/findings/first/clear", {"reason": "x"})[0] == 400
    for method, path in (
        ("DELETE", "/v1/findings"),
        ("POST", "/v1/status"),
        ("GET", "/v1/drills"),
        ("PUT", "/v1/findings/1/clear"),
    ):
        assert known.request(method, path)[0] == 405, path


@pytest.mark.core
def test_a_drill_is_announced_and_followed(known: Node) -> None:
    line = xid(4001, pci="0000:73:00")
    status, made = known.request("POST", "/v1/drills", {"line": line, "holdSeconds": 60})
    assert (status, made["state"], made["writeTo"]) == (201, "announced", str(known.log))
    known.write(line)
    until(
        lambda: known.get(f"/v1/drills/{made['id']}")["state"] == "seen",
        "the drill to be seen",
    )
    drill = known.get(f"/v1/drills/{made['id']}")
    (finding,) = known.findings("&component=gpu/0000:73:00.0")
    assert (finding["id"], finding["simulated"]) == (drill["finding"], True)
    for body in (
        {"line": line, "holdSeconds": 0},
        {"line": line, "holdSeconds": True},
        {"line": ""},
        {"line": "é"},
        {"line": "hello"},
        {},
    ):
        assert known.request("POST", "/v1/drills", body)[0] == 400, body
    raw = json.dumps({"line": line, "holdSeconds": float("nan")})
    assert "NaN" in raw
    assert (
        known.request("POST", "/v1/drills", {"line": line, "holdSeconds": float("nan")})[0] == 400
    )
