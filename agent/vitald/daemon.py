"""
The composition root: builds everything, supervises it, reloads, stops.

Nothing imports this module but the command line. The order of start and stop can be read off `run`.
"""

from __future__ import annotations

import asyncio
import grp
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.abc
import structlog

from vitald import __version__, lock
from vitald import catalog as catalogs
from vitald import config as configs
from vitald import log as logs
from vitald.collectors.kernel_log.crash_backfill import CRASH_LOGS
from vitald.collectors.kernel_log.kmsg import take_stdin
from vitald.collectors.neuron.locations import PLACED
from vitald.collectors.pci.inventory import machine_type
from vitald.collectors.registry import Sources
from vitald.config import Config, ConfigError
from vitald.core.housekeeping import Housekeeping, Retention
from vitald.core.node_state import NodeState
from vitald.core.pipeline import Pipeline
from vitald.core.supervisor import Supervisor
from vitald.diagnostics import checks
from vitald.diagnostics.idle.detector import IdleDetector
from vitald.diagnostics.manager import DiagnosticsManager
from vitald.diagnostics.node import NodeView
from vitald.diagnostics.run.process import Programs
from vitald.diagnostics.schedule import Schedule
from vitald.diagnostics.summary import DeepLog
from vitald.ledger import (
    EventQuery,
    Ledger,
    LedgerError,
    LedgerNewer,
    RowList,
    read_events,
    read_run,
    read_runs,
)
from vitald.metrics import exporter
from vitald.metrics.diagnostics import Tally
from vitald.model import Action, Source, SourceHealth, SourceState, Status
from vitald.paths import Paths, is_root
from vitald.server.app import Api, Routes
from vitald.server.listeners import (
    CannotStart,
    open_api_sockets,
    open_tcp_socket,
    serve_application,
    wait_until,
)
from vitald.server.recovery_requester import RecoveryRequester
from vitald.server.routes import library
from vitald.server.routes.diagnostics import DiagnosticRoutes
from vitald.server.routes.expect import ExpectRoutes
from vitald.server.routes.jobs import JobRoutes, read_jobs
from vitald.server.routes.release import ReleaseRoutes
from vitald.systemd import Notifier
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("daemon")

_FIRST_LOOK_S = 10.0
_PULSE_S = 5.0
_UNTOLD_S = 0.1  # for handing in what ended last
# Lines that say where a Neuron device sits: a node has at most 64, and the driver may be loaded
# again
_PLACED = 256
# A lane that prepares a large commit must not hold up the loop for 5 ms at a time
_SWITCH_S = 0.0005


