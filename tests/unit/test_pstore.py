"""What a crash left in pstore, as the kernel writes it and as systemd-pstore keeps it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from vitald.collectors.kernel_log import pstore
from vitald.collectors.kernel_log.lines import Line, strip_prefix
from vitald.collectors.kernel_log.pstore import CrashLog, read_crash_logs

PANIC = b"<0>[  517.300000] Kernel panic - not syncing: Fatal exception\n"
CRASHED = 1_666_922_861


def rendered(*numbers: int) -> bytes:
    return b"".join(b"<6>[%5d.000000] line %d\n" % (number, number) for number in numbers)


def put(folder: Path, name: str, text: bytes, mtime: float = CRASHED) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(text)
    os.utime(path, (mtime, mtime))
    return path


def efi(part: int, count: int = 1, time: int = CRASHED) -> str:
    """generic_id() of the kernel's efi-pstore.c."""
    return f"dmesg-efi_pstore-{(time * 100 + part) * 1000 + count}"


def only(folders: list[Path]) -> CrashLog:
    (log,), said = read_crash_logs(folders)
    assert said == []
    return log


def messages(log: CrashLog) -> list[bytes]:
    return [line.message for line in map(strip_prefix, log.lines) if line is not None]


def test_the_parts_of_a_crash_are_joined_oldest_first(tmp_path: Path) -> None:
    put(tmp_path, efi(1), b"Panic#1 Part1\n" + rendered(21, 22) + PANIC)
    put(tmp_path, efi(2), b"Panic#1 Part2\n" + rendered(11, 12))
    for part in range(3, 12):  # the tenth sorts before the second by name, not by number
        put(tmp_path, efi(part), b"Panic#1 Part%d\n" % part + rendered(12 - part))
    log = only([tmp_path])
    assert (log.reason, log.time) == ("Panic", CRASHED)
    assert messages(log) == [b"line %d" % number for number in (*range(1, 10), 11, 12, 21, 22)] + [
        b"Kernel panic - not syncing: Fatal exception"
    ]
    assert log.lines[0] == b"<6>[    1.000000] line 1"


def test_each_line_is_one_that_strip_understands(tmp_path: Path) -> None:
    lines = {
        b"<6>[  517.250000] text": Line(b"text", 0),
        b"<0>[  517.250000][ T4021] text": Line(b"text", 0),
        b"<4>[17179779.444000][    C3] text": Line(b"text", 0),
        b"<12>[  517.250000] NVRM: Xid": Line(b"NVRM: Xid", 1),
        b"<6>no stamp": Line(b"no stamp", 0),
        b"<3>[    1.000000] a\\b\tc \xc3\xa9\xff\x00": Line(
            b"a\\x5cb\\x09c \\xc3\\xa9\\xff\\x00", 0
        ),
    }
    for line, wanted in lines.items():
        put(tmp_path, "dmesg-ramoops-0", b"Oops#1 Part1\n" + line + b"\n")
        assert [strip_prefix(found) for found in only([tmp_path]).lines] == [wanted]


def test_each_file_of_ramoops_is_a_crash_of_its_own(tmp_path: Path) -> None:
    put(tmp_path, "dmesg-ramoops-0", b"Panic#1 Part1\n" + rendered(1), CRASHED + 500)
    put(tmp_path, "dmesg-ramoops-1", b"Panic#1 Part1\n" + rendered(2), CRASHED)
    logs, said = read_crash_logs([tmp_path])
    assert [(log.time, messages(log)) for log in logs] == [
        (CRASHED, [b"line 2"]),
        (CRASHED + 500, [b"line 1"]),
    ]
    assert said == []


def test_dumps_of_the_same_second_are_kept_apart(tmp_path: Path) -> None:
    for part, line in ((1, 2), (2, 1)):
        put(tmp_path, efi(part, 1), b"Oops#1 Part%d\n" % part + rendered(line))
        put(tmp_path, efi(part, 2), b"Oops#2 Part%d\n" % part + rendered(line + 10))
        put(tmp_path, efi(part, 3), b"Panic#3 Part%d\n" % part + rendered(line + 20))
    logs, said = read_crash_logs([tmp_path])
    assert sorted((log.reason, messages(log)) for log in logs) == [
        ("Oops", [b"line 1", b"line 2"]),
        ("Oops", [b"line 11", b"line 12"]),
        ("Panic", [b"line 21", b"line 22"]),
    ]
    assert said == []


