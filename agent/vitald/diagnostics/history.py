"""Runs that have ended, as far as they are kept in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from vitald.diagnostics.node import MAX_PAST_RUNS, NodeView
from vitald.diagnostics.problem_log import ProblemLog
from vitald.diagnostics.schedule import SCHEDULE
from vitald.diagnostics.suspicion import SUSPICION
from vitald.model.diagnostic import Outcome, PassRecord, Run, RunRequest
from vitald.worker_thread import WorkerThread

_MAX_RECENT = 4
_COMPLETE = (Outcome.PASS, Outcome.FAIL, Outcome.CONFIG)


class RunHistory:
    """The last runs of each check and level, and the latest runs with what they printed."""

    def __init__(self, node: NodeView, worker_thread: WorkerThread, problems: ProblemLog) -> None:
        self._node = node
        self._worker_thread = worker_thread
        self._problems = problems
        self._recalled = False
        self._recent: deque[Run] = deque(maxlen=_MAX_RECENT)
        self._answers: dict[str, Run] = {}  # the last one of each watch that was not recorded
        self._past: dict[tuple[str, int], deque[Run]] = {}  # without what was printed
        self._passes: dict[tuple[str, int], deque[Run]] = {}  # the same of those of all devices
        self._first: dict[tuple[str, int], float] = {}  # when the first run began

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

    def list_passes(self, check: str, level: int) -> Sequence[Run]:
        """The last passes on all devices at this level, the oldest first."""
        return tuple(self._passes.get((check, level), ()))

    def find_pass(self, check: str, level: int, every_s: float) -> PassRecord | None:
        """How old the last pass at this level or a higher one is. None if no run is known."""
        passes = [
            runs[-1].ended
            for (name, at), runs in self._passes.items()
            if name == check and at >= level
        ]
        passed_at = max(passes, default=None)
        since = passed_at if passed_at is not None else self._first.get((check, level))
        if since is None:
            return None
        return PassRecord(
            check=check, level=level, every_s=every_s, passed_at=passed_at, since=since
        )

    def list_runs(self) -> list[Run]:
        """All runs that are kept."""
        return [run for runs in self._past.values() for run in runs]

    def find_recent(self, run_id: str) -> Run | None:
        """One of the latest runs, with its output: the ledger may not have it yet, or be
        unreadable.
        """
        recent = (*self._recent, *self._answers.values())
        return next((run for run in recent if run.id == run_id), None)

    def add_run(self, run: Run) -> None:
        self._recent.append(run)
        # One that was dequeued counts if it would be queued again at once otherwise.
        if not is_unstarted(run) or run.ask.by in (SCHEDULE, SUSPICION):
            self._append(replace(run, raw=""))

    def add_answer(self, run: Run) -> None:
        """An answer of a watch that is not recorded: the last one is kept, with its output."""
        self._answers[run.ask.check] = run
        self._append(replace(run, raw=""))

    def estimate_s(self, ask: RunRequest, default_s: float) -> float:
        """Duration of the last run that was completed, in seconds; else `default_s`."""
        last = self.last_runs.get((ask.check, ask.level))
        if last is not None and last.report.outcome in _COMPLETE:
            return last.ended - last.began
        return default_s

    async def recall_runs(self) -> None:
        """Adds the runs of the ledger, once. Tried again at the next call if it cannot be read."""
        if self._recalled:
            return
        try:
            stored = await self._worker_thread.call(self._node.read_runs)
            passes = await self._worker_thread.call(self._node.read_passes)
            first = await self._worker_thread.call(self._node.read_first_runs)
        except Exception as error:  # diagnostics go on without the former runs
            self._problems.report_problem(
                "runs_not_read", error, "the schedule goes by the runs since the start"
            )
            return
        self._recalled = True
        known = self.list_runs()
        known_ids = {run.id for run in known}
        former = [run for run in stored if run.id not in known_ids]
        self._past, self._passes = {}, {}
        # Passes may be older than the last runs, so they are read by themselves.
        former_passes = [run for run in passes if run.id not in known_ids]
        for run in sorted([*former_passes, *filter(_is_pass, known)], key=lambda run: run.ended):
            _append_to(self._passes, run)
        for run in sorted([*former, *known], key=lambda run: run.ended):
            _append_to(self._past, run)
        self._first |= first

    def _append(self, run: Run) -> None:
        _append_to(self._past, run)
        self._first.setdefault((run.ask.check, run.ask.level), run.began)
        if _is_pass(run):
            _append_to(self._passes, run)


def _append_to(runs: dict[tuple[str, int], deque[Run]], run: Run) -> None:
    key = run.ask.check, run.ask.level
    runs.setdefault(key, deque(maxlen=MAX_PAST_RUNS)).append(run)


def _is_pass(run: Run) -> bool:
    """True if the run passed on all devices."""
    return run.report.outcome is Outcome.PASS and not run.ask.gpus


def is_unstarted(run: Run) -> bool:
    """True if the run was dequeued before it started."""
    return not run.command and run.began == run.ended
