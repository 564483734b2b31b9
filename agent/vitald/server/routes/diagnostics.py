"""
Diagnostics over the socket: `GET /v1/diagnostics` and `/v1/diagnostics/runs`, and `POST
/v1/diagnostics/run` and `/cancel`.

Validates requests, and serializes checks, active runs and ended runs. A request is answered at
once; its result comes later, as an event.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from aiohttp import web

from vitald import tomlfile
from vitald.checking import Unexpected, read_flag, read_list, read_match, read_text, read_whole
from vitald.core.device_directory import DeviceDirectory
from vitald.diagnostics.check import Check
from vitald.diagnostics.view import DiagnosticsView
from vitald.ledger.errors import LedgerError
from vitald.model.component import Component
from vitald.model.diagnostic import (
    ActiveRun,
    Fault,
    Measure,
    Refusal,
    Run,
    RunRequest,
    ScheduledRun,
    Test,
)
from vitald.model.words import ComponentKind
from vitald.server import endpoints, serialize
from vitald.server.request import (
    RequestRefused,
    make_route,
    read_body,
    read_limit,
    read_reason,
    read_value,
    require_change_right,
)
from vitald.server.routes.context import find_component
from vitald.worker_thread import ThreadStuck, WorkerThread

if TYPE_CHECKING:
    from vitald.server import schema

_READ_S = 5.0
_MAX_GPUS, _MAX_INDEX, _MAX_LEVEL = 64, 4095, 100
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,79}")
Stored = TypeVar("Stored")
Json = serialize.Json


class DiagnosticsControl(DiagnosticsView, Protocol):
    """Also starts and stops runs. `request_run` raises Refusal, and `store_requests` returns once
    the requests are kept; without an id `cancel_run` means the active run. Both are logged there.
    """

    def find_gpu_number(self, gpu: Component) -> int | None: ...
    def request_run(self, request: RunRequest) -> ActiveRun: ...
    async def store_requests(self) -> None: ...
    def cancel_run(self, run_id: str | None, by: str, reason: str) -> ActiveRun | None: ...


class DiagnosticRoutes:
    """The handlers. `runs` and `run` read the ledger, in the reader thread."""

    def __init__(
        self,
        diagnostics: DiagnosticsControl,
        devices: DeviceDirectory,
        reader: WorkerThread,
        runs: Callable[[int, str | None], Sequence[Run]],
        run: Callable[[str], Run | None],
    ) -> None:
        self._diagnostics = diagnostics
        self._devices = devices
        self._reader = reader
        self._read_runs = runs
        self._read_run = run

    def list_routes(self) -> list[web.RouteDef]:
        return [
            make_route(endpoints.DIAGNOSTICS, self.show_diagnostics),
            make_route(endpoints.DIAGNOSTIC_RUNS, self.list_runs),
            make_route(endpoints.DIAGNOSTIC_RUN, self.show_run),
            make_route(endpoints.RUN_DIAGNOSTIC, self.request_run),
            make_route(endpoints.CANCEL_DIAGNOSTIC, self.cancel_run),
        ]

    async def show_diagnostics(self, _: web.Request) -> schema.ApiDiagnostics:
        """Shows the checks, the active and scheduled runs, and the last run of each check."""
        shown = self._diagnostics
        return {
            "checks": [
                serialize_check(check, shown.unavailable.get(name, "not looked for yet"))
                for name, check in shown.checks.items()
            ],
            **serialize_outline(shown),
            "scheduled": [serialize_scheduled(scheduled) for scheduled in shown.scheduled],
            "blocked": shown.blocked,
        }

    async def list_runs(self, request: web.Request) -> schema.DiagnosticRuns:
        """Lists the ended runs, the newest first."""
        query = request.query
        most, wanted = read_limit(query), query.get("check")
        if wanted is not None:
            self._find_check(wanted)
        listed = await self._read_ledger(lambda: self._read_runs(most + 1, wanted))
        return {
            "runs": [serialize_run(run) for run in listed[:most]],
            "more": len(listed) > most,
            "damaged": serialize.count_damaged(listed),
        }

    async def show_run(self, request: web.Request) -> schema.DiagnosticRunInFull:
        id_ = request.match_info["id"]
        found = await self._read_ledger(lambda: self._read_run(id_)) if _ID.fullmatch(id_) else None
        if found is not None:
            return serialize_full_run(found)
        active = next((run for run in self._diagnostics.active if run.id == id_), None)
        if active is not None:
            raise RequestRefused(
                404, f"run {id_} has not ended", "/v1/diagnostics shows how far it is"
            )
        raise RequestRefused(
            404, f"no run {id_[:80]!r}", "vitald diag list shows those that are remembered"
        )

    async def request_run(self, request: web.Request) -> schema.OneActiveDiagnostic:
        """Requests a run. Answers once the request is kept."""
        peer = require_change_right(request)
        body = await read_body(request, "check", "level", "gpus", "reason", "busy")
        asked = self._read_request(body, f"{peer.name}, pid {peer.pid}")
        try:
            begun = self._diagnostics.request_run(asked)
            await self._diagnostics.store_requests()
        except Refusal as refusal:
            raise RequestRefused(409, str(refusal), refusal.hint) from None
        return {"active": serialize_active(begun)}

    async def cancel_run(self, request: web.Request) -> schema.OneActiveDiagnostic:
        """Stops or dequeues a run. Answers at once; its programs get their grace period."""
        peer = require_change_right(request)
        body = await read_body(request, "id", "reason")
        id_, reason = _id_of(body), read_reason(body)
        ended = self._diagnostics.cancel_run(id_, f"{peer.name}, pid {peer.pid}", reason)
        if ended is None:
            error = "no diagnostic runs" if id_ is None else f"no diagnostic {id_} runs or waits"
            raise RequestRefused(409, error, "vitald diag list shows what does")
        return {"active": serialize_active(ended)}

    def _read_request(self, body: Json, by: str) -> RunRequest:
        names = f"one of {', '.join(self._diagnostics.checks)}"
        named = read_value(body, "check", partial(read_text, expected="a name"), "dcgm", names)
        busy = read_value(body, "busy", read_flag, False)
        level, gpus, reason = _level_of(body), self._read_gpus(body), read_reason(body)
        meant = self._find_check(named)
        if level is None:
            level = min(meant.levels)
        elif level not in meant.levels:
            levels = ", ".join(map(str, meant.levels)) if any(meant.levels) else ""
            hint = (
                f"{meant.name} has {levels}"
                if levels
                else f"{meant.name} has no levels: leave it out"
            )
            raise RequestRefused(400, f"level: {meant.name} has no level {level}", hint)
        return RunRequest(check=meant.name, level=level, gpus=gpus, by=by, reason=reason, busy=busy)

    def _find_check(self, name: str) -> Check:
        known = self._diagnostics.checks
        if name not in known:
            raise RequestRefused(
                404,
                f"no check {name[:80]!r}{tomlfile.suggest_word(name[:80], known)}",
                f"there are {', '.join(known)}",
            )
        return known[name]

    def _read_gpus(self, body: Json) -> tuple[int, ...]:
        """By index, as the diagnostic's program numbers them; none for all."""
        expected = f"a list of at most {_MAX_GPUS} GPUs, each once, by index or another name"

        def read(value: object) -> tuple[int, ...]:
            listed = read_list(value, 0, _MAX_GPUS, expected)
            gpus = {self._read_gpu(gpu, expected) for gpu in listed}
            if len(gpus) != len(listed):
                raise Unexpected(expected, value)
            return tuple(sorted(gpus))

        return read_value(body, "gpus", read, [], "leave it out for all of them")

    def _read_gpu(self, value: object, expected: str) -> int:
        """A number is taken as it is: the program may know GPUs that the driver does not list."""
        if not isinstance(value, str):
            return read_whole(value, 0, _MAX_INDEX, expected, from_json=True)
        gpu = find_component(self._devices, value, ComponentKind.GPU)
        number = self._diagnostics.find_gpu_number(gpu)
        if number is None:
            raise RequestRefused(
                409, f"{gpu.name} has no number in the programs of diagnostics", "see vitald gpus"
            )
        return number

    async def _read_ledger(self, work: Callable[[], Stored]) -> Stored:
        try:
            return await self._reader.call(work, _READ_S)
        except (LedgerError, ThreadStuck) as error:
            raise RequestRefused(
                503, f"the ledger cannot be read: {error}", "vitald status says more"
            ) from error


