"""
Diagnostics: which checks run when; one run at a time on a node.

    schedule, findings ──► planner ─┐
    people, jobs ──► manager ───────┴► queue ──► dispatcher ──► runner ──► results ──► source
                                       owed ◄───────────────────────────────────────────┘

This module builds the parts and is what the API, the metrics and the daemon call. To the pipeline
diagnostics are a source: its batches carry the runs and their events, its position the faults that
must be found twice, what is owed and the run that has begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from vitald.catalog import Catalog
from vitald.collectors.event_factory import EventFactory
from vitald.config.paths import Paths
from vitald.config.values import Config
from vitald.diagnostics.active_run import RunDispatcher, Runner
from vitald.diagnostics.check import Check
from vitald.diagnostics.check_set import CheckSet
from vitald.diagnostics.device_access import DeviceAccess, IdleMonitor
from vitald.diagnostics.hyperpod_log import DeepLog
from vitald.diagnostics.idle.detector import IdleDetector
from vitald.diagnostics.node_view import NodeView
from vitald.diagnostics.planner import RunPlanner
from vitald.diagnostics.problem_log import ProblemLog
from vitald.diagnostics.queue import MAX_QUEUED, RunQueue, is_automatic
from vitald.diagnostics.results import ResultRecorder, RunHistory
from vitald.diagnostics.run.process import Programs
from vitald.diagnostics.schedule import Schedule
from vitald.diagnostics.settings import DiagnosticsSettings, SiteCheckSettings
from vitald.diagnostics.source import NAME, DiagnosticSource, OverdueRuns, RunInterpreter
from vitald.model.component import Component
from vitald.model.diagnostic import ActiveRun, Refusal, Run, RunRequest, ScheduledRun, Stage
from vitald.worker_thread import WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")


class DiagnosticsManager:
    """The diagnostics of a node. Everything but the checks' programs runs on the event loop."""

    def __init__(
        self,
        config: Config,
        checks: Mapping[str, Check],
        *,
        catalog: Catalog,
        boot_id: str,
        node: NodeView,
        detector: IdleDetector,
        schedule: Schedule,
        programs: Programs,
        worker_thread: WorkerThread,
        deep_log: DeepLog | None = None,
        count: Callable[[Run], None],
        stored: Callable[[], Awaitable[None]],
        waits_for_idle: Callable[[], bool],
    ) -> None:
        """`count` is called with each run that has ended; `stored` returns once all batches that
        were handed in are in the ledger and shown. `waits_for_idle`: whether a repair of the node
        waits for the running job.
        """
        self._node = node
        problems = ProblemLog()
        self._changed = asyncio.Event()
        wake = self._changed.set
        self._checks = CheckSet(checks, worker_thread, problems)
        self._access = DeviceAccess(node, detector, worker_thread, problems, config[Paths].procfs)
        self._history = RunHistory(node, worker_thread, problems)
        self._results = ResultRecorder(
            self._history, self._checks.is_routine, count=count, wake=wake, deep_log=deep_log
        )
        self._queue = RunQueue(self._checks, self._history, self._results, wake)
        self._interpreter = RunInterpreter(NAME, boot_id, node, catalog)
        self._runner = Runner(
            self._checks,
            programs,
            self._access,
            self._results,
            self._interpreter.confirm_faults,
            node,
            self.store_requests,
        )
        self._dispatcher = RunDispatcher(
            self._checks,
            self._access,
            self._queue,
            self._runner,
            config[DiagnosticsSettings].idle_s,
        )
        self.idle_monitor = IdleMonitor(
            self._access,
            is_needed=waits_for_idle,
            is_testing=lambda: self._runner.active is not None,
            idle_s=config[DiagnosticsSettings].idle_s,
        )
        self._planner = RunPlanner(
            config, self._checks, schedule, node, self._history, self._queue, self._dispatcher
        )
        self.source = DiagnosticSource(
            boot_id,
            self._checks,
            self._planner,
            self._dispatcher,
            self._runner,
            self._queue.owed,
            OverdueRuns(self._queue.owed, self._dispatcher, node, EventFactory(NAME, boot_id)),
            self._results,
            self._interpreter,
            changed=self._changed,
            stored=stored,
        )
        self.configure(catalog, config)

    def configure(self, catalog: Catalog, config: Config) -> None:
        """Takes the catalogue, the site's checks and what an overdue run requires: at the start,
        and after a reload.
        """
        self._interpreter.catalog = catalog
        self._queue.owed.holds_node = config[DiagnosticsSettings].overdue == "drain"
        self._checks.configure(catalog, config.get_group(SiteCheckSettings))
        self._planner.end_removed()
        self._changed.set()

    # --- state for the API and the metrics

    @property
    def checks(self) -> Mapping[str, Check]:
        return self._checks.by_name

    @property
    def unavailable(self) -> Mapping[str, str]:
        """Why a check cannot run here, "" if it can. Checks not examined yet are left out."""
        return self._checks.unavailable

    @property
    def active(self) -> tuple[ActiveRun, ...]:
        """Requested runs without a verdict: the active one first, then the queue, then what waits
        for its next attempt.
        """
        return self._dispatcher.requested

    def find_gpu_number(self, gpu: Component) -> int | None:
        """The number by which the checks' programs call a GPU; None if they do not know it."""
        return self._node.find_number(gpu)

    @property
    def last_runs(self) -> dict[tuple[str, int], Run]:
        """The last run of each check and level. One of a check that was removed is not shown."""
        runs = self._history.last_runs.items()
        return {key: run for key, run in runs if key[0] in self._checks.by_name}

    @property
    def scheduled(self) -> tuple[ScheduledRun, ...]:
        """When the schedule runs each check and level next."""
        return self._planner.scheduled

    @property
    def blocked(self) -> str:
        """Why no run that needs idle devices may start now, as far as is known; "" if it may."""
        return self._dispatcher.blocked

    def find_recent_run(self, run_id: str) -> Run | None:
        """One of the latest runs, with its output: the ledger may not have it yet, or be
        unreadable.
        """
        return self._history.find_recent(run_id)

    # --- requests, on the event loop

    def request_run(self, request: RunRequest) -> ActiveRun:
        """Queues a run as the next one. Raises Refusal."""
        self._check_request(request)
        same = next(
            (
                active
                for active in self._dispatcher.active
                if (active.request.check, active.request.level) == (request.check, request.level)
            ),
            None,
        )
        if same is not None and (same.stage is not Stage.WAITING or not is_automatic(same.request)):
            raise Refusal(
                f"{request.label} is {same.stage.value} already, requested by {same.request.by}",
                f"its id is {same.id}: vitald diag list",
            )
        if same is not None:
            return self._queue.take_over(same, request)
        if len(self.active) >= MAX_QUEUED:
            raise Refusal("too many runs wait already", "vitald diag list shows them")
        return self._queue.enqueue(request, first=True)

    def cancel_run(self, run_id: str | None, by: str, reason: str) -> ActiveRun | None:
        """Stops or dequeues a run; the active one if `run_id` is None. None if there is no such
        run.
        """
        reason = f"cancelled by {by}: {reason}"
        active = self._runner.cancel_run(run_id, reason)
        if active is not None:
            return active
        for queued in self.active:
            if queued.id == run_id and queued.stage is Stage.WAITING:
                self._queue.dequeue(queued, reason)
                return queued
        return None

    async def store_requests(self) -> None:
        """Returns once the requests so far are in the ledger, or after a time limit: they survive
        the daemon's end.
        """
        await self.source.store_memory()

    async def begin_job(self, job: str) -> None:
        """A job begins: a run that needs idle devices is stopped. Returns when the devices are
        free, or after a time limit.
        """
        self._access.expect_job(job)
        await self._runner.free_devices(f"job {job}")

    def end_job(self, job: str) -> None:
        self._access.forget_job(job)
        self._changed.set()

    async def prepare_release(self) -> None:
        """Stops any run, and lets none start until the release of the devices has begun."""
        self._access.announce_release()
        await self._runner.stop_for_release()

    def close(self) -> None:
        """Ends the threads, at the daemon's stop."""
        self._access.close()
        self._results.close()

    def _check_request(self, request: RunRequest) -> None:
        """Raises Refusal if the run is impossible on this node, or now."""
        check = self.checks.get(request.check)
        if check is None:
            raise Refusal(
                f"there is no check {request.check!r}", f"there are {', '.join(self.checks)}"
            )
        if request.level not in check.levels:
            raise Refusal(
                f"{request.check} has no level {request.level}",
                f"levels: {', '.join(map(str, check.levels))}",
            )
        if missing := self.unavailable.get(request.check, ""):
            raise Refusal(
                f"{request.check} cannot run here: {missing}", "vitald diag list shows what can"
            )
        if released := self._access.describe_release():
            raise Refusal(
                f"the devices are released: {released}", "vitald release --end takes them back"
            )
