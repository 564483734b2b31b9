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
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
import structlog
from aiohttp import web

from vitald import __version__, lock
from vitald import catalog as catalogs
from vitald import config as configs
from vitald import log as logs
from vitald.collectors.kernel_log.backfill import CRASH_LOGS
from vitald.collectors.kernel_log.kmsg import from_stdin
from vitald.collectors.neuron.locations import PLACED
from vitald.collectors.pci.inventory import machine_type
from vitald.collectors.registry import Sources
from vitald.config import Config, ConfigError
from vitald.core.node_state import Board
from vitald.core.pipeline import Pipeline
from vitald.core.supervisor import Supervisor
from vitald.diagnostics import checks, idle
from vitald.diagnostics.diagnostics import Diagnostics
from vitald.diagnostics.node import Node
from vitald.diagnostics.process import Programs
from vitald.diagnostics.schedule import Schedule
from vitald.diagnostics.summary import DeepLog
from vitald.ledger import (
    Ledger,
    LedgerError,
    LedgerNewer,
    Listed,
    Query,
    read_events,
    read_run,
    read_runs,
)
from vitald.metrics import exporter
from vitald.model import Action, Source, SourceHealth, SourceState, Status
from vitald.server.app import Api, Routes
from vitald.server.connection_limit import Gate
from vitald.server.recovery_requester import Asking
from vitald.server.routes import library
from vitald.server.routes.diagnostics import DiagnosticRoutes
from vitald.server.routes.expect import ExpectRoutes
from vitald.server.routes.jobs import JobRoutes, read_jobs
from vitald.server.routes.release import ReleaseRoutes
from vitald.systemd import Notifier, handed_over
from vitald.worker_thread import Lane, LaneStuck

log: structlog.stdlib.BoundLogger = structlog.get_logger("daemon")

_FIRST_LOOK_S = 10.0
_PULSE_S = 5.0
_HOUSEKEEPING_S = 60.0
_TRIM_EVERY = 60  # rounds of housekeeping
_SHUTDOWN_S = 0.5
_KEPT_ALIVE_S = 30.0
_HANDED_OVER = (
    10  # turns of the loop, which has taken connections that its protocol does not know yet
)
_UNHEARD_S = 0.3  # for who has just connected to say what it wants: it would wait in vain
_BACKLOG = 256
_UNTOLD_S = 0.1  # for handing in what ended last
# Lines that say where a Neuron device sits: a node has at most 64, and the driver may be loaded
# again
_PLACED = 256
_SWITCH_S = (
    0.0005  # a lane that prepares a large commit must not hold up the loop for 5 ms at a time
)


class CannotStart(Exception):
    """Something that only a person can mend; the text says what."""


