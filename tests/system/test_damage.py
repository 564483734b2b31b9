"""A real daemon over a damaged ledger that is the only evidence, and over one whose lines can be
read again.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tests.harness import Node
from tests.system.disk import open_codes
from tests.system.lines import dated, wait_for_pid, xid
from tests.waiting import WAIT_S, until

LOST, FITS, UNFIT, UNKNOWN = "vitald/ledger_lost", 0, 20, 30
GPUS = 30


def zero_table(node: Node, *tables: str) -> None:
    """The first page of each, as a bad sector would."""
    path = node.state / "ledger.db"
    with closing(sqlite3.connect(path)) as ledger:
        ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        roots = [
            ledger.execute(
                "SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)
            ).fetchone()[0]
            for table in tables
        ]
    with path.open("r+b") as file:
        for root in roots:
            file.seek((root - 1) * 4096)
            file.write(bytes(4096))


def checks(node: Node) -> tuple[int, int]:
    return node.cli("check").returncode, node.cli("check", "--for", "prolog").returncode


@pytest.fixture
def stopped(node: Node) -> Node:
    """It knew of 30 GPUs off the bus. The lines are dated, so that they count if read again."""
    lines = (xid(number, pci=f"0000:{number:02x}:00") for number in range(1, GPUS + 1))
    node.write(*map(dated, lines))
    wait_for_pid(node, GPUS)
    node.stop()
    return node


@pytest.mark.core
def test_one_damaged_page_makes_no_node_fit(stopped: Node) -> None:
    """Nothing can be read again: the node is unknown until a person settles it, also after a
    further start.
    """
    node = stopped
    node.log.write_text("")
    zero_table(node, "findings")
    node.start()
    until(lambda: open_codes(node) == {LOST}, "the finding")
    assert node.status()["status"] == "unknown"
    assert checks(node) == (UNKNOWN, UNKNOWN)
    node.restart()
    assert checks(node) == (UNKNOWN, UNKNOWN)
    (finding,) = node.findings()
    node.request(
        "POST", f"/v1/findings/{finding['id']}/clear", {"reason": "nothing was open: ticket 7"}
    )
    node.wait(lambda status: status["status"] == "healthy")
    assert checks(node) == (FITS, FITS)


@pytest.mark.core
def test_what_is_lost_is_read_again(stopped: Node) -> None:
    node = stopped
    zero_table(node, "findings")
    node.start()
    until(lambda: len(node.findings("&code=xid/79")) == GPUS, "the lines to be read again")
    assert node.cli("check").returncode == UNFIT
    assert LOST in open_codes(node)


@pytest.mark.parametrize("fields", ["null", "[]"])
def test_a_row_that_makes_no_sense_breaks_no_answer(stopped: Node, fields: str) -> None:
    node = stopped
    with closing(sqlite3.connect(node.state / "ledger.db")) as ledger:
        ledger.execute("UPDATE findings SET fields = ? WHERE id = 3", (fields,))
        ledger.commit()
    node.start()
    until(lambda: LOST in open_codes(node), "the finding")
    assert node.status()["status"] == "unhealthy"
    assert node.cli("check").returncode == UNFIT


def test_an_event_that_is_damaged_is_left_out_and_counted(stopped: Node) -> None:
    """A page of the past goes on behind it."""
    node = stopped
    node.start()
    with closing(sqlite3.connect(node.state / "ledger.db", timeout=WAIT_S)) as ledger:
        ledger.execute("UPDATE events SET code = 'xid/78' WHERE id = 2")
        ledger.commit()
    first = node.get("/v1/events?limit=3&kind=xid")
    assert ([one["id"] for one in first["events"]], first["damaged"], first["next"]) == (
        [1, 3],
        1,
        3,
    )
    rest = node.get(f"/v1/events?kind=xid&since={first['next']}")
    assert (len(rest["events"]), rest["damaged"]) == (GPUS - 3, 0)
