"""The real API below a fake of the manager: what the outputs of diagnostics are tested with."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

from aiohttp import web

from tests.harness import Json, UnixConnection
from tests.waiting import WAIT_S
from vitald.core.device_directory import DeviceDirectory
from vitald.core.node_state import NodeState
from vitald.diagnostics.check import Execute
from vitald.ledger.errors import LedgerError
from vitald.model.component import Component
from vitald.model.diagnostic import (
    ActiveRun,
    Fault,
    Measure,
    Refusal,
    Report,
    Run,
    RunRequest,
    ScheduledRun,
    Stage,
    Test,
)
from vitald.model.words import Outcome, Remedy
from vitald.server import serialize
from vitald.server.app import Api
from vitald.server.routes.diagnostics import DiagnosticRoutes, serialize_outline
from vitald.worker_thread import WorkerThread

T = TypeVar("T")
BEGAN = 1_795_000_000.0
PASSED = Report(
    outcome=Outcome.PASS,
    dcgm_version="3.3.7",
    driver_version="535.183.01",
    device_ids=("2330", "2330"),
)
FAILED = Report(
    outcome=Outcome.FAIL,
    reason="GPU 3: a row remap failed",
    remedy=Remedy.REPLACE,
    replacement_required=True,
    culprits=(3,),
    tests=(
        Test(
            name="Page Retirement/Row Remap",
            category="Deployment",
            gpus={"0": "Pass", "1": "Pass", "2": "Pass", "3": "Fail"},
        ),
        Test(name="CUDA Main Library", status="Pass"),
    ),
    faults=(
        Fault(
            code="dcgm/84",
            test="Page Retirement/Row Remap",
            text="GPU 3 has uncorrectable memory errors and row remapping has failed.",
            gpu=3,
            error_id=84,
            category=2,
            severity=2,
            remedy=Remedy.REPLACE,
        ),
    ),
    dcgm_version="3.3.7",
    driver_version="535.183.01",
    device_ids=("2330", "2330"),
)


def run_of(
    report: Report = PASSED,
    *,
    check: str = "dcgm",
    level: int = 2,
    seconds: float = 60.0,
    **more: Any,
) -> Run:
    began = more.pop("began", BEGAN)
    ask = RunRequest(
        check=check,
        level=level,
        by=more.pop("by", "schedule"),
        reason=more.pop("reason", ""),
        gpus=more.pop("gpus", ()),
    )
    id_ = more.pop(
        "id", f"20261118T134640-{int(began) % 1000}-{check}{f'-{level}' if level else ''}"
    )
    return Run(
        id=id_,
        request=ask,
        began=began,
        ended=began + seconds,
        report=report,
        **{"exit_code": 0, "command": "dcgmi diag", **more},
    )


@dataclass(slots=True, kw_only=True)
class FakeCheck:
    name: str
    title: str
    levels: tuple[int, ...] = (0,)
    covers_gpus: bool = False
    absent: str = ""
    periods: tuple[float, ...] = ()

    def find_obstacle(self) -> str:
        return self.absent

    def every_s(self, level: int) -> float:
        return dict(zip(self.levels, self.periods)).get(level, 0.0)

    def needs_idle(self, level: int) -> bool:
        return level != 1

    def expected_s(self, level: int) -> float:
        return {1: 20.0, 2: 480.0, 3: 1500.0, 4: 5400.0}.get(level, 60.0)

    async def run_check(self, ask: RunRequest, execute: Execute) -> Report:
        raise NotImplementedError


CHECKS = (
    FakeCheck(name="dcgm", title="DCGM diagnostic", levels=(1, 2, 3, 4), periods=(3600.0, 86400.0)),
    FakeCheck(name="dcgm_health", title="DCGM health", periods=(600.0,)),
    FakeCheck(name="nccl", title="NCCL all-reduce", absent="all_reduce_perf is not installed"),
)


class FakeDiagnostics:
    """What is asked of it is kept; what it shows is set by the test."""

    def __init__(self) -> None:
        self.checks = {check.name: check for check in CHECKS}
        self.unavailable = {name: check.find_obstacle() for name, check in self.checks.items()}
        self.active: tuple[ActiveRun, ...] = ()
        self.scheduled: tuple[ScheduledRun, ...] = ()
        self.last_runs: dict[tuple[str, int], Run] = {}
        self.blocked = ""
        self.gpus: list[Component] = []  # as the programs number them
        self.asked: list[RunRequest] = []
        self.cancelled: list[tuple[str | None, str, str]] = []
        self.refusal: Refusal | None = None
        self.remembered: list[Run] = []
        self.ledger_fails = ""
        self.on_ask: Callable[[ActiveRun], ActiveRun] = lambda going: going
        self.on_look: Callable[[], object] = lambda: None

    def find_gpu_number(self, gpu: Component) -> int | None:
        return self.gpus.index(gpu) if gpu in self.gpus else None

    def request_run(self, ask: RunRequest) -> ActiveRun:
        if self.refusal is not None:
            raise self.refusal
        self.asked.append(ask)
        made = ActiveRun(
            id=f"20261118T134640-{len(self.asked)}-{ask.check}",
            request=ask,
            requested_at=time.time(),
            expected_s=480.0,
        )
        made = self.on_ask(made)
        self.active = (*self.active, made)
        return made

    async def store_requests(self) -> None:
        pass

    def cancel_run(self, run_id: str | None, by: str, reason: str) -> ActiveRun | None:
        self.cancelled.append((run_id, by, reason))
        found = next((one for one in self.active if run_id in (None, one.id)), None)
        if found is None:
            return None
        self.active = tuple(
            replace(one, stage=Stage.ENDING) if one is found else one for one in self.active
        )
        return replace(found, stage=Stage.ENDING)

    def runs(self, limit: int, check: str | None) -> Sequence[Run]:
        if self.ledger_fails:
            raise LedgerError(self.ledger_fails)
        return [
            replace(run, raw="") for run in self.remembered if check in (None, run.request.check)
        ][:limit]

    def run(self, id_: str) -> Run | None:
        if self.ledger_fails:
            raise LedgerError(self.ledger_fails)
        return next((run for run in self.remembered if run.id == id_), None)

    def end(self, report: Report, **more: Any) -> Run:
        """The one that goes first ends so."""
        first, *self_rest = self.active
        run = Run(
            id=first.id,
            request=first.request,
            began=time.time() - 60.0,
            ended=time.time(),
            report=report,
            **{"exit_code": 0, **more},
        )
        self.remembered.insert(0, run)
        self.last_runs[run.request.check, run.request.level] = run
        self.active = tuple(self_rest)
        return run


class Served:
    """The API's application on a Unix socket, in a thread of its own."""

    def __init__(self, folder: Path, diagnostics: FakeDiagnostics) -> None:
        self.runtime = folder
        self.socket = folder / "vitald.sock"
        self.diagnostics = diagnostics
        self.devices = DeviceDirectory()
        self.looks = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None
        self._lane = WorkerThread("reader")

    def __enter__(self) -> Served:
        self._thread.start()
        self._do(self._start())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()
        self._lane.close()

    def stop(self) -> None:
        if self._runner is not None:
            self._do(self._runner.cleanup())
            self._runner = None

    def start(self) -> None:
        self._do(self._start())

    def request(self, method: str, path: str, body: object = None) -> tuple[int, Json]:
        connection = UnixConnection(self.socket)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    async def _start(self) -> None:
        routes = DiagnosticRoutes(
            self.diagnostics,
            self.devices,
            self._lane,
            self.diagnostics.runs,
            self.diagnostics.run,
        )
        nothing = cast("Any", None)  # the routes that need these are not asked for
        api = Api(
            node_state=NodeState("boot", time.time(), device_reset=False),
            pipeline=nothing,
            catalog=nothing,
            interpreter=nothing,
            inventory=nothing,
            reader=self._lane,
            drill_path=Path("/dev/null"),
            group=0,
            diagnostics=self.diagnostics,
            more=[routes],
        )
        app = api.build_application()

        async def looked(request: web.Request, response: web.StreamResponse) -> None:
            if request.path == "/v1/diagnostics":
                self.looks += 1
                self.diagnostics.on_look()

        app.on_response_prepare.append(looked)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        self.socket.unlink(missing_ok=True)
        await web.UnixSite(self._runner, str(self.socket)).start()


def status_with(diagnostics: FakeDiagnostics) -> Json:
    """What /v1/status says of a node without anything else."""
    return {
        "diagnostics": serialize_outline(diagnostics),
        "time": serialize.format_moment(time.time()),
    }


def slow_link() -> Run:
    measures = (
        Measure(name="busbw_bytes_per_second", value=101.5e9, minimum=350e9),
        Measure(name="latency_seconds", value=21.6e-6, device="rdmap0s6", maximum=50e-6),
    )
    report = Report(
        outcome=Outcome.FAIL,
        reason="bus bandwidth 101.5 GB/s",
        remedy=Remedy.INVESTIGATE,
        measures=measures,
    )
    return run_of(report, check="nccl", level=0)
