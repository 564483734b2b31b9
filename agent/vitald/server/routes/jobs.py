"""
The jobs on this node, over the socket: `POST /v1/jobs` from a scheduler's prolog and epilog,
`GET /v1/jobs`, and what a scheduler did with the node: `POST /v1/scheduler`.

Owns     what a scheduler may report, the event of each report of a job, that a job finds the
         devices free, and the request of a diagnostic after it.
Refuses  remembering jobs, which `vitald.core.jobs` does with the events once they are stored;
         keeping what a scheduler did, which is the node's state; and running anything.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog
from aiohttp import web

from vitald.checking import read_flag, read_line, read_match, read_whole
from vitald.collectors.event_factory import EventFactory
from vitald.core.jobs import BEGAN, DIED, ENDED, JOB_CODES, Job
from vitald.core.node_state import NodeState
from vitald.ledger.queries import PastQuery, read_events
from vitald.model.component import NODE
from vitald.model.diagnostic import ActiveRun, Refusal, RunRequest
from vitald.model.event import Event, Value
from vitald.model.finding import Finding
from vitald.model.source import Batch
from vitald.model.words import Action
from vitald.server import endpoints, serialize
from vitald.server.request import (
    RequestRefused,
    make_route,
    read_body,
    read_limit,
    read_value,
    require_change_right,
)

if TYPE_CHECKING:
    from vitald.server import schema


log: structlog.stdlib.BoundLogger = structlog.get_logger("api")

SOURCE = "scheduler"
_MAX_EVENTS = 2000  # events of jobs that are read at a start
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+\[\]/-]{0,63}")
_MAX_USER, _MAX_REASON = 64, 200
_MAX_NUMBER = {"uid": 2**32 - 1, "exitCode": 255, "signal": 127}
_LEVEL = 2
_MAX_NAMED = 6


class JobDiagnostics(Protocol):
    """The part of diagnostics that jobs use. `request_run` raises Refusal; `store_requests` returns
    once the requests are kept.
    """

    async def begin_job(self, job: str) -> None: ...
    def end_job(self, job: str) -> None: ...
    def request_run(self, request: RunRequest) -> ActiveRun: ...
    async def store_requests(self) -> None: ...


class JobRoutes:
    """The handlers. `store` returns once a batch is in the ledger and on the board; `diagnostics`
    is None where there are none.
    """

    def __init__(
        self,
        node_state: NodeState,
        store: Callable[[Batch], Awaitable[None]],
        diagnostics: JobDiagnostics | None,
    ) -> None:
        self._node_state = node_state
        self._store = store
        self._diagnostics = diagnostics
        self._facts = EventFactory(SOURCE, node_state.boot_id)
        self._clearing: set[asyncio.Task[None]] = set()  # of the devices, for jobs that begin
        # By job: the task that stores its begin.
        self._beginning: dict[str, asyncio.Task[None]] = {}

    def list_routes(self) -> list[web.RouteDef]:
        return [
            make_route(endpoints.JOBS, self.list_jobs),
            make_route(endpoints.REPORT_JOB, self.record_event),
        ]

    async def list_jobs(self, request: web.Request) -> schema.ApiJobs:
        """Lists the running and the ended jobs, the latest first."""
        most, jobs = read_limit(request.query), self._node_state.jobs
        running, recent = [*jobs.running.values()][::-1], [*jobs.recent][::-1]
        return {
            "running": [serialize.format_job(job) for job in running[:most]],
            "recent": [serialize.format_job(job) for job in recent[:most]],
            "more": max(len(running), len(recent)) > most,
        }

    async def record_event(self, request: web.Request) -> schema.JobReported:
        """Records that a job begins or has ended, as its scheduler reports."""
        peer = require_change_right(request)
        body = await read_body(
            request, "event", "job", "user", "uid", "exitCode", "signal", "reason", "diagnose"
        )
        event = body.get("event")
        if event not in ("begin", "end"):
            raise RequestRefused(400, f"event: must be one of begin, end, not {str(event)[:80]!r}")
        diagnose = read_value(body, "diagnose", read_flag, False)
        job = _job_of(body)
        if event == "begin":
            await self._begin_job(job)
            answer = _make_answer(self._node_state.jobs.running.get(job.id, job))
        else:
            answer = await self._end_job(job, diagnose=diagnose)
        log.info(
            "job_recorded",
            job_event=event,
            job=job.id,
            user=job.user,
            end=job.outcome if event == "end" else "",
            uid=peer.uid,
            pid=peer.pid,
        )
        return answer

    async def _begin_job(self, job: Job) -> None:
        """Answers once it is known, and no diagnostic of ours holds the devices any more (or cannot
        be ended).
        """
        clearing = None
        if self._diagnostics is not None:
            # It goes on where the prolog does not wait for it: the job may begin all the same.
            clearing = asyncio.ensure_future(self._diagnostics.begin_job(job.id))
            self._clearing.add(clearing)
            clearing.add_done_callback(self._clearing.discard)
        saying = asyncio.ensure_future(self._store_event(BEGAN, job, f"{job.name} began"))
        self._beginning[job.id] = saying
        saying.add_done_callback(
            lambda done: (
                self._beginning.pop(job.id) if self._beginning.get(job.id) is done else None
            )
        )
        await asyncio.shield(saying)
        if clearing is not None:
            await asyncio.shield(clearing)

    async def _end_job(self, job: Job, *, diagnose: bool) -> schema.JobReported:
        if self._diagnostics is not None:
            self._diagnostics.end_job(job.id)
        if (saying := self._beginning.get(job.id)) is not None:
            # An end stored before its begin would leave the job running for ever.
            await asyncio.shield(saying)
        jobs = self._node_state.jobs
        former = jobs.running.get(job.id)
        # Slurm runs the epilog of a job that the prolog refused, too, which never ran here; and a
        # script may be run twice.
        if former is None and (not job.failed or jobs.has_ended_recently(job.id, time.time())):
            return _make_answer(None)
        began = former.began if former is not None else None
        left = [
            found
            for found in self._node_state.findings
            if began is not None and found.since >= began and _counts_for_job(found)
        ]
        await self._store_event(
            DIED if job.failed else ENDED,
            job,
            f"{job.name} ended" + (f" with {job.outcome}" if job.outcome else ""),
        )
        job = next((ended for ended in reversed(jobs.recent) if ended.id == job.id), job)
        wanted = diagnose and (job.failed or bool(left))
        asked = await self._request_diagnostic(job, left) if wanted else None
        return _make_answer(job, left, asked)

    async def _request_diagnostic(
        self, job: Job, left: list[Finding]
    ) -> schema.RequestedDiagnostic:
        numbers = ", ".join(f"#{found.id}" for found in left[:_MAX_NAMED])
        why = " and ".join(
            filter(
                None,
                [
                    f"ended with {job.outcome}" if job.outcome else "",
                    f"left {numbers}" if numbers else "",
                ],
            )
        )
        try:
            if self._diagnostics is None:
                raise Refusal("diagnostics are not run on this node")
            active = self._diagnostics.request_run(
                RunRequest(
                    check="dcgm", level=_LEVEL, by=f"job {job.id}", reason=f"{job.name} {why}"
                )
            )
            await self._diagnostics.store_requests()
        except Refusal as refusal:
            return {"requested": False, "id": None, "why": str(refusal)}
        return {"requested": True, "id": active.id, "why": active.request.reason}

    async def _store_event(self, code: str, job: Job, text: str) -> None:
        fields: dict[str, Value] = {"job": job.id, "user": job.user, "uid": job.uid}
        if code != BEGAN:
            fields |= {"exitCode": job.exit_code, "signal": job.signal, "reason": job.reason}
        await self._store(Batch(SOURCE, (self._facts.make_event(code, NODE, fields, text),)))


def read_jobs(path: Path) -> list[Event]:
    """The events of jobs, for `Jobs.restore_jobs`, in the ledger's order. Raises LedgerError."""
    queries = [
        PastQuery(kind="job", newest=True, limit=_MAX_EVENTS),
        *(PastQuery(code=code, newest=True) for code in JOB_CODES if not code.startswith("job/")),
    ]
    stored = [row for query in queries for row in read_events(path, query)]
    return [row.event for row in sorted(stored, key=lambda row: row.id)]


