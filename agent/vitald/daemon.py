"""
The composition root: builds everything, supervises it, reloads, stops.

Nothing imports this module but the command line. The order of start and stop can be read off `run`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
import structlog

from vitald import __version__, preconditions
from vitald import catalog as catalogs
from vitald import config as configs
from vitald import log as logs
from vitald.collectors.kernel_log.crash_backfill import CRASH_LOGS
from vitald.collectors.kernel_log.kmsg import take_stdin
from vitald.collectors.nvml.settings import NvmlSettings
from vitald.collectors.pci.inventory import read_machine_type
from vitald.collectors.registry import Sources
from vitald.config import Config
from vitald.config_file import ConfigError
from vitald.core.advice import SaveAdvisor
from vitald.core.cloud_notices import CloudNotices
from vitald.core.config_health import ConfigHealth
from vitald.core.housekeeping import Housekeeping, Retention
from vitald.core.node_state import NodeState
from vitald.core.pipeline import Pipeline
from vitald.core.supervisor import Supervisor
from vitald.core.waiting_monitor import WaitingMonitor
from vitald.diagnostics import checks
from vitald.diagnostics.idle.detector import IdleDetector
from vitald.diagnostics.manager import DiagnosticsManager
from vitald.diagnostics.node import NodeView
from vitald.diagnostics.run.process import Programs
from vitald.diagnostics.schedule import Schedule
from vitald.diagnostics.summary import DeepLog
from vitald.jobsocket import server as job_server
from vitald.jobsocket.telemetry import JobTelemetry
from vitald.ledger import (
    Ledger,
    LedgerNewer,
    read_run,
    read_runs,
)
from vitald.metrics import endpoint, exporter
from vitald.metrics.diagnostics import RunTally
from vitald.metrics.gpus import GpuMetrics
from vitald.model import Action, Source, SourceHealth, SourceState, Status
from vitald.nccl_ras.watch import RasWatch, list_suspected
from vitald.restored_context import restore_context
from vitald.server.app import Api, Routes
from vitald.server.fitness_file import FitnessFile
from vitald.server.listeners import (
    CannotStart,
    open_api_sockets,
    open_tcp_socket,
    serve_application,
    wait_until,
)
from vitald.server.recovery_requester import RecoveryRequester
from vitald.server.routes import library
from vitald.server.routes.advice import AdviceRoutes
from vitald.server.routes.diagnostics import DiagnosticRoutes
from vitald.server.routes.expect import ExpectRoutes
from vitald.server.routes.jobs import JobRoutes
from vitald.server.routes.notices import NoticeRoutes
from vitald.server.routes.release import ReleaseRoutes
from vitald.server.routes.scheduler import SchedulerRoutes
from vitald.systemd import Notifier
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("daemon")

_FIRST_SCAN_S = 10.0
_NOTIFY_S = 5.0
_PENDING_RESULTS_S = 0.1  # for handing in what ended last
# A thread that prepares a large commit must not hold up the event loop for 5 ms at a time
_SWITCH_S = 0.0005


class Daemon:
    """One run of the daemon."""

    def __init__(self, config: Config, config_path: Path | None) -> None:
        self.config = config
        self.config_path = config_path
        self.config_health = ConfigHealth(config.settings_hash)
        self.boot_id = preconditions.read_boot_id(config.paths.procfs)
        self.node_state = NodeState(
            self.boot_id, time.time(), device_reset=config.policy.device_reset
        )
        self.catalog = catalogs.load_catalog(config.catalog.profile, config.catalog.overrides)
        self.ledger_thread, self.reader = WorkerThread("ledger"), WorkerThread("ledger-reader")
        self.pipeline = Pipeline(
            Ledger(config.paths.state),
            self.ledger_thread,
            self.node_state,
            self.catalog,
            self.boot_id,
        )
        self.sources = Sources(
            config.paths,
            config.collectors,
            self.catalog,
            self.boot_id,
            self.reader,
            self._is_well,
            kmsg=take_stdin(),
        )
        self.diagnostics_thread = WorkerThread("diagnostics")
        self.run_tally = RunTally()
        self.diagnostics = _build_diagnostics(self)
        self.housekeeping = Housekeeping(
            self.pipeline.ledger, self.ledger_thread, self.node_state, self._get_retention
        )
        self.supervisor = Supervisor(self.pipeline)
        self.notifier = Notifier()
        self.stopping = asyncio.Event()
        self.reload_requested = asyncio.Event()
        self.past_read = asyncio.Event()  # what happened before the start was handed in
        self.recovery = RecoveryRequester(
            self.node_state,
            config.paths.runtime,
            self.reader,
            lambda: self.config.recovery,
            self.past_read,
        )
        self.fitness_file = FitnessFile(
            self.node_state, config.paths.runtime, self.reader, self.past_read
        )
        self.save_advisor = SaveAdvisor(
            self.node_state, self.pipeline.store, self.recovery.get_requested_repair
        )
        self.cloud_notices = CloudNotices(self.node_state, self.pipeline.store)
        self.job_telemetry = JobTelemetry(self.node_state, self.pipeline.store)
        self.waiting_monitor = WaitingMonitor(
            self.node_state,
            self.pipeline.store,
            self.reader,
            procfs=config.paths.procfs,
            after_s=config.collectors[NvmlSettings].waiting_after_s,
            exclude=config.collectors[NvmlSettings].waiting_exclude,
        )
        self.api = _build_api(self)
        self.collector = _build_metrics(self)

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Raises CannotStart."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(library.Doorkeeper().handle)
        sys.setswitchinterval(_SWITCH_S)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self.reload_requested.set)
        log.info(
            "starting",
            version=__version__,
            boot_id=self.boot_id,
            config=str(self.config_path or "defaults"),
            profile=self.catalog.profile,
        )
        async with preconditions.hold_folders(self.config.paths):
            await self._open_pipeline()
            async with self._serve(), anyio.create_task_group() as tasks:
                for work in (
                    self.pipeline.run,
                    self._read_kernel_log,
                    self.sources.uevents.listen,
                    self._notify_systemd,
                    self.housekeeping.run,
                    self._reload_on_signal,
                    self.recovery.run,
                    self.fitness_file.run,
                    self.cloud_notices.run,
                    self.save_advisor.run,
                    self.job_telemetry.run,
                    self._ask_nccl,
                    self._serve_jobs,
                    self.waiting_monitor.run,
                    self.diagnostics.idle_monitor.run,
                ):
                    tasks.start_soon(work)
                present: list[Source] = [*self.sources.present, self.diagnostics.source]
                for source in present:
                    tasks.start_soon(self._read_present, source)
                tasks.start_soon(self._notify_ready)
                await self.stopping.wait()
                self.notifier.notify_stopping()
                self.node_state.announce_stop()
                log.info("stopping")
                tasks.cancel_scope.cancel()
            for batch in self.diagnostics.source.take_pending_batches():
                with anyio.move_on_after(_PENDING_RESULTS_S):
                    await self.pipeline.put(batch)
            await self.pipeline.close()
        self.diagnostics.close()
        for thread in (self.ledger_thread, self.reader, self.diagnostics_thread):
            thread.close()
        log.info("stopped")

    async def _notify_ready(self) -> None:
        await wait_until(self.node_state.first_scan, _FIRST_SCAN_S)
        self.notifier.notify_ready()
        log.info(
            "ready",
            socket=str(self.config.socket_path),
            metrics=str(self.config.metrics.listen or "off"),
            pid=os.getpid(),
        )

    async def _open_pipeline(self) -> None:
        try:
            await self.pipeline.open(self.catalog)
        except LedgerNewer as error:
            raise CannotStart(str(error)) from error
        try:
            await self.reader.call(self.sources.inventory.scan_bus)
        except ThreadStuck as error:
            log.error("inventory_not_read", error=str(error))
        # Before the boot is reported: it may have to be validated.
        await self.diagnostics.examine_checks()
        self.pipeline.set_validation_policy(self.diagnostics.validation_policy)
        await restore_context(
            self.pipeline, self.sources, self.node_state, self.save_advisor, self.reader
        )
        for source in (*self.sources.all, self.diagnostics.source):
            self.node_state.sources[source.name] = SourceHealth(
                name=source.name, state=SourceState.STARTING, deadline=source.deadline_s
            )

    async def _reload_on_signal(self) -> None:
        while True:
            await self.reload_requested.wait()
            self.reload_requested.clear()
            await self._reload()

    async def _reload(self) -> None:
        """SIGHUP: take a new configuration, or refuse it and keep the old one."""
        try:
            loaded = await self.reader.call(lambda: configs.load(self.config_path))
            catalog = await self.reader.call(
                lambda: catalogs.load_catalog(loaded.catalog.profile, loaded.catalog.overrides)
            )
        except (ConfigError, catalogs.CatalogError) as error:
            self.config_health.note_failure()
            log.error(
                "reload_refused", errors=error.errors, effect="the old configuration stays in force"
            )
            return
        except ThreadStuck as error:
            self.config_health.note_failure()
            log.error(
                "reload_refused", errors=[str(error)], effect="the old configuration stays in force"
            )
            return
        applied, restart = configs.changed(self.config, loaded)
        logs.configure_log(loaded.log.level, self.config.log.format)
        self.node_state.set_policy(device_reset=loaded.policy.device_reset)
        self.sources.configure(catalog, userspace=loaded.kernel_log.userspace)
        self.diagnostics.configure(catalog, loaded.validation)
        self.pipeline.set_validation_policy(self.diagnostics.validation_policy)
        self.catalog = catalog
        self.api.replace_catalog(catalog)
        self.config = configs.reloaded(self.config, loaded)
        await self.pipeline.reload_catalog(catalog)
        self.config_health.note_success(loaded.settings_hash)
        log.info("reloaded", applied=applied, needs_restart=restart)

    def _is_well(self) -> bool:
        """True if the devices that are present may be learned as the expected ones."""
        verdict = self.node_state.verdict()
        known = verdict.status in (Status.HEALTHY, Status.DEGRADED)
        return known and verdict.action.rank <= Action.OBSERVE.rank and not verdict.simulated

    def _get_retention(self) -> Retention:
        ledger = self.config.ledger
        return Retention(ledger.keep_s, self.config.diagnostics.keep_s, ledger.most_bytes)

    async def _read_kernel_log(self) -> None:
        """In the order of the events: earlier boots, the part of this boot that the ring has lost,
        then the ring.
        """
        source, backfill, supervisor = (
            self.sources.kernel_log,
            self.sources.backfill,
            self.supervisor,
        )
        if backfill is not None:
            position, orderly = self.pipeline.position, self.pipeline.was_stopped
            former = backfill.read_former_boots(
                position(source.name), position(CRASH_LOGS), orderly=orderly
            )
            await supervisor.read_past(source.name, former)
        await self.pipeline.report_boot()
        if backfill is not None:
            await supervisor.read_past(
                source.name, backfill.read_this_boot(self.pipeline.position(source.name))
            )
            backfill.close()
        self.past_read.set()
        await supervisor.read(source)

    async def _read_present(self, source: Source) -> None:
        """Read a source of present state, once the events of the past have been evaluated."""
        await self.past_read.wait()
        await self.supervisor.read(source)

    async def _notify_systemd(self) -> None:
        """Update the line that `systemctl status` shows, and the watchdog: it is notified while
        queued items are evaluated and no source hangs that cannot be cancelled.
        """
        interval = min(self.notifier.watchdog_s or _NOTIFY_S, _NOTIFY_S)
        reported = ""
        await wait_until(self.node_state.first_scan, _FIRST_SCAN_S)
        while True:
            verdict = self.node_state.verdict()
            first = f": {verdict.reasons[0]}" if verdict.reasons else ""
            self.notifier.notify_status(
                f"{verdict.status.value}, {len(self.node_state.findings)} open findings{first}"[
                    :240
                ]
            )
            hanging = self.supervisor.cancel_hanging()
            stuck = "the judge" if self.pipeline.is_wedged() else hanging
            if not stuck:
                self.notifier.notify_watchdog()
            elif stuck != reported:
                log.critical(
                    "wedged",
                    what=stuck,
                    effect="the watchdog is not fed: systemd restarts the daemon",
                )
            reported = stuck
            await anyio.sleep(interval)

    async def _ask_nccl(self) -> None:
        """About jobs that make no progress."""
        port, node_state = self.config.job.nccl_ras, self.node_state
        if self.config.job.enabled and port:
            store, procfs = self.pipeline.store, self.config.paths.procfs
            await RasWatch(
                node_state, partial(list_suspected, node_state), store, port, procfs
            ).run()

    async def _serve_jobs(self) -> None:
        """The job socket. A thread of its own reads which jobs the clients belong to."""
        if not self.config.job.enabled:
            return
        paths, thread = self.config.paths, WorkerThread("job-identity")
        path = paths.runtime / job_server.FOLDER / job_server.NAME
        try:
            await job_server.JobSocket(path, self.job_telemetry, paths.procfs, thread).run()
        finally:
            thread.close()

    @asynccontextmanager
    async def _serve(self) -> AsyncIterator[None]:
        """The socket and the metrics endpoint."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(
                serve_application(
                    self.api.build_application(),
                    self.api.connection_limit,
                    open_api_sockets(self.config.socket_path, self.api.group, stack),
                    patient=True,
                )
            )
            if self.config.metrics.listen is not None:
                connection_limit = endpoint.make_connection_limit()
                application = endpoint.build_application(self.collector, connection_limit)
                await stack.enter_async_context(
                    serve_application(
                        application, connection_limit, [open_tcp_socket(self.config.metrics.listen)]
                    )
                )
            yield


