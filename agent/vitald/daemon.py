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
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.abc
import structlog

from vitald import __version__, lock
from vitald.catalog import Catalog
from vitald.catalog.settings import load_configured_catalog
from vitald.collectors.kernel_log.backfill import CRASH_LOGS
from vitald.collectors.kernel_log.kmsg import take_stdin
from vitald.collectors.kernel_log.settings import KernelLogSettings
from vitald.collectors.pci.settings import PciSettings
from vitald.collectors.registry import Sources
from vitald.config.paths import Paths, is_root
from vitald.config.values import Config
from vitald.core.config_reload import ConfigReload
from vitald.core.housekeeping import Housekeeping, Retention
from vitald.core.node_state import NodeState
from vitald.core.pipeline import Pipeline
from vitald.core.supervisor import Supervisor
from vitald.diagnostics import checks
from vitald.diagnostics.hyperpod_log import DeepLog
from vitald.diagnostics.idle.detector import IdleDetector
from vitald.diagnostics.manager import DiagnosticsManager
from vitald.diagnostics.node_view import NodeView
from vitald.diagnostics.run.held_processes import find_delegated_cgroup
from vitald.diagnostics.run.process import Programs
from vitald.diagnostics.schedule import Schedule
from vitald.diagnostics.settings import DiagnosticsSettings
from vitald.http_server import library
from vitald.http_server.listeners import (
    CannotStart,
    find_group_id,
    find_user_id,
    open_api_sockets,
    open_tcp_socket,
    serve_application,
    wait_until,
)
from vitald.judge.settings import PolicySettings
from vitald.ledger.errors import LedgerError, LedgerNewer
from vitald.ledger.queries import PastQuery, RowList, read_events, read_run, read_runs
from vitald.ledger.settings import LedgerSettings
from vitald.ledger.store import Ledger
from vitald.log.output import set_level
from vitald.log.settings import LogSettings
from vitald.metrics import exporter, scrape
from vitald.metrics.diagnostics import RunTally
from vitald.metrics.settings import MetricsSettings
from vitald.metrics.slurm import UnknownJobs
from vitald.model.source import Source, SourceHealth, SourceState
from vitald.model.words import Action, Status
from vitald.publish.settings import PublishSettings
from vitald.recovery.requester import RecoveryRequester
from vitald.recovery.settings import RecoverySettings
from vitald.server.app import Api, Routes
from vitald.server.routes.configuration import ConfigurationRoutes
from vitald.server.routes.diagnostics import DiagnosticRoutes
from vitald.server.routes.expect import ExpectRoutes
from vitald.server.routes.jobs import JobRoutes, read_jobs
from vitald.server.routes.release import ReleaseRoutes
from vitald.server.settings import SocketSettings, find_socket
from vitald.slurm.settings import SlurmSettings
from vitald.systemd import Notifier
from vitald.topology.neuron_locations import PLACED
from vitald.topology.pci_inventory import read_machine_id, read_machine_type
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("daemon")

_FIRST_SCAN_S = 10.0
_NOTIFY_S = 5.0
_PENDING_RESULTS_S = 0.1  # for handing in what ended last
# Lines with the location of a Neuron device: a node has at most 64, and the driver may be loaded
# again.
_MAX_LOCATIONS = 256
# A thread that prepares a large commit must not hold up the event loop for 5 ms at a time
_SWITCH_S = 0.0005


