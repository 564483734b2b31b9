"""A run is in the ledger before its program starts, and one that a crash cut leaves a record."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from tests.unit.diagnostics_house import PASSED, House, Tested, ask, quick, settled_after_boot, told
from tests.waiting import until_async
from vitald.diagnostics import source
from vitald.diagnostics.schedule import MAX_RETRIES
from vitald.model.source import Position
from vitald.model.words import Outcome, Remedy

__all__ = ["quick"]


async def cut_in_the_middle(after: Position | None = None) -> Position:
    """What the ledger has when the daemon is killed while a level 3 run is under way."""
    async with House(after=after).open() as house:
        house.programs.ends = False
        house.manager.request_run(ask(3))
        await until_async(lambda: house.programs.runs, "its program")
        return house.position


def rebooted(position: Position) -> Position:
    return replace(position, boot_id="before")


def begun(position: Position) -> object:
    return json.loads(position.cursor)["begun"]


def test_the_program_starts_once_the_ledger_has_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_MAX_STORE_S", 3600.0)

    async def work() -> None:
        async with House().open() as house:
            house.programs.ends = False
            house.ledger_open.clear()
            run = house.manager.request_run(ask(2))
            await until_async(lambda: begun(house.position), "what is handed in")
            await asyncio.sleep(0.05)
            assert house.programs.runs == []
            house.ledger_open.set()
            await until_async(lambda: house.programs.runs, "its program")
            batches = [batch for batch in house.batches if batch.position == house.position]
            assert any(batch.durable for batch in batches)
            house.programs.end()
            assert (await house.ended(run)).report == PASSED
            assert begun(house.position) is None

    told(work)


def test_a_ledger_that_cannot_be_written_holds_up_no_request_and_no_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(source, "_MAX_STORE_S", 0.01)

    async def work() -> None:
        async with House().open() as house:
            house.ledger_open.clear()
            house.manager.request_run(ask(2))
            assert house.programs.runs == []
            await house.manager.store_requests()
            await until_async(lambda: house.programs.runs, "its program")
            # Of the request, and of the run.
            assert capsys.readouterr().out.count("diagnostics_not_stored") == 2
            house.ledger_open.set()

    told(work)


def test_a_run_that_passes_as_always_is_not_taken_for_one_that_goes_on() -> None:
    """A check of the site whose result is not stored."""

    async def work() -> None:
        check = Tested(name="site", levels=(0,), periods={0: 3600.0})
        async with House(check).open() as house:
            await until_async(lambda: house.counted, "its run")
            await until_async(lambda: begun(house.position) is None, "its end")

    settled_after_boot(work)


def test_what_a_crash_of_the_daemon_cut_is_recorded_and_owed() -> None:
    async def work() -> None:
        left = await cut_in_the_middle()
        async with House(after=left).open() as house:
            await until_async(lambda: house.runs, "its record")
            (run,) = house.runs
            assert (run.id, run.request) == (json.loads(left.cursor)["begun"]["id"], ask(3))
            assert (run.report.outcome, run.report.remedy) == (Outcome.INCONCLUSIVE, Remedy.RETRY)
            assert run.report.reason == "interrupted: vitald was killed or crashed while it ran"
            assert run.ended >= run.began == json.loads(left.cursor)["begun"]["began"]
            assert [event.code for event in house.told] == ["diagnostic/ran"]
            (owed,) = house.manager.active
            assert owed.id == f"{run.id}.2"
            assert begun(house.position) is None

    told(work)


def test_a_run_in_which_the_node_goes_down_each_time_is_given_up() -> None:
    async def work() -> None:
        left, reasons = rebooted(await cut_in_the_middle()), set[str]()
        for attempt in range(MAX_RETRIES):
            async with House(after=left).open() as house:
                await until_async(lambda: house.runs, "its record")
                reasons |= {run.report.reason for run in house.runs}
                assert [run.id.partition(".")[0] for run in house.manager.active] == [
                    house.runs[0].id.partition(".")[0]
                ], attempt
                left = house.position
            left = rebooted(await cut_in_the_middle(left))
        async with House(after=left).open() as house:
            await until_async(lambda: house.runs, "its record")
            assert house.manager.active == ()
        assert reasons == {"interrupted: the node or vitald went down while it ran"}
        assert "diagnostic/not_run" in house.codes

    told(work)
