"""What the ring lost while the daemon was down, out of the journal: every fault once, and what the
journal lacks is counted.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import sqlite3
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests import journals
from tests.conftest import require
from tests.harness import Json, Node
from tests.system.lines import Ring, about, fresh_pci, ordinary, pids, wait_for_pid, xid
from tests.system.machine import Machine
from tests.waiting import WAIT_S, until
from vitald.collectors.kernel_log.record import split_record
from vitald.ledger import table

pytestmark = pytest.mark.kmsg
Write = Callable[[str], object]
LINES, PART = 6000, 200  # at least, in parts that the ring holds for sure
FAULT_EVERY = 5


@dataclass(frozen=True, slots=True)
class Record:
    prio: int
    seq: int
    usec: int
    text: bytes


@dataclass
class Reader:
    """Reads the real ring along, strangers' records included, so that it knows what the journal
    would.
    """

    fd: int = -1
    seen: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self.fd, 0, os.SEEK_END)

    def read(self) -> None:
        """What came since. Fails where something was overwritten before."""
        while True:
            try:
                data = os.read(self.fd, 16384)
            except BlockingIOError:
                break
            except BrokenPipeError:
                pytest.fail("somebody else filled the ring meanwhile")
            found = split_record(data)
            assert found is not None
            self.seen.append(Record(int(found[1]), int(found[2]), int(found[3]), found[4]))
        assert not self.seen or self.seen[-1].seq - self.seen[0].seq == len(self.seen) - 1

    def close(self) -> None:
        os.close(self.fd)


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader()
    yield made
    made.close()


@dataclass
class Away:
    """A daemon that was down while the ring was overrun, and what there was to see meanwhile."""

    node: Node
    reader: Reader
    domain: str
    journal: Path
    boot: str
    place: int = -1  # the last record that the daemon had read
    last_pid: int = 0

    def keep(self, lacking: Callable[[Record], bool]) -> None:
        """In the journal, but for some."""
        started = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
        entries, read_at = [], 0
        for one in self.reader.seen:
            read_at = max(read_at + 1, one.usec + 50)
            if not lacking(one):
                entries.append(
                    journals.stored(
                        one.prio, one.usec, one.text, read_at, boot=self.boot, started=started
                    )
                )
        journals.write(self.journal, *entries)

    def faults(self) -> dict[int, Record]:
        """By pid, those after the place."""
        named = f"NVRM: Xid (PCI:{self.domain}:".encode()
        found = [
            one for one in self.reader.seen if one.text.startswith(named) and one.seq > self.place
        ]
        return {int(one.text.partition(b"pid=")[2].partition(b",")[0]): one for one in found}

    def stored(self) -> int:
        """How many events of ours are in the ledger by now."""
        with closing(
            sqlite3.connect(f"file:{self.node.state}/ledger.db?mode=ro", uri=True, timeout=WAIT_S)
        ) as db:
            found: int = db.execute(
                "SELECT count(*) FROM events WHERE component LIKE ?", (f"gpu/{self.domain}:%",)
            ).fetchone()[0]
            return found

    def has(self, wanted: int) -> bool:
        """Whether so many are; not to be known in the moment in which the daemon opens a ledger
        that it left when it was killed.
        """
        with suppress(sqlite3.OperationalError):
            return self.stored() >= wanted
        return False

    def gaps(self) -> list[dict[str, Any]]:
        """What was told as lost after the place."""
        told: list[dict[str, Any]] = [
            event["fields"] for event in self.node.events("&code=vitald/records_lost")
        ]
        return [fields for fields in told if fields["last_seq"] > self.place]

    def holds(self, lacking: Callable[[Record], bool], *, killed: bool) -> None:
        """Every fault once, but for those that neither journal nor ring had: and exactly so many
        records are told as lost.
        """
        wait_for_pid(self.node, self.last_pid)
        self.reader.read()
        seen = Counter(
            pids(
                [
                    event
                    for event in self.node.events("&kind=xid")
                    if str(event["component"]).startswith(f"gpu/{self.domain}:")
                ]
            )
        )
        assert max(seen.values()) == 1, "a fault was judged twice"
        gaps, faults = self.gaps(), self.faults()
        begin = (
            max((fields["last_seq"] for fields in gaps), default=self.place) + 1
        )  # of the ring, as far as it matters
        missing = [one for one in self.reader.seen if self.place < one.seq < begin and lacking(one)]
        lost = {pid for pid, one in faults.items() if one in missing}
        assert set(faults) - set(seen) == lost
        assert sum(fields["count"] for fields in gaps) == len(missing)
        if not killed:
            assert [fields["count"] + fields["recovered"] for fields in gaps] == [
                gap["last_seq"] - self.place for gap in gaps
            ]
        assert bool(self.node.findings("&code=vitald/records_lost")) == bool(missing)
        assert self.node.events("&code=vitald/not_watched") == []


@pytest.fixture
def away(make_node: Callable[..., Node], kmsg: Write, reader: Reader) -> Away:
    journals.needed()
    node = make_node(kernel_log="kmsg")
    journal = node.folder / "journal"
    node.configure('source = "kmsg"', f'source = "kmsg"\njournal = "{journal}"')
    domain = f"{secrets.randbelow(0xEFFF) + 0x1000:04x}"
    kmsg(f"<4>{xid(1, pci=f'{domain}:00:00')}")
    node.start()
    wait_for_pid(node, 1)
    node.stop()
    with closing(sqlite3.connect(node.state / "ledger.db")) as db:
        cursor, boot = db.execute(
            "SELECT cursor, boot_id FROM positions WHERE source = 'kernel_log'"
        ).fetchone()
    made = Away(node, reader, domain, journal, boot, place=int(cursor.split()[0]))
    number = 2
    while number < LINES or number % PART or Ring(oldest=True).records()[0][0] <= made.place + 1:
        fault = number % FAULT_EVERY == 0
        line = (
            xid(number, code=31, pci=f"{domain}:{number // FAULT_EVERY % 4 + 1:02x}:00")
            if fault
            else f"vitald-test[7]: {ordinary(number)}"
        )
        kmsg(f"<4>{line}")
        if number % PART == 0:
            reader.read()
        number += 1
    made.last_pid = number
    kmsg(f"<4>{xid(number, pci=f'{domain}:00:00')}")
    reader.read()
    assert reader.seen[0].seq <= made.place
    return made


def third(record: Record) -> bool:
    return record.seq % 3 == 0


def none(record: Record) -> bool:
    return False


@pytest.mark.parametrize("lacking", [none, third])
def test_the_ring_was_overrun_while_the_daemon_was_down(
    away: Away, lacking: Callable[[Record], bool]
) -> None:
    away.keep(lacking)
    away.node.start()
    away.holds(lacking, killed=False)
    findings = [
        one
        for one in away.node.findings()
        if str(one["component"]).startswith(f"gpu/{away.domain}:") and one["code"] == "xid/31"
    ]
    counted = sum(int(str(one["count"])) for one in findings)
    assert counted == away.stored() - 2  # the first and the last are of another device
    away.node.restart()
    away.holds(lacking, killed=False)
    assert away.stored() == counted + 2


@pytest.mark.parametrize("lacking", [none, third])
def test_killed_again_and_again_while_it_catches_up(
    away: Away, lacking: Callable[[Record], bool]
) -> None:
    """At moments that are drawn by how far it has come; and a few more of the clock's choosing."""
    away.keep(lacking)
    chance, whole = (
        random.Random(20),
        len([one for one in away.faults().values() if not lacking(one)]),
    )
    for wanted in sorted(chance.randrange(whole) for _ in range(5)):
        away.node.start(wait=False)
        until(lambda: away.has(wanted + 1), f"{wanted} events")
        away.node.kill()
    for _ in range(5):
        away.node.start(wait=False)
        time.sleep(chance.uniform(0.3, 1.0))  # any moment
        away.node.kill()
    away.node.start()
    away.holds(lacking, killed=True)


