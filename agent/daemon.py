"""
The composition root: builds everything, supervises it, reloads, stops.

Nothing imports this module but the command line. The order of start and stop can be read off `run`.
"""

from __future__ import annotations

import asyncio
import fcntl
import grp
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.abc
import structlog
from aiohttp import web

from agent import __version__
from agent import catalog as catalogs
from agent import config as configs
from agent import log as logs
from agent.board import Board
from agent.config import Config, ConfigError
from agent.lane import Lane, LaneStuck
from agent.ledger import Ledger, LedgerError, LedgerNewer, Query, read_events
from agent.model import NODE, Action, SourceHealth, SourceState, Status
from agent.outputs import metrics
from agent.outputs.api import Api
from agent.outputs.gate import Gate
from agent.outputs.systemd import Notifier
from agent.pipeline import Pipeline, source_component
from agent.sources.expected import Expected
from agent.sources.host.host import Host
from agent.sources.kernel_log import pstore
from agent.sources.kernel_log.announced import Announcements
from agent.sources.kernel_log.earlier import Earlier
from agent.sources.kernel_log.file import LogFile
from agent.sources.kernel_log.interpret import Interpreter
from agent.sources.kernel_log.journal import Journal
from agent.sources.kernel_log.kmsg import Kmsg
from agent.sources.network.network import Network
from agent.sources.neuron.neuron import Neuron
from agent.sources.neuron.places import PLACED, Places
from agent.sources.nvml.source import Nvml
from agent.sources.pci import PciInventory, machine_type
from agent.sources.pci_functions import Pci
from agent.sources.polled import Polled, Subject
from agent.sources.source import Batch, Source, SourceFailed
from agent.sources.uevents import Uevents

log: structlog.stdlib.BoundLogger = structlog.get_logger("daemon")