def _build_diagnostics(daemon: Daemon) -> DiagnosticsManager:
    config, sources = daemon.config, daemon.sources
    deep_log = None
    if config.diagnostics.deep_log is not None:
        deep_log = DeepLog(
            config.diagnostics.deep_log, instance_type=read_machine_type(config.paths.sysfs)
        )
    releases = sources.nvml.releases if sources.nvml is not None else None
    return DiagnosticsManager(
        config,
        checks.build_checks(config),
        catalog=daemon.catalog,
        boot_id=daemon.boot_id,
        node=NodeView(
            daemon.node_state,
            sources.inventory,
            daemon.pipeline.ledger.path,
            lambda: releases.description if releases is not None else "",
            sources.nvml.list_processes if sources.nvml is not None else None,
        ),
        detector=IdleDetector(
            config.paths.procfs,
            config.paths.sysfs / "fs/cgroup",
            own=(os.getpid(),),
            ignored=config.diagnostics.ignore_processes,
        ),
        schedule=Schedule(host=preconditions.read_machine_id()),
        programs=Programs(),
        watch_programs=Programs(),
        worker_thread=daemon.diagnostics_thread,
        deep_log=deep_log,
        count=daemon.run_tally.count_run,
        stored=daemon.pipeline.wait_until_stored,
        waits_for_idle=daemon.node_state.waits_for_idle,
    )


