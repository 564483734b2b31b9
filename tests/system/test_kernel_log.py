"""The real kernel log in, a verdict out: exactly once, over restarts and floods."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from tests.harness import Json, Node
from tests.system.lines import (
    Ring,
    about,
    fresh_pci,
    fresh_pid,
    in_ring,
    ordinary,
    pids,
    wait_for_pid,
    xid,
)
from tests.trees import Tree
from tests.waiting import until

pytestmark = pytest.mark.kmsg
Write = Callable[[str], object]
Make = Callable[..., Node]


@pytest.fixture(scope="module")
def believing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that has passed what older tests left in the ring, and believes what processes write
    from now on.
    """
    require(os.geteuid() == 0 and os.access("/dev/kmsg", os.W_OK), "root and a writable /dev/kmsg")
    with Node(tmp_path_factory.mktemp("node"), kernel_log="kmsg", userspace="ignore") as node:
        node.wait(lambda status: status["sources"][0]["state"] == "ok")
        node.configure('userspace = "ignore"', 'userspace = "confirmed"')
        assert node.reload()["event"] == "reloaded"
        yield node


@pytest.mark.core
def test_a_gpu_falls_off_the_bus(believing: Node, kmsg: Write) -> None:
    """True everywhere, still true and not doubled after a restart; cleared by a person it stays so,
    though the line is still there.
    """
    node, pci = believing, fresh_pci()
    line = xid(1234, pci=pci)
    assert not node.status()["rebootRequired"]

    def holds() -> None:
        status = node.wait(lambda status: status["rebootRequired"])
        assert status["status"] == "unhealthy"
        assert [
            (finding["action"], finding["count"]) for finding in about(node.findings(), pci)
        ] == [("reboot_node", 1)]
        assert [event["raw"] for event in about(node.events(), pci)] == [line]
        assert node.metric("vitald_reboot_required") == 1
        assert node.cli("check").returncode == 20

    kmsg(f"<3>{line}")
    holds()
    shown = node.cli("status")
    assert (shown.returncode, line in shown.stdout, "reboot the node" in shown.stdout) == (
        20,
        True,
        True,
    )
    for ending in (signal.SIGTERM, signal.SIGKILL):
        node.restart(ending)
        holds()

    finding = about(node.findings(), pci)[0]["id"]
    assert node.cli("clear", str(finding), "--reason", "replaced the riser").returncode == 0

    def cleared() -> None:
        status = node.wait(lambda status: status["sources"][0]["state"] == "ok")
        assert not status["rebootRequired"]
        assert about(node.findings(), pci) == []
        assert len(about(node.events(), pci)) == 1
        assert node.metric("vitald_reboot_required") == 0
        assert node.cli("check").returncode == 0

    cleared()
    for ending in (signal.SIGTERM, signal.SIGKILL):
        node.restart(ending)
        assert in_ring(line)
        cleared()


@pytest.mark.core
def test_what_came_while_the_daemon_was_away(believing: Node, kmsg: Write) -> None:
    """The ring kept it, and it is judged once."""
    node, pci = believing, fresh_pci()
    kmsg(f"<3>{xid(1, pci=pci)}")
    until(lambda: about(node.events(), pci), "the first line")
    node.stop()
    kmsg(f"<3>{xid(2, pci=pci)}")
    node.start()
    until(lambda: len(about(node.events(), pci)) == 2, "the second line")
    assert pids(about(node.events(), pci)) == [1, 2]
    assert [finding["count"] for finding in about(node.findings(), pci)] == [2]


