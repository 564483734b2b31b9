"""
The event pipeline: evaluates, commits and then publishes each batch, in one task.

While the ledger fails, evaluation goes on in memory; the ledger writer keeps what it could not
store and reports a finding.

Owns     the order in which things are evaluated, what operators do with findings included; the
         position of each source; and what happened to findings in the daemon's log.
Refuses  the disk: results go to the ledger writer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import anyio
import structlog

from vitald.catalog import Catalog
from vitald.core.evaluator import OWN_SOURCE, DaemonEvents, Evaluator, OperatorAction
from vitald.core.ledger_writer import LedgerWriter
from vitald.core.node_state import NodeState
from vitald.core.work_queue import (
    ActionItem,
    BarrierItem,
    BatchItem,
    CatalogItem,
    WorkItem,
    WorkQueue,
)
from vitald.judge.engine import Judge
from vitald.judge.verdict import DescribeComponent, compute_status
from vitald.ledger.restore import RestoredState
from vitald.ledger.schema import AuditRecord
from vitald.ledger.store import Ledger, LedgerEntry
from vitald.model.component import NODE, Component
from vitald.model.event import ACCEPTED, CLEARED, REMEDY_BEGUN, Event, Fields
from vitald.model.finding import Finding, Memory, Transition
from vitald.model.source import KERNEL_LOG, Batch, Position, SourceState
from vitald.model.words import ComponentKind, Status
from vitald.timestamps import format_rfc3339
from vitald.worker_thread import WorkerThread

_RUNNING, _STOPPED = "running", "stopped"  # the cursor of the daemon's own position

_MAX_TRANSACTION = 512  # events
_WEDGED_S = 20.0
_PUBLISH_S = 0.5
log = structlog.get_logger("findings")
_LATE_S = 10.0


class Pipeline:
    """Owns the findings. Everything that changes them goes through its queue."""

    def __init__(
        self,
        ledger: Ledger,
        worker_thread: WorkerThread,
        node_state: NodeState,
        catalog: Catalog,
        boot_id: str,
        list_siblings: Callable[[Component], list[str] | None] = lambda _: None,
    ) -> None:
        """`list_siblings`: as PciInventory has it."""
        self.ledger_writer = LedgerWriter(ledger, worker_thread, node_state, self)
        self.node_state = node_state
        self.boot_id = boot_id
        self._daemon_events = DaemonEvents(boot_id)
        self._evaluator = Evaluator(Judge(catalog), self._daemon_events, list_siblings)
        self._positions: dict[str, Position] = {}  # how far each source has handed in
        self.judged: dict[str, Position] = {}  # how far of that has been evaluated
        self._queue = WorkQueue(self._daemon_events, node_state.report_backlog)
        self.actions = FindingActions(self._queue)
        self._progress = time.monotonic()
        self._busy = False  # evaluating or committing
        self._was_stopped = False
        self._past_read = False  # what earlier boots left has been handed in
        # What happened before the start has been evaluated: only then may a finding expire.
        self._caught_up = False
        self._former_boots: set[str] = set()
        self._published = asyncio.Event()  # what is committed is published, too
        self._published.set()

    # --- start

    async def open(self, catalog: Catalog) -> None:
        """Restore the findings from the ledger and evaluate them by `catalog`. Raises only
        LedgerNewer.
        """
        remembered = await self.ledger_writer.open_ledger()
        if remembered is not None:
            self._evaluator.judge = Judge(catalog, remembered.memory)
            self._positions, self.judged = dict(remembered.positions), dict(remembered.positions)
            own = self._positions.get(OWN_SOURCE)
            self._was_stopped = own is not None and own.cursor == _STOPPED
            self._former_boots = self._list_former_boots(remembered)
            self._evaluator.restore_endings(remembered.ended)
        else:
            # Far from the ids of findings that may be in the ledger after all.
            far = int(time.time())
            self._evaluator.judge = Judge(catalog, Memory(next_finding=far, next_incident=far))
        transitions = tuple(self.judge.reload_catalog(catalog, time.time()))
        await self._store_entries(
            [
                # Durable: a ledger that cannot be written is known from the start.
                self._evaluator.add_changes(LedgerEntry(transitions=transitions, durable=True)),
                *self._evaluate_ledger_reports(),
            ]
        )
        # What is restored is published from the first answer on.
        self.node_state.publish_changes(self.judge)

    def _evaluate_ledger_reports(self) -> list[LedgerEntry]:
        """What the ledger writer reported while it opened the ledger: stored together with what was
        rescued.
        """
        return [self._evaluate(*batch.events) for batch in self._queue.take_batches()]

    def _list_former_boots(self, remembered: RestoredState) -> set[str]:
        """The boots before this one that the ledger has positions or findings of."""
        read, seen = remembered.positions.values(), remembered.memory.findings
        boots = {position.boot_id for position in read} | {finding.boot_id for finding in seen}
        return boots - {self.boot_id}

    async def report_boot(self) -> None:
        """Report that the node was booted, if it was. Call it once the events of earlier boots have
        been handed in.
        """
        self._past_read = True
        position = Position(OWN_SOURCE, self.boot_id, _RUNNING)
        await self.put(Batch(OWN_SOURCE, self._make_boot_events(), position, again=True))

    def _make_boot_events(self) -> tuple[Event, ...]:
        if not self._former_boots:
            return ()
        return (self._daemon_events.make_boot_event(self.judge.open_findings),)

    def adopt_memory(self, remembered: RestoredState) -> LedgerEntry:
        """Take over what the ledger remembers, which could not be read at the start. Returns what
        that changed.
        """
        transitions = tuple(self.judge.adopt_memory(remembered.memory))
        entry = self._evaluator.add_changes(LedgerEntry(transitions=transitions))
        self._former_boots = self._list_former_boots(remembered)
        nodes = (each.uuid for each in remembered.memory.devices if each.component == NODE)
        # When the boot should have been reported, no earlier one was known.
        if self._past_read and self._former_boots and next(nodes, "") != self.boot_id:
            self._queue.add_item(BatchItem(Batch(OWN_SOURCE, self._make_boot_events())))
        self.node_state.publish_changes(self.judge)
        return entry

    # --- what is known

    @property
    def judge(self) -> Judge:
        """The judge, with the findings that are open."""
        return self._evaluator.judge

    @property
    def ledger(self) -> Ledger:
        """The ledger, for reading and trimming."""
        return self.ledger_writer.ledger

    @property
    def memory(self) -> Memory:
        """All that would have to be restored as of now."""
        return self.judge.memory

    @property
    def was_stopped(self) -> bool:
        """Whether the daemon before this one was stopped, not killed."""
        return self._was_stopped

    def position(self, source: str) -> Position | None:
        """How far a source has handed in; None where it never did."""
        return self._positions.get(source)

    def is_wedged(self) -> bool:
        """True if evaluation makes no progress: watchdog notifications stop then."""
        return (
            bool(self._queue.items or self._busy) and time.monotonic() - self._progress > _WEDGED_S
        )

    # --- handing in

    async def put(self, batch: Batch) -> None:
        """Hand in a batch; waits while the queue is full."""
        if batch.position is not None:
            self._positions[batch.position.source] = batch.position
        if batch.again and batch.events:
            batch = replace(batch, events=await self.ledger_writer.select_unstored(batch.events))
        if not (
            batch.events
            or batch.runs
            or batch.durable
            or self._queue.items
            or self._busy
            or self._evaluator.is_contradicted(batch)
        ):
            # Nothing to evaluate and nothing queued before it: most batches are such, and need not
            # wake the task.
            self._publish_source(batch)
            self._note_evaluated(batch)
            self.ledger_writer.positions.add_positions(batch.position)
            return
        self._queue.add_item(BatchItem(batch))
        await self._queue.wait_for_room()

    async def store(self, batch: Batch) -> None:
        """Hand in a batch, and wait until it is stored."""
        await self.put(batch)
        await self.wait_until_stored()

    async def wait_until_stored(self) -> None:
        """Wait until all that was handed in before is stored and published."""
        barrier = BarrierItem()
        self._queue.add_item(barrier)
        await barrier.done

    async def wait_until_published(self) -> None:
        """Wait until all that can be read of the ledger is published, too; at most half a second,
        if the disk hangs.
        """
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._published.wait(), _PUBLISH_S)

    async def put_own_event(
        self, code: str, fields: Fields, component: Component, raw: str
    ) -> None:
        """Hand in an observation of the daemon about itself."""
        event = self._daemon_events.make_event(code, fields, component, raw)
        await self.put(Batch(OWN_SOURCE, (event,)))

    def queue_own_event(self, code: str, fields: Fields, raw: str) -> None:
        """The same about the node as a whole; never waits."""
        event = self._daemon_events.make_event(code, fields, NODE, raw)
        self._queue.add_item(BatchItem(Batch(OWN_SOURCE, (event,))))

    async def reload_catalog(self, catalog: Catalog) -> None:
        """Evaluate by a reloaded catalogue from here on, the open findings included."""
        item = CatalogItem(catalog)
        self._queue.add_item(item)
        await item.done

    # --- the task

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._busy = False
            await self._wait_for_work()
            self._busy = True
            self._progress = time.monotonic()
            read_at = time.time()
            # What is taken is evaluated whole: half a batch would be lost.
            with anyio.CancelScope(shield=True):
                entries, items = await self._evaluate_queue()
            self._queue.release_items(items)
            await self._store_entries(entries, read_at)
            self._progress = time.monotonic()
            for item in items:
                if item.batch is not None:
                    self._publish_source(item.batch)
            for item in items:
                item.finish()

    async def _evaluate_queue(self) -> tuple[list[LedgerEntry], list[WorkItem]]:
        """Evaluate what is queued, up to a transaction's worth."""
        entries: list[LedgerEntry] = []
        items: list[WorkItem] = []
        evaluated = 0
        while self._queue.items and evaluated < _MAX_TRANSACTION:
            item = self._queue.items.popleft()
            if evaluated and item.event_count:
                await asyncio.sleep(0)  # other tasks get their turn
            entry = await item.apply(self._evaluator)
            evaluated += item.event_count
            if item.batch is not None:
                self._note_evaluated(item.batch)
            items.append(item)
            entries.append(self._evaluator.add_changes(entry))
        if not self._queue.items:  # what is queued happened before now
            entries += [self._evaluate(event) for event in self._daemon_events.detect_clock_step()]
            if self._caught_up:
                expired = LedgerEntry(transitions=tuple(self.judge.expire_findings(time.time())))
                entries.append(self._evaluator.add_changes(expired))
        return entries, items

    async def close(self) -> None:
        """Evaluate and store what is queued, then close the ledger. Gives up after a second or
        so.
        """
        entries = [
            self._evaluate(
                *batch.events, entry=LedgerEntry(position=batch.position, runs=batch.runs)
            )
            for batch in self._queue.take_batches()
        ]
        if self._past_read:
            entries.append(LedgerEntry(position=Position(OWN_SOURCE, self.boot_id, _STOPPED)))
        await self._store_entries(entries)
        await self.ledger_writer.close_ledger()

    async def _wait_for_work(self) -> None:
        """Wait until something is queued, something expires, or the ledger is to be retried."""
        if self._queue.items:
            await asyncio.sleep(0)
            return
        until = min(self.judge.next_due - time.time(), self.ledger_writer.get_retry_delay())
        await self._queue.wait_for_item(max(0.05, min(until, 3600.0)))

    def _evaluate(self, *events: Event, entry: LedgerEntry | None = None) -> LedgerEntry:
        evaluated = self._evaluator.evaluate_events(entry or LedgerEntry(), *events)
        return self._evaluator.add_changes(evaluated)

    def _note_evaluated(self, batch: Batch) -> None:
        if batch.position is not None:
            self.judged[batch.position.source] = batch.position

    async def _store_entries(
        self, entries: Sequence[LedgerEntry], read_at: float | None = None
    ) -> None:
        """Commit, then publish. `read_at`: when what they come from was read."""
        self._published.clear()
        try:
            await self.ledger_writer.store_entries(entries)
            events = [event for entry in entries for event in entry.events]
            transitions = [transition for entry in entries for transition in entry.transitions]
            self._evaluator.remember_endings(transitions)
            if events or transitions:
                incidents = [each for entry in entries for each in entry.changes.incidents]
                self.node_state.publish_changes(self.judge, events, transitions, incidents, read_at)
                log_transitions(
                    transitions, time.time(), self.node_state.devices.describe_component
                )
        finally:
            self._published.set()

    def _publish_source(self, batch: Batch) -> None:
        """Publish what a source read, now that all before it has been evaluated."""
        # The one source that goes through the past before the present.
        if batch.source == KERNEL_LOG:
            read = batch.caught_up or batch.state is not SourceState.OK
            self._caught_up = self._caught_up or read
        self.node_state.replace_readings(batch.source, batch.readings)
        if batch.devices is not None:
            self.node_state.devices.replace_devices(batch.source, batch.devices)
        self.node_state.update_source(
            batch.source,
            batch.state,
            batch.detail,
            caught_up=batch.caught_up,
            simulated=batch.simulated,
        )