@pytest.mark.core
def test_without_a_journal_all_is_counted(away: Away) -> None:
    away.node.configure(f'journal = "{away.journal}"', 'journal = "off"')
    away.node.start()

    def lacking(record: Record) -> bool:
        return True

    away.holds(lacking, killed=False)


# Another boot. The ring is this machine's, so the boots are made by the boot id alone.


@pytest.fixture
def machine(make_node: Callable[..., Node]) -> Machine:
    require(os.geteuid() == 0 and os.access("/dev/kmsg", os.W_OK), "root and a writable /dev/kmsg")
    journals.needed()
    made = Machine(make_node(kernel_log="kmsg"))
    made.node.configure(
        'source = "kmsg"', f'source = "kmsg"\njournal = "{made.node.folder / "journal"}"'
    )
    return made


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_a_container_is_booted_on_a_host_that_is_not(
    machine: Machine, kmsg: Write, ending: int
) -> None:
    """A boot id of its own and the same ring: nothing is read twice, nothing is missing."""
    node, pci = machine.node, fresh_pci()
    node.start()
    kmsg(f"<4>{xid(1, pci=pci)}")
    wait_for_pid(node, 1)
    for number in (2, 3):
        machine.reboot(ending)
        kmsg(f"<4>{xid(number, pci=pci)}")
        until(lambda: len(about(node.events(), pci)) == number, "the next line")
    assert pids(about(node.events(), pci)) == [1, 2, 3]
    assert machine.boots() == 2
    assert node.events("&code=vitald/not_watched") == []


