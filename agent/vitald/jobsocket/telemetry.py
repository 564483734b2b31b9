"""
What the jobs of this node report, as a whole: which jobs there are, what is stored of them, counts.

Owns     the jobs, the rate of stored events, and the notices of jobs.
Refuses  connections, which the server has, and judging the node: no finding comes from here.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import structlog

from vitald.collectors.event_factory import EventFactory
from vitald.core.job_reports import ReportedJob
from vitald.core.node_state import NodeState
from vitald.jobsocket.identity import JobIdentity
from vitald.jobsocket.job import JobProgress, note_error
from vitald.jobsocket.notes import MOMENTS, NOTICED, JobNote
from vitald.jobsocket.packets import (
    CheckpointReport,
    ErrorReport,
    Hello,
    Packet,
    PhaseReport,
    Progress,
)
from vitald.jobsocket.page import PageReading
from vitald.jobsocket.rank import RankIdentity
from vitald.jobsocket.token_bucket import TokenBucket
from vitald.model import NODE, Batch, Event, Trust, Value
from vitald.model.advice import Advice
from vitald.model.notice import JOB_NOT_FINITE, Notice, NoticeKey

log: structlog.stdlib.BoundLogger = structlog.get_logger("job_socket")

SOURCE = "job"
MAX_JOBS, MAX_JOBS_OF_USER = 64, 32
MAX_HELD, MAX_HELD_OF_JOB = 128, 64  # ranks without a connection, of one user
_EVENTS_PER_S, _EVENTS_BURST = 1 / 30.0, 64.0  # stored of one user
_MAX_OUTBOX = 1024
_MAX_NOTICES = 48  # of one user: of all users, `MAX_NOTICES` are shown
_MOMENT_S = 900.0  # that the notice of a moment is shown
_KEEP_S = 300.0  # a job without ranks: it may come back
_MAX_ELAPSED_S = 10.0  # of one judgement: the daemon itself may have been stopped


class TooManyJobs(Exception):
    """`MAX_JOBS` have ranks, or `MAX_JOBS_OF_USER` of that user."""


@dataclass(slots=True)
class _KnownJob:
    """A job, and the notices of it that are open."""

    identity: JobIdentity
    left_at: float  # when its last rank left
    is_forgotten: bool = False
    progress: JobProgress = field(default_factory=JobProgress)
    notices: dict[NoticeKey, None] = field(default_factory=dict)  # in the order of opening


@dataclass(slots=True)
class RankHandle:
    """A rank of a job, for the connection that reports it."""

    job: _KnownJob
    page_phase: PhaseReport | None = None  # as its page had it last
    number: int = 0
    is_observer: bool = False
    hold_s: float = 0.0


class JobTelemetry:
    """`store` returns once a batch is in the ledger and published."""

    def __init__(
        self,
        node_state: NodeState,
        store: Callable[[Batch], Awaitable[None]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node_state = node_state
        self._store = store
        self._clock = clock
        self._facts = EventFactory(SOURCE, node_state.boot_id)
        self._jobs: dict[str, _KnownJob] = {}
        self._budgets: dict[int, TokenBucket] = {}  # by user
        self._held: dict[tuple[str, int], tuple[RankHandle, float]] = {}  # until when
        self._outbox: deque[tuple[_KnownJob, JobNote, Event | None]] = deque()
        self._queued = asyncio.Event()
        self._judged_at = clock()
        self.reports = node_state.job_reports

    @property
    def advice(self) -> Advice:
        """What the jobs of this node are advised."""
        return self._node_state.advice

    async def run(self) -> None:
        """Store what is noted, until cancelled. A notice is shown once its event is stored."""
        while True:
            await self._queued.wait()
            self._queued.clear()
            noted = [*self._outbox]
            self._outbox.clear()
            events = tuple(event for _, _, event in noted if event is not None)
            if events:
                await self._store(Batch(SOURCE, events))
            for job, note, event in noted:
                self._update_notice(job, note, event)

    # --- what ranks report

    def add_rank(self, identity: JobIdentity, hello: Hello, pid: int) -> RankHandle:
        """Raises TooManyJobs."""
        now = self._clock()
        job = self._jobs.get(identity.key)
        if job is None:
            self._make_room(identity.uid)
            job = self._jobs[identity.key] = _KnownJob(identity, now)
        held = self._held.pop((identity.key, hello.rank), None) if hello.hold_s else None
        if held is not None and held[0].job is job:
            held[0].hold_s = hello.hold_s
            return held[0]
        handle = RankHandle(
            job, number=hello.rank, is_observer=hello.is_observer, hold_s=hello.hold_s
        )
        if hello.is_observer:
            return handle
        job.progress.add_rank(
            id(handle),
            RankIdentity(
                number=hello.rank,
                local_rank=hello.local_rank,
                world=hello.world,
                attempt=hello.attempt,
                pid=pid,
                step_limit_s=hello.step_limit_s,
            ),
            now,
        )
        return handle

    def take_packet(self, handle: RankHandle, packet: Packet) -> None:
        job, now = handle.job.progress, self._clock()
        if handle.is_observer:
            if isinstance(packet, ErrorReport):
                self._note(handle.job, [note_error(packet)])
            return
        if isinstance(packet, Progress):
            job.take_progress(id(handle), packet, now)
        elif isinstance(packet, PhaseReport):
            job.take_phase(id(handle), packet, now)
        elif isinstance(packet, CheckpointReport):
            job.take_checkpoint(id(handle), packet, now)
        elif isinstance(packet, ErrorReport):
            self._note(handle.job, [job.take_error(id(handle), packet)])

    def take_page(self, handle: RankHandle, reading: PageReading) -> None:
        """A phase that the page has had before may have been replaced by a packet."""
        if handle.is_observer:
            return
        job, now = handle.job.progress, self._clock()
        job.take_progress(id(handle), reading.progress, now)
        if reading.phase != handle.page_phase:
            handle.page_phase = reading.phase
            job.take_phase(id(handle), reading.phase, now)

    def remove_rank(self, handle: RankHandle, *, is_ours: bool = False) -> None:
        """Its connection has ended. `is_ours`: by the daemon, so that nothing follows from it."""
        if handle.is_observer:
            return
        if handle.hold_s and not handle.job.progress.ranks[id(handle)].said_goodbye:
            key = (handle.job.identity.key, handle.number)
            self._end_hold(key)  # of another connection that said the same
            self._limit_held(handle.job.identity)
            self._held[key] = handle, self._clock() + handle.hold_s
            return
        notes = handle.job.progress.remove_rank(id(handle), self._clock())
        handle.job.left_at = self._clock()
        if not is_ours:
            self._note(handle.job, notes)

    def _limit_held(self, identity: JobIdentity) -> None:
        """Make room for another one: the rank that was held first gives way. A client may name as
        many ranks as it likes.
        """
        own = [
            key for key, (rank, _) in self._held.items() if rank.job.identity.uid == identity.uid
        ]
        of_job = [key for key in own if key[0] == identity.key]
        if len(of_job) >= MAX_HELD_OF_JOB:
            self._end_hold(of_job[0])
        elif len(own) >= MAX_HELD:
            self._end_hold(own[0])

    def _end_hold(self, key: tuple[str, int]) -> None:
        """A held rank that reports nothing more. It has not died: it had no connection."""
        held = self._held.pop(key, None)
        if held is not None and not held[0].job.is_forgotten:
            self._note(
                held[0].job,
                held[0].job.progress.remove_rank(id(held[0]), self._clock(), is_left=True),
            )
            held[0].job.left_at = self._clock()

    # --- what becomes of it

    def judge(self) -> None:
        """To be called every second, after the pages were read."""
        now = self._clock()
        elapsed = min(now - self._judged_at, _MAX_ELAPSED_S)
        self._judged_at = now
        for held_key, (_, until) in list(self._held.items()):
            if now >= until:
                self._end_hold(held_key)
        for job in self._jobs.values():
            activity = job.progress.activity
            if activity:
                self.reports.seconds[activity] += elapsed
            self._note(job, job.progress.judge(now))
            self._end_moments(job)
        for key, job in list(self._jobs.items()):
            if not job.progress.ranks and now - job.left_at > _KEEP_S:
                self._forget_job(key)
        self.reports.jobs = self._list_jobs(now)
        for uid, budget in list(self._budgets.items()):
            if budget.is_full(now):
                del self._budgets[uid]

    def _list_jobs(self, now: float) -> tuple[ReportedJob, ...]:
        """Those with ranks, in the order in which they were first heard of."""
        shift = time.time() - now
        reported = []
        for job in self._jobs.values():
            if not job.progress.ranks:
                continue
            identity, summary = job.identity, job.progress.summarize()
            user, moved = self._find_user(identity), summary.moved_at
            reported.append(
                ReportedJob(
                    name=identity.describe(user),
                    slurm=identity.slurm,
                    pod=identity.pod,
                    claimed=identity.claimed,
                    uid=identity.uid,
                    user=user,
                    ranks=summary.ranks,
                    step=summary.step,
                    step_seconds=summary.step_seconds,
                    last_step=moved + shift if moved is not None else None,
                    activity=summary.activity,
                    loss=summary.loss,
                    led_world=summary.led_world,
                    saved=summary.saved_at + shift if summary.saved_at is not None else None,
                )
            )
        return tuple(reported)

    def _find_user(self, identity: JobIdentity) -> str:
        """The user as the scheduler reported it, if the job is that user's."""
        known = self._node_state.jobs.running.get(identity.slurm)
        return known.user if known is not None and known.uid in (None, identity.uid) else ""

    # --- notes

    def _note(self, job: _KnownJob, notes: Iterable[JobNote]) -> None:
        for note in notes:
            self._count_note(note)
            is_allowed = bool(note.code) and self._is_allowed(job.identity.uid)
            self.reports.unstored += bool(note.code) and not is_allowed
            if is_allowed or note.closes:
                event = self._make_event(job.identity, note) if is_allowed else None
                self._outbox.append((job, note, event))
                self._queued.set()

    def _count_note(self, note: JobNote) -> None:
        self.reports.not_finite += note.code == JOB_NOT_FINITE
        done = note.checkpoint
        if done is None:
            return
        count = self.reports.checkpoints[done.tier]
        if done.failed:
            count.failed += 1
        else:
            count.complete += 1
            count.bytes += done.bytes
            count.seconds += done.seconds

    def _is_allowed(self, uid: int) -> bool:
        now = self._clock()
        budget = self._budgets.get(uid)
        if budget is None:
            budget = self._budgets[uid] = TokenBucket(_EVENTS_PER_S, _EVENTS_BURST, now)
        return len(self._outbox) < _MAX_OUTBOX and budget.take(now)

    def _make_event(self, identity: JobIdentity, note: JobNote) -> Event:
        job: dict[str, Value] = {"job": identity.slurm or identity.claimed, "uid": identity.uid}
        if identity.pod:
            job["pod"] = identity.pod
        if identity.is_claim:
            job["claimed"] = True
        text = f"{identity.describe(self._find_user(identity))}: {note.text}"
        event = self._facts.make_event(note.code, NODE, {**job, **note.fields}, text)
        return replace(event, trust=Trust.JOB)

    # --- notices

    def _update_notice(self, job: _KnownJob, note: JobNote, event: Event | None) -> None:
        """What an event opens is shown once it is stored."""
        if job.is_forgotten:
            return
        subject = " ".join(filter(None, (job.identity.key, note.subject)))
        if note.closes:
            self._close_notice(job, (note.closes, NODE, subject))
        if event is None or note.code not in NOTICED:
            return
        key = (note.code, NODE, subject)
        former = self._node_state.notices.find_notice(key)
        self._limit_notices(job.identity.uid)
        job.notices[key] = None
        self._node_state.notices.open_notice(
            Notice(
                code=note.code,
                component=NODE,
                subject=subject,
                since=former.since if former is not None else event.time,
                last=event.time,
                count=former.count + 1 if former is not None else 1,
                text=event.raw,
                fields=event.fields,
            )
        )

    def _limit_notices(self, uid: int) -> None:
        """Make room for another one of a user: one user must not close those of others."""
        own = [
            (job, key)
            for job in self._jobs.values()
            if job.identity.uid == uid
            for key in job.notices
        ]
        if len(own) >= _MAX_NOTICES:
            self._close_notice(*own[0])

    def _close_notice(self, job: _KnownJob, key: NoticeKey) -> None:
        job.notices.pop(key, None)
        self._node_state.notices.close_notice(key)

    def _end_moments(self, job: _KnownJob) -> None:
        """Notices of moments end after a while."""
        until = time.time() - _MOMENT_S
        for key in list(job.notices):
            notice = self._node_state.notices.find_notice(key)
            if notice is None or (key[0] in MOMENTS and notice.last < until):
                self._close_notice(job, key)

    def _make_room(self, uid: int) -> None:
        """For another job of a user. Raises TooManyJobs."""
        own = {key: job for key, job in self._jobs.items() if job.identity.uid == uid}
        if len(own) >= MAX_JOBS_OF_USER:
            self._forget_empty(own)
        elif len(self._jobs) >= MAX_JOBS:
            self._forget_empty(self._jobs)

    def _forget_empty(self, jobs: Mapping[str, _KnownJob]) -> None:
        """Forget the job whose ranks left first. Raises TooManyJobs if each has ranks."""
        left = [(job.left_at, key) for key, job in jobs.items() if not job.progress.ranks]
        if not left:
            raise TooManyJobs
        self._forget_job(min(left)[1])

    def _forget_job(self, key: str) -> None:
        job = self._jobs.pop(key)
        job.is_forgotten = True
        for notice_key in list(job.notices):
            self._close_notice(job, notice_key)
