from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.builders import act, empty, gpu, only
from tests.unit.builders import event as build
from vitald.judge.device_history import DeviceHistory
from vitald.judge.engine import Judge
from vitald.judge.open_findings import MAX_RESOLVED
from vitald.ledger.disk import CommitCount
from vitald.ledger.errors import LedgerDamaged, LedgerError, LedgerNewer
from vitald.ledger.queries import (
    PastQuery,
    read_changes,
    read_events,
    read_findings,
    read_incidents,
)
from vitald.ledger.schema import VERSION, AuditRecord
from vitald.ledger.store import FILE, Ledger, LedgerEntry
from vitald.ledger.table import compute_checksum
from vitald.model.component import NODE, MarkKind
from vitald.model.event import CLEARED, Event
from vitald.model.finding import Changes, FindingState, ResolvedFault, Transition
from vitald.model.source import Position


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path)
    made.open()
    return made


def event(code: str, **changes: object) -> Event:
    return replace(build(code), **changes)  # type: ignore[arg-type]


def findings_of(*seen: Event) -> tuple[Judge, list[Transition]]:
    findings = empty()
    return findings, [change for one in seen for change in findings.apply_event(one)]


def events(count: int, *, at: float = 1000.0, code: str = "xid/79") -> tuple[Event, ...]:
    return tuple(
        event(code, time=at + number, identity=f"{code}:{at}:{number}") for number in range(count)
    )


def test_an_event_is_stored_once(ledger: Ledger) -> None:
    """The identity decides: the same record handed in twice is one row, and keeps its place among
    the others.
    """
    ledger.commit([LedgerEntry(events=events(3))])
    ledger.commit([LedgerEntry(events=events(3))])
    assert [one.id for one in read_events(ledger.path, PastQuery())] == [1, 2, 3]


def test_an_event_comes_back_as_it_was(ledger: Ledger) -> None:
    stored = event(
        "xid/149",
        time=1.5,
        identity="one",
        fields={"status_bits": [1, 4], "fatal": True, "unit": "NETIR", "none": None},
    )
    ledger.commit([LedgerEntry(events=(stored,))])
    assert read_events(ledger.path, PastQuery())[0].event == stored


def test_what_is_remembered_survives_reopening(ledger: Ledger) -> None:
    """Open findings, the next id and positions; a cleared finding is no longer remembered
    as open.
    """
    findings, transitions = findings_of(
        event("xid/79", identity="a"), event("xid/31", identity="b", component=gpu(1))
    )
    closed = only(
        findings.apply_event(act(CLEARED, findings.open_findings[0], 2000.0, "root", "reason"))
    )
    position = Position("kernel_log", "boot", "17")
    ledger.commit(
        [
            LedgerEntry(transitions=tuple(transitions), position=position),
            LedgerEntry(transitions=(closed,)),
        ]
    )
    ledger.close()
    ledger.open()
    remembered = ledger.read_state()
    assert remembered.memory.findings == findings.open_findings
    assert [found.code for found in remembered.memory.findings] == ["xid/31"]
    assert remembered.memory.next_finding == 3
    assert remembered.positions == {"kernel_log": position}
    assert [found.id for found in read_findings(ledger.path, 10)] == [1]


def test_a_failed_commit_leaves_nothing_behind(ledger: Ledger) -> None:
    """All or nothing: an entry that cannot be stored takes its whole transaction with it."""
    broken = event("xid/79", identity="broken", fields={"set": {1, 2}})
    with pytest.raises(LedgerError, match="not JSON serializable"):
        ledger.commit([LedgerEntry(events=events(2)), LedgerEntry(events=(broken,))])
    assert read_events(ledger.path, PastQuery()) == []
    ledger.commit([LedgerEntry(events=events(2))])
    assert len(read_events(ledger.path, PastQuery())) == 2


def test_a_repeated_commit_adds_no_transition_and_no_audit(ledger: Ledger) -> None:
    """A commit whose answer came too late is tried again: it must change nothing the second
    time.
    """
    _, transitions = findings_of(event("xid/79"))
    audit = AuditRecord(time=1.0, uid=0, pid=1, verb="clear", target="1", reason="x")
    for _ in range(2):
        ledger.commit([LedgerEntry(transitions=tuple(transitions), audit=audit)])
    with sqlite3.connect(ledger.path) as db:
        assert db.execute("SELECT count(*) FROM transitions").fetchone() == (1,)
        assert db.execute("SELECT count(*) FROM audit").fetchone() == (1,)