def _build_api(daemon: Daemon) -> Api:
    return Api(
        node_state=daemon.node_state,
        pipeline=daemon.pipeline,
        catalog=daemon.catalog,
        interpreter=daemon.sources.interpreter,
        inventory=daemon.sources.inventory,
        reader=daemon.reader,
        inject_path=daemon.config.kernel_log.path,
        group=preconditions.find_group_id(daemon.config.socket.group),
        publisher_uid=preconditions.find_user_id(daemon.config.publish.user),
        diagnostics=daemon.diagnostics,
        is_idle=daemon.diagnostics.idle_monitor.is_idle,
        recovery=daemon.recovery,
        more=_build_routes(daemon),
    )


def _build_metrics(daemon: Daemon) -> exporter.NodeStateCollector:
    return exporter.NodeStateCollector(
        daemon.node_state,
        daemon.sources.interpreter,
        daemon.sources.inventory,
        daemon.api.connection_limit,
        profile=lambda: daemon.catalog.profile,
        diagnostics=daemon.diagnostics,
        tally=daemon.run_tally,
        recovery=daemon.recovery,
        gpu_metrics=GpuMetrics(each_link=daemon.config.metrics.nvlink == "each"),
        config_health=daemon.config_health,
        instance_type=read_machine_type(daemon.config.paths.sysfs),
    )


def _build_routes(daemon: Daemon) -> list[Routes]:
    sources, path = daemon.sources, daemon.pipeline.ledger.path
    counting = next(each for each in sources.polled if each.collector is sources.expected)
    releases = sources.nvml.releases if sources.nvml is not None else None
    return [
        ReleaseRoutes(
            sources.inventory,
            releases,
            daemon.diagnostics.prepare_release,
            daemon.pipeline.wait_until_stored,
        ),
        ExpectRoutes(sources.expected, counting, daemon.pipeline.store),
        JobRoutes(daemon.node_state, daemon.pipeline.store, daemon.diagnostics),
        NoticeRoutes(daemon.cloud_notices),
        AdviceRoutes(daemon.node_state, daemon.save_advisor),
        SchedulerRoutes(daemon.node_state, daemon.pipeline.store),
        DiagnosticRoutes(
            daemon.diagnostics,
            daemon.reader,
            lambda limit, check: read_runs(path, limit, check),
            lambda run_id: read_run(path, run_id) or daemon.diagnostics.find_recent_run(run_id),
        ),
    ]
