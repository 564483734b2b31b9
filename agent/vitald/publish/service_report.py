"""
Reports to the daemon whether a scheduler gives the node work (`POST /v1/scheduler`), once it has
accepted that: the times of an incident's steps need it.
"""

from __future__ import annotations

import time
from pathlib import Path

import structlog

from vitald.model.response import ServiceState
from vitald.publish.ask_daemon import DaemonAway, NotAnswered, ask_daemon
from vitald.timestamps import format_rfc3339

log: structlog.stdlib.BoundLogger = structlog.get_logger("publish")

_PATH = "/v1/scheduler"
_MAX_BYTES = 64 * 1024


class ServiceReport:
    """Reports each change of one scheduler; one that the daemon did not take, with the next
    comparison of the receiver.
    """

    def __init__(self, socket: Path, scheduler: str) -> None:
        self._socket = socket
        self._scheduler = scheduler
        self._reported: ServiceState | None = None
        self._pending: tuple[ServiceState, str] | None = None  # not taken yet, and since when
        self._refused = ""

    async def send_state(self, state: ServiceState) -> None:
        """A daemon that does not answer is the feed's matter; one that refuses is logged once."""
        if state is self._reported:
            self._pending = None
            return
        if self._pending is None or self._pending[0] is not state:
            self._pending = state, format_rfc3339(time.time())
        since = self._pending[1]
        body = {"scheduler": self._scheduler, "state": state.value, "since": since}
        try:
            await ask_daemon(self._socket, _PATH, {}, _MAX_BYTES, body=body)
        except DaemonAway:
            return
        except NotAnswered as error:
            if str(error) != self._refused:
                log.warning("report_refused", path=_PATH, answer=str(error))
            self._refused = str(error)
            return
        self._reported, self._pending, self._refused = state, None, ""
