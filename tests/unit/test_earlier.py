"""What is read at a start of the time before: over real journal files, with a ring made to
order.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
import threading
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests import journals
from tests.journals import MIDDLE, NEW, OLD, STARTED, missed
from tests.unit.builders import catalogue, interpreter
from tests.unit.test_pstore import efi, put
from tests.waiting import WAIT_S
from vitald.collectors.kernel_log import backfill, journal_backfill, kmsg
from vitald.collectors.kernel_log.backfill import CRASH_LOGS, Backfill
from vitald.collectors.kernel_log.interpret import NAME, Interpreter
from vitald.collectors.kernel_log.journal import Journal, JournalRecord, JournalUnavailable
from vitald.collectors.kernel_log.kmsg import RingState, read_ring_state
from vitald.collectors.kernel_log.pstore import read_crash_logs
from vitald.collectors.kernel_log.record import KernelRecord, LogPosition, escape
from vitald.judge.engine import Judge
from vitald.model.event import BOOT, Event, Trust
from vitald.model.source import Batch, Position
from vitald.worker_thread import WorkerThread

GAP, UNWATCHED = "vitald/records_lost", "vitald/not_watched"
BOOTED = STARTED[NEW]  # when this boot began, by a clock that stands still meanwhile
NEVER = LogPosition(-1)


def xid(pid: int, extra: str = "") -> str:
    return (
        f"NVRM: Xid (PCI:0000:65:00): 79, pid={pid}, name=python3, GPU has fallen off the"
        f" bus.{extra}"
    )


def record(
    seq: int, usec: int | None = None, text: str | bytes | None = None, facility: int = 0
) -> KernelRecord:
    """By default a fault whose pid is its number; ten records a second."""
    raw = xid(seq) if text is None else text
    return KernelRecord(
        facility,
        4,
        seq,
        100_000 * seq if usec is None else usec,
        escape(raw.encode() if isinstance(raw, str) else raw),
    )


def faults(*seqs: int) -> list[KernelRecord]:
    return [record(seq) for seq in range(*seqs)]


def place(of: KernelRecord, boot: str = NEW) -> LogPosition:
    return LogPosition(of.seq, of.usec, zlib.crc32(of.text), STARTED[boot] + of.usec / 1e6)


def kept(records: Iterable[KernelRecord], boot: str = NEW) -> list[bytes]:
    """As journald stores them: one after the other, and of what a process wrote the name apart."""
    entries, read_at = [], 0
    for one in records:
        read_at = max(read_at + 1, one.usec + 50)
        entries.append(
            journals.stored(one.facility << 3 | one.level, one.usec, one.text, read_at, boot=boot)
        )
    return entries


def raw(one: KernelRecord) -> bytes:
    return b"%d,%d,%d,-;%s\n" % (one.facility << 3 | one.level, one.seq, one.usec, one.text)


class Machine:
    """A node with journal, ring and crash logs, and what its daemon has stored: events and a
    position.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal: Journal | None = Journal(folder / "journal")
        self.pstore = folder / "pstore"
        (folder / "journal").mkdir()
        self.ring: list[KernelRecord] = []
        self.boot = NEW
        self.position: Position | None = None
        self.crashes: Position | None = None  # which crash logs have been read
        self.events: list[Event] = []
        self.batches: list[Batch] = []
        self.interpreter: Interpreter = interpreter()
        self.files = 0

    def keep(self, *entries: bytes) -> None:
        """In the journal, in a file of its own."""
        self.files += 1
        journals.write(
            self.folder / "journal",
            *entries,
            file=f"system@{self.files:032x}-{1:016x}-{self.files:016x}.journal",
        )

    def overruns(self, truth: list[KernelRecord]) -> None:
        """These were logged; the journal has them all, the ring those from 60 on; 10 was read."""
        self.at(place(truth[10]))
        self.ring = truth[60:]
        self.keep(*kept(truth))

    def at(self, where: LogPosition, boot: str = NEW) -> None:
        """The daemon had read so far when it ended."""
        self.position = Position(NAME, boot, str(where))

    def reached(self) -> LogPosition:
        assert self.position is not None
        assert self.position.boot_id == self.boot
        return LogPosition.parse(self.position.cursor)

    def read_ring_state(self, path: str, where: LogPosition) -> RingState | None:
        """At this ring instead of the real one: a pipe of packets gives one record a read, as
        /dev/kmsg does.
        """
        ours, theirs = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
        try:
            fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 256 * 4096)  # a page each
            for one in self.ring:
                os.write(theirs, raw(one))
            return read_ring_state(f"/proc/self/fd/{ours}", where)
        finally:
            os.close(ours)
            os.close(theirs)

    def start(self, *, most: int = 1_000_000, orderly: bool = False) -> bool:
        """One start of the daemon, which is killed after `most` batches. Whether it got through."""
        return asyncio.run(self._start(most, orderly=orderly))

    async def _start(self, most: int, *, orderly: bool) -> bool:
        lane = WorkerThread("reader")
        reader = Backfill(
            "/dev/kmsg", self.interpreter, self.boot, lane, self.journal, (self.pstore,)
        )
        try:
            if not await self._take(
                reader.read_former_boots(self.position, self.crashes, orderly=orderly), most
            ):
                return False
            return await self._take(reader.read_this_boot(self.position), most - len(self.batches))
        finally:
            lane.close()
            reader.close()

    async def _take(self, batches: AsyncIterator[Batch], most: int) -> bool:
        async for batch in batches:
            if most <= 0:
                return False
            most -= 1
            self.batches.append(batch)
            self.store(batch)
        return True

    def store(self, batch: Batch) -> None:
        """As the pipeline does: events and position together, and no event that is stored
        already.
        """
        known = {event.identity for event in self.events}
        fresh = [event for event in batch.events if event.identity not in known]
        assert batch.again or len(fresh) == len(batch.events), (
            "a batch that may repeat events does not say so"
        )
        self.events += fresh
        if batch.position is not None and batch.position.source == CRASH_LOGS:
            self.crashes = batch.position
        else:
            self.position = batch.position or self.position

    def read_ring(self) -> None:
        """What the source does next: the ring from the position on, gaps counted by number."""
        last = (
            LogPosition.parse(self.position.cursor).seq
            if self.position is not None and self.position.boot_id == self.boot
            else None
        )
        for one in self.ring:
            if last is not None and one.seq <= last:
                continue
            if last is not None and one.seq > last + 1:
                self.events.append(
                    replace(
                        self.events[0],
                        identity=f"gap {one.seq}",
                        code=GAP,
                        fields={"count": one.seq - last - 1},
                    )
                )
            last = one.seq
            sighting = self.interpreter.parse_record(one.text)
            if sighting is not None:
                identity, at = f"kmsg:{self.boot}:{one.seq}", BOOTED + one.usec / 1e6
                event = self.interpreter.make_event(
                    sighting,
                    one.text,
                    one.facility,
                    identity=identity,
                    time=at,
                    boot_id=self.boot,
                    usec=one.usec,
                )
                self.events.append(event)
            self.at(place(one), self.boot)

    @property
    def pids(self) -> list[int]:
        """Of the faults, in the order in which they were handed in."""
        faults = (event for event in self.events if event.kind == "xid")
        return [cast("int", event.fields["pid"]) for event in faults]

    def told(self, code: str = GAP) -> list[Event]:
        return [event for event in self.events if event.code == code]

    @property
    def lost(self) -> int:
        return sum(cast("int", event.fields["count"]) for event in self.told())


