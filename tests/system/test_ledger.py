"""The ledger when the disk is full, read-only, damaged or newer: judging goes on, it is said, and
nothing is lost.
"""

from __future__ import annotations

import hashlib
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.harness import PYTHON, Node
from tests.system.disk import Disk, damage, open_codes, stored, used_bytes
from tests.system.lines import pids, wait_for_pid, xid
from tests.waiting import WAIT_S, until

Make = Callable[..., Node]


@pytest.fixture
def small(make_node: Make) -> Iterator[tuple[Node, Disk]]:
    """A node, not started, whose state folder is a disk of one MiB."""
    node = make_node()
    disk = Disk(node.state)
    disk.mount("1m")
    try:
        yield node, disk
    finally:
        node.stop()
        disk.unmount()


@pytest.mark.core
def test_open_findings_survive(node: Node) -> None:
    """As they stood, however the daemon ended: count, time, line, and what a person cleared stays
    cleared.
    """
    node.write(xid(1), xid(2), xid(3, pci="0000:66:00"))
    wait_for_pid(node, 3)
    node.request("POST", "/v1/findings/2/clear", {"reason": "replaced"})
    before = node.findings()
    node.restart(signal.SIGKILL)
    assert node.findings() == before
    assert node.status()["rebootRequired"]
    node.write(xid(4, pci="0000:67:00"))
    wait_for_pid(node, 4)
    assert [finding["id"] for finding in node.findings()] == [1, 3]


@pytest.mark.core
def test_full_disk(small: tuple[Node, Disk]) -> None:
    """It is said at once, the new fault counts, and when there is room again everything is on disk,
    once and in order.
    """
    node, disk = small
    node.start()
    node.write(xid(0, code=13, message="Graphics Exception"))
    wait_for_pid(node, 0)
    disk.fill()
    node.write(*(xid(number, pci=f"0000:{number % 64:02x}:00") for number in range(1, 400)))
    status = node.wait(lambda status: status["rebootRequired"] and not status["ledger"]["ok"])
    assert status["ledger"]["error"]
    assert status["ledger"]["unsavedEvents"] > 0
    until(lambda: "vitald/ledger_failed" in open_codes(node), "the finding")
    until(
        lambda: sum(finding["count"] for finding in node.findings("&code=xid/79")) == 399,
        "all lines to be judged",
    )
    assert node.metric("vitald_ledger_ok") == 0
    assert "CANNOT BE WRITTEN" in node.cli("status").stdout

    disk.unfill()
    node.wait(lambda status: status["ledger"]["ok"])
    until(lambda: "vitald/ledger_failed" not in open_codes(node), "the finding to be closed")
    assert node.metric("vitald_ledger_unsaved_events") == 0
    assert stored(node) == [*range(400)]
    assert pids(node.events()) == [*range(400)]
    before = node.findings()
    node.restart(signal.SIGKILL)
    assert node.findings() == before


@pytest.mark.core
def test_a_full_disk_is_known_from_the_start(small: tuple[Node, Disk]) -> None:
    """Not only once there is something to store, and after a crash as well."""
    node, disk = small
    node.start()
    disk.fill()
    node.restart(signal.SIGKILL)
    until(lambda: "vitald/ledger_failed" in open_codes(node), "the finding")
    disk.unfill()
    node.wait(lambda status: status["ledger"]["ok"] and status["status"] == "healthy")


def test_stop_with_a_full_disk(small: tuple[Node, Disk]) -> None:
    """What could not be stored is read again from the source: the place in it was not stored
    either.
    """
    node, disk = small
    node.start()
    disk.fill()
    node.write(*(xid(number, pci=f"0000:{number % 64:02x}:00") for number in range(400)))
    node.wait(lambda status: not status["ledger"]["ok"])
    node.stop()
    disk.unfill()
    node.start()
    wait_for_pid(node, 399)
    assert sorted(pids(node.events())) == [*range(400)]
    assert sum(finding["count"] for finding in node.findings("&code=xid/79")) == 400


