"""A manager of diagnostics, and all that it talks to, with checks and programs that do what the
test says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import pytest

from tests.unit.builders import catalogue, gpu
from tests.waiting import WAIT_S, until_async
from vitald.catalog import Clears
from vitald.config.values import Config
from vitald.diagnostics import active_run, device_access, planner, source
from vitald.diagnostics.check import Command, Execute, Output, ProgramEnd
from vitald.diagnostics.idle.detector import IdleContext, Use, UseKind
from vitald.diagnostics.manager import DiagnosticsManager
from vitald.diagnostics.schedule import Moment, Schedule
from vitald.diagnostics.settings import DiagnosticsSettings as Settings
from vitald.diagnostics.settings import SiteCheckSettings
from vitald.model.component import Component
from vitald.model.diagnostic import ActiveRun, Report, Run, RunRequest
from vitald.model.event import Event
from vitald.model.finding import Finding
from vitald.model.source import Batch, Position
from vitald.model.words import Outcome, Remedy
from vitald.worker_thread import WorkerThread

PASSED = Report(outcome=Outcome.PASS)
FAILED = Report(outcome=Outcome.FAIL, reason="broken", remedy=Remedy.REPLACE)
BUSY = (Use(kind=UseKind.PROCESS, words="python3 (pid 7) has nvidia0 open", pid=7),)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for the next look."""
    for module, name in (
        (source, "_PERIOD_S"),
        (source, "_QUEUED_PERIOD_S"),
        (active_run, "_WATCH_PERIOD_S"),
    ):
        monkeypatch.setattr(module, name, 0.01)
    monkeypatch.setattr(device_access, "find_leftovers", lambda _: ())


async def _ran_one(ask: RunRequest, execute: Execute) -> Report:
    output = await execute(Command(argv=("tool", ask.label), deadline_s=60.0))
    return PASSED if output.ended is ProgramEnd.EXITED else FAILED


@dataclass(slots=True)
class Tested:
    """A check. `how` performs it."""

    __test__: ClassVar[bool] = False

    name: str = "dcgm"
    title: str = "a check"
    levels: tuple[int, ...] = (1, 2, 3)
    covers_gpus: bool = False
    how: Callable[[RunRequest, Execute], Awaitable[Report]] = _ran_one
    periods: dict[int, float] = field(default_factory=dict)
    why_missing: Callable[[], str] = lambda: ""

    def find_obstacle(self) -> str:
        return self.why_missing()

    def every_s(self, level: int) -> float:
        return self.periods.get(level, 0.0)

    def needs_idle(self, level: int) -> bool:
        return level >= 2

    def expected_s(self, level: int) -> float:
        return 1.0

    async def run_check(self, ask: RunRequest, execute: Execute) -> Report:
        return await self.how(ask, execute)


