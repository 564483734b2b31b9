"""
Diagnostics: who runs what, and when; one run at a time on a node.

    schedule, findings, a person  ──►  what waits  ──►  the gate  ──►  a check  ──►  events, and the run with what was printed

Owns     what was asked for and waits, the run under way, that it makes room for work, and what earlier runs found.
Refuses  knowing programs (the checks do), judging, and who may ask.

To the rest of the daemon it is a source: its batches carry the runs and their events, its position what must be found twice.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from agent.catalog import Catalog
from agent.config import Config
from agent.diagnostics import events, ladder, summary
from agent.diagnostics.check import Catalogued, Check, Command, Ended, Output
from agent.diagnostics.idle import Gate, Use
from agent.diagnostics.node import PAST, Node
from agent.diagnostics.process import Programs, leftovers
from agent.diagnostics.report import Ask, Due, Going, Outcome, Refusal, Remedy, Report, Run, Stage
from agent.diagnostics.schedule import SCHEDULE, Moment, Plan, Schedule
from agent.diagnostics.summary import DeepLog
from agent.lane import Lane, LaneStuck
from agent.model import NODE, SourceState
from agent.sources.facts import Facts, plain
from agent.sources.source import Batch, Position

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")

NAME = "diagnostics"
_TICK_S = 10.0  # between looks at what is due and what findings ask for
_WAITING_S = 5.0  # the same while something waits for idle devices
_WATCH_S = 0.5  # between looks whether work has come, while a run has the devices
_ROOM_S = 1.0  # a program that must make room has so long to end by itself
_GATE_S = 5.0  # for one look at who uses the devices
_GONE_S = 1.8  # how long a job that begins waits for the devices
_RAW_BYTES = 2 * 1024 * 1024  # of what a run printed, so much is kept
_ASKED_MOST = 16
_LATELY = 4


@dataclass(slots=True)
class _Current:
    """The run under way."""

    task: asyncio.Task[Run]
    check: Check
    stopped: str = ""  # why it was told to end
    room_for: str = ""  # the work that it makes room for
    printed: str = ""
    command: str = ""
    exit_code: int | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)  # nothing of it runs any more


class Diagnostics:
    """The owner of all runs. Everything but the checks' programs runs on the loop."""

    name = NAME
    deadline_s = 9 * _TICK_S

    def __init__(
        self,
        config: Config,
        checks: Mapping[str, Check],
        *,
        catalog: Catalog,
        boot_id: str,
        node: Node,
        gate: Gate,
        schedule: Schedule,
        programs: Programs,
        lane: Lane,
        deep_log: DeepLog | None = None,
        count: Callable[[Run], None],
        stored: Callable[[], Awaitable[None]],
    ) -> None:
        """`count` is told of each run that has ended; `stored` returns once all that was handed in is in the ledger, and shown."""
        self.checks = checks
        self.blocked = ""
        self._settings = config.diagnostics
        self._most = config.dcgm.most
        self._procfs = config.paths.procfs
        self._boot_id = boot_id
        self._node = node
        self._gate = gate
        self._schedule = schedule
        self._programs = programs
        self._lane = lane
        self._deep_log = deep_log
        self._count = count
        self._stored = stored
        self._facts = Facts(NAME, boot_id)
        self._seen = events.Seen()
        self._missing: dict[str, str] = {}
        self._waiting: list[Going] = []
        self._running: Going | None = None
        self._current: _Current | None = None
        self._coming: set[str] = set()  # jobs that began, and may not be on the board yet
        self._wake = asyncio.Event()
        self._waited: dict[str, asyncio.Future[Run]] = {}
        self._runs_ended: deque[Run] = deque()
        self._lately: deque[Run] = deque(maxlen=_LATELY)
        self._past: dict[tuple[str, int], deque[Run]] = {}  # the last runs of each check and level, without what was printed
        self._began = time.monotonic()
        self._serial = 0
        self._noted = ""
        self.configure(catalog)

    def configure(self, catalog: Catalog) -> None:
        """What codes mean: at the start, and when the catalogue was reloaded."""
        self._catalog = catalog
        for check in self.checks.values():
            if isinstance(check, Catalogued):
                check.use(catalog)

    # --- what is shown

    @property
    def going(self) -> tuple[Going, ...]:
        """What was asked for and has not ended: the one that runs first."""
        return (*((self._running,) if self._running is not None else ()), *self._waiting)

    @property
    def last(self) -> dict[tuple[str, int], Run]:
        """The last run of each check and level."""
        return {key: runs[-1] for key, runs in self._past.items()}

    @property
    def due(self) -> tuple[Due, ...]:
        """When the schedule runs what next."""
        if not self._settings.enabled:
            return ()
        moment = self._moment()
        waits = {(one.ask.check, one.ask.level): one.waits_for for one in self._waiting}
        return tuple(
            Due(check=name, level=level, at=self._due(name, level, moment), waits_for=waits.get((name, level), ""))
            for name, level in self._scheduled()
        )

    def _scheduled(self) -> list[tuple[str, int]]:
        return [
            (name, level)
            for name, check in self.checks.items()
            for level in check.levels
            if check.every_s(level) > 0.0 and not self._missing.get(name, "not looked for yet")
        ]

    def _due(self, name: str, level: int, moment: Moment) -> float:
        check = self.checks[name]
        plan = Plan(check=name, level=level, every_s=check.every_s(level), needs_idle=check.needs_idle(level))
        return self._schedule.due(plan, (run for runs in self._past.values() for run in runs), moment)

    def _moment(self) -> Moment:
        up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        return Moment(now=time.time(), up_s=up_s, running_s=time.monotonic() - self._began)

    # --- what others ask for (on the loop)

    def ask(self, ask: Ask) -> Going:
        """Have something run. Raises Refusal."""
        check = self.checks.get(ask.check)
        if check is None:
            raise Refusal(f"there is no check {ask.check!r}", f"there are {', '.join(self.checks)}")
        if ask.level not in check.levels:
            raise Refusal(f"{ask.check} has no level {ask.level}", f"levels: {', '.join(map(str, check.levels))}")
        if missing := self._missing.get(ask.check, ""):
            raise Refusal(f"{ask.check} cannot run here: {missing}", "vitald diag list shows what can")
        if released := self._node.released():
            raise Refusal(f"the devices are released: {released}", "vitald release --end takes them back")
        same = next((one for one in self.going if (one.ask.check, one.ask.level) == (ask.check, ask.level)), None)
        if same is not None and (same.stage is not Stage.WAITING or same.ask.by != SCHEDULE):
            raise Refusal(f"{ask.words} is {same.stage.value} already, asked by {same.ask.by}", f"its id is {same.id}: vitald diag list")
        if same is not None:
            self._waiting.remove(same)
        elif len(self._waiting) >= _ASKED_MOST:
            raise Refusal("too many runs wait already", "vitald diag list shows them")
        return self._enqueue(ask, first=True)

    def cancel(self, run_id: str | None, by: str, reason: str) -> Going | None:
        """End a run, or forget one that waits; the one that runs where `run_id` is None. None where there is no such run."""
        said = f"cancelled by {by}: {reason}"
        if self._running is not None and run_id in (None, self._running.id):
            self._stop(said)
            return self._running
        for one in self._waiting:
            if one.id == run_id:
                self._waiting.remove(one)
                self._finish(self._nothing(one, Report(outcome=Outcome.INCONCLUSIVE, reason=said)))
                return one
        return None

    async def ended(self, run_id: str) -> Run:
        """A run, once it has ended and is stored. Raises KeyError for one that is not going."""
        return await asyncio.shield(self._waited[run_id])

    def lately(self, run_id: str) -> Run | None:
        """One of the last runs, with what was printed: the ledger may not have it yet, or be out of reach."""
        return next((run for run in self._lately if run.id == run_id), None)

    async def job_begins(self, job: str) -> None:
        """Work begins: what would hurt it makes room. Returns when the devices are free, or after a time."""
        self._coming.add(job)
        self._make_room(f"job {job}")
        if self._current is not None and self._current.room_for:
            await self._over(self._current)

    def job_ends(self, job: str) -> None:
        self._coming.discard(job)
        self._wake.set()

    async def let_go(self) -> None:
        """The devices are about to be released: nothing of ours may hold them."""
        if self._running is not None and self._current is not None:
            self._stop("the devices were released", room_for="a release of the devices")
            await self._over(self._current)

    async def _over(self, current: _Current) -> None:
        """Nothing of a run is left, or the time for that is up."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(current.over.wait(), _GONE_S)

    # --- as a source

    async def batches(self, after: Position | None) -> AsyncIterator[Batch]:
        """Until cancelled."""
        await self._recall(after)
        try:
            while True:
                self._wake.clear()
                await self._plan()
                while self._runs_ended:
                    yield self._batch(self._runs_ended[0])
                    await self._stored()
                    self._settle(self._runs_ended.popleft())
                yield self._batch()
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), _WAITING_S if self._waiting else _TICK_S)
        finally:
            await self._close()

    async def _recall(self, after: Position | None) -> None:
        if after is not None:
            try:
                self._seen = events.Seen.recall(json.loads(after.cursor))
            except (TypeError, ValueError, AttributeError) as error:
                log.error("memory_not_read", source=NAME, error=str(error), effect="what must be found twice begins anew")
        try:
            for run in await self._lane.call(self._node.runs):
                self._remember(run)
        except Exception as error:  # whatever is wrong with what is remembered, diagnostics go on
            log.error("runs_not_read", error=str(error), effect="the schedule begins anew")

    def _remember(self, run: Run) -> None:
        self._past.setdefault((run.ask.check, run.ask.level), deque(maxlen=PAST)).append(run)

    async def _close(self) -> None:
        if self._current is not None:
            self._current.task.cancel()
            await asyncio.wait([self._current.task], timeout=1.5)
        self._current = self._running = None

    def _batch(self, run: Run | None = None) -> Batch:
        made = (
            events.events_of(run, self._facts, self._catalog, self._node.gpu, self._seen, self._node.findings()) if run is not None else []
        )
        memory = json.dumps(self._seen.memory, sort_keys=True)
        position = Position(NAME, self._boot_id, memory) if made or memory != self._noted else None
        self._noted = memory
        missing = {check: f"{self.checks[check].title}: {reason}" for check, reason in self._missing.items() if reason}
        absent = len(missing) == len(self.checks)
        return Batch(
            NAME,
            tuple(made),
            position,
            caught_up=True,
            state=SourceState.ABSENT if absent else SourceState.OK,
            detail="no program for it" if absent else "",
            readings=(plain(NODE, {check: 1.0 for check in self.checks if check not in missing}, missing=missing),),
            runs=(run,) if run is not None else (),
        )

    # --- what is to run

    async def _plan(self) -> None:
        """Put in line what is due and what findings ask for, and start the first that may."""
        moment = self._moment()
        try:
            missing = await self._lane.call(lambda: {name: check.missing() for name, check in self.checks.items()})
        except LaneStuck as error:
            log.warning("programs_not_looked_for", error=str(error))
            return
        for name, reason in missing.items():  # once: what is shown stays in vitald components
            if reason != self._missing.get(name, "") and any(self.checks[name].every_s(level) for level in self.checks[name].levels):
                log.info("diagnostic_cannot_run" if reason else "diagnostic_can_run", check=name, reason=reason)
        self._missing = missing
        if self._settings.enabled:
            # The higher level first: what it passes, the lower one would only repeat.
            for name, level in sorted(self._scheduled(), key=lambda one: -one[1]):
                if self._due(name, level, moment) <= moment.now:
                    self._want(Ask(check=name, level=level, by=SCHEDULE))
            for ask in ladder.asked(self._node.findings(), self._node.clears, self.last, self._most, moment.now):
                if not self._missing.get(ask.check, "no such check"):
                    self._want(ask)
        if self._current is None and self._waiting:
            await self._start_next()
        elif not self._waiting:
            self.blocked = ""

    def _want(self, ask: Ask) -> None:
        """Unless it, or more of it, is in line already."""
        if not any(one.ask.check == ask.check and one.ask.level >= ask.level and not one.ask.gpus for one in self.going):
            self._enqueue(ask, first=False)

    def _enqueue(self, ask: Ask, *, first: bool) -> Going:
        self._serial += 1
        now = time.time()
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now))
        going = Going(
            id=f"{stamp}-{self._serial}-{ask.check}{f'-{ask.level}' if ask.level else ''}",
            ask=ask,
            asked_at=now,
            expected_s=self._expected(ask),
        )
        self._waiting.insert(0 if first else len(self._waiting), going)
        self._waited[going.id] = asyncio.get_running_loop().create_future()
        self._wake.set()
        log.info("diagnostic_asked", id=going.id, check=ask.check, run_level=ask.level, by=ask.by, reason=ask.reason)
        return going

    def _expected(self, ask: Ask) -> float:
        """As long as the last one that ran to its end, else as the check says."""
        last = self.last.get((ask.check, ask.level))
        if last is not None and last.report.outcome in (Outcome.PASS, Outcome.FAIL, Outcome.CONFIG):
            return last.ended - last.began
        return self.checks[ask.check].expected_s(ask.level)

    async def _start_next(self) -> None:
        in_the_way = await self._in_the_way()
        idle_s, uses = 0.0, tuple[Use, ...]()
        if any(self._must_wait(one.ask) for one in self._waiting):
            idle_s, uses = await self._idle()
        self.blocked = in_the_way or (", ".join(use.words for use in uses[:3]))
        waiting: list[Going] = []
        for one in self._waiting:
            waits_for = in_the_way
            if not waits_for and self._must_wait(one.ask):
                needed = self._settings.idle_s if one.ask.by == SCHEDULE or one.ask.by.startswith("finding") else 0.0
                if uses:
                    waits_for = f"idle devices: {', '.join(use.words for use in uses[:3])}"
                elif idle_s < needed:
                    waits_for = f"devices idle for {needed:.0f} s: {idle_s:.0f} s so far"
            waiting.append(replace(one, waits_for=waits_for))
        self._waiting = waiting
        ready = next((one for one in waiting if not one.waits_for), None)
        if ready is not None and self._current is None:
            self._waiting.remove(ready)
            self._start(ready)

    def _must_wait(self, ask: Ask) -> bool:
        return self.checks[ask.check].needs_idle(ask.level) and not ask.busy

    async def _in_the_way(self) -> str:
        """What keeps any run from starting."""
        if released := self._node.released():
            return f"the end of the release: {released}"
        try:
            left = await self._lane.call(partial(leftovers, self._procfs))
        except LaneStuck as error:
            return f"a look at the processes: {error}"
        return f"the end of an earlier diagnostic: {', '.join(left[:3])}" if left else ""

    async def _idle(self) -> tuple[float, tuple[Use, ...]]:
        """For how long the devices have been idle, and who uses them."""
        uses = await self._look(self._node.compute(), self._node.memory())
        return self._gate.idle_for(time.monotonic()), uses

    async def _look(self, compute: Mapping[str, Sequence[float]] | None, memory: Mapping[str, float] | None) -> tuple[Use, ...]:
        gate, running = self._gate, self._node.jobs()
        self._coming -= running
        gate.compute, gate.memory, gate.released, gate.announced = compute, memory, self._node.released(), (*running, *self._coming)
        try:
            return await self._lane.call(self._gate.look, _GATE_S)
        except LaneStuck as error:
            return (self._gate.unknown(str(error)),)

    # --- the run under way

    def _start(self, going: Going) -> None:
        check = self.checks[going.ask.check]
        self._running = replace(going, stage=Stage.RUNNING, began=time.time(), waits_for="")
        task = asyncio.create_task(self._run(self._running, check), name=f"diagnostic {going.id}")
        self._current = _Current(task, check)
        log.info("diagnostic_began", id=going.id, check=going.ask.check, run_level=going.ask.level, by=going.ask.by)

    async def _run(self, going: Going, check: Check) -> Run:
        began = time.time()
        watch = asyncio.create_task(self._watch_for_work()) if self._must_wait(going.ask) else None
        try:
            report = await check.perform(going.ask, self._execute)
        except Exception as error:  # a fault of ours must not end diagnostics; what was printed is kept
            log.exception("diagnostic_not_read", id=going.id)
            report = Report(outcome=Outcome.ERROR, reason=f"{type(error).__name__}: {error}", remedy=Remedy.INVESTIGATE)
        finally:
            if watch is not None:
                watch.cancel()
        assert self._current is not None
        current = self._current
        if current.stopped:
            # What a program says when it is ended says nothing of the hardware. Who cancels does not want it back at once.
            remedy = Remedy.RETRY if current.room_for else Remedy.NONE
            report = Report(outcome=Outcome.INCONCLUSIVE, reason=current.stopped, remedy=remedy)
        run = Run(
            id=going.id,
            ask=going.ask,
            began=began,
            ended=time.time(),
            report=report,
            exit_code=current.exit_code,
            command=current.command,
            preempted=current.room_for,
            raw=current.printed,
        )
        self._finish(run)
        return run

    async def _execute(self, command: Command) -> Output:
        """Run a program of the check under way, and keep what it printed."""
        current = self._current
        assert current is not None
        if current.stopped:
            return Output(ended=Ended.CANCELLED, why=current.stopped)
        output = await self._programs.execute(command)
        current.command = " ".join(command.argv)
        current.exit_code = output.exit_code
        parts = [f"$ {current.command}\n", output.stdout, f"\n[stderr]\n{output.stderr}" if output.stderr else ""]
        ending = f"\n[{output.ended.value}: {output.why}]\n" if output.why else f"\n[exit {output.exit_code}]\n"
        current.printed = (current.printed + "".join(parts) + ending)[:_RAW_BYTES]
        return output

    async def _watch_for_work(self) -> None:
        """While a run has the devices: whoever comes gets them."""
        while True:
            await asyncio.sleep(_WATCH_S)
            uses = await self._look(None, None)  # what the driver says of them is our own run's work
            if uses:
                self._make_room(uses[0].words)
                return

    def _make_room(self, work: str) -> None:
        running, current = self._running, self._current
        if running is not None and current is not None and self._must_wait(running.ask):
            self._stop(f"it made room for {work}", room_for=work)

    def _stop(self, why: str, *, room_for: str = "") -> None:
        """Have the run under way end: at once where it makes room, else as its program needs."""
        current = self._current
        assert current is not None and self._running is not None
        if not current.stopped or (room_for and not current.room_for):
            current.stopped, current.room_for = why, room_for
            self._running = replace(self._running, stage=Stage.ENDING)
            log.info("diagnostic_ending", id=self._running.id, reason=why)
        self._programs.cancel(why, _ROOM_S if room_for else None)

    def _nothing(self, going: Going, report: Report) -> Run:
        now = time.time()
        return Run(id=going.id, ask=going.ask, began=now, ended=now, report=report)

    def _finish(self, run: Run) -> None:
        """It has ended. It is shown as ending until it is stored."""
        self._runs_ended.append(run)
        self._lately.append(run)
        if self._current is not None and self._running is not None and self._running.id == run.id:
            self._current.over.set()
            self._running = replace(self._running, stage=Stage.ENDING)
        self._count(run)
        if run.command:  # one that was taken out of the line is no run of the schedule's
            self._remember(replace(run, raw=""))
        say = log.info if run.report.outcome is Outcome.PASS else log.warning
        say(
            "diagnostic_ended",
            id=run.id,
            outcome=run.report.outcome.value,
            action=run.report.remedy.value,
            reason=run.report.reason,
            seconds=round(run.ended - run.began, 1),
        )
        if said := summary.line(run):
            log.info(said)
        if self._deep_log is not None and run.command:
            self._lane.post(partial(self._deep_log.add, run))
        self._wake.set()

    def _settle(self, run: Run) -> None:
        """It is stored, and what it found is shown: the next one may begin."""
        if self._running is not None and self._running.id == run.id:
            self._running = self._current = None
        waited = self._waited.pop(run.id, None)
        if waited is not None and not waited.done():
            waited.set_result(run)
        self._wake.set()