_BACKOFF_S = (1.0, 60.0)
_FIRST_LOOK_S = 10.0
_PULSE_S = 5.0
_HOUSEKEEPING_S = 60.0
_TRIM_EVERY = 60  # rounds of housekeeping
_SHUTDOWN_S = 0.5
_OF_THE_HOST = ("host", "edac", "thermal", "fs", "nvme", "clock", "unit")  # kinds of what is seen there
_EXPECT_S = 60.0  # how often is counted what should be here
_PLACED = 256  # lines that say where a Neuron device sits: a node has at most 64, and the driver may be loaded again
_SWITCH_S = 0.0005  # a lane that prepares a large commit must not hold up the loop for 5 ms at a time


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
        self.pipeline = Pipeline(Ledger(config.paths.state), self.lane, self.board, self.catalog, self.boot_id)
        self.inventory = PciInventory(config.paths.sysfs)
        self.places = Places()
        self.interpreter = Interpreter(
            self.catalog, Announcements(), self.inventory, accept_userspace=config.kernel_log.accept_userspace, places=self.places
        )
        self.source: Source = (Kmsg if config.kernel_log.source == "kmsg" else LogFile)(
            str(config.kernel_log.path), self.interpreter, self.boot_id
        )
        self.nvml = self._nvml(config)
        self.expected = self._expected(config)
        self.polled = self._polled(config)
        self.uevents = self._uevents()
        self.earlier = self._earlier(config)
        self.notifier = Notifier()
        self.stopping = asyncio.Event()
        self.hung_up = asyncio.Event()
        self.past_told = asyncio.Event()
        self.api = Api(
            board=self.board,
            pipeline=self.pipeline,
            catalog=self.catalog,
            interpreter=self.interpreter,
            inventory=self.inventory,
            reader=self.reader,
            inject_path=config.kernel_log.path,
            group=_group(config.socket.group),
            releases=self.nvml.releases if self.nvml is not None else None,
        )
        self.collector = metrics.BoardCollector(self.board, self.interpreter, self.inventory, self.api.gate)
        self.collector.profile = self.catalog.profile

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Raises CannotStart."""
        loop = asyncio.get_running_loop()
        sys.setswitchinterval(_SWITCH_S)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self.hung_up.set)
        log.info(
            "starting", version=__version__, boot_id=self.boot_id, config=str(self.config_path or "defaults"), profile=self.catalog.profile
        )
        async with self._sole_instance():
            await self._open()
            async with self._served(), anyio.create_task_group() as tasks:
                for work in (self.pipeline.run, self._watch_kernel_log, self.uevents.listen, self._pulse, self._keep_house, self._reloads):
                    tasks.start_soon(work)
                for source in self._present:
                    tasks.start_soon(self._watch_present, source)
                tasks.start_soon(self._say_ready)
                await self.stopping.wait()
                self.notifier.stopping()
                log.info("stopping")
                tasks.cancel_scope.cancel()
            await self.pipeline.close()
        self.lane.close()
        self.reader.close()
        log.info("stopped")

    async def _say_ready(self) -> None:
        await _until(self.board.first_look, _FIRST_LOOK_S)
        self.notifier.ready()
        log.info("ready", socket=str(self.config.socket_path), metrics=str(self.config.metrics.listen or "off"), pid=os.getpid())

    async def _open(self) -> None:
        try:
            await self.pipeline.open(self.catalog)
        except LedgerNewer as error:
            raise CannotStart(str(error)) from error
        try:
            await self.reader.call(self.inventory.read)
        except LaneStuck as error:
            log.error("inventory_not_read", error=str(error))
        await self._recall()
        for source in (self.source, *self._present):
            self.board.sources[source.name] = SourceHealth(name=source.name, state=SourceState.STARTING, deadline=source.deadline_s)

    async def _recall(self) -> None:
        """Before the kernel log is read: it speaks of Neuron devices by an index, and said at boot where each sits."""
        for polled in self.polled:
            polled.recall(self.pipeline.position(polled.name))
        path = self.pipeline.ledger.path
        try:
            stored = await self.reader.call(lambda: read_events(path, Query(code=PLACED, newest=True, limit=_PLACED)))
        except (LedgerError, LaneStuck) as error:
            log.error("places_not_read", error=str(error), effect="lines about a Neuron device are told by its index")
            return
        for event in (one.event for one in stored):
            if event.judged and event.boot_id == self.boot_id:
                self.places.told(int(str(event.fields["device"])), f"0000:{event.fields['slot']}")

    async def _reloads(self) -> None:
        while True:
            await self.hung_up.wait()
            self.hung_up.clear()
            await self._reload()

    async def _reload(self) -> None:
        """SIGHUP: take a new configuration, or refuse it and keep the old one."""
        try:
            fresh = await self.reader.call(lambda: configs.load(self.config_path))
            catalog = await self.reader.call(lambda: catalogs.load(fresh.catalog.profile, fresh.catalog.overrides))
        except (ConfigError, catalogs.CatalogError) as error:
            log.error("reload_refused", errors=error.errors, effect="the old configuration stays in force")
            return
        except LaneStuck as error:
            log.error("reload_refused", errors=[str(error)], effect="the old configuration stays in force")
            return
        applied, restart = configs.changed(self.config, fresh)
        logs.configure(fresh.log.level, self.config.log.format)
        self.board.set_policy(device_reset=fresh.policy.device_reset)
        self.interpreter.configure(catalog, accept_userspace=fresh.kernel_log.accept_userspace)
        for source in self._present:
            source.configure(catalog)
        self.catalog = self.api.catalog = catalog
        self.collector.profile = catalog.profile
        self.config = configs.reloaded(self.config, fresh)
        await self.pipeline.recatalogue(catalog)
        log.info("reloaded", applied=applied, needs_restart=restart)

    def _nvml(self, config: Config) -> Nvml | None:
        if not config.nvml.enabled:
            return None
        expected = self.catalog.instance(machine_type(config.paths.sysfs)).gpus
        return Nvml(config.nvml, self.catalog, self.inventory, self.boot_id, Lane("nvml"), expected=expected, vbios=config.expect.vbios)

    def _expected(self, config: Config) -> Expected:
        nvml = config.nvml
        paths, instances = config.paths, self.catalog.instances
        inventory = PciInventory(paths.sysfs)  # one of its own: it looks at other times
        return Expected(
            paths.sysfs, paths.procfs, inventory, instances, self.boot_id, config.expect, nvml.expected_gpus, self._well, nvml=nvml.enabled
        )

    def _well(self) -> bool:
        """Whether what is here now may be taken for what should be here."""
        verdict = self.board.verdict()
        known = verdict.status in (Status.HEALTHY, Status.DEGRADED)
        return known and verdict.action.rank <= Action.OBSERVE.rank and not verdict.simulated

    def _polled(self, config: Config) -> list[Polled]:
        """What is looked at in rounds."""
        sysfs, procfs, state = config.paths.sysfs, config.paths.procfs, config.paths.state
        subjects: list[tuple[Subject, configs.Neuron | configs.Network | configs.Pci | configs.Host, tuple[str, ...]]] = [
            (Neuron(sysfs, self.inventory, self.places), config.neuron, ("neuron",)),
            (Network(sysfs, config.network), config.network, ("network", "efa", "ib", "net")),
            (Pci(sysfs, self.inventory, config.pci), config.pci, ("pci",)),
            (Host(sysfs, procfs, state, config.host), config.host, _OF_THE_HOST),
        ]
        looks = [(subject, settings.every_s, settings.deadline_s, kinds) for subject, settings, kinds in subjects if settings.enabled]
        looks.append((self.expected, _EXPECT_S, _EXPECT_S, ("expect",)))
        return [
            Polled(subject, self.catalog, self.boot_id, every_s=every_s, look_s=look_s, kinds=kinds)
            for subject, every_s, look_s, kinds in looks
        ]

    def _uevents(self) -> Uevents:
        """Who looks at once when the kernel announces something."""
        wake = {one.name: one.look_now for one in self.polled}
        heard = {
            "pci": ("pci", "neuron", "network", "expect"),
            "neuron_device": ("neuron",),
            "infiniband": ("network", "expect"),
            "net": ("network",),
            "nvme": ("host", "expect"),
        }
        return Uevents({subsystem: [wake[name] for name in names if name in wake] for subsystem, names in heard.items()})

    @property
    def _present(self) -> list[Nvml | Polled]:
        """The sources of what is now, beside the kernel log, which also tells of what was."""
        return [*([self.nvml] if self.nvml is not None else []), *self.polled]

    def _earlier(self, config: Config) -> Earlier | None:
        """Only the ring forgets; a file is its own history."""
        if config.kernel_log.source != "kmsg":
            return None
        where = config.kernel_log.journal
        journal = None if where == "off" else Journal(None if where == "system" else Path(where))
        folders = (config.paths.sysfs / "fs/pstore", pstore.FOLDERS[1])
        return Earlier(str(config.kernel_log.path), self.interpreter, self.boot_id, self.reader, journal, folders)

    async def _watch_kernel_log(self) -> None:
        """In the order in which it happened: earlier boots, this boot as far as the ring has lost it, the ring."""
        name = self.source.name
        if self.earlier is not None:
            await self._hand_in(self.earlier.former_boots(self.pipeline.position(name), orderly=self.pipeline.orderly))
        await self.pipeline.booted()
        if self.earlier is not None:
            await self._hand_in(self.earlier.this_boot(self.pipeline.position(name)))
            self.earlier.close()
        self.past_told.set()
        await self._watch(self.source)

    async def _watch_present(self, source: Source) -> None:
        """What is, after what was: the boot and its past are folded in first."""
        await self.past_told.wait()
        await self._watch(source)

    async def _hand_in(self, past: AsyncIterator[Batch]) -> None:
        """A part of the past. A fault of ours in reading it must not keep us from the present."""
        try:
            async for batch in past:
                await self.pipeline.put(batch)
        except Exception:
            log.exception("history_not_read")
            await self.pipeline.own(
                "vitald/not_watched", {"orderly": False}, NODE, "what happened before the start could not be read: see the daemon's log"
            )

    async def _watch(self, source: Source) -> None:
        """Read a source for ever: what fails is shown, said as a finding, and started again with back-off."""
        delay, failed = _BACKOFF_S[0], False
        while True:
            try:
                async with aclosing(source.batches(self.pipeline.position(source.name))) as batches:  # type: ignore[type-var]
                    async for batch in batches:
                        if failed:
                            failed, delay = False, _BACKOFF_S[0]
                            log.info("source_recovered", source=source.name)
                            await self._own(source, "is read again", recovered=True)
                        await self.pipeline.put(batch)
                raise SourceFailed("it ended")
            except SourceFailed as error:
                reason = str(error)
            except Exception as error:  # one broken source must not take the others with it
                log.exception("source_broke", source=source.name)
                reason = f"{type(error).__name__}: {error}"
            await self.pipeline.put(Batch(source.name, state=SourceState.FAILED, detail=reason))
            if not failed:
                failed = True
                log.error("source_failed", source=source.name, error=reason, retry_s=delay)
                await self._own(source, f"cannot be read: {reason}", recovered=False)
            await anyio.sleep(delay)
            delay = min(delay * 2, _BACKOFF_S[1])

    async def _own(self, source: Source, what: str, *, recovered: bool) -> None:
        await self.pipeline.own(
            "vitald/source_failed", {"recovered": recovered}, source_component(source.name), f"source {source.name} {what}"
        )

    async def _pulse(self) -> None:
        """The line that `systemctl status` shows, and the watchdog: fed while what is queued gets judged."""
        interval = min(self.notifier.watchdog_s or _PULSE_S, _PULSE_S)
        await _until(self.board.first_look, _FIRST_LOOK_S)
        while True:
            verdict = self.board.verdict()
            first = f": {verdict.reasons[0]}" if verdict.reasons else ""
            self.notifier.status(f"{verdict.status.value}, {len(self.board.findings)} open findings{first}"[:240])
            if not self.pipeline.wedged():
                self.notifier.alive()
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
            while await self.lane.call(lambda: ledger.trim(time.time(), settings.keep_s, settings.most_bytes)):
                await anyio.sleep(0.05)  # commits go between
            size = await self.lane.call(ledger.size)
        self.board.ledger_size(size)

    @asynccontextmanager
    async def _sole_instance(self) -> AsyncIterator[None]:
        """Two daemons must share neither a socket nor a ledger."""
        runtime, state = self.config.paths.runtime, self.config.paths.state
        with ExitStack() as held:
            try:
                runtime.mkdir(mode=0o755 if configs.is_root() else 0o700, parents=True, exist_ok=True)
                if runtime.stat().st_uid not in (0, os.geteuid()):
                    raise CannotStart(f"{runtime}: belongs to uid {runtime.stat().st_uid}, not to this user")
                _lock(runtime, held)
            except OSError as error:
                raise CannotStart(f"{runtime}: {error.strerror}: vitald needs a runtime folder it can write ([paths] runtime)") from error
            with suppress(OSError):  # a state folder that cannot be written is the ledger's trouble, and told there
                state.mkdir(mode=0o750, parents=True, exist_ok=True)
                _lock(state, held)
            yield

    @asynccontextmanager
    async def _served(self) -> AsyncIterator[None]:
        """The socket and the metrics endpoint."""
        path = self.config.socket_path
        async with _http(self.api.application(), self.api.gate, lambda: _unix_socket(path, self.api.group)):
            try:
                if self.config.metrics.listen is None:
                    yield
                    return
                gate = metrics.new_gate()
                application = metrics.application(metrics.registry(self.collector), gate)
                listen = self.config.metrics.listen
                async with _http(application, gate, lambda: _tcp_socket(listen)):
                    yield
            finally:
                path.unlink(missing_ok=True)


@asynccontextmanager
async def _http(app: web.Application, gate: Gate, listener: Callable[[], socket.socket]) -> AsyncIterator[None]:
    """Serve an application behind its gate on a socket of our own."""
    runner = web.AppRunner(
        app, access_log=None, handle_signals=False, shutdown_timeout=_SHUTDOWN_S, keepalive_timeout=30.0, handler_cancellation=True
    )
    await runner.setup()
    assert runner.server is not None
    try:
        server = await asyncio.get_running_loop().create_server(gate.wrap(runner.server), sock=listener(), backlog=256)
        try:
            yield
        finally:
            server.close()
    finally:
        await runner.cleanup()


def _lock(folder: Path, held: ExitStack) -> None:
    """Hold a folder. Raises CannotStart where another one does, OSError where it cannot be opened."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    held.callback(os.close, fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CannotStart(f"another vitald is running with the folder {folder}") from None