class Programs:
    """Runs nothing. A program goes on until `end`, or until it is told to."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.graces: list[float | None] = []  # of what was cancelled
        self.ends = True
        self._over: asyncio.Future[Output] | None = None

    async def execute(self, command: Command) -> Output:
        self.runs.append(command.argv[-1])
        if self.ends:
            return Output(ended=ProgramEnd.EXITED, stdout="{}", exit_code=0)
        self._over = asyncio.get_running_loop().create_future()
        return await self._over

    def cancel(self, why: str, grace_s: float | None = None) -> None:
        self.graces.append(grace_s)
        self._end(Output(ended=ProgramEnd.CANCELLED, why=why, exit_code=-15))

    def end(self) -> None:
        self._end(Output(ended=ProgramEnd.EXITED, stdout="{}", exit_code=0))

    def _end(self, output: Output) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(output)


class Detector:
    """The idle detector. `look` is what the test says."""

    def __init__(self) -> None:
        self.context = IdleContext()
        self.idle_s = 1e9
        self.uses: tuple[Use, ...] = ()
        self.on_look: Callable[[], object] = lambda: None

    def find_uses(self, context: IdleContext) -> tuple[Use, ...]:
        self.context = context
        self.on_look()
        return (
            *(Use(kind=UseKind.JOB, words=f"job {job}", job=job) for job in context.announced),
            *self.uses,
        )

    def report_unknown(self, why: str) -> Use:
        return Use(kind=UseKind.UNKNOWN, words=f"not known: {why}")

    def get_idle_s(self, _: float) -> float:
        return self.idle_s


class Node:
    """What diagnostics know of the node."""

    def __init__(self) -> None:
        self.open: list[Finding] = []
        self.running: set[str] = set()
        self.told_released = ""
        self.pci_unread = ""
        self.remembered: list[Run] = []
        self.cleared_at = Clears(diagnostic=2)
        self.on_findings: Callable[[], object] = lambda: None
        self.driver: (
            dict[str, Sequence[float]] | None
        ) = {}  # who computes, by the driver; None where it does not answer
        self.asked_now: list[float] = []

    def list_findings(self) -> Sequence[Finding]:
        self.on_findings()
        return self.open

    def get_clears(self, _: Finding) -> Clears:
        return self.cleared_at

    def find_gpu(self, index: int, serial: str = "", address: str = "") -> Component | None:
        return gpu(index)

    def find_number(self, component: Component) -> int | None:
        return [gpu(0), gpu(1)].index(component)

    def list_gpus(self) -> set[Component]:
        return {gpu(0), gpu(1)}

    async def read_pci(self) -> str:
        return self.pci_unread

    def list_testable_gpus(self) -> set[Component]:
        return self.list_gpus()

    def get_identity(self, component: Component) -> str:
        return component.name

    def list_compute_users(self) -> dict[str, Sequence[float]]:
        return {}

    async def read_compute_users(self, seconds: float) -> dict[str, Sequence[float]]:
        self.asked_now.append(seconds)
        if self.driver is None:
            raise asyncio.TimeoutError
        return self.driver

    def list_memory_use(self) -> dict[str, float]:
        return {}

    def list_jobs(self) -> set[str]:
        return self.running

    def describe_release(self) -> str:
        return self.told_released

    def read_runs(self) -> Sequence[Run]:
        return self.remembered


class House:
    """A manager, and all that it talks to. `batches` is what it handed in; `after`: the position
    that a former one left.
    """

    def __init__(
        self,
        *checks: Tested,
        enabled: bool = True,
        overdue: str = "report",
        after: Position | None = None,
    ) -> None:
        self.programs, self.detector, self.node = Programs(), Detector(), Node()
        self.batches: list[Batch] = []
        self.after = after
        self.counted: list[Run] = []
        self.ledger_open = asyncio.Event()
        self.ledger_open.set()
        self.lane = WorkerThread("test")
        self._config = Config(Settings(enabled=enabled, idle_s=300.0, overdue=overdue))
        self.manager = DiagnosticsManager(
            self._config,
            {check.name: check for check in checks or (Tested(),)},
            catalog=catalogue(),
            waits_for_idle=lambda: False,
            boot_id="boot-a",
            node=cast("Any", self.node),
            detector=cast("Any", self.detector),
            schedule=Schedule(host="a"),
            programs=cast("Any", self.programs),
            worker_thread=self.lane,
            count=self.counted.append,
            stored=self._stored,
        )

    def reload(
        self, *settings: object, checks: Mapping[str, SiteCheckSettings] | None = None
    ) -> None:
        config = Config(*settings, groups={SiteCheckSettings: checks or {}})
        self.manager.configure(catalogue(), config)

    async def _stored(self) -> None:
        await self.ledger_open.wait()

    async def read(self) -> None:
        """As the daemon reads a source."""
        async for batch in self.manager.source.read_batches(self.after):
            self.batches.append(batch)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[House]:
        task = asyncio.create_task(self.read())
        try:
            await until_async(lambda: self.batches, "the first look")
            yield self
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            self.manager.close()
            self.lane.close()

    async def ended(self, going: ActiveRun) -> Run:
        """The run, once it is stored."""
        await until_async(
            lambda: going.id not in {run.id for run in self.manager.active}, "its end"
        )
        run = self.manager.find_recent_run(going.id)
        assert run is not None
        return run

    @property
    def position(self) -> Position:
        """What the ledger has of it."""
        handed_in = [*self.batches, *self.manager.source.take_pending_batches()]
        return [batch.position for batch in handed_in if batch.position is not None][-1]

    @property
    def runs(self) -> list[Run]:
        """As they were handed in."""
        return [run for batch in self.batches for run in batch.runs]

    @property
    def codes(self) -> list[str]:
        return [event.code for event in self.told]

    @property
    def told(self) -> list[Event]:
        return [event for batch in self.batches for event in batch.events]


def ask(level: int = 1, by: str = "root, pid 1", **more: Any) -> RunRequest:
    return RunRequest(check="dcgm", level=level, by=by, reason="test", **more)


def told(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), WAIT_S))


def settled_after_boot(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """The daemon has run for an hour, and the node for longer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            planner,
            "Moment",
            lambda now, up_s, running_s: Moment(now=now, up_s=1e6, running_s=3600.0 + running_s),
        )
        told(work)
