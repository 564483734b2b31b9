"""What the daemon stores of the provider's notices, in a real ledger: how often, and until when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from tests.pace import patient
from tests.unit.builders import catalogue
from vitald.core.change_interval import FIRST_S, LONGEST_S
from vitald.core.cloud_notices import CloudNotice, CloudNotices
from vitald.core.node_state import NodeState
from vitald.core.pipeline import Pipeline
from vitald.ledger import EventQuery, Ledger, read_events, read_findings
from vitald.model import NODE, Event, Finding
from vitald.model.cloud_notice import Effect, Provider
from vitald.worker_thread import WorkerThread

IMMINENT, REBALANCE = Effect.IMMINENT.code, Effect.REBALANCE.code


def notice(text: str = "", effect: Effect = Effect.IMMINENT) -> CloudNotice:
    return CloudNotice(effect=effect, kind="k", id="", not_before=None, description=text)


class Stored:
    """`CloudNotices` over a ledger in a folder, at times that the test chooses."""

    def __init__(self, folder: Path, pipeline: Pipeline, state: NodeState) -> None:
        self.path, self.state, self.pipeline = folder / "ledger.db", state, pipeline
        self.now = 1000.0
        self.notices = CloudNotices(state, pipeline.store, clock=lambda: self.now)

    async def report(self, *notices: CloudNotice, after_s: float = 0.0) -> None:
        self.now += after_s
        await self.notices.store_report(Provider.AWS, notices)

    async def pass_time(self, seconds: float) -> None:
        self.now += seconds
        await self.notices.update()

    @property
    def events(self) -> list[Event]:
        rows = read_events(self.path, EventQuery(limit=1000))
        return [row.event for row in rows if row.event.kind == "cloud"]

    @property
    def codes(self) -> list[str]:
        return [found.code for found in self.state.findings]

    def find_ended(self, code: str) -> Finding:
        return read_findings(self.path, 1, NODE.name, code)[0]


def run(folder: Path, story: Callable[[Stored], Awaitable[None]]) -> None:
    async def work() -> None:
        thread = WorkerThread("test")
        state = NodeState("boot-a", 0.0, device_reset=False)
        pipeline = Pipeline(Ledger(folder), thread, state, catalogue(), "boot-a")
        await pipeline.open(catalogue())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pipeline.run)
            await story(Stored(folder, pipeline, state))
            tasks.cancel_scope.cancel()
        await pipeline.close()
        thread.close()

    asyncio.run(asyncio.wait_for(work(), patient(60.0)))


def test_a_text_that_changes_with_each_request_is_a_few_events(tmp_path: Path) -> None:
    async def story(stored: Stored) -> None:
        for number in range(100):
            await stored.report(notice(f"number {number}"), after_s=0.3)
            await stored.notices.update()
            assert stored.codes == [IMMINENT]
        assert 2 <= len(stored.events) <= 3

    run(tmp_path, story)


def test_a_notice_that_comes_and_goes_is_a_few_events(tmp_path: Path) -> None:
    """The first is stored at once; the state of by then when the time is over."""

    async def story(stored: Stored) -> None:
        for number in range(200):
            await stored.report(*[notice()] * (1 - number % 2), after_s=0.2)
            await stored.notices.update()
            if not number:
                assert stored.codes == [IMMINENT]
        assert 3 <= len(stored.events) <= 40 / FIRST_S
        await stored.pass_time(LONGEST_S)
        assert stored.codes == []

    run(tmp_path, story)


def test_an_hour_of_alternation_is_less_than_a_hundred_events_and_a_new_notice_never_waits(
    tmp_path: Path,
) -> None:
    """All codes at once. The finding is open at each moment at which the notice stands for longer
    than the first interval.
    """

    async def story(stored: Stored) -> None:
        every = [notice(effect=effect) for effect in Effect]
        for number in range(180):
            await stored.report(*every * (1 - number % 2), after_s=20.0)
            await stored.notices.update()
            assert number % 2 or sorted(stored.codes) == sorted(each.code for each in Effect)
        assert len(stored.events) < 100
        await stored.pass_time(LONGEST_S)
        assert stored.codes == []
        await stored.report(after_s=3600.0)
        await stored.report(notice("new"))
        await stored.report(after_s=FIRST_S)
        assert stored.codes == []

    run(tmp_path, story)


def test_what_had_to_wait_is_stored_as_it_stands_when_it_is_due(tmp_path: Path) -> None:
    async def story(stored: Stored) -> None:
        await stored.report(notice("a"))
        await stored.report(notice("b"), after_s=1.0)
        await stored.report(notice("c"), after_s=1.0)
        await stored.pass_time(7.0)
        assert [event.raw for event in stored.events] == ["aws: k: a"]
        await stored.pass_time(1.0)
        assert [event.raw for event in stored.events] == ["aws: k: a", "aws: k: c"]
        await stored.pass_time(60.0)
        assert len(stored.events) == 2

    run(tmp_path, story)


def test_each_code_has_its_own_time(tmp_path: Path) -> None:
    """A warning that becomes an interruption is not late."""

    async def story(stored: Stored) -> None:
        await stored.report(notice(effect=Effect.REBALANCE))
        await stored.report(notice(), after_s=1.0)
        assert stored.codes == [REBALANCE, IMMINENT]
        await stored.pass_time(9.0)
        assert stored.codes == [IMMINENT]

    run(tmp_path, story)


def test_findings_that_nobody_reports_end_with_that_reason(tmp_path: Path) -> None:
    async def story(stored: Stored) -> None:
        await stored.report(notice())
        await stored.report(notice(), after_s=1700.0)
        await stored.pass_time(1799.0)
        assert stored.codes == [IMMINENT]
        await stored.pass_time(1.0)
        assert stored.codes == []
        assert stored.find_ended(IMMINENT).cleared_by == f"{IMMINENT}: not reported any more"
        assert stored.events[-1].raw == (
            "cloud: no report of the provider's notices for 30 minutes (vitald publish)"
        )
        await stored.pass_time(3600.0)
        assert len(stored.events) == 2
        await stored.report(notice())
        assert stored.codes == [IMMINENT]

    run(tmp_path, story)


def test_a_finding_of_before_a_start_ends_as_well(tmp_path: Path) -> None:
    async def begin(stored: Stored) -> None:
        await stored.report(notice())

    async def story(stored: Stored) -> None:
        assert stored.codes == [IMMINENT]
        await stored.pass_time(1799.0)
        assert stored.codes == [IMMINENT]
        await stored.pass_time(1.0)
        assert stored.codes == []

    run(tmp_path, begin)
    run(tmp_path, story)


def test_it_happens_without_a_request(tmp_path: Path) -> None:
    """By the task: a change is stored when it is due, and silence ends the finding."""

    async def story(stored: Stored) -> None:
        notices = CloudNotices(
            stored.state, stored.pipeline.store, event_every_s=0.2, unreported_after_s=1.0
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(notices.run)
            await notices.store_report(Provider.AWS, [notice("a")])
            await notices.store_report(Provider.AWS, [notice("b")])
            while len(stored.events) < 2:
                await asyncio.sleep(0.01)
            while stored.codes:
                await asyncio.sleep(0.01)
            tasks.cancel_scope.cancel()
        assert [event.raw[:10] for event in stored.events] == [
            "aws: k: a",
            "aws: k: b",
            "cloud: no ",
        ]

    run(tmp_path, story)
