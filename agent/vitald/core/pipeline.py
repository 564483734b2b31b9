"""
The one way through: batches in, judged, committed, and only then shown.

One task takes what the sources and the API put in, folds it into the findings, has events and
transitions stored in one transaction and puts the result on the board. While the ledger fails it
judges on in memory; the keeper holds what it could not store, and says so as a finding.

Owns     the queue and the judge: the order in which things are judged, and how far each source has
         got.
Refuses  the disk: what was judged goes to the keeper.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import anyio
import structlog

from vitald.catalog import Catalog
from vitald.core.ledger_writer import Keeper
from vitald.core.node_state import Board
from vitald.judge.engine import Judge
from vitald.judge.findings import BY_PERSON, SUPPRESSED
from vitald.judge.open_findings import MAX_RESOLVED
from vitald.ledger import AuditRecord, Ledger, LedgerEntry, RestoredState
from vitald.model import (
    KERNEL_LOG,
    NODE,
    Batch,
    Component,
    ComponentKind,
    Event,
    Fields,
    Finding,
    Memory,
    Position,
    SourceState,
    Transition,
    Trust,
    Value,
)
from vitald.model.codes import ACCEPTED, BOOT, CLEARED, CLOCK_STEPPED, REMEDY_BEGUN, REPLACED
from vitald.worker_thread import WorkerThread

log: structlog.stdlib.BoundLogger = structlog.get_logger("pipeline")

T = TypeVar("T")
_OWN = "vitald"
_RUNNING, _STOPPED = "running", "stopped"  # the cursor of the daemon's own position

# Events waiting to be judged; beyond it the readers wait, and the kernel's ring is the buffer
_QUEUED = 4_000
_BATCH = 512  # events in one transaction
_BEHIND = 64  # events waiting at a start: more than are judged while somebody waits for an answer
_SLICE = 8  # events judged before others get their turn
_WEDGED_S = 20.0
_SHOWN_S = 0.5
_STEP_S = 2.0  # slewing is slower than that between two looks


@dataclass(slots=True)
class _Recatalogue:
    """The catalogue was reloaded."""

    catalog: Catalog
    answer: asyncio.Future[None]


@dataclass(slots=True)
class _Mark:
    """Somebody waits until all that was queued before it has been stored."""

    answer: asyncio.Future[None]


@dataclass(slots=True)
class _Act:
    """A named person does something about a finding: closes it, accepts it, says that its remedy
    has begun.
    """

    code: str
    finding: int
    by: str
    audit: AuditRecord
    replaced: bool
    fields: Fields  # what the event says beside the finding, the person and the reason
    answer: asyncio.Future[Finding | None]


class Pipeline:
    """Owns the findings. Everything that changes them goes through its queue."""

    def __init__(
        self, ledger: Ledger, lane: WorkerThread, board: Board, catalog: Catalog, boot_id: str
    ) -> None:
        self.keeper = Keeper(ledger, lane, board, self)
        self.board = board
        self.boot_id = boot_id
        self.judge = Judge(catalog)
        self._positions: dict[str, Position] = {}  # how far each source has handed in
        self.judged: dict[str, Position] = {}  # how far of that has been judged
        self._queue: deque[Batch | _Act | _Recatalogue | _Mark] = deque()
        self._queued = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._progress = time.monotonic()
        self._serial = 0
        self._busy = False  # judging or committing
        self._clock = time.time() - _uptime()
        self._orderly = False
        self._begun = False  # what earlier boots left has been handed in
        # What happened while nobody watched has been judged: only then may anything end by quiet
        self._caught_up = False
        self._former_boots: set[str] = set()
        self._shown = asyncio.Event()  # what is committed is on the board too
        self._shown.set()
        self._ended: dict[
            tuple[Component, str, bool], str
        ] = {}  # how the last finding of each fault ended
        self._not_opened: set[tuple[Component, str, bool]] = (
            set()
        )  # faults that are observed, and of which no finding could be opened

    async def open(self, catalog: Catalog) -> None:
        """Read what is remembered and fold in that the node may have booted since. Raises only
        LedgerNewer.
        """
        remembered = await self.keeper.open()
        if remembered is not None:
            self.judge = Judge(catalog, remembered.memory)
            self._positions, self.judged = dict(remembered.positions), dict(remembered.positions)
            was = self._positions.get(_OWN)
            self._orderly = was is not None and was.cursor == _STOPPED
            self._former_boots = self._boots_in(remembered)
            self._ended = dict(remembered.ended)
        else:
            # Far from the ids of findings that may stand in the ledger after all.
            far = int(time.time())
            self.judge = Judge(catalog, Memory(next_finding=far, next_incident=far))
        await self._store(
            [
                self._whole(
                    LedgerEntry(transitions=tuple(self.judge.reload_catalog(catalog, time.time())))
                ),
                *self._said(),
            ]
        )
        self.board.publish(self.judge)  # what is remembered is shown from the first answer on

    def _said(self) -> list[LedgerEntry]:
        """What the keeper said of the ledger while it was opened, judged: stored together with what
        was rescued.
        """
        said = [item for item in self._queue if isinstance(item, Batch)]
        self._queue.clear()
        self._queued = 0
        return [self._whole(self._judge(LedgerEntry(), *batch.events)) for batch in said]

    def _boots_in(self, remembered: RestoredState) -> set[str]:
        """The boots before this one that what is remembered speaks of."""
        read, seen = remembered.positions.values(), remembered.memory.findings
        return ({one.boot_id for one in read} | {one.boot_id for one in seen}) - {self.boot_id}

    async def booted(self) -> None:
        """Once what earlier boots left has been handed in: fold in that the node was booted since,
        if it was.
        """
        self._begun = True
        await self.put(
            Batch(_OWN, self._boot(), Position(_OWN, self.boot_id, _RUNNING), again=True)
        )

    def _boot(self) -> tuple[Event, ...]:
        if not self._former_boots:
            return ()
        # Faults of this boot may have been printed before we ran: the boot came before them, and
        # after all that was seen before it.
        began = time.time() - _uptime()
        at = min(
            time.time(),
            max(
                [
                    began,
                    *(
                        finding.last
                        for finding in self.judge.open_findings
                        if finding.boot_id != self.boot_id
                    ),
                ]
            ),
        )
        return (
            replace(
                self._own_event(BOOT, {}, NODE, "the node was booted", at),
                identity=f"vitald:boot:{self.boot_id}",
            ),
        )

    @property
    def ledger(self) -> Ledger:
        """For those who read it, and trim it."""
        return self.keeper.ledger

    @property
    def standing(self) -> Memory:
        """All that would have to be remembered as of now."""
        return self.judge.memory

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
            batch = replace(batch, events=await self.keeper.unknown(batch.events))
        if not (
            batch.events or batch.runs or self._queue or self._busy or self._is_contradicted(batch)
        ):
            # Nothing to judge and nothing before it: most batches are such, and need not wake the
            # judge.
            self._looked(batch)
            self._reached(batch.position)
            self.keeper.note(batch.position)
            return
        self._enqueue(batch)
        while self._queued >= _QUEUED:
            self._room.clear()
            await self._room.wait()

    async def store(self, batch: Batch) -> None:
        """Hand in a batch, and wait until it is stored: somebody is told only then that it was
        heard.
        """
        await self.put(batch)
        await self.stored()

    async def stored(self) -> None:
        """Wait until all that was handed in before is stored and shown."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enqueue(_Mark(answer))
        await answer

    def _enqueue(self, item: Batch | _Act | _Recatalogue | _Mark) -> None:
        for one in (
            *self._stepped(),
            item,
        ):  # what was queued before a step of the clock is told by the old one
            self._queue.append(one)
            self._queued += len(one.events) if isinstance(one, Batch) else 0
        if self._queued > _BEHIND:
            self.board.fall_behind()
        self._wake.set()

    def _reached(self, position: Position | None) -> None:
        if position is not None:
            self.judged[position.source] = position

    async def own(self, code: str, fields: Fields, component: Component, raw: str) -> None:
        """Hand in an observation of the daemon about itself."""
        await self.put(Batch(_OWN, (self._own_event(code, fields, component, raw),)))

    def say(self, code: str, fields: Fields, raw: str) -> None:
        """The same of the node as a whole, without waiting for room in the queue."""
        self._enqueue(Batch(_OWN, (self._own_event(code, fields, NODE, raw),)))

    async def clear(
        self, finding: int, by: str, audit: AuditRecord, *, replaced: bool = False
    ) -> Finding | None:
        """Close a finding for a named person; `replaced`: because its device was. Returns it
        closed, and stored; None where it is not open.
        """
        return await self._act(CLEARED, finding, by, audit, replaced=replaced)

    async def begin_remedy(self, finding: int, by: str, audit: AuditRecord) -> Finding | None:
        """Somebody begins what a finding asks for. Returns it, and stored; None where it is not
        open.
        """
        return await self._act(REMEDY_BEGUN, finding, by, audit)

    async def accept(
        self, finding: int, by: str, audit: AuditRecord, seconds: float
    ) -> Finding | None:
        """A named person lives with a finding for so long; 0 ends that. Returns it, and stored;
        None where it is not open.
        """
        return await self._act(
            ACCEPTED, finding, by, audit, fields={"until": audit.time + seconds if seconds else 0.0}
        )

    async def _act(
        self,
        code: str,
        finding: int,
        by: str,
        audit: AuditRecord,
        *,
        replaced: bool = False,
        fields: Fields | None = None,
    ) -> Finding | None:
        answer: asyncio.Future[Finding | None] = asyncio.get_running_loop().create_future()
        self._enqueue(_Act(code, finding, by, audit, replaced, fields or {}, answer))
        return await answer

    def _is_contradicted(self, batch: Batch) -> bool:
        """Whether a look tells of something else than the open findings do."""
        unknown = any(not self.judge.accounts_for(event) for event in batch.holding)
        return unknown or bool(
            batch.calm and self.judge.find_contradicted(batch.source, batch.calm)
        )

    def _reconcile(self, entry: LedgerEntry, batch: Batch) -> LedgerEntry:
        """Make one event of each difference between what a look observed and what is open: a replay
        does the same.
        """
        for event in batch.holding:
            fault = (event.component, event.code, event.is_simulated)
            if self.judge.accounts_for(event):
                self._not_opened.discard(fault)
            elif fault not in self._not_opened:
                entry = self._judge(entry, self._observed_still(event))
                if not self.judge.accounts_for(event):  # else there would be one in every round
                    self._not_opened.add(fault)
                    said = (
                        f"observed, and no finding could be opened: {event.code} of"
                        f" {event.component.name}: {event.raw}"
                    )
                    entry = self._judge(entry, self._own_event("vitald/not_judged", {}, NODE, said))
        for finding in self.judge.find_contradicted(batch.source, batch.calm) if batch.calm else ():
            raw = f"{batch.source}: {finding.title}: not observed any more"
            over = self._own_event(finding.code, {"recovered": True}, finding.component, raw)
            over = replace(
                over,
                source=batch.source,
                kind=finding.kind,
                simulated_until=finding.simulated_until,
            )
            entry = self._judge(entry, over)
        return entry

    def _observed_still(self, event: Event) -> Event:
        """The same fact, told again because the finding of it was closed."""
        again = self._ended.get((event.component, event.code, event.is_simulated), "")
        if not again or again.startswith(
            SUPPRESSED
        ):  # it was told under another fault of its device, which somebody cleared
            ends = (
                f"{code} {cause}"
                for (where, code, drill), cause in reversed(self._ended.items())
                if (where, drill) == (event.component, event.is_simulated)
                and cause.startswith(BY_PERSON)
            )
            again = next(ends, again or "it is not open")
        return replace(
            event,
            fields={**event.fields, "again": again},
            raw=f"{event.raw} ({again}; still observed)",
        )

    def _looked(self, batch: Batch) -> None:
        """Show what a source saw, now that all before it has been judged."""
        if (
            batch.source == KERNEL_LOG
        ):  # the one source that goes through the past before the present
            self._caught_up = (
                self._caught_up or batch.caught_up or batch.state is not SourceState.OK
            )
        self.board.show(batch.source, batch.readings)
        self.board.source_stands(
            batch.source,
            batch.state,
            batch.detail,
            caught_up=batch.caught_up,
            simulated=batch.simulated,
        )

    def wedged(self) -> bool:
        """Whether something has waited to be judged, or is being judged, for too long: the watchdog
        is not fed then.
        """
        return bool(self._queue or self._busy) and time.monotonic() - self._progress > _WEDGED_S

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
            with anyio.CancelScope(
                shield=True
            ):  # what is taken is judged whole: half a batch would be lost
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

    async def _take(
        self, answers: list[Callable[[], None]], looked: list[Batch]
    ) -> tuple[list[LedgerEntry], int]:
        """Judge what is queued, up to a transaction's worth; now and then the others get their
        turn.
        """
        entries: list[LedgerEntry] = []
        taken = 0
        while self._queue and taken < _BATCH:
            item = self._queue.popleft()
            if isinstance(item, _Act):
                entry, acted = self._acted(item)
                answers.append(partial(_answer, item.answer, acted))
            elif isinstance(item, _Recatalogue):
                entry = LedgerEntry(
                    transitions=tuple(self.judge.reload_catalog(item.catalog, time.time()))
                )
                answers.append(partial(_answer, item.answer, None))
            elif isinstance(item, _Mark):
                entry = LedgerEntry()
                answers.append(partial(_answer, item.answer, None))
            else:
                looked.append(item)
                entry = LedgerEntry(position=item.position, runs=item.runs)
                for begin in range(0, len(item.events), _SLICE):
                    if taken:
                        await asyncio.sleep(0)
                    part = item.events[begin : begin + _SLICE]
                    taken += len(part)
                    entry = self._judge(entry, *part)
                entry = self._reconcile(entry, item)
                self._reached(item.position)
            entries.append(self._whole(entry))
        if not self._queue:  # what is queued happened before now
            entries += [
                self._whole(self._judge(LedgerEntry(), *batch.events)) for batch in self._stepped()
            ]
            if self._caught_up:
                entries.append(
                    self._whole(
                        LedgerEntry(transitions=tuple(self.judge.expire_findings(time.time())))
                    )
                )
        return entries, taken

    async def close(self) -> None:
        """Judge and store what is queued, then have the ledger let go of. Within a second or so, or
        not at all.
        """
        batches = [item for item in self._queue if isinstance(item, Batch)]
        entries = [
            self._whole(
                self._judge(LedgerEntry(position=batch.position, runs=batch.runs), *batch.events)
            )
            for batch in batches
        ]
        self._queue.clear()
        stopped = (
            [LedgerEntry(position=Position(_OWN, self.boot_id, _STOPPED))] if self._begun else []
        )
        await self._store([*entries, *stopped])
        await self.keeper.close()

    async def _wait(self) -> None:
        """Until something is queued, something ends by itself, or the ledger is to be tried
        again.
        """
        if self._queue:
            await asyncio.sleep(0)
            return
        self._wake.clear()
        until = min(self.judge.next_due - time.time(), self.keeper.tries_in())
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(0.05, min(until, 3600.0)))

    def _judge(self, entry: LedgerEntry, *events: Event) -> LedgerEntry:
        transitions = [*entry.transitions]
        for event in events:
            try:
                transitions += self.judge.apply_event(event)
            except (
                Exception
            ) as error:  # a fault of ours must not end the judging of everything else
                log.exception(
                    "event_not_judged", identity=event.identity, code=event.code, raw=event.raw
                )
                told = f"{type(error).__name__} while judging {event.identity}: {event.raw}"
                failed = self._own_event("vitald/not_judged", {}, NODE, told)
                events = (*events, failed)
                with suppress(
                    Exception
                ):  # if even that cannot be judged, it is at least stored and in the log
                    transitions += self.judge.apply_event(failed)
        return replace(entry, events=(*entry.events, *events), transitions=tuple(transitions))

    def _whole(self, entry: LedgerEntry) -> LedgerEntry:
        """With what judging it changed beside the findings; once, when all of it has been
        judged.
        """
        return replace(entry, changes=self.judge.take_changes())

    def _acted(self, item: _Act) -> tuple[LedgerEntry, Finding | None]:
        """What a person does is an event like any other, so that a replay does it too."""
        meant = next(
            (finding for finding in self.judge.open_findings if finding.id == item.finding), None
        )
        if meant is None:
            return LedgerEntry(), None
        fields: dict[str, Value] = {
            **item.fields,
            "code": meant.code,
            "finding": meant.id,
            "by": item.by,
            "reason": item.audit.reason,
        }
        fields |= {
            name: True
            for name, said in (("drill", meant.is_simulated), ("shadow", meant.on_trial))
            if said
        }
        # It was done when it was asked for: what happened since is not dealt with. The clock may
        # have been set back meanwhile.
        said, at = f"{item.by}: {item.audit.reason}", min(item.audit.time, time.time())
        events = [self._own_event(item.code, fields, meant.component, said, at)]
        if item.replaced and not meant.is_simulated:
            events.append(self._own_event(REPLACED, {"by": item.by}, meant.component, said, at))
        entry = self._judge(LedgerEntry(audit=item.audit), *events)
        acted = next(
            (change.finding for change in entry.transitions if change.finding.id == meant.id), None
        )
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

    async def _store(self, entries: Sequence[LedgerEntry]) -> None:
        """Commit, then show."""
        self._shown.clear()
        try:
            await self.keeper.store(entries)
            events = [event for entry in entries for event in entry.events]
            transitions = [transition for entry in entries for transition in entry.transitions]
            self._remember_ends(transitions)
            if events or transitions:
                self.board.publish(
                    self.judge,
                    events,
                    transitions,
                    [one for entry in entries for one in entry.changes.incidents],
                )
                _say(transitions)
        finally:
            self._shown.set()

    async def show_committed(self) -> None:
        """Returns once all that can be read of the ledger is on the board too; where the disk
        hangs, after half a second.
        """
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._shown.wait(), _SHOWN_S)

    def _remember_ends(self, transitions: Iterable[Transition]) -> None:
        for transition in transitions:
            finding = transition.finding
            if finding.is_open or finding.on_trial:
                continue
            key = (finding.component, finding.code, finding.is_simulated)
            self._ended.pop(key, None)  # the latest stands last
            self._ended[key] = transition.cause
            if len(self._ended) > MAX_RESOLVED:
                del self._ended[next(iter(self._ended))]

    def adopt(self, remembered: RestoredState) -> LedgerEntry:
        """Take up what the ledger remembers after all: it was out of reach at the start. Returns
        what that changed.
        """
        entry = self._whole(
            LedgerEntry(transitions=tuple(self.judge.adopt_memory(remembered.memory)))
        )
        self._former_boots = self._boots_in(remembered)
        last = next(
            (device.uuid for device in remembered.memory.devices if device.component == NODE), ""
        )
        # When the boot was to be told, nobody knew that there had been another.
        if self._begun and self._former_boots and last != self.boot_id:
            self._enqueue(Batch(_OWN, self._boot()))
        self.board.publish(self.judge)
        return entry

    def _own_event(
        self, code: str, fields: Fields, component: Component, raw: str, at: float | None = None
    ) -> Event:
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
    """Seconds since the boot, those in suspend included: nobody can step it, and it goes on as the
    wall clock does.
    """
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
            say = log.warning if finding.is_open else log.info
            say(
                f"finding_{'opened' if transition.opened else 'changed' if finding.is_open else 'cleared'}",
                id=finding.id,
                component=finding.component.name,
                code=finding.code,
                action=finding.action.value,
                cause=transition.cause,
                raw=finding.raw,
                simulated=finding.is_simulated,
                **({"trial": True} if finding.on_trial else {}),
            )
