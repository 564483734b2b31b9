"""
Write buffer in front of the ledger; keeps results in memory while the disk fails.

Owns     the ledger and its thread, the entries held while the ledger cannot be written, the
         sources' positions on their way to it, the retries, the replacement of a damaged ledger,
         and its health: in the node's state, and as events of the daemon.
Refuses  judging. What it needs of the pipeline is `PipelineState`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeAlias

import structlog

from vitald.backoff import Backoff
from vitald.core.node_state import NodeState
from vitald.ledger.errors import LedgerDamaged, LedgerError, LedgerNewer
from vitald.ledger.restore import RestoredState
from vitald.ledger.store import Ledger, LedgerEntry, count_events
from vitald.model.event import Event, Fields
from vitald.model.finding import Changes, Memory, Transition
from vitald.model.source import KERNEL_LOG, Position
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("ledger")

_DEADLINE_S = 2.0  # for one commit; a disk that takes longer is treated as failing
_OPEN_S = 10.0  # for opening, and for replacing
_RESCUE_S = 5.0
_CLOSE_S = 1.0
_RETRY = Backoff(1.0, 30.0)
MAX_HELD_EVENTS = 50_000
# Code, fields and raw text of an event; it never waits.
Report: TypeAlias = Callable[[str, Fields, str], None]
_POSITIONS_S = 0.25


class PipelineState(Protocol):
    """What the ledger writer needs of the pipeline."""

    @property
    def memory(self) -> Memory:
        """All that would have to be restored as of now."""

    @property
    def judged(self) -> Mapping[str, Position]:
        """The position of each source up to which its batches were evaluated."""

    def queue_own_event(self, code: str, fields: Fields, raw: str) -> None:
        """Queue an observation about the ledger, without waiting for room in the queue."""

    def adopt_memory(self, remembered: RestoredState) -> LedgerEntry:
        """Take over what could not be read at the start. Returns what that changed."""


class LedgerWriter:
    """Write buffer between the pipeline and one ledger."""

    def __init__(
        self,
        ledger: Ledger,
        worker_thread: WorkerThread,
        node_state: NodeState,
        pipeline: PipelineState,
    ) -> None:
        self.ledger = ledger
        self._worker_thread = worker_thread
        self._node_state = node_state
        self._pipeline = pipeline
        self._reports = LedgerReports(pipeline.queue_own_event)
        self._held = HeldEntries()
        self.positions = PositionBuffer(ledger, worker_thread, self._held, self._record_failure)
        self._retry_at = 0.0
        self._failures = 0  # of the ledger, in succession
        self._unread = False  # what is remembered could not be read at the start

    # --- start and end

    async def open_ledger(self) -> RestoredState | None:
        """What is remembered. None if it cannot be read: `adopt_memory` gets it as soon as it can.
        Raises only LedgerNewer.
        """
        remembered = await self._open_or_rescue()
        self._unread = remembered is None
        return remembered

    async def _open_or_rescue(self) -> RestoredState | None:
        try:
            return await self._worker_thread.call(self._read_ledger, _OPEN_S)
        except LedgerDamaged as error:
            return await self._replace_at_start(str(error))
        except LedgerNewer:
            raise
        except (LedgerError, ThreadStuck) as error:
            self._record_failure(str(error))
            remembered = None
            with suppress(ThreadStuck):
                remembered = await self._worker_thread.call(self.ledger.rescue, _RESCUE_S)
            if remembered is None:
                self._reports.report_unread(str(error))
            return remembered

    async def close_ledger(self) -> None:
        """Write the positions that wait, and close the ledger. Gives up after a second or so."""
        self.positions.close()
        try:
            await self._worker_thread.call(self.ledger.close, _CLOSE_S)
        except (ThreadStuck, LedgerError) as error:
            log.error("ledger_not_closed", error=str(error))

    async def select_unstored(self, events: Sequence[Event]) -> tuple[Event, ...]:
        """Those of `events`, which may have been handed in before, that are not stored yet."""
        identities = [event.identity for event in events]
        try:
            known = await self._worker_thread.call(
                partial(self.ledger.find_stored, identities), _DEADLINE_S
            )
        except (LedgerError, ThreadStuck):
            return tuple(events)  # a failing ledger reports itself, and stores no event twice
        return tuple(event for event in events if event.identity not in known)

    # --- commits

    def get_retry_delay(self) -> float:
        """Seconds until the held entries are tried again; infinite if none are held."""
        return self._retry_at - time.monotonic() if self._held.entries else math.inf

    async def store_entries(self, entries: Sequence[LedgerEntry]) -> None:
        """Commit `entries` with those held before, or hold them too. Entries with a position only
        are written later, without waiting for the disk.
        """
        entries = [entry for entry in entries if entry != LedgerEntry()]
        weighty = [entry for entry in entries if replace(entry, position=None) != LedgerEntry()]
        if weighty or self.get_retry_delay() <= 0.0:
            await self._commit_entries(entries)
        elif entries and not self._held.entries:
            self.positions.add_positions(*(entry.position for entry in entries))

    async def _commit_entries(self, entries: list[LedgerEntry]) -> None:
        self._held.entries += entries
        for entry in entries:
            if entry.position is not None:
                # The buffered position is older than this one, and must not come after it.
                self.positions.discard_position(entry.position.source)
        if self.get_retry_delay() > 0.0:
            self._limit_held()
            return
        failing = not self._node_state.ledger.ok
        begun = time.perf_counter()
        try:
            if self._unread:
                await self._read_late()
            work = tuple(self._held.entries)
            if failing:
                # Repetitions that could not be held are counted in the findings, so those are
                # stored as they are now.
                work = (*work, LedgerEntry(transitions=_snapshot_findings(self._pipeline.memory)))
            await self._worker_thread.call(
                partial(self._write_entries, work, reopen=failing), _DEADLINE_S
            )
        except LedgerDamaged as error:
            await self._replace_while_running(str(error), self._pipeline.memory)
        except (LedgerError, ThreadStuck) as error:
            self._record_failure(str(error))
        else:
            self._record_success(time.perf_counter() - begun)

    async def _read_late(self) -> None:
        """Read what could not be read at the start. Raises LedgerError, ThreadStuck."""
        call = self._worker_thread.call
        try:
            self._adopt_memory(await call(self._read_ledger, _DEADLINE_S))
        except LedgerDamaged as error:
            rescued = await call(partial(self.ledger.rescue, damaged=True), _DEADLINE_S)
            self._adopt_memory(rescued or RestoredState(Memory(), {}))
            self._reports.report_lost(str(error), "", rescued)
            raise

    def _adopt_memory(self, remembered: RestoredState) -> None:
        self._unread = False
        self._held.entries.append(self._pipeline.adopt_memory(remembered))
        self._reports.report_read()
        log.warning("ledger_read_late", findings=len(remembered.memory.findings))

    # --- in the worker thread

    def _read_ledger(self) -> RestoredState:
        self.ledger.open()
        return self.ledger.read_state()

    def _write_entries(self, entries: Sequence[LedgerEntry], *, reopen: bool) -> None:
        if reopen:
            self.ledger.open()
        if self.ledger.gone:
            raise LedgerDamaged(f"{self.ledger.path}: what was in it is gone")
        self.ledger.commit(entries)

    def _begin_new_ledger(self, *, rescue: bool) -> tuple[RestoredState | None, str]:
        """What could be rescued of the old ledger, if wanted, and its new path; empty if it is
        gone.
        """
        rescued = self.ledger.rescue(damaged=True) if rescue else None
        aside = self.ledger.set_aside(time.time())
        self.ledger.open(anew=True)
        return rescued, str(aside or "")

    # --- health

    def _record_success(self, seconds: float) -> None:
        ledger = self._node_state.ledger
        self._held.entries = []
        self._failures = 0
        self._node_state.ledger = replace(
            ledger,
            ok=True,
            error="",
            unsaved=0,
            commits=ledger.commits + 1,
            commit_seconds=ledger.commit_seconds + seconds,
            last_commit_seconds=seconds,
        )
        if not ledger.ok:
            log.warning("ledger_recovered", path=str(self.ledger.path))
            self._reports.report_recovered()

    def _record_failure(self, error: str) -> None:
        self._limit_held()
        ledger = self._node_state.ledger
        self._retry_at = time.monotonic() + _RETRY.delay_s(self._failures)
        self._failures += 1
        held_events = self._held.count_events()
        self._node_state.ledger = replace(ledger, ok=False, error=error, unsaved=held_events)
        log.error(
            "ledger_failed",
            error=error,
            held_events=held_events,
            next_step="check space, mount and permissions of the state folder",
        )
        if ledger.ok:
            self._reports.report_failed(error)

    def _limit_held(self) -> None:
        dropped = self._held.drop_excess()
        ledger = self._node_state.ledger
        self._node_state.ledger = replace(
            ledger, unsaved=self._held.count_events(), dropped=ledger.dropped + dropped
        )

    # --- a damaged ledger

    async def _replace_at_start(self, error: str) -> RestoredState | None:
        """Begin a new ledger with what can be rescued of the old one.

        What is rescued is held until the reports about it have been evaluated: one commit stores
        both, so that no kill in between leaves a ledger that seems complete.
        """
        log.error("ledger_damaged", error=error)
        try:
            rescued, aside = await self._worker_thread.call(
                partial(self._begin_new_ledger, rescue=True), _OPEN_S
            )
        except (LedgerError, ThreadStuck) as failure:
            self._record_failure(str(failure))
            self._reports.report_unread(str(failure))
            return None
        known = self._select_rescued(error, aside, rescued)
        self._held.entries += _make_full_entries(known.memory, known.positions)
        return known

    def _select_rescued(
        self, error: str, aside: str, rescued: RestoredState | None
    ) -> RestoredState:
        """What is taken over of `rescued`, and reported. If open findings are lost, the kernel log
        is read again from its beginning; if none are, it is not: its lines would be counted twice,
        and might reopen what an operator closed.
        """
        if rescued is not None and "findings" not in rescued.lost:
            self._reports.report_replaced(error, aside, len(rescued.memory.findings))
            return rescued
        self._reports.report_lost(error, aside, rescued)
        known = rescued or RestoredState(Memory(), {})
        positions = {
            source: position for source, position in known.positions.items() if source != KERNEL_LOG
        }
        return replace(known, positions=positions)

    async def _replace_while_running(self, error: str, memory: Memory) -> None:
        """Begin a new ledger with `memory`, and commit it with what is held."""
        log.error("ledger_damaged", error=error)
        try:
            _, aside = await self._worker_thread.call(
                partial(self._begin_new_ledger, rescue=False), _OPEN_S
            )
        except (LedgerError, ThreadStuck) as failure:
            self._record_failure(str(failure))
            return
        # Last, as it is now: the entries held before changed an earlier state.
        self._held.entries += _make_full_entries(memory, self._pipeline.judged)
        self._reports.report_replaced(error, aside, len(memory.findings))
        try:
            await self._worker_thread.call(
                partial(self.ledger.commit, tuple(self._held.entries)), _DEADLINE_S
            )
        except (LedgerError, ThreadStuck) as failure:
            self._record_failure(str(failure))
        else:
            self._record_success(0.0)


def _snapshot_findings(memory: Memory) -> tuple[Transition, ...]:
    """Transitions that store the findings as they are, and decide nothing."""
    return tuple(
        Transition(time=time.time(), finding=finding, cause="") for finding in memory.findings
    )


def _make_full_entries(
    memory: Memory, positions: Mapping[str, Position]
) -> tuple[LedgerEntry, ...]:
    """All that a new ledger must remember; one entry for each position."""
    carried = tuple(
        Transition(time=time.time(), finding=finding, cause="carried over from the ledger before")
        for finding in memory.findings
    )
    changes = Changes(
        incidents=memory.incidents,
        marks=memory.marks,
        devices=memory.devices,
        resolved=memory.resolved,
    )
    return (
        LedgerEntry(transitions=carried, changes=changes),
        *(LedgerEntry(position=position) for position in positions.values()),
    )


class HeldEntries:
    """The entries to be committed, in their order."""

    def __init__(self) -> None:
        self.entries: list[LedgerEntry] = []

    def count_events(self) -> int:
        """The number of events in these entries."""
        return count_events(self.entries)

    def drop_excess(self) -> int:
        """Drop the oldest events beyond `MAX_HELD_EVENTS`, and return how many these were.

        The decisions are kept, and findings stand in memory: only the records of old events are
        lost.
        """
        excess = dropped = self.count_events() - MAX_HELD_EVENTS
        if dropped <= 0:
            return 0
        for index, entry in enumerate(self.entries):
            if excess <= 0:
                break
            excess -= len(entry.events)
            decisions = tuple(transition for transition in entry.transitions if transition.cause)
            self.entries[index] = replace(entry, events=(), transitions=decisions)
        self.entries = [entry for entry in self.entries if entry != LedgerEntry()]
        return dropped - min(0, excess)  # events are dropped with their whole entry


class LedgerReports:
    """Makes the event of each state of the ledger, and hands it to `report`."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def report_failed(self, error: str) -> None:
        self._report(
            "vitald/ledger_failed", {"error": error}, f"the ledger cannot be written: {error}"
        )

    def report_recovered(self) -> None:
        self._report("vitald/ledger_failed", {"recovered": True}, "the ledger can be written again")

    def report_unread(self, error: str) -> None:
        """What was open before the start is unknown: no open finding is then no sign of health."""
        text = f"what the ledger remembers cannot be read: {error}"
        self._report("vitald/ledger_unread", {"error": error}, text)

    def report_read(self) -> None:
        text = "what the ledger remembers has been read"
        self._report("vitald/ledger_unread", {"recovered": True}, text)

    def report_replaced(self, error: str, aside: str, rescued: int) -> None:
        """A new ledger has all the open findings; `aside` is the path of the old one, or empty."""
        fields: Fields = {"error": error, "aside": aside, "rescued": rescued}
        text = f"{error}; the old ledger is {aside or 'gone'}"
        self._report("vitald/ledger_replaced", fields, text)

    def report_lost(self, error: str, aside: str, rescued: RestoredState | None) -> None:
        """Open findings are lost: those in `rescued` are what could be read of the old ledger."""
        kept = len(rescued.memory.findings) if rescued is not None else 0
        fields: Fields = {"error": error, "aside": aside, "rescued": kept}
        old = f"the old ledger is {aside or 'gone'}"
        text = f"{error}; {kept} open findings could be read; {old}"
        self._report("vitald/ledger_lost", fields, text)


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
            self._timer = asyncio.get_running_loop().call_later(_POSITIONS_S, self._write_latest)

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