def test_the_same_reason_and_number_of_two_boots_are_two(tmp_path: Path) -> None:
    for index, number in enumerate((8, 9, 10, 7163287000000000001, 7163287000000000002)):
        put(
            tmp_path,
            f"dmesg-erst-{number}",
            b"Panic#1 Part%d\n" % (1, 2, 3, 1, 2)[index] + rendered(index),
        )
    logs, said = read_crash_logs([tmp_path])
    assert sorted(messages(log) for log in logs) == [
        [b"line 2", b"line 1", b"line 0"],
        [b"line 4", b"line 3"],
    ]
    assert said == []


def test_a_crash_whose_clock_ticked_between_its_parts_is_one(tmp_path: Path) -> None:
    put(tmp_path, efi(1), b"Panic#1 Part1\n" + rendered(3))
    put(tmp_path, efi(2, time=CRASHED + 1), b"Panic#1 Part2\n" + rendered(2))
    put(tmp_path, efi(3, time=CRASHED + 1), b"Panic#1 Part3\n" + rendered(1))
    assert messages(only([tmp_path])) == [b"line 1", b"line 2", b"line 3"]


def archive(folder: Path, source: Path, *, joined: bool = True) -> None:
    """As systemd-pstore of v254 and later: TIME/COUNT, old names, times kept, dmesg.txt."""
    for path in sorted(source.iterdir(), reverse=True):
        inner = folder / path.name.rpartition("-")[2][:-5] / path.name[-3:]
        put(inner, path.name, path.read_bytes(), path.stat().st_mtime)
        if joined:
            with (inner / "dmesg.txt").open("ab") as file:
                file.write(path.read_bytes())
        path.unlink()


def test_a_crash_is_the_same_in_the_archive(tmp_path: Path) -> None:
    fresh, kept = tmp_path / "pstore", tmp_path / "archive"
    for part in (1, 2, 3):
        put(fresh, efi(part), b"Panic#1 Part%d\n" % part + rendered(4 - part))
    before = only([fresh, kept])
    archive(kept, fresh)
    assert only([fresh, kept]) == before
    put(fresh, efi(1), b"Panic#1 Part1\n" + rendered(3))  # half moved, or Unlink=no
    assert only([fresh, kept]) == before


def test_the_joined_text_is_read_where_it_is_alone(tmp_path: Path) -> None:
    fresh, kept = tmp_path / "pstore", tmp_path / "archive"
    for part in (1, 2):
        put(fresh, efi(part), b"Panic#1 Part%d\n" % part + rendered(3 - part))
    before = only([fresh])
    archive(kept, fresh)
    for path in kept.rglob("dmesg-*"):
        path.unlink()
    assert only([kept]).lines == before.lines
    (text,) = kept.rglob("dmesg.txt")
    # Before v253 the name of each file stood above its text.
    text.write_bytes(
        b"".join(
            b"dmesg-efi-16669228610%d001:\nPanic#1 Part%d\n" % (part, part) + rendered(3 - part)
            for part in (2, 1)
        )
    )
    assert only([kept]).lines == before.lines


def test_two_crashes_have_two_names_and_one_has_one(tmp_path: Path) -> None:
    path = put(tmp_path, "dmesg-ramoops-0", b"Panic#1 Part1\n" + rendered(1))
    first = only([tmp_path]).name
    assert first.startswith("dmesg-ramoops-0:")
    os.utime(path, (CRASHED + 9, CRASHED + 9))  # ERST has no time: each boot gives it its own
    assert only([tmp_path]).name == first
    path.write_bytes(b"Panic#1 Part1\n" + rendered(1) + b"\nNo errors detected\n")
    assert only([tmp_path]).name == first
    path.write_bytes(b"Panic#1 Part1\n" + rendered(2))
    assert only([tmp_path]).name != first


