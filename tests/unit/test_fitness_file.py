"""The file that triggers Slurm's unit: written for a change, and until Slurm has acted on it."""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

from tests.unit.builders import event, finding, source
from vitald.core.node_state import NodeState
from vitald.model import NODE, Action, Finding
from vitald.model.codes import DRAINED, IN_SERVICE
from vitald.server.fitness_file import FILE, FitnessFile
from vitald.worker_thread import WorkerThread


class Written:
    """A `FitnessFile` over a state that the test fills, at moments that it chooses."""

    def __init__(self, folder: Path) -> None:
        self.state = NodeState("boot-a", 0.0, device_reset=False)
        self.state.first_scan.set()
        self.path = folder / FILE
        self.thread = WorkerThread("test")
        self.file = FitnessFile(self.state, folder, self.thread, asyncio.Event())
        self._seen: tuple[int, int] | None = None

    def open(self, *findings: Finding) -> None:
        self.state.findings = findings

    def report(self, code: str) -> None:
        self.state.responses.take_event(event(code, NODE, 1.0, fields={"scheduler": "slurm"}))

    async def at(self, moment: float) -> str | None:
        """The content, if the file was written in a turn at this moment."""
        await self.file.update_file(moment)
        if not self.path.exists():
            return None
        status = self.path.stat()
        now = status.st_ino, status.st_mtime_ns
        if now == self._seen:
            return None
        self._seen = now
        return self.path.read_text()


def run(folder: Path, story: Callable[[Written], Awaitable[None]]) -> None:
    async def whole() -> None:
        written = Written(folder)
        try:
            await story(written)
        finally:
            written.thread.close()

    asyncio.run(whole())


def test_it_is_written_on_a_change_only(tmp_path: Path) -> None:
    async def story(written: Written) -> None:
        assert await written.at(0.0) == "fit\n"
        for moment in (1.0, 100.0, 10_000.0):
            assert await written.at(moment) is None
        written.open(finding())
        first = await written.at(10_001.0)
        assert first is not None and first.startswith("unfit ")
        written.report(DRAINED)
        assert await written.at(10_100.0) is None
        written.open(finding(Action.REPLACE_NODE))
        other = await written.at(10_101.0)
        assert other is not None and other.startswith("unfit ") and other != first
        written.open()
        assert await written.at(10_102.0) is None
        assert await written.at(10_112.0) == "fit\n"
        assert stat.S_IMODE(written.path.stat().st_mode) == 0o644

    run(tmp_path, story)


def test_a_drain_waits_for_nothing_and_everything_else_for_the_pause(tmp_path: Path) -> None:
    async def story(written: Written) -> None:
        moment, written_at = 0.0, []
        for turn in range(200):  # a fault that comes and goes, twice a second
            written.open(*([finding()] if turn % 2 else []))
            if await written.at(moment):
                written_at.append(moment)
            moment += 0.5
        assert written_at[1] - written_at[0] == 0.5
        assert len(written_at) <= 2 * (moment / 10.0 + 1)

    run(tmp_path, story)


def test_until_slurm_has_acted_it_is_written_again_ever_more_rarely(tmp_path: Path) -> None:
    async def story(written: Written) -> None:
        written.open(finding())
        moments = [float(moment) for moment in range(4000) if await written.at(float(moment))]
        assert moments[:5] == [0.0, 10.0, 30.0, 70.0, 150.0]
        assert max(later - sooner for sooner, later in pairwise(moments)) <= 640.0
        written.report(DRAINED)
        assert await written.at(9000.0) is None
        written.open()
        assert await written.at(9001.0) == "fit\n"
        assert await written.at(9011.0) == "fit\n"  # it is still drained
        written.report(IN_SERVICE)
        assert await written.at(20_000.0) is None

    run(tmp_path, story)


def test_a_restart_of_the_daemon_is_no_change(tmp_path: Path) -> None:
    async def story(written: Written) -> None:
        written.path.write_text("fit\n")
        written.file._ready.set()
        before = written.path.stat().st_ino
        written.state.sources["kernel_log"] = source(time.monotonic() - 1000.0)  # not read yet
        written.state.first_scan.clear()
        task = asyncio.ensure_future(written.file.run())
        await asyncio.sleep(0.05)
        assert written.path.stat().st_ino == before
        written.state.sources["kernel_log"] = source(time.monotonic())
        written.state.first_scan.set()
        written.state.findings_changed.set()
        await asyncio.sleep(0.05)
        assert written.path.stat().st_ino == before
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(tmp_path, story)


def test_no_link_is_followed(tmp_path: Path) -> None:
    async def story(written: Written) -> None:
        victim = tmp_path / "victim"
        victim.write_text("kept")
        (tmp_path / f".{FILE}.new").symlink_to(victim)
        assert await written.at(0.0) == "fit\n"
        assert victim.read_text() == "kept"

    run(tmp_path, story)