def test_a_repeat_that_changes_nothing_is_no_transition(ledger: Ledger) -> None:
    """A storm costs a row for each event, not one for each of its repetitions in the findings'
    history.
    """
    findings, transitions = findings_of(
        *[event("xid/79", identity=str(number)) for number in range(50)]
    )
    ledger.commit([LedgerEntry(transitions=tuple(transitions))])
    with sqlite3.connect(ledger.path) as db:
        assert db.execute("SELECT count(*) FROM transitions").fetchone() == (1,)
        assert db.execute("SELECT count FROM findings").fetchone() == (50,)
    assert findings.open_findings[0].count == 50


def test_a_commit_waits_for_the_disk_and_a_position_alone_does_not(ledger: Ledger) -> None:
    """`PRAGMA synchronous`: 2 is FULL, 1 is NORMAL. Where there is a compiler, the writes
    themselves are looked at (test_durability).
    """
    for _ in range(2):
        ledger.store_position(Position("kernel_log", "boot", "1"))
        assert ledger._get_connection().execute("PRAGMA synchronous").fetchone()[0] == 1
        ledger.commit([LedgerEntry(events=events(1))])
        assert ledger._get_connection().execute("PRAGMA synchronous").fetchone()[0] == 2


def test_queries_narrow_and_page(ledger: Ledger) -> None:
    ledger.commit(
        [LedgerEntry(events=events(5)), LedgerEntry(events=events(5, at=2000.0, code="xid/31"))]
    )
    assert [one.id for one in read_events(ledger.path, PastQuery(after=2, limit=3))] == [3, 4, 5]
    assert [one.id for one in read_events(ledger.path, PastQuery(newest=True, limit=2))] == [9, 10]
    assert [one.id for one in read_events(ledger.path, PastQuery(limit=2))] == [1, 2]
    page = read_events(ledger.path, PastQuery(before=9, newest=True, limit=3))
    assert ([one.id for one in page], page.last) == ([6, 7, 8], 6)
    assert {one.event.code for one in read_events(ledger.path, PastQuery(code="xid/31"))} == {
        "xid/31"
    }
    assert len(read_events(ledger.path, PastQuery(since=2002.0))) == 3
    assert read_events(ledger.path, PastQuery(component="gpu/0000:99:00.0")) == []


def test_open_incidents_are_read_and_recent_ones(ledger: Ledger) -> None:
    """An open one whenever it was; of those that ended the last ones."""
    judge, _ = findings_of(event("xid/79"))
    (first,) = judge.take_changes().incidents
    ended = [replace(first, id=10 + last, last=float(last), closed_at=9.0) for last in (5, 6, 7)]
    ledger.commit([LedgerEntry(changes=Changes(incidents=(replace(first, last=1.0), *ended)))])
    assert [one.id for one in read_incidents(ledger.path, 2.0, 3)] == [first.id, 17, 16]
    assert [one.id for one in read_incidents(ledger.path, 7.0, 3)] == [first.id, 17]


def test_a_record_that_continues_another_is_shown_with_it(ledger: Ledger) -> None:
    head = event("sxid/20034", identity="head")
    more = [
        event("sxid/20034", identity=f"more{number}", follows="head", raw=f"record {number}")
        for number in range(2)
    ]
    ledger.commit([LedgerEntry(events=(head, *more))])
    (shown,) = read_events(ledger.path, PastQuery())
    assert shown.event == head
    assert shown.followed_by == ("record 0", "record 1")


def test_trim_by_age_keeps_what_is_young_and_every_open_finding(ledger: Ledger) -> None:
    _, transitions = findings_of(event("xid/79", time=1.0))
    ledger.commit(
        [
            LedgerEntry(events=events(10, at=0.0), transitions=tuple(transitions)),
            LedgerEntry(events=events(10, at=5000.0, code="xid/31")),
        ]
    )
    assert ledger.delete_old(now=6000.0, keep_s=2000.0, max_bytes=1 << 40) == 10
    assert ledger.delete_old(now=6000.0, keep_s=2000.0, max_bytes=1 << 40) == 0
    assert {one.event.code for one in read_events(ledger.path, PastQuery())} == {"xid/31"}
    assert [found.code for found in ledger.read_state().memory.findings] == ["xid/79"]


