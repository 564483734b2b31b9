"""Runs that have just ended: what is reported, counted, logged and kept of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog

from vitald.diagnostics import summary
from vitald.diagnostics.history import RunHistory
from vitald.diagnostics.summary import DeepLog
from vitald.model import Batch
from vitald.model.diagnostic import Outcome, Run, RunRequest
from vitald.worker_thread import WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")


@dataclass(slots=True)
class PendingResult:
    """A run that is not in the ledger yet. `batch` is set at the first attempt to hand it in: later
    attempts carry the same events. `cut`: the run was stopped. `is_news`: it says more than the run
    before it.
    """

    run: Run
    cut: bool
    is_news: bool
    batch: Batch | None = None


class ResultRecorder:
    """Receives every run that has ended. `pending` is emptied by the source."""

    def __init__(
        self,
        history: RunHistory,
        is_routine: Callable[[RunRequest], bool],
        *,
        count: Callable[[Run], None],
        wake: Callable[[], None],
        deep_log: DeepLog | None,
    ) -> None:
        self.pending: deque[PendingResult] = deque()
        self._history = history
        self._is_routine = is_routine
        self._count = count
        self._wake = wake
        self._deep_log = deep_log
        # A thread of its own: the file system of the deep log may hang.
        self._log_writer = WorkerThread("diagnostics-log")

    def record_run(self, run: Run, *, cut: bool) -> None:
        is_news = self._is_news(run)
        self.pending.append(PendingResult(run, cut, is_news))
        self._wake()
        self._count(run)
        self._history.add_run(run)
        _log_run(run, is_news=is_news)
        if self._deep_log is not None and run.command and is_news:
            self._log_writer.post(partial(self._deep_log.add_run, run))

    def close(self) -> None:
        self._log_writer.close()

    def _is_news(self, run: Run) -> bool:
        """Not if it is routine and has passed, or came to the same as the run before it."""
        if not self._is_routine(run.request):
            return True
        former = self._history.last_runs.get((run.request.check, run.request.level))
        is_same = former is not None and former.report.outcome is run.report.outcome
        return not is_same and run.report.outcome is not Outcome.PASS


def _log_run(run: Run, *, is_news: bool) -> None:
    expected = run.preempted or run.report.outcome in (Outcome.PASS, Outcome.NOT_APPLICABLE)
    write = log.debug if not is_news else log.info if expected else log.warning
    write(
        "diagnostic_ended",
        id=run.id,
        outcome=run.report.outcome.value,
        action=run.report.remedy.value,
        reason=run.report.reason,
        seconds=round(run.ended - run.began, 1),
        **({"preempted": run.preempted} if run.preempted else {}),
    )
    if line := summary.format_summary(run):
        log.info(line)
