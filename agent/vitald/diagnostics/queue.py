"""
Runs that wait for their turn, for idle devices, or for their next attempt.

A request is kept over pre-emption and restarts, until a run has answered it or a person cancels it.
The schedule and the open findings repeat their requests by themselves: of these it is kept since
when a run is owed. The run that has begun is kept in the ledger before its program starts: what was
cut by a crash is recorded at the next start, and the processes that it has left are found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace

import structlog

from vitald.backoff import Backoff
from vitald.diagnostics.check_set import CheckSet
from vitald.diagnostics.results import ResultRecorder, RunHistory
from vitald.diagnostics.schedule import MAX_RETRIES, RETRY_S, SCHEDULE, was_prevented
from vitald.model.diagnostic import ActiveRun, OwedRun, Report, Run, RunRequest
from vitald.model.words import Outcome, Remedy

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")

MAX_QUEUED = 16  # a person's request beyond that is refused
_DAY_S = 86400.0
BY_FINDING = "finding #"
MAX_DELAY_S = 4.0 * RETRY_S  # between two attempts
_BACKOFF = Backoff(RETRY_S, MAX_DELAY_S)


class RunQueue:
    """The queued runs, the next one first, and all that are owed."""

    def __init__(
        self,
        checks: CheckSet,
        history: RunHistory,
        results: ResultRecorder,
        wake: Callable[[], None],
    ) -> None:
        self.queued: list[ActiveRun] = []
        self.owed = OwedRuns()
        self._checks = checks
        self._history = history
        self._results = results
        self._wake = wake
        self._serial = 0

    def enqueue(self, request: RunRequest, *, first: bool) -> ActiveRun:
        """A request of a person or a job that is owed already keeps its requester and reason."""
        now = time.time()
        owed = self.owed.find(request) or OwedRun(
            id=self._make_id(request, now), request=request, since=now
        )
        if is_automatic(owed.request):
            owed = replace(owed, request=request)
        self._keep_owed(owed)
        run = ActiveRun(
            id=owed.id,
            request=owed.request,
            requested_at=owed.since,
            expected_s=self._history.estimate_s(request, self._checks.expected_s(request)),
        )
        self.queued.insert(0 if first else len(self.queued), run)
        self._announce(run, request.by)
        return run

    def take_over(self, queued: ActiveRun, request: RunRequest) -> ActiveRun:
        """Makes an automatic run a person's: it keeps its id and goes first."""
        owed = self.owed.find(request) or OwedRun(id=queued.id, request=request, since=time.time())
        self.owed.put(replace(owed, request=request))
        self.queued.remove(queued)
        run = replace(queued, request=request, requested_at=owed.since, waits_for="")
        self.queued.insert(0, run)
        self._announce(run, request.by)
        return run

    def list_postponed(self, active: Set[str]) -> list[ActiveRun]:
        """What is owed and waits for its next attempt. `active`: ids of what is not."""
        return [
            ActiveRun(
                id=owed.id,
                request=owed.request,
                requested_at=owed.since,
                waits_for=_describe_attempts(owed),
            )
            for owed in self.owed.list_runs()
            if owed.id not in active
        ]

    def dequeue(self, queued: ActiveRun | OwedRun, reason: str) -> None:
        """Removes a run before it starts. It is recorded as inconclusive, and not owed any more."""
        self.queued = [run for run in self.queued if run.id != queued.id]
        self.owed.remove(queued.id)
        now = time.time()
        report = Report(outcome=Outcome.INCONCLUSIVE, reason=reason)
        run = Run(id=queued.id, request=queued.request, began=now, ended=now, report=report)
        self._results.record_run(run, cut=True)

    def dequeue_resolved(self, open_findings: Set[int]) -> None:
        """Removes the runs that findings requested which are no longer open."""
        for queued in [*self.queued]:
            number = queued.request.by.removeprefix(BY_FINDING)
            if number == queued.request.by or not number.isdecimal():
                continue
            if int(number) not in open_findings:
                self.dequeue(queued, f"finding #{number} is over")

    def set_wait_reasons(self, reasons: Mapping[str, str]) -> None:
        """`reasons`: by run id, what each run waits for; "" if it may start."""
        self.queued = [replace(queued, waits_for=reasons[queued.id]) for queued in self.queued]

    def pop_ready(self) -> ActiveRun | None:
        """Removes and returns the first run that waits for nothing."""
        ready = next((queued for queued in self.queued if not queued.waits_for), None)
        if ready is not None:
            self.queued.remove(ready)
        return ready

    def _make_id(self, request: RunRequest, now: float) -> str:
        self._serial += 1
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now))
        level = f"-{request.level}" if request.level else ""
        return f"{stamp}-{self._serial}-{request.check}{level}"

    def _keep_owed(self, owed: OwedRun) -> None:
        """An automatic run that waits for nothing is over before it could be owed."""
        if not is_automatic(owed.request) or self._checks.requires_idle(owed.request):
            self.owed.put(owed)

    def _announce(self, run: ActiveRun, by: str) -> None:
        self._wake()
        write = log.debug if self._checks.is_routine(run.request) else log.info
        write(
            "diagnostic_asked",
            id=run.id,
            check=run.request.check,
            run_level=run.request.level,
            by=by,
            reason=run.request.reason,
        )