class Daemon:
    """One run of the daemon."""

    def __init__(self, config: Config, config_path: Path | None) -> None:
        self.config = config
        self.config_path = config_path
        self.boot_id = _boot_id(config.paths.procfs)
        self.board = Board(self.boot_id, time.time(), device_reset=config.policy.device_reset)
        self.catalog = catalogs.load(config.catalog.profile, config.catalog.overrides)
        self.lane, self.reader = Lane("ledger"), Lane("ledger-reader")
        self.pipeline = Pipeline(
            Ledger(config.paths.state), self.lane, self.board, self.catalog, self.boot_id
        )
        self.sources = Sources(
            config, self.catalog, self.boot_id, self.reader, self._well, kmsg=from_stdin()
        )
        self.tests = Lane("diagnostics")
        self.diagnostics = self._build_diagnostics()
        self.supervisor = Supervisor(self.pipeline)
        self.notifier = Notifier()
        self.stopping = asyncio.Event()
        self.hung_up = asyncio.Event()
        self.past_told = asyncio.Event()
        self.recovery = Asking(
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
            more=self._more_routes(),
        )
        self.collector = exporter.BoardCollector(
            self.board, self.sources.interpreter, self.sources.inventory, self.api.gate
        )
        self.collector.profile = self.catalog.profile
        self.collector.diagnostics = self.diagnostics
        self.collector.recovery = self.recovery

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
        async with self._sole_instance():
            await self._open()
            async with self._served(), anyio.create_task_group() as tasks:
                for work in (
                    self.pipeline.run,
                    self._read_kernel_log,
                    self.sources.uevents.listen,
                    self._pulse,
                    self._keep_house,
                    self._reloads,
                    self.recovery.run,
                ):
                    tasks.start_soon(work)
                for source in (*self.sources.present, self.diagnostics):
                    tasks.start_soon(self._read_present, source)
                tasks.start_soon(self._say_ready)
                await self.stopping.wait()
                self.notifier.stopping()
                log.info("stopping")
                tasks.cancel_scope.cancel()
            for batch in self.diagnostics.untold():
                with anyio.move_on_after(_UNTOLD_S):
                    await self.pipeline.put(batch)
            await self.pipeline.close()
        self.diagnostics.close()
        for lane in (self.lane, self.reader, self.tests):
            lane.close()
        log.info("stopped")

    def _build_diagnostics(self) -> Diagnostics:
        config, sources = self.config, self.sources
        deep_log = None
        if config.diagnostics.deep_log is not None:
            deep_log = DeepLog(
                config.diagnostics.deep_log, instance_type=machine_type(config.paths.sysfs)
            )
        releases = sources.nvml.releases if sources.nvml is not None else None
        return Diagnostics(
            config,
            checks.built(config),
            catalog=self.catalog,
            boot_id=self.boot_id,
            node=Node(
                self.board,
                sources.inventory,
                self.pipeline.ledger.path,
                lambda: releases.words if releases is not None else "",
                sources.nvml.list_processes if sources.nvml is not None else None,
            ),
            detector=idle.IdleDetector(
                config.paths.procfs,
                config.paths.sysfs / "fs/cgroup",
                own=(os.getpid(),),
                ignored=config.diagnostics.ignore_processes,
            ),
            schedule=Schedule(host=_host()),
            programs=Programs(),
            lane=self.tests,
            deep_log=deep_log,
            count=lambda run: self.collector.tally.count(run),
            stored=self.pipeline.stored,
        )

    def _more_routes(self) -> list[Routes]:
        sources, path = self.sources, self.pipeline.ledger.path
        counting = next(one for one in sources.polled if one.subject is sources.expected)
        releases = sources.nvml.releases if sources.nvml is not None else None
        return [
            ReleaseRoutes(
                sources.inventory, releases, self.diagnostics.let_go, self.pipeline.stored
            ),
            ExpectRoutes(sources.expected, counting, self.pipeline.store),
            JobRoutes(self.board, self.pipeline.store, self.diagnostics),
            DiagnosticRoutes(
                self.diagnostics,
                self.reader,
                lambda limit, check: read_runs(path, limit, check),
                lambda run_id: read_run(path, run_id) or self.diagnostics.lately(run_id),
            ),
        ]

    async def _say_ready(self) -> None:
        await _until(self.board.first_look, _FIRST_LOOK_S)
        self.notifier.ready()
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
        except LaneStuck as error:
            log.error("inventory_not_read", error=str(error))
        await self._recall()
        for source in (*self.sources.all, self.diagnostics):
            self.board.sources[source.name] = SourceHealth(
                name=source.name, state=SourceState.STARTING, deadline=source.deadline_s
            )

    async def _recall(self) -> None:
        path = self.pipeline.ledger.path
        try:
            stored = await self.reader.call(
                lambda: read_events(path, Query(code=PLACED, newest=True, limit=_PLACED))
            )
        except (LedgerError, LaneStuck) as error:
            log.error(
                "places_not_read",
                error=str(error),
                effect="lines about a Neuron device are told by its index",
            )
            stored = Listed()
        placed = [
            one.event
            for one in stored
            if one.event.judged and not one.event.simulated and one.event.boot_id == self.boot_id
        ]
        self.sources.recall(self.pipeline.position, placed)
        try:
            jobs = await self.reader.call(lambda: read_jobs(path))
        except (LedgerError, LaneStuck) as error:
            log.error(
                "jobs_not_read",
                error=str(error),
                effect="incidents do not tell of work before this start",
            )
            return
        booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        self.board.jobs.recall(jobs, self.boot_id, booted_at, self.board.incidents.values())

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
                lambda: catalogs.load(fresh.catalog.profile, fresh.catalog.overrides)
            )
        except (ConfigError, catalogs.CatalogError) as error:
            log.error(
                "reload_refused", errors=error.errors, effect="the old configuration stays in force"
            )
            return
        except LaneStuck as error:
            log.error(
                "reload_refused", errors=[str(error)], effect="the old configuration stays in force"
            )
            return
        applied, restart = configs.changed(self.config, fresh)
        logs.configure(fresh.log.level, self.config.log.format)
        self.board.set_policy(device_reset=fresh.policy.device_reset)
        self.sources.configure(catalog, userspace=fresh.kernel_log.userspace)
        self.diagnostics.configure(catalog)
        self.catalog = self.api.catalog = catalog
        self.collector.profile = catalog.profile
        self.config = configs.reloaded(self.config, fresh)
        await self.pipeline.recatalogue(catalog)
        log.info("reloaded", applied=applied, needs_restart=restart)

    def _well(self) -> bool:
        """Whether what is here now may be taken for what should be here."""
        verdict = self.board.verdict()
        known = verdict.status in (Status.HEALTHY, Status.DEGRADED)
        return known and verdict.action.rank <= Action.OBSERVE.rank and not verdict.simulated

    async def _read_kernel_log(self) -> None:
        """In the order in which it happened: earlier boots, this boot as far as the ring has lost
        it, the ring.
        """
        source, earlier, supervisor = self.sources.kernel_log, self.sources.earlier, self.supervisor
        if earlier is not None:
            position, orderly = self.pipeline.position, self.pipeline.orderly
            former = earlier.former_boots(
                position(source.name), position(CRASH_LOGS), orderly=orderly
            )
            await supervisor.read_past(source.name, former)
        await self.pipeline.booted()
        if earlier is not None:
            await supervisor.read_past(
                source.name, earlier.this_boot(self.pipeline.position(source.name))
            )
            earlier.close()
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
        await _until(self.board.first_look, _FIRST_LOOK_S)
        while True:
            verdict = self.board.verdict()
            first = f": {verdict.reasons[0]}" if verdict.reasons else ""
            self.notifier.status(
                f"{verdict.status.value}, {len(self.board.findings)} open findings{first}"[:240]
            )
            hanging = self.supervisor.check()
            stuck = "the judge" if self.pipeline.wedged() else hanging
            if not stuck:
                self.notifier.alive()
            elif stuck != told:
                log.critical(
                    "wedged",
                    what=stuck,
                    effect="the watchdog is not fed: systemd restarts the daemon",
                )
            told = stuck
            await anyio.sleep(interval)

    async def _keep_house(self) -> None:
        """The ledger's size, and now and then its oldest events."""
        rounds = 0
        while True:
            try:
                await self._trim(due=rounds % _TRIM_EVERY == 1)
            except (LedgerError, LaneStuck, OSError) as error:
                log.warning("housekeeping_failed", error=str(error))
            rounds += 1
            await anyio.sleep(_HOUSEKEEPING_S)

    async def _trim(self, *, due: bool) -> None:
        settings = self.config.ledger
        ledger = self.pipeline.ledger
        size = await self.lane.call(ledger.size)
        if due or size > settings.most_bytes:
            while await self.lane.call(
                lambda: ledger.trim(time.time(), settings.keep_s, settings.most_bytes)
            ):
                await anyio.sleep(0.05)  # commits go between
            await self.lane.call(
                lambda: ledger.forget_output(time.time() - self.config.diagnostics.keep_s)
            )
            size = await self.lane.call(ledger.size)
        self.board.ledger_size(size)

    @asynccontextmanager
    async def _sole_instance(self) -> AsyncIterator[None]:
        """Two daemons must share neither a socket nor a ledger."""
        runtime, state = self.config.paths.runtime, self.config.paths.state
        with ExitStack() as held:
            try:
                runtime.mkdir(
                    mode=0o755 if configs.is_root() else 0o700, parents=True, exist_ok=True
                )
                if runtime.stat().st_uid not in (0, os.geteuid()):
                    raise CannotStart(
                        f"{runtime}: belongs to uid {runtime.stat().st_uid}, not to this user"
                    )
                _lock(runtime, held)
            except OSError as error:
                raise CannotStart(
                    f"{error.filename or runtime}: {error.strerror}: vitald needs a runtime folder"
                    " it can write ([paths] runtime)"
                ) from error
            with suppress(
                OSError
            ):  # a state folder that cannot be written is the ledger's trouble, and told there
                state.mkdir(mode=0o750, parents=True, exist_ok=True)
                _lock(state, held)
            yield

    @asynccontextmanager
    async def _served(self) -> AsyncIterator[None]:
        """The socket and the metrics endpoint."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(
                _http(self.api.application(), self.api.gate, self._api_sockets(stack), patient=True)
            )
            if self.config.metrics.listen is not None:
                gate = exporter.new_gate()
                application = exporter.application(exporter.registry(self.collector), gate)
                await stack.enter_async_context(
                    _http(application, gate, [_tcp_socket(self.config.metrics.listen)])
                )
            yield

    def _api_sockets(self, stack: AsyncExitStack) -> list[socket.socket]:
        """What systemd holds for us while we are away, and our own where that is not the configured
        one.
        """
        path, sockets = self.config.socket_path, handed_over()
        for one in sockets:
            if (group := Path(one.getsockname()).stat().st_gid) != self.api.group:
                log.error(
                    "socket_group",
                    socket=one.getsockname(),
                    group=group,
                    wanted=self.api.group,
                    next_step=(
                        "[socket] group cannot change a socket of systemd's: systemctl edit"
                        " vitald.socket, [Socket] SocketGroup="
                    ),
                )
        if str(path) not in [one.getsockname() for one in sockets]:
            sockets.append(_unix_socket(path, self.api.group))
            stack.callback(path.unlink, missing_ok=True)
        return sockets


@asynccontextmanager
async def _http(
    app: web.Application, gate: Gate, listeners: list[socket.socket], *, patient: bool = False
) -> AsyncIterator[None]:
    """Serve an application behind its gate. `patient`: until the last who came before the end is
    heard.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=_SHUTDOWN_S,
        handler_cancellation=True,
    )
    await runner.setup()
    assert runner.server is not None
    protocol = partial(library.Protocol, runner.server, _KEPT_ALIVE_S)
    loop = asyncio.get_running_loop()
    try:
        servers = [
            await loop.create_server(gate.wrap(protocol), sock=one, backlog=_BACKLOG)
            for one in listeners
        ]
        try:
            yield
        finally:
            for sock in (sock for server in servers for sock in server.sockets):
                loop.remove_reader(
                    sock.fileno()
                )  # who comes now waits for the next daemon where systemd holds the socket
            if patient:
                for _ in range(_HANDED_OVER):
                    await asyncio.sleep(0)
                await _until(gate.quiet, _UNHEARD_S)
            for server in servers:
                server.close()
    finally:
        await runner.cleanup()