def make_source_component(name: str) -> Component:
    """The part of the node that a source watches, for findings about the source itself."""
    return Component(ComponentKind.NODE, name)


class FindingActions:
    """Queues the actions. Each returns the finding once the action is stored and published; None
    if it is not open.
    """

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue

    async def clear_finding(
        self, finding: int, by: str, audit: AuditRecord, *, replaced: bool = False
    ) -> Finding | None:
        """Close a finding; `replaced`: because its device was replaced."""
        return await self._queue_action(CLEARED, finding, by, audit, replaced=replaced)

    async def begin_remedy(self, finding: int, by: str, audit: AuditRecord) -> Finding | None:
        """Record that an operator begins the required action of a finding."""
        return await self._queue_action(REMEDY_BEGUN, finding, by, audit)

    async def accept_finding(
        self, finding: int, by: str, audit: AuditRecord, seconds: float
    ) -> Finding | None:
        """Accept a finding for so many seconds; 0 ends that."""
        until = audit.time + seconds if seconds else 0.0
        return await self._queue_action(ACCEPTED, finding, by, audit, fields={"until": until})

    async def _queue_action(
        self,
        code: str,
        finding: int,
        by: str,
        audit: AuditRecord,
        *,
        replaced: bool = False,
        fields: Fields | None = None,
    ) -> Finding | None:
        action = OperatorAction(
            code=code, finding=finding, by=by, audit=audit, replaced=replaced, fields=fields or {}
        )
        item = ActionItem(action)
        self._queue.add_item(item)
        return await item.done


