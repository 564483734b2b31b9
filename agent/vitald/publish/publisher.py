"""
The composition root of `vitald publish`: one feed, one task for each sink, and the report of how
they fare to the daemon (`POST /v1/publishers`), whose status and metrics show it: that is where a
person looks.

The process has the credentials and the network, which the daemon has not; and when the daemon dies,
somebody is left to say that the node's state is unknown.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from vitald import __version__
from vitald.config.values import Config
from vitald.publish.daemon_feed import DaemonFeed
from vitald.publish.daemon_request import AnswerUnusable, DaemonAway, request_daemon
from vitald.publish.files.replace_file import REWRITE_S, replace_file
from vitald.publish.kubernetes.settings import KubernetesSettings
from vitald.publish.settings import PublishSettings
from vitald.publish.sink import Runner, SinkFailed, SinkHealth, SinkRunner
from vitald.publish.sinks import open_sinks
from vitald.publish.state_store import StateStore, lock_state
from vitald.publish.summary import PublishedState
from vitald.server.endpoints import REPORT_SINKS
from vitald.server.settings import find_socket
from vitald.systemd import Notifier
from vitald.tasks import end_tasks
from vitald.text import replace_unprintable
from vitald.timestamps import format_rfc3339

log: structlog.stdlib.BoundLogger = structlog.get_logger("publish")

_NOTIFY_S = 5.0
_READY_HEARTBEATS = 2  # without a success for so many, it is not ready
INTERVAL_S = 15.0  # the daemon drops a report after four of them
_CHECK_S = 1.0
_REPORT_ANSWER_S, _LEAVE_S = 5.0, 0.5
_LATE_S = 600.0  # no limit of a sink makes anything wait for so long
_MAX_ERROR = 300  # characters; the daemon takes one line of that length


class Publisher:
    """One run of `vitald publish`."""

    def __init__(self, config: Config, ready_file: Path | None = None) -> None:
        """`ready_file`: for a readiness probe, replaced every few seconds. It says why the node's
        state is not written; nothing while it is.
        """
        self._config = config
        self._ready_file = ready_file
        self._runners: list[Runner] = []
        self._stopping = asyncio.Event()
        self._notifier = Notifier()

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Raises NoSink, NoCredentials, StateInUse, NoThread."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        with lock_state(self._config[PublishSettings].state):
            store = StateStore(self._config[PublishSettings].state)
            try:
                async with open_sinks(self._config, store) as self._runners:
                    await self._run_tasks()
            finally:
                store.close()
        log.info("stopped", level="notice")

    async def _run_tasks(self) -> None:
        log.info(
            "publishing",
            level="notice",
            version=__version__,
            sinks=[runner.health.name for runner in self._runners],
            socket=str(find_socket(self._config)),
        )
        feed = DaemonFeed(
            find_socket(self._config),
            self._offer_state,
            drills=self._config[PublishSettings].drills,
        )
        report = DaemonReport(
            find_socket(self._config), lambda: [each.health for each in self._runners]
        )
        works: list[Callable[[], Coroutine[Any, Any, object]]] = [
            *(runner.run for runner in self._runners),
            feed.run,
            report.run,
        ]
        works += [self._notify_systemd, self._stopping.wait]
        if self._ready_file is not None:
            works.append(partial(self._keep_ready_file, self._ready_file))
        tasks = [asyncio.ensure_future(work()) for work in works]
        self._notifier.notify_ready()
        try:
            # None of them ends by itself but the wait for a signal.
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._notifier.notify_stopping()
            await end_tasks(tasks)
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

    async def _keep_ready_file(self, file: Path) -> None:
        limit_s = _READY_HEARTBEATS * max(self._config[KubernetesSettings].heartbeat_s, REWRITE_S)
        failure = ""
        while True:
            runners = (each for each in self._runners if isinstance(each, SinkRunner))
            delays = [delay for each in runners if (delay := each.describe_delay(limit_s))]
            try:
                await replace_file(file, "; ".join(delays))
            except SinkFailed as error:  # then the probe fails
                if str(error) != failure:
                    failure = str(error)
                    log.error("not_noted", error=failure)
            await asyncio.sleep(_NOTIFY_S)


class DaemonReport:
    """Sends what `list_healths` says every INTERVAL_S, and sooner when a sink fails or recovers."""

    def __init__(self, socket: Path, list_healths: Callable[[], Sequence[SinkHealth]]) -> None:
        self._socket = socket
        self._list_healths = list_healths
        self._refused = ""

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        reported: list[object] = []
        due = 0.0
        while True:
            healths = self._list_healths()
            now: list[object] = [
                (each.name, each.is_up, each.refused, each.waiting > 0) for each in healths
            ]
            if now != reported or loop.time() >= due:
                reported, due = now, loop.time() + INTERVAL_S
                await self._send(healths)
            await asyncio.sleep(_CHECK_S)

    async def take_leave(self) -> None:
        """An orderly stop: the daemon need not expect another report."""
        await self._send([], _LEAVE_S)

    async def _send(
        self, healths: Sequence[SinkHealth], answer_s: float = _REPORT_ANSWER_S
    ) -> None:
        """A daemon that does not answer is the feed's matter; one that refuses is logged once."""
        body = {"sinks": [_describe_health(health) for health in healths]}
        refused = ""
        try:
            await request_daemon(self._socket, REPORT_SINKS, body, answer_s=answer_s)
        except DaemonAway:
            return
        except AnswerUnusable as error:
            refused = str(error)
        if refused != self._refused and refused:
            log.warning("report_refused", answer=refused)
        self._refused = refused


def _describe_health(health: SinkHealth) -> dict[str, object]:
    """A sink that hangs reports no failure itself: what waits for too long does."""
    is_late = 0.0 < health.waiting_since < time.time() - _LATE_S
    error = health.error or (f"what waits is older than {_LATE_S / 60:g} min" if is_late else "")
    return {
        "name": health.name,
        "up": health.is_up and not is_late,
        "lastSuccess": _format_time(health.last_success),
        "error": replace_unprintable(error[:_MAX_ERROR], " "),
        "refused": [*health.refused],
        "waiting": health.waiting,
        "waitingSince": _format_time(health.waiting_since),
        "writes": health.writes,
        "failures": health.failures,
    }


def _format_time(moment: float) -> str | None:
    return format_rfc3339(moment) if moment else None