@pytest.mark.core
def test_a_process_is_not_believed(make_node: Make, kmsg: Write) -> None:
    """Whatever facility a process asks for: its line is counted and shown, and judged by nobody."""
    node, pci = make_node(kernel_log="kmsg", userspace="ignore"), fresh_pci()
    node.start()
    node.wait(lambda status: status["sources"][0]["state"] == "ok")
    before = node.status()["kernelLog"]["untrusted"]
    for facility in (0, 1, 3, 16):
        kmsg(f"<{facility << 3 | 3}>{xid(facility, pci=pci)}")
    until(lambda: len(about(node.events(), pci)) == 4, "the events")
    assert [event["trust"] for event in about(node.events(), pci)] == ["untrusted"] * 4
    assert about(node.findings(), pci) == []
    status = node.status()
    assert not status["rebootRequired"]
    assert status["kernelLog"]["untrusted"] == before + 4
    assert node.metric("vitald_kernel_records_untrusted_total") == before + 4
    assert "UNTRUSTED" in node.cli("events", "--component", f"gpu/{pci}.0").stdout
    assert "fault-like lines, written by user processes" in node.cli("status").stdout


@pytest.mark.core
def test_what_root_writes_makes_the_node_unfit_and_is_unconfirmed(
    make_node: Make, kmsg: Write, tmp_path: Path
) -> None:
    """As guides and audits test an agent. Who wrote it is shown everywhere; no more lines of the
    kind change anything.
    """
    tree = Tree(tmp_path / "sys")
    tree.pci("0000:01:00.0", 0x10DE, 0x2330, 0x030200, "vfio-pci")  # a GPU, and not NVML's
    node = make_node(kernel_log="kmsg", userspace="ignore", sysfs=tree.root)
    pci = fresh_pci()
    node.start()  # past what older tests left in the ring
    node.wait(lambda status: status["sources"][0]["state"] == "ok")
    node.configure('userspace = "ignore"', "")
    assert node.reload()["applied"] == ["[kernel_log] userspace"]
    kmsg(f"<3>{xid(1, pci=pci)}")
    until(lambda: about(node.findings(), pci), "the finding")
    kmsg(f"<30>NVRM: GPU {pci}.0: GPU has fallen off the bus.")
    until(lambda: len(about(node.findings(), pci)) == 2, "the second finding")
    status = node.status()
    assert (status["status"], status["rebootRequired"], status["rebootConfirmed"]) == (
        "unhealthy",
        True,
        False,
    )
    assert node.cli("check", "--for", "prolog").returncode == 20
    assert [(one["confirmed"], one["writtenByProcess"]) for one in about(node.findings(), pci)] == [
        (False, True)
    ] * 2
    told = [(event["trust"], event["fields"]["facility"]) for event in about(node.events(), pci)]
    assert told == [("accepted", 1), ("accepted", 3)]
    assert (
        "[written by a process, no such device here, facility 3]"
        in node.cli("events", "--component", f"gpu/{pci}.0").stdout
    )
    assert "reboot required (unconfirmed)" in node.cli("status").stdout
    number = about(node.findings(), pci)[0]["id"]
    assert "witness  written by a process, unconfirmed" in node.cli("why", str(number)).stdout
    for one in about(node.findings(), pci):
        assert (
            node.request("POST", f"/v1/findings/{one['id']}/clear", {"reason": "tested"})[0] == 200
        )
    assert about(node.findings(), pci) == []


@pytest.mark.core
def test_a_line_about_a_gpu_on_a_node_that_has_none(
    make_node: Make, kmsg: Write, tmp_path: Path
) -> None:
    """It is shown, with the reason, and makes no fault; a drill does."""
    tree = Tree(tmp_path / "sys")
    tree.pci("0000:01:00.0", 0x15B3, 0x1021, 0x020700, "mlx5_core")
    node = make_node(kernel_log="kmsg", userspace="unconfirmed", sysfs=tree.root)
    pci = fresh_pci()
    node.start()
    node.wait(lambda status: status["sources"][0]["state"] == "ok")
    before = len(node.findings())
    kmsg(f"<3>{xid(79, pci=pci)}")
    until(lambda: about(node.events(), pci), "the event")
    (event,) = about(node.events(), pci)
    assert event["trust"] == "untrusted"
    reason = "this node has no gpu and no driver for one"
    assert event["fields"]["untrusted"] == reason
    assert f"UNTRUSTED ({reason}, not judged)" in node.cli("events", "--code", "xid/79").stdout
    assert (about(node.findings(), pci), len(node.findings())) == ([], before)
    assert node.cli("drill", "xid", "79", "--config", str(node.config)).returncode == 0