def _id_of(body: Json) -> str | None:
    """None where it is left out: the run under way."""
    if "id" not in body:
        return None
    read = partial(read_match, pattern=_ID, expected="the id of a run")
    return read_value(body, "id", read, hint="leave it out for the one that runs")


def _level_of(body: Json) -> int | None:
    """None where it is left out."""
    if "level" not in body:
        return None
    return read_value(body, "level", partial(read_whole, least=0, most=_MAX_LEVEL, from_json=True))


# --- serialization


def serialize_outline(shown: DiagnosticsView) -> schema.DiagnosticOutline:
    """Active and queued runs, and the last run of each check: also part of `/v1/status`."""
    return {
        "active": [serialize_active(run) for run in shown.active],
        "last": [serialize_run(run) for _, run in sorted(shown.last_runs.items())],
    }


def serialize_check(check: Check, missing: str) -> schema.DiagnosticCheck:
    """By level, where it has levels; else all is under `0`. A period of 0: on request only.
    `unavailable`: determined elsewhere, as that blocks.
    """
    return {
        "name": check.name,
        "title": check.title,
        "levels": list(check.levels),
        "missing": missing,
        "every": {str(level): check.every_s(level) for level in check.levels},
        "expected": {str(level): check.expected_s(level) for level in check.levels},
        "needsIdle": {str(level): check.needs_idle(level) for level in check.levels},
    }