def _make_answer(
    job: Job | None,
    left: Sequence[Finding] = (),
    diagnostic: schema.RequestedDiagnostic | None = None,
) -> schema.JobReported:
    return {
        "ok": True,
        "job": serialize.format_job(job) if job is not None else None,
        "findings": [finding.id for finding in left],
        "diagnostic": diagnostic,
    }


def _counts_for_job(found: Finding) -> bool:
    """Whether a finding may be the work's doing, or have been its end: what vitald says of itself
    is not.
    """
    return not found.is_simulated and found.kind != "vitald" and found.action is not Action.NONE


def _job_of(body: serialize.Json) -> Job:
    """What a client says of a job, held to what a job can be."""
    return Job(
        id=read_value(body, "job", _read_id, hint='send {"event": "begin", "job": "1234"}'),
        user=_read_text(body, "user", _MAX_USER),
        uid=_read_number(body, "uid"),
        exit_code=_read_number(body, "exitCode"),
        signal=_read_number(body, "signal"),
        reason=_read_text(body, "reason", _MAX_REASON),
    )


def _read_id(value: object) -> str:
    return read_match(value, _ID, "its id: 1 to 64 letters, digits, or _ . : + [ ] / -")


def _read_text(body: serialize.Json, name: str, most: int) -> str:
    expected = f"at most {most} printable characters of ASCII"
    read = partial(read_line, least=0, most=most, expected=expected, ascii_only=True)
    return read_value(body, name, read, "").strip()


def _read_number(body: serialize.Json, name: str) -> int | None:
    """None where it is left out, or null."""
    if body.get(name) is None:
        return None
    most = _MAX_NUMBER[name]
    expected = f"a number from 0 to {most}"
    return read_value(
        body, name, lambda value: read_whole(value, 0, most, expected, from_json=True)
    )


class SchedulerRoutes:
    """The handler."""

    def __init__(self, node_state: NodeState) -> None:
        self._node_state = node_state

    def list_routes(self) -> list[web.RouteDef]:
        return [make_route(endpoints.REPORT_SCHEDULER, self.note_state)]

    async def note_state(self, request: web.Request) -> schema.SchedulerReported:
        """Notes when the node was drained, and when it was in service again."""
        require_change_right(request)
        state = (await read_body(request, "state")).get("state")
        steps = self._node_state.incident_steps
        if state == "drained":
            steps.note_drained(time.time())
        elif state == "in_service":
            steps.note_in_service(time.time())
        else:
            raise RequestRefused(
                400, f"state: must be one of drained, in_service, not {str(state)[:80]!r}"
            )
        return {"ok": True}