@pytest.mark.core
def test_escaped_bytes(believing: Node, kmsg: Write) -> None:
    """A process name of any bytes: the field has it as it was, the raw line only what is safe to
    print.
    """
    node, pci = believing, fresh_pci()
    kmsg(
        f"<3>NVRM: Xid (PCI:{pci}): 79, pid=7, name=h\xe9llo\\\t\x1b[2J, GPU has fallen off the"
        " bus."
    )
    until(lambda: about(node.events(), pci), "the event")
    (event,) = about(node.events(), pci)
    assert event["fields"]["process"] == "h\xe9llo\\\t\x1b[2J"
    assert str(event["raw"]).isascii()
    assert str(event["raw"]).isprintable()
    for verb in ("status", "events", "findings"):
        assert "\x1b" not in node.cli(verb).stdout


def mark(kmsg: Write, text: str) -> int:
    """Write a record and return its sequence number."""
    ring = Ring()
    kmsg(f"<3>{text}")
    return next(seq for seq, found in ring.records() if found == text)


def gaps_of(event: Json) -> list[tuple[int, int]]:
    """First and last number of each gap that one event tells of."""
    fields: dict[str, Any] = event["fields"]
    flat = fields.get("ranges", [fields["first_seq"], fields["last_seq"]])
    gaps = [*zip(flat[::2], flat[1::2])]
    assert (gaps[0][0], gaps[-1][1]) == (fields["first_seq"], fields["last_seq"])
    return gaps


@pytest.mark.parametrize("lines", [20_000, 100_000])
def test_flood(believing: Node, kmsg: Write, lines: int) -> None:
    """A hundred Xids in a flood: each is judged, or its number lies in a span that is told as lost.
    Memory stays flat.
    """
    node = believing
    node.restart()  # for counters, gaps and memory of its own
    domain, end = f"{secrets.randbelow(0xEFFF) + 0x1000:04x}", fresh_pid()
    flood = [f"<6>vitald-test: {ordinary(number)}" for number in range(lines)]
    places = [lines // 100 * number + secrets.randbelow(lines // 100) for number in range(100)]
    for number, place in enumerate(places):
        flood[place] = f"<3>{xid(number, pci=f'{domain}:{number:02x}:00')}"
    before, memory = node.status()["kernelLog"], node.memory_kib("VmHWM")

    first = mark(kmsg, f"vitald-test: flood {domain} begins")
    for line in flood:
        kmsg(line)
    last = mark(kmsg, xid(end, pci=fresh_pci()))
    strangers = last - first - 1 - lines  # records that others wrote meanwhile
    wait_for_pid(node, end)

    seen = [
        event
        for event in node.events("&kind=xid")
        if str(event["component"]).startswith(f"gpu/{domain}:")
    ]
    seqs = {
        event["fields"]["pid"]: int(str(event["identity"]).rpartition(":")[2]) for event in seen
    }
    assert len(seqs) == len(seen), "an Xid was judged twice"
    told = [gap for event in node.events("&code=vitald/records_lost") for gap in gaps_of(event)]
    gaps = [gap for gap in told if gap[1] > first]
    for number, place in enumerate(places):
        seq = first + 1 + place
        judged = number in seqs and seq <= seqs[number] <= seq + strangers
        lost = any(begin <= seq + strangers and seq <= finish for begin, finish in gaps)
        assert judged or lost, f"Xid {number}, record {seq}, is neither judged nor told as lost"
        assert strangers or not (judged and lost)

    after = node.status()["kernelLog"]
    read, missed = (after[key] - before[key] for key in ("recordsRead", "recordsLost"))
    assert read + missed >= last - first + 1
    assert missed == sum(finish - begin + 1 for begin, finish in gaps)
    assert node.metric("vitald_kernel_records_lost_total") == after["recordsLost"]
    assert not missed or node.findings("&code=vitald/records_lost")
    assert missed or not gaps
    assert len(about(node.findings(), f"{domain}:00:00")) == (0 in seqs)
    assert node.memory_kib("VmHWM") - memory < 16 * 1024