@pytest.mark.core
def test_read_only_from_the_start(small: tuple[Node, Disk]) -> None:
    """A node that never could write: it judges, says so, and stores all of it when it can."""
    node, disk = small
    disk.remount("ro")
    node.start()
    node.write(*map(xid, range(5)))
    status = node.wait(lambda status: status["rebootRequired"])
    assert not status["ledger"]["ok"]
    assert "vitald/ledger_failed" in open_codes(node)
    assert node.cli("check").returncode == 20
    events = node.cli("events")
    assert "xid/79" in events.stdout
    assert "changes of findings are not shown: the ledger cannot be read" in events.stderr

    # Pages come from memory then: each event once, and the last page says that it is the last.
    found, after = [], 0
    for _ in range(10):
        page = node.get(f"/v1/events?kind=xid&limit=2&since={after}")
        found += pids(page["events"])
        if page["next"] is None:
            break
        after = page["next"]
    assert found == [*range(5)]

    disk.remount("rw")
    node.wait(lambda status: status["ledger"]["ok"])
    assert stored(node) == [*range(5)]


@pytest.mark.core
def test_what_was_known_is_known_on_a_read_only_disk(small: tuple[Node, Disk]) -> None:
    """A disk that fails is remounted read-only: the fault from before must not be forgotten by the
    next start.
    """
    node, disk = small
    node.start()
    node.write(xid(1))
    wait_for_pid(node, 1)
    before = node.findings()
    node.stop()
    node.log.write_text("")  # the line is not there any more to be read again
    disk.remount("ro")
    node.start()
    assert node.status()["rebootRequired"]
    assert [finding for finding in node.findings() if finding["kind"] == "xid"] == before
    node.write(xid(2, pci="0000:66:00"))
    until(lambda: len(node.findings("&code=xid/79")) == 2, "the second finding")
    disk.remount("rw")
    node.wait(lambda status: status["ledger"]["ok"])
    with closing(sqlite3.connect(node.state / "ledger.db")) as ledger:
        kept = ledger.execute(
            "SELECT component FROM findings WHERE code = 'xid/79' AND state = 'open' ORDER BY id"
        ).fetchall()
    assert kept == [("gpu/0000:65:00.0",), ("gpu/0000:66:00.0",)]


def test_locked_by_somebody(shared_node: Node) -> None:
    """A person has it open and holds the lock: judging goes on, and everything is stored once the
    lock is let go.
    """
    node = shared_node
    node.write(xid(1))
    wait_for_pid(node, 1)
    with closing(sqlite3.connect(node.state / "ledger.db", isolation_level=None)) as ledger:
        ledger.execute("BEGIN IMMEDIATE")
        node.write(xid(2, pci="0000:66:00"))
        until(lambda: len(node.findings("&code=xid/79")) == 2, "the verdict")
        assert not node.status()["ledger"]["ok"]
        ledger.execute("ROLLBACK")
    node.wait(lambda status: status["ledger"]["ok"])
    assert stored(node) == [1, 2]


@pytest.mark.parametrize("first", [0, 100], ids=["all of it", "all but the header"])
def test_damaged_while_away(node: Node, first: int) -> None:
    """Set aside, not thrown away; a new one is begun; the finding says so and the daemon runs."""
    node.write(xid(1))
    wait_for_pid(node, 1)
    node.stop()
    damage(node.state / "ledger.db", first)
    garbage = (node.state / "ledger.db").read_bytes()
    node.start()
    until(lambda: "vitald/ledger_lost" in open_codes(node), "the finding")
    assert [path.read_bytes() for path in node.state.glob("ledger.db.damaged-*")] == [garbage]
    node.write(xid(2, pci="0000:66:00"))
    wait_for_pid(node, 2)
    status = node.status()
    assert (status["rebootRequired"], status["ledger"]["ok"]) == (True, True)
    assert 2 in stored(node)


@pytest.mark.core
def test_damaged_while_running(node: Node) -> None:
    """The findings in memory go on, and are in the new ledger after the next start."""
    node.write(*(xid(number, pci=f"0000:{number % 64:02x}:00") for number in range(3000)))
    wait_for_pid(node, 2999)
    for path in node.state.glob("ledger.db*"):
        damage(path, 0)
    for number in range(3000, 3010):
        node.write(xid(number, pci=f"0000:{number % 64:02x}:00"))
        until(lambda at_least=number + 1: counted(node) >= at_least, "the line to be judged")
    until(lambda: "vitald/ledger_replaced" in open_codes(node), "the damage to be noticed")
    assert len(node.findings("&code=xid/79")) == 64
    assert counted(node) == 3010
    before = node.findings()
    node.restart(signal.SIGKILL)
    assert node.findings() == before
    assert list(node.state.glob("ledger.db.damaged-*"))


