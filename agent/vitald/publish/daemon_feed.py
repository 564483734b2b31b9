"""
The daemon's state as it changes, from its Unix socket: `/v1/watch` says that something changed,
`/v1/summary` what is true now.

When the stream ends, the daemon has stopped. If it announced that (`stopping` is the last line), it
may be an upgrade, and it has GRACE_S to come back. Otherwise it was killed, and is reported silent
unless it answers at once. Only an answer counts: with socket activation, a connection is accepted
while no daemon runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import structlog
from aiohttp.http_exceptions import HttpProcessingError  # of a line that is too long

from vitald.backoff import Backoff
from vitald.publish.http import parse_json, read_limited
from vitald.publish.summary import DaemonSilent, NoSummary, PublishedState, parse_summary
from vitald.server.endpoints import SUMMARY, WATCH
from vitald.tasks import end_tasks

log: structlog.stdlib.BoundLogger = structlog.get_logger("publish")

GRACE_S = 10.0  # after an announced stop, and at our own start
UNANNOUNCED_S = 0.4
_ANNOUNCED_S = 0.1  # between a request that failed and the end of the stream
_SILENCE_S = 60.0  # the stream has a heartbeat every 15 s
_ANSWER_S = 5.0
_COALESCE_S = 0.05  # changes within this time are read together
_MAX_SHARE = 4.0  # a pause of so many times the answer: at most a fifth of a busy daemon's time
_MAX_BYTES = 1024 * 1024  # of a summary: 100 findings and 100 sentences; and of a line
_ANNOUNCING = ("stopping", "lagged")  # lagged: the daemon is there, and behind with its lines
_RETRY = Backoff(0.1, 2.0)
_HOST = "http://vitald"  # its name does not matter: it is that of the socket


class DaemonLost(Exception):
    """The stream ended, or an answer is not usable. `announced`: the daemon had said so."""

    def __init__(self, detail: str, *, announced: bool = False) -> None:
        super().__init__(detail)
        self.announced = announced


class DaemonFeed:
    """Calls `report` with each state. `drills`: simulated findings count as real ones."""

    def __init__(
        self, socket: Path, report: Callable[[PublishedState], None], *, drills: bool = False
    ) -> None:
        self._socket = socket
        self._report = report
        self._summary = SUMMARY.make_target({"drills": str(drills).lower()})
        self._detail = "it has not answered since this process started"
        self._is_answering = False
        self._grace: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Until cancelled."""
        self._start_grace(GRACE_S)
        failures = 0
        try:
            while True:
                lost = await self._follow_daemon()
                self._detail = str(lost)
                if self._is_answering:
                    failures = 0
                    self._start_grace(GRACE_S if lost.announced else UNANNOUNCED_S)
                    log.warning("daemon_lost", detail=self._detail, announced=lost.announced)
                await asyncio.sleep(_RETRY.delay_s(failures))
                failures += 1
        finally:
            self._stop_grace()

    async def _follow_daemon(self) -> DaemonLost:
        """Report states until the daemon is lost. Returns why."""
        changed = asyncio.Event()
        changed.set()
        async with aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(self._socket)),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_ANSWER_S, sock_read=_SILENCE_S),
            read_bufsize=_MAX_BYTES // 2,  # a line may have twice that
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        ) as session:
            tasks = [
                asyncio.ensure_future(_watch_changes(session, changed)),
                asyncio.ensure_future(self._report_changes(session, changed)),
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                # The end of the stream tells more than a request that it broke off.
                await asyncio.wait(tasks[:1], timeout=_ANNOUNCED_S)
                ended = [task for task in tasks if task.done()]
            finally:
                await end_tasks(tasks)
        return ended[0].result()

    async def _report_changes(
        self, session: aiohttp.ClientSession, changed: asyncio.Event
    ) -> DaemonLost:
        while True:
            await changed.wait()
            changed.clear()
            asked = time.monotonic()
            try:
                summary = parse_summary(await self._read_summary(session))
            except NoSummary as error:
                return DaemonLost(f"{SUMMARY.path}: {error}")
            except asyncio.TimeoutError:
                return DaemonLost(f"{SUMMARY.path}: no answer within {_ANSWER_S:g} s")
            except (aiohttp.ClientError, OSError, ValueError) as error:
                return DaemonLost(f"{SUMMARY.path}: {error}")
            self._stop_grace()
            self._is_answering = True
            self._report(summary)
            took = time.monotonic() - asked  # most of it is work of the daemon
            await asyncio.sleep(max(_COALESCE_S, min(_MAX_SHARE * took, _ANSWER_S)))

    async def _read_summary(self, session: aiohttp.ClientSession) -> object:
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        async with session.get(_HOST + self._summary, timeout=timeout) as answer:
            content = await read_limited(answer, _MAX_BYTES)
            if answer.status != 200:
                raise NoSummary(f"HTTP {answer.status}: {content[:200].decode(errors='replace')}")
            return parse_json(content)

    # --- grace

    def _start_grace(self, seconds: float) -> None:
        self._stop_grace()
        self._is_answering = False
        lost_at = time.time()
        loop = asyncio.get_running_loop()
        self._grace = loop.call_later(seconds, self._report_silence, lost_at)

    def _stop_grace(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def _report_silence(self, lost_at: float) -> None:
        self._grace = None
        log.error("daemon_silent", detail=self._detail)
        self._report(DaemonSilent(since=lost_at, detail=self._detail))


def _read_type(line: object) -> object:
    return line.get("type") if isinstance(line, dict) else None


async def _watch_changes(session: aiohttp.ClientSession, changed: asyncio.Event) -> DaemonLost:
    """Set `changed` for each line. Returns why the stream ended."""
    try:
        async with session.get(_HOST + WATCH.path) as stream:
            if stream.status != 200:
                return DaemonLost(f"{WATCH.path}: HTTP {stream.status}")
            while line := await asyncio.wait_for(stream.content.readline(), _SILENCE_S):
                if _read_type(parse_json(line)) in _ANNOUNCING:
                    return DaemonLost("it has stopped", announced=True)
                changed.set()
    except asyncio.TimeoutError:
        return DaemonLost(f"{WATCH.path}: nothing for {_SILENCE_S:g} s")
    except aiohttp.ClientPayloadError:
        return DaemonLost("the connection broke off")
    except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
        return DaemonLost(f"{WATCH.path}: {error}")
    return DaemonLost("it has stopped")
