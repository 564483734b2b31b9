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

import anyio
import structlog

from agent.board import Board
from agent.catalog import Catalog
from agent.judge.judge import BOOT, CLEARED, CLOCK_STEPPED, REMEDY_BEGUN, REPLACED, Judge
from agent.lane import Lane, LaneStuck
from agent.ledger import Audit, Entry, Ledger, LedgerDamaged, LedgerError, LedgerNewer, Remembered, unsaved
from agent.model import NODE, Changes, Component, ComponentKind, Event, Fields, Finding, Memory, SourceState, Transition, Trust, Value
from agent.sources.source import KERNEL_LOG, Batch, Position

log: structlog.stdlib.BoundLogger = structlog.get_logger("pipeline")

T = TypeVar("T")
_OWN = "vitald"
_RUNNING, _STOPPED = "running", "stopped"  # the cursor of the daemon's own position

_DEADLINE_S = 2.0  # for one commit; a disk that takes longer is treated as failing
_QUEUED = 4_000  # events waiting to be judged; beyond it the readers wait, and the kernel's ring is the buffer
_HELD = 50_000  # events held for a ledger that cannot be written
_BATCH = 512  # events in one transaction
_SLICE = 8  # events judged before others get their turn
_RETRY_S = (1.0, 30.0)
_NOTE_S = 0.25
_WEDGED_S = 20.0
_STEP_S = 2.0  # slewing is slower than that between two looks


@dataclass(slots=True)
class _Recatalogue:
    """The catalogue was reloaded."""

    catalog: Catalog
    answer: asyncio.Future[None]


@dataclass(slots=True)
class _Act:
    """A named person does something about a finding: closes it, says that its remedy has begun."""

    code: str
    finding: int
    by: str
    audit: Audit
    replaced: bool
    answer: asyncio.Future[Finding | None]


