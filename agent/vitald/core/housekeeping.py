"""Housekeeping of the ledger: its size, and the removal of its oldest events."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import structlog

from vitald.core.node_state import NodeState
from vitald.ledger.errors import LedgerError
from vitald.ledger.store import Ledger
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("daemon")

_ROUND_S = 60.0
_TRIM_EVERY = 60  # rounds


@dataclass(frozen=True, slots=True)
class Retention:
    """How long events and printed output of diagnostics are kept, and the ledger's maximum size."""

    events_s: float
    output_s: float
    max_bytes: int


class Housekeeping:
    """Trims one ledger in its thread. `retention` returns the limits in force."""

    def __init__(
        self,
        ledger: Ledger,
        worker_thread: WorkerThread,
        node_state: NodeState,
        retention: Callable[[], Retention],
    ) -> None:
        self._ledger = ledger
        self._worker_thread = worker_thread
        self._node_state = node_state
        self._retention = retention

    async def run(self) -> None:
        """Until cancelled."""
        rounds = 0
        while True:
            try:
                await self._trim_ledger(due=rounds % _TRIM_EVERY == 1)
            except (LedgerError, ThreadStuck, OSError) as error:
                log.warning("housekeeping_failed", error=str(error))
            rounds += 1
            await anyio.sleep(_ROUND_S)

    async def _trim_ledger(self, *, due: bool) -> None:
        retention, ledger = self._retention(), self._ledger
        size = await self._worker_thread.call(ledger.measure_size)
        if due or size > retention.max_bytes:
            while await self._worker_thread.call(
                lambda: ledger.delete_old(time.time(), retention.events_s, retention.max_bytes)
            ):
                await anyio.sleep(0.05)  # commits go between
            await self._worker_thread.call(
                lambda: ledger.forget_output(time.time() - retention.output_s)
            )
            size = await self._worker_thread.call(ledger.measure_size)
        self._node_state.set_ledger_size(size)