def _describe_attempts(owed: OwedRun) -> str:
    if not owed.attempts:
        return ""
    at = ""
    if not is_automatic(owed.request):
        at = time.strftime(" at %H:%M UTC", time.gmtime(owed.not_before))
    return f"the next attempt{at} ({owed.attempts} so far, the last: {owed.why})"


class OwedRuns:
    """At most one for the same check, level and GPUs. `holds_node`: whether the node is held for
    those that are overdue.
    """

    def __init__(self) -> None:
        self.holds_node = False
        self._by_id: dict[str, OwedRun] = {}

    def list_runs(self) -> list[OwedRun]:
        """The one that is owed for the longest time first."""
        return sorted(self._by_id.values(), key=lambda owed: owed.since)

    def find(self, request: RunRequest) -> OwedRun | None:
        """What is owed for the same request, by any requester."""
        wanted = replace(request, by="", reason="")
        return next(
            (
                owed
                for owed in self._by_id.values()
                if replace(owed.request, by="", reason="") == wanted
            ),
            None,
        )

    def put(self, owed: OwedRun) -> None:
        self._by_id[owed.id] = owed

    def remove(self, run_id: str) -> None:
        self._by_id.pop(run_id, None)

    def take_result(self, run: Run, *, cut: bool) -> None:
        """A run has ended. `cut`: it was stopped."""
        if run.report.outcome.is_verdict:
            self._by_id = {
                owed.id: owed for owed in self._by_id.values() if not _answers(run, owed.request)
            }
            return
        owed = self._by_id.pop(run.id, None)
        # What a program reports at its own end is an answer, too, once it was repeated.
        if owed is None or not was_prevented(run) or not (cut or owed.attempts < MAX_RETRIES):
            return
        attempts = owed.attempts + 1
        self.put(
            replace(
                owed,
                id=f"{owed.id.removesuffix(f'.{attempts}')}.{attempts + 1}",
                attempts=attempts,
                not_before=run.ended + _BACKOFF.delay_s(attempts - 1),
                why=run.report.reason,
            )
        )

    @property
    def memory(self) -> Sequence[Mapping[str, object]]:
        """What must be kept across restarts, for JSON."""
        return [asdict(owed) for owed in self.list_runs()]

    def recall_memory(self, memory: Sequence[Mapping[str, object]]) -> None:
        """Restores `memory`. Raises TypeError, ValueError, AttributeError, KeyError."""
        recalled = {owed.id: owed for owed in map(_read_owed, memory)}
        self._by_id = {**recalled, **self._by_id}  # a client may have requested one already


def is_overdue(since: float, now: float) -> bool:
    return now - since >= _DAY_S


def is_automatic(request: RunRequest) -> bool:
    """True if the schedule or a finding requested the run, not a person or a job."""
    return request.by == SCHEDULE or request.by.startswith(BY_FINDING)


def _answers(run: Run, request: RunRequest) -> bool:
    """Whether the verdict of a run is one for this request: a pass is one for lower levels, too."""
    return (
        run.request.check == request.check
        and (run.request.level == request.level or run.report.outcome is Outcome.PASS)
        and run.request.level >= request.level
        and (
            not run.request.gpus
            or (bool(request.gpus) and set(request.gpus) <= set(run.request.gpus))
        )
    )


def _read_owed(stored: Mapping[str, object]) -> OwedRun:
    return OwedRun(
        id=str(stored["id"]),
        request=read_request(stored["request"]),
        since=float(str(stored["since"])),
        attempts=int(str(stored["attempts"])),
        not_before=float(str(stored["not_before"])),
        why=str(stored["why"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunRun:
    """A run that has begun and not ended."""

    id: str
    request: RunRequest
    began: float  # seconds since the epoch

    @property
    def memory(self) -> Mapping[str, object]:
        """What must be kept across restarts, for JSON."""
        return asdict(self)

    def make_interrupted_run(self, now: float, *, rebooted: bool) -> Run:
        """The run as it is recorded by the next daemon. `rebooted`: since it began."""
        cause = "the node or vitald went down" if rebooted else "vitald was killed or crashed"
        report = Report(
            outcome=Outcome.INCONCLUSIVE,
            reason=f"interrupted: {cause} while it ran",
            remedy=Remedy.RETRY,
        )
        return Run(id=self.id, request=self.request, began=self.began, ended=now, report=report)


def read_begun(stored: Mapping[str, object]) -> BegunRun:
    """Restores `memory`. Raises TypeError, ValueError, KeyError."""
    return BegunRun(
        id=str(stored["id"]),
        request=read_request(stored["request"]),
        began=float(str(stored["began"])),
    )


def read_request(stored: object) -> RunRequest:
    """Restores a request from JSON. Raises TypeError, ValueError, KeyError."""
    if not isinstance(stored, dict):
        raise TypeError("not what was stored")
    return RunRequest(
        check=str(stored["check"]),
        level=int(stored["level"]),
        gpus=tuple(map(int, stored["gpus"])),
        by=str(stored["by"]),
        reason=str(stored["reason"]),
        busy=stored["busy"] is True,
    )