@contextmanager
def a_machine(folder: Path) -> Iterator[Machine]:
    journals.needed()
    with pytest.MonkeyPatch.context() as patch:
        made = Machine(folder)
        patch.setattr(backfill, "read_ring_state", made.read_ring_state)
        for module in (backfill, journal_backfill, kmsg):
            patch.setattr(module, "estimate_wall_time", lambda usec: BOOTED + usec / 1e6)
        yield made


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with a_machine(tmp_path) as made:
        yield made


@pytest.fixture
def overrun(machine: Machine) -> Machine:
    """Read up to 10; the ring begins with 60 and holds up to 69."""
    machine.at(place(record(10)))
    machine.ring = faults(60, 70)
    return machine


# This boot: what the ring has lost.


def test_the_ring_goes_on_where_it_was_read(machine: Machine) -> None:
    machine.keep(*kept(faults(20)))
    for oldest, last in ((0, 10), (10, 10), (11, 10), (0, 19)):
        machine.ring = faults(oldest, 20)
        machine.at(place(record(last)))
        assert machine.start()
        assert machine.batches == [], (oldest, last)


def test_the_journal_has_all_that_the_ring_lost(overrun: Machine) -> None:
    overrun.keep(*kept(faults(70)))
    assert overrun.start()
    assert overrun.pids == [*range(11, 60)]
    assert overrun.told() == []
    assert overrun.reached() == place(record(59))
    assert {event.trust for event in overrun.events} == {Trust.KERNEL}
    first = overrun.events[0]
    assert (first.time, first.boot_id, first.fields["usec"], first.fields["approximate"]) == (
        BOOTED + 1.1,
        NEW,
        1_100_000,
        True,
    )
    assert first.raw == xid(11)


def test_what_the_journal_lacks_is_counted(overrun: Machine) -> None:
    overrun.keep(*kept(one for one in faults(70) if one.seq not in (*range(20, 30), 45)))
    assert overrun.start()
    assert overrun.pids == [seq for seq in range(11, 60) if seq not in (*range(20, 30), 45)]
    (gap,) = overrun.told()
    assert {key: gap.fields[key] for key in ("count", "recovered", "first_seq", "last_seq")} == {
        "count": 11,
        "recovered": 38,
        "first_seq": 11,
        "last_seq": 59,
    }
    assert overrun.interpreter.counters.lost == 11
    assert overrun.reached().seq == 59


@pytest.mark.parametrize(
    ("lacking", "after"),
    [(range(50, 60), 49), (range(11, 20), 10), (range(30, 40), 29)],
    ids=["its end", "its beginning", "its middle"],
)
def test_the_time_of_a_gap_spans_what_is_missing(
    overrun: Machine, lacking: range, after: int
) -> None:
    """Whoever looks elsewhere for what was lost must look at the right time."""
    overrun.keep(*kept(one for one in faults(70) if one.seq not in lacking))
    assert overrun.start()
    (gap,) = overrun.told()
    assert gap.fields["count"] == len(lacking)
    began, ended = (cast("float", gap.fields[name]) for name in ("after", "before"))
    assert BOOTED + 1.0 <= began <= BOOTED + after / 10 + 1e-3
    assert ended >= BOOTED + (lacking[-1] + 1) / 10 - 1e-3


def test_the_place_was_rotated_away(overrun: Machine) -> None:
    overrun.keep(*kept(faults(40, 70)))
    assert overrun.start()
    assert overrun.pids == [*range(40, 60)]
    (gap,) = overrun.told()
    assert (gap.fields["count"], gap.fields["recovered"]) == (29, 20)


# Records of the same microsecond, which what they say tells apart, at both boundaries.
EQUAL = {**dict.fromkeys(range(7, 14), 1_000_000), **dict.fromkeys(range(57, 64), 6_000_000)}