def counted(node: Node) -> int:
    return sum(finding["count"] for finding in node.findings("&code=xid/79"))


def test_a_newer_ledger_is_left_as_it_is(make_node: Make) -> None:
    """Told which file and which schema; not a byte of it is changed."""
    node = make_node()
    node.state.mkdir()
    path = node.state / "ledger.db"
    with closing(sqlite3.connect(path)) as ledger:
        ledger.execute("CREATE TABLE events (of, a, later, day)")
        ledger.execute("PRAGMA user_version = 999")
    before = hashlib.sha256(path.read_bytes()).digest()
    done = node.cli("run", "--config", str(node.config))
    assert done.returncode == 69
    for part in (str(path), "newer", "999", "left as it is"):
        assert part in done.stderr, part
    assert "Traceback" not in done.stderr
    assert hashlib.sha256(path.read_bytes()).digest() == before
    assert [entry.name for entry in node.state.glob("ledger*")] == ["ledger.db"]


@pytest.mark.core
def test_killed_in_the_middle_of_a_burst(node: Node) -> None:
    """Each line exactly once, in the ledger and in the finding's count, over two kills."""
    total = 3000
    begun = threading.Event()

    def burst() -> None:
        with node.log.open("a") as log:
            for number in range(total):
                log.write(f"{xid(number)}\n")
                if number % 10 == 0:
                    log.flush()
                if number == total // 10:
                    begun.set()

    writer = threading.Thread(target=burst)
    writer.start()
    begun.wait(WAIT_S)
    for _ in range(2):
        seen = len(stored(node))
        until(
            lambda before=seen: len(stored(node)) > before or len(stored(node)) == total,
            "some lines",
        )
        node.restart(signal.SIGKILL)
    writer.join(WAIT_S)
    wait_for_pid(node, total - 1)
    assert [pid for pid, times in Counter(stored(node)).items() if times > 1] == []
    assert sorted(stored(node)) == [*range(total)]
    assert [finding["count"] for finding in node.findings()] == [total]


def test_the_oldest_make_room(node: Node) -> None:
    """Above the size that the configuration allows the oldest events go; open findings stay, counts
    and all.
    """
    node.write(
        xid(0),
        *(
            xid(number, code=13, pci="0000:66:00", message="Graphics Exception")
            for number in range(1, 6000)
        ),
    )
    wait_for_pid(node, 5999)
    before = node.findings()
    node.stop()
    node.config.write_text(node.settings + '[ledger]\nmax_size = "1MiB"\n')
    node.start()
    until(lambda: used_bytes(node) <= 1 << 20, "room")
    assert node.findings() == before
    node.stop()
    left = stored(node)
    assert left == [*range(left[0], 6000)]
    assert 0 < (node.state / "ledger.db").stat().st_size <= 1 << 20


# With a limit of 2,000 held events rather than 50,000, which take minutes to be written and judged.
_HOLDS_LESS = """
import sys
from vitald.core import ledger_writer
from vitald.cli import main
ledger_writer.MAX_HELD_EVENTS = 2000
sys.exit(main(sys.argv[1:]))
"""


def test_more_than_can_be_held(small: tuple[Node, Disk]) -> None:
    """Events beyond the limit are dropped and counted; no finding is forgotten for it."""
    node, disk = small
    node.command = [PYTHON, "-c", _HOLDS_LESS, "run", "--config", str(node.config)]
    node.start()
    disk.fill()
    node.write(
        xid(0),
        *(
            xid(number, code=13, pci="0000:66:00", message="Graphics Exception")
            for number in range(1, 4000)
        ),
    )
    node.wait(lambda status: status["ledger"]["droppedEvents"] > 0)
    until(lambda: node.findings("&code=xid/13")[0]["count"] == 3999, "all lines to be judged")
    disk.unfill()
    disk.remount("size=256m")
    node.wait(lambda status: status["ledger"]["ok"])
    before = [finding for finding in node.findings() if finding["kind"] == "xid"]
    assert len(before) == 2
    node.restart()
    assert [finding for finding in node.findings() if finding["kind"] == "xid"] == before
