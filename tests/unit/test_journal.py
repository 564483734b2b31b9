"""The journal's kernel records, read from real journal files that systemd-journal-remote makes."""

from __future__ import annotations

import builtins
import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from tests.journals import MIDDLE, NEW, OLD, SECOND, STARTED, Fields, entry, missed, needed, write
from vitald.collectors.kernel_log.journal import Journal, JournalRecord, JournalUnavailable, escape
from vitald.collectors.kernel_log.record import KernelRecord, unescape

Build = Callable[..., Journal]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """A folder of journal files, each of its own entries."""
    needed()

    def made(*entries: bytes, file: str = "system.journal") -> Journal:
        write(tmp_path / "journal", *entries, file=file)
        return Journal(tmp_path / "journal")

    return made


def read(
    journal: Journal, boot: str = NEW, after_usec: int | None = None, most: int = 1_000_000
) -> list[JournalRecord]:
    return list(journal.read_records(boot, after_usec, most))


def usecs(
    journal: Journal, boot: str = NEW, after_usec: int | None = None, most: int = 1_000_000
) -> list[int]:
    return [record.usec for record in read(journal, boot, after_usec, most)]


def as_kmsg(facility: int, level: int, usec: int, message: bytes) -> KernelRecord:
    """What /dev/kmsg gives for a text: msg_add_ext_text in the kernel's printk.c."""
    text = b"".join(
        bytes((byte,)) if 0x20 <= byte < 0x7F and byte != 0x5C else b"\\x%02x" % byte
        for byte in message
    )
    return KernelRecord.parse(b"%d,7,%d,-;%s\n" % (facility << 3 | level, usec, text))


def test_a_record_has_all_that_was_stored(build: Build) -> None:
    journal = build(
        entry(5_140_900, "NVRM: Xid (PCI:0000:9b:00): 79, x", read_at=6_000_000, PRIORITY=4)
    )
    (record,) = read(journal)
    assert (record.boot_id, record.usec, record.facility, record.level) == (NEW, 5_140_900, 0, 4)
    assert record.text == b"NVRM: Xid (PCI:0000:9b:00): 79, x"
    assert record.time == STARTED[NEW] + 6.0
    assert f"b={NEW.replace('-', '')}" in record.cursor


def test_boots_are_listed_oldest_first_and_kept_apart(build: Build) -> None:
    journal = build(
        entry(1, "old", boot=OLD),
        entry(2, "middle", boot=MIDDLE, _TRANSPORT="syslog"),
        entry(3, "new 1"),
        entry(4, "new 2"),
    )
    assert journal.list_boots() == [OLD, MIDDLE, NEW]
    assert [record.text for record in read(journal, OLD)] == [b"old"]
    assert [(record.boot_id, record.text) for record in read(journal)] == [
        (NEW, b"new 1"),
        (NEW, b"new 2"),
    ]
    assert read(journal, MIDDLE) == []  # not a kernel record
    assert read(journal, "0" * 8 + "-0000-4000-8000-" + "0" * 12) == []


def test_a_boot_is_dated_by_its_end(build: Build) -> None:
    """Its beginning may have been stamped before the clock was set."""
    journal = build(entry(1, boot=OLD), entry(2, __REALTIME_TIMESTAMP="1000000"), entry(3 * SECOND))
    assert journal.list_boots() == [OLD, NEW]


def test_journal_order_and_a_limit(build: Build) -> None:
    journal = build(*(entry(usec, f"{usec}") for usec in (10, 20, 20, 30)))
    assert [record.text for record in read(journal)] == [b"10", b"20", b"20", b"30"]
    assert usecs(journal, most=2) == [10, 20]
    assert usecs(journal, most=0) == []


def test_from_a_stamp_on(build: Build) -> None:
    stamps = [second * SECOND for second in range(0, 1000, 10)]
    journal = build(*(entry(usec) for usec in stamps))
    for after in (0, 1, 500 * SECOND, 500 * SECOND + 1, 990 * SECOND):
        assert usecs(journal, after_usec=after) == [usec for usec in stamps if usec >= after], after
    assert usecs(journal, after_usec=991 * SECOND) == []