@pytest.mark.parametrize(
    "truth",
    [
        [record(seq, EQUAL.get(seq)) for seq in range(70)],
        # Of two processors, whose clocks differ a little: not in the order of the numbers.
        [record(seq, 100_000 * seq + (300_000 if seq % 2 else 0)) for seq in range(70)],
        [record(seq, text=xid(5)) for seq in range(70)],
    ],
    ids=["equal stamps", "stamps of two processors", "identical texts"],
)
def test_records_are_found_again(
    overrun: Machine, truth: list[KernelRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_backfill, "_BATCH", 7)
    overrun.overruns(truth)
    assert overrun.start()
    assert [event.raw.encode() for event in overrun.events] == [one.text for one in truth[11:60]]
    assert overrun.told() == []


@pytest.mark.parametrize(
    ("twins", "batch"),
    [
        *(((20, 21, 22), 1000), ((20, 21), 10), ((9, 10), 1000), ((10, 11, 12), 10)),
        *(((59, 60), 1000), ((60, 61), 10)),
    ],
    ids=str,
)
def test_records_that_nothing_tells_apart(
    overrun: Machine, twins: tuple[int, ...], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same text in the same microsecond, also where a batch ends between them (11 to 20): none
    twice, none lost in silence.
    """
    monkeypatch.setattr(journal_backfill, "_BATCH", batch)
    truth = [
        record(seq, *((100_000 * twins[0], xid(twins[0])) if seq in twins else (None, None)))
        for seq in range(70)
    ]
    overrun.overruns(truth)
    assert overrun.start()
    overrun.read_ring()
    wanted = Counter(twins[0] if seq in twins else seq for seq in range(11, 70))
    seen = Counter(overrun.pids)
    assert not seen - wanted, "events of records that there were not"
    assert (wanted - seen).total() == overrun.lost


@pytest.mark.parametrize("lacking", [[60], [59, 60], [*range(55, 69)]], ids=str)
def test_the_journal_lacks_what_the_ring_begins_with(overrun: Machine, lacking: list[int]) -> None:
    """Then it must be known by something else where the ring begins: what it holds is not read out
    of the journal, too.
    """
    overrun.keep(*kept(one for one in faults(70) if one.seq not in lacking))
    assert overrun.start()
    overrun.read_ring()
    assert overrun.pids == [seq for seq in range(11, 70) if seq not in lacking or seq >= 60]
    assert overrun.lost == len([seq for seq in lacking if seq < 60])


@pytest.mark.parametrize("accept", [False, True])
def test_what_a_process_wrote(overrun: Machine, accept: bool) -> None:
    """In the journal its name is a field of its own, and the line is the same all the same: also at
    both boundaries.
    """
    overrun.interpreter = interpreter(userspace="confirmed" if accept else "ignore")
    overrun.overruns([record(seq, facility=1 if seq % 2 == 0 else 0) for seq in range(70)])
    assert overrun.start()
    assert overrun.told() == []
    assert [(event.raw, event.trust is Trust.KERNEL) for event in overrun.events] == [
        (xid(seq), seq % 2 == 1) for seq in range(11, 60)
    ]
    assert {event.trust for event in overrun.events} == {
        Trust.KERNEL,
        Trust.ACCEPTED if accept else Trust.UNTRUSTED,
    }


def test_a_line_with_blanks_around_its_name_where_the_ring_begins(overrun: Machine) -> None:
    """journald does not keep them, so the record is not known again by its text."""
    truth = faults(70)
    truth[60] = record(60, text="agent:   three blanks", facility=3)
    overrun.overruns(truth)
    assert overrun.start()
    overrun.read_ring()
    assert overrun.pids == [*range(11, 60), *range(61, 70)]
    assert overrun.told() == []


@pytest.mark.parametrize("orderly", [False, True])
def test_the_very_first_start(machine: Machine, orderly: bool) -> None:
    """What the journal has of this boot is read; what it lacks is not ours to miss."""
    machine.ring = faults(60, 70)
    machine.keep(*kept(faults(5, 70)), *kept(faults(5), OLD))
    assert machine.start(orderly=orderly)
    assert machine.pids == [*range(5, 60)]
    assert machine.reached().seq == 59
    machine.read_ring()
    assert machine.pids == [*range(5, 70)]
    assert machine.told() == machine.told(UNWATCHED) == []


def test_an_empty_ring_and_one_that_cannot_be_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source says so, not this."""
    machine.keep(*kept(faults(10)))
    for after in (None, NEVER, place(record(5))):
        machine.position = None if after is None else Position(NAME, NEW, str(after))
        assert machine.start()

    def refused(path: str, where: LogPosition) -> RingState:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(backfill, "read_ring_state", refused)
    assert machine.start()
    assert machine.batches == []


def test_a_position_from_before_stamps_were_kept(overrun: Machine) -> None:
    """It cannot be found in the journal; the gap is counted whole."""
    overrun.at(LogPosition(10))
    overrun.keep(*kept(faults(70)))
    assert overrun.start()
    assert (overrun.pids, overrun.lost) == ([], 49)


# The journal cannot be had.


class Broken(Journal):
    """Records come until `number` of them have, and none of the boot `of`."""

    def __init__(self, folder: Path | None, number: int = 0, of: str | None = None) -> None:
        super().__init__(folder)
        self.number = number
        self.of = of

    def fail(self) -> None:
        raise JournalUnavailable("the journal is damaged")

    def read_records(
        self, boot_id: str, after_usec: int | None, limit: int
    ) -> Iterator[JournalRecord]:
        whole = super().read_records(boot_id, after_usec, limit)
        if self.of not in (None, boot_id):
            yield from whole
            return
        yield from islice(whole, self.number)
        self.fail()


class Hanging(Broken):
    """As one on a disk that does not answer."""

    released = threading.Event()

    def fail(self) -> None:
        self.released.wait(WAIT_S)


@pytest.fixture
def hanging(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Until the end of the test."""
    monkeypatch.setattr(journal_backfill, "_TIMEOUT_S", 0.05)
    Hanging.released.clear()
    machine.journal = Hanging(machine.folder / "journal")
    yield
    Hanging.released.set()


@contextmanager
def nobody() -> Iterator[None]:
    """Without root's rights."""
    before = os.geteuid()
    import_module("systemd.journal")  # while that can be read: it may lie in root's home
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def spoil(machine: Machine, how: str, request: pytest.FixtureRequest, *entries: bytes) -> None:
    """The journal, which holds these entries, cannot be had."""
    if how not in ("empty", "absent"):
        machine.keep(*entries)
    if how == "off":
        machine.journal = None
    elif how == "absent":
        (machine.folder / "journal").rmdir()
    elif how == "damaged":
        machine.journal = Broken(machine.folder / "journal")
    elif how == "hanging":
        request.getfixturevalue("hanging")


@pytest.mark.parametrize(
    "how", ["off", "absent", "empty", "of other boots", "unreadable", "damaged", "hanging"]
)
def test_without_a_journal_all_is_counted(
    overrun: Machine, how: str, request: pytest.FixtureRequest
) -> None:
    boots = (OLD, MIDDLE) if how == "of other boots" else (NEW,)
    spoil(overrun, how, request, *(one for boot in boots for one in kept(faults(70), boot)))
    folder = overrun.folder / "journal"
    if how == "unreadable":
        folder.chmod(0o700)
        if os.geteuid() == 0:
            with nobody():
                assert overrun.start()
        else:
            folder.chmod(0)
            assert overrun.start()
    else:
        assert overrun.start()
    assert (overrun.pids, overrun.lost) == ([], 49)
    assert overrun.reached().seq == 59
    reason = {"unreadable": "systemd-journal", "damaged": "damaged", "hanging": "no answer"}
    assert reason.get(how, "lost") in overrun.told()[0].raw
    overrun.read_ring()
    assert (overrun.pids, overrun.lost) == ([*range(60, 70)], 49)


def test_a_journal_that_fails_on_the_way(overrun: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read of it counts, the rest is counted."""
    monkeypatch.setattr(journal_backfill, "_BATCH", 7)
    overrun.keep(*kept(faults(70)))
    overrun.journal = Broken(overrun.folder / "journal", 30)
    assert overrun.start()
    overrun.read_ring()
    assert overrun.pids == [*range(11, 11 + len(overrun.pids) - 10), *range(60, 70)]
    assert len(overrun.pids) + overrun.lost == 59


@pytest.mark.usefixtures("hanging")
def test_a_journal_that_hangs_does_not_hide_what_this_boots_ring_lost(overrun: Machine) -> None:
    """It hung while a former boot was read; what the ring lost since this boot is counted all the
    same.
    """
    overrun.at(place(record(10), OLD), OLD)
    overrun.keep(*kept(faults(70), OLD))
    assert overrun.start()
    overrun.read_ring()
    assert len(overrun.told(UNWATCHED)) == 1
    assert (overrun.pids, overrun.lost) == ([*range(60, 70)], 60)


# Another boot.


@pytest.fixture
def rebooted(machine: Machine) -> Machine:
    """Read up to 10 of the old boot, which went on to 29; the new one has 100 to 104, and its ring
    is whole.
    """
    machine.at(place(record(10), OLD), OLD)
    machine.ring = [record(seq, text=xid(100 + seq)) for seq in range(5)]
    return machine


def told_of_the_boot(machine: Machine) -> list[tuple[object, bool]]:
    """Of each event that says that a boot was not watched: how the daemon ended, and whether it
    opens a finding.
    """
    judge = Judge(catalogue())
    return [
        (event.fields["orderly"], bool(judge.apply_event(event)))
        for event in machine.told(UNWATCHED)
    ]


@pytest.mark.parametrize("orderly", [False, True])
def test_the_journal_knows_the_former_boot(rebooted: Machine, orderly: bool) -> None:
    rebooted.keep(*kept(faults(30), OLD), *kept(rebooted.ring))
    assert rebooted.start(orderly=orderly)
    assert rebooted.pids == [*range(11, 30)]
    assert {event.boot_id for event in rebooted.events} == {OLD}
    assert rebooted.events[0].time == pytest.approx(STARTED[OLD] + 1.1, abs=0.01)
    rebooted.read_ring()
    assert rebooted.pids == [*range(11, 30), *range(100, 105)]
    assert rebooted.told() == rebooted.told(UNWATCHED) == []


@pytest.mark.parametrize(
    ("how", "orderly"),
    [
        *(("off", False), ("off", True), ("absent", False), ("empty", False)),
        *(("damaged", False), ("hanging", False)),
    ],
)
def test_nobody_knows_the_former_boot(
    rebooted: Machine, orderly: bool, how: str, request: pytest.FixtureRequest
) -> None:
    """After an orderly stop little can have been missed, which is no finding."""
    spoil(rebooted, how, request, *kept(faults(30), OLD))
    assert rebooted.start(orderly=orderly)
    rebooted.read_ring()
    assert rebooted.pids == [*range(100, 105)]
    assert rebooted.told() == []
    assert told_of_the_boot(rebooted) == [(orderly, not orderly)]
    (event,) = rebooted.told(UNWATCHED)
    assert (event.boot_id, event.fields["former_boot"], event.fields["count"]) == (OLD, OLD, None)
    assert event.fields["after"] == event.time == pytest.approx(STARTED[OLD] + 1.0)
    assert event.fields["before"] == BOOTED
    reason = {
        "absent": "No such file",
        "empty": "no journal",
        "damaged": "damaged",
        "hanging": "no answer",
    }
    assert reason.get(how, "lost") in event.raw


def test_a_former_boot_that_nobody_knows_is_told_before_what_is_known_of_later_ones(
    rebooted: Machine,
) -> None:
    """Judging goes by the events' times: one dated too late would end by quiet what is seen again
    right behind it.
    """
    rebooted.keep(*kept([record(seq, text=xid(200 + seq)) for seq in range(20)], MIDDLE))
    assert rebooted.start()
    times = [event.time for event in rebooted.events]
    assert rebooted.events[0].code == UNWATCHED
    assert times == sorted(times)


@pytest.mark.parametrize(("known", "wanted"), [((0, 10), []), ((20, 30), [*range(20, 30)])])
def test_the_journal_knows_the_former_boot_in_part(
    rebooted: Machine, known: tuple[int, int], wanted: list[int]
) -> None:
    """Its end never got to the disk, or its beginning was rotated away: what there is is read, and
    the rest is said.
    """
    rebooted.keep(*kept(faults(*known), OLD))
    assert rebooted.start()
    assert rebooted.pids == wanted
    assert told_of_the_boot(rebooted) == [(False, True)]


@pytest.mark.parametrize(("batch", "killed"), [(1000, False), (7, True)])
def test_what_journald_missed_of_a_former_boot_is_said(
    rebooted: Machine, batch: int, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are no numbers in the journal, but journald counts what the ring lost before it could
    read. What was missed before the place is old news.
    """
    monkeypatch.setattr(journal_backfill, "_BATCH", batch)
    records = [record(seq, 3_000_000 * seq) for seq in range(30)]
    rebooted.at(place(records[10], OLD), OLD)
    truth = kept(records, OLD)
    rebooted.keep(
        *truth[:10],
        missed(500, 29_900_000, boot=OLD),
        *truth[10:15],
        missed(40, 43_500_000, boot=OLD),
        *truth[15:],
    )
    for most in range(1 if killed else 100, 100):
        if rebooted.start(most=most):
            break
    else:
        assert rebooted.start()
    assert rebooted.pids == [*range(11, 30)]
    assert [event.fields["count"] for event in [*rebooted.told(), *rebooted.told(UNWATCHED)]] == [
        40
    ]


def test_several_boots_in_between(rebooted: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in the order in which it happened, and this boot's, of which the ring has lost some,
    last.
    """
    monkeypatch.setattr(journal_backfill, "_BATCH", 7)
    middle = [record(seq, text=xid(200 + seq)) for seq in range(20)]
    new = [record(seq, text=xid(300 + seq)) for seq in range(20)]
    rebooted.ring = new[15:]
    rebooted.keep(*kept(faults(30), OLD), *kept(middle, MIDDLE))
    rebooted.keep(*kept(new))
    assert rebooted.start()
    found = [event for event in rebooted.events if event.kind == "xid"]
    assert [event.boot_id for event in found] == [OLD] * 19 + [MIDDLE] * 20 + [NEW] * 15
    assert [a < b for a, b in pairwise(event.time for event in found)] == [True] * 53
    assert [rebooted.events.index(event) for event in rebooted.told(BOOT)] == [
        19
    ]  # what a boot cures is cured before what comes after it
    assert rebooted.events[19].boot_id == MIDDLE
    rebooted.read_ring()
    assert rebooted.pids == [*range(11, 30), *range(200, 220), *range(300, 320)]
    assert rebooted.told() == rebooted.told(UNWATCHED) == []


@pytest.mark.parametrize("known", [True, False], ids=["place known", "place rotated away"])
def test_stopped_after_every_batch_of_several_boots(
    rebooted: Machine, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_backfill, "_BATCH", 4)
    middle = [record(seq, text=xid(200 + seq)) for seq in range(20)]
    new = [record(seq, text=xid(300 + seq)) for seq in range(20)]
    rebooted.ring = new[15:]
    rebooted.keep(*kept(faults(0 if known else 15, 30), OLD), *kept(middle, MIDDLE), *kept(new))
    for most in range(1, 40):
        if rebooted.start(most=most):
            break
    rebooted.read_ring()
    assert rebooted.pids == [*range(11 if known else 15, 30), *range(200, 220), *range(300, 320)]
    assert rebooted.told() == []
    assert len(rebooted.told(UNWATCHED)) == (not known)


def test_a_boot_in_between_that_cannot_be_read_is_said(rebooted: Machine) -> None:
    middle = [record(seq, text=xid(200 + seq)) for seq in range(20)]
    rebooted.keep(*kept(faults(30), OLD), *kept(middle, MIDDLE))
    rebooted.journal = Broken(rebooted.folder / "journal", of=MIDDLE)
    assert rebooted.start()
    assert rebooted.pids == [*range(11, 30)]
    assert rebooted.told() or told_of_the_boot(rebooted) == [(False, True)]


def test_a_boot_that_is_too_long_to_be_read_whole_is_said(
    rebooted: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_backfill, "_BATCH", 4)
    monkeypatch.setattr(journal_backfill, "_MAX_RECORDS", 16)
    truth = [record(seq, 3_000_000 * seq) for seq in range(60)]
    rebooted.at(place(truth[10], OLD), OLD)
    rebooted.keep(*kept(truth, OLD))
    assert rebooted.start()
    assert rebooted.pids == [*range(11, 27)]
    assert rebooted.told() or told_of_the_boot(rebooted) == [(False, True)]


def test_only_later_boots_are_known(rebooted: Machine) -> None:
    """The place's own was rotated away: all those after it are read, and what is missing is
    said.
    """
    between = {
        name: f"{digit * 8}-{digit * 4}-4{digit * 3}-8{digit * 3}-{digit * 12}"
        for name, digit in (("one", "1"), ("two", "2"))
    }
    for number, boot in enumerate(between.values()):
        records = [record(seq, text=xid(1000 * (number + 1) + seq)) for seq in range(3)]
        started = STARTED[OLD] + 1000 * (number + 1)
        rebooted.keep(
            *(journals.entry(one.usec, one.text, boot=boot, started=started) for one in records)
        )
    assert rebooted.start()
    assert rebooted.pids == [1000, 1001, 1002, 2000, 2001, 2002]
    assert told_of_the_boot(rebooted) == [(False, True)]


def test_only_boots_before_the_place_are_known(rebooted: Machine) -> None:
    """They were read long ago: a journal that stayed behind on the disk when a new one began in
    memory.
    """
    rebooted.at(place(record(10), MIDDLE), MIDDLE)
    rebooted.keep(*kept(faults(30), OLD))
    assert rebooted.start()
    assert rebooted.pids == []
    assert rebooted.told(BOOT) == []
    assert told_of_the_boot(rebooted) == [(False, True)]


def test_a_boot_is_caught_up_with_once(rebooted: Machine) -> None:
    """Killed before the new boot's position is stored, the next start finds the same and adds
    nothing.
    """
    rebooted.keep(*kept(faults(15, 30), OLD))
    crash(rebooted, (9.0, xid(77)), time=STARTED[OLD] + 9)
    for _ in range(3):
        assert rebooted.start()
    assert rebooted.pids == [*range(15, 30), 77]
    assert len(rebooted.told(UNWATCHED)) == 1
    rebooted.read_ring()
    assert rebooted.start()
    assert rebooted.pids == [*range(15, 30), 77, *range(100, 105)]


# A container that was booted on a host that was not.


def test_a_new_boot_id_on_the_same_ring(machine: Machine) -> None:
    machine.at(place(record(10), OLD), OLD)
    machine.ring = faults(5, 20)
    crash(machine, (9.0, xid(77)), time=STARTED[OLD] + 9)
    assert machine.start()
    assert machine.events == []
    assert machine.reached() == place(record(10), OLD)
    machine.read_ring()
    assert machine.pids == [*range(11, 20)]
    assert machine.told() == machine.told(UNWATCHED) == []


def test_a_new_boot_id_on_the_same_ring_which_went_on(machine: Machine) -> None:
    """The host has not booted since, so the numbers go on: what is missing is counted, not the
    boot.
    """
    machine.at(replace(place(record(10)), time=BOOTED + 100), OLD)
    machine.ring = faults(60, 70)
    assert machine.start()
    machine.read_ring()
    assert (machine.pids, machine.lost) == ([*range(60, 70)], 49)
    assert machine.told(UNWATCHED) == []


@pytest.mark.parametrize("seq", [10, 50_000])
def test_a_clock_that_was_wrong_at_the_boot(rebooted: Machine, seq: int) -> None:
    """Set to a time before the place by an empty battery, it makes the boot look like a
    container's; the ring's numbers do not.
    """
    where = record(seq, 3_600_000_000)
    rebooted.at(replace(place(where), time=BOOTED + 3600), OLD)
    rebooted.keep(*kept([where, record(seq + 1, 3_700_000_000)], OLD))
    assert rebooted.start()
    rebooted.read_ring()
    assert rebooted.pids == [seq + 1, *range(100, 105)]


# What a crash left.


def crash(
    machine: Machine,
    *lines: tuple[float, str],
    reason: str = "Panic",
    time: float = STARTED[OLD] + 13,
    part: int = 1,
) -> None:
    text = "".join(f"<4>[{stamp:12.6f}] {line}\n" for stamp, line in lines)
    put(machine.pstore, efi(part, time=int(time)), f"{reason}#1 Part1\n{text}".encode(), time)


PANIC = "Kernel panic - not syncing: Fatal exception"


def test_the_last_lines_of_a_crash(rebooted: Machine) -> None:
    """Those after the place are events of the former boot, once, and not again at the next
    start.
    """
    crash(rebooted, (0.9, xid(9)), (1.0, xid(10)), (12.0, xid(300)), (12.5, PANIC))
    rebooted.journal = None
    assert rebooted.start()
    assert [
        (event.code, event.boot_id, event.trust, event.time)
        for event in rebooted.events
        if event.code != UNWATCHED
    ] == [
        ("xid/79", OLD, Trust.KERNEL, STARTED[OLD] + 13),
        ("lockup/panic", OLD, Trust.KERNEL, STARTED[OLD] + 13),
    ]
    assert rebooted.start()
    rebooted.read_ring()
    rebooted.boot, before = MIDDLE, len(rebooted.events)
    rebooted.ring = [record(seq, 100_001 * seq) for seq in range(3)]
    assert rebooted.start()
    assert rebooted.pids == [300, *range(100, 105)]
    assert [event.code for event in rebooted.events[before:]] == [UNWATCHED]


def test_a_line_of_a_crash_log_without_a_stamp_is_passed_over(rebooted: Machine) -> None:
    crash(rebooted, (12.0, xid(300)))
    (path,) = rebooted.pstore.iterdir()
    text = path.read_bytes().replace(b"Part1\n", b"Part1\n<4>cut off\n")
    put(rebooted.pstore, path.name, text, path.stat().st_mtime)
    rebooted.journal = None
    assert rebooted.start()
    assert [event.code for event in rebooted.events if event.code != UNWATCHED] == ["xid/79"]


def test_a_crash_whose_first_lines_are_in_the_journal(rebooted: Machine) -> None:
    rebooted.keep(*kept(faults(30), OLD))
    crash(rebooted, *((seq / 10, xid(seq)) for seq in range(5, 35)), (4.0, PANIC))
    assert rebooted.start()
    assert rebooted.pids == [*range(11, 35)]
    assert [event.code for event in rebooted.events][-1] == "lockup/panic"


def test_a_planned_end_is_no_crash(rebooted: Machine) -> None:
    crashes = ("Panic", "Oops", "Emergency", "Unknown")
    for at, reason in enumerate((*crashes, "Shutdown", "Restart", "Halt", "Poweroff")):
        time = STARTED[OLD] + 13 + at
        crash(rebooted, (12.0, xid(300 + at)), reason=reason, time=time)
    assert rebooted.start()
    assert rebooted.pids == [300, 301, 302, 303]


def test_a_crash_before_the_place_is_old_news(rebooted: Machine) -> None:
    crash(rebooted, (500.0, xid(300)), time=STARTED[OLD] - 1000)
    assert rebooted.start()
    assert rebooted.pids == []


@pytest.mark.parametrize("pause", [5, 120], ids=["a virtual machine", "a server"])
def test_a_crash_of_a_boot_that_nobody_else_knows(rebooted: Machine, pause: int) -> None:
    """It came soon after the boot, before journald had put anything on the disk: its stamps are
    lower than the place's.
    """
    where = record(10, 5_000_000_000)
    rebooted.at(place(where, OLD), OLD)
    rebooted.keep(*kept([where], OLD))
    crash(rebooted, (40.0, xid(300)), (40.5, PANIC), time=STARTED[OLD] + 5000 + pause + 40)
    assert rebooted.start()
    assert [event.code for event in rebooted.events if event.kind != "vitald"] == [
        "xid/79",
        "lockup/panic",
    ]


# A crash log lies there for many boots, and ERST keeps no time: it is dated by the boot in which it
# is read.


def next_boot(machine: Machine, number: int) -> None:
    """Another boot: the ring has a fault of its own, and firmware without a clock dates its crash
    logs anew.
    """
    machine.read_ring()
    machine.boot = f"{number:08x}-0000-4000-8000-000000000000"
    machine.ring = [
        record(seq, 100_001 * seq, text=xid(1000 * number + seq)) for seq in range(5, 7)
    ]
    for file in machine.pstore.iterdir():
        os.utime(file, (BOOTED + 10_000 * number, BOOTED + 10_000 * number))


def erst(machine: Machine, name: str, *lines: tuple[float, str], reason: str = "Panic") -> None:
    text = "".join(f"<4>[{stamp:12.6f}] {line}\n" for stamp, line in lines)
    put(machine.pstore, f"dmesg-erst-{name}", f"{reason}#1 Part1\n{text}".encode(), BOOTED + 1)


@pytest.fixture
def old_news(rebooted: Machine) -> Machine:
    """A crash log of which two lines were read from the ring before the crash."""
    erst(rebooted, "7001", (0.9, xid(9)), (1.0, xid(10)), (12.0, xid(300)))
    rebooted.journal = None
    return rebooted


def of_crashes(machine: Machine) -> list[int]:
    return [pid for pid in machine.pids if pid < 1000 and pid not in range(100, 105)]


def test_a_crash_log_that_is_dated_by_the_boot_in_which_it_is_read(old_news: Machine) -> None:
    """The same lines are as old as ever, in this boot and in the next two: also those that were
    passed over as known.
    """
    assert old_news.start()
    assert of_crashes(old_news) == [300]
    for number in (1, 2, 3):
        next_boot(old_news, number)
        assert old_news.start()
        assert of_crashes(old_news) == [300]


def test_two_crashes_are_two(old_news: Machine) -> None:
    """The second comes in a later boot, and the first still lies beside it."""
    assert old_news.start()
    next_boot(old_news, 1)
    erst(old_news, "7002", (13.0, xid(301)), (13.5, PANIC))
    assert old_news.start()
    next_boot(old_news, 2)
    assert old_news.start()
    assert of_crashes(old_news) == [300, 301]


def test_two_crashes_that_are_read_at_once_are_two(rebooted: Machine) -> None:
    erst(rebooted, "7001", (12.0, xid(300)))
    erst(rebooted, "7002", (13.0, xid(300)))
    assert rebooted.start()
    assert rebooted.pids == [300, 300]


def test_a_crash_log_under_another_name_is_the_same(old_news: Machine) -> None:
    """Moved, or numbered anew: its lines have the kernel's stamps, so what is equal byte for byte
    is the same record.
    """
    assert old_news.start()
    next_boot(old_news, 1)
    (file,) = old_news.pstore.iterdir()
    file.rename(old_news.pstore / "dmesg-erst-9999")
    assert old_news.start()
    assert of_crashes(old_news) == [300]


def test_a_crash_log_that_was_out_of_sight_for_a_boot_is_remembered(old_news: Machine) -> None:
    assert old_news.start()
    (file,) = old_news.pstore.iterdir()
    kept_text, name = file.read_bytes(), file.name
    next_boot(old_news, 1)
    file.unlink()
    assert old_news.start()
    next_boot(old_news, 2)
    put(old_news.pstore, name, kept_text, BOOTED + 30_000)
    assert old_news.start()
    assert of_crashes(old_news) == [300]


def test_a_chunk_that_could_not_be_read_the_first_time_is_told_when_it_can(
    rebooted: Machine,
) -> None:
    """And no line of the others again, whatever place they have in the whole now."""
    older = "".join(f"<4>[{11 + number / 10:12.6f}] {xid(200 + number)}\n" for number in range(3))
    put(
        rebooted.pstore,
        efi(1),
        b"Panic#1 Part1\n<4>[   12.000000] " + xid(300).encode() + b"\n",
        BOOTED + 1,
    )
    rebooted.journal = None
    assert rebooted.start()
    next_boot(rebooted, 1)
    rebooted.at(
        place(record(10), OLD), OLD
    )  # so that nothing else keeps these lines from being told
    put(rebooted.pstore, efi(2), f"Panic#1 Part2\n{older}".encode(), BOOTED + 10_000)
    assert rebooted.start()
    assert of_crashes(rebooted) == [300, 200, 201, 202]


def test_killed_before_what_was_read_is_stored(old_news: Machine) -> None:
    """Events and what is known of the log are stored together, or neither is: the next start tells
    it.
    """
    for most in range(3):
        if old_news.start(most=most):
            break
        assert (of_crashes(old_news) == [300]) == (old_news.crashes is not None)
    else:
        assert old_news.start()
    assert of_crashes(old_news) == [300]
    next_boot(old_news, 1)
    assert old_news.start()
    assert of_crashes(old_news) == [300]


def test_a_line_in_two_dumps_of_one_crash_is_one(rebooted: Machine) -> None:
    """An oops is dumped, and the panic that it becomes is dumped with all that came before it."""
    lines = ((11.0, xid(200)), (11.0, xid(200)), (12.0, xid(300)))
    crash(rebooted, *lines, reason="Oops", time=STARTED[OLD] + 13)
    crash(rebooted, *lines, (13.0, xid(400)), (13.5, PANIC), time=STARTED[OLD] + 14)
    assert rebooted.start()
    assert rebooted.pids == [200, 200, 300, 400]
    assert rebooted.events[-1].code == "lockup/panic"


@pytest.mark.parametrize(
    "begun", [True, False], ids=["an older version's position", "the very first start"]
)
def test_what_lay_there_before_it_was_remembered_is_old(machine: Machine, begun: bool) -> None:
    """Nobody can tell when it was written; it was there while this boot was watched, so it is of no
    crash that ended it.
    """
    erst(machine, "7001", (0.9, xid(9)), (12.0, xid(300)))
    machine.ring = faults(2)
    machine.journal = None
    if begun:
        machine.at(place(record(0)))
    assert machine.start()
    next_boot(machine, 1)
    erst(machine, "7002", (13.0, xid(301)))
    assert machine.start()
    assert [pid for pid in machine.pids if pid >= 2] == [301]


def test_what_lay_there_when_only_a_container_was_booted_is_old(machine: Machine) -> None:
    """The host was not, so no crash came in between."""
    erst(machine, "7001", (0.9, xid(9)), (12.0, xid(300)))
    machine.at(place(record(1)), OLD)
    machine.ring = faults(5)
    machine.journal = None
    assert machine.start()
    next_boot(machine, 1)
    assert machine.start()
    assert 300 not in machine.pids


def test_an_older_versions_position_in_another_boot(old_news: Machine) -> None:
    """What it had told is stored under the same identity."""
    assert old_news.start()
    old_news.crashes = None
    next_boot(old_news, 1)
    assert old_news.start()
    assert old_news.pids.count(300) == 1


def test_the_newest_crash_logs_are_remembered(
    rebooted: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older ones are known to be old by their time."""
    monkeypatch.setattr(backfill, "_MAX_CHUNKS", 2)
    for number in range(4):
        at = STARTED[OLD] + 20.0 + number
        crash(rebooted, (12.0 + number, xid(300 + number)), time=at)
    assert rebooted.start()
    assert rebooted.pids == [300, 301, 302, 303]
    newest = [one.chunks[0] for one in read_crash_logs([rebooted.pstore])[0]][:1:-1]
    assert rebooted.crashes is not None
    assert rebooted.crashes.cursor.split() == newest


def test_what_is_remembered_of_crash_logs_is_bounded(
    rebooted: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that lie there now come first, and of them the newest."""
    monkeypatch.setattr(backfill, "_MAX_CHUNKS", 3)
    known: list[list[str]] = []
    for number in range(1, 5):
        erst(rebooted, f"{7000 + number}", (10.0 + number, xid(number)))
        assert rebooted.start()
        assert rebooted.crashes is not None
        known.append(rebooted.crashes.cursor.split())
        next_boot(rebooted, number)
        (rebooted.pstore / f"dmesg-erst-{7000 + number}").unlink()
    first, second, third, fourth = (one[0] for one in known)
    assert known == [[first], [second, first], [third, second, first], [fourth, third, second]]


def test_a_second_line_of_a_record_is_doubted(rebooted: Machine) -> None:
    """A process's name may hold a newline, and the kernel writes the rest of it as a line with the
    same stamp.
    """
    crash(
        rebooted,
        (11.0, "a"),
        (
            11.0,
            (
                f"{xid(400)}[29120]: segfault at 0 ip 000055d0c0ffee12 sp 00007ffd3b1c9a40 error 6"
                " in y[55d0c0ffe000+1000]"
            ),
        ),
        (11.5, "b"),
        (11.5, f"<0>[   11.700000] {xid(401)}"),
        (11.5, xid(402)),
        (12.0, xid(300)),
    )
    assert rebooted.start()
    assert {
        event.fields["pid"]: event.is_hearsay for event in rebooted.events if event.kind == "xid"
    } == {400: True, 401: True, 402: True, 300: False}


def test_a_process_is_not_believed_after_a_crash_either(rebooted: Machine) -> None:
    put(
        rebooted.pstore,
        efi(1),
        f"Panic#1 Part1\n<12>[   12.000000] {xid(300)}\n".encode(),
        STARTED[OLD] + 13,
    )
    assert rebooted.start()
    assert [event.trust for event in rebooted.events if event.kind == "xid"] == [Trust.UNTRUSTED]


# Whatever happens: each fault is judged once, or lies in a counted gap.


@st.composite
def histories(draw: st.DrawFn) -> dict[str, Any]:
    """Records, where the daemon was, and starts: what the ring holds at each, and after how many
    batches it is killed.
    """
    count = draw(st.integers(20, 70))
    steps = draw(
        st.lists(st.sampled_from([0, 0, 1, 50, 100_000, 3_000_000]), min_size=count, max_size=count)
    )
    begin = draw(st.integers(0, count - 10))
    ends = [*sorted(draw(st.lists(st.integers(begin + 1, count), min_size=1, max_size=4))), count]
    sizes = draw(st.lists(st.integers(1, 25), min_size=len(ends), max_size=len(ends)))
    kills = draw(st.lists(st.integers(0, 4), min_size=len(ends) - 1, max_size=len(ends) - 1))
    edges = [
        seq for end, size in zip(ends, sizes) for seq in range(end - size - 1, end - size + 2)
    ]  # where the ring begins
    return {
        "steps": steps,
        "begin": begin,
        "starts": [*zip(ends, sizes, [*kills, None])],
        "holes": draw(
            st.one_of(
                st.just(set()),
                st.sets(st.integers(0, count), max_size=30),
                st.sets(st.sampled_from(edges)),
            )
        ),
        "batch": draw(st.integers(1, 12)),
        "rotated": draw(st.one_of(st.just(0), st.integers(0, count))),
    }


@settings(
    max_examples=settings.default.max_examples // 2,
    report_multiple_bugs=False,
    phases=[Phase.generate],
)  # shrinking takes minutes
@given(histories())
def test_every_fault_is_an_event_once_or_in_a_counted_gap(history: dict[str, Any]) -> None:
    usec, truth = 0, []
    for seq, step in enumerate(history["steps"]):
        usec += step
        truth.append(record(seq, usec))
    stored = kept(truth)  # at once: journald stamps no record before the one that it read earlier
    folder = Path(tempfile.mkdtemp(prefix="vitald-earlier-"))
    try:
        with a_machine(folder) as machine, pytest.MonkeyPatch.context() as patch:
            patch.setattr(journal_backfill, "_BATCH", history["batch"])
            machine.at(place(truth[history["begin"]]))
            written, oldest = history["rotated"], 0
            for end, size, kill in history["starts"]:
                if new := [
                    stored[seq] for seq in range(written, end) if seq not in history["holes"]
                ]:
                    machine.keep(*new)
                written, oldest = max(written, end), max(oldest, end - size)
                machine.ring = truth[oldest:end]
                machine.batches = []
                if machine.start(most=1_000_000 if kill is None else kill):
                    machine.read_ring()
            seen = Counter(machine.pids)
            wanted = set(range(history["begin"] + 1, len(truth)))
            assert max(seen.values(), default=0) <= 1, "twice"
            assert set(seen) <= wanted, "read again"
            assert len(wanted - set(seen)) == machine.lost
    finally:
        shutil.rmtree(folder)


# The ring itself.


@contextmanager
def a_ring(patch: pytest.MonkeyPatch, reads: list[bytes | OSError]) -> Iterator[None]:
    """`os.read` gives these in turn, then that there is no more."""
    left = iter(reads)

    def read(fd: int, size: int) -> bytes:
        found = next(left, None)
        if found is None:
            raise BlockingIOError
        if isinstance(found, OSError):
            raise found
        return found

    with patch.context() as inner:
        inner.setattr(os, "read", read)
        yield


def test_looking_at_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    for where, has_position in (
        (record(10), True),
        (record(10, text="another"), False),
        (record(10, usec=7), False),
        (record(11, record(10).usec, record(10).text), False),
        (record(100), False),
    ):
        with a_ring(monkeypatch, [raw(one) for one in faults(5, 20)]):
            found = read_ring_state(os.devnull, place(where))
        assert found is not None
        assert (found.oldest, found.has_position) == (record(5), has_position), where


def test_looking_at_a_ring_that_is_overrun_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was the oldest is gone."""
    reads: list[bytes | OSError] = [
        raw(record(1)),
        raw(record(2)),
        BrokenPipeError(),
        b"torn",
        raw(record(7)),
    ]
    with a_ring(monkeypatch, [*reads, raw(record(20))]):
        found = read_ring_state(os.devnull, place(record(20)))
    assert found is not None
    assert (found.oldest, found.has_position) == (record(7), True)
    with a_ring(monkeypatch, []):
        assert read_ring_state(os.devnull, NEVER) is None