def serialize_scheduled(scheduled: ScheduledRun) -> schema.ScheduledDiagnostic:
    return {
        "check": scheduled.check,
        "level": scheduled.level,
        "at": serialize.format_moment(scheduled.at),
        "waitsFor": scheduled.waits_for,
    }


def serialize_active(run: ActiveRun) -> schema.ActiveDiagnostic:
    """`elapsed` is 0 while it waits."""
    return {
        **_serialize_request(run.id, run.request),
        "stage": run.stage.value,
        "requestedAt": serialize.format_moment(run.requested_at),
        "began": serialize.format_moment(run.began),
        "elapsed": round(max(0.0, time.time() - run.began), 3) if run.began is not None else 0.0,
        "expected": run.expected_s,
        "waitsFor": run.waits_for,
        "test": run.test,
    }


def serialize_run(run: Run) -> schema.DiagnosticRun:
    report = run.report
    return {
        **_serialize_request(run.id, run.request),
        "began": serialize.format_moment(run.began),
        "ended": serialize.format_moment(run.ended),
        "seconds": round(max(0.0, run.ended - run.began), 3),
        "outcome": report.outcome.value,
        "why": report.reason,
        "action": report.remedy.value,
        "rebootRequired": report.reboot_required,
        "replacementRequired": report.replacement_required,
        "exitCode": run.exit_code,
        "culprits": list(report.culprits),
        "preempted": run.preempted,
        "dcgmVersion": report.dcgm_version,
        "driverVersion": report.driver_version,
        "deviceIds": list(report.device_ids),
    }


def serialize_full_run(run: Run) -> schema.DiagnosticRunInFull:
    """A run with its output, and everything that was read from it."""
    report = run.report
    return {
        **serialize_run(run),
        "command": run.command,
        "tests": [_serialize_test(test) for test in report.tests],
        "faults": [_serialize_fault(fault) for fault in report.faults],
        "measures": [_serialize_measure(measure) for measure in report.measures],
        "raw": run.raw,
    }


def _serialize_request(id_: str, request: RunRequest) -> schema.DiagnosticRequest:
    return {
        "id": id_,
        "check": request.check,
        "level": request.level,
        "gpus": list(request.gpus),
        "by": request.by,
        "reason": request.reason,
    }


def _serialize_test(test: Test) -> schema.DiagnosticTest:
    return {
        "name": test.name,
        "category": test.category,
        "status": test.status,
        "gpus": {str(gpu): status for gpu, status in test.gpus.items()},
        "cpus": {str(cpu): status for cpu, status in test.cpus.items()},
    }


def _serialize_fault(fault: Fault) -> schema.DiagnosticFault:
    return {
        "code": fault.code,
        "test": fault.test,
        "text": fault.text,
        "gpu": fault.gpu,
        "device": fault.device,
        "errorId": fault.error_id,
        "category": fault.category,
        "severity": fault.severity,
        "action": fault.remedy.value,
        "confirm": fault.confirm,
        "confirmed": fault.confirmed,
    }


def _serialize_measure(measure: Measure) -> schema.DiagnosticMeasure:
    return {
        "name": measure.name,
        "device": measure.device,
        "value": _drop_infinity(measure.value),
        "minimum": _drop_infinity(measure.minimum),
        "maximum": _drop_infinity(measure.maximum),
    }


def _drop_infinity(value: float | None) -> float | None:
    """JSON knows no infinity, and programs print what they like."""
    return value if value is not None and math.isfinite(value) else None