def former(machine: Machine, boot: str, records: list[str]) -> None:
    """The daemon had read the first of the records of a boot an hour ago; the journal has
    them all.
    """
    node, began = machine.node, time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) - 3600
    read = zlib.crc32(records[0].encode())
    with closing(sqlite3.connect(node.state / "ledger.db")) as db, db:
        db.execute("UPDATE positions SET boot_id = ?", (boot,))
        db.execute(
            "UPDATE positions SET cursor = ? WHERE source = 'kernel_log'",
            (f"500 1000000 {read} {began + 1:.3f}",),
        )
        table.register_function(db)
        db.execute("UPDATE positions SET sum = checksum(source, boot_id, cursor)")
    entries = [
        journals.entry((number + 1) * journals.SECOND, text, boot=boot, started=began, PRIORITY=4)
        for number, text in enumerate(records)
    ]
    journals.write(node.folder / "journal", *entries)


def told(node: Node, code: str) -> list[Json]:
    return [event["fields"] for event in node.events(f"&code={code}")]


def test_the_end_of_a_former_boot(machine: Machine) -> None:
    """A fault that nobody had read before the node was booted: told, and cured by the boot that
    came after it.
    """
    node, pci, boot = machine.node, fresh_pci(), str(uuid4())
    node.start()
    node.stop(signal.SIGKILL)
    former(machine, boot, ["usb 1-1: ordinary", xid(1, pci=pci), xid(2, pci=pci)])
    node.start()
    wait_for_pid(node, 2)
    assert [(event["bootId"], event["trust"]) for event in about(node.events(), pci)] == [
        (boot, "kernel")
    ] * 2
    until(lambda: about(node.findings("&state=cleared"), pci), "the finding to be closed")
    (finding,) = about(node.findings("&state=cleared"), pci)
    assert (finding["count"], "rebooted" in str(finding["clearedBy"])) == (2, True)
    assert about(node.findings(), pci) == []
    assert told(node, "vitald/not_watched") == []
    node.restart()
    assert pids(about(node.events(), pci)) == [1, 2]
    assert machine.boots() == 1


def test_a_crash_log_is_told_in_one_boot_only(machine: Machine) -> None:
    """Firmware without a clock dates it by the boot in which it is read, and keeps it for the next
    ones.
    """
    node, pci = machine.node, fresh_pci()
    node.configure("[paths]", f'[paths]\nsysfs = "{node.folder / "sys"}"')
    crash = node.folder / "sys/fs/pstore/dmesg-erst-7001"
    crash.parent.mkdir(parents=True)
    node.start()
    node.stop(signal.SIGKILL)
    for records in (["usb 1-1: one", "usb 1-1: two", "usb 1-1: three"], ["usb 1-1: one"]):
        former(machine, str(uuid4()), records)
        known, new = (
            f"<4>[{stamp:12.6f}] {xid(pid, pci=pci)}" for stamp, pid in ((2.5, 5), (12, 300))
        )
        crash.write_text(f"Panic#1 Part1\n{known}\n{new}\n")
        node.start()
        wait_for_pid(node, 300)
        until(lambda: told(node, "vitald/boot"), "the boot")
        node.stop(signal.SIGKILL)
        with closing(sqlite3.connect(node.state / "ledger.db")) as db:
            (cursor,) = db.execute(
                "SELECT cursor FROM positions WHERE source = 'crash_logs'"
            ).fetchone()
        assert len(cursor.split()) == 1
    node.start()
    assert pids(about(node.events(), pci)) == [300]


@pytest.mark.parametrize(("ending", "finding"), [(signal.SIGTERM, False), (signal.SIGKILL, True)])
def test_the_end_of_a_former_boot_that_nobody_kept(
    machine: Machine, ending: int, finding: bool
) -> None:
    """Said either way; a finding only where the daemon did not see the end coming."""
    node, boot = machine.node, str(uuid4())
    node.start()
    node.stop(ending)
    former(machine, boot, ["usb 1-1: ordinary"])
    node.configure(f'journal = "{node.folder / "journal"}"', 'journal = "off"')
    node.start()
    until(lambda: told(node, "vitald/not_watched"), "the event")
    assert [
        (fields["former_boot"], fields["orderly"]) for fields in told(node, "vitald/not_watched")
    ] == [(boot, not finding)]
    assert bool(node.findings("&code=vitald/not_watched")) == finding


def test_a_place_that_another_source_left(make_node: Callable[..., Node], kmsg: Write) -> None:
    """The kernel log was read from a file before."""
    node, pci = make_node(userspace="confirmed"), fresh_pci()
    node.start()
    node.write(xid(1, pci=pci))
    wait_for_pid(node, 1)
    node.stop()
    node.configure(f'source = "file"\npath = "{node.log}"', 'source = "kmsg"')
    kmsg(f"<4>{xid(2, pci=pci)}")
    node.start()
    until(lambda: about(node.events(), pci)[1:], "the line in the ring")
    assert node.status()["sources"][0]["state"] == "ok"
    assert not node.said("source_broke", "history_not_read")
