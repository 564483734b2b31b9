"""
Asks NCCL RAS about jobs that seem to make no progress, and shows what it says as a notice.

Owns     when a job is asked, how often, and the notice.
Refuses  what makes a job suspected, which its caller knows, and what an answer means.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from vitald.collectors.event_factory import EventFactory
from vitald.core.job_reports import STALLED
from vitald.core.node_state import NodeState
from vitald.model import NODE, Batch, Trust, Value
from vitald.model.notice import JOB_COLLECTIVE, Notice
from vitald.nccl_ras.comparison import find_suspicion
from vitald.nccl_ras.document import Communicator, parse_answer
from vitald.nccl_ras.protocol import Format, RasError, ask_for_status, find_listener
from vitald.nccl_ras.report_text import list_problems
from vitald.text import limit_bytes

log: structlog.stdlib.BoundLogger = structlog.get_logger("nccl_ras")

SOURCE = "nccl_ras"
LOOK_S = 5.0
WAITING_S = 90.0  # that the GPUs only wait, until the jobs that rank 0 leads here are suspected
ASK_EVERY_S = 60.0  # a query makes all processes of the job answer
MAX_QUERIES = 10  # of one suspicion
# A rank takes 537 bytes of a JSON document; a report in words names outliers only.
MAX_JSON_RANKS = 512
_MAX_TEXT = 500  # bytes


@dataclass(frozen=True, slots=True)
class SuspectedJob:
    """A job that seems to make no progress, and whose rank 0 is on this node. `subject` names it,
    also for operators; `uid` is its user, `world` the number of its ranks by its own word.
    """

    subject: str
    uid: int
    world: int


def list_suspected(node_state: NodeState) -> list[SuspectedJob]:
    """The jobs that have stalled, and all running ones while the GPUs of this node only wait; of
    these, the ones whose rank 0 is here.
    """
    waiting = node_state.waiting
    waited_s = waiting.get_seconds(time.monotonic()) if waiting is not None else None
    waits = waited_s is not None and waited_s > WAITING_S
    return [
        SuspectedJob(subject=job.name, uid=job.uid, world=job.led_world)
        for job in node_state.job_reports.jobs
        if job.led_world is not None and (job.activity == STALLED or (waits and job.activity))
    ]


@dataclass(slots=True)
class _Inquiry:
    """What was asked about a job since it is suspected."""

    asked: int = 0
    next_at: float = 0.0
    former: tuple[Communicator, ...] | tuple[str, ...] | None = None
    notice: Notice | None = None
    refused: list[str] = field(default_factory=list)


class RasWatch:
    """`list_suspected`: the jobs that are suspected now. `store` returns once a batch is in the
    ledger and published.
    """

    def __init__(
        self,
        node_state: NodeState,
        list_suspected: Callable[[], Sequence[SuspectedJob]],
        store: Callable[[Batch], Awaitable[None]],
        port: int,
        procfs: Path,
        *,
        look_s: float = LOOK_S,
        ask_every_s: float = ASK_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node_state = node_state
        self._list_suspected = list_suspected
        self._store = store
        self._port = port
        self._procfs = procfs
        self._look_s = look_s
        self._ask_every_s = ask_every_s
        self._clock = clock
        self._facts = EventFactory(SOURCE, node_state.boot_id)
        self._inquiries: dict[str, _Inquiry] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._look_s)

    async def look(self) -> None:
        """Ask about the jobs for which it is time, and close the notices of the others."""
        suspected = {job.subject: job for job in self._list_suspected()}
        for subject in [name for name in self._inquiries if name not in suspected]:
            self._end_inquiry(self._inquiries.pop(subject))
        for job in suspected.values():
            inquiry = self._inquiries.setdefault(job.subject, _Inquiry())
            if inquiry.asked < MAX_QUERIES and self._clock() >= inquiry.next_at:
                inquiry.asked += 1
                inquiry.next_at = self._clock() + self._ask_every_s
                await self._ask(job, inquiry)

    async def _ask(self, job: SuspectedJob, inquiry: _Inquiry) -> None:
        try:
            answer = await self._read_answer(job)
        except (RasError, ValueError) as error:
            self._note_refusal(job, inquiry, str(error))
            return
        former, inquiry.former = inquiry.former, answer
        text = "" if former is None else _describe(former, answer)
        if text:
            await self._notice(job, inquiry, limit_bytes(text, _MAX_TEXT))

    async def _read_answer(self, job: SuspectedJob) -> tuple[Communicator, ...] | tuple[str, ...]:
        """Raises RasError, or ValueError for an answer that is no valid document."""
        listener = await asyncio.to_thread(find_listener, self._port, self._procfs)
        if listener != job.uid:
            whose = "no user" if listener is None else f"user {listener}"
            raise RasError(
                f"127.0.0.1:{self._port}: {whose} listens there, and the job is of user {job.uid}"
            )
        format_ = Format.JSON if job.world <= MAX_JSON_RANKS else Format.TEXT
        answer = await ask_for_status(self._port, format_)
        if format_ is Format.TEXT:
            return list_problems(answer)
        return await asyncio.to_thread(parse_answer, answer)

    def _note_refusal(self, job: SuspectedJob, inquiry: _Inquiry, reason: str) -> None:
        """Each reason is logged once: NCCL RAS may be switched off, or the job may use no NCCL."""
        if reason not in inquiry.refused:
            inquiry.refused.append(reason)
            log.info("nccl_ras_not_read", job=job.subject, error=reason)

    async def _notice(self, job: SuspectedJob, inquiry: _Inquiry, text: str) -> None:
        now = time.time()
        known = inquiry.notice
        if known is not None and known.text == text:
            inquiry.notice = replace(known, last=now, count=known.count + 1)
        else:
            fields: dict[str, Value] = {"job": job.subject, "uid": job.uid}
            event = self._facts.make_event(JOB_COLLECTIVE, NODE, fields, text)
            await self._store(Batch(SOURCE, (replace(event, trust=Trust.JOB),)))
            inquiry.notice = Notice(
                code=JOB_COLLECTIVE,
                component=NODE,
                since=now if known is None else known.since,
                last=now,
                text=text,
                subject=job.subject,
                fields=fields,
            )
        self._node_state.notices.open_notice(inquiry.notice)

    def _end_inquiry(self, inquiry: _Inquiry) -> None:
        if inquiry.notice is not None:
            self._node_state.notices.close_notice(inquiry.notice.key)


def _describe(
    former: tuple[Communicator, ...] | tuple[str, ...],
    latest: tuple[Communicator, ...] | tuple[str, ...],
) -> str:
    """What both answers say is wrong; empty if nothing, or if the job has moved in between."""
    before = [each for each in former if isinstance(each, Communicator)]
    after = [each for each in latest if isinstance(each, Communicator)]
    if before or after:
        suspicion = find_suspicion(before, after)
        return "" if suspicion is None else suspicion.text
    lines = [each for each in latest if isinstance(each, str)]
    return "; ".join(lines) if former == latest else ""
