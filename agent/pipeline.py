"""
The one way through: batches in, judged, committed, and only then shown.

One task takes what the sources and the API put in, folds it into the findings, stores events and transitions in one
transaction and puts the result on the board. While the ledger fails it judges on in memory, holds what it could not
store, says so as a finding, and tries again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import structlog

from agent.board import Board
from agent.catalog import Catalog
from agent.judge.findings import BOOT, Findings
from agent.lane import Lane, LaneStuck
from agent.ledger import Audit, Entry, Ledger, LedgerDamaged, LedgerError, LedgerNewer, Remembered, unsaved
from agent.model import NODE, Component, ComponentKind, Event, Fields, Finding, Transition, Trust
from agent.sources.source import Batch, Position

log: structlog.stdlib.BoundLogger = structlog.get_logger("pipeline")

T = TypeVar("T")
_OWN = "vitald"

_DEADLINE_S = 2.0  # for one commit; a disk that takes longer is treated as failing
_QUEUED = 20_000  # events waiting to be judged; beyond it the readers wait, and the kernel's ring is the buffer
_HELD = 50_000  # events held for a ledger that cannot be written
_BATCH = 2_000  # events in one transaction
_RETRY_S = (1.0, 30.0)
_NOTE_S = 0.25
_WEDGED_S = 20.0


@dataclass(slots=True)
class _Recatalogue:
    """The catalogue was reloaded."""

    catalog: Catalog
    answer: asyncio.Future[None]


@dataclass(slots=True)
class _Clear:
    """A named person wants a finding closed."""

    finding: int
    by: str
    audit: Audit
    answer: asyncio.Future[Finding | None]


class Pipeline:
    """Owns the findings and the ledger. Everything that changes either goes through its queue."""

    def __init__(self, ledger: Ledger, lane: Lane, board: Board, catalog: Catalog, boot_id: str) -> None:
        self.ledger = ledger
        self.lane = lane
        self.board = board
        self.boot_id = boot_id
        self.findings = Findings(catalog)
        self._positions: dict[str, Position] = {}  # how far each source has handed in
        self._to_note: dict[str, Position] = {}  # positions that the lane will note when its turn comes
        self._queue: deque[Batch | _Clear | _Recatalogue] = deque()
        self._queued = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._held: list[Entry] = []
        self._retry_at = 0.0
        self._retry_s = _RETRY_S[0]
        self._progress = time.monotonic()
        self._serial = 0
        self._busy = False  # judging or committing
        self._note_timer: asyncio.TimerHandle | None = None
        self._blind = False  # what is remembered could not be read at the start

    async def open(self, catalog: Catalog) -> None:
        """Read what is remembered and fold in that the node may have booted since. Raises only LedgerNewer."""
        remembered = await self._open_ledger()
        if remembered is not None:
            self.findings = Findings(catalog, remembered.findings, remembered.next_id)
            self._positions = dict(remembered.positions)
        else:
            # Far from the ids of findings that may stand in the ledger after all.
            self._blind, self.findings = True, Findings(catalog, next_id=int(time.time()))
        last_boot = {position.boot_id for position in self._positions.values()} | {finding.boot_id for finding in self.findings.opened}
        now = time.time()
        entry = Entry(transitions=tuple(self.findings.recatalogue(catalog, now)))
        if last_boot - {self.boot_id}:
            booted = self._own_event(BOOT, {}, NODE, "the node was booted")
            entry = self._judge(entry, replace(booted, identity=f"vitald:boot:{self.boot_id}"))
        await self._store([entry])
        self.board.publish(self.findings.opened)  # what is remembered is shown from the first answer on

    def position(self, source: str) -> Position | None:
        return self._positions.get(source)

    async def put(self, batch: Batch) -> None:
        """Hand in a batch; waits while too much is queued already."""
        if batch.position is not None:
            self._positions[batch.position.source] = batch.position
        if not (batch.events or batch.failed or self._queue or self._busy):
            # Nothing to judge and nothing before it: most batches are such, and need not wake the judge.
            self.board.source_looked(batch.source, caught_up=batch.caught_up)
            self._note([Entry(position=batch.position)])
            return
        self._queue.append(batch)
        self._queued += len(batch.events)
        self._wake.set()
        while self._queued >= _QUEUED:
            self._room.clear()
            await self._room.wait()

    async def own(self, code: str, fields: Fields, component: Component, raw: str) -> None:
        """Hand in an observation of the daemon about itself."""
        await self.put(Batch(_OWN, (self._own_event(code, fields, component, raw),)))

    async def clear(self, finding: int, by: str, audit: Audit) -> Finding | None:
        """Close a finding for a named person. Returns it closed, and stored; None where no such finding is open."""
        answer: asyncio.Future[Finding | None] = asyncio.get_running_loop().create_future()
        self._queue.append(_Clear(finding, by, audit, answer))
        self._wake.set()
        return await answer

    def wedged(self) -> bool:
        """Whether something has waited to be judged for too long: the watchdog is not fed then."""
        return bool(self._queue) and time.monotonic() - self._progress > _WEDGED_S

    async def recatalogue(self, catalog: Catalog) -> None:
        """Judge by a reloaded catalogue from here on, the open findings included."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(_Recatalogue(catalog, answer))
        self._wake.set()
        await answer

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._busy = False
            await self._wait()
            self._busy = True
            self._progress = time.monotonic()
            entries = [Entry(transitions=tuple(self.findings.expire(time.time())))]
            answers: list[Callable[[], None]] = []
            looked: list[Batch] = []
            taken = 0
            while self._queue and taken < _BATCH:
                item = self._queue.popleft()
                if isinstance(item, _Clear):
                    entry, closed = self._cleared(item)
                    answers.append(partial(_answer, item.answer, closed))
                elif isinstance(item, _Recatalogue):
                    entry = Entry(transitions=tuple(self.findings.recatalogue(item.catalog, time.time())))
                    answers.append(partial(_answer, item.answer, None))
                else:
                    taken += len(item.events)
                    looked.append(item)
                    entry = self._judge(Entry(position=item.position), *item.events)
                entries.append(entry)
            self._queued -= taken
            if self._queued < _QUEUED:
                self._room.set()
            await self._store(entries)
            self._progress = time.monotonic()
            for batch in looked:
                if batch.failed:
                    self.board.source_failed(batch.source, batch.failed)
                else:
                    self.board.source_looked(batch.source, caught_up=batch.caught_up)
            for answer in answers:
                answer()

    async def close(self) -> None:
        """Judge and store what is queued, then let go of the ledger. Within a second or so, or not at all."""
        entries = [self._judge(Entry(position=item.position), *item.events) for item in self._queue if isinstance(item, Batch)]
        self._queue.clear()
        await self._store(entries)
        if self._note_timer is not None:
            self._note_timer.cancel()
            self._note_now()
        try:
            await self.lane.call(self.ledger.close, 1.0)
        except (LaneStuck, LedgerError) as error:
            log.error("ledger_not_closed", error=str(error))

    async def _wait(self) -> None:
        """Until something is queued, something ends by itself, or the ledger is to be tried again."""
        if self._queue:
            await asyncio.sleep(0)
            return
        self._wake.clear()
        until = self.findings.due - time.time()
        if self._held:
            until = min(until, self._retry_at - time.monotonic())
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(0.05, min(until, 3600.0)))

    def _judge(self, entry: Entry, *events: Event) -> Entry:
        transitions = [*entry.transitions]
        for event in events:
            try:
                transitions += self.findings.apply(event)
            except Exception as error:  # a fault of ours must not end the judging of everything else
                log.exception("event_not_judged", identity=event.identity, code=event.code, raw=event.raw)
                told = f"{type(error).__name__} while judging {event.identity}: {event.raw}"
                transitions += self.findings.apply(self._own_event("vitald/not_judged", {}, NODE, told))
        return replace(entry, events=(*entry.events, *events), transitions=tuple(transitions))

    def _cleared(self, item: _Clear) -> tuple[Entry, Finding | None]:
        transition = self.findings.clear(item.finding, item.audit.time, item.by, item.audit.reason)
        if transition is None:
            return Entry(), None
        return Entry(transitions=(transition,), audit=item.audit), transition.finding

    async def _store(self, entries: Sequence[Entry]) -> None:
        """Commit, then show. What only moved a position is noted without waiting for the disk."""
        entries = [entry for entry in entries if entry != Entry()]
        weighty = [entry for entry in entries if entry.events or entry.transitions or entry.audit]
        if weighty or (self._held and time.monotonic() >= self._retry_at):
            await self._commit(entries)
        elif entries and not self._held:
            self._note(entries)
        events = [event for entry in entries for event in entry.events]
        transitions = [transition for entry in entries for transition in entry.transitions]
        if events or transitions:
            self.board.publish(self.findings.opened, events, transitions)
            _say(transitions)

    async def _commit(self, entries: list[Entry]) -> None:
        self._held += entries
        for entry in entries:
            if entry.position is not None:
                self._to_note.pop(entry.position.source, None)  # it is older than this one, and must not come after it
        if self._held and time.monotonic() < self._retry_at:
            self._bound()
            return
        failing = not self.board.ledger.ok
        begun = time.perf_counter()
        try:
            if self._blind:
                await self._see_again()
            work = tuple(self._held)
            if failing:
                # Repetitions that could not be held are counted in the findings, so those are stored as they stand now.
                standing = tuple(Transition(time=time.time(), finding=finding, cause="") for finding in self.findings.opened)
                work = (*work, Entry(transitions=standing))
            await self.lane.call(partial(self._write, work, reopen=failing), _DEADLINE_S)
        except LedgerDamaged as error:
            await self._replace_ledger(str(error), self.findings.opened)
        except (LedgerError, LaneStuck) as error:
            self._failed(str(error))
        else:
            self._stored(time.perf_counter() - begun)

    async def _see_again(self) -> None:
        """The ledger was out of reach at the start: take up the findings that it remembers. Raises LedgerError, LaneStuck."""

        def work() -> Remembered:
            self.ledger.open()
            return self.ledger.remembered()

        remembered = await self.lane.call(work, _DEADLINE_S)
        self._blind = False
        self.findings.adopt(remembered.findings)
        self.board.publish(self.findings.opened)
        log.warning("ledger_read_late", findings=len(remembered.findings))

    def _write(self, entries: Sequence[Entry], *, reopen: bool) -> None:
        """In the lane."""
        if reopen:
            self.ledger.open()
        self.ledger.commit(entries)

    def _note(self, entries: Sequence[Entry]) -> None:
        """The latest positions, a few times a second however many batches pass."""
        self._to_note |= {entry.position.source: entry.position for entry in entries if entry.position is not None}
        if self._note_timer is None:
            self._note_timer = asyncio.get_running_loop().call_later(_NOTE_S, self._note_now)

    def _note_now(self) -> None:
        """Not while events are on their way to the disk or held: a position must never be ahead of them."""
        self._note_timer = None
        if self._to_note and not self._held:
            self.lane.post(self._note_quietly)

    def _note_quietly(self) -> None:
        """In the lane. A position that cannot be noted costs nothing yet: the next commit will tell."""
        positions, self._to_note = self._to_note, {}
        try:
            for position in positions.values():
                self.ledger.note(position)
        except LedgerError as error:
            log.debug("position_not_noted", error=str(error))

    def _stored(self, seconds: float) -> None:
        was_failing = not self.board.ledger.ok
        self._held = []
        self._retry_s = _RETRY_S[0]
        ledger = self.board.ledger
        self.board.ledger = replace(
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
            self._queue.append(
                Batch(_OWN, (self._own_event("vitald/ledger_failed", {"recovered": True}, NODE, "the ledger can be written again"),))
            )

    def _failed(self, error: str) -> None:
        self._bound()
        first = self.board.ledger.ok
        self._retry_at = time.monotonic() + self._retry_s
        self._retry_s = min(self._retry_s * 2, _RETRY_S[1])
        self.board.ledger = replace(self.board.ledger, ok=False, error=error, unsaved=unsaved(self._held))
        log.error(
            "ledger_failed",
            error=error,
            held_events=unsaved(self._held),
            next_step="check space, mount and permissions of the state folder",
        )
        if first:
            self._queue.append(
                Batch(_OWN, (self._own_event("vitald/ledger_failed", {"error": error}, NODE, f"the ledger cannot be written: {error}"),))
            )
            self._wake.set()

    def _bound(self) -> None:
        """Hold at most so much. Findings stand in memory whatever is dropped here; only old events' records go, counted."""
        excess = dropped = unsaved(self._held) - _HELD
        for place, entry in enumerate(self._held):
            if excess <= 0:
                break
            excess -= len(entry.events)
            changes = tuple(transition for transition in entry.transitions if transition.cause)
            self._held[place] = replace(entry, events=(), transitions=changes)
        if dropped > 0:
            self._held = [entry for entry in self._held if entry != Entry()]
            dropped -= min(0, excess)  # whole entries went
        ledger = self.board.ledger
        self.board.ledger = replace(ledger, unsaved=unsaved(self._held), dropped=ledger.dropped + max(0, dropped))

    async def _open_ledger(self) -> Remembered | None:
        def work() -> Remembered:
            self.ledger.open()
            return self.ledger.remembered()

        try:
            return await self.lane.call(work, 10.0)
        except LedgerDamaged as error:
            return await self._replace_ledger(str(error))
        except LedgerNewer:
            raise
        except (LedgerError, LaneStuck) as error:
            self._failed(str(error))
            try:
                return await self.lane.call(self.ledger.rescue, 5.0)
            except LaneStuck:
                return None

    async def _replace_ledger(self, error: str, keep: tuple[Finding, ...] | None = None) -> Remembered | None:
        """Begin a new store with the findings to `keep`; at start-up, when none are held, with what can be rescued."""
        log.error("ledger_damaged", error=error)

        def work() -> tuple[Remembered | None, str]:
            rescued = self.ledger.rescue()
            aside = self.ledger.set_aside(time.time())
            self.ledger.open()
            return rescued, str(aside)

        try:
            rescued, aside = await self.lane.call(work, 10.0)
        except (LedgerError, LaneStuck) as failure:
            self._failed(str(failure))
            return None
        if keep is None:
            keep = rescued.findings if rescued is not None else ()
        carried = tuple(Transition(time=time.time(), finding=finding, cause="carried over from the damaged ledger") for finding in keep)
        told = self._own_event(
            "vitald/ledger_replaced", {"error": error, "aside": aside, "rescued": len(carried)}, NODE, f"{error}; the old ledger is {aside}"
        )
        positions = [Entry(position=position) for position in self._positions.values()]
        self._queue.append(Batch(_OWN, (told,)))
        self._wake.set()
        try:
            await self.lane.call(partial(self.ledger.commit, [Entry(transitions=carried), *positions, *self._held]), _DEADLINE_S)
        except (LedgerError, LaneStuck) as failure:
            self._failed(str(failure))
        else:
            self._stored(0.0)
        return rescued

    def _own_event(self, code: str, fields: Fields, component: Component, raw: str) -> Event:
        now = time.time()
        self._serial += 1
        return Event(
            identity=f"vitald:{self.boot_id}:{now:.6f}:{self._serial}",
            time=now,
            source="vitald",
            kind="vitald",
            code=code,
            component=component,
            boot_id=self.boot_id,
            raw=raw,
            trust=Trust.DAEMON,
            fields=fields,
        )


def _answer(waiting: asyncio.Future[T], result: T) -> None:
    if not waiting.done():  # whoever asked may have gone
        waiting.set_result(result)


def source_component(name: str) -> Component:
    """The part of the node that a source watches, for findings about the source itself."""
    return Component(ComponentKind.NODE, name)


def _say(transitions: Sequence[Transition]) -> None:
    """One line in the log per decision."""
    for transition in transitions:
        if transition.cause:
            finding = transition.finding
            say = log.warning if finding.state.value == "open" else log.info
            say(
                f"finding_{'opened' if transition.opened else 'changed' if finding.state.value == 'open' else 'cleared'}",
                id=finding.id,
                component=finding.component.name,
                code=finding.code,
                action=finding.action.value,
                cause=transition.cause,
                raw=finding.raw,
                simulated=finding.simulated,
            )
