"""
The composition root of `vitald publish`: one feed, one task for each sink, and the report of how
they fare to the daemon.

The process has the credentials and the network, which the daemon has not; and when the daemon dies,
somebody is left to say that the node's state is unknown.
"""

from __future__ import annotations

import asyncio
import signal
import traceback
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any

import structlog

from vitald import __version__
from vitald.publish.config import PublisherConfig
from vitald.publish.daemon_feed import DaemonFeed
from vitald.publish.daemon_report import DaemonReport
from vitald.publish.sink import Runner, SinkFailed, note_failure
from vitald.publish.sinks import open_sinks
from vitald.publish.state_store import StateStore, lock_state
from vitald.publish.summary import PublishedState
from vitald.systemd import Notifier

log: structlog.stdlib.BoundLogger = structlog.get_logger("publish")

_NOTIFY_S = 5.0
_CANCEL_S = 0.5
_RESTART_S = 30.0  # of a receiver whose task has died


class Publisher:
    """One run of `vitald publish`."""

    def __init__(self, config: PublisherConfig) -> None:
        self._config = config
        self._runners: list[Runner] = []
        self._stopping = asyncio.Event()
        self._notifier = Notifier()

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Raises NoSink, NoCredentials, StateInUse, NoThread."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        with lock_state(self._config.publish.state):
            store = StateStore(self._config.publish.state)
            try:
                async with open_sinks(self._config, store) as self._runners:
                    await self._run_tasks()
            finally:
                store.close()
        log.info("stopped")

    async def _run_tasks(self) -> None:
        log.info(
            "publishing",
            version=__version__,
            sinks=[runner.health.name for runner in self._runners],
            socket=str(self._config.socket_path),
        )
        feed = DaemonFeed(
            self._config.socket_path, self._offer_state, drills=self._config.publish.drills
        )
        report = DaemonReport(
            self._config.socket_path, lambda: [each.health for each in self._runners]
        )
        works: list[Callable[[], Coroutine[Any, Any, object]]] = [
            *(partial(_run_sink, runner) for runner in self._runners),
            feed.run,
            report.run,
        ]
        works += [self._notify_systemd, self._stopping.wait]
        tasks = [asyncio.ensure_future(work()) for work in works]
        self._notifier.notify_ready()
        try:
            # None of them ends by itself but the wait for a signal.
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._notifier.notify_stopping()
            await _end_tasks(tasks)
        if self._stopping.is_set():
            await report.take_leave()
        for task in done:
            task.result()  # raises what a task died of

    def _offer_state(self, state: PublishedState) -> None:
        for runner in self._runners:
            runner.offer_state(state)

    async def _notify_systemd(self) -> None:
        """The line that `systemctl status` shows, and the watchdog."""
        interval = min(self._notifier.watchdog_s or _NOTIFY_S, _NOTIFY_S)
        while True:
            lines = (each.health.describe() for each in self._runners)
            self._notifier.notify_status("; ".join(lines)[:240])
            self._notifier.notify_watchdog()
            await asyncio.sleep(interval)


async def _run_sink(runner: Runner) -> None:
    """Until cancelled. A receiver of notifications that dies of a fault of vitald is begun again,
    so that it ends no other sink.
    """
    while True:
        try:
            await runner.run()
            return
        except Exception as error:
            if not runner.health.name.startswith("notify/"):
                raise
            what = f"fault of vitald: {type(error).__name__}"
            # Without the text of the error, which may have a secret in it.
            frames = "".join(traceback.format_tb(error.__traceback__))
            log.error("receiver_died", sink=runner.health.name, error=what, frames=frames)
            runner.health = note_failure(runner.health, SinkFailed(what))
        await asyncio.sleep(_RESTART_S)


async def _end_tasks(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel them until they end: before Python 3.12, `asyncio.wait_for` loses a cancellation that
    comes together with the result (CPython issue 86296).
    """
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=_CANCEL_S)
