"""A log that is followed as text: records of several lines, wherever a look ends; positions;
rotation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.unit.builders import catalogue
from tests.unit.test_scan import LOST, STAMPED, scan_json
from tests.waiting import until_async
from vitald.collectors.kernel_log import followed_file as log_file
from vitald.collectors.kernel_log.drills import DrillRegistry
from vitald.collectors.kernel_log.followed_file import LogFile
from vitald.collectors.kernel_log.interpret import Interpreter
from vitald.model.source import Position

HEAD = "[   13.868252] "
RECORD = f"{HEAD}{LOST[0]}\n{'':15}{LOST[1]}\n{'':15}{LOST[2]}\n"
ORDINARY = "[   14.0] usb 1-1: x\n"


@dataclass
class Following:
    """What was said so far."""

    reader: Interpreter
    codes: list[str] = field(default_factory=list)
    hearsay: list[bool] = field(default_factory=list)
    identities: set[str] = field(default_factory=set)
    position: Position | None = None

    def read(self, path: Path, offset: int) -> bool:
        cursor = self.position.cursor if self.position is not None else "[0, 0]"
        return f"[{path.stat().st_ino}, {offset}, " in cursor


@asynccontextmanager
async def following(path: Path, after: Position | None = None) -> AsyncIterator[Following]:
    reader = Interpreter(catalogue(), DrillRegistry(), None, userspace="ignore")
    told = Following(reader)

    async def follow() -> None:
        async for batch in LogFile(str(path), reader, "boot-a").read_batches(after):
            for event in batch.events:
                assert event.identity not in told.identities
                told.identities.add(event.identity)
                told.codes.append(event.code)
                told.hearsay.append(event.is_hearsay)
            told.position = batch.position

    task = asyncio.create_task(follow())
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


CODE = "gpu_lost"


def is_lost(told: Following) -> bool:
    return [code.partition("/")[0] for code in told.codes] == [CODE]


@pytest.mark.parametrize(
    "after", [ORDINARY, "", f"{STAMPED}\n"], ids=["an ordinary line", "nothing", "a fault"]
)
def test_a_record_of_several_lines_is_one_as_for_scan(after: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(ORDINARY + RECORD + after)

    async def work() -> list[str]:
        async with following(path) as told:
            await until_async(lambda: told.read(path, path.stat().st_size))
            assert told.reader.counters.read == len(path.read_text().splitlines())
            return told.codes

    events, _ = scan_json(path.read_bytes())
    assert [code.partition("/")[0] for code in asyncio.run(work())] == [
        event["kind"] for event in events
    ]


@pytest.mark.parametrize("cut", range(1, 3))
def test_a_record_that_comes_in_parts(
    cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look between two of its lines."""
    monkeypatch.setattr(log_file, "_POLL_S", 0.5)
    path, lines = tmp_path / "log", RECORD.splitlines(keepends=True)
    path.write_text(ORDINARY + "".join(lines[:cut]))

    async def work() -> None:
        async with following(path) as told:
            await until_async(lambda: told.read(path, len(ORDINARY)))
            append(path, "".join(lines[cut:]))
            await until_async(lambda: is_lost(told))

    asyncio.run(work())


def test_a_restart_between_two_lines_of_a_record_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "_POLL_S", 0.5)
    path, lines = tmp_path / "log", RECORD.splitlines(keepends=True)
    path.write_text(ORDINARY + lines[0])

    async def work() -> None:
        async with following(path) as told:
            await until_async(lambda: told.read(path, len(ORDINARY)))
        append(path, "".join(lines[1:]))
        async with following(path, told.position) as again:
            await until_async(lambda: is_lost(again))

    asyncio.run(work())


def test_a_fault_of_one_line_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what follows it in indented lines takes nothing from it, nor is it a record of
    its own.
    """
    monkeypatch.setattr(log_file, "_POLL_S", 60.0)
    path = tmp_path / "log"
    path.write_text(f"{STAMPED}\n")

    async def work() -> None:
        async with following(path) as told:
            await until_async(lambda: told.codes == ["xid/79"])

    asyncio.run(work())


def test_the_last_record_of_a_rotated_file_is_read_first(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(ORDINARY)

    async def work() -> None:
        async with following(path) as told:
            await until_async(lambda: told.read(path, len(ORDINARY)))
            append(path, RECORD)
            path.rename(tmp_path / "log.1")
            path.write_text(f"{STAMPED}\n")
            await until_async(
                lambda: [code.partition("/")[0] for code in told.codes] == [CODE, "xid"]
            )

    asyncio.run(work())


def test_lines_that_go_on_without_end_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "_CHUNK_BYTES", 4096)
    path = tmp_path / "log"
    path.write_text(
        f"{ORDINARY}{' x' * 100}\n" * 200
        + f"{ORDINARY}"
        + f"{' x' * 100}\n" * 2000
        + f"{STAMPED}\n"
    )

    async def work() -> None:
        async with following(path) as told:
            await until_async(lambda: told.codes == ["xid/79"])

    asyncio.run(work())


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_the_rest_of_a_record_is_doubted(tmp_path: Path, parts: int) -> None:
    """Wherever a look ends: a newline in a user's text begins a line with the record's own
    stamp.
    """
    path = tmp_path / "kern.log"
    path.touch()
    ue = (
        "EDAC MC0: 1 UE memory scrubbing error on D (channel:0 slot:1 page:0x8a1 offset:0x0"
        " grain:32)"
    )
    lines = [f"[26218.429856] {text}\n" for text in ("tmpfs: Unknown parameter 'foo", ue, "bar'")]

    async def follow() -> list[bool]:
        async with following(path) as told:
            for number in range(parts):
                append(path, "".join(lines[3 * number // parts : 3 * (number + 1) // parts]))
                size = path.stat().st_size
                await until_async(lambda: told.read(path, size))
            append(path, f"[26218.429857] {ue}\n")
            await until_async(lambda: len(told.codes) == 2)
            return told.hearsay

    assert asyncio.run(follow()) == [True, False]


def test_lost_records_that_the_log_reports_are_an_event(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    before = "2020-01-01T00:00:00+00:00 n kernel: ** 9 printk messages dropped **\n"  # another boot
    path.write_text(before)
    lines = (
        "Nov 25 21:00:01 n kernel: [ 7000.1] ** 3712 printk messages dropped **",
        "Nov 25 21:00:02 n systemd-journald[312]: Missed 12 kernel messages",
        "6,10,7000000,-;usb 1-1: x",
        "6,15,7100000,-;usb 1-1: y",
    )

    async def follow() -> Following:
        async with following(path) as told:
            await until_async(lambda: told.read(path, len(before)))
            for line in lines:  # each is the last line of the file for a while, and is held
                append(path, f"{line}\n")
                await until_async(lambda: told.read(path, path.stat().st_size))
            return told

    told = asyncio.run(follow())
    assert told.codes == ["vitald/records_lost"] * 3
    assert told.reader.counters.lost == 3712 + 12 + 4
