"""When a line was written that a followed file held already at the start."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from tests.looking import batches_of
from tests.unit.builders import catalogue, empty, event, gpu
from vitald.collectors.kernel_log.drills import DrillRegistry
from vitald.collectors.kernel_log.followed_file import LineDating, LogFile, Written
from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.collectors.kernel_log.lines import strip_prefix
from vitald.model.component import Component
from vitald.model.event import Event, Trust
from vitald.model.source import Position
from vitald.model.words import Action, ComponentKind

BOOT, FORMER = "boot-b", "boot-a"
MESSAGE = b"NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=python3, GPU has fallen off the bus.\n"
BANNER = b"[    0.000000] Linux version 6.8.0\n"


def uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def date(seconds_ago: float, form: str) -> bytes:
    moment = datetime.fromtimestamp(time.time() - seconds_ago)
    forms = {
        "syslog": moment.strftime("%b %e %H:%M:%S node kernel: "),
        "iso": f"{moment.astimezone().isoformat()} node kernel: ",
        "dmesg -T": moment.strftime("[%a %b %e %H:%M:%S %Y] "),
    }
    return forms[form].encode()


def stamp(seconds: float) -> bytes:
    return f"[{seconds:12.6f}] ".encode()


def dated(folder: Path, text: bytes, *, former: str = "", before: bytes = b"") -> Written:
    """Of the last line of a file that begins with `before`, which has been read already."""
    path = folder / "kern.log"
    path.write_bytes(before + text)
    dating, fd = LineDating(BOOT, former), os.open(path, os.O_RDONLY)
    asyncio.run(dating.find_banner(fd, len(before)))
    os.close(fd)
    lines = text.splitlines(keepends=True)
    line = strip_prefix(lines[-1])
    assert line is not None
    at = len(before) + len(text) - len(lines[-1])
    return dating.date_line(line, lines[-1], at, live=False)


@pytest.mark.parametrize("form", ["syslog", "iso", "dmesg -T"])
def test_the_date_before_the_line_counts(form: str, tmp_path: Path) -> None:
    ago = min(30.0, uptime() / 2)
    this = dated(tmp_path, date(ago, form) + MESSAGE)
    assert (this.boot_id, this.history, this.is_undated) == (BOOT, "", False)
    assert this.time == pytest.approx(time.time() - ago, abs=5.0)


@pytest.mark.parametrize("form", ["syslog", "iso", "dmesg -T"])
def test_what_is_older_than_the_boot_is_history(form: str, tmp_path: Path) -> None:
    """Of the former boot, if a position of it is stored; else of nobody knows which."""
    text = date(uptime() + 3600.0, form) + MESSAGE
    assert dated(tmp_path, text).history
    former = dated(tmp_path, text, former=FORMER)
    assert (former.boot_id, former.history, former.is_undated) == (FORMER, "", False)
    assert former.time == pytest.approx(time.time() - uptime() - 3600.0, abs=5.0)


def test_the_banner_parts_the_boots_of_stamps(tmp_path: Path) -> None:
    behind = dated(tmp_path, MESSAGE + BANNER + stamp(min(5.0, uptime() / 2)) + MESSAGE)
    assert (behind.boot_id, behind.history, behind.is_undated) == (BOOT, "", False)
    assert behind.time == pytest.approx(time.time() - uptime() + min(5.0, uptime() / 2), abs=5.0)
    longer_than_a_chunk = b"x" * ((1 << 20) + 7) + b"\n"
    path = tmp_path / "long.log"
    path.write_bytes(stamp(5.0) + MESSAGE + BANNER + longer_than_a_chunk)
    dating, fd = LineDating(BOOT, FORMER), os.open(path, os.O_RDONLY)
    asyncio.run(dating.find_banner(fd, 0))
    os.close(fd)
    line = strip_prefix(stamp(5.0) + MESSAGE)
    assert line is not None
    assert dating.date_line(line, stamp(5.0) + MESSAGE, 0, live=False).boot_id == FORMER


@pytest.mark.parametrize(
    "forged",
    [
        stamp(9.0) + b"Linux version 6[4242]: segfault at 0 ip 0 sp 0 error 4\n",
        stamp(9.0) + b'EXT4-fs (sda1): unrecognized mount option "Linux version 6.8.0"\n',
        b"2026-11-27T10:00:00+00:00 node sudo[7]: Linux version 6.8.0\n",
    ],
)
def test_a_user_does_not_begin_a_boot(forged: bytes, tmp_path: Path) -> None:
    """Its name, its mount option or another program's line would make what stands before it
    history.
    """
    path = tmp_path / "kern.log"
    fault = stamp(5.0) + MESSAGE
    path.write_bytes(fault + forged)
    dating, fd = LineDating(BOOT, BOOT), os.open(path, os.O_RDONLY)
    asyncio.run(dating.find_banner(fd, 0))
    os.close(fd)
    line = strip_prefix(fault)
    assert line is not None
    written = dating.date_line(line, fault, 0, live=False)
    assert (written.boot_id, written.history, written.is_undated) == (BOOT, "", False)


def test_a_stamp_that_this_boot_has_not_reached_is_of_another(tmp_path: Path) -> None:
    assert dated(tmp_path, stamp(uptime() + 7200.0) + MESSAGE, former=FORMER).boot_id == FORMER


def test_a_stamp_alone_counts_if_the_last_position_is_of_this_boot(tmp_path: Path) -> None:
    text = stamp(uptime() / 2) + MESSAGE
    assert not dated(tmp_path, text, former=BOOT, before=b"read before\n").is_undated
    assert dated(tmp_path, text, former=FORMER, before=b"read before\n").is_undated
    assert dated(tmp_path, text).is_undated


def test_the_next_file_of_a_rotation_is_read_late_too(tmp_path: Path) -> None:
    """Its lines were there at the start; the first line of the boot stands in the file before."""
    path = tmp_path / "kern.log"

    def append() -> None:
        with path.open("ab") as log:
            log.write(MESSAGE)

    path.write_bytes(BANNER)
    first = asyncio.run(read(path, None, 0, append))
    path.rename(tmp_path / "kern.log.1")
    path.write_bytes(MESSAGE + stamp(uptime() / 2) + MESSAGE)
    with (tmp_path / "kern.log.1").open("ab") as old:
        old.write(BANNER)
    os.utime(tmp_path / "kern.log.1", (1.0, 1.0))
    events = asyncio.run(read(path, first[1], 3, append))[0]
    assert [found.fields.get("undated") for found in events] == [True, None, None]
    assert time.time() - events[1].time == pytest.approx(uptime() / 2, abs=5.0)


async def read(
    path: Path, after: Position | None, want: int, append: Callable[[], None]
) -> tuple[list[Event], Position | None]:
    """So many events and a position; `append` is called before the last one of several."""
    reader = Interpreter(catalogue(), DrillRegistry(), None, userspace="ignore")
    batches = batches_of(LogFile(str(path), reader, BOOT), after)
    events, position = list[Event](), None
    async for batch in batches:
        events += batch.events
        position = batch.position
        if batch.events and len(events) == want - 1:
            append()
        if len(events) >= want and position is not None:
            break
    await batches.aclose()
    return events, position


@pytest.mark.parametrize("former", ["", BOOT, FORMER])
def test_without_a_stamp_it_is_undated(former: str, tmp_path: Path) -> None:
    assert dated(tmp_path, MESSAGE, former=former).is_undated


def test_an_undated_line_asks_to_inspect_and_who_sees_the_device_settles_it() -> None:
    judge = empty()
    judge.apply_event(event("xid/79", gpu(1), 1.0, fields={"undated": True}))
    judge.apply_event(event("xid/79", gpu(2), 1.0, fields={"undated": True}))
    judge.apply_event(event("xid/79", gpu(3), 1.0))
    actions = [found.action for found in judge.open_findings]
    assert actions == [Action.INSPECT, Action.INSPECT, Action.REBOOT_NODE]
    assert not any(found.is_confirmed for found in judge.open_findings)
    calm = {(gpu(number), "nvml/gpu_lost") for number in (1, 3)}
    assert judge.find_refuted({*calm, (gpu(2), "nvml/reset_required")}) == [judge.open_findings[0]]
    judge.apply_event(event("nvml/gpu_lost", gpu(1), 2.0, trust=Trust.DAEMON))
    initialised = {(gpu(1), "nvml/gpu_not_initialised")}
    assert judge.find_refuted(initialised) == [], "the driver lists it, and cannot reach it"
    assert judge.find_refuted({(Component(ComponentKind.GPU, "x"), "nvml/gpu_lost")}) == []


def test_no_entry_costs_a_node_for_an_undated_line() -> None:
    for rule in catalogue().rules.values():
        assert not rule.apply_to({"undated": True}).action.makes_unfit