class Pipeline:
    """Owns the findings and the ledger. Everything that changes either goes through its queue."""

    def __init__(self, ledger: Ledger, lane: Lane, board: Board, catalog: Catalog, boot_id: str) -> None:
        self.ledger = ledger
        self.lane = lane
        self.board = board
        self.boot_id = boot_id
        self.judge = Judge(catalog)
        self._positions: dict[str, Position] = {}  # how far each source has handed in
        self._judged: dict[str, Position] = {}  # how far of that has been judged
        self._to_note: dict[str, Position] = {}  # positions that the lane will note when its turn comes
        self._queue: deque[Batch | _Act | _Recatalogue] = deque()
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
        self._clock = time.time() - _uptime()
        self._orderly = False
        self._begun = False  # what earlier boots left has been handed in
        self._caught_up = False  # what happened while nobody watched has been judged: only then may anything end by quiet
        self._former_boots: set[str] = set()

    async def open(self, catalog: Catalog) -> None:
        """Read what is remembered and fold in that the node may have booted since. Raises only LedgerNewer."""
        remembered = await self._open_ledger()
        if remembered is not None:
            self.judge = Judge(catalog, remembered.memory)
            self._positions, self._judged = dict(remembered.positions), dict(remembered.positions)
            was = self._positions.get(_OWN)
            self._orderly = was is not None and was.cursor == _STOPPED
            self._former_boots = self._boots_in(remembered)
        else:
            # Far from the ids of findings that may stand in the ledger after all.
            far = int(time.time())
            self._blind, self.judge = True, Judge(catalog, Memory(next_finding=far, next_incident=far))
        await self._store([self._whole(Entry(transitions=tuple(self.judge.recatalogue(catalog, time.time()))))])
        self.board.publish(self.judge)  # what is remembered is shown from the first answer on

    def _boots_in(self, remembered: Remembered) -> set[str]:
        """The boots before this one that what is remembered speaks of."""
        read, seen = remembered.positions.values(), remembered.memory.findings
        return ({one.boot_id for one in read} | {one.boot_id for one in seen}) - {self.boot_id}

    async def booted(self) -> None:
        """Once what earlier boots left has been handed in: fold in that the node was booted since, if it was."""
        self._begun = True
        await self.put(Batch(_OWN, self._boot(), Position(_OWN, self.boot_id, _RUNNING), again=True))

    def _boot(self) -> tuple[Event, ...]:
        if not self._former_boots:
            return ()
        # Faults of this boot may have been printed before we ran: the boot came before them, and after all that was seen before it.
        began = time.time() - _uptime()
        at = min(time.time(), max([began, *(finding.last for finding in self.judge.opened if finding.boot_id != self.boot_id)]))
        return (replace(self._own_event(BOOT, {}, NODE, "the node was booted", at), identity=f"vitald:boot:{self.boot_id}"),)

    @property
    def orderly(self) -> bool:
        """Whether the daemon before this one was stopped, not killed."""
        return self._orderly

    def position(self, source: str) -> Position | None:
        return self._positions.get(source)

    async def put(self, batch: Batch) -> None:
        """Hand in a batch; waits while too much is queued already."""
        if batch.position is not None:
            self._positions[batch.position.source] = batch.position
        if batch.again and batch.events:
            batch = replace(batch, events=await self._unknown(batch.events))
        if not (batch.events or self._queue or self._busy):
            # Nothing to judge and nothing before it: most batches are such, and need not wake the judge.
            self._looked(batch)
            self._reached(batch.position)
            self._note([Entry(position=batch.position)])
            return
        self._enqueue(batch)
        while self._queued >= _QUEUED:
            self._room.clear()
            await self._room.wait()

    def _enqueue(self, item: Batch | _Act | _Recatalogue) -> None:
        for one in (*self._stepped(), item):  # what was queued before a step of the clock is told by the old one
            self._queue.append(one)
            self._queued += len(one.events) if isinstance(one, Batch) else 0
        self._wake.set()

    def _reached(self, position: Position | None) -> None:
        if position is not None:
            self._judged[position.source] = position

    async def own(self, code: str, fields: Fields, component: Component, raw: str) -> None:
        """Hand in an observation of the daemon about itself."""
        await self.put(Batch(_OWN, (self._own_event(code, fields, component, raw),)))

    async def clear(self, finding: int, by: str, audit: Audit, *, replaced: bool = False) -> Finding | None:
        """Close a finding for a named person; `replaced`: because its device was. Returns it closed, and stored; None where it is not open."""
        return await self._act(CLEARED, finding, by, audit, replaced=replaced)

    async def begin_remedy(self, finding: int, by: str, audit: Audit) -> Finding | None:
        """Somebody begins what a finding asks for. Returns it, and stored; None where it is not open."""
        return await self._act(REMEDY_BEGUN, finding, by, audit)

    async def _act(self, code: str, finding: int, by: str, audit: Audit, *, replaced: bool = False) -> Finding | None:
        answer: asyncio.Future[Finding | None] = asyncio.get_running_loop().create_future()
        self._enqueue(_Act(code, finding, by, audit, replaced, answer))
        return await answer

    async def _unknown(self, events: Sequence[Event]) -> tuple[Event, ...]:
        """Of events that may have been handed in before, those that are not stored yet."""
        try:
            known = await self.lane.call(partial(self.ledger.known, [event.identity for event in events]), _DEADLINE_S)
        except (LedgerError, LaneStuck):
            return tuple(events)  # the ledger is ill, and says so; it will not store one twice
        return tuple(event for event in events if event.identity not in known)

    def _looked(self, batch: Batch) -> None:
        """Show what a source saw, now that all before it has been judged."""
        if batch.source == KERNEL_LOG:  # the one source that goes through the past before the present
            self._caught_up = self._caught_up or batch.caught_up or batch.state is not SourceState.OK
        self.board.show(batch.source, batch.readings)
        self.board.source_stands(batch.source, batch.state, batch.detail, caught_up=batch.caught_up, simulated=batch.simulated)

    def wedged(self) -> bool:
        """Whether something has waited to be judged for too long: the watchdog is not fed then."""
        return bool(self._queue) and time.monotonic() - self._progress > _WEDGED_S

    async def recatalogue(self, catalog: Catalog) -> None:
        """Judge by a reloaded catalogue from here on, the open findings included."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enqueue(_Recatalogue(catalog, answer))
        await answer

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._busy = False
            await self._wait()
            self._busy = True
            self._progress = time.monotonic()
            answers: list[Callable[[], None]] = []
            looked: list[Batch] = []
            with anyio.CancelScope(shield=True):  # what is taken is judged whole: half a batch would be lost
                entries, taken = await self._take(answers, looked)
            self._queued -= taken
            if self._queued < _QUEUED:
                self._room.set()
            await self._store(entries)
            self._progress = time.monotonic()
            for batch in looked:
                self._looked(batch)
            for answer in answers:
                answer()

    async def _take(self, answers: list[Callable[[], None]], looked: list[Batch]) -> tuple[list[Entry], int]:
        """Judge what is queued, up to a transaction's worth; now and then the others get their turn."""
        entries: list[Entry] = []
        taken = 0
        while self._queue and taken < _BATCH:
            item = self._queue.popleft()
            if isinstance(item, _Act):
                entry, acted = self._acted(item)
                answers.append(partial(_answer, item.answer, acted))
            elif isinstance(item, _Recatalogue):
                entry = Entry(transitions=tuple(self.judge.recatalogue(item.catalog, time.time())))
                answers.append(partial(_answer, item.answer, None))
            else:
                looked.append(item)
                entry = Entry(position=item.position)
                for begin in range(0, len(item.events), _SLICE):
                    if taken:
                        await asyncio.sleep(0)
                    part = item.events[begin : begin + _SLICE]
                    taken += len(part)
                    entry = self._judge(entry, *part)
                self._reached(item.position)
            entries.append(self._whole(entry))
        if not self._queue:  # what is queued happened before now
            entries += [self._whole(self._judge(Entry(), *batch.events)) for batch in self._stepped()]
            if self._caught_up:
                entries.append(self._whole(Entry(transitions=tuple(self.judge.expire(time.time())))))
        return entries, taken

    async def close(self) -> None:
        """Judge and store what is queued, then let go of the ledger. Within a second or so, or not at all."""
        batches = [item for item in self._queue if isinstance(item, Batch)]
        entries = [self._whole(self._judge(Entry(position=batch.position), *batch.events)) for batch in batches]
        self._queue.clear()
        stopped = [Entry(position=Position(_OWN, self.boot_id, _STOPPED))] if self._begun else []
        await self._store([*entries, *stopped])
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
        until = self.judge.due - time.time()
        if self._held:
            until = min(until, self._retry_at - time.monotonic())
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(0.05, min(until, 3600.0)))

    def _judge(self, entry: Entry, *events: Event) -> Entry:
        transitions = [*entry.transitions]
        for event in events:
            try:
                transitions += self.judge.apply(event)
            except Exception as error:  # a fault of ours must not end the judging of everything else
                log.exception("event_not_judged", identity=event.identity, code=event.code, raw=event.raw)
                told = f"{type(error).__name__} while judging {event.identity}: {event.raw}"
                failed = self._own_event("vitald/not_judged", {}, NODE, told)
                events = (*events, failed)
                with suppress(Exception):  # if even that cannot be judged, it is at least stored and in the log
                    transitions += self.judge.apply(failed)
        return replace(entry, events=(*entry.events, *events), transitions=tuple(transitions))

    def _whole(self, entry: Entry) -> Entry:
        """With what judging it changed beside the findings; once, when all of it has been judged."""
        return replace(entry, changes=self.judge.take_changes())

    def _acted(self, item: _Act) -> tuple[Entry, Finding | None]:
        """What a person does is an event like any other, so that a replay does it too."""
        meant = next((finding for finding in self.judge.opened if finding.id == item.finding), None)
        if meant is None:
            return Entry(), None
        fields: dict[str, Value] = {"code": meant.code, "finding": meant.id, "by": item.by, "reason": item.audit.reason}
        fields |= {name: True for name, said in (("drill", meant.simulated), ("shadow", meant.shadow)) if said}
        # It was done when it was asked for: what happened since is not dealt with. The clock may have been set back meanwhile.
        said, at = f"{item.by}: {item.audit.reason}", min(item.audit.time, time.time())
        events = [self._own_event(item.code, fields, meant.component, said, at)]
        if item.replaced and not meant.simulated:
            events.append(self._own_event(REPLACED, {"by": item.by}, meant.component, said, at))
        entry = self._judge(Entry(audit=item.audit), *events)
        acted = next((change.finding for change in entry.transitions if change.finding.id == meant.id), None)
        return entry, acted

    def _stepped(self) -> tuple[Batch, ...]:
        """Say it when the clock was stepped: windows and quiet times are told by it."""
        seconds = time.time() - _uptime() - self._clock
        if abs(seconds) < _STEP_S:
            return ()
        self._clock += seconds
        log.warning("clock_stepped", seconds=round(seconds, 3))
        said = f"the clock was stepped by {seconds:+.3f} s"
        return (Batch(_OWN, (self._own_event(CLOCK_STEPPED, {"seconds": seconds}, NODE, said),)),)

    async def _store(self, entries: Sequence[Entry]) -> None:
        """Commit, then show. What only moved a position is noted without waiting for the disk."""
        entries = [entry for entry in entries if entry != Entry()]
        weighty = [entry for entry in entries if entry.events or entry.transitions or entry.audit or entry.changes != Changes()]
        if weighty or (self._held and time.monotonic() >= self._retry_at):
            await self._commit(entries)
        elif entries and not self._held:
            self._note(entries)
        events = [event for entry in entries for event in entry.events]
        transitions = [transition for entry in entries for transition in entry.transitions]
        if events or transitions:
            self.board.publish(self.judge, events, transitions, [one for entry in entries for one in entry.changes.incidents])
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
                standing = tuple(Transition(time=time.time(), finding=finding, cause="") for finding in self.judge.opened)
                work = (*work, Entry(transitions=standing))
            await self.lane.call(partial(self._write, work, reopen=failing), _DEADLINE_S)
        except LedgerDamaged as error:
            await self._replace_ledger(str(error), self.judge.memory)
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
        self._held.append(self._whole(Entry(transitions=tuple(self.judge.adopt(remembered.memory)))))
        self._former_boots = self._boots_in(remembered)
        last = next((device.uuid for device in remembered.memory.devices if device.component == NODE), "")
        # When the boot was to be told, nobody knew that there had been another.
        if self._begun and self._former_boots and last != self.boot_id:
            self._enqueue(Batch(_OWN, self._boot()))
        self.board.publish(self.judge)
        log.warning("ledger_read_late", findings=len(remembered.memory.findings))

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
            self.lane.post(partial(self._note_quietly, tuple(self._to_note.values())))
            self._to_note = {}

    def _note_quietly(self, positions: Sequence[Position]) -> None:
        """In the lane. A position that cannot be noted costs nothing yet: the next commit will tell."""
        try:
            for position in positions:
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
            self._enqueue(
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
            self._enqueue(
                Batch(_OWN, (self._own_event("vitald/ledger_failed", {"error": error}, NODE, f"the ledger cannot be written: {error}"),))
            )

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

    async def _replace_ledger(self, error: str, keep: Memory | None = None) -> Remembered | None:
        """Begin a new store with what is to be kept; at start-up, when none are held, with what can be rescued."""
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
            keep = rescued.memory if rescued is not None else Memory()
        carried = tuple(
            Transition(time=time.time(), finding=finding, cause="carried over from the damaged ledger") for finding in keep.findings
        )
        with_them = Changes(incidents=keep.incidents, marks=keep.marks, devices=keep.devices, settled=keep.settled)
        told = self._own_event(
            "vitald/ledger_replaced", {"error": error, "aside": aside, "rescued": len(carried)}, NODE, f"{error}; the old ledger is {aside}"
        )
        positions = self._judged or (rescued.positions if rescued is not None else {})
        # Last, as they stand now: what is held changes what was before it.
        self._held += [Entry(transitions=carried, changes=with_them), *(Entry(position=position) for position in positions.values())]
        self._enqueue(Batch(_OWN, (told,)))
        try:
            await self.lane.call(partial(self.ledger.commit, tuple(self._held)), _DEADLINE_S)
        except (LedgerError, LaneStuck) as failure:
            self._failed(str(failure))
        else:
            self._stored(0.0)
        return rescued

    def _own_event(self, code: str, fields: Fields, component: Component, raw: str, at: float | None = None) -> Event:
        now = time.time()
        self._serial += 1
        return Event(
            identity=f"vitald:{self.boot_id}:{now:.6f}:{self._serial}",
            time=now if at is None else at,
            source="vitald",
            kind="vitald",
            code=code,
            component=component,
            boot_id=self.boot_id,
            raw=raw,
            trust=Trust.DAEMON,
            fields=fields,
        )


def _uptime() -> float:
    """Seconds since the boot, those in suspend included: nobody can step it, and it goes on as the wall clock does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


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
            say = log.warning if finding.open else log.info
            say(
                f"finding_{'opened' if transition.opened else 'changed' if finding.open else 'cleared'}",
                id=finding.id,
                component=finding.component.name,
                code=finding.code,
                action=finding.action.value,
                cause=transition.cause,
                raw=finding.raw,
                simulated=finding.simulated,
                **({"trial": True} if finding.shadow else {}),
            )
