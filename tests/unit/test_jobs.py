"""The work on a node: what is remembered of it, which of it was near an incident, and what a
scheduler may tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from tests.unit.builders import booted, event, finding
from tests.waiting import WAIT_S
from vitald.core.jobs import AROUND_S, BEGAN, DIED, ENDED, Job, Jobs
from vitald.core.node_state import NodeState
from vitald.http_server.peer import Peer
from vitald.model.component import NODE
from vitald.model.diagnostic import ActiveRun, Refusal, RunRequest
from vitald.model.event import CLOCK_STEPPED, Event
from vitald.model.finding import Incident, make_single_incident
from vitald.model.source import Batch
from vitald.model.words import Action
from vitald.server import serialize
from vitald.server.request import RequestRefused
from vitald.server.routes.jobs import JobRoutes

DAY = 86400.0
BOOT = "boot-a"


def began(job: str, at: float, boot: str = BOOT) -> Event:
    return event(BEGAN, NODE, at, boot=boot, fields={"job": job, "user": "alice", "uid": 1000})


def ended(job: str, at: float, exit_code: int = 0, signal: int = 0, boot: str = BOOT) -> Event:
    code = DIED if exit_code or signal else ENDED
    return event(
        code,
        NODE,
        at,
        boot=boot,
        fields={
            "job": job,
            "user": "alice",
            "uid": 1000,
            "exitCode": exit_code,
            "signal": signal,
            "reason": "",
        },
    )


def jobs(*events: Event) -> Jobs:
    made = Jobs()
    for one in events:
        made.take_event(one)
    return made


def incident(since: float, last: float, code: str = "xid/79") -> Incident:
    return make_single_incident(finding(since=since, last=last, code=code, incident=1))


def near(made: Jobs, since: float, last: float) -> list[str]:
    return [job.id for job in made.list_near_incident(incident(since, last))]


def test_what_is_near_an_incident() -> None:
    """What ran at its time, and what ended within ten minutes of it."""
    cases: list[tuple[list[Event], bool]] = [
        ([began("1", 0)], True),  # it runs still
        ([began("1", 5001)], False),  # it began after
        ([began("1", 0), ended("1", 1000 - AROUND_S)], True),
        ([began("1", 0), ended("1", 999 - AROUND_S)], False),
        ([began("1", 0), ended("1", 3000)], True),
        ([began("1", 5001), ended("1", 5000 + AROUND_S)], True),
        ([began("1", 5001), ended("1", 5001 + AROUND_S)], False),
        ([ended("1", 5000 + AROUND_S, exit_code=1)], True),  # nobody said when it began
        ([ended("1", 5001 + AROUND_S, exit_code=1)], False),
    ]
    found = [(events, near(jobs(*events), 1000, 5000) == ["1"]) for events, _ in cases]
    assert found == cases


def test_what_failed_is_told_first_and_only_so_many() -> None:
    made = jobs(
        *(began(str(number), number) for number in range(20)),
        ended("7", 100),
        ended("9", 400, exit_code=1),
        ended("8", 200, signal=9),
    )
    assert near(made, 150, 150)[:2] == ["8", "9"]
    assert len(near(made, 150, 150)) == 8


def test_what_vitald_says_of_itself_has_no_jobs() -> None:
    assert (
        jobs(began("1", 0)).list_near_incident(incident(10, 10, code="vitald/source_failed")) == []
    )


def test_a_boot_ends_them_all() -> None:
    """Nobody told how; a job of this boot goes on."""
    made = jobs(began("1", 0), began("2", 10, boot="boot-b"), booted("boot-b", 5))
    assert [*made.running] == ["2"]
    [lost] = made.recent
    assert (lost.id, lost.ended, lost.lost, lost.failed) == ("1", 5, True, False)


def test_one_id_may_begin_again() -> None:
    """A job that was requeued; the end of its first run may never have been told."""
    made = jobs(
        began("1", 0), ended("1", 5, exit_code=1), began("1", 10), began("1", 20), ended("1", 30)
    )
    assert [(job.began, job.ended, job.lost) for job in made.recent] == [
        (0, 5, False),
        (10, 20, True),
        (20, 30, False),
    ]
    assert not made.running


def test_the_clock_is_set() -> None:
    """Incidents are told by the new time then, and so are jobs."""
    made = jobs(began("1", 1000), ended("1", 1100, exit_code=1), began("2", 1000))
    made.take_event(event(CLOCK_STEPPED, NODE, 0, fields={"seconds": 5000.0}))
    assert (made.recent[0].began, made.recent[0].ended, made.running["2"].began) == (
        6000,
        6100,
        6000,
    )


def test_a_day_is_remembered_and_longer_what_is_near_an_open_incident() -> None:
    opened = incident(1000, 1000)
    made = jobs(began("1", 900), ended("1", 1001, exit_code=1), began("2", 2500), ended("2", 2600))
    for at, kept in ((1001 + DAY, ["1", "2", "3"]), (2601 + DAY, ["1", "3", "3"])):
        made.take_event(began("3", at))
        made.take_event(ended("3", at), [opened])
        assert [job.id for job in made.recent] == kept
    made.take_event(began("4", 9000 + DAY))
    made.take_event(ended("4", 9000 + DAY), [replace(opened, closed_at=1100.0)])
    assert [job.id for job in made.recent] == ["3", "3", "4"]


def test_memory_is_bounded() -> None:
    made = jobs(*(began(str(number), number) for number in range(2000)))
    assert (len(made.running), len(made.recent)) == (256, 512)
    assert "1999" in made.running


def test_recalled_as_it_was() -> None:
    """After a start the same is known as before it; what ran in an earlier boot is over."""
    told = [began("1", 0), began("2", 1), ended("1", 5, exit_code=2)]
    made, later = Jobs(), Jobs()
    made.restore_jobs(told, BOOT, 50.0)
    assert (made.running, [*made.recent]) == (jobs(*told).running, [*jobs(*told).recent])
    later.restore_jobs(told, "boot-b", 50.0)
    assert not later.running
    assert [(job.id, job.ended, job.lost) for job in later.recent] == [
        ("1", 5, False),
        ("2", 50.0, True),
    ]


def test_a_lost_job_does_not_end_before_it_began() -> None:
    """The clock was set back, so the boot seems to be a day before it."""
    made = Jobs()
    made.restore_jobs([began("1", 2 * DAY)], "boot-b", 0.5 * DAY)
    assert [(job.id, job.ended, job.lost) for job in made.recent] == [("1", 2 * DAY, True)]


def test_a_drill_is_no_job() -> None:
    assert not jobs(replace(began("1", 0), simulated_until=10.0)).running


def test_how_a_job_is_told() -> None:
    for job, state, end in (
        (Job(id="1", began=1.0), "running", ""),
        (Job(id="1", ended=1.0, exit_code=0, signal=0), "ended", ""),
        (Job(id="1", ended=1.0), "ended", ""),
        (Job(id="1", ended=1.0, exit_code=3, signal=0), "died", "exit 3"),
        (Job(id="1", ended=1.0, exit_code=0, signal=9), "died", "signal 9"),
        (Job(id="1", ended=1.0, lost=True), "lost", ""),
    ):
        assert (serialize.format_job(job)["state"], job.outcome) == (state, end), job


# Over the socket.


@dataclass
class Diagnostics:
    """What the routes ask of the diagnostics. The devices are free once `free` is set."""

    free: asyncio.Event = field(default_factory=asyncio.Event)
    began: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    cleared: list[str] = field(default_factory=list)
    asked: list[RunRequest] = field(default_factory=list)
    refusal: str = ""

    async def begin_job(self, job: str) -> None:
        self.began.append(job)
        await self.free.wait()
        self.cleared.append(job)

    def end_job(self, job: str) -> None:
        self.ended.append(job)

    async def store_requests(self) -> None:
        pass

    def request_run(self, ask: RunRequest) -> ActiveRun:
        if self.refusal:
            raise Refusal(self.refusal)
        self.asked.append(ask)
        return ActiveRun(id="run-1", request=ask, requested_at=0.0)


@dataclass
class Served:
    board: NodeState
    diagnostics: Diagnostics
    client: TestClient[web.Request, web.Application]

    async def tell(
        self, event: str, job: object = "7", **more: object
    ) -> tuple[int, dict[str, Any]]:
        response = await self.client.post("/v1/jobs", json={"event": event, "job": job, **more})
        return response.status, await response.json()


@asynccontextmanager
async def served(uid: int = 0) -> AsyncIterator[Served]:
    board, diagnostics = NodeState(BOOT, 0.0, device_reset=False), Diagnostics()

    async def store(batch: Batch) -> None:
        for one in batch.events:
            board.jobs.take_event(one)

    @web.middleware
    async def outermost(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        request["peer"] = Peer(1, uid, frozenset())
        try:
            return await handler(request)
        except RequestRefused as refused:
            return web.json_response(
                {"error": refused.error, "hint": refused.hint}, status=refused.status
            )

    app = web.Application(middlewares=[outermost])
    app.add_routes(JobRoutes(board, store, diagnostics).list_routes())
    async with TestClient(TestServer(app)) as client:
        yield Served(board, diagnostics, client)


def test_a_job_begins_once_the_devices_are_free() -> None:
    async def work() -> None:
        async with served() as here:
            telling = asyncio.ensure_future(here.tell("begin", user="alice", uid=1000))
            while "7" not in here.board.jobs.running:
                await asyncio.sleep(0)
            assert not telling.done()
            here.diagnostics.free.set()
            status, answer = await telling
            assert (status, answer["job"]["state"], answer["job"]["user"]) == (
                200,
                "running",
                "alice",
            )
            assert here.diagnostics.cleared == ["7"]

    asyncio.run(asyncio.wait_for(work(), WAIT_S))


def test_a_prolog_that_goes_away_does_not_keep_the_devices() -> None:
    """Its time is short; the diagnostic is ended all the same."""

    async def work() -> None:
        async with served() as here:
            telling = asyncio.ensure_future(here.tell("begin"))
            while not here.diagnostics.began:
                await asyncio.sleep(0.001)
            telling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await telling
            here.diagnostics.free.set()
            while not here.diagnostics.cleared:
                await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(work(), WAIT_S))


def test_a_diagnostic_after_a_job_that_failed_or_left_something() -> None:
    """Only where it is wanted, and where there is a reason for it."""

    async def work() -> None:
        async with served() as here:
            here.diagnostics.free.set()

            async def run(left: bool = False, **end: object) -> dict[str, Any]:
                await here.tell("begin", user="alice")
                began_at = here.board.jobs.running["7"].began or 0.0
                older, own = (
                    finding(number=1, since=began_at - 1),
                    finding(number=3, since=began_at + 1, kind="vitald"),
                )
                drill = finding(number=4, since=began_at + 1, simulated_until=9e9)
                nothing = finding(Action.NONE, number=5, since=began_at + 1)
                here.board.findings = (
                    older,
                    own,
                    drill,
                    nothing,
                    *([finding(number=2, since=began_at + 1)] if left else []),
                )
                return (await here.tell("end", user="alice", **end))[1]

            assert (await run(exitCode=0, diagnose=True))["diagnostic"] is None
            assert (await run(exitCode=1))["diagnostic"] is None
            assert here.diagnostics.asked == []
            answer = await run(exitCode=1, diagnose=True)
            assert answer["diagnostic"] == {
                "requested": True,
                "id": "run-1",
                "why": "job 7 of alice ended with exit 1",
            }
            answer = await run(left=True, signal=9, diagnose=True)
            assert (answer["findings"], answer["diagnostic"]["why"]) == (
                [2],
                "job 7 of alice ended with signal 9 and left #2",
            )
            answer = await run(left=True, exitCode=0, diagnose=True)
            assert answer["diagnostic"]["why"] == "job 7 of alice left #2"
            assert {(ask.check, ask.level, ask.by) for ask in here.diagnostics.asked} == {
                ("dcgm", 2, "job 7")
            }
            here.diagnostics.refusal = "dcgmi is not installed"
            assert (await run(exitCode=1, diagnose=True))["diagnostic"] == {
                "requested": False,
                "id": None,
                "why": "dcgmi is not installed",
            }
            assert here.diagnostics.ended == ["7"] * 6

    asyncio.run(asyncio.wait_for(work(), WAIT_S))


def test_the_end_of_a_job_that_never_began_here() -> None:
    """Of one that failed it is noted, once; of one that the prolog refused Slurm says 0:0, and
    there is nothing to note.
    """

    async def work() -> None:
        async with served() as here:
            assert (await here.tell("end", exitCode=0, signal=0, diagnose=True))[1] == {
                "ok": True,
                "job": None,
                "findings": [],
                "diagnostic": None,
            }
            assert not here.board.jobs.recent
            for _ in range(2):
                await here.tell("end", exitCode=1, diagnose=True)
            assert [(job.id, job.began, job.exit_code) for job in here.board.jobs.recent] == [
                ("7", None, 1)
            ]
            assert len(here.diagnostics.asked) == 1
            listed = await (await here.client.get("/v1/jobs?limit=1")).json()
            assert ([job["job"] for job in listed["recent"]], listed["running"]) == (["7"], [])
            assert listed["more"] is False

    asyncio.run(asyncio.wait_for(work(), WAIT_S))


def test_what_no_scheduler_says() -> None:
    """Refused, and nothing is remembered of it."""
    end = {"event": "end", "job": "7"}
    bodies: list[tuple[dict[str, Any], str]] = [
        ({"event": "begin"}, "job: "),
        ({"event": "begin", "job": 7}, "job: "),
        ({"event": "begin", "job": "7\n"}, "job: "),
        ({"event": "begin", "job": "7; reboot"}, "job: "),
        ({"event": "begin", "job": "7" * 65}, "job: "),
        ({"event": "ends", "job": "7"}, "event: "),
        ({"event": ["end"], "job": "7"}, "event: "),
        ({**end, "user": "a\x1b[2J"}, "user: "),
        ({**end, "user": None}, "user: "),
        ({**end, "reason": "r" * 201}, "reason: "),
        ({**end, "reason": "\ud800"}, "reason: "),
        ({**end, "exitCode": 256}, "exitCode: "),
        ({**end, "exitCode": True}, "exitCode: "),
        ({**end, "signal": -9}, "signal: "),
        ({**end, "uid": 2**32}, "uid: "),
        ({**end, "diagnose": 1}, "diagnose: "),
        ({**end, "exit": 1}, "unknown key"),
    ]

    async def work() -> None:
        async with served() as here:
            for body, said in bodies:
                response = await here.client.post("/v1/jobs", json=body)
                answer = (response.status, said in (await response.json())["error"])
                assert answer == (400, True), body
            assert not (here.board.jobs.running or here.board.jobs.recent)
            assert not (here.diagnostics.began or here.diagnostics.ended)

    asyncio.run(asyncio.wait_for(work(), WAIT_S))


def test_only_root_tells_of_jobs() -> None:
    async def work() -> None:
        async with served(uid=65534) as here:
            assert (await here.tell("begin"))[0] == 403
            assert not here.board.jobs.running
            assert (await here.client.get("/v1/jobs")).status == 200

    asyncio.run(asyncio.wait_for(work(), WAIT_S))