class Daemon:
    """One run of the daemon."""

    def __init__(self, config: Config, config_path: Path | None) -> None:
        """`config_path`: the file that was given; None for the default one, where it exists."""
        self.boot_id = _read_boot_id(config[Paths].procfs)
        self.node_state = NodeState(
            self.boot_id, time.time(), device_reset=config[PolicySettings].device_reset
        )
        self.catalog = load_configured_catalog(config)
        self.ledger_thread, self.reader = WorkerThread("ledger"), WorkerThread("ledger-reader")
        self.reload = ConfigReload(
            config, config_path, self.reader, self.node_state, self._apply_configuration
        )
        self.sources = Sources(
            config,
            self.catalog,
            self.boot_id,
            self.reader,
            self._is_well,
            kmsg=take_stdin(),
        )
        self.pipeline = Pipeline(
            Ledger(config[Paths].state),
            self.ledger_thread,
            self.node_state,
            self.catalog,
            self.boot_id,
            self.sources.inventory.list_siblings,
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
        self.past_read = asyncio.Event()  # what happened before the start was handed in
        self.recovery = RecoveryRequester(
            self.node_state,
            config[Paths].runtime,
            self.reader,
            lambda: self.config[RecoverySettings],
            self.past_read,
        )
        self.unknown_jobs = UnknownJobs(lambda: self.config[SlurmSettings].record, self.reader)
        self.api = _build_api(self)
        self.collector = _build_metrics(self)

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Raises CannotStart."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(library.Doorkeeper().handle)
        sys.setswitchinterval(_SWITCH_S)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self.reload.requested.set)
        log.info(
            "starting",
            level="notice",
            version=__version__,
            boot_id=self.boot_id,
            config=str(self.node_state.configuration.path or "defaults"),
            profile=self.catalog.profile,
        )
        async with _hold_folders(self.config[Paths]):
            await self._open_pipeline()
            async with self._serve(), anyio.create_task_group() as tasks:
                for work in (
                    self.pipeline.run,
                    self._read_kernel_log,
                    self.sources.uevents.listen,
                    self._notify_systemd,
                    self.housekeeping.run,
                    self.reload.run,
                    self.recovery.run,
                    self.unknown_jobs.run,
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
        log.info("stopped", level="notice")

    async def _notify_ready(self) -> None:
        await wait_until(self.node_state.first_scan, _FIRST_SCAN_S)
        self.notifier.notify_ready()
        log.info(
            "ready",
            level="notice",
            socket=str(find_socket(self.config)),
            metrics=str(self.config[MetricsSettings].listen or "off"),
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
        await self._restore_context()
        for source in (*self.sources.all, self.diagnostics.source):
            self.node_state.sources[source.name] = SourceHealth(
                name=source.name, state=SourceState.STARTING, deadline=source.deadline_s
            )

    async def _restore_context(self) -> None:
        path = self.pipeline.ledger.path
        try:
            stored = await self.reader.call(
                lambda: read_events(path, PastQuery(code=PLACED, newest=True, limit=_MAX_LOCATIONS))
            )
        except (LedgerError, ThreadStuck) as error:
            log.error(
                "places_not_read",
                error=str(error),
                effect="lines about a Neuron device name it by its index",
            )
            stored = RowList()
        events = (each.event for each in stored)
        placed = [
            event
            for event in events
            if event.is_trusted and not event.is_simulated and event.boot_id == self.boot_id
        ]
        self.sources.restore_memory(self.pipeline.position, placed)
        try:
            jobs = await self.reader.call(lambda: read_jobs(path))
        except (LedgerError, ThreadStuck) as error:
            log.error(
                "jobs_not_read",
                error=str(error),
                effect="incidents do not tell of work before this start",
            )
            return
        booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        self.node_state.jobs.restore_jobs(
            jobs, self.boot_id, booted_at, self.node_state.incidents.values()
        )

    async def _apply_configuration(self, config: Config, catalog: Catalog) -> None:
        """Put a reloaded configuration in force."""
        set_level(config[LogSettings].level)
        self.node_state.set_policy(device_reset=config[PolicySettings].device_reset)
        self.sources.configure(catalog, config)
        self.diagnostics.configure(catalog, config)
        self.catalog = catalog
        self.api.replace_catalog(catalog)
        await self.pipeline.reload_catalog(catalog)

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.reload.config

    def _is_well(self) -> bool:
        """True if the devices that are present may be learned as the expected ones."""
        verdict = self.node_state.verdict()
        known = verdict.status in (Status.HEALTHY, Status.DEGRADED)
        return known and verdict.action.rank <= Action.OBSERVE.rank and not verdict.simulated

    def _get_retention(self) -> Retention:
        ledger = self.config[LedgerSettings]
        return Retention(ledger.keep_s, self.config[DiagnosticsSettings].keep_s, ledger.max_size)

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
            more = f": {verdict.reasons[0]}" if verdict.reasons else ""
            if refused := self.node_state.configuration.errors:
                more = f"; configuration refused: {refused[0]}"
            self.notifier.notify_status(
                f"{verdict.status.value}, {len(self.node_state.findings)} open findings{more}"[:240]
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

    @asynccontextmanager
    async def _serve(self) -> AsyncIterator[None]:
        """The socket and the metrics endpoint."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(
                serve_application(
                    self.api.build_application(),
                    self.api.connection_limit,
                    open_api_sockets(find_socket(self.config), self.api.group, stack),
                    patient=True,
                )
            )
            listen = self.config[MetricsSettings].listen
            if listen is not None:
                connection_limit = scrape.make_connection_limit()
                application = scrape.build_application(self.collector, connection_limit)
                await stack.enter_async_context(
                    serve_application(application, connection_limit, [open_tcp_socket(listen)])
                )
            yield


def _build_diagnostics(daemon: Daemon) -> DiagnosticsManager:
    config, sources = daemon.config, daemon.sources
    settings, paths = config[DiagnosticsSettings], config[Paths]
    deep_log = None
    if settings.deep_log is not None:
        deep_log = DeepLog(settings.deep_log, instance_type=read_machine_type(paths.sysfs))
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
            config[PciSettings].exclude,
        ),
        detector=IdleDetector(
            config[Paths].procfs,
            config[Paths].sysfs / "fs/cgroup",
            own=(os.getpid(),),
            ignored=config[DiagnosticsSettings].ignore_processes,
        ),
        schedule=Schedule(host=read_machine_id()),
        programs=Programs(find_delegated_cgroup()),
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
        drill_path=daemon.config[KernelLogSettings].path,
        group=find_group_id(daemon.config[SocketSettings].group),
        publisher_uid=find_user_id(daemon.config[PublishSettings].user),
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
        unknown_jobs=daemon.unknown_jobs,
        instance_type=read_machine_type(daemon.config[Paths].sysfs),
        each_link=daemon.config[MetricsSettings].nvlink == "each",
    )


def _build_routes(daemon: Daemon) -> list[Routes]:
    sources, path = daemon.sources, daemon.pipeline.ledger.path
    counting = next(each for each in sources.polled if each.collector is sources.expected)
    releases = sources.nvml.releases if sources.nvml is not None else None
    return [
        ReleaseRoutes(
            sources.inventory,
            daemon.node_state.devices,
            releases,
            daemon.diagnostics.prepare_release,
            daemon.pipeline.wait_until_stored,
        ),
        ConfigurationRoutes(daemon.reload.request_reload),
        ExpectRoutes(sources.expected, counting, daemon.pipeline.store),
        JobRoutes(daemon.node_state, daemon.pipeline.store, daemon.diagnostics),
        DiagnosticRoutes(
            daemon.diagnostics,
            daemon.node_state.devices,
            daemon.reader,
            lambda limit, check: read_runs(path, limit, check),
            lambda run_id: read_run(path, run_id) or daemon.diagnostics.find_recent_run(run_id),
        ),
    ]


@asynccontextmanager
async def _hold_folders(paths: Paths) -> AsyncIterator[None]:
    """Hold the lock files: two daemons must not share a socket or a ledger. Raises CannotStart."""
    runtime, state = paths.runtime, paths.state
    with ExitStack() as held:
        try:
            runtime.mkdir(mode=0o755 if is_root() else 0o700, parents=True, exist_ok=True)
            if runtime.stat().st_uid not in (0, os.geteuid()):
                raise CannotStart(
                    f"{runtime}: belongs to uid {runtime.stat().st_uid}, not to this user"
                )
            _lock_folder(runtime, held)
        except OSError as error:
            raise CannotStart(
                f"{error.filename or runtime}: {error.strerror}: vitald needs a runtime folder"
                " it can write ([paths] runtime)"
            ) from error
        # The ledger reports a state folder that cannot be written.
        with suppress(OSError):
            state.mkdir(mode=0o750, parents=True, exist_ok=True)
            _lock_folder(state, held)
        yield


def _lock_folder(folder: Path, held: ExitStack) -> None:
    """Raises CannotStart where another daemon holds it, OSError if that cannot be determined."""
    try:
        held.enter_context(lock.hold_lock(folder))
    except BlockingIOError:
        raise CannotStart(f"another vitald is running with the folder {folder}") from None


def _read_boot_id(procfs: Path) -> str:
    path = procfs / "sys/kernel/random/boot_id"
    try:
        return path.read_text().strip()
    except OSError as error:
        raise CannotStart(
            f"{path}: {error.strerror}: without the boot id no record can be told from another"
            " boot's"
        ) from error
