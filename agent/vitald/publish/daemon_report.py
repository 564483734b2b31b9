"""
Tells the daemon how the sinks fare (`POST /v1/publishers`), so that `vitald status` and the metrics
show it: they are where a person looks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from vitald.publish.daemon_request import AnswerUnusable, DaemonAway, request_daemon
from vitald.publish.sink import SinkHealth
from vitald.server.endpoints import REPORT_SINKS
from vitald.text import replace_unprintable
from vitald.timestamps import format_rfc3339

log: structlog.stdlib.BoundLogger = structlog.get_logger("publish")

INTERVAL_S = 15.0  # the daemon drops a report after four of them
_CHECK_S = 1.0
_ANSWER_S, _LEAVE_S = 5.0, 0.5
_LATE_S = 600.0  # no limit of a sink makes anything wait for so long
_MAX_ERROR = 300  # characters; the daemon takes one line of that length


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

    async def _send(self, healths: Sequence[SinkHealth], answer_s: float = _ANSWER_S) -> None:
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
