"""
Jobs on this node: those that run, those that ran, and how they ended.

Owns     the recent jobs, and which of them were near an incident.
Refuses  I/O and judging: the judge gets the same events, and counts failed jobs in the device's
         record.

The events are stored already; after a start they are read from the ledger. A job whose end was
never reported ended with its boot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice

from vitald.model.event import BOOT, CLOCK_STEPPED, JOB_DIED, Event, Fields
from vitald.model.finding import Incident

BEGAN, ENDED, DIED = "job/began", "job/ended", JOB_DIED
# The codes of the events that change what is remembered
JOB_CODES = (
    BEGAN,
    ENDED,
    DIED,
    BOOT,
    CLOCK_STEPPED,
)

AROUND_S = 600.0  # a job that ended so long before or after an incident is listed with it
_KEEP_S = 86400.0
_MAX_RUNNING, _MAX_RECENT, _MAX_LISTED = 256, 512, 8
_MAX_INCIDENTS = 256  # open ones whose jobs are kept for longer
_BOOTED = "the node was booted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job on this node. Times in seconds since the epoch; None if not reported."""

    id: str
    user: str = ""
    uid: int | None = None
    began: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""  # in the scheduler's words
    boot_id: str = ""
    lost: bool = False  # its end was not reported: `ended` is when it cannot have run any more

    @property
    def failed(self) -> bool:
        return bool(self.exit_code or self.signal)

    @property
    def name(self) -> str:
        """`job 1234 of alice`, for texts."""
        return f"job {self.id} of {self.user}" if self.user else f"job {self.id}"

    @property
    def outcome(self) -> str:
        """`exit 1`, `signal 9`; empty if it succeeded, or its result was not reported."""
        if self.signal:
            return f"signal {self.signal}"
        return f"exit {self.exit_code}" if self.exit_code else ""


class Jobs:
    """The running jobs, and those that ended within a day; those near an open incident are kept for
    longer.
    """

    def __init__(self) -> None:
        self.running: dict[str, Job] = {}
        self.recent: deque[Job] = deque(maxlen=_MAX_RECENT)  # as they ended

    def take_event(self, event: Event, incidents: Iterable[Incident] = ()) -> None:
        """Apply an event of `JOB_CODES`; any other changes nothing. `incidents` are those that may
        be open.
        """
        self._apply_event(event)
        if event.code in (ENDED, DIED):
            self._forget_old(event.time, incidents)

    def restore_jobs(
        self,
        events: Iterable[Event],
        boot_id: str,
        booted_at: float,
        incidents: Iterable[Incident] = (),
    ) -> None:
        """Restore from the events in the ledger, oldest first. Jobs of an earlier boot ended by
        `booted_at`, when this one began.
        """
        self.running, self.recent = {}, deque(maxlen=_MAX_RECENT)
        last = booted_at
        for event in events:
            self._apply_event(event)
            last = max(last, event.time)
        self._end_former_jobs(boot_id, booted_at)
        self._forget_old(last, incidents)

    def has_ended_recently(self, id_: str, now: float) -> bool:
        """True if its end has been reported already."""
        return any(job.id == id_ and now - (job.ended or 0.0) <= AROUND_S for job in self.recent)

    def list_near_incident(self, incident: Incident) -> list[Job]:
        """The jobs that ran at an incident's time, or ended shortly before or after: those that
        failed first, then the nearest in time.

        Incidents of vitald itself have no jobs.
        """
        if incident.root.code.startswith("vitald/"):
            return []
        found = [job for job in (*self.recent, *self.running.values()) if _is_near(job, incident)]
        return sorted(found, key=lambda job: (not job.failed, _measure_distance(job, incident)))[
            :_MAX_LISTED
        ]

    def _apply_event(self, event: Event) -> None:
        if event.is_simulated:
            return
        if event.code == CLOCK_STEPPED:
            self._shift_times(event.fields.get("seconds"))
        elif event.code == BOOT:
            self._end_former_jobs(event.boot_id, event.time)
        elif event.code == BEGAN:
            self._begin_job(event)
        elif event.code in (ENDED, DIED):
            self._end_job(event)

    def _begin_job(self, event: Event) -> None:
        job = _read_job(event.fields)
        former = self.running.pop(job.id, None)
        if former is not None:  # its end was not reported
            self._move_to_recent(replace(former, ended=event.time, lost=True))
        elif len(self.running) >= _MAX_RUNNING:
            self._move_to_recent(
                replace(next(iter(self.running.values())), ended=event.time, lost=True)
            )
        self.running[job.id] = replace(
            job, began=event.time, exit_code=None, signal=None, boot_id=event.boot_id
        )

    def _end_job(self, event: Event) -> None:
        job = _read_job(event.fields)
        former = self.running.get(job.id)
        self._move_to_recent(
            replace(
                job,
                began=former.began if former is not None else None,
                ended=event.time,
                boot_id=event.boot_id,
            )
        )

    def _end_former_jobs(self, boot_id: str, booted_at: float) -> None:
        for job in [job for job in self.running.values() if job.boot_id != boot_id]:
            # Where the clock was set back, the boot seems to be before the job.
            ended = max(booted_at, job.began or 0.0)
            self._move_to_recent(replace(job, ended=ended, reason=_BOOTED, lost=True))

    def _move_to_recent(self, job: Job) -> None:
        self.running.pop(job.id, None)
        self.recent.append(job)

    def _shift_times(self, seconds: object) -> None:
        """The clock was stepped: convert past times to the new clock, like those of incidents."""
        if not isinstance(seconds, (int, float)):
            return
        self.running = {id_: _shift_job(job, seconds) for id_, job in self.running.items()}
        self.recent = deque((_shift_job(job, seconds) for job in self.recent), maxlen=_MAX_RECENT)

    def _forget_old(self, now: float, incidents: Iterable[Incident]) -> None:
        opened = list(
            islice(
                (incident for incident in incidents if incident.closed_at is None), _MAX_INCIDENTS
            )
        )
        kept = (
            job
            for job in self.recent
            if now - (job.ended or 0.0) <= _KEEP_S
            or any(_is_near(job, incident) for incident in opened)
        )
        self.recent = deque(kept, maxlen=_MAX_RECENT)


def _read_job(fields: Fields) -> Job:
    return Job(
        id=str(fields.get("job") or ""),
        user=str(fields.get("user") or ""),
        uid=_read_integer(fields, "uid"),
        exit_code=_read_integer(fields, "exitCode"),
        signal=_read_integer(fields, "signal"),
        reason=str(fields.get("reason") or ""),
    )


def _read_integer(fields: Fields, name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _shift_job(job: Job, seconds: float) -> Job:
    return replace(
        job,
        began=job.began + seconds if job.began is not None else None,
        ended=job.ended + seconds if job.ended is not None else None,
    )


def _is_near(job: Job, incident: Incident) -> bool:
    began = job.began if job.began is not None else job.ended
    if began is None:
        return False
    if began <= incident.last and (job.ended is None or job.ended >= incident.since):
        return True
    return (
        job.ended is not None and incident.since - AROUND_S <= job.ended <= incident.last + AROUND_S
    )


def _measure_distance(job: Job, incident: Incident) -> float:
    return abs((job.ended if job.ended is not None else incident.last) - incident.since)
