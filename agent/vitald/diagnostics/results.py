"""
Runs that have ended: what is reported, counted and logged of them, and what is kept in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import structlog

from vitald.diagnostics import hyperpod_log
from vitald.diagnostics.hyperpod_log import DeepLog
from vitald.diagnostics.node_view import MAX_PAST_RUNS, NodeView
from vitald.diagnostics.problem_log import ProblemLog
from vitald.diagnostics.schedule import SCHEDULE
from vitald.model.diagnostic import Run, RunRequest
from vitald.model.source import Batch
from vitald.model.words import Outcome
from vitald.worker_thread import WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")

_MAX_RECENT = 4


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
    if line := hyperpod_log.format_summary(run):
        log.info(line)


class RunHistory:
    """The last runs of each check and level, and the latest runs with what they printed."""

    def __init__(self, node: NodeView, worker_thread: WorkerThread, problems: ProblemLog) -> None:
        self._node = node
        self._worker_thread = worker_thread
        self._problems = problems
        self._recalled = False
        self._recent: deque[Run] = deque(maxlen=_MAX_RECENT)
        self._past: dict[tuple[str, int], deque[Run]] = {}  # without what was printed

    @property
    def past(self) -> Mapping[tuple[str, int], Sequence[Run]]:
        """The last runs of each check and level, the oldest first."""
        return self._past

    @property
    def last_runs(self) -> dict[tuple[str, int], Run]:
        """The last run of each check and level. A run that was dequeued before it started counts
        only if there is no other.
        """
        return {
            key: next((run for run in reversed(runs) if not is_unstarted(run)), runs[-1])
            for key, runs in self._past.items()
        }

    def list_runs(self) -> list[Run]:
        """All runs that are kept."""
        return [run for runs in self._past.values() for run in runs]

    def find_recent(self, run_id: str) -> Run | None:
        """One of the latest runs, with its output: the ledger may not have it yet, or be
        unreadable.
        """
        return next((run for run in self._recent if run.id == run_id), None)

    def add_run(self, run: Run) -> None:
        self._recent.append(run)
        # A run of the schedule that was dequeued counts: it must not be queued again at once.
        if not is_unstarted(run) or run.request.by == SCHEDULE:
            self._append(replace(run, raw=""))

    def estimate_s(self, request: RunRequest, default_s: float) -> float:
        """Duration of the last run that was completed, in seconds; else `default_s`."""
        last = self.last_runs.get((request.check, request.level))
        if last is not None and last.report.outcome.is_verdict:
            return last.ended - last.began
        return default_s

    async def recall_runs(self) -> None:
        """Adds the runs of the ledger, once. Tried again at the next call if it cannot be read."""
        if self._recalled:
            return
        try:
            stored = await self._worker_thread.call(self._node.read_runs)
        except Exception as error:  # diagnostics go on without the former runs
            self._problems.report_problem(
                "runs_not_read", error, "the schedule goes by the runs since the start"
            )
            return
        self._recalled = True
        known = self.list_runs()
        known_ids = {run.id for run in known}
        former = [run for run in stored if run.id not in known_ids]
        self._past = {}
        for run in sorted([*former, *known], key=lambda run: run.ended):
            self._append(run)

    def _append(self, run: Run) -> None:
        self._past.setdefault(
            (run.request.check, run.request.level), deque(maxlen=MAX_PAST_RUNS)
        ).append(run)


def is_unstarted(run: Run) -> bool:
    """True if the run was dequeued before it started."""
    return not run.command and run.began == run.ended