@pytest.mark.parametrize(
    ("older", "newer", "wanted", "torn"),
    [
        (b"<4>[    2.000000] torn in", b" two\n" + rendered(3), [b"torn in two", b"line 3"], 0),
        (b"<4>[    2.000000] cut off", rendered(3), [b"cut off", b"line 3"], 0),
        (rendered(1), b"NVRM: Xid (PCI:0000:9b:00): 79\n" + rendered(3), [b"line 1", b"line 3"], 1),
    ],
)
def test_a_torn_line(
    tmp_path: Path, older: bytes, newer: bytes, wanted: list[bytes], torn: int
) -> None:
    """It is joined where its beginning is there; its end alone is nobody's message."""
    put(tmp_path, efi(2), b"Panic#1 Part2\n" + older)
    put(tmp_path, efi(1), b"Panic#1 Part1\n" + newer)
    (log,), said = read_crash_logs([tmp_path])
    assert messages(log) == wanted
    assert len(said) == torn
    assert all("1 line left out" in text for text in said)


def test_a_missing_part_is_said_and_joins_nothing(tmp_path: Path) -> None:
    put(tmp_path, efi(1), b"Panic#1 Part1\n" + b"of another line\n" + rendered(3))
    put(tmp_path, efi(3), b"Panic#1 Part3\n" + b"<4>[    1.000000] the beginning")
    (log,), said = read_crash_logs([tmp_path])
    assert messages(log) == [b"the beginning", b"line 3"]
    assert any("Panic#1 lacks part 2" in text for text in said)


def test_what_the_kernel_could_not_unpack_is_said(tmp_path: Path) -> None:
    put(tmp_path, efi(1) + ".enc.z", b"\x78\x9c\x00")
    put(tmp_path, "dmesg-ramoops-0", b"Panic#1 Part1\n" + rendered(1))
    (log,), said = read_crash_logs([tmp_path])
    assert log.name.startswith("dmesg-ramoops-0:")
    (text,) = said
    assert efi(1) in text


def test_a_text_without_a_header_is_kept(tmp_path: Path) -> None:
    put(tmp_path, "dmesg-odd", rendered(1))
    log = only([tmp_path])
    assert (log.reason, messages(log)) == ("Unknown", [b"line 1"])


def test_other_files_are_not_crashes(tmp_path: Path) -> None:
    others = ("console-ramoops-0", "pmsg-ramoops-0", "ftrace-ramoops-0", "mce-erst-1")
    for name in (*others, "readme.txt"):
        put(tmp_path, name, b"Panic#1 Part1\n" + rendered(1))
    put(tmp_path, "dmesg-ramoops-0", b"")
    os.mkfifo(tmp_path / "dmesg-ramoops-1")  # to open it would wait forever
    (tmp_path / "dmesg-ramoops-2").symlink_to("/etc/passwd")
    assert read_crash_logs([tmp_path]) == ([], [])


def test_a_missing_folder_is_no_news(tmp_path: Path) -> None:
    assert read_crash_logs([tmp_path / "pstore", tmp_path / "archive"]) == ([], [])


def test_the_newest_are_read_where_there_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pstore, "_MAX_BYTES", 200)
    for index in range(10):
        put(
            tmp_path,
            f"dmesg-ramoops-{index}",
            b"Panic#1 Part1\n" + rendered(*range(index * 3, index * 3 + 3)),
            CRASHED + index,
        )
    logs, said = read_crash_logs([tmp_path])
    assert [log.time for log in logs] == [CRASHED + 8, CRASHED + 9]
    (text,) = said
    assert text.startswith("8 files left out")


@pytest.mark.parametrize("shut", ["file", "folder"])
def test_no_permission_is_said(tmp_path: Path, shut: str) -> None:
    path = put(tmp_path / "pstore", "dmesg-ramoops-0", b"Panic#1 Part1\n" + rendered(1))
    put(tmp_path / "archive", "dmesg-ramoops-1", b"Panic#1 Part1\n" + rendered(2))
    closed = path if shut == "file" else path.parent
    closed.chmod(0)
    temporary = Path(tempfile.gettempdir())
    for folder in (tmp_path, *(one for one in tmp_path.parents if temporary in one.parents)):
        folder.chmod(0o755)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        logs, said = read_crash_logs([tmp_path / "pstore", tmp_path / "archive"])
    finally:
        os.seteuid(was)
        closed.chmod(0o755)
    assert [messages(log) for log in logs] == [[b"line 2"]]
    assert said == [f"{closed}: Permission denied"]
