"""
Write buffer in front of the ledger; keeps results in memory while the disk fails.

Owns     the ledger and its thread, what is held while the ledger cannot be written, the retries,
         the positions on their way to it, the replacement of a damaged one, and its health in the
         node's state.
Refuses  judging. What it reads of the pipeline and reports to it is `PipelineState`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

import structlog

from vitald.backoff import Backoff
from vitald.core.node_state import NodeState
from vitald.ledger import (
    Ledger,
    LedgerDamaged,
    LedgerEntry,
    LedgerError,
    LedgerNewer,
    RestoredState,
    count_events,
)
from vitald.model import KERNEL_LOG, Changes, Event, Fields, Memory, Position, Transition
from vitald.worker_thread import ThreadStuck, WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("keeper")

_DEADLINE_S = 2.0  # for one commit; a disk that takes longer is treated as failing
_HELD = 50_000  # events held for a ledger that cannot be written
_RETRY = Backoff(1.0, 30.0)
_NOTE_S = 0.25


class PipelineState(Protocol):
    """What the keeper needs of whoever judges."""

    @property
    def memory(self) -> Memory:
        """All that would have to be remembered as of now."""

    @property
    def judged(self) -> Mapping[str, Position]:
        """How far each source has been judged."""

    def report(self, code: str, fields: Fields, raw: str) -> None:
        """Have an observation about the ledger judged when its turn comes; never waits."""

    def adopt_memory(self, remembered: RestoredState) -> LedgerEntry:
        """Take up what could not be read at the start. Returns what that changed."""


class LedgerWriter:
    """Stands between the judge and one ledger."""

    def __init__(
        self, ledger: Ledger, lane: WorkerThread, board: NodeState, judging: PipelineState
    ) -> None:
        self.ledger = ledger
        self._lane = lane
        self._board = board
        self._judging = judging
        self._held: list[LedgerEntry] = []
        self._retry_at = 0.0
        self._failures = 0  # of the ledger, in succession
        # Positions that the lane will note when its turn comes
        self._to_note: dict[str, Position] = {}
        self._note_timer: asyncio.TimerHandle | None = None
        self._blind = False  # what is remembered could not be read at the start

    async def open_ledger(self) -> RestoredState | None:
        """What is remembered. None where that cannot be read: `adopt_memory` gets it once it can.
        Raises only LedgerNewer.
        """
        remembered = await self._open_or_rescue()
        self._blind = remembered is None
        return remembered

    async def _open_or_rescue(self) -> RestoredState | None:
        try:
            return await self._lane.call(self._read_ledger, 10.0)
        except LedgerDamaged as error:
            return await self._replace_ledger(str(error))
        except LedgerNewer:
            raise
        except (LedgerError, ThreadStuck) as error:
            self._record_failure(str(error))
            remembered = None
            with suppress(ThreadStuck):
                remembered = await self._lane.call(self.ledger.rescue, 5.0)
            if remembered is None:
                self._report_unread(str(error))
            return remembered

    def _report_unread(self, error: str) -> None:
        """Nobody knows what was open before the start: that no finding is known says nothing."""
        self._judging.report(
            "vitald/ledger_unread",
            {"error": error},
            f"what the ledger remembers cannot be read: {error}",
        )

    async def close_ledger(self) -> None:
        """Note what is to be noted, and let go of the ledger. Within a second or so, or not
        at all.
        """
        if self._note_timer is not None:
            self._note_timer.cancel()
            self._note_now()
        try:
            await self._lane.call(self.ledger.close, 1.0)
        except (ThreadStuck, LedgerError) as error:
            log.error("ledger_not_closed", error=str(error))

    async def select_unstored(self, events: Sequence[Event]) -> tuple[Event, ...]:
        """Of events that may have been handed in before, those that are not stored yet."""
        try:
            known = await self._lane.call(
                partial(self.ledger.find_stored, [event.identity for event in events]), _DEADLINE_S
            )
        except (LedgerError, ThreadStuck):
            return tuple(events)  # the ledger is ill, and says so; it will not store one twice
        return tuple(event for event in events if event.identity not in known)

    def get_retry_delay(self) -> float:
        """Seconds until what is held is to be tried again; endless where nothing is held."""
        return self._retry_at - time.monotonic() if self._held else math.inf

    # --- storing

    async def store_entries(self, entries: Sequence[LedgerEntry]) -> None:
        """Commit them, with what is held, or hold them too. What only moved a position is noted
        without waiting for the disk.
        """
        entries = [entry for entry in entries if entry != LedgerEntry()]
        weighty = [entry for entry in entries if replace(entry, position=None) != LedgerEntry()]
        if weighty or self.get_retry_delay() <= 0.0:
            await self._commit_entries(entries)
        elif entries and not self._held:
            self.note_positions(*(entry.position for entry in entries))

    async def _commit_entries(self, entries: list[LedgerEntry]) -> None:
        self._held += entries
        for entry in entries:
            if entry.position is not None:
                # It is older than this one, and must not come after it
                self._to_note.pop(entry.position.source, None)
        if self.get_retry_delay() > 0.0:
            self._limit_held()
            return
        failing = not self._board.ledger.ok
        begun = time.perf_counter()
        try:
            if self._blind:
                await self._read_late()
            work = tuple(self._held)
            if failing:
                # Repetitions that could not be held are counted in the findings, so those are
                # stored as they stand now.
                standing = tuple(
                    Transition(time=time.time(), finding=finding, cause="")
                    for finding in self._judging.memory.findings
                )
                work = (*work, LedgerEntry(transitions=standing))
            await self._lane.call(partial(self._write_entries, work, reopen=failing), _DEADLINE_S)
        except LedgerDamaged as error:
            await self._replace_ledger(str(error), self._judging.memory)
        except (LedgerError, ThreadStuck) as error:
            self._record_failure(str(error))
        else:
            self._record_success(time.perf_counter() - begun)

    async def _read_late(self) -> None:
        """The ledger was out of reach at the start: have taken up what it remembers. Raises
        LedgerError, LaneStuck.
        """
        try:
            self._take_up(await self._lane.call(self._read_ledger, _DEADLINE_S))
        except LedgerDamaged as error:
            rescued = await self._lane.call(partial(self.ledger.rescue, damaged=True), _DEADLINE_S)
            self._take_up(rescued or RestoredState(Memory(), {}))
            self._report_lost(str(error), "", rescued)
            raise

    def _take_up(self, remembered: RestoredState) -> None:
        self._blind = False
        self._held.append(self._judging.adopt_memory(remembered))
        self._judging.report(
            "vitald/ledger_unread", {"recovered": True}, "what the ledger remembers has been read"
        )
        log.warning("ledger_read_late", findings=len(remembered.memory.findings))

    def _read_ledger(self) -> RestoredState:
        """In the lane."""
        self.ledger.open()
        return self.ledger.read_state()

    def _write_entries(self, entries: Sequence[LedgerEntry], *, reopen: bool) -> None:
        """In the lane."""
        if reopen:
            self.ledger.open()
        if self.ledger.gone:
            raise LedgerDamaged(f"{self.ledger.path}: what was in it is gone")
        self.ledger.commit(entries)

    # --- positions

    def note_positions(self, *positions: Position | None) -> None:
        """The latest positions, a few times a second however many batches pass."""
        self._to_note |= {
            position.source: position for position in positions if position is not None
        }
        if self._note_timer is None:
            self._note_timer = asyncio.get_running_loop().call_later(_NOTE_S, self._note_now)

    def _note_now(self) -> None:
        """Not while events are on their way to the disk or held: a position must never be ahead of
        them.
        """
        self._note_timer = None
        if self._to_note and not self._held:
            self._lane.post(
                partial(
                    self._note_quietly, tuple(self._to_note.values()), asyncio.get_running_loop()
                )
            )
            self._to_note = {}

    def _note_quietly(self, positions: Sequence[Position], loop: asyncio.AbstractEventLoop) -> None:
        """In the lane. A position that cannot be noted costs nothing yet: the next commit will
        tell. A store that is gone or damaged is told at once: on a node that is well the next
        commit may be days away.
        """
        try:
            for position in positions:
                self.ledger.store_position(position)
        except LedgerDamaged as error:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._record_failure, str(error))
        except LedgerError as error:
            log.debug("position_not_noted", error=str(error))

    # --- how the ledger fares

    def _record_success(self, seconds: float) -> None:
        was_failing = not self._board.ledger.ok
        self._held = []
        self._failures = 0
        ledger = self._board.ledger
        self._board.ledger = replace(
            ledger,
            ok=True,
            error="",
            unsaved=0,
            commits=ledger.commits + 1,
            commit_seconds=ledger.commit_seconds + seconds,
            last_commit_seconds=seconds,
        )
        if was_failing:
            log.warning("ledger_recovered", path=str(self.ledger.path))
            self._judging.report(
                "vitald/ledger_failed", {"recovered": True}, "the ledger can be written again"
            )

    def _record_failure(self, error: str) -> None:
        self._limit_held()
        first = self._board.ledger.ok
        self._retry_at = time.monotonic() + _RETRY.delay_s(self._failures)
        self._failures += 1
        self._board.ledger = replace(
            self._board.ledger, ok=False, error=error, unsaved=count_events(self._held)
        )
        log.error(
            "ledger_failed",
            error=error,
            held_events=count_events(self._held),
            next_step="check space, mount and permissions of the state folder",
        )
        if first:
            self._judging.report(
                "vitald/ledger_failed", {"error": error}, f"the ledger cannot be written: {error}"
            )

    def _limit_held(self) -> None:
        """Hold at most so much. Findings stand in memory whatever is dropped here; only old events'
        records go, counted.
        """
        excess = dropped = count_events(self._held) - _HELD
        for place, entry in enumerate(self._held):
            if excess <= 0:
                break
            excess -= len(entry.events)
            changes = tuple(transition for transition in entry.transitions if transition.cause)
            self._held[place] = replace(entry, events=(), transitions=changes)
        if dropped > 0:
            self._held = [entry for entry in self._held if entry != LedgerEntry()]
            dropped -= min(0, excess)  # whole entries went
        ledger = self._board.ledger
        self._board.ledger = replace(
            ledger, unsaved=count_events(self._held), dropped=ledger.dropped + max(0, dropped)
        )

    async def _replace_ledger(self, error: str, keep: Memory | None = None) -> RestoredState | None:
        """Begin a new store with what is to be kept; at start-up, when none are held, with what can
        be rescued.

        What is rescued is held until what is said of it has been judged: one commit stores both, so
        that no kill in between leaves a store that looks whole.
        """
        log.error("ledger_damaged", error=error)

        def work() -> tuple[RestoredState | None, str]:
            rescued = self.ledger.rescue(damaged=True) if keep is None else None
            aside = self.ledger.set_aside(time.time())
            self.ledger.open(anew=True)
            return rescued, str(aside or "")

        try:
            rescued, aside = await self._lane.call(work, 10.0)
        except (LedgerError, ThreadStuck) as failure:
            self._record_failure(str(failure))
            if keep is None:
                self._report_unread(str(failure))
            return None
        if keep is None:
            known = self._report_rescue(error, aside, rescued)
            self._held += [
                _make_full_entry(known.memory),
                *(LedgerEntry(position=position) for position in known.positions.values()),
            ]
            return known
        # Last, as they stand now: what is held changes what was before it.
        self._held += [
            _make_full_entry(keep),
            *(LedgerEntry(position=position) for position in self._judging.judged.values()),
        ]
        self._report_replaced(error, aside, len(keep.findings))
        try:
            await self._lane.call(partial(self.ledger.commit, tuple(self._held)), _DEADLINE_S)
        except (LedgerError, ThreadStuck) as failure:
            self._record_failure(str(failure))
        else:
            self._record_success(0.0)
        return None

    def _report_rescue(
        self, error: str, aside: str, rescued: RestoredState | None
    ) -> RestoredState:
        """What is known after all. Where open findings are lost, that is told, and the kernel log
        is read again from its beginning.

        Not where they are whole: its lines would be counted twice, and might open again what
        somebody closed.
        """
        if rescued is not None and "findings" not in rescued.lost:
            self._report_replaced(error, aside, len(rescued.memory.findings))
            return rescued
        self._report_lost(error, aside, rescued)
        known = rescued or RestoredState(Memory(), {})
        return replace(
            known,
            positions={
                source: one for source, one in known.positions.items() if source != KERNEL_LOG
            },
        )

    def _report_replaced(self, error: str, aside: str, kept: int) -> None:
        fields: Fields = {"error": error, "aside": aside, "rescued": kept}
        self._judging.report(
            "vitald/ledger_replaced", fields, f"{error}; the old ledger is {aside or 'gone'}"
        )

    def _report_lost(self, error: str, aside: str, rescued: RestoredState | None) -> None:
        kept = len(rescued.memory.findings) if rescued is not None else 0
        said = f"{error}; {kept} open findings could be read; the old ledger is {aside or 'gone'}"
        self._judging.report(
            "vitald/ledger_lost", {"error": error, "aside": aside, "rescued": kept}, said
        )


def _make_full_entry(memory: Memory) -> LedgerEntry:
    """All that a new store must remember."""
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
    return LedgerEntry(transitions=carried, changes=changes)
