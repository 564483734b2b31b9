"""Runs that wait for their turn, for idle devices, or for their next attempt."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set
from dataclasses import replace

import structlog

from vitald.diagnostics.check_set import CheckSet
from vitald.diagnostics.history import RunHistory
from vitald.diagnostics.owed import BY_FINDING, OwedRuns, is_automatic
from vitald.diagnostics.results import ResultRecorder
from vitald.model.diagnostic import ActiveRun, Outcome, OwedRun, Report, Run, RunRequest

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")

MAX_QUEUED = 16  # a person's request beyond that is refused


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