def test_trim_by_size_drops_the_oldest_and_gives_the_space_back(ledger: Ledger) -> None:
    most = 2 << 20
    ledger.commit([LedgerEntry(events=events(20_000))])
    assert ledger.path.stat().st_size + ledger.path.with_name(FILE + "-wal").stat().st_size > most
    while ledger.delete_old(now=30_000.0, keep_s=1e9, max_bytes=most):
        pass
    ledger.close()  # the write-ahead log goes into the file
    assert ledger.path.stat().st_size <= most
    left = read_events(ledger.path, PastQuery(newest=True, limit=1000))
    assert left[-1].event.identity == "xid/79:1000.0:19999"


def test_trim_never_drops_the_last_event(ledger: Ledger) -> None:
    """Numbers go on from it."""
    ledger.commit([LedgerEntry(events=events(2))])
    while ledger.delete_old(now=2000.0, keep_s=1e9, max_bytes=0):
        pass
    assert [one.id for one in read_events(ledger.path, PastQuery())] == [2]


def test_commits_are_counted_in_a_file_that_may_be_damaged(tmp_path: Path) -> None:
    count = CommitCount(tmp_path / "commits")
    assert count.read() == 0
    count.open()
    count.write(12)
    assert count.read() == 12
    count.close()
    damaged = (tmp_path / "commits").read_bytes().replace(b"12 ", b"92 ")
    (tmp_path / "commits").write_bytes(damaged)
    assert count.read() == 0


def test_the_checksum_of_a_row_is_the_same_for_what_comes_back_equal() -> None:
    """SQLite gives back 0.0 for -0.0, and a number in the type of its column."""
    assert compute_checksum(-0.0, 1) == compute_checksum(0.0, 1.0)
    assert compute_checksum(0.0, 1) != compute_checksum(0.0, 2)


def test_a_newer_ledger_is_refused_and_left_as_it_was(ledger: Ledger) -> None:
    ledger.close()
    with sqlite3.connect(ledger.path) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = ledger.path.read_bytes()
    with pytest.raises(LedgerNewer, match="newer vitald"):
        ledger.open()
    assert ledger.path.read_bytes() == before


@pytest.mark.parametrize(
    "garbage", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 8000]
)
def test_a_damaged_ledger_is_told_apart_and_set_aside(tmp_path: Path, garbage: bytes) -> None:
    ledger = Ledger(tmp_path)
    ledger.path.write_bytes(garbage)
    with pytest.raises(LedgerDamaged, match=str(ledger.path)):
        ledger.open()
    assert ledger.rescue() is None
    aside = ledger.set_aside(0.0)
    assert aside.read_bytes() == garbage
    ledger.open()
    assert ledger.read_state().memory.findings == ()


def test_an_index_that_lacks_a_row_is_damage(ledger: Ledger) -> None:
    """SQLite would not find the open incident by it, and the seal is of findings only."""
    judge, transitions = findings_of(event("xid/79"))
    changes = judge.take_changes()
    ledger.commit([LedgerEntry(transitions=tuple(transitions), changes=changes)])
    assert ledger.read_state().memory.incidents
    ledger.close()
    for former, now in (("IS NULL", "= 'never'"), ("= 'never'", "IS NULL")):
        with closing(sqlite3.connect(ledger.path, isolation_level=None)) as db:
            db.execute("PRAGMA writable_schema = ON")
            db.execute(
                "UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE name = 'incidents_open'",
                (former, now),
            )
        if now == "= 'never'":
            with closing(sqlite3.connect(ledger.path, isolation_level=None)) as db:
                db.execute("REINDEX incidents_open")
    ledger.open()
    with pytest.raises(LedgerDamaged, match="incidents_open"):
        ledger.read_state()