def _lock(folder: Path, held: ExitStack) -> None:
    """Hold a folder. Raises CannotStart where another one does, OSError where that cannot
    be told.
    """
    try:
        held.enter_context(lock.held(folder))
    except BlockingIOError:
        raise CannotStart(f"another vitald is running with the folder {folder}") from None


def _unix_socket(path: Path, group: int) -> socket.socket:
    """Readable by the group. Whoever connects is asked for credentials all the same."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.unlink(
            missing_ok=True
        )  # left by a daemon that was killed; a living one holds the lock
        before = os.umask(0o117)
        try:
            made.bind(str(path))
        finally:
            os.umask(before)
        if path.stat().st_gid != group:
            os.chown(path, -1, group)
        made.listen(_BACKLOG)  # at once: who finds the file may connect
    except OSError as error:
        made.close()
        raise CannotStart(
            f"{path}: {error.strerror}: cannot listen there ([socket] path)"
        ) from error
    return made


def _tcp_socket(listen: configs.Listen) -> socket.socket:
    try:
        return socket.create_server(
            (listen.host, listen.port),
            family=socket.AF_INET6 if ":" in listen.host else socket.AF_INET,
        )
    except OSError as error:
        raise CannotStart(
            f"{listen}: {error.strerror}: cannot listen there ([metrics] listen)"
        ) from error


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


async def _until(event: asyncio.Event, seconds: float) -> None:
    with anyio.move_on_after(seconds):
        await event.wait()
