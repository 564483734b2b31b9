"""
What sends something for each transition of the ledger: it follows them from a stored position, and
tries again where sending fails.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

import structlog

from vitald.publish.daemon_request import AnswerUnusable, DaemonAway
from vitald.publish.retry import Retry
from vitald.publish.sink import SinkFailed, SinkHealth, note_failure, note_success
from vitald.publish.state_store import Cursor
from vitald.publish.summary import DaemonSilent, PublishedState
from vitald.publish.transitions import FindingChange, TransitionPage, TransitionReader

log: structlog.stdlib.BoundLogger = structlog.get_logger("publish")

_AWAY, _AWAY_S = 4, 5.0  # longer than the grace of a daemon that is restarted
_POLL_S = 60.0  # a ledger that could not be written may get its transitions late


class LedgerReplaced(Exception):
    """The ledger is not the one that the position is of."""


class TransitionRunner(ABC):
    """A task that keeps one receiver up to date with the ledger."""

    def __init__(self, name: str, reader: TransitionReader, retry: Retry) -> None:
        self.name = name
        self.health = SinkHealth(name)
        self._reader = reader
        self._retry = retry
        self._changed = asyncio.Event()
        self._state: PublishedState | None = None
        self._read_at = 0.0  # on the monotonic clock
        self._away = 0  # how often in succession the daemon did not answer

    def offer_state(self, state: PublishedState) -> None:
        """The state is this now: the ledger may have more."""
        is_due = state != self._state or time.monotonic() >= self._read_at + _POLL_S
        self._state = state
        if is_due and not isinstance(state, DaemonSilent):
            self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        await self._changed.wait()
        while True:
            self._changed.clear()
            pause = await self._work_off()
            if pause is None:
                await self._changed.wait()
            else:
                await self._wait(pause)

    async def _wait(self, pause: float) -> None:
        await asyncio.sleep(pause)

    async def _work_off(self) -> float | None:
        """Send what there is. Seconds until the next attempt; None for the next change."""
        try:
            return await self._send_backlog()
        except DaemonAway as error:
            return self._note_away(error)
        except AnswerUnusable as error:
            return self._note_failure(SinkFailed(f"daemon: {error}"))
        except SinkFailed as error:
            return self._note_failure(error)

    @abstractmethod
    async def _send_backlog(self) -> float | None:
        """Seconds to wait where a limit is reached; None when all is sent. Raises SinkFailed,
        DaemonAway, AnswerUnusable.
        """

    def _note_away(self, error: DaemonAway) -> float | None:
        """A daemon that has ended is reported silent within seconds, and as there again. One that
        answers others and not this is a failure.
        """
        log.debug("daemon_away", sink=self.name, error=str(error))
        if isinstance(self._state, DaemonSilent):
            self._away = 0
            return None
        self._away += 1
        if self._away > _AWAY:
            return self._note_failure(SinkFailed(f"daemon: {error}", is_unreachable=True))
        return _AWAY_S

    def _note_failure(self, error: SinkFailed) -> float:
        self.health = note_failure(self.health, error)
        return self._retry.note_failure(
            is_unreachable=error.is_unreachable, retry_after_s=error.retry_after_s
        )

    def _note_success(self, *, waiting: int, writes: int) -> None:
        self._away = 0
        self._retry.note_success()
        since = self.health.waiting_since
        self.health = note_success(self.health, waiting=waiting, writes=writes)
        if waiting:
            self.health = replace(self.health, waiting_since=since)

    # --- the ledger

    async def _find_newest(self) -> Cursor:
        """The present. Raises DaemonAway, AnswerUnusable."""
        page = await self._reader.read_newest()
        at = next((each.at for each in page.changes if each.id == page.newest), 0.0)
        return Cursor(position=page.newest, at=at)

    async def _scan_changes(self, cursor: Cursor, visit: Callable[[FindingChange], None]) -> Cursor:
        """Call `visit` with each change that is new; where one message is to stand for some, not
        with those after them. Returns the position after all that was read. Raises LedgerReplaced,
        DaemonAway, AnswerUnusable.
        """
        self._read_at = time.monotonic()
        page = await self._reader.read_page(max(cursor.position - 1, 0))
        if is_other_ledger(page, cursor):
            log.warning(
                "ledger_begun_anew", sink=self.name, position=cursor.position, newest=page.newest
            )
            raise LedgerReplaced
        scanned = replace(cursor, combined=0)
        while True:
            for change in page.changes:
                is_new = change.id > cursor.position
                if is_new and (not cursor.combined or change.id <= cursor.combined):
                    scanned = Cursor(position=change.id, at=change.at)
                    visit(change)
            is_combined_read = 0 < cursor.combined <= scanned.position
            if page.next_after is None or is_combined_read:
                return scanned
            page = await self._reader.read_page(page.next_after)


def is_other_ledger(page: TransitionPage, cursor: Cursor) -> bool:
    """Whether a page that begins at the cursor's own transition shows that the ledger was begun
    anew.
    """
    if page.newest < cursor.position:
        return True
    return any(
        change.id == cursor.position and change.at != cursor.at
        for change in page.changes[:1]
        if cursor.at
    )