class Daemon:
    """One run of the daemon."""

    def __init__(self, config: Config, config_path: Path | None) -> None:
        self.config = config
        self.config_path = config_path
        self.boot_id = _boot_id(config.paths.procfs)
        self.board = NodeState(self.boot_id, time.time(), device_reset=config.policy.device_reset)
        self.catalog = catalogs.load_catalog(config.catalog.profile, config.catalog.overrides)
        self.lane, self.reader = WorkerThread("ledger"), WorkerThread("ledger-reader")
        self.pipeline = Pipeline(
            Ledger(config.paths.state), self.lane, self.board, self.catalog, self.boot_id
        )
        self.sources = Sources(
            config.paths,
            config.collectors,
            self.catalog,
            self.boot_id,
            self.reader,
            self._well,
            kmsg=take_stdin(),
        )
        self.tests = WorkerThread("diagnostics")
        self.tally = Tally()
        self.diagnostics = _build_diagnostics(self)
        self.housekeeping = Housekeeping(
            self.pipeline.ledger, self.lane, self.board, self._get_retention
        )
        self.supervisor = Supervisor(self.pipeline)
        self.notifier = Notifier()
        self.stopping = asyncio.Event()
        self.hung_up = asyncio.Event()
        self.past_told = asyncio.Event()
        self.recovery = RecoveryRequester(
            self.board,
            config.paths.runtime,
            self.reader,
            lambda: self.config.recovery,
            self.past_told,
        )
        self.api = Api(
            board=self.board,
            pipeline=self.pipeline,
            catalog=self.catalog,
            interpreter=self.sources.interpreter,
            inventory=self.sources.inventory,
            reader=self.reader,
            inject_path=config.kernel_log.path,
            group=_group(config.socket.group),
            diagnostics=self.diagnostics,
            recovery=self.recovery,
            more=_build_routes(self),
        )
        self.collector = exporter.BoardCollector(
            self.board,
            self.sources.interpreter,
            self.sources.inventory,
            self.api.gate,
            profile=lambda: self.catalog.profile,
            diagnostics=self.diagnostics,
            tally=self.tally,
            recovery=self.recovery,
        )

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Raises CannotStart."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(library.Doorkeeper().handle)
        sys.setswitchinterval(_SWITCH_S)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self.hung_up.set)
        log.info(
            "starting",
            version=__version__,
            boot_id=self.boot_id,
            config=str(self.config_path or "defaults"),
            profile=self.catalog.profile,
        )
        async with _hold_folders(self.config.paths):
            await self._open()
            async with self._served(), anyio.create_task_group() as tasks:
                for work in (
                    self.pipeline.run,
                    self._read_kernel_log,
                    self.sources.uevents.listen,
                    self._pulse,
                    self.housekeeping.run,
                    self._reloads,
                    self.recovery.run,
                ):
                    tasks.start_soon(work)
                present: list[Source] = [*self.sources.present, self.diagnostics.source]
                for source in present:
                    tasks.start_soon(self._read_present, source)
                tasks.start_soon(self._say_ready)
                await self.stopping.wait()
                self.notifier.notify_stopping()
                log.info("stopping")
                tasks.cancel_scope.cancel()
            for batch in self.diagnostics.source.take_pending_batches():
                with anyio.move_on_after(_UNTOLD_S):
                    await self.pipeline.put(batch)
            await self.pipeline.close()
        self.diagnostics.close()
        for lane in (self.lane, self.reader, self.tests):
            lane.close()
        log.info("stopped")

    async def _say_ready(self) -> None:
        await wait_until(self.board.first_look, _FIRST_LOOK_S)
        self.notifier.notify_ready()
        log.info(
            "ready",
            socket=str(self.config.socket_path),
            metrics=str(self.config.metrics.listen or "off"),
            pid=os.getpid(),
        )

    async def _open(self) -> None:
        try:
            await self.pipeline.open(self.catalog)
        except LedgerNewer as error:
            raise CannotStart(str(error)) from error
        try:
            await self.reader.call(self.sources.inventory.read)
        except ThreadStuck as error:
            log.error("inventory_not_read", error=str(error))
        await self._recall()
        for source in (*self.sources.all, self.diagnostics.source):
            self.board.sources[source.name] = SourceHealth(
                name=source.name, state=SourceState.STARTING, deadline=source.deadline_s
            )

    async def _recall(self) -> None:
        path = self.pipeline.ledger.path
        try:
            stored = await self.reader.call(
                lambda: read_events(path, EventQuery(code=PLACED, newest=True, limit=_PLACED))
            )
        except (LedgerError, ThreadStuck) as error:
            log.error(
                "places_not_read",
                error=str(error),
                effect="lines about a Neuron device are told by its index",
            )
            stored = RowList()
        placed = [
            one.event
            for one in stored
            if one.event.is_trusted
            and not one.event.is_simulated
            and one.event.boot_id == self.boot_id
        ]
        self.sources.recall(self.pipeline.position, placed)
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
        self.board.jobs.restore_jobs(jobs, self.boot_id, booted_at, self.board.incidents.values())

    async def _reloads(self) -> None:
        while True:
            await self.hung_up.wait()
            self.hung_up.clear()
            await self._reload()

    async def _reload(self) -> None:
        """SIGHUP: take a new configuration, or refuse it and keep the old one."""
        try:
            fresh = await self.reader.call(lambda: configs.load(self.config_path))
            catalog = await self.reader.call(
                lambda: catalogs.load_catalog(fresh.catalog.profile, fresh.catalog.overrides)
            )
        except (ConfigError, catalogs.CatalogError) as error:
            log.error(
                "reload_refused", errors=error.errors, effect="the old configuration stays in force"
            )
            return
        except ThreadStuck as error:
            log.error(
                "reload_refused", errors=[str(error)], effect="the old configuration stays in force"
            )
            return
        applied, restart = configs.changed(self.config, fresh)
        logs.configure_log(fresh.log.level, self.config.log.format)
        self.board.set_policy(device_reset=fresh.policy.device_reset)
        self.sources.configure(catalog, userspace=fresh.kernel_log.userspace)
        self.diagnostics.configure(catalog)
        self.catalog = catalog
        self.api.replace_catalog(catalog)
        self.config = configs.reloaded(self.config, fresh)
        await self.pipeline.reload_catalog(catalog)
        log.info("reloaded", applied=applied, needs_restart=restart)

    def _well(self) -> bool:
        """Whether what is here now may be taken for what should be here."""
        verdict = self.board.verdict()
        known = verdict.status in (Status.HEALTHY, Status.DEGRADED)
        return known and verdict.action.rank <= Action.OBSERVE.rank and not verdict.simulated

    def _get_retention(self) -> Retention:
        ledger = self.config.ledger
        return Retention(ledger.keep_s, self.config.diagnostics.keep_s, ledger.most_bytes)

    async def _read_kernel_log(self) -> None:
        """In the order in which it happened: earlier boots, this boot as far as the ring has lost
        it, the ring.
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
        await self.pipeline.booted()
        if backfill is not None:
            await supervisor.read_past(
                source.name, backfill.read_this_boot(self.pipeline.position(source.name))
            )
            backfill.close()
        self.past_told.set()
        await supervisor.read(source)

    async def _read_present(self, source: Source) -> None:
        """What is, after what was: the boot and its past are folded in first."""
        await self.past_told.wait()
        await self.supervisor.read(source)

    async def _pulse(self) -> None:
        """The line that `systemctl status` shows, and the watchdog: fed while what is queued gets
        judged, and every source reads or is told to.
        """
        interval = min(self.notifier.watchdog_s or _PULSE_S, _PULSE_S)
        told = ""
        await wait_until(self.board.first_look, _FIRST_LOOK_S)
        while True:
            verdict = self.board.verdict()
            first = f": {verdict.reasons[0]}" if verdict.reasons else ""
            self.notifier.notify_status(
                f"{verdict.status.value}, {len(self.board.findings)} open findings{first}"[:240]
            )
            hanging = self.supervisor.cancel_hanging()
            stuck = "the judge" if self.pipeline.is_wedged() else hanging
            if not stuck:
                self.notifier.notify_watchdog()
            elif stuck != told:
                log.critical(
                    "wedged",
                    what=stuck,
                    effect="the watchdog is not fed: systemd restarts the daemon",
                )
            told = stuck
            await anyio.sleep(interval)

    @asynccontextmanager
    async def _served(self) -> AsyncIterator[None]:
        """The socket and the metrics endpoint."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(
                serve_application(
                    self.api.build_application(),
                    self.api.gate,
                    open_api_sockets(self.config.socket_path, self.api.group, stack),
                    patient=True,
                )
            )
            if self.config.metrics.listen is not None:
                gate = exporter.new_gate()
                application = exporter.application(exporter.registry(self.collector), gate)
                await stack.enter_async_context(
                    serve_application(
                        application, gate, [open_tcp_socket(self.config.metrics.listen)]
                    )
                )
            yield


