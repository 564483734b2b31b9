"""GET /v1/transitions: how findings changed, for a client that keeps the last id."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tests.harness import Json, Node
from tests.system.document import conforms
from tests.system.lines import dbe, wait_for_pid, xid
from tests.waiting import WAIT_S


def read_page(node: Node, query: str = "") -> Json:
    return node.get(f"/v1/transitions?{query}")


@pytest.mark.core
def test_a_finding_is_opened_put_in_remedy_and_cleared(node: Node) -> None:
    node.write(xid(1, code=79))
    wait_for_pid(node, 1)
    (finding,) = node.findings()
    node.request("POST", f"/v1/findings/{finding['id']}/remedy", {"reason": "rebooting"})
    node.request("POST", f"/v1/findings/{finding['id']}/clear", {"reason": "rebooted"})
    page = read_page(node)
    assert [each["change"] for each in page["transitions"]] == ["opened", "in_remedy", "cleared"]
    first = page["transitions"][0]
    assert (first["finding"], first["reason"], first["action"], first["state"]) == (
        finding["id"],
        "Xid79",
        "reboot_node",
        "open",
    )
    assert (first["simulated"], page["next"]) == (False, None)
    assert page["newestId"] == page["transitions"][-1]["id"]
    conforms("Transitions", page)


@pytest.mark.core
def test_pages_go_on_where_the_last_one_ended(node: Node) -> None:
    for number in range(5):
        node.write(xid(number, pci=f"0000:6{number}:00"))
    wait_for_pid(node, 4)
    ids, since = [], 0
    while True:
        page = read_page(node, f"limit=2&since={since}")
        ids += [each["id"] for each in page["transitions"]]
        if page["next"] is None:
            break
        since = page["next"]
    assert ids == sorted(set(ids))
    assert len(ids) == 5
    newest = read_page(node, "newest=true&limit=1")
    assert ([each["id"] for each in newest["transitions"]], newest["next"]) == (ids[-1:], None)
    assert read_page(node, f"since={ids[-1]}")["transitions"] == []


@pytest.mark.core
def test_transitions_narrowed(node: Node) -> None:
    node.write(xid(1, pci="0000:61:00"), xid(2, pci="0000:62:00"), dbe(3, pci="0000:62:00"))
    wait_for_pid(node, 3)
    first = node.findings("&component=gpu/0000:61:00.0")[0]
    node.request("POST", f"/v1/findings/{first['id']}/clear", {"reason": "test"})

    def shown(query: str) -> list[tuple[str, str, str]]:
        changes = read_page(node, query)["transitions"]
        return [(each["change"], each["component"][-7:], each["code"]) for each in changes]

    assert shown("component=gpu/0000:61:00.0") == [
        ("opened", "61:00.0", "xid/79"),
        ("cleared", "61:00.0", "xid/79"),
    ]
    assert shown("code=xid/48") == [("opened", "62:00.0", "xid/48")]
    assert shown("code=xid/48&component=gpu/0000:61:00.0") == shown("kind=sxid") == []
    assert len(shown("kind=xid&since=1h")) == len(shown("since=2026-01-01T00:00:00Z")) == 4
    assert shown("since=2099-01-01T00:00:00Z") == []
    assert shown("kind=xid&newest=true&limit=1") == [("cleared", "61:00.0", "xid/79")]


def test_a_damaged_transition_is_counted(node: Node) -> None:
    node.write(xid(1, pci="0000:61:00"), xid(2, pci="0000:62:00"))
    wait_for_pid(node, 2)
    with closing(sqlite3.connect(node.state / "ledger.db", timeout=WAIT_S)) as ledger:
        ledger.execute("UPDATE transitions SET cause = 'other' WHERE id = 1")
        ledger.commit()
    page = read_page(node)
    assert ([each["id"] for each in page["transitions"]], page["damaged"]) == ([2], 1)
    assert node.cli("events").stderr == "vitald: transitions damaged in the ledger, left out: 1\n"


@pytest.mark.parametrize(
    "query", ["since=yesterday", "since=-1", "limit=0", "newest=1", "code=x", "kind=xidd"]
)
def test_a_wrong_question_is_refused(shared_node: Node, query: str) -> None:
    status, answer = shared_node.request("GET", f"/v1/transitions?{query}")
    assert (status, query.split("=")[0] in answer["error"]) == (400, True)