def log_transitions(
    transitions: Sequence[Transition], now: float, describe: DescribeComponent
) -> None:
    """One line for each decision; none where only counts changed. One that is about earlier than
    `now`, such as a fault before the start, says when that was. `describe`: as for a verdict.
    """
    for transition in transitions:
        if not transition.cause:
            continue
        finding = transition.finding
        emit = log.info
        if finding.is_open:
            emit = log.error if compute_status([finding]) is Status.UNHEALTHY else log.warning
        change = _name_change(transition)
        late = now - transition.time > _LATE_S
        at = format_rfc3339(transition.time, "seconds") if late else ""
        emit(
            f"finding_{change}",
            message=f"finding #{finding.id} {change}: {_describe_transition(transition, describe)}"
            + (f" (at {at})" if late else ""),
            id=finding.id,
            component=finding.component.name,
            code=finding.code,
            action=finding.action.value,
            cause=transition.cause,
            raw=finding.raw,
            simulated=finding.is_simulated,
            **({"at": at} if late else {}),
            **({} if finding.is_open else {"level": "notice"}),
        )


def _name_change(transition: Transition) -> str:
    if transition.opened:
        return "opened"
    return "changed" if transition.finding.is_open else "cleared"


def _describe_transition(transition: Transition, describe: DescribeComponent) -> str:
    """`gpu/0000:65:00.0 (GPU 3): GPU has fallen off the bus (xid/79): reboot the node: NVRM ...`"""
    finding = transition.finding
    mark = "SIMULATED: " if finding.is_simulated else ""
    text = f"{mark}{describe(finding)}: {finding.title} ({finding.code})"
    if not finding.is_open:
        return f"{text}: {transition.cause}"
    doubt = _describe_doubt(finding) if finding.action.makes_unfit else ""
    why = finding.raw if transition.opened else transition.cause
    return f"{text}: {finding.instruction}{doubt}: {why}"


def _describe_doubt(finding: Finding) -> str:
    if finding.is_confirmed:
        return ""
    return " (unconfirmed, written by a process)" if finding.is_hearsay else " (unconfirmed)"
