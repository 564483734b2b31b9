"""The daemon's side: when root is asked, what the file says, and when it is taken away. It may do
no more than that.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.builders import finding, source
from tests.unit.test_imports import MODULES, forbidden, imports, named
from tests.waiting import until_async
from vitald.core.node_state import LedgerHealth, NodeState
from vitald.metrics.recovery import collect_metrics
from vitald.model.finding import Finding
from vitald.model.source import SourceState
from vitald.model.words import Action, Repair
from vitald.recovery.decision import Step
from vitald.recovery.recovery_request import FILE, Request, parse_request
from vitald.recovery.requester import RecoveryRequester, RootDecision
from vitald.recovery.settings import RecoverySettings
from vitald.server.routes.node import describe_recovery
from vitald.worker_thread import WorkerThread

REQUESTER = "vitald.recovery.requester"
AUTOMATIC = RecoverySettings(mode="automatic", after_s=120.0)


class Asked:
    """An `RecoveryRequester` over a board that the test fills, at moments that it chooses."""

    def __init__(self, folder: Path) -> None:
        self.settings = AUTOMATIC
        self.board = NodeState("boot-b", 0.0, device_reset=False)
        self.path = folder / FILE
        self.lane = WorkerThread("test")
        self.asking = RecoveryRequester(
            self.board, folder, self.lane, lambda: self.settings, asyncio.Event()
        )

    def open(self, *findings: Finding) -> None:
        self.board.findings = findings

    async def at(self, moment: float) -> Request | None:
        """The file after a turn at this moment."""
        await self.asking.update_request(moment)
        return parse_request(self.path.read_bytes()) if self.path.exists() else None


def run(folder: Path, story: Callable[[Asked], Awaitable[None]]) -> None:
    async def whole() -> None:
        asked = Asked(folder)
        try:
            await story(asked)
        finally:
            asked.lane.close()

    asyncio.run(whole())


def test_a_finding_that_stands_is_asked_for_and_repeated(tmp_path: Path) -> None:
    async def story(asked: Asked) -> None:
        asked.open(finding(raw="NVRM: \x1b[2J"))
        assert await asked.at(0.0) is None
        assert await asked.at(119.0) is None
        first = await asked.at(120.0)
        assert first is not None
        assert (first.kind, first.boot_id, first.causes) == (
            Repair.REBOOT,
            "boot-b",
            (("gpu/0000:01:00.0", "xid/79"),),
        )
        assert first.findings[0].raw == "NVRM: ?[2J"
        found, folder = asked.path.stat(), asked.path.parent.stat()
        assert (stat.S_IMODE(found.st_mode), stat.S_IMODE(folder.st_mode)) == (0o640, 0o750)
        assert [one.name for one in asked.path.parent.iterdir()] == ["request.json"]
        again = await asked.at(299.0)
        assert again == first, "not anew so soon: each is a process of root's"
        later = await asked.at(300.0)
        assert later is not None and (later.id, later.uptime > first.uptime) == (first.id, True)
        asked.open()
        assert await asked.at(301.0) is None
        described = describe_recovery(asked.asking)
        assert (described["mode"], described["request"]) == ("automatic", None)

    run(tmp_path, story)


def test_another_finding_changes_the_request(tmp_path: Path) -> None:
    async def story(asked: Asked) -> None:
        asked.open(finding(number=1))
        await asked.at(0.0)
        first = await asked.at(120.0)
        asked.open(finding(number=1), finding(Action.REPLACE_NODE, number=2))
        assert await asked.at(121.0) is None, (
            "what will be asked for instead is not settled: nothing meanwhile"
        )
        second = await asked.at(241.0)
        assert first is not None and second is not None
        assert (second.kind, [one.id for one in second.findings]) == (Repair.REPLACE, [2])
        assert second.id != first.id
        assert describe_recovery(asked.asking)["request"]["findings"] == [2]  # type: ignore[index]

    run(tmp_path, story)


def test_roots_last_decision_is_shown_with_the_request(tmp_path: Path) -> None:
    async def story(asked: Asked) -> None:
        asked.open(finding())
        await asked.at(0.0)
        await asked.at(120.0)
        requester = asked.asking
        assert describe_recovery(requester)["request"]["decision"] is None  # type: ignore[index]
        time = "2026-11-20T13:00:00.000Z"
        requester.decision = RootDecision(Step.REFUSED, ("budget", "brake"), "too many", time)
        assert describe_recovery(requester)["request"]["decision"] == {  # type: ignore[index]
            "step": "refused",
            "checks": ["budget", "brake"],
            "why": "too many",
            "time": time,
        }
        families = {family.name: family.samples for family in collect_metrics(requester)}
        assert {
            (sample.labels["repair"], sample.value)
            for sample in families["vitald_recovery_requested"]
        } == {("reboot", 1), ("replace", 0)}
        assert [sample.labels["check"] for sample in families["vitald_recovery_refused"]] == [
            "budget",
            "brake",
        ]
        assert families["vitald_recovery_waits"] == []

    run(tmp_path, story)


def test_what_nobody_confirmed_is_not_asked_for(tmp_path: Path) -> None:
    """Not alone, and not beside what is; a replacement that is not confirmed holds no reboot up
    that is.
    """

    async def story(asked: Asked) -> None:
        asked.open(finding(number=1, confirmed_by=""))
        assert (await asked.at(0.0), await asked.at(1000.0)) == (None, None)
        asked.open(
            finding(number=1, confirmed_by=""),
            finding(number=2),
            finding(Action.REPLACE_NODE, number=3, confirmed_by=""),
        )
        await asked.at(1001.0)
        request = await asked.at(1121.0)
        assert request is not None
        assert (request.kind, [one.id for one in request.findings]) == (Repair.REBOOT, [2])
        asked.open(finding(number=1))
        request = await asked.at(1132.0)
        assert request is not None and [one.id for one in request.findings] == [1], (
            "it stands for long enough: its witness came late"
        )

    run(tmp_path, story)


def test_what_it_asks_for_must_stand_not_only_the_finding(tmp_path: Path) -> None:
    async def story(asked: Asked) -> None:
        asked.open(finding(Action.INSPECT))
        await asked.at(0.0)
        asked.open(finding(Action.REBOOT_NODE))
        assert await asked.at(130.0) is None
        assert await asked.at(250.0) is not None

    run(tmp_path, story)


def _mode(asked: Asked) -> None:
    asked.settings = replace(AUTOMATIC, mode="none")


def _ledger(asked: Asked) -> None:
    asked.board.ledger = LedgerHealth(ok=False)


def _unsaved(asked: Asked) -> None:
    asked.board.ledger = LedgerHealth(unsaved=1)


def _released(asked: Asked) -> None:
    asked.board.sources["nvml"] = source(0.0, state=SourceState.RELEASED, name="nvml")


def _simulated(asked: Asked) -> None:
    asked.board.sources["nvml"] = replace(source(0.0, name="nvml"), simulated=True)


@pytest.mark.parametrize("change", [_mode, _ledger, _unsaved, _released, _simulated])
def test_nothing_is_asked_for_and_what_was_is_taken_back(
    tmp_path: Path, change: Callable[[Asked], None]
) -> None:
    async def story(asked: Asked) -> None:
        asked.open(finding())
        await asked.at(0.0)
        assert await asked.at(120.0) is not None
        change(asked)
        assert await asked.at(121.0) is None
        assert await asked.at(10_000.0) is None

    run(tmp_path, story)


def test_it_begins_when_the_past_is_told_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async def story(asked: Asked) -> None:
        asked.settings = replace(AUTOMATIC, after_s=0.0)
        asked.path.parent.mkdir()
        asked.path.write_text("of a daemon before this one")
        asked.open(finding())
        ready = asyncio.Event()
        asking = RecoveryRequester(
            asked.board, asked.path.parent.parent, asked.lane, lambda: asked.settings, ready
        )
        task = asyncio.ensure_future(asking.run())
        for _ in range(5):
            await asked.lane.call(lambda: None)  # whatever it gave to the thread before is done
        assert asking.request is None
        ready.set()
        await until_async(lambda: asking.request is not None and asked.path.exists())
        assert parse_request(asked.path.read_bytes()).id == asking.request.id
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not asked.path.exists()

    run(tmp_path, story)


def test_no_link_is_followed(tmp_path: Path) -> None:
    async def story(asked: Asked) -> None:
        asked.open(finding())
        await asked.at(0.0)
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        asked.path.parent.symlink_to(elsewhere)
        with pytest.raises(OSError, match="Not a directory"):
            await asked.at(120.0)
        assert list(elsewhere.iterdir()) == []
        asked.path.parent.unlink()
        asked.path.parent.mkdir()
        victim = tmp_path / "victim"
        victim.write_text("mine")
        asked.path.symlink_to(victim)
        asked.path.with_name(".request.json.new").symlink_to(victim)
        assert await asked.at(121.0) is not None
        assert victim.read_text() == "mine"
        assert not asked.path.is_symlink()

    run(tmp_path, story)


def test_the_daemon_can_ask_and_nothing_else() -> None:
    """Of the package that acts it knows the form of a request and of a decision. Nothing that it
    loads starts a reboot.
    """
    allowed = {"vitald.recovery"} | {
        f"vitald.recovery.{name}"
        for name in ("decision", "decision_log", "recovery_request", "requester", "settings")
    }
    for module in [*named("vitald.server"), REQUESTER, "vitald.daemon"]:
        used = {
            name
            for name in forbidden(imports(MODULES[module]), "vitald.recovery")
            if name in MODULES
        }
        assert used <= allowed, module
    assert not {"subprocess", "signal", "ctypes"} & imports(MODULES[REQUESTER])
