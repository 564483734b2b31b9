"""
Diagnostics as an event source: hands each run and its events to the pipeline, and remembers from
one run to the next what that needs.

A run that is owed for a day is a state of the node, with a finding for each check and level:
`diagnostic/overdue` only reports it, `diagnostic/held` makes the node unfit for work until the run
has ended. Which of the two is a setting.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import anyio
import structlog

from vitald.catalog import Catalog
from vitald.collectors.event_factory import EventFactory, derive_readings
from vitald.diagnostics import run_events
from vitald.diagnostics.active_run import RunDispatcher, Runner
from vitald.diagnostics.check_set import CheckSet
from vitald.diagnostics.node_view import NodeView
from vitald.diagnostics.planner import RunPlanner
from vitald.diagnostics.queue import BegunRun, OwedRuns, is_overdue, read_begun
from vitald.diagnostics.results import PendingResult, ResultRecorder
from vitald.diagnostics.run_events import name_component
from vitald.model.component import NODE, Component
from vitald.model.diagnostic import ActiveRun, Run
from vitald.model.event import Event, Fields
from vitald.model.source import Batch, Position, SourceState

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")

NAME = "diagnostics"
_PERIOD_S = 10.0  # between checks for what is due and what findings require
_QUEUED_PERIOD_S = 5.0  # the same while a run waits for idle devices
_MAX_STORE_S = 1.0  # how long a client, or a run that begins, waits for the ledger
OVERDUE, HELD = "diagnostic/overdue", "diagnostic/held"


class DiagnosticSource:
    """The main loop of diagnostics. `stored` returns once all batches that were handed in are in
    the ledger and shown.
    """

    name = NAME
    deadline_s = 9 * _PERIOD_S

    def __init__(
        self,
        boot_id: str,
        checks: CheckSet,
        planner: RunPlanner,
        dispatcher: RunDispatcher,
        runner: Runner,
        owed: OwedRuns,
        overdue: OverdueRuns,
        results: ResultRecorder,
        interpreter: RunInterpreter,
        *,
        changed: asyncio.Event,
        stored: Callable[[], Awaitable[None]],
    ) -> None:
        """`changed` is set when there is something to do before the next period."""
        self._boot_id = boot_id
        self._checks = checks
        self._planner = planner
        self._dispatcher = dispatcher
        self._runner = runner
        self._owed = owed
        self._overdue = overdue
        self._results = results
        self._interpreter = interpreter
        self._changed = changed
        self._stored = stored
        self._recalled = False
        self._last_memory = ""
        self._handed_in: list[asyncio.Future[None]] = []  # of the callers of `store_memory`

    async def read_batches(self, after: Position | None) -> AsyncIterator[Batch]:
        """Until cancelled. May be called again after a fault: the active run goes on meanwhile."""
        if not self._recalled:
            self._recalled = True
            if after is not None:
                self._recall_memory(after)
        try:
            while True:
                self._changed.clear()
                while self._results.pending:
                    result = self._results.pending[0]
                    batch = result.batch or self._make_result_batch(result)
                    result.batch = replace(batch, again=True)
                    yield batch
                    await self._stored()
                    self._results.pending.popleft()
                    self._runner.forget_run(result.run)
                    self._changed.set()
                if ended := self._interpreter.end_removed(self._checks.by_name):
                    yield self._make_batch(ended)
                    await self._stored()
                if self._handed_in:
                    waiting, self._handed_in = self._handed_in, []
                    yield self._make_batch(durable=True)
                    for caller in waiting:
                        if not caller.done():  # it may have given up
                            caller.set_result(None)
                await self._planner.plan_runs()
                await self._dispatcher.start_next_run()
                observed = self._overdue.observe()
                yield replace(
                    self._make_batch(observed.events), holding=observed.holding, calm=observed.calm
                )
                # asyncio.wait_for may lose the cancellation at the daemon's stop.
                with anyio.move_on_after(self._get_period_s()):
                    await self._changed.wait()
        except (asyncio.CancelledError, GeneratorExit):
            await self._runner.shut_down()
            raise

    async def store_memory(self) -> None:
        """Returns once the ledger has what is owed and what has begun, or after a time limit."""
        handed_in = asyncio.get_running_loop().create_future()
        self._handed_in.append(handed_in)
        self._changed.set()
        with anyio.move_on_after(_MAX_STORE_S) as limit:
            await handed_in
            await self._stored()
        if limit.cancelled_caught:
            effect = "requests, and the run that begins, leave no record if vitald is killed now"
            log.warning("diagnostics_not_stored", effect=effect)

    def take_pending_batches(self) -> list[Batch]:
        """Runs that ended and were not handed in yet: for the daemon's stop, when the source is not
        read any more.
        """
        return [
            self._make_result_batch(result)
            for result in self._results.pending
            if result.batch is None
        ]

    def _get_period_s(self) -> float:
        return _QUEUED_PERIOD_S if self._dispatcher.has_queued_runs else _PERIOD_S

    def _recall_memory(self, position: Position) -> None:
        try:
            memory = json.loads(position.cursor)
            self._interpreter.recall_memory(memory)
            self._owed.recall_memory(memory.get("owed", ()))
            begun = read_begun(memory["begun"]) if memory.get("begun") is not None else None
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            log.error(
                "memory_not_read",
                source=NAME,
                error=str(error),
                effect="what must be found twice begins anew, and no requested run is repeated",
            )
            return
        if begun is not None:
            self._record_interrupted(begun, rebooted=position.boot_id != self._boot_id)

    def _record_interrupted(self, begun: BegunRun, *, rebooted: bool) -> None:
        """A run in the middle of which the daemon ended. Where it brought the node down, it is not
        repeated without limit.
        """
        run = begun.make_interrupted_run(time.time(), rebooted=rebooted)
        self._results.record_run(run, cut=not rebooted)

    def _make_result_batch(self, result: PendingResult) -> Batch:
        self._owed.take_result(result.run, cut=result.cut)
        events = self._interpreter.make_events(result.run, cut=result.cut)
        # Stored only where it changes something: the ledger keeps what was wrong for longer.
        if not result.is_news and len(events) == 1:
            return self._make_batch(durable=True)  # it has ended
        return self._make_batch(events, (result.run,))

    def _make_batch(
        self, events: Sequence[Event] = (), runs: tuple[Run, ...] = (), *, durable: bool = False
    ) -> Batch:
        begun = self._runner.begun
        kept = {
            **self._interpreter.memory,
            "owed": self._owed.memory,
            "begun": begun.memory if begun is not None else None,
        }
        memory = json.dumps(kept, sort_keys=True)
        position = None
        if events or durable or memory != self._last_memory:
            position = Position(NAME, self._boot_id, memory)
        self._last_memory = memory
        unavailable = {
            check: f"{self._checks.by_name[check].title}: {reason}"
            for check, reason in self._checks.unavailable.items()
            if reason
        }
        absent = len(unavailable) == len(self._checks.by_name)
        hints = (self._planner.describe_stopped_checks(), self._planner.describe_manual_runs())
        detail = "no program for it" if absent else "; ".join(filter(None, hints))
        available = {check: 1.0 for check in self._checks.by_name if check not in unavailable}
        return Batch(
            NAME,
            tuple(events),
            position,
            caught_up=True,
            state=SourceState.ABSENT if absent else SourceState.OK,
            detail=detail,
            readings=(derive_readings(NODE, available, missing=unavailable),),
            durable=durable,
            runs=runs,
        )


class RunInterpreter:
    """Turns runs into events. A fault of ours is reported as an event: it must not hold up the
    runs after it.
    """

    def __init__(self, source: str, boot_id: str, node: NodeView, catalog: Catalog) -> None:
        self.catalog = catalog
        self._source = source
        self._facts = EventFactory(source, boot_id)
        self._node = node
        self._seen = run_events.RunMemory()

    @property
    def memory(self) -> Mapping[str, object]:
        """What must be kept across restarts, for JSON."""
        return self._seen.memory

    def recall_memory(self, memory: Mapping[str, object]) -> None:
        """Restores `memory`. Raises TypeError, ValueError, AttributeError."""
        self._seen = run_events.RunMemory.from_memory(memory)

    def confirm_faults(self, run: Run) -> Run:
        """The run with its faults marked that an earlier run had found."""
        try:
            return run_events.mark_confirmed(run, self._node, self._seen)
        except Exception:  # without confirmation no reboot or replacement is required
            log.exception("diagnostic_not_confirmed", id=run.id)
            report = replace(run.report, reboot_required=False, replacement_required=False)
            return replace(run, report=report)

    def end_removed(self, checks: Collection[str]) -> list[Event]:
        """Events that end the findings of checks that are not configured any more."""
        return run_events.make_removed_events(checks, self._facts, self._node.list_findings())

    def make_events(self, run: Run, *, cut: bool) -> list[Event]:
        """The events of a run. `cut`: it was stopped."""
        before = self._seen.memory
        try:
            return run_events.make_events(
                run,
                self._facts,
                self.catalog,
                self._node,
                self._seen,
                self._node.list_findings(),
                cut=cut,
            )
        except Exception as error:
            log.exception("diagnostic_not_judged", id=run.id)
            self._seen = run_events.RunMemory.from_memory(before)
            text = (
                f"{type(error).__name__} while telling what {run.id} found: vitald diag show"
                f" {run.id}"
            )
            return [
                run_events.make_run_event(run, self._facts),
                self._facts.make_event("vitald/not_judged", NODE, {}, text),
            ]


@dataclass(frozen=True, slots=True)
class Observation:
    """What a batch reports: what is overdue for the first time, what still is, and what is not."""

    events: tuple[Event, ...] = ()
    holding: tuple[Event, ...] = ()
    calm: frozenset[tuple[Component, str]] = frozenset()


class OverdueRuns:
    """Compares the runs without a verdict with the open findings."""

    def __init__(
        self, owed: OwedRuns, dispatcher: RunDispatcher, node: NodeView, facts: EventFactory
    ) -> None:
        self._owed = owed
        self._dispatcher = dispatcher
        self._node = node
        self._facts = facts
        self._reported: set[tuple[Component, str]] = set()

    def observe(self) -> Observation:
        """Runs of some GPUs and those beside other work test less than a check does: they are left
        out.
        """
        now, code = time.time(), HELD if self._owed.holds_node else OVERDUE
        overdue = {
            (name_component(run.request), code): run
            for run in self._dispatcher.requested
            if is_overdue(run.requested_at, now) and not (run.request.gpus or run.request.busy)
        }
        standing = {
            (finding.component, finding.code)
            for finding in self._node.list_findings()
            if finding.code in (OVERDUE, HELD) and not finding.is_simulated
        }
        new = overdue.keys() - standing - self._reported
        self._reported = {*overdue}
        observed = {key: self._make_event(*key, run) for key, run in overdue.items()}
        return Observation(
            events=tuple(event for key, event in observed.items() if key in new),
            holding=tuple(event for key, event in observed.items() if key not in new),
            calm=frozenset(standing - overdue.keys()),
        )

    def _make_event(self, where: Component, code: str, run: ActiveRun) -> Event:
        since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run.requested_at))
        waits = f": waits for {run.waits_for}" if run.waits_for else ""
        why = run.request.reason or run.request.by
        text = f"{run.request.label} is owed since {since} ({why}){waits}"
        fields: Fields = {"level": run.request.level, "check": run.request.check}
        return self._facts.make_event(code, where, fields, text)
