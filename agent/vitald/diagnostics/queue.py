"""Runs that wait for their turn or for idle devices, and the callers that wait for a result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import replace

import structlog

from vitald.diagnostics.check_set import CheckSet
from vitald.diagnostics.history import RunHistory
from vitald.diagnostics.results import ResultRecorder
from vitald.diagnostics.schedule import SCHEDULE
from vitald.model.diagnostic import ActiveRun, Outcome, Report, Run, RunRequest

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")

MAX_QUEUED = 16  # a person's request beyond that is refused
_BY_FINDING = "finding #"


class RunQueue:
    """The queued runs, the next one first."""

    def __init__(
        self,
        checks: CheckSet,
        history: RunHistory,
        results: ResultRecorder,
        wake: Callable[[], None],
    ) -> None:
        self.queued: list[ActiveRun] = []
        self._checks = checks
        self._history = history
        self._results = results
        self._wake = wake
        self._serial = 0
        self._waiters: dict[str, asyncio.Future[Run]] = {}

    def enqueue(self, ask: RunRequest, *, first: bool) -> ActiveRun:
        self._serial += 1
        now = time.time()
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now))
        level = f"-{ask.level}" if ask.level else ""
        run = ActiveRun(
            id=f"{stamp}-{self._serial}-{ask.check}{level}",
            ask=ask,
            asked_at=now,
            expected_s=self._history.estimate_s(ask, self._checks.expected_s(ask)),
        )
        self.queued.insert(0 if first else len(self.queued), run)
        self._waiters[run.id] = asyncio.get_running_loop().create_future()
        self._announce(run)
        return run

    def take_over(self, queued: ActiveRun, ask: RunRequest) -> ActiveRun:
        """Makes an automatic run a person's: it keeps its id and goes first."""
        self.queued.remove(queued)
        run = replace(queued, ask=ask, waits_for="")
        self.queued.insert(0, run)
        self._announce(run)
        return run

    def dequeue(self, queued: ActiveRun, reason: str) -> None:
        """Removes a run before it starts. It is recorded as inconclusive."""
        self.queued.remove(queued)
        now = time.time()
        report = Report(outcome=Outcome.INCONCLUSIVE, reason=reason)
        run = Run(id=queued.id, ask=queued.ask, began=now, ended=now, report=report)
        self._results.record_run(run, cut=True)

    def dequeue_removed(self) -> None:
        """Removes the runs of checks that are not configured any more."""
        for queued in [*self.queued]:
            if queued.ask.check not in self._checks.by_name:
                self.dequeue(queued, "the check was removed from the configuration")

    def dequeue_resolved(self, open_findings: Set[int]) -> None:
        """Removes the runs that findings requested which are no longer open."""
        for queued in [*self.queued]:
            number = queued.ask.by.removeprefix(_BY_FINDING)
            if number == queued.ask.by or not number.isdecimal():
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

    def get_waiter(self, run_id: str) -> asyncio.Future[Run] | None:
        """The future of a run that is not stored yet."""
        return self._waiters.get(run_id)

    def resolve_waiter(self, run: Run) -> None:
        """Hands the run to the callers that wait for it."""
        waiter = self._waiters.pop(run.id, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(run)

    def _announce(self, run: ActiveRun) -> None:
        self._wake()
        write = log.debug if self._checks.is_routine(run.ask) else log.info
        write(
            "diagnostic_asked",
            id=run.id,
            check=run.ask.check,
            run_level=run.ask.level,
            by=run.ask.by,
            reason=run.ask.reason,
        )


def is_automatic(ask: RunRequest) -> bool:
    """True if the schedule or a finding requested the run, not a person or a job."""
    return ask.by == SCHEDULE or ask.by.startswith(_BY_FINDING)
