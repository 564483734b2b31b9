"""
Diagnostics: who runs what, and when; one run at a time on a node.

    schedule, findings, a person  ──►  what waits  ──►  idle devices  ──►  a check  ──►  events, and
    the run with what was printed

Owns     what was asked for and waits, the run under way, that it makes room for work, and what
         earlier runs found.
Refuses  knowing programs (the checks do), judging, and who may ask.

To the rest of the daemon it is a source: its batches carry the runs and their events, its position
what must be found twice.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial

import anyio
import structlog

from vitald.catalog import Catalog
from vitald.collectors.event_factory import EventFactory, derive_readings
from vitald.config import Config
from vitald.diagnostics import events, retries, summary
from vitald.diagnostics.check import Catalogued, Check, Command, Ended, Output
from vitald.diagnostics.idle import IdleContext, IdleDetector, Use
from vitald.diagnostics.node import PAST, Node
from vitald.diagnostics.process import Programs, leftovers
from vitald.diagnostics.schedule import SCHEDULE, Moment, Plan, Schedule
from vitald.diagnostics.summary import DeepLog
from vitald.model import NODE, Batch, Event, Position, SourceState
from vitald.model.diagnostic import Ask, Due, Going, Outcome, Refusal, Remedy, Report, Run, Stage
from vitald.worker_thread import Lane, LaneStuck

log: structlog.stdlib.BoundLogger = structlog.get_logger("diagnostics")

NAME = "diagnostics"
_TICK_S = 10.0  # between looks at what is due and what findings ask for
_WAITING_S = 5.0  # the same while something waits for idle devices
_WATCH_S = 0.5  # between looks whether work has come, while a run has the devices
_ROOM_S = 1.0  # a program that must make room has so long to end by itself
_DRIVER_S = 2.0  # the driver says within that who computes, or nobody knows
_DRIVER_EVERY_S = 1.0  # between such questions while a run has the devices
_LOOK_S = 5.0  # for one look at who uses the devices
_GONE_S = 1.8  # how long a job that begins waits for the devices
_COMING_S = 60.0  # by then a job that began is on the board
_LETTING_GO_S = 12.0  # by then a release that was asked for has begun, or has failed
_END_S = 1.5  # for the run under way, when the daemon stops
_STOPPED = "vitald was stopped"
_BY_FINDING = "finding #"
_RAW_BYTES = 2 * 1024 * 1024  # of what a run printed, so much is kept
_ASKED_MOST = 16
_LATELY = 4
_NAMED = 3


@dataclass(slots=True)
class _Current:
    """The run under way."""

    going: Going
    check: Check
    stopped: str = ""  # why it was told to end
    room_for: str = ""  # the work that it makes room for
    cut: bool = False  # it did not come to its end by itself
    printed: str = ""
    command: str = ""
    exit_code: int | None = None
    task: asyncio.Task[None] | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)  # nothing of it runs any more


@dataclass(slots=True)
class _Ended:
    """A run that is to be told. `batch` once that was tried: it is told again with the same events,
    and never twice.
    """

    run: Run
    cut: bool
    batch: Batch | None = None


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
        detector: IdleDetector,
        schedule: Schedule,
        programs: Programs,
        lane: Lane,
        deep_log: DeepLog | None = None,
        count: Callable[[Run], None],
        stored: Callable[[], Awaitable[None]],
    ) -> None:
        """`count` is told of each run that has ended; `stored` returns once all that was handed in
        is in the ledger, and shown.
        """
        self.checks = checks
        self.missing: Mapping[
            str, str
        ] = {}  # why a check cannot run here, as of the last look; not in it before the first one
        self._settings = config.diagnostics
        self._most = config.dcgm.most
        self._procfs = config.paths.procfs
        self._boot_id = boot_id
        self._node = node
        self._detector = detector
        self._schedule = schedule
        self._programs = programs
        self._lane = lane
        self._looks = Lane(
            "diagnostics-idle"
        )  # one that hangs on a stuck process must not keep the rest from its work
        self._logs = Lane("diagnostics-log")  # nor must a file system that is away
        self._deep_log = deep_log
        self._count = count
        self._stored = stored
        self._facts = EventFactory(NAME, boot_id)
        self._seen = events.Seen()
        self._waiting: list[Going] = []
        self._current: _Current | None = None
        self._coming: dict[
            str, float
        ] = {}  # jobs that began, and may not be on the board yet, with when that was
        self._letting_go = -_LETTING_GO_S
        self._driver_asked = -_DRIVER_EVERY_S
        self._driver_said: Mapping[
            str, Sequence[float]
        ] = {}  # who computes, when it was last asked beside a run
        self._in_use = ""  # what was in the way when that was last looked at
        self._wake = asyncio.Event()
        self._waited: dict[str, asyncio.Future[Run]] = {}
        self._untold: deque[_Ended] = deque()
        self._lately: deque[Run] = deque(maxlen=_LATELY)
        self._past: dict[
            tuple[str, int], deque[Run]
        ] = {}  # the last runs of each check and level, without what was printed
        self._began = time.monotonic()
        self._serial = 0
        self._noted = ""
        self._recalled = self._runs_recalled = False
        self._said: set[str] = set()  # troubles that are told once, until they are over
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
        return (*((self._current.going,) if self._current is not None else ()), *self._waiting)

    @property
    def last(self) -> dict[tuple[str, int], Run]:
        """The last run of each check and level; one that was taken out of the line only where there
        is no other.
        """
        return {
            key: next((run for run in reversed(runs) if not _never_begun(run)), runs[-1])
            for key, runs in self._past.items()
        }

    @property
    def blocked(self) -> str:
        """Why nothing that needs idle devices may run now, as far as is known: who uses them is
        looked for only while something waits.
        """
        return (
            self._held() or ", ".join(f"job {job}" for job in self._announced()[:3]) or self._in_use
        )

    @property
    def due(self) -> tuple[Due, ...]:
        """When the schedule runs what next."""
        if not self._settings.enabled:
            return ()
        moment = self._moment()
        waits = {(one.ask.check, one.ask.level): one.waits_for for one in self._waiting}
        return tuple(
            Due(
                check=name,
                level=level,
                at=self._due(name, level, moment),
                waits_for=waits.get((name, level), ""),
            )
            for name, level in self._scheduled()
        )

    def _scheduled(self) -> list[tuple[str, int]]:
        return [
            (name, level)
            for name, check in self.checks.items()
            for level in check.levels
            if check.every_s(level) > 0.0 and not self.missing.get(name, "not looked for yet")
        ]

    def _due(self, name: str, level: int, moment: Moment) -> float:
        check = self.checks[name]
        plan = Plan(
            check=name,
            level=level,
            every_s=check.every_s(level),
            needs_idle=check.needs_idle(level),
        )
        return self._schedule.due(
            plan, (run for runs in self._past.values() for run in runs), moment
        )

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
            raise Refusal(
                f"{ask.check} has no level {ask.level}",
                f"levels: {', '.join(map(str, check.levels))}",
            )
        if missing := self.missing.get(ask.check, ""):
            raise Refusal(
                f"{ask.check} cannot run here: {missing}", "vitald diag list shows what can"
            )
        if released := self._released():
            raise Refusal(
                f"the devices are released: {released}", "vitald release --end takes them back"
            )
        same = next(
            (one for one in self.going if (one.ask.check, one.ask.level) == (ask.check, ask.level)),
            None,
        )
        if same is not None and (same.stage is not Stage.WAITING or not _by_itself(same.ask)):
            raise Refusal(
                f"{ask.words} is {same.stage.value} already, asked by {same.ask.by}",
                f"its id is {same.id}: vitald diag list",
            )
        if same is not None:
            return self._taken_over(same, ask)
        if len(self._waiting) >= _ASKED_MOST:
            raise Refusal("too many runs wait already", "vitald diag list shows them")
        return self._enqueue(ask, first=True)

    def cancel(self, run_id: str | None, by: str, reason: str) -> Going | None:
        """End a run, or forget one that waits; the one that runs where `run_id` is None. None where
        there is no such run.
        """
        said = f"cancelled by {by}: {reason}"
        current = self._under_way()
        if current is not None and run_id in (None, current.going.id):
            self._stop(current, said)
            return current.going
        for one in self._waiting:
            if one.id == run_id:
                self._drop(one, said)
                return one
        return None

    async def ended(self, run_id: str) -> Run:
        """A run, once it has ended and is stored. Raises KeyError for one that is neither going nor
        one of the last.
        """
        waited = self._waited.get(run_id)
        if waited is not None:
            return await asyncio.shield(waited)
        if (run := self.lately(run_id)) is not None:
            return run
        raise KeyError(run_id)

    def lately(self, run_id: str) -> Run | None:
        """One of the last runs, with what was printed: the ledger may not have it yet, or be out of
        reach.
        """
        return next((run for run in self._lately if run.id == run_id), None)

    async def job_begins(self, job: str) -> None:
        """Work begins: what would hurt it makes room. Returns when the devices are free, or after a
        time.
        """
        self._coming[job] = time.monotonic()
        self._make_room(f"job {job}")
        if self._current is not None and self._current.room_for:
            await self._over(self._current)

    def job_ends(self, job: str) -> None:
        self._coming.pop(job, None)
        self._wake.set()

    async def let_go(self) -> None:
        """The devices are about to be released: nothing of ours may hold them, nor begin until the
        release has.
        """
        self._letting_go = time.monotonic()
        current = self._under_way()
        if current is not None:
            self._stop(current, "the devices were released", room_for="a release of the devices")
            await self._over(current)

    def untold(self) -> list[Batch]:
        """What has ended and was not handed in: for the daemon's end, when nobody reads the source
        any more.
        """
        return [self._batch_of(one) for one in self._untold if one.batch is None]

    def close(self) -> None:
        """For the daemon's end."""
        self._looks.close()
        self._logs.close()

    async def _over(self, current: _Current) -> None:
        """Nothing of a run is left, or the time for that is up."""
        with anyio.move_on_after(_GONE_S):
            await current.over.wait()

    # --- as a source

    async def batches(self, after: Position | None) -> AsyncIterator[Batch]:
        """Until cancelled."""
        if not self._recalled:
            self._recall(after)
        try:
            while True:
                self._wake.clear()
                while self._untold:
                    one = self._untold[0]
                    batch = one.batch or self._batch_of(one)
                    one.batch = replace(batch, again=True)
                    yield batch
                    await self._stored()
                    self._untold.popleft()
                    self._settle(one.run)
                await self._plan()
                yield self._batch()
                with anyio.move_on_after(
                    _WAITING_S if self._waiting else _TICK_S
                ):  # asyncio.wait_for may lose the daemon's stop
                    await self._wake.wait()
        except (
            asyncio.CancelledError,
            GeneratorExit,
        ):  # a fault of ours leaves the run under way alone: this is begun again
            await self._close()
            raise

    def _recall(self, after: Position | None) -> None:
        self._recalled = True
        if after is not None:
            try:
                self._seen = events.Seen.recall(json.loads(after.cursor))
            except (TypeError, ValueError, AttributeError) as error:
                log.error(
                    "memory_not_read",
                    source=NAME,
                    error=str(error),
                    effect="what must be found twice begins anew",
                )

    async def _recall_runs(self) -> None:
        """Until that has succeeded: a ledger may be out of reach for a while."""
        try:
            stored = await self._lane.call(self._node.runs)
        except Exception as error:  # whatever is wrong with what is remembered, diagnostics go on
            self._trouble("runs_not_read", error, "the schedule goes by the runs since the start")
            return
        self._runs_recalled = True
        ours = {run.id for runs in self._past.values() for run in runs}
        since = [run for runs in self._past.values() for run in runs]
        self._past = {}
        for run in sorted(
            [*(run for run in stored if run.id not in ours), *since], key=lambda run: run.ended
        ):
            self._remember(run)

    def _remember(self, run: Run) -> None:
        self._past.setdefault((run.ask.check, run.ask.level), deque(maxlen=PAST)).append(run)

    async def _close(self) -> None:
        """The daemon stops. What was under way, and what a person asked for, is told as ended."""
        current = self._current
        if current is not None and current.task is not None and not current.over.is_set():
            current.stopped = current.stopped or _STOPPED
            current.task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([current.task], timeout=_END_S)
        for one in [one for one in self._waiting if not _by_itself(one.ask)]:
            self._drop(one, f"{_STOPPED} before it began")

    def _trouble(self, event: str, error: BaseException, effect: str) -> None:
        if event not in self._said:
            self._said.add(event)
            log.error(event, error=f"{type(error).__name__}: {error}", effect=effect)

    def _batch_of(self, ended: _Ended) -> Batch:
        """A run with its events. A fault of ours in making them must not hold up what comes after
        it.
        """
        run, before = ended.run, self._seen.memory
        try:
            made = events.events_of(
                run,
                self._facts,
                self._catalog,
                self._node,
                self._seen,
                self._node.findings(),
                cut=ended.cut,
            )
        except Exception as error:
            log.exception("diagnostic_not_judged", id=run.id)
            self._seen = events.Seen.recall(before)
            said = (
                f"{type(error).__name__} while telling what {run.id} found: vitald diag show"
                f" {run.id}"
            )
            made = [
                events.ran(run, self._facts),
                self._facts.event("vitald/not_judged", NODE, {}, said),
            ]
        return self._batch(made, run)

    def _batch(self, made: Sequence[Event] = (), run: Run | None = None) -> Batch:
        memory = json.dumps(self._seen.memory, sort_keys=True)
        position = Position(NAME, self._boot_id, memory) if made or memory != self._noted else None
        self._noted = memory
        missing = {
            check: f"{self.checks[check].title}: {reason}"
            for check, reason in self.missing.items()
            if reason
        }
        absent = len(missing) == len(self.checks)
        return Batch(
            NAME,
            tuple(made),
            position,
            caught_up=True,
            state=SourceState.ABSENT if absent else SourceState.OK,
            detail="no program for it" if absent else self._needs(),
            readings=(
                derive_readings(
                    NODE,
                    {check: 1.0 for check in self.checks if check not in missing},
                    missing=missing,
                ),
            ),
            runs=(run,) if run is not None else (),
        )

    def _needs(self) -> str:
        """What only a person may ask for, in words."""
        if self.missing.get("dcgm", "not looked for yet"):
            return ""
        needs: dict[int, list[int]] = {}
        for finding in self._node.findings():
            if level := retries.beyond(finding, self._node.clears(finding), self._most):
                needs.setdefault(level, []).append(finding.id)
        said = [
            f"{', '.join(f'#{one}' for one in found[:_NAMED])}: vitald diag run {level}"
            for level, found in sorted(needs.items())
        ]
        return f"needs a person: finding {'; '.join(said)}" if said else ""

    # --- what is to run

    async def _plan(self) -> None:
        """Put in line what is due and what findings ask for, and start the first that may."""
        await self._look_for_programs()
        if not self._runs_recalled:
            await self._recall_runs()
        moment = self._moment()
        if self._settings.enabled:
            # The higher level first: what it passes, the lower one would only repeat.
            for name, level in sorted(self._scheduled(), key=lambda one: -one[1]):
                if self._due(name, level, moment) <= moment.now:
                    self._want(Ask(check=name, level=level, by=SCHEDULE))
            opened = self._node.findings()
            self._forget_over({finding.id for finding in opened})
            for ask in retries.asked(opened, self._node.clears, self._past, self._most, moment.now):
                if not self.missing.get(ask.check, "no such check"):
                    self._want(ask)
        if self._current is None and self._waiting:
            await self._start_next()
        if not self._waiting:
            self._in_use = ""

    async def _look_for_programs(self) -> None:
        try:
            missing = await self._lane.call(
                lambda: {name: _missing(check) for name, check in self.checks.items()}
            )
        except LaneStuck as error:
            self._trouble(
                "programs_not_looked_for", error, "what was there before is taken to be there"
            )
            return
        self._said.discard("programs_not_looked_for")
        for name, reason in missing.items():  # once: what is shown stays in vitald components
            if reason != self.missing.get(name, "") and any(
                self.checks[name].every_s(level) for level in self.checks[name].levels
            ):
                log.info(
                    "diagnostic_cannot_run" if reason else "diagnostic_can_run",
                    check=name,
                    reason=reason,
                )
        self.missing = missing

    def _forget_over(self, opened: Set[int]) -> None:
        """What a finding asked for that has ended meanwhile."""
        for one in [one for one in self._waiting if one.ask.by.startswith(_BY_FINDING)]:
            number = one.ask.by.removeprefix(_BY_FINDING)
            if number.isdecimal() and int(number) not in opened:
                self._drop(one, f"finding #{number} is over")

    def _want(self, ask: Ask) -> None:
        """Unless it is in line already, or more of it that need not wait: what waits for idle
        devices may do so for days.
        """
        more = [
            one
            for one in self.going
            if one.ask.check == ask.check and one.ask.level >= ask.level and not one.ask.gpus
        ]
        if all(one.ask.level > ask.level and one.waits_for for one in more):
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
        log.info(
            "diagnostic_asked",
            id=going.id,
            check=ask.check,
            run_level=ask.level,
            by=ask.by,
            reason=ask.reason,
        )
        return going

    def _taken_over(self, waiting: Going, ask: Ask) -> Going:
        """A person wants what was in line anyway: now it is theirs, and goes first."""
        self._waiting.remove(waiting)
        going = replace(waiting, ask=ask, waits_for="")
        self._waiting.insert(0, going)
        self._wake.set()
        log.info(
            "diagnostic_asked",
            id=going.id,
            check=ask.check,
            run_level=ask.level,
            by=ask.by,
            reason=ask.reason,
        )
        return going

    def _drop(self, waiting: Going, why: str) -> None:
        """Out of the line."""
        self._waiting.remove(waiting)
        now = time.time()
        report = Report(outcome=Outcome.INCONCLUSIVE, reason=why)
        self._finish(
            Run(id=waiting.id, ask=waiting.ask, began=now, ended=now, report=report), cut=True
        )

    def _expected(self, ask: Ask) -> float:
        """As long as the last one that ran to its end, else as the check says."""
        last = self.last.get((ask.check, ask.level))
        if last is not None and last.report.outcome in (Outcome.PASS, Outcome.FAIL, Outcome.CONFIG):
            return last.ended - last.began
        return self.checks[ask.check].expected_s(ask.level)

    async def _start_next(self) -> None:
        in_the_way = await self._in_the_way()
        # Whether a look is needed is known only now: nothing that must wait may come in between.
        idle_s, uses = (
            await self._idle()
            if any(self._must_wait(one.ask) for one in self._waiting)
            else (0.0, ())
        )
        # From here on all goes at once: a job that began meanwhile, or a release, counts.
        in_the_way = self._held() or in_the_way
        known = {use.job for use in uses}
        busy = [
            *(use.words for use in uses),
            *(f"job {job}" for job in self._announced() if job not in known),
        ]
        self._in_use = in_the_way or ", ".join(busy[:3])
        waiting: list[Going] = []
        for one in self._waiting:
            waits_for = in_the_way
            if not waits_for and self._must_wait(one.ask):
                needed = self._settings.idle_s if _by_itself(one.ask) else 0.0
                if busy:
                    waits_for = f"idle devices: {', '.join(busy[:3])}"
                elif idle_s < needed:
                    waits_for = f"devices idle for {needed:.0f} s: {idle_s:.0f} s so far"
            waiting.append(replace(one, waits_for=waits_for))
        self._waiting = waiting
        ready = next((one for one in waiting if not one.waits_for), None)
        if ready is not None:
            self._waiting.remove(ready)
            self._start(ready)

    def _announced(self) -> list[str]:
        """Jobs that their scheduler told of, also just now."""
        now, running = time.monotonic(), self._node.jobs()
        self._coming = {
            job: at
            for job, at in self._coming.items()
            if now - at < _COMING_S and job not in running
        }
        return [*running, *self._coming]

    def _released(self) -> str:
        """Who has asked us to let go of the devices, or is about to be let go of."""
        if released := self._node.released():
            self._letting_go = -_LETTING_GO_S
            return released
        return "now" if time.monotonic() - self._letting_go < _LETTING_GO_S else ""

    def _held(self) -> str:
        """Whether the devices are not ours to use, in words."""
        released = self._released()
        return f"the end of the release: {released}" if released else ""

    def _must_wait(self, ask: Ask) -> bool:
        return self.checks[ask.check].needs_idle(ask.level) and not ask.busy

    async def _in_the_way(self) -> str:
        """What keeps any run from starting."""
        try:
            left = await self._lane.call(partial(leftovers, self._procfs))
        except (LaneStuck, OSError) as error:
            return f"a look at the processes: {error}"
        return f"the end of an earlier diagnostic: {', '.join(left[:3])}" if left else ""

    async def _idle(self) -> tuple[float, tuple[Use, ...]]:
        """For how long the devices have been idle, and who uses them."""
        uses = await self._look(testing=False)
        return self._detector.idle_for(time.monotonic()), uses

    async def _look(self, *, testing: bool) -> tuple[Use, ...]:
        """Who uses the devices; `testing`: beside our own run, which has them."""
        detector = self._detector
        try:
            compute = await self._compute(testing=testing)
        except asyncio.TimeoutError:
            return (detector.unknown("the driver does not say in time who uses the GPUs"),)
        context = IdleContext(
            announced=self._announced(),
            released=self._released(),
            compute=compute,
            memory=self._node.memory(),
            testing=testing,
        )
        try:
            uses = await self._looks.call(lambda: detector.look(context), _LOOK_S)
        except Exception as error:  # also a fault of ours: what cannot be told counts as use
            self._trouble("idle_not_known", error, "what needs idle devices waits")
            return (detector.unknown(str(error)),)
        self._said.discard("idle_not_known")
        return uses

    async def _compute(self, *, testing: bool) -> Mapping[str, Sequence[float]]:
        """Who computes, asked of the driver now: before a run each time, while one has the devices
        once a second.

        A driver that is slow to answer under a run's load says nothing of other work: its last
        answer stands.
        """
        if not testing:
            return await self._node.compute_now(_DRIVER_S)
        if time.monotonic() - self._driver_asked < _DRIVER_EVERY_S:
            return self._driver_said
        self._driver_asked = time.monotonic()
        try:
            self._driver_said = await self._node.compute_now(_DRIVER_EVERY_S)
        except asyncio.TimeoutError:
            self._driver_said = self._node.compute()
        return self._driver_said

    # --- the run under way

    def _start(self, going: Going) -> None:
        check = self.checks[going.ask.check]
        current = self._current = _Current(
            replace(going, stage=Stage.RUNNING, began=time.time(), waits_for=""), check
        )
        current.task = asyncio.create_task(self._run(current), name=f"diagnostic {going.id}")
        log.info(
            "diagnostic_began",
            id=going.id,
            check=going.ask.check,
            run_level=going.ask.level,
            by=going.ask.by,
        )

    def _under_way(self) -> _Current | None:
        """The run that could be told to end."""
        return (
            self._current if self._current is not None and not self._current.over.is_set() else None
        )

    async def _run(self, current: _Current) -> None:
        going, began = current.going, time.time()
        watch = asyncio.create_task(self._watch_for_work()) if self._must_wait(going.ask) else None
        try:
            report = await current.check.perform(going.ask, partial(self._execute, current))
        except asyncio.CancelledError:  # only `_close` does that
            current.cut, current.stopped = True, current.stopped or _STOPPED
            report = Report(outcome=Outcome.INCONCLUSIVE)
        except (
            Exception
        ) as error:  # a fault of ours must not end diagnostics; what was printed is kept
            log.exception("diagnostic_not_read", id=going.id)
            report = Report(
                outcome=Outcome.ERROR,
                reason=f"{type(error).__name__}: {error}",
                remedy=Remedy.INVESTIGATE,
            )
        finally:
            if watch is not None:
                watch.cancel()
        if current.cut:
            # What a program says when it is ended says nothing of the hardware. Who cancels does
            # not want it back at once.
            wanted = current.room_for or current.stopped == _STOPPED
            report = Report(
                outcome=Outcome.INCONCLUSIVE,
                reason=current.stopped,
                remedy=Remedy.RETRY if wanted else Remedy.NONE,
            )
        run = Run(
            id=going.id,
            ask=going.ask,
            began=began,
            ended=time.time(),
            report=report,
            exit_code=current.exit_code,
            command=current.command,
            preempted=current.room_for if current.cut else "",
            raw=current.printed,
        )
        self._finish(self._confirmed(run), cut=current.cut)

    def _confirmed(self, run: Run) -> Run:
        try:
            return events.confirmed(run, self._node, self._seen)
        except Exception:  # a fault of ours: rather no flag than one that nobody confirmed
            log.exception("diagnostic_not_confirmed", id=run.id)
            return replace(
                run, report=replace(run.report, reboot_required=False, replacement_required=False)
            )

    async def _execute(self, current: _Current, command: Command) -> Output:
        """Run a program of the check under way, and keep what it printed."""
        if current.stopped:
            current.cut = True
            return Output(ended=Ended.CANCELLED, why=current.stopped)
        output = await self._programs.execute(command)
        current.cut = current.cut or (output.ended is Ended.CANCELLED and bool(current.stopped))
        current.command = " ".join(command.argv)
        current.exit_code = output.exit_code
        parts = [
            f"$ {current.command}\n",
            output.stdout,
            f"\n[stderr]\n{output.stderr}" if output.stderr else "",
        ]
        ending = (
            f"\n[{output.ended.value}: {output.why}]\n"
            if output.why
            else f"\n[exit {output.exit_code}]\n"
        )
        current.printed = (current.printed + "".join(parts) + ending)[:_RAW_BYTES]
        return output

    async def _watch_for_work(self) -> None:
        """While a run has the devices: whoever comes gets them."""
        while True:
            await asyncio.sleep(_WATCH_S)
            uses = await self._look(testing=True)
            if uses:
                self._make_room(uses[0].words)
                return

    def _make_room(self, work: str) -> None:
        current = self._under_way()
        if current is not None and self._must_wait(current.going.ask):
            self._stop(current, f"it made room for {work}", room_for=work)

    def _stop(self, current: _Current, why: str, *, room_for: str = "") -> None:
        """Have the run under way end: at once where it makes room, else as its program needs."""
        if not current.stopped or (room_for and not current.room_for):
            current.stopped, current.room_for = why, room_for
            current.going = replace(current.going, stage=Stage.ENDING)
            log.info("diagnostic_ending", id=current.going.id, reason=why)
        self._programs.cancel(why, _ROOM_S if room_for else None)

    def _finish(self, run: Run, *, cut: bool) -> None:
        """It has ended. It is shown as ending until it is stored."""
        self._untold.append(_Ended(run, cut))
        self._lately.append(run)
        if self._current is not None and self._current.going.id == run.id:
            self._current.over.set()
            self._current.going = replace(self._current.going, stage=Stage.ENDING)
        self._wake.set()
        self._count(run)
        if (
            not _never_begun(run) or run.ask.by == SCHEDULE
        ):  # who takes the schedule's out of the line does not want it back at once
            self._remember(replace(run, raw=""))
        say = log.info if run.report.outcome is Outcome.PASS else log.warning
        say(
            "diagnostic_ended",
            id=run.id,
            outcome=run.report.outcome.value,
            action=run.report.remedy.value,
            reason=run.report.reason,
            seconds=round(run.ended - run.began, 1),
            **({"preempted": run.preempted} if run.preempted else {}),
        )
        if said := summary.line(run):
            log.info(said)
        if self._deep_log is not None and run.command:
            self._logs.post(partial(self._deep_log.add, run))

    def _settle(self, run: Run) -> None:
        """It is stored, and what it found is shown: the next one may begin."""
        if self._current is not None and self._current.going.id == run.id:
            self._current = None
        waited = self._waited.pop(run.id, None)
        if waited is not None and not waited.done():
            waited.set_result(run)
        self._wake.set()


def _by_itself(ask: Ask) -> bool:
    """Whether no person asked for it."""
    return ask.by == SCHEDULE or ask.by.startswith(_BY_FINDING)


def _never_begun(run: Run) -> bool:
    """Whether it was taken out of the line."""
    return not run.command and run.began == run.ended


def _missing(check: Check) -> str:
    try:
        return check.missing()
    except Exception as error:  # one check's fault must not take the others with it
        return f"{type(error).__name__}: {error}"