def test_a_stamp_is_sought_in_its_own_boot(build: Build) -> None:
    journal = build(
        *(entry(hour * 3600 * SECOND, boot=boot) for boot in STARTED for hour in range(20))
    )
    for boot in STARTED:
        assert usecs(journal, boot, 18 * 3600 * SECOND) == [18 * 3600 * SECOND, 19 * 3600 * SECOND]


@pytest.mark.parametrize("files", [1, 3])
def test_most_of_a_long_boot_is_not_read_to_reach_its_end(build: Build, files: int) -> None:
    """What lies far before the stamp is not even looked at: a broken record there would be
    counted.
    """
    entries = [
        entry(second * SECOND, PRIORITY="x" if second < 1800 else 6) for second in range(3000)
    ]
    for index in range(files):
        part = slice(index * 3000 // files, (index + 1) * 3000 // files)
        journal = build(
            *entries[part], file=f"system@{1:032x}-{index + 1:016x}-{index + 1:016x}.journal"
        )
    assert usecs(journal, after_usec=2990 * SECOND) == [
        second * SECOND for second in range(2990, 3000)
    ]
    assert journal.skipped == 0
    assert usecs(journal) == [second * SECOND for second in range(1800, 3000)]
    assert journal.skipped == 1800


def test_records_flushed_late_at_boot_are_found_by_their_own_stamp(build: Build) -> None:
    """journald started at 90 s and read then what the kernel had logged since 1 s."""
    early = [entry(second * SECOND, read_at=90 * SECOND + second) for second in range(1, 80)]
    journal = build(*early, entry(100 * SECOND))
    assert usecs(journal, after_usec=70 * SECOND) == [
        second * SECOND for second in (*range(70, 80), 100)
    ]
    assert usecs(journal, after_usec=95 * SECOND) == [100 * SECOND]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("start", "ahead", "step"),
    [
        (100 * SECOND, 50 * SECOND, 20_000),
        (30 * 86400 * SECOND, 30 * 86400 * SECOND // 2500, SECOND // 2),
    ],
    ids=["just booted", "400 ppm in a month"],
)
def test_the_kernel_clock_may_part_from_journalds(
    build: Build, start: int, ahead: int, step: int, sign: int
) -> None:
    stamps = [start + index * step for index in range(4000)]
    journal = build(*(entry(usec, read_at=usec - sign * ahead) for usec in stamps))
    for first in (1500, 3990):
        assert usecs(journal, after_usec=stamps[first]) == stamps[first:]


MESSAGES = [
    b"plain",
    b"GPU has fallen off the bus.",
    b"two\nlines\r\n",
    b"tab\tand bell\x07 and delete\x7f",
    b"back\\slash \\x41 \\\\",
    "naïve 名前 \N{GRINNING FACE}".encode(),
    b"not UTF-8 \xff\xfe\x80",
    bytes(range(1, 256)),
    b" leading and trailing ",
    b"MESSAGE=inner=",
    b"x" * 1000,
]


def test_the_same_record_is_the_same_bytes_as_in_the_ring(build: Build) -> None:
    found = read(
        build(*(entry(42 + at, message, PRIORITY=3) for at, message in enumerate(MESSAGES)))
    )
    ring = [as_kmsg(0, 3, 42 + at, message) for at, message in enumerate(MESSAGES)]
    assert [(one.text, one.usec, one.facility, one.level) for one in found] == [
        (one.text, one.usec, one.facility, one.level) for one in ring
    ]
    assert [unescape(one.text) for one in found] == [
        message.decode("utf-8", "replace") for message in MESSAGES
    ]
    assert [escape(message) for message in MESSAGES] == [one.text for one in ring]


WRITTEN: dict[bytes, Fields] = {
    b"NVRM: Xid (PCI:0000:9b:00): 79": {
        "SYSLOG_IDENTIFIER": "NVRM",
        "MESSAGE": b"Xid (PCI:0000:9b:00): 79",
    },
    b"systemd[1]: Started": {
        "SYSLOG_IDENTIFIER": "systemd",
        "SYSLOG_PID": "1",
        "MESSAGE": b"Started",
    },
    # journald leaves the name escaped; should it ever stop to:
    b"na\\xc3\\xafve: a\\x5cb": {"SYSLOG_IDENTIFIER": "na\\xc3\\xafve", "MESSAGE": b"a\\b"},
    b"na\\xc3\\xafve: x": {"SYSLOG_IDENTIFIER": b"na\xc3\xafve", "MESSAGE": b"x"},
    b"[7]: x": {"SYSLOG_IDENTIFIER": "", "SYSLOG_PID": "7", "MESSAGE": b"x"},
    b"x[]: y": {"SYSLOG_IDENTIFIER": "x", "SYSLOG_PID": "", "MESSAGE": b"y"},
    b"name:": {"SYSLOG_IDENTIFIER": "name", "MESSAGE": b""},
    b"no name": {"SYSLOG_IDENTIFIER": None, "MESSAGE": b"no name"},
}


def test_what_a_process_wrote_gets_its_name_back(build: Build) -> None:
    journal = build(
        *(
            entry(at, SYSLOG_FACILITY=1, **{"SYSLOG_PID": None, **fields})
            for at, fields in enumerate(WRITTEN.values())
        )
    )
    assert [(one.facility, one.text) for one in read(journal)] == [(1, text) for text in WRITTEN]


def test_only_the_kernel_has_facility_0(build: Build) -> None:
    wanted = {
        ("0", "kernel"): 0,
        (None, "kernel"): 0,
        (None, "NVRM"): 1,
        (None, None): 1,
        ("1", "kernel"): 1,
        ("3", "systemd"): 3,
        ("0", None): 0,
    }
    journal = build(
        *(
            entry(at, SYSLOG_FACILITY=facility, SYSLOG_IDENTIFIER=name)
            for at, (facility, name) in enumerate(wanted)
        )
    )
    assert [one.facility for one in read(journal)] == [*wanted.values()]


def test_other_transports_are_not_the_kernels(build: Build) -> None:
    """Facility and name are chosen by the sender: logger -t kernel -p kern.err."""
    journal = build(
        *(
            entry(index, _TRANSPORT=transport)
            for index, transport in enumerate(["syslog", "journal", "stdout", "audit", None])
        ),
        entry(9),
    )
    assert usecs(journal) == [9]


def test_what_is_missing_is_filled_in(build: Build) -> None:
    journal = build(
        entry(1, "no stamp of its own", read_at=77, _SOURCE_MONOTONIC_TIMESTAMP=None),
        entry(80, "no level", PRIORITY=None),
    )
    assert [(record.usec, record.level, record.text) for record in read(journal)] == [
        (77, 6, b"no stamp of its own"),
        (80, 6, b"no level"),
    ]


ABSURD: list[Fields] = [
    {"PRIORITY": "8"},
    {"PRIORITY": ""},
    {"PRIORITY": b"\xff"},
    {"SYSLOG_FACILITY": "-1"},
    {"SYSLOG_FACILITY": "128"},
    {"SYSLOG_FACILITY": "9" * 5000},
    {"_SOURCE_MONOTONIC_TIMESTAMP": "18446744073709551615"},
    {"_SOURCE_MONOTONIC_TIMESTAMP": "1.5"},
    {"_SOURCE_MONOTONIC_TIMESTAMP": b"\x00"},
    {"MESSAGE": None},
]


def test_an_absurd_record_is_counted_and_passed_over(build: Build) -> None:
    journal = build(
        entry(1),
        entry(2, _SOURCE_REALTIME_TIMESTAMP="9" * 30, PRIORITY=5),
        *(entry(10 + at, **fields) for at, fields in enumerate(ABSURD)),
        entry(40),
    )
    assert usecs(journal) == [1, 2, 40]
    assert journal.skipped == len(ABSURD)
    assert usecs(journal, most=1) == [1]
    assert journal.skipped == 0  # it is the latest call's


def test_a_field_that_is_there_twice_is_absurd(build: Build) -> None:
    twice = entry(2)[:-1] + b"MESSAGE=another\n\n"
    journal = build(entry(1), twice, entry(3))
    assert usecs(journal) == [1, 3]
    assert journal.skipped == 1


def test_what_journald_missed_is_counted_with_the_record_behind_the_gap(build: Build) -> None:
    journal = build(
        entry(10 * SECOND),
        missed(3, 15 * SECOND),
        entry(20 * SECOND),
        missed(40, 25 * SECOND),
        entry(30 * SECOND),
        missed(500, 31 * SECOND, _TRANSPORT="journal"),
        missed(600, 32 * SECOND, boot=OLD),
        entry(40 * SECOND),
    )
    assert usecs(journal) == [second * SECOND for second in (10, 20, 30, 40)]
    assert (journal.missed, journal.skipped) == (43, 0)
    assert usecs(journal, after_usec=30 * SECOND) == [30 * SECOND, 40 * SECOND]
    assert journal.missed == 40
    assert usecs(journal, most=1) == [10 * SECOND]
    assert journal.missed == 0


def test_a_count_that_cannot_be_read_is_one_at_least(build: Build) -> None:
    journal = build(
        missed(5, 1, MESSAGE="?"),
        missed(5, 2, MESSAGE=None),
        missed(5, 3)[:-1] + b"MESSAGE=x\n\n",
        entry(4),
    )
    assert usecs(journal) == [4]
    assert journal.missed == 3


def test_a_rotated_journal_is_read_as_one(build: Build) -> None:
    """A boot over several files, a file with several boots; the names are those of journald."""
    archived = "system@{:032x}-{:016x}-{:016x}.journal"
    build(
        *(entry(second * SECOND, boot=OLD) for second in range(5)),
        *(entry(second * SECOND) for second in range(300)),
        file=archived.format(1, 1, 1),
    )
    build(*(entry(second * SECOND) for second in range(300, 600)), file=archived.format(1, 306, 2))
    journal = build(*(entry(second * SECOND) for second in range(600, 900)))
    assert journal.list_boots() == [OLD, NEW]
    assert usecs(journal) == [second * SECOND for second in range(900)]
    for after in (100, 299, 300, 450, 599, 899):
        assert usecs(journal, after_usec=after * SECOND) == [
            second * SECOND for second in range(after, 900)
        ], after
    assert usecs(journal, OLD) == [second * SECOND for second in range(5)]


def test_thousands_of_records_in_pages(build: Build) -> None:
    journal = build(
        *(entry(index * 1000, f"record {index}, some text behind it") for index in range(5000))
    )
    found: list[int] = []
    while page := usecs(journal, after_usec=found[-1] + 1 if found else None, most=700):
        assert len(page) <= 700
        found += page
    assert found == [index * 1000 for index in range(5000)]


def test_what_is_written_meanwhile_does_not_hold_the_files_open(build: Build) -> None:
    journal = build(entry(1))

    def held() -> list[str]:
        return [
            link
            for fd in Path("/proc/self/fd").iterdir()
            if fd.is_symlink() and ".journal" in (link := str(fd.readlink()))
        ]

    records = journal.read_records(NEW, None, 10)
    next(records)
    assert held()
    records.close()
    assert not held()
    journal.list_boots()
    journal.check_readable()
    assert not held()


def test_no_kernel_record_is_said(build: Build) -> None:
    journal = build(entry(1, _TRANSPORT="syslog"))
    with pytest.raises(JournalUnavailable, match=r"no kernel record .* ReadKMsg="):
        journal.check_readable()


@pytest.mark.usefixtures("build")
def test_an_empty_folder_is_said(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.list_boots() == []
    assert read(journal) == []
    with pytest.raises(
        JournalUnavailable, match=f"no journal in {re.escape(str(tmp_path))}: .*Storage="
    ):
        journal.check_readable()


@pytest.mark.usefixtures("build")
def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "absent")
    for call in (journal.check_readable, journal.list_boots, lambda: read(journal)):
        with pytest.raises(JournalUnavailable, match="absent: No such file"):
            call()


@pytest.fixture
def nobody() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    import_module("systemd.journal")  # while that can be read: it may lie in root's home
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("shut", ["file", "folder", "machine's folder"])
def test_no_permission_is_said(
    build: Build, tmp_path: Path, request: pytest.FixtureRequest, shut: str
) -> None:
    journal = build(entry(1))
    (tmp_path / "journal" / ("1" * 32)).mkdir()
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    assert journal.folder is not None
    file = journal.folder / "system.journal"
    if shut == "machine's folder":
        file = file.rename(journal.folder / ("1" * 32) / file.name)
    closed = {"file": file, "folder": journal.folder}.get(shut, file.parent)
    closed.chmod(0)
    request.getfixturevalue("nobody")
    with pytest.raises(JournalUnavailable, match=r"[Pp]ermission .*\(.*group systemd-journal\)"):
        journal.check_readable()


def test_without_systemd_python_the_text_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == "systemd":
            raise ModuleNotFoundError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(JournalUnavailable, match=r"python3-systemd.*systemd-python"):
        Journal().check_readable()


def test_the_systems_own_journal_says_why_where_there_is_none() -> None:
    """What this machine has is not known; it must be one or the other."""
    require(importlib.util.find_spec("systemd"), "systemd-python (pip install systemd-python)")
    journal = Journal()
    try:
        journal.check_readable()
    except JournalUnavailable as reason:
        assert str(reason)
    else:
        assert any(
            True for boot in journal.list_boots() for _ in journal.read_records(boot, None, 1)
        )


def test_a_damaged_entry_is_counted_and_passed_over(build: Build) -> None:
    journal = build(*(entry(index, f"record {index}") for index in range(10)))
    damage(journal, b"MESSAGE=record 7", b"MESSAG\xff=record 7")
    assert usecs(journal) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert journal.skipped == 1
    assert journal.list_boots() == [NEW]


def test_only_damage_in_a_row_is_too_much(build: Build) -> None:
    journal = build(
        *(entry(index, f"record {index}", PRIORITY=3 + index % 2) for index in range(300))
    )
    damage(journal, b"PRIORITY=3", b"PRIORIT\xff=3")  # one object, shared by half of the entries
    assert usecs(journal) == list(range(1, 300, 2))
    assert journal.skipped == 150


def test_a_journal_of_damaged_entries_is_given_up(build: Build) -> None:
    journal = build(*(entry(index, f"record {index}") for index in range(150)))
    damage(journal, b"PRIORITY=6", b"PRIORIT\xff=6")
    for call in (journal.check_readable, journal.list_boots, lambda: read(journal)):
        with pytest.raises(JournalUnavailable, match="damaged"):
            call()


def damage(journal: Journal, old: bytes, new: bytes) -> None:
    assert journal.folder is not None
    file = journal.folder / "system.journal"
    whole = file.read_bytes()
    assert whole.count(old) == 1
    file.write_bytes(whole.replace(old, new))


def test_a_damaged_file_never_raises_anything_else(build: Build) -> None:
    journal = build(*(entry(index, f"record {index}") for index in range(50)))
    assert journal.folder is not None
    file = journal.folder / "system.journal"
    whole = file.read_bytes()
    used = whole.rindex(b"record 49") + 200
    for place in range(0, used, used // 60):
        file.write_bytes(whole[:place] + b"\xa5" * 8 + whole[place + 8 :])
        try:
            for boot in journal.list_boots():
                assert len(read(journal, boot, 5)) <= 50
            journal.check_readable()
        except JournalUnavailable as reason:
            assert str(reason)