def test_an_obstacle_is_not_damage(tmp_path: Path) -> None:
    """A file where the folder should be: somebody must mend it, and nothing is moved."""
    (tmp_path / "state").write_text("in the way")
    with pytest.raises(LedgerError) as raised:
        Ledger(tmp_path / "state").open()
    assert not isinstance(raised.value, LedgerDamaged)


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    """Whoever may write the state folder must not make the daemon write elsewhere."""
    target = tmp_path / "elsewhere"
    (tmp_path / FILE).symlink_to(target)
    with pytest.raises(LedgerError):
        Ledger(tmp_path).open()
    assert not target.exists()


# --- what was dealt with


def test_what_was_dealt_with_is_remembered_in_its_order(ledger: Ledger) -> None:
    first = ResolvedFault(gpu(), "xid/79", 10.0)
    second = ResolvedFault(gpu(), "xid/31", 20.0)
    for settled in ((first, second), (ResolvedFault(gpu(), "xid/79", 30.0),)):
        ledger.commit([LedgerEntry(changes=Changes(resolved=settled))])
    assert ledger.read_state().memory.resolved == (second, (gpu(), "xid/79", 30.0))


def test_what_was_dealt_with_is_bounded_as_the_judge_bounds_it(ledger: Ledger) -> None:
    ledger.commit(
        [
            LedgerEntry(
                changes=Changes(
                    resolved=tuple(
                        ResolvedFault(gpu(), f"xid/{number}", float(number))
                        for number in range(MAX_RESOLVED)
                    )
                )
            )
        ]
    )
    ledger.commit(
        [
            LedgerEntry(
                changes=Changes(
                    resolved=(
                        ResolvedFault(gpu(), "xid/5", 1e6),
                        ResolvedFault(gpu(), "xid/new", 1e6),
                    )
                )
            )
        ]
    )
    kept = [code for _, code, _ in ledger.read_state().memory.resolved]
    assert (len(kept), kept[0], kept[-2:]) == (MAX_RESOLVED, "xid/1", ["xid/5", "xid/new"])


def test_what_was_dealt_with_is_told_by_the_new_clock_once(ledger: Ledger) -> None:
    """Also where the commit is tried again because its answer came too late."""
    ledger.commit([LedgerEntry(changes=Changes(resolved=(ResolvedFault(gpu(), "xid/79", 100.0),)))])
    for _ in range(2):
        ledger.commit(
            [
                LedgerEntry(
                    events=(event("vitald/clock_stepped", component=NODE),),
                    changes=Changes(shifted=50.0),
                )
            ]
        )
    assert ledger.read_state().memory.resolved == ((gpu(), "xid/79", 150.0),)


def test_transitions_name_their_event(ledger: Ledger) -> None:
    _, transitions = findings_of(event("xid/79", identity="the line"))
    assert isinstance(transitions[0], Transition)
    ledger.commit([LedgerEntry(transitions=tuple(transitions))])
    with sqlite3.connect(ledger.path) as db:
        assert db.execute("SELECT event, state, action FROM transitions").fetchone() == (
            "the line",
            "open",
            "reboot_node",
        )


def test_a_change_is_read_with_what_the_finding_was_before(ledger: Ledger) -> None:
    opened = event("xid/94", time=1.0, fields={"rst": "No"})
    judge, transitions = findings_of(opened)
    transitions += judge.apply_event(act(CLEARED, transitions[0].finding, 2.0))
    ledger.commit([LedgerEntry(transitions=tuple(transitions))])
    first, second = read_changes(ledger.path, PastQuery(limit=10)).changes
    assert (first.former, second.former) == (
        None,
        (FindingState.OPEN, transitions[0].finding.action),
    )


def test_a_mark_that_had_to_go_is_found_under_its_new_name_and_time(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It made room, and after that its device told its name and the clock was stepped, all before
    anything was stored.
    """
    monkeypatch.setattr("vitald.judge.device_history._MAX_MARKS", 1)
    history = DeviceHistory()
    history.add_mark("gpu/a", 10.0, MarkKind.FAULT, "xid/79", "incident 1")
    ledger.commit([LedgerEntry(changes=history.take_changes())])
    history.add_mark("gpu/a", 20.0, MarkKind.FAULT, "xid/79", "incident 2")
    history.rename_device("gpu/a", "GPU-1")
    history.shift_times(5.0)
    ledger.commit([LedgerEntry(changes=history.take_changes())])
    assert ledger.read_state().memory.marks == history.marks