def _unix_socket(path: Path, group: int) -> socket.socket:
    """Readable by the group. Whoever connects is asked for credentials all the same."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # left by a daemon that was killed; a living one holds the lock
        before = os.umask(0o117)
        try:
            made.bind(str(path))
        finally:
            os.umask(before)
        if path.stat().st_gid != group:
            os.chown(path, -1, group)
    except OSError as error:
        made.close()
        raise CannotStart(f"{path}: {error.strerror}: cannot listen there ([socket] path)") from error
    return made


def _tcp_socket(listen: configs.Listen) -> socket.socket:
    try:
        return socket.create_server((listen.host, listen.port), family=socket.AF_INET6 if ":" in listen.host else socket.AF_INET)
    except OSError as error:
        raise CannotStart(f"{listen}: {error.strerror}: cannot listen there ([metrics] listen)") from error


def _group(name: str | None) -> int:
    if name is None:
        return os.getegid()
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise CannotStart(f"[socket] group: there is no group {name!r} on this node") from None


def _boot_id(procfs: Path) -> str:
    path = procfs / "sys/kernel/random/boot_id"
    try:
        return path.read_text().strip()
    except OSError as error:
        raise CannotStart(f"{path}: {error.strerror}: without the boot id no record can be told from another boot's") from error


async def _until(event: asyncio.Event, seconds: float) -> None:
    with anyio.move_on_after(seconds):
        await event.wait()
