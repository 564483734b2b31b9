"""
Restores what sources and outputs remember of the time before the daemon's start, from its ledger.

What cannot be read is reported with its effect, and begins anew: the daemon starts all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from vitald.collectors.neuron.locations import PLACED
from vitald.collectors.registry import Sources
from vitald.core.advice import SAVE_CODES, SaveAdvisor
from vitald.core.node_state import NodeState
from vitald.core.pipeline import Pipeline
from vitald.core.suspicion_history import read_suspicion_events
from vitald.core.validation_history import read_missed_validation
from vitald.ledger import EventQuery, LedgerError, StoredEvent, read_events
from vitald.server.routes.jobs import read_jobs
from vitald.server.routes.scheduler import read_response_facts
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("daemon")

T = TypeVar("T")

# Lines with the location of a Neuron device: a node has at most 64, and the driver may be loaded
# again.
_MAX_LOCATIONS = 256


async def restore_context(
    pipeline: Pipeline,
    sources: Sources,
    node_state: NodeState,
    save_advisor: SaveAdvisor,
    reader: WorkerThread,
) -> None:
    """Call it once the pipeline is open, before anything is read."""
    context = _Context(pipeline, node_state, reader)
    await context.restore_sources(sources)
    await context.restore_jobs()
    await context.restore_responses()
    await context.restore_validation()
    await context.restore_suspicion()
    await context.restore_advice(save_advisor)


class _Context:
    """One restoration."""

    def __init__(self, pipeline: Pipeline, node_state: NodeState, reader: WorkerThread) -> None:
        self._pipeline, self._node_state, self._reader = pipeline, node_state, reader

    async def restore_sources(self, sources: Sources) -> None:
        boot_id = self._node_state.boot_id
        stored = await self._read_ledger(
            _read_locations, "places_not_read", "lines about a Neuron device name it by its index"
        )
        placed = [
            each.event
            for each in stored or ()
            if each.event.is_judged
            and not each.event.is_simulated
            and each.event.boot_id == boot_id
        ]
        sources.restore_memory(self._pipeline.position, placed)

    async def restore_jobs(self) -> None:
        jobs = await self._read_ledger(
            read_jobs, "jobs_not_read", "incidents do not tell of work before this start"
        )
        if jobs is None:
            return
        state = self._node_state
        booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        state.jobs.restore_jobs(jobs, state.boot_id, booted_at, state.incidents.values())

    async def restore_responses(self) -> None:
        facts = await self._read_ledger(
            read_response_facts,
            "responses_not_read",
            "the times of an incident before this start are not shown",
        )
        state = self._node_state
        if facts is not None:
            state.responses.restore(*facts)
        self._pipeline.fitness.start(state.findings, state.responses)

    async def restore_validation(self) -> None:
        self._node_state.missed_validation = await self._read_ledger(
            read_missed_validation,
            "validations_not_read",
            "a validation that ended without a pass is not shown",
        )

    async def restore_suspicion(self) -> None:
        events = await self._read_ledger(
            read_suspicion_events,
            "suspicion_not_read",
            "what jobs reported before this start requests no diagnostic",
        )
        if events is not None:
            self._node_state.suspicion.restore(events)

    async def restore_advice(self, save_advisor: SaveAdvisor) -> None:
        rows = await self._read_ledger(
            _read_announcements,
            "advice_not_read",
            "jobs are not advised to save if a person announced that before this start",
        )
        save_advisor.restore(row.event for row in sorted(rows or (), key=lambda row: row.id))

    async def _read_ledger(self, read: Callable[[Path], T], event: str, effect: str) -> T | None:
        """What `read` returns; None, with an entry `event` in the log, where that fails."""
        path = self._pipeline.ledger.path
        try:
            return await self._reader.call(lambda: read(path))
        except (LedgerError, ThreadStuck) as error:
            log.error(event, error=str(error), effect=effect)
            return None


def _read_locations(path: Path) -> list[StoredEvent]:
    return read_events(path, EventQuery(code=PLACED, newest=True, limit=_MAX_LOCATIONS))


def _read_announcements(path: Path) -> list[StoredEvent]:
    """The last event of each kind."""
    return [
        row
        for code in SAVE_CODES
        for row in read_events(path, EventQuery(code=code, newest=True, limit=1))
    ]
