"""Positions of sources on their way to the ledger: the latest of each, a few times a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import structlog

from vitald.core.held_entries import HeldEntries
from vitald.ledger.errors import LedgerDamaged, LedgerError
from vitald.ledger.store import Ledger
from vitald.model import Position
from vitald.worker_thread import WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("ledger")

_INTERVAL_S = 0.25


class PositionBuffer:
    """Writes positions that come without events, so that most batches cost no commit.

    A position must never be stored ahead of events: while some are in `held`, it waits.
    `record_failure` is called in the event loop with the error of a damaged ledger.
    """

    def __init__(
        self,
        ledger: Ledger,
        worker_thread: WorkerThread,
        held: HeldEntries,
        record_failure: Callable[[str], None],
    ) -> None:
        self._ledger = ledger
        self._worker_thread = worker_thread
        self._held = held
        self._record_failure = record_failure
        self._latest: dict[str, Position] = {}  # by source
        self._timer: asyncio.TimerHandle | None = None

    def add_positions(self, *positions: Position | None) -> None:
        """Have the latest positions written soon; None is skipped."""
        self._latest |= {
            position.source: position for position in positions if position is not None
        }
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._write_latest)

    def discard_position(self, source: str) -> None:
        """Forget the position of a source: an entry with a later one is being committed."""
        self._latest.pop(source, None)

    def close(self) -> None:
        """Write at once what waits for the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._write_latest()

    def _write_latest(self) -> None:
        self._timer = None
        if self._latest and not self._held.entries:
            positions, loop = tuple(self._latest.values()), asyncio.get_running_loop()
            self._worker_thread.post(partial(self._store_positions, positions, loop))
            self._latest = {}

    def _store_positions(
        self, positions: Sequence[Position], loop: asyncio.AbstractEventLoop
    ) -> None:
        """In the worker thread. A position that cannot be stored is left to the next commit; a
        damaged ledger is reported at once, as on a healthy node that commit may be days away.
        """
        try:
            for position in positions:
                self._ledger.store_position(position)
        except LedgerDamaged as error:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._record_failure, str(error))
        except LedgerError as error:
            log.debug("position_not_noted", error=str(error))