def _build_diagnostics(daemon: Daemon) -> DiagnosticsManager:
    config, sources = daemon.config, daemon.sources
    deep_log = None
    if config.diagnostics.deep_log is not None:
        deep_log = DeepLog(
            config.diagnostics.deep_log, instance_type=machine_type(config.paths.sysfs)
        )
    releases = sources.nvml.releases if sources.nvml is not None else None
    return DiagnosticsManager(
        config,
        checks.build_checks(config),
        catalog=daemon.catalog,
        boot_id=daemon.boot_id,
        node=NodeView(
            daemon.board,
            sources.inventory,
            daemon.pipeline.ledger.path,
            lambda: releases.words if releases is not None else "",
            sources.nvml.list_processes if sources.nvml is not None else None,
        ),
        detector=IdleDetector(
            config.paths.procfs,
            config.paths.sysfs / "fs/cgroup",
            own=(os.getpid(),),
            ignored=config.diagnostics.ignore_processes,
        ),
        schedule=Schedule(host=_host()),
        programs=Programs(),
        lane=daemon.tests,
        deep_log=deep_log,
        count=daemon.tally.count,
        stored=daemon.pipeline.wait_until_stored,
    )


def _build_routes(daemon: Daemon) -> list[Routes]:
    sources, path = daemon.sources, daemon.pipeline.ledger.path
    counting = next(each for each in sources.polled if each.subject is sources.expected)
    releases = sources.nvml.releases if sources.nvml is not None else None
    return [
        ReleaseRoutes(
            sources.inventory,
            releases,
            daemon.diagnostics.prepare_release,
            daemon.pipeline.wait_until_stored,
        ),
        ExpectRoutes(sources.expected, counting, daemon.pipeline.store),
        JobRoutes(daemon.board, daemon.pipeline.store, daemon.diagnostics),
        DiagnosticRoutes(
            daemon.diagnostics,
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
        # A state folder that cannot be written is the ledger's trouble, and told there
        with suppress(OSError):
            state.mkdir(mode=0o750, parents=True, exist_ok=True)
            _lock_folder(state, held)
        yield


def _lock_folder(folder: Path, held: ExitStack) -> None:
    """Raises CannotStart where another daemon holds it, OSError where that is not known."""
    try:
        held.enter_context(lock.hold_lock(folder))
    except BlockingIOError:
        raise CannotStart(f"another vitald is running with the folder {folder}") from None


def _group(name: str | None) -> int:
    if name is None:
        return os.getegid()
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise CannotStart(f"[socket] group: there is no group {name!r} on this node") from None


def _host() -> str:
    """What this machine is called for as long as it exists. Images may share a host name."""
    try:
        return Path("/etc/machine-id").read_text().strip() or socket.gethostname()
    except OSError:
        return socket.gethostname()


def _boot_id(procfs: Path) -> str:
    path = procfs / "sys/kernel/random/boot_id"
    try:
        return path.read_text().strip()
    except OSError as error:
        raise CannotStart(
            f"{path}: {error.strerror}: without the boot id no record can be told from another"
            " boot's"
        ) from error
